"""Reaching the hub of a home, and starting one when none runs: `python -m hub`, detached.

Invariant: of any number of starters one hub comes out, by the hub's own lock; the others find that hub. A starter waits
for an answer on the recorded port, not for a file or a process. It ends no hub but its own
child that came too late.
"""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hub import settings
from hub.client import HubClient, find_hub
from hub.errors import ExitCode, UnavailableError, UsageError

START_DEADLINE_S = 10.0
POLL_S = 0.02
LOG_NAME = "start.log"
LOG_LIMIT = 1 << 20
"""Bytes after which the start log begins anew."""
TAIL_LINES = 12


async def connect(home: Path, *, start: bool) -> HubClient:
    """Return a connection to the hub of this home. Raises UnavailableError when none runs and none can be started."""
    try:
        return await HubClient.connect(home, kind="cli", name="hubctl")
    except UnavailableError as error:
        if not start or error.code != "no_hub":
            raise
    return await start_hub(home)


async def start_hub(home: Path, environ: Mapping[str, str] | None = None) -> HubClient:
    """Start a hub and return a connection to it, or to the one that another starter was quicker with.

    `environ` is the hub's environment, None this process's own.
    Raises UsageError (config_invalid, home_unwritable) before anything is started, UnavailableError code
    hub_start_failed or hub_start_timeout afterwards.
    """
    log = prepare(home)
    settings.load(home, environ=environ)
    mark = log.stat().st_size
    child = spawn(home, log, environ)
    deadline = asyncio.get_running_loop().time() + START_DEADLINE_S
    while asyncio.get_running_loop().time() < deadline:
        client = await _answering(home)
        if client is not None:
            _withdraw(child, home)
            return client
        code = child.poll()
        if code is not None and code != ExitCode.CONFLICT:
            raise _failed(f"The hub ended at once with code {code}.", "hub_start_failed", log, mark)
        await asyncio.sleep(POLL_S)
    raise _failed(f"No hub answered within {START_DEADLINE_S:g} s.", "hub_start_timeout", log, mark)


def prepare(home: Path) -> Path:
    """Make the home and its log folder, private, and return the start log. Raises UsageError code home_unwritable."""
    log = home / "logs" / LOG_NAME
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        log.parent.mkdir(mode=0o700, exist_ok=True)
        fresh = not log.exists() or log.stat().st_size > LOG_LIMIT
        with log.open("w" if fresh else "a"):
            pass
    except OSError as error:
        raise UsageError(
            f"The home {home} cannot be used: {error.strerror or error}.",
            code="home_unwritable",
            hint="Choose another with --home DIR or TURNBACK_HOME.",
        ) from None
    return log


def command(home: Path) -> list[str]:
    """Return the command line of a hub. -P keeps what lies in its working directory from being imported."""
    return [sys.executable, "-P", "-m", "hub", "--home", str(home)]


def spawn(home: Path, log: Path, environ: Mapping[str, str] | None = None) -> "subprocess.Popen[bytes]":
    """Start a hub that outlives this process."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command(home),
            cwd=home,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _withdraw(child: "subprocess.Popen[bytes]", home: Path) -> None:
    """End our own child when another's hub was quicker, lest it come up later, after somebody has stopped that hub."""
    if find_hub(home).pid != child.pid:
        child.terminate()


async def _answering(home: Path) -> HubClient | None:
    try:
        return await HubClient.connect(home, kind="cli", name="hubctl")
    except UnavailableError:
        return None


def _failed(what: str, code: str, log: Path, mark: int) -> UnavailableError:
    with log.open("rb") as file:
        file.seek(mark)
        lines = file.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
    said = "\n".join(lines) or "It said nothing."
    return UnavailableError(f"{what} Its last words:\n{said}", code=code, hint=f"Logs: {log.parent}")
