"""Ending a hub: ask it to, then wait until its process is gone. Nothing is forced."""

import asyncio
from pathlib import Path
from typing import Annotated

import psutil
import typer

from cli import output, tables
from cli.context import ABSENT, Link, call, home_of, with_link
from hub import settings
from hub.client import find_hub
from hub.errors import TurnbackError, UnavailableError, UsageError

STOP_GRACE_S = 15.0
"""Seconds a hub may take beyond its own deadline before we say that it has not stopped."""
POLL_S = 0.05

Deadline = Annotated[float, typer.Option("--deadline", metavar="SECONDS", help="How long runs may go on meanwhile.")]


def stop(context: typer.Context, deadline: Deadline = 10.0) -> None:
    """Stop the hub; runs that are not done go on after the next start."""
    stopped = with_link(context, lambda link: end_hub(link, deadline), start=False)
    words = f"The hub has stopped (pid {stopped})." if stopped else "No hub runs."
    if stopped:
        _warn_of_config(home_of(context) / settings.CONFIG_NAME)
    output.show(context, {"stopped": stopped is not None, "pid": stopped}, lambda _: words)


def _warn_of_config(path: Path) -> None:
    try:
        settings.read_config(path)
    except UsageError as error:
        output.note(f"It cannot start again before this is mended: {error.message}", "yellow")


def restart(context: typer.Context, deadline: Deadline = 10.0) -> None:
    """Stop the hub and start it again.

    With a wrong config.toml nothing is stopped.
    """
    settings.read_config(home_of(context) / settings.CONFIG_NAME)
    with_link(context, lambda link: end_hub(link, deadline), start=False)
    output.show(context, call(context, "hub.status"), tables.status)


async def end_hub(link: Link, deadline_s: float) -> int | None:
    """Stop the hub and wait until its process is gone; return its pid, None when none ran.

    Raises TurnbackError code stop_timeout when it is still there.
    """
    try:
        process = psutil.Process(find_hub(link.home).pid)
        await link.client()
    except (UnavailableError, psutil.NoSuchProcess) as error:
        if getattr(error, "code", "no_hub") != "no_hub":
            raise
        return None
    try:
        await link.call("hub.shutdown", deadline_s=deadline_s)
    except UnavailableError as error:  # it may be gone before its answer is here
        if error.code not in ABSENT:
            raise
    await link.close()
    await _gone(process, deadline_s + STOP_GRACE_S)
    return process.pid


async def _gone(process: psutil.Process, patience_s: float) -> None:
    for _ in range(int(patience_s / POLL_S)):
        if not _lives(process):
            return
        await asyncio.sleep(POLL_S)
    raise TurnbackError(
        f"The hub (pid {process.pid}) has not stopped within {patience_s:g} s.",
        code="stop_timeout",
        hint="A second `hubctl stop` makes it leave at once; see `hubctl logs`.",
    )


def _lives(process: psutil.Process) -> bool:
    """Return whether the process does anything: one that only waits for its parent to take note is gone."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
