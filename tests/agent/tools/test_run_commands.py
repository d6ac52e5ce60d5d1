"""run_commands: forms, results, limits, and memory that stays bounded."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.agent.tools.base import ToolContext, ToolFailure
from hub.agent.tools.capture import Capture, Progress
from hub.agent.tools.heredocs import join_heredocs
from hub.agent.tools.run_commands import FULL_LIMIT, TEXT_LIMIT, RunCommands

Context = Callable[..., ToolContext]


@pytest.fixture
async def tool() -> AsyncIterator[RunCommands]:
    made = RunCommands()
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("sent", "commands"),
    [
        ("ls -l", ["ls -l"]),
        (["ls", "pwd"], ["ls", "pwd"]),
        ('["ls", "pwd"]', ["ls", "pwd"]),
        ({"commands": ["ls"]}, ["ls"]),
        ({"commands": "ls"}, ["ls"]),
        ({"commands": '["ls", "pwd"]'}, ["ls", "pwd"]),
        ({"command": "ls"}, ["ls"]),
        ({"cmd": "ls"}, ["ls"]),
        ({"command": "ls", "args": ["-l", "a b"]}, ["ls -l 'a b'"]),
        ({"cmd": "ls", "args": []}, ["ls"]),
        (["ls | wc", {"command": "echo $A"}, {"command": "echo", "args": ["$A"]}], ["ls | wc", "echo $A", "echo '$A'"]),
        ({"commands": [{"cmd": "ls"}]}, ["ls"]),
        (["cat > f <<EOF", "a $b", "EOF", "ls"], ["cat > f <<EOF\na $b\nEOF", "ls"]),
    ],
)
def test_every_form_becomes_the_advertised_one(sent: Any, commands: list[str]) -> None:
    canonical = RunCommands().normalise(sent)
    assert canonical == {"commands": commands}
    assert RunCommands().normalise(canonical) == canonical


@pytest.mark.parametrize(("sent", "timeout"), [(5, 5), ("5", 5), (2.0, 2), ("0.5", 0.5), (None, None)])
def test_the_time_limit_is_a_number_of_seconds(sent: Any, timeout: Any) -> None:
    canonical = RunCommands().normalise({"commands": ["ls"], "timeout_s": sent})
    assert canonical.get("timeout_s") == timeout
    assert RunCommands().normalise(canonical) == canonical


@pytest.mark.parametrize(
    "sent",
    [
        *(None, 5, [], {}, "", "  ", [""], ["ls", ""], {"commands": []}, {"text": "ls"}, [{"text": "ls"}], [["ls"]]),
        *({"commands": ["ls"], "command": "pwd"}, {"command": "ls", "args": [1]}, {"command": ["ls"], "args": ["x"]}),
        *("a\0b", "a\ud800", ["ls"] * 21, {"commands": ["ls"], "timeout_s": 0}, {"commands": ["ls"], "timeout_s": "x"}),
        *({"commands": ["ls"], "timeout_s": True}, {"commands": ["ls"], "timeout_s": float("nan")}),
    ],
)
def test_what_is_no_command_is_refused(sent: Any) -> None:
    with pytest.raises(ToolFailure):
        RunCommands().normalise(sent)


@pytest.mark.parametrize(
    ("sent", "joined"),
    [
        (["a <<X", "1", "X", "b"], ["a <<X\n1\nX", "b"]),
        (["a <<-X", "1", "\tX"], ["a <<-X\n1\n\tX"]),
        (["a <<'X Y'", "1", "X Y"], ["a <<'X Y'\n1\nX Y"]),
        (['a << "X"', "X"], ['a << "X"\nX']),
        (["a <<X <<Y", "1", "X", "2", "Y", "b"], ["a <<X <<Y\n1\nX\n2\nY", "b"]),
        (["a <<X", "1"], ["a <<X", "1"]),
        (["a <<X", " X"], ["a <<X", " X"]),
        (["a <<< X", "X"], ["a <<< X", "X"]),
        (["a <<X\n1\nX", "X"], ["a <<X\n1\nX", "X"]),
    ],
)
def test_here_documents_sent_in_lines_are_joined(sent: list[str], joined: list[str]) -> None:
    assert join_heredocs(sent) == joined
    assert join_heredocs(joined) == joined


async def run(tool: RunCommands, context: ToolContext, *commands: str, **more: Any) -> Any:
    return await tool.execute(tool.normalise({"commands": list(commands), **more}), context)


async def test_commands_run_in_order_and_a_failing_one_stops_nothing(
    tool: RunCommands, context: Context, root: Path
) -> None:
    output = await run(tool, context(), "echo one > f; echo out; echo err >&2; exit 3", "cat f", "kill -9 $$")
    first, second, third = output.text.split("\n\n")
    assert first == "exit code 3\n$ echo one > f; echo out; echo err >&2; exit 3\nout\n[stderr]\nerr"
    assert second == "exit code 0\n$ cat f\none"
    assert third == "exit code 137 (ended by SIGKILL)\n$ kill -9 $$"
    assert (output.ok, output.full_text) == (False, None)


async def test_success_is_ok(tool: RunCommands, context: Context) -> None:
    assert (await run(tool, context(), "true", "echo x")).ok


async def test_the_environment_is_the_contexts_and_nothing_else(tool: RunCommands, context: Context) -> None:
    os.environ["TURNBACK_TEST_LEAK"] = "leaked"
    try:
        output = await run(tool, context(env={"PATH": "/usr/bin:/bin", "A": "1"}), "env", "pwd")
    finally:
        del os.environ["TURNBACK_TEST_LEAK"]
    assert "\nA=1\n" in output.text
    assert "leaked" not in output.text
    assert "HOME=" not in output.text


async def test_c9_after_the_time_limit_the_output_so_far_is_returned(
    tool: RunCommands, context: Context, recorder: Any
) -> None:
    output = await run(tool, context(), "echo begun; sleep 300 & wait", "echo next", timeout_s=0.5)
    assert not output.ok
    assert output.text.startswith("timed out after 0.5 s")
    assert "\nbegun\n" in output.text
    assert output.text.endswith("exit code 0\n$ echo next\nnext")
    assert recorder.running == []


async def test_the_runs_remaining_time_bounds_every_command(tool: RunCommands, context: Context, root: Path) -> None:
    output = await run(tool, context(remaining_s=0.4), "sleep 300", "touch f", timeout_s=100)
    assert output.text.startswith("timed out after 0.4 s")
    assert "not run: the run's time is used up\n$ touch f" in output.text
    assert not (root / "f").exists()


async def test_c11_a_cancel_reaches_a_long_command(tool: RunCommands, context: Context, recorder: Any) -> None:
    task = asyncio.create_task(run(tool, context(), "sleep 600"))
    while not recorder.events:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.running == []
    assert not psutil.pid_exists(recorder.events[0][1])


async def test_c8_a_background_process_is_named(tool: RunCommands, context: Context, recorder: Any) -> None:
    output = await run(tool, context(), "sleep 60 & echo ok")
    group = recorder.running[0]
    assert output.ok
    assert f"[still running in the background, process group {group}: sleep (pid " in output.text
    assert output.text.endswith("\nok")
    os.killpg(group, 9)
    while recorder.running:
        await asyncio.sleep(0.02)


async def test_c21_long_output_is_cut_and_kept_in_full(tool: RunCommands, context: Context) -> None:
    output = await run(tool, context(), "echo first; head -c 12000000 /dev/zero | tr '\\0' x; echo last")
    assert output.ok
    assert len(output.text) < TEXT_LIMIT + 500
    assert "\nfirst\n" in output.text
    assert output.text.endswith("xlast")
    assert output.text.count("left") >= 2
    assert output.full_text is not None
    assert len(output.full_text) > 12_000_000
    assert output.full_text.count("x") >= 12_000_000


async def grown_by(action: Any) -> int:
    """Return by how many bytes the resident memory grew at most while the action ran."""
    process, stop = psutil.Process(), asyncio.Event()
    before = most = process.memory_info().rss

    async def look() -> None:
        nonlocal most
        while not stop.is_set():
            most = max(most, process.memory_info().rss)
            await asyncio.sleep(0.02)

    looking = asyncio.create_task(look())
    await action
    stop.set()
    await looking
    return most - before


@pytest.mark.parametrize("megabytes", [64, pytest.param(1024, marks=pytest.mark.slow)])
async def test_memory_is_bounded_whatever_is_printed(tool: RunCommands, context: Context, megabytes: int) -> None:
    line = f"yes 0123456789 | head -c {megabytes * 1024 * 1024}"
    grown = await grown_by(run(tool, context(remaining_s=500), f"{line} & {line} >&2; wait"))
    assert grown < 7 * FULL_LIMIT  # the bytes kept, half as much again, and their text: joined, cut, whole


async def test_output_beyond_the_full_limit_is_cut_and_that_is_said(tool: RunCommands, context: Context) -> None:
    output = await run(tool, context(), f"yes 0123456789 | head -c {2 * FULL_LIMIT}")
    assert output.full_text is not None
    assert len(output.full_text) <= FULL_LIMIT + 500
    assert "bytes left out" in output.full_text


async def test_progress_comes_while_the_command_runs(
    tool: RunCommands, context: Context, recorder: Any, root: Path
) -> None:
    task = asyncio.create_task(run(tool, context(), "echo begun; while [ ! -e f ]; do sleep 0.02; done; echo done"))
    while "begun" not in "".join(recorder.progress):
        await asyncio.sleep(0.01)
    assert not task.done()
    (root / "f").touch()
    await task
    assert "".join(recorder.progress) == "begun\ndone\n"


async def test_progress_is_coalesced_and_its_backlog_bounded() -> None:
    reports: list[str] = []
    progress = Progress(reports.append)
    for byte in "é".encode() * 3:
        progress.feed("stdout", bytes([byte]))
    assert reports == []
    progress.flush()
    assert reports == ["ééé"]
    progress.feed("stdout", b"x" * 100_000)
    progress.flush()
    assert len(reports[1]) < 20_000
    assert "83616 characters not shown" in reports[1]
    progress.flush()
    assert len(reports) == 2


@given(st.text(max_size=60), st.lists(st.integers(1, 7), max_size=30))
def test_a_capture_within_its_limit_gives_the_text_however_it_is_split(text: str, sizes: list[int]) -> None:
    data, capture = text.encode("utf-8", "replace"), Capture(1_000)
    for size in sizes:
        capture.feed(data[:size])
        data = data[size:]
    capture.feed(data)
    assert capture.text() == text.encode("utf-8", "replace").decode()


@given(st.text(alphabet="aé漢😀", min_size=30, max_size=200), st.integers(8, 60), st.integers(1, 9))
def test_a_capture_over_its_limit_keeps_both_ends_and_whole_characters(text: str, limit: int, size: int) -> None:
    data, capture = text.encode(), Capture(limit)
    for start in range(0, len(data), size):
        capture.feed(data[start : start + size])
        assert capture.held <= 2 * limit + size
    shown = capture.text()
    if len(data) <= 2 * (limit // 2):
        assert shown == text
        return
    _, head, gap, tail = shown.split("\n")
    assert "bytes left out" in gap
    assert text.startswith(head)
    assert text.endswith(tail)
    assert limit // 2 - 3 <= len(head.encode()) <= limit // 2
    assert limit // 2 - 3 <= len(tail.encode()) <= limit // 2


def test_the_subject_names_the_commands() -> None:
    tool = RunCommands()
    subject = tool.subject(tool.normalise(["make\ntest", "ls"]), Path("/"))
    assert subject.commands == ("make\ntest", "ls")
    assert subject.summary.startswith("run make … [")
    assert subject.summary.endswith("(and 1 more)")
