"""The hub's end of the pipes to one worker process, from its start to its end.

Invariant: when `live` has returned, the process is gone and every request in flight has failed.
A worker that does not answer pings while requests wait is ended, so that no request waits for ever.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path

import msgspec
import psutil

from hub.agent.model import Finish, ModelError, ModelPart
from hub.agent.tools.base import ChildWatch
from hub.agent.worker_protocol import (
    LINE_LIMIT,
    REVISION,
    Begin,
    Broken,
    Cancel,
    Failed,
    Hello,
    Ping,
    Pong,
    Ready,
    Report,
    decode_report,
    encode,
    secrets_in,
    without,
)

COMMAND = (sys.executable, "-P", "-m", "hub.agent.worker")
LEAVE_S = 2.0  # time to leave by itself when its input is closed, and again after TERM
PING_S = 20.0
SILENCE_S = 90.0  # a worker that says nothing for so long while it is asked hangs
STDERR_LIMIT = 64 * 1024  # bytes of one line

log = logging.getLogger(__name__)


class Link:
    """One worker process. `ready` when it can ask models; `broken` says why it never will; `leaving` when told to."""

    def __init__(self, process: asyncio.subprocess.Process, watch: ChildWatch | None, secrets: Sequence[str]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self.ready = False
        self.broken = ""
        self.leaving = False
        self._process = process
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self._watch = watch
        self._requests: dict[int, asyncio.Queue[ModelPart | ModelError]] = {}
        self._heard_at = asyncio.get_running_loop().time()
        self._secrets = secrets
        self._ended = ""
        self._over = asyncio.Event()

    @classmethod
    async def start(cls, environ: Mapping[str, str], cwd: Path, watch: ChildWatch | None) -> "Link":
        """Start a worker; it begins its work when it is recorded. Raises OSError."""
        process = await asyncio.create_subprocess_exec(
            *COMMAND,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environ,
            cwd=cwd,
            limit=LINE_LIMIT,
            start_new_session=True,
        )
        link = cls(process, watch, secrets_in(environ))
        try:
            await link._recorded()
        except BaseException:
            link._signal(signal.SIGKILL)
            raise
        link._send(encode(Begin()))
        return link

    @property
    def pid(self) -> int:
        return self._process.pid

    async def _recorded(self) -> None:
        if self._watch is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                await self._watch.started(self.pid, psutil.Process(self.pid).create_time(), self.pid)

    async def live(self) -> str:
        """Pass on what the worker says until it has ended; return how it ended. Cancelling ends it."""
        aside = [asyncio.create_task(self._log_stderr()), asyncio.create_task(self._watch_silence())]
        told = "it was ended"
        try:
            await self._listen()
            told = await self._left()
        finally:
            self._signal(signal.SIGKILL)
            await self._process.wait()
            for task in aside:
                task.cancel()
            await asyncio.gather(*aside, return_exceptions=True)
            self._fail_all(told)
            if self._watch is not None:
                await self._watch.ended(self.pid)
            self._over.set()
        return told

    async def ask(self, id: int, line: bytes) -> AsyncGenerator[ModelPart]:
        """Yield the parts of one answer, Finish last. Raises ModelError."""
        if self._ended or self.broken:
            raise _died(self._ended) if self._ended else ModelError("unknown", self.broken)
        inbox = self._requests[id] = asyncio.Queue()
        self._heard_at = asyncio.get_running_loop().time()
        self._send(line)
        item: ModelPart | ModelError | None = None
        try:
            while not isinstance(item, Finish):
                item = await inbox.get()
                if isinstance(item, ModelError):
                    raise item
                yield item
        finally:
            del self._requests[id]
            if not isinstance(item, Finish | ModelError):
                self._send(encode(Cancel(id)))

    def close_input(self) -> None:
        """Tell the worker to leave."""
        self.leaving = True
        self._stdin.close()

    async def end(self) -> None:
        """End the process: by itself, by TERM, by KILL. Returns when all is cleaned up."""
        self.close_input()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), LEAVE_S)
                break
            self._signal(number)
        await self._over.wait()

    def _send(self, line: bytes) -> None:
        if not self._stdin.is_closing():
            self._stdin.write(line)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    async def _listen(self) -> None:
        try:
            while line := await self._stdout.readline():
                self._heard_at = asyncio.get_running_loop().time()
                self._take(decode_report(line))
        except (msgspec.DecodeError, ValueError) as error:
            log.error("the model worker said something unreadable", extra={"reason": str(error)})

    def _take(self, report: Report) -> None:
        match report:
            case Hello(revision):
                if revision != REVISION:
                    self.broken = "The model worker is of another version; run `hubctl restart`."
            case Ready(version):
                self.ready = True
                log.info("the model worker is ready", extra={"litellm": version})
            case Broken(reason):
                self.broken = reason
            case Pong():
                pass
            case Failed(id, kind, message, retry_after_s):
                self._put(id, ModelError(kind, message, retry_after_s=retry_after_s))
            case _:
                self._put(report.id, report.part)

    def _put(self, id: int, item: ModelPart | ModelError) -> None:
        if id in self._requests:  # else it was cancelled a moment ago
            self._requests[id].put_nowait(item)

    async def _left(self) -> str:
        """Wait for the process, whose output has ended; return how it ended."""
        with contextlib.suppress(TimeoutError):
            code = await asyncio.wait_for(self._process.wait(), LEAVE_S)
            return f"signal {-code}" if code < 0 else f"exit code {code}"
        return "it closed its output and stayed"

    def _fail_all(self, told: str) -> None:
        self._ended = told
        for inbox in self._requests.values():
            inbox.put_nowait(_died(told))

    async def _log_stderr(self) -> None:
        """Write what the worker prints to the log, where it is a line of somebody else's making."""
        pending = b""
        while data := await self._stderr.read(STDERR_LIMIT):
            *lines, pending = (pending + data).split(b"\n")
            pending = pending[-STDERR_LIMIT:]
            for line in lines:
                log.info("model worker: %s", without(self._secrets, line.decode(errors="replace")))

    async def _watch_silence(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(PING_S)
            self._send(encode(Ping()))
            if self._requests and loop.time() - self._heard_at > SILENCE_S:
                log.error("the model worker does not answer and is ended", extra={"pid": self.pid})
                self._signal(signal.SIGKILL)


def _died(told: str) -> ModelError:
    return ModelError("retry", f"The model worker ended while it was asked ({told}).")
