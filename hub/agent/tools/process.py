"""Child processes of tools: recorded before they run, ended with everything that belongs to them.

A child starts as a gate: a shell that waits for a word on its standard input and then becomes the real program. The
word is sent only after `watch.started` has returned. If the hub dies before, the gate reads the end of the pipe and
leaves without having run anything.

Invariant: a child is over when its process has exited, not when its pipes close. When `run` raises, or returns after a
timeout or a stop, nothing of the child's family lives. Standard input is /dev/null.
Not promised: an end to what a command put in the background on purpose and then left: that is followed, its output
read and dropped so that it is not killed by a closed pipe, and `watch.ended` is told when its session is empty.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from hub.agent.tools.base import ChildWatch, ToolFailure
from hub.agent.tools.family import Family
from hub.agent.tools.threads import to_the_end

GATE = 'IFS= read -r word && [ "$word" = go ] && exec "$@" </dev/null; exit 125'
CHUNK = 65_536  # bytes of one read
PULLS_AT_END = 16  # reads of what is in a pipe when a child has exited
IDLE_DRAIN_S = 0.1  # quiet time after the exit for which late output is waited
DRAIN_MOST_S = 1.0  # and the most of it, when a background process keeps printing
FOLLOW_FIRST_S = 0.05
FOLLOW_LAST_S = 1.0

Sink = Callable[[str, bytes], None]
Ending = Literal["exited", "timeout", "stopped"]
log = logging.getLogger(__name__)


class Launch(msgspec.Struct, frozen=True):
    """What to run. `env` is the whole environment. With `keep_background`, processes that outlive the child are left
    running, else they are ended with it."""

    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    keep_background: bool = False


class Ended(msgspec.Struct, frozen=True):
    """How a child ended. `exit_code` is negative for a signal, None if it could not be ended; `background` names what
    still runs of its session; `held` says that something outside the session holds its output open; `survivors` are
    pids that could not be ended."""

    how: Ending
    exit_code: int | None
    group: int
    background: tuple[str, ...] = ()
    held: bool = False
    survivors: tuple[int, ...] = ()


class Runner:
    """Runs children, any number at a time, and follows what they leave behind."""

    def __init__(self) -> None:
        self._followers: set[asyncio.Task[None]] = set()

    async def run(
        self, launch: Launch, watch: ChildWatch, sink: Sink, timeout_s: float, stop: asyncio.Event | None = None
    ) -> Ended:
        """Run a child to its end; `sink` gets "stdout" or "stderr" and the bytes. Setting `stop` ends it early.
        Raises ToolFailure when it cannot be started."""
        child = await _start(launch, sink)
        try:
            await child.release(watch)
            how = await child.finish(timeout_s, stop)
            ended = await self._ended(child, how, launch.keep_background)
        except BaseException:
            await to_the_end(_abandon(child, watch))
            raise
        if child.left_behind:
            self._follow(child, watch)
        else:
            await to_the_end(_closed(child, watch))
        return ended

    async def _ended(self, child: "Child", how: Ending, keep_background: bool) -> Ended:
        survivors: tuple[int, ...] = ()
        if how != "exited" or (not keep_background and child.family.alive()):
            survivors = await child.family.end()
        code = None if child.pid in survivors else await child.process.wait()
        await child.drain()
        left = child.family.alive()
        child.left_behind = bool(left) or (how == "exited" and keep_background and child.open)
        named = tuple(f"{_name(process)} (pid {process.pid})" for process in left if process.pid not in survivors)
        return Ended(how, code, child.pid, named, child.open, survivors)

    def _follow(self, child: "Child", watch: ChildWatch) -> None:
        task = asyncio.create_task(_follow(child, watch), name=f"follow-{child.pid}")
        self._followers.add(task)
        task.add_done_callback(self._followers.discard)

    async def close(self) -> None:
        """Stop following. What was left in the background runs on, and may end at its next output."""
        followers = tuple(self._followers)
        for task in followers:
            task.cancel()
        await asyncio.gather(*followers, return_exceptions=True)


class Child:
    """One started child: its process, its gate and its two output streams."""

    def __init__(self, process: asyncio.subprocess.Process, gate: int, streams: "tuple[Stream, ...]") -> None:
        self.process = process
        self.pid = process.pid
        self.family = Family(process.pid)
        self.left_behind = False
        self._gate = gate
        self.streams = streams

    @property
    def open(self) -> bool:
        """Whether anything still holds the writing end of its output."""
        return any(not stream.ended.is_set() for stream in self.streams)

    async def release(self, watch: ChildWatch) -> None:
        """Record the child, then let it run."""
        try:
            start_time = psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess as error:
            raise ToolFailure("The command was ended before it began.") from error
        await watch.started(self.pid, start_time, self.pid)
        try:
            os.write(self._gate, b"go\n")
        except BrokenPipeError as error:
            raise ToolFailure("The command was ended before it began.") from error
        self.close_gate()

    def close_gate(self) -> None:
        if self._gate >= 0:
            os.close(self._gate)
            self._gate = -1

    async def finish(self, timeout_s: float, stop: asyncio.Event | None) -> Ending:
        """Wait for the exit, the timeout or the stop, whichever is first."""
        exited = asyncio.ensure_future(self.process.wait())
        waits = {exited} if stop is None else {exited, asyncio.ensure_future(stop.wait())}
        try:
            await asyncio.wait(waits, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if exited.done() and not exited.cancelled():
            return "exited"
        return "stopped" if stop is not None and stop.is_set() else "timeout"

    async def drain(self) -> None:
        """Take what was printed before the exit: until the pipes close, or have been quiet for IDLE_DRAIN_S."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        for stream in self.streams:
            await self._drain_one(stream, began, loop)
        for stream in self.streams:
            stream.pull()

    async def _drain_one(self, stream: "Stream", began: float, loop: asyncio.AbstractEventLoop) -> None:
        while not stream.ended.is_set():
            quiet_at = min(max(stream.last_at, began) + IDLE_DRAIN_S, began + DRAIN_MOST_S)
            if loop.time() >= quiet_at:
                return
            try:
                async with asyncio.timeout_at(quiet_at):
                    await stream.ended.wait()
            except TimeoutError:
                continue


class Stream:
    """One output pipe of a child, read by the event loop as data comes."""

    def __init__(self, name: str, sink: Sink) -> None:
        self._name = name
        self.sink: Sink | None = sink
        self._loop = asyncio.get_running_loop()
        self._reading, self.writing = os.pipe()
        os.set_blocking(self._reading, False)
        self._loop.add_reader(self._reading, self._take)
        self.ended = asyncio.Event()
        self.last_at = 0.0

    def _take(self) -> bool:
        """Read once; say whether there may be more."""
        try:
            data = os.read(self._reading, CHUNK)
        except BlockingIOError:
            return False
        if not data:
            self.close()
            return False
        self.last_at = self._loop.time()
        if self.sink is not None:
            self.sink(self._name, data)
        return True

    def pull(self) -> None:
        """Read what is in the pipe now, within bounds."""
        for _ in range(PULLS_AT_END):
            if self.ended.is_set() or not self._take():
                return

    def close_writing(self) -> None:
        if self.writing >= 0:
            os.close(self.writing)
            self.writing = -1

    def close(self) -> None:
        if not self.ended.is_set():
            self._loop.remove_reader(self._reading)
            os.close(self._reading)
            self.ended.set()


async def _start(launch: Launch, sink: Sink) -> Child:
    """Start the gate; nothing of the command runs yet."""
    streams = (Stream("stdout", sink), Stream("stderr", sink))
    waiting, gate = os.pipe()
    try:
        process = await _gate(launch, waiting, streams[0].writing, streams[1].writing)
    except BaseException as error:
        os.close(gate)
        for stream in streams:
            stream.close()
        if isinstance(error, OSError):
            raise ToolFailure(f"The command cannot be started: {error.strerror or error}.") from error
        raise
    finally:
        os.close(waiting)
        for stream in streams:
            stream.close_writing()
    return Child(process, gate, streams)


async def _gate(launch: Launch, stdin: int, stdout: int, stderr: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        "/bin/sh",
        *("-c", GATE, "gate", *launch.argv),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        cwd=launch.cwd,
        env=dict(launch.env),
        start_new_session=True,
    )


async def _abandon(child: Child, watch: ChildWatch) -> None:
    """End the child and its family, whatever state it is in."""
    child.close_gate()
    survivors = await child.family.end()
    if survivors:
        log.warning("processes %s outlived KILL", survivors)
    if child.pid not in survivors:
        await child.process.wait()
    await _closed(child, watch)


async def _closed(child: Child, watch: ChildWatch) -> None:
    for stream in child.streams:
        stream.close()
    await watch.ended(child.pid)


async def _follow(child: Child, watch: ChildWatch) -> None:
    """Read and drop the output of what was left behind until nothing holds it and the group is empty."""
    for stream in child.streams:
        stream.sink = None
    pause = FOLLOW_FIRST_S
    try:
        while child.family.alive():
            await asyncio.sleep(pause)
            pause = min(2 * pause, FOLLOW_LAST_S)
        await watch.ended(child.pid)
        for stream in child.streams:
            await stream.ended.wait()
    finally:
        for stream in child.streams:
            stream.close()


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return "a process"
