"""Processes that the benchmarks start: hubs in homes of their own, an OpenAI-compatible server on loopback.

Invariant: each has gone when its context is left, by an error or Ctrl-C too. Homes and repositories lie in temporary
folders; nothing of the person's own home, settings or repositories is used.
Not promised: that a benchmark which is itself killed takes its processes along.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import psutil

from benchmarks.measuring import time_of
from hub.client import HubClient, find_hub
from hub.errors import UnavailableError
from hub.protocol.views import Status

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sys.executable
HUB = (PYTHON, "-m", "hub")
START_S = 60.0
STOP_S = 30.0
STATE_POLL_S = 0.05
KEY_VARIABLE = "BENCHMARK_KEY"
KEY = "sk-loopback-benchmark"
POLL_S = 0.002
"""How often a hub that starts is looked for: this much of a start's time is the benchmark's own error."""


def environment() -> dict[str, str]:
    """Return the environment of what is measured: no settings of Turnback, git or Python, and loopback without proxy.

    Byte code may be cached, as in every installation: without it each start would compile the program anew.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TURNBACK_", "GIT_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept | {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", KEY_VARIABLE: KEY}


def model_section(name: str, api_base: str) -> str:
    """Return the settings of a model that is asked at this address with the benchmarks' key."""
    return f'[model]\nname = "{name}"\napi_base = "{api_base}"\napi_key = "env:{KEY_VARIABLE}"\n'


class Hub:
    """A hub in a process of its own. `ready_s` are the seconds from its start to its first answer."""

    def __init__(self, home: Path, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self.home = home
        self.began = time.perf_counter()
        with (home / "out.txt").open("ab") as out:
            self._process = subprocess.Popen(
                [*command, "--home", str(home)], stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=environ, cwd=home
            )
        self.pid = self._process.pid
        self.ready_s = 0.0

    async def answered(self) -> None:
        """Wait until it answers hub.status. Raises RuntimeError when it ends instead, TimeoutError."""
        async with asyncio.timeout(START_S):
            while not await self._answers():
                if self._process.poll() is not None:
                    raise RuntimeError(f"the hub ended: {(self.home / 'out.txt').read_text()}")
                await asyncio.sleep(POLL_S)
        self.ready_s = time.perf_counter() - self.began

    async def _answers(self) -> bool:
        try:
            return find_hub(self.home).pid == self.pid and (await self.status()).pid == self.pid
        except UnavailableError:
            return False

    async def client(self) -> HubClient:
        """Return a client of it, connected as the owner."""
        return await HubClient.connect(self.home, kind="benchmark", name="benchmark")

    async def status(self) -> Status:
        """Return what it says of itself."""
        async with await self.client() as client:
            status: Status = await client.call("hub.status")
            return status

    async def model_ready(self) -> list[str]:
        """Wait until its model worker can ask models; return the states that were seen on the way. Raises TimeoutError.

        A worker that dies is started again by the hub: its trouble is one of the states.
        """
        seen: list[str] = []
        async with asyncio.timeout(START_S):
            while seen[-1:] != ["ready"]:
                state = (await self.status()).components["model"]
                if seen[-1:] != [state]:
                    seen.append(state)
                await asyncio.sleep(STATE_POLL_S)
        return seen

    def cpu_s(self) -> float:
        """Return the CPU seconds of the hub so far, without its children. The kernel counts in ticks of 10 ms."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def children_cpu_s(self) -> float:
        """Return the CPU seconds of its children that have ended."""
        times = psutil.Process(self.pid).cpu_times()
        return float(times.children_user + times.children_system)

    def memory(self) -> tuple[int, int]:
        """Return the bytes that it holds in memory, and those of them that are its own alone (RSS, USS)."""
        info = psutil.Process(self.pid).memory_full_info()
        return info.rss, info.uss

    def children(self) -> list[tuple[str, int]]:
        """Return the command and the RSS, in bytes, of each process below it."""
        below = psutil.Process(self.pid).children(recursive=True)
        return [(" ".join(one.cmdline()[1:]) or one.name(), one.memory_info().rss) for one in below]

    def stop(self) -> int:
        """End it as an operator would and return its exit code; kill it when it stays."""
        if self._process.poll() is None:
            self._process.terminate()
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


@asynccontextmanager
async def running_hub(home: Path, *, config: str = "", command: Sequence[str] = HUB) -> AsyncIterator[Hub]:
    """Hold a hub that has answered. `config` is written first when given. Raises RuntimeError, TimeoutError."""
    home.mkdir(parents=True, exist_ok=True)
    if config:
        (home / "config.toml").write_text(config)
    hub = Hub(home, command, environment())
    try:
        await hub.answered()
        yield hub
    finally:
        hub.stop()


@contextmanager
def scripted_server(scenario: Path) -> Iterator[str]:
    """Hold an OpenAI-compatible server that answers as a scenario file says; yields its address, ending in /v1."""
    command = [PYTHON, "-m", "tests.stub_openai", "--scenario", str(scenario)]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        if not address:
            raise RuntimeError("the scripted server did not start")
        yield address
    finally:
        process.terminate()
        process.wait(STOP_S)
        process.stdout.close()


def make_repository(folder: Path, files: int = 20) -> Path:
    """Make a small repository with one commit."""
    folder.mkdir(parents=True)
    for number in range(files):
        (folder / f"file{number}.py").write_text(f"VALUE = {number}\n" * 50)
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "-A"], [*identity, "commit", "-q", "--no-gpg-sign", "-m", "base"]):
        time_of(["git", "-C", str(folder), *words], environment())
    return folder


@contextmanager
def workshop() -> Iterator[Path]:
    """Hold a temporary folder for homes and repositories."""
    with tempfile.TemporaryDirectory(prefix="turnback-benchmark-") as name:
        yield Path(name).resolve()
