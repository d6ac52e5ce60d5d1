"""Checks of an installation. Read-only: nothing is written, started, ended or repaired; `fix` says what one may do.

A check returns one finding. Severities: ok, warning (works, but know it), error (does not work; exit code 1).
"""

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import typer
from rich.console import RenderableType
from rich.text import Text

from cli import output, tables
from cli.context import home_of
from cli.text import visible
from hub import __version__, settings
from hub.client import HubClient, find_hub
from hub.errors import ExitCode, TurnbackError
from hub.protocol.discovery import record_path
from hub.protocol.views import MirrorView

OLDEST_GIT = (2, 25)
WAL_RESET_BUG = ((3, 7, 0), (3, 51, 2))
"""First and last version of SQLite in which a checkpoint racing with a write could lose part of a WAL database."""
GIT_PATIENCE_S = 10.0

Severity = Literal["ok", "warning", "error"]
STYLES: dict[str, str] = {"ok": "green", "warning": "yellow", "error": "bold red"}


class Finding(msgspec.Struct, frozen=True):
    """What a check found. `fix` is None when there is nothing to do."""

    id: str
    severity: Severity
    message: str
    fix: str | None = None


class Check(NamedTuple):
    """A name and the function that looks; an OSError of it is a finding too."""

    id: str
    look: Callable[[Path], Finding]


def doctor(context: typer.Context) -> None:
    """Check this installation; changes nothing."""
    findings = examine(home_of(context))
    output.show(context, findings, drawn)
    raise typer.Exit(verdict(findings))


def examine(home: Path) -> list[Finding]:
    """Return what each check found."""
    return [_looked(check, home) for check in CHECKS]


def verdict(findings: Sequence[Finding]) -> ExitCode:
    """Return the exit code: 1 when something does not work."""
    return ExitCode.FAILED if any(finding.severity == "error" for finding in findings) else ExitCode.OK


def _looked(check: Check, home: Path) -> Finding:
    try:
        return check.look(home)
    except OSError as error:
        return Finding(check.id, "error", f"This cannot be checked: {error}", "See that you may read it.")


def check_home(home: Path) -> Finding:
    """Look whether the home is a private directory that can be written to."""
    if not home.exists():
        return Finding("home", "ok", f"{home} does not exist yet; the first start makes it.")
    if not home.is_dir() or not os.access(home, os.R_OK | os.W_OK | os.X_OK):
        return Finding("home", "error", f"{home} is not a directory that you may write to.", "Choose another home.")
    if home.stat().st_mode & 0o077:
        return Finding("home", "warning", f"Others may look into {home}.", f"chmod 700 {home}")
    return Finding("home", "ok", f"{home} is writable and private.")


def check_config(home: Path) -> Finding:
    """Look whether the settings can be read."""
    try:
        settings.load(home)
    except TurnbackError as error:
        return Finding("config", "error", error.message, error.hint)
    where = home / settings.CONFIG_NAME
    return Finding(
        "config", "ok", f"{where} is valid." if where.exists() else "There is no config.toml; defaults hold."
    )


def check_hub(home: Path) -> Finding:
    """Look whether the discovery record, its process and its port agree."""
    path = record_path(home)
    if not path.exists():
        return Finding("hub", "ok", "No hub runs; the next command starts one.")
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        return Finding("hub", "error", f"{path} holds a token and others may read it.", f"chmod 600 {path}")
    try:
        record = find_hub(home)
    except TurnbackError as error:
        return Finding("hub", "warning", f"{error.message} Its record is left over.", "hubctl start replaces it.")
    try:
        answering = asyncio.run(_greeted(home))
    except TurnbackError as error:
        fix = f"See `hubctl logs`; if process {record.pid} is a hub that hangs, end it and run `hubctl start`."
        return Finding("hub", "error", f"The record names process {record.pid}, but: {error.message}", fix)
    if answering != record.boot_id:
        return Finding("hub", "error", f"Another hub than the recorded one answers at {record.url}.", "hubctl restart")
    if record.version != __version__:
        message = f"The hub that runs has version {record.version}, hubctl has {__version__}."
        return Finding("hub", "warning", message, "hubctl restart")
    return Finding("hub", "ok", f"A hub answers at {record.url} (pid {record.pid}, version {record.version}).")


async def _greeted(home: Path) -> str:
    """Return the boot id of the hub that answers."""
    async with await HubClient.connect(home, kind="cli", name="hubctl doctor") as client:
        return client.hello.boot_id


def check_remotes(home: Path) -> Finding:
    """Look whether a `git push` from here would publish checkpoints; only a hub that runs is asked."""
    try:
        found = asyncio.run(_mirrors(home, str(Path.cwd())))
    except TurnbackError as error:
        return Finding("remotes", "ok", f"Not looked at: {error.message}")
    if not found:
        return Finding("remotes", "ok", "No remote of this directory's repository gets the checkpoints.")
    message = "; ".join(f"`git push {mirror.remote}` would publish checkpoints: {mirror.why}" for mirror in found)
    return Finding("remotes", "warning", message, "; ".join(line for mirror in found for line in mirror.remedy))


async def _mirrors(home: Path, workspace: str) -> list[MirrorView]:
    find_hub(home)
    async with await HubClient.connect(home, kind="cli", name="hubctl doctor") as client:
        found: list[MirrorView] = await client.call("workspace.mirrors", workspace=workspace)
        return found


def check_database(home: Path) -> Finding:
    """Look whether the database can be opened, and which version it has."""
    path = home / "hub.db"
    if not path.exists():
        return Finding("database", "ok", "There is no database yet.")
    try:
        version = _user_version(path)
    except sqlite3.Error as error:
        fix = "Stop the hub, keep a copy of the home, and restore hub.db from a backup."
        return Finding("database", "error", f"{path} cannot be read: {error}", fix)
    return Finding("database", "ok", f"{path} opens; its version is {version}.")


def _user_version(path: Path) -> int:
    # Even a reader makes the files of a WAL; without them nobody writes, and the file can be taken as it is.
    option = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?{option}", uri=True)
    try:
        return int(connection.execute("PRAGMA user_version").fetchone()[0])
    finally:
        connection.close()


def check_git(home: Path) -> Finding:
    """Look whether git is there and new enough."""
    path = shutil.which("git")
    if path is None:
        return Finding("git", "error", "git is not installed; checkpoints need it.", "Install git.")
    said = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=GIT_PATIENCE_S, check=False)
    version = git_version(said.stdout)
    if version < OLDEST_GIT:
        wanted = ".".join(map(str, OLDEST_GIT))
        return Finding(
            "git", "error", f"{path} is too old: {said.stdout.strip()!r}.", f"Install git {wanted} or newer."
        )
    return Finding("git", "ok", f"{said.stdout.strip()} at {path}.")


def git_version(text: str) -> tuple[int, ...]:
    """Return the numbers in what `git --version` says, () when there are none."""
    words = text.split()
    parts = words[2].split(".") if len(words) > 2 else []
    return tuple(int(part) for part in parts if part.isdecimal())


def check_sqlite(home: Path) -> Finding:
    """Look which SQLite this Python uses."""
    first, last = WAL_RESET_BUG
    if first <= sqlite3.sqlite_version_info <= last:
        return Finding(
            "sqlite",
            "warning",
            f"SQLite {sqlite3.sqlite_version} has the WAL-reset bug (3.7.0 to 3.51.2): in rare races of a checkpoint "
            "with a write from another connection a database can be damaged.",
            "Nothing must be done; a Python with SQLite 3.51.3 or newer does not have it.",
        )
    return Finding("sqlite", "ok", f"SQLite {sqlite3.sqlite_version}.")


def check_ripgrep(home: Path) -> Finding:
    """Look whether searches can be fast."""
    path = shutil.which("rg")
    if path is None:
        return Finding("ripgrep", "warning", "ripgrep is not installed; searches are slower.", "Install ripgrep (rg).")
    return Finding("ripgrep", "ok", f"ripgrep at {path}.")


def check_model(home: Path) -> Finding:
    """Look whether runs have a model by default."""
    try:
        configured = settings.load(home).config.model.name
    except TurnbackError:
        return Finding("model", "warning", "The model cannot be told while config.toml is not valid.")
    found = settings.model_from_environment() or configured
    if found is None:
        fix = f'Put [model] name = "…" into {home / settings.CONFIG_NAME}, or use --model or TURNBACK_MODEL.'
        return Finding("model", "warning", "No model is configured; each run must name one.", fix)
    return Finding("model", "ok", f"Runs use {found} when they name no other.")


CHECKS = (
    Check("home", check_home),
    Check("config", check_config),
    Check("hub", check_hub),
    Check("remotes", check_remotes),
    Check("database", check_database),
    Check("git", check_git),
    Check("sqlite", check_sqlite),
    Check("ripgrep", check_ripgrep),
    Check("model", check_model),
)


def drawn(findings: Sequence[Finding]) -> RenderableType:
    """Draw the findings."""
    made = tables.table("!check", "!", "found")
    for finding in findings:
        fix = (f"\n→ {visible(finding.fix)}", "dim") if finding.fix else ""
        words = Text.assemble(visible(finding.message), fix)
        made.add_row(finding.id, Text(finding.severity, style=STYLES[finding.severity]), words)
    return made
