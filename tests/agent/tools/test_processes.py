"""Children: recorded before they run, over when their process is over, ended with all that belongs to them."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from hub.agent.tools.base import ToolContext, ToolFailure
from hub.agent.tools.family import Family
from hub.agent.tools.process import Ended, Launch, Runner

Context = Callable[..., ToolContext]


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    made = Runner()
    yield made
    await made.close()


async def run(
    runner: Runner, context: ToolContext, line: str, *, timeout_s: float = 30, keep: bool = True
) -> tuple[Ended, str]:
    printed = bytearray()
    launch = Launch(("/bin/sh", "-c", line), context.root, context.env, keep_background=keep)
    ended = await runner.run(launch, context.watch, lambda _, data: printed.extend(data), timeout_s)
    return ended, printed.decode()


async def eventually(true: Callable[[], Any]) -> None:
    """Wait until it is true; the test's own time limit ends a wait that never is."""
    while not true():
        await asyncio.sleep(0.02)


def pid_in(path: Path) -> int:
    return int(path.read_text()) if path.exists() and path.read_text().endswith("\n") else 0


def open_descriptors() -> int:
    folder = Path("/proc/self/fd")
    if not folder.exists():
        pytest.skip("open descriptors are counted by /proc")
    return len(list(folder.iterdir()))


def lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


async def test_a_child_has_its_own_session_an_empty_input_and_exactly_the_environment(
    runner: Runner, context: Context, root: Path
) -> None:
    code = "import os,sys; print(os.getsid(0) == os.getpgid(0) == os.getpid(), repr(sys.stdin.read()), os.getcwd())"
    launch = Launch((sys.executable, "-c", code + "; print(sorted(os.environ))"), root, {"LANG": "C.UTF-8", "A": "1"})
    printed = bytearray()
    ended = await runner.run(launch, context().watch, lambda _, data: printed.extend(data), 30)
    first, names = printed.decode().splitlines()
    assert ended.exit_code == 0
    assert first == f"True '' {root}"
    assert set(eval(names)) <= {"LANG", "A", "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"}  # a shell adds its own few


async def test_started_is_awaited_before_anything_runs_and_ended_after(
    runner: Runner, context: Context, root: Path
) -> None:
    seen: list[Any] = []

    class Watch:
        async def started(self, pid: int, start_time: float, group: int) -> None:
            await asyncio.sleep(0.2)
            seen.append((root / "mark").exists())
            seen.append(psutil.Process(pid).create_time() == start_time and os.getpgid(pid) == group)

        async def ended(self, pid: int) -> None:
            seen.append((root / "mark").exists() and not lives(pid))

    await run(runner, context(watch=Watch()), "touch mark")
    assert seen == [False, True, True]


async def test_when_the_record_fails_nothing_runs(runner: Runner, context: Context, root: Path) -> None:
    class Watch:
        async def started(self, pid: int, start_time: float, group: int) -> None:
            self.pid = pid
            raise RuntimeError("the disk is full")

        async def ended(self, pid: int) -> None:
            assert not lives(pid)

    watch = Watch()
    with pytest.raises(RuntimeError, match="disk is full"):
        await run(runner, context(watch=watch), "touch mark")
    assert not lives(watch.pid)
    assert not (root / "mark").exists()


PARENT = """
import asyncio, pathlib, sys
from hub.agent.tools.process import Launch, Runner

class Watch:
    async def started(self, pid, start_time, group):
        print(pid, flush=True)
        await asyncio.sleep(600)
    async def ended(self, pid): pass

async def main():
    launch = Launch(("/bin/sh", "-c", "touch mark"), pathlib.Path(sys.argv[1]), {"PATH": "/usr/bin:/bin"})
    await Runner().run(launch, Watch(), lambda *_: None, 60)

asyncio.run(main())
"""


async def test_when_the_hub_dies_before_the_record_is_stored_nothing_runs(root: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(root)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        gate = int(await asyncio.to_thread(parent.stdout.readline))
        assert lives(gate)
        parent.kill()
    await eventually(lambda: not lives(gate))
    assert not (root / "mark").exists()


@pytest.mark.parametrize(
    "line",
    [
        "sleep 60 & echo $! > pid; echo ok",
        "sleep 60 >/dev/null 2>&1 & echo $! > pid; echo ok",
        "setsid sleep 60 & echo $! > pid; echo ok",
    ],
    ids=["noisy", "silent", "setsid"],
)
async def test_c8_a_child_is_over_when_its_process_is_though_others_hold_its_pipes(
    runner: Runner, context: Context, recorder: Any, root: Path, line: str
) -> None:
    ended, printed = await run(runner, context(), line)
    pid = pid_in(root / "pid")
    assert (ended.how, ended.exit_code, printed) == ("exited", 0, "ok\n")
    assert lives(pid)
    assert ended.held == ("/dev/null" not in line)
    assert bool(ended.background) == ("setsid" not in line)
    if ended.background:
        assert f"sleep (pid {pid})" in ended.background
        assert recorder.running == [ended.group]
    os.kill(pid, signal.SIGKILL)
    await eventually(lambda: not recorder.running)


async def test_c8_what_is_left_behind_can_go_on_printing(runner: Runner, context: Context, root: Path) -> None:
    line = "(for i in 1 2 3 4 5 6; do sleep 0.1; echo $i || exit 1; done; sleep 0.1; echo done > end) & true"
    await run(runner, context(), line)
    await eventually((root / "end").exists)


@pytest.mark.parametrize(
    "line",
    [
        "sleep 300 & echo $! > pid; wait",
        "setsid sleep 300 & echo $! > pid; wait",
        "sh -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 0.1; done' & wait",
        "sh -c 'echo $$ > pid; kill -STOP $$' & wait",
    ],
    ids=["child", "setsid", "deaf", "stopped"],
)
@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_c9_nothing_of_a_child_survives_its_end(
    runner: Runner, context: Context, recorder: Any, root: Path, line: str, how: str
) -> None:
    task = asyncio.create_task(run(runner, context(), f"echo begun; {line}", timeout_s=1 if how == "timeout" else 60))
    await eventually(lambda: pid_in(root / "pid"))
    if how == "cancel":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        ended, printed = await task
        assert (ended.how, ended.survivors, printed) == ("timeout", (), "begun\n")
    assert not lives(pid_in(root / "pid"))
    assert not lives(recorder.events[0][1])
    assert recorder.running == []


async def test_a_second_cancel_does_not_cut_the_ending_short(runner: Runner, context: Context, root: Path) -> None:
    line = "sh -c 'trap \"\" TERM; echo $$ > pid; while :; do sleep 0.1; done' & wait"
    task = asyncio.create_task(run(runner, context(), line))
    await eventually(lambda: pid_in(root / "pid"))
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not lives(pid_in(root / "pid"))


async def test_without_keeping_the_background_it_is_ended_too(runner: Runner, context: Context, root: Path) -> None:
    ended, _ = await run(runner, context(), "sleep 300 & echo $! > pid", keep=False)
    assert ended.background == ()
    assert not lives(pid_in(root / "pid"))


async def test_stop_ends_a_child_early(runner: Runner, context: Context) -> None:
    stop = asyncio.Event()
    launch = Launch(("/bin/sh", "-c", "while :; do echo x; done"), context().root, context().env)
    ended = await runner.run(launch, context().watch, lambda *_: stop.set(), 60, stop)
    assert ended.how == "stopped"


@pytest.mark.parametrize("broken", [{"cwd": "gone"}, {"argv": ("/bin/sh", "-c", "x" * 200_000)}])
async def test_what_cannot_be_started_is_said(
    runner: Runner, context: Context, root: Path, broken: dict[str, Any], recorder: Any
) -> None:
    launch = Launch(broken.get("argv", ("true",)), root / broken.get("cwd", "."), context().env)
    before = open_descriptors()
    with pytest.raises(ToolFailure, match="cannot be started"):
        await runner.run(launch, context().watch, lambda *_: None, 5)
    assert open_descriptors() == before
    assert recorder.running == []


async def test_no_descriptor_is_left_open(runner: Runner, context: Context) -> None:
    await run(runner, context(), "true")
    before = open_descriptors()
    for line in ("true", "exit 3", "echo x >&2", "kill -9 $$"):
        await run(runner, context(), line)
    assert open_descriptors() == before


async def test_many_at_once(runner: Runner, context: Context, recorder: Any) -> None:
    calls: list[Coroutine[Any, Any, tuple[Ended, str]]] = [run(runner, context(), f"echo {n}") for n in range(12)]
    results = await asyncio.gather(*calls)
    assert [printed for _, printed in results] == [f"{n}\n" for n in range(12)]
    assert recorder.running == []


async def test_a_session_whose_id_has_gone_to_another_process_is_left_alone() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as first:
        family = Family(first.pid)
        assert [process.pid for process in family.alive()] == [first.pid]
        first.kill()
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as stranger:
        family.group = stranger.pid  # as if the system had given the pid again
        assert family.alive() == ()
        assert await family.end() == ()
        assert lives(stranger.pid)
        stranger.kill()
