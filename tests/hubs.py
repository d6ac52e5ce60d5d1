"""A real hub in a real process, for scenarios: started, killed, started again, talked to over its socket."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import psutil

from hub.client import HubClient
from hub.errors import UnavailableError
from hub.protocol.events import RUN_ENDS, Event

START_S = 20.0


class HubProcess:
    """One home and the hub process that serves it."""

    def __init__(self, home: Path, *, config: str = "", environ: dict[str, str] | None = None) -> None:
        self.home = home
        self.environ = {**os.environ, **(environ or {})}
        self.process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)
        if config:
            (home / "config.toml").write_text(textwrap.dedent(config))

    async def start(self) -> "HubProcess":
        """Start the hub and wait until it answers."""
        command = [sys.executable, "-m", "hub", "--home", str(self.home)]
        out = (self.home / "out.txt").open("ab")
        self.process = subprocess.Popen(command, stdout=out, stderr=out, env=self.environ)
        out.close()
        async with asyncio.timeout(START_S):
            while True:
                if self.process.poll() is not None:
                    raise RuntimeError(f"the hub ended: {(self.home / 'out.txt').read_text()}")
                if await self._answers(self.process.pid):
                    return self
                await asyncio.sleep(0.02)

    async def _answers(self, pid: int) -> bool:
        try:
            async with await self.client() as client:
                return bool((await client.call("hub.status")).pid == pid)
        except UnavailableError:
            return False

    async def client(self, name: str = "test") -> HubClient:
        """Connect as the owner."""
        return await HubClient.connect(self.home, kind="test", name=name)

    def kill(self) -> None:
        """SIGKILL, and wait until the kernel has taken it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def end(self) -> None:
        """Kill it together with all that it has started."""
        family = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self.process.pid).children(recursive=True) if self.process is not None else []
        self.kill()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()

    def stop(self) -> int:
        """SIGTERM, wait, return the exit code."""
        if self.process is None:
            return 0
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=30)
        self.process = None
        return code

    async def restart(self) -> "HubProcess":
        """Kill it and start it again."""
        self.kill()
        return await self.start()


def git(folder: Path, *words: str) -> str:
    """Run git with a fixed identity and no configuration of the machine's."""
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": "A",
        "GIT_AUTHOR_EMAIL": "a@example.org",
        "GIT_COMMITTER_NAME": "A",
        "GIT_COMMITTER_EMAIL": "a@example.org",
        "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    }
    done = subprocess.run(["git", "-C", str(folder), *words], env=environ, capture_output=True, text=True, check=True)
    return done.stdout


def make_repo(folder: Path, files: dict[str, str] | None = None) -> Path:
    """Make a repository with one commit of some files."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q", "-b", "main")
    for name, text in (files or {"a.txt": "one\n"}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "base")
    return folder


def scenario(path: Path, text: str) -> str:
    """Write a scenario and return the model's name."""
    path.write_text(textwrap.dedent(text))
    return f"scripted:{path}"


async def submit(client: HubClient, workspace: Path, model: str, text: str = "do it", **options: Any) -> Any:
    """Submit a prompt for a new session."""
    run = {"model": model, **options}
    return await client.call("prompt.submit", text=text, workspace=str(workspace), run=run)


async def collect(
    client: HubClient, session_id: str, until: set[str] | frozenset[str], *, after: int = 0
) -> list[Event]:
    """Return the session's events from a cursor up to the first of the given types."""
    events: list[Event] = []
    async with asyncio.timeout(40), client.subscribe(session_id=session_id, after_seq=after) as stream:
        async for item in stream:
            if isinstance(item, Event):
                events.append(item)
                if item.type in until:
                    return events
    raise AssertionError(f"the stream ended before {until}")


async def ended(client: HubClient, session_id: str, *, after: int = 0) -> list[Event]:
    """Return the session's events up to the end of a run."""
    return await collect(client, session_id, RUN_ENDS, after=after)


def lines(path: Path) -> list[str]:
    """Return the lines of a file, none when it is not there."""
    return path.read_text().splitlines() if path.exists() else []
