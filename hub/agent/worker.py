"""The model worker: a process of its own that asks models through litellm, for the hub that started it.

It reads orders from its standard input and writes reports to its standard output, both as `worker_protocol` says; what
anything else prints goes to standard error. Several requests run at once. It waits for `begin`, then loads litellm in
the background; requests that come earlier wait. It leaves within two seconds of the end of its input, whatever it is
doing. Credentials are in its environment and nowhere else; they are taken out of every text that it reports.

Not promised: any retry. A request that fails is reported once, classified.
"""

import asyncio
import contextlib
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from importlib import metadata
from typing import Any

from hub.agent.answering import answer
from hub.agent.classify import Fault, classify
from hub.agent.deltas import Batch
from hub.agent.litellm_facts import facts_of
from hub.agent.model import Finish, ModelError, ModelPart, Notice, UsageReport
from hub.agent.worker_protocol import (
    LINE_LIMIT,
    REVISION,
    Ask,
    Begin,
    Broken,
    Cancel,
    Failed,
    Hello,
    Ping,
    Pong,
    Ready,
    Report,
    Target,
    decode_order,
    encode,
    frame_of,
    secrets_in,
    without,
)

BATCH_S = 0.02  # least time between two frames of one answer
LEAVE_S = 1.5  # time that requests get to close when the hub has gone
REPEAT_LIMIT = 10_000  # equal chunks in a row after which litellm gives a stream up; its own limit stops tables
WAITING = Notice("model is loading")
SWITCHES = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else its import asks the network for prices
    "LITELLM_MODE": "PRODUCTION",  # else it reads a .env file of the working directory
}

log = logging.getLogger("worker")
Send = Callable[[Report], None]


class Worker:
    """The requests of this process. `send` writes a report; `drained` waits until the hub has taken them."""

    def __init__(self, send: Send, drained: Callable[[], Awaitable[None]], environ: Mapping[str, str]) -> None:
        self._send = send
        self._drained = drained
        self._environ = environ
        self._secrets = secrets_in(environ)
        self._asking: dict[int, asyncio.Task[None]] = {}
        self._began: set[int] = set()
        self._library: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._loading: asyncio.Future[Any] | None = None

    def obey(self, line: bytes) -> None:
        """Carry out one order. Raises msgspec.DecodeError."""
        match decode_order(line):
            case Begin():
                self._loading = asyncio.ensure_future(asyncio.to_thread(load))
                self._loading.add_done_callback(self._loaded)
            case Ask() as ask:
                task = asyncio.create_task(self._answer(ask))
                self._asking[ask.id] = task
                task.add_done_callback(lambda ended: self._over(ask, ended))
            case Cancel(id):
                if id in self._asking:
                    self._asking[id].cancel()
            case Ping():
                self._send(Pong())

    async def stop(self) -> None:
        """End what runs, as far as it ends in time."""
        for task in self._asking.values():
            task.cancel()
        if self._asking:
            await asyncio.wait(list(self._asking.values()), timeout=LEAVE_S / 2)

    def _loaded(self, loading: asyncio.Future[Any]) -> None:
        error = loading.exception()
        if error is None:
            self._send(Ready(metadata.version("litellm")))
            self._library.set_result(loading.result())
            return
        reason = f"The model library cannot be loaded: {type(error).__name__}: {error}"
        self._send(Broken(reason))
        self._library.set_exception(ModelError("unknown", reason))
        self._library.exception()  # somebody has looked at it, even if no request comes

    def _over(self, ask: Ask, task: asyncio.Task[None]) -> None:
        """The edge of a request's task: whatever ended it is reported, and nothing is raised further."""
        del self._asking[ask.id]
        began = ask.id in self._began
        self._began.discard(ask.id)
        error = ModelError("incomplete", "The request was cut off.") if task.cancelled() else task.exception()
        if error is not None:
            fault = self._fault(error, began, ask.target)
            self._send(Failed(ask.id, fault.kind, fault.message, fault.retry_after_s))

    def _fault(self, error: BaseException, began: bool, target: Target) -> Fault:
        if isinstance(error, ModelError):
            return Fault(error.kind, error.message, error.retry_after_s)
        facts = facts_of(error, began=began)
        fault = classify(facts)
        if fault.kind == "unknown":
            log.error("a request failed in an unknown way: %s", type(error).__name__)
        where = f" ({target.api_base})" if target.api_base and facts.connection else ""
        return Fault(fault.kind, without(self._secrets, fault.message + where), fault.retry_after_s)

    async def _answer(self, ask: Ask) -> None:
        if not self._library.done():
            self._send(frame_of(ask.id, WAITING))
        library = await asyncio.shield(self._library)
        outlet = Outlet(ask.id, self._send)
        key = self._environ.get(ask.target.key_variable or "")
        try:
            async with contextlib.aclosing(answer(library, ask, key)) as parts:
                async for part in parts:
                    if not isinstance(part, UsageReport | Finish):
                        self._began.add(ask.id)
                    outlet.put(part)
                    await self._drained()
        finally:
            outlet.flush()


class Outlet:
    """Sends the parts of one answer, those that follow each other quickly together."""

    def __init__(self, id: int, send: Send) -> None:
        self._id = id
        self._send = send
        self._batch = Batch()
        self._loop = asyncio.get_running_loop()
        self._flushed_at = -BATCH_S
        self._timer: asyncio.TimerHandle | None = None

    def put(self, part: ModelPart) -> None:
        """Send a part now, or soon."""
        self._batch.add(part)
        left = self._flushed_at + BATCH_S - self._loop.time()
        if left <= 0 or isinstance(part, Finish):
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_later(left, self.flush)

    def flush(self) -> None:
        """Send what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._flushed_at = self._loop.time()
        for part in self._batch.take():
            self._send(frame_of(self._id, part))


def load() -> Any:
    """Return litellm. Takes seconds and 200 MB, which is why this process exists."""
    import litellm  # late: the switches of `SWITCHES` must stand in the environment, and the hub must hear `hello`

    litellm.suppress_debug_info = True
    litellm.REPEATED_STREAMING_CHUNK_LIMIT = REPEAT_LIMIT  # type: ignore[attr-defined]  # imported there from constants
    return litellm


def protect_output() -> tuple[int, int]:
    """Return descriptors for orders and reports, and give everything else nothing to read and stderr to write to."""
    orders, reports = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return orders, reports


def leave_with(orders: int) -> None:
    """End this process when its input has ended, even if its event loop hangs. Runs in a thread of its own."""
    poll = select.poll()
    poll.register(orders, 0)  # no event is asked for: a hang-up is always told
    poll.poll()
    time.sleep(LEAVE_S)
    os._exit(0)


async def serve(orders: int, reports: int) -> None:
    """Carry out orders until their end."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(LINE_LIMIT)
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(orders, "rb", 0))
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(asyncio.StreamReader()), os.fdopen(reports, "wb", 0)
    )
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    worker = Worker(lambda report: writer.write(encode(report)), writer.drain, os.environ)
    writer.write(encode(Hello(REVISION)))
    while line := await reader.readline():
        worker.obey(line)
    await worker.stop()


async def _serve_and_leave(orders: int, reports: int) -> None:
    await serve(orders, reports)
    os._exit(0)  # an import that is still going on in its thread would hold up an ordinary exit


def main() -> None:
    """Be the worker."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s %(message)s")
    os.environ.update(SWITCHES)
    orders, reports = protect_output()
    threading.Thread(target=leave_with, args=(orders,), daemon=True).start()
    asyncio.run(_serve_and_leave(orders, reports))


if __name__ == "__main__":
    main()
