"""A hub of tables: a real WebSocket server that answers from a dictionary and replays a list of events.

It runs on a loop in a thread of its own, so that `hubctl` can be called in-process or as a process. It knows nothing of
runs; tests say what happens.
"""

import asyncio
import inspect
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from hub import __version__
from hub.errors import NotFoundError, TurnbackError
from hub.protocol.discovery import DiscoveryRecord, record_path
from hub.protocol.envelope import Call, decode_call, encode_error, encode_notification, encode_result
from hub.protocol.events import EVENTS, LIVE, Event, Live
from hub.protocol.methods import METHODS, EventFrame, HelloAnswer, LiveFrame
from hub.protocol.subscribing import CaughtUp, Subscribed

TOKEN = "token-of-the-fake-hub"
AT = "2026-01-01T00:00:00.000Z"


class FakeHub:
    """Set `answers[method]` to a value, to a function of the params (also a coroutine), or to an error to raise."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.answers: dict[str, Any] = {"delivery.list": [], "approval.list": [], "question.list": []}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.events: list[Event] = []
        self.drop_before_answer: set[str] = set()
        self.called = threading.Condition()
        self._streams: set[_Stream] = set()
        self._sending: set[asyncio.Task[None]] = set()
        self._sockets: set[ServerConnection] = set()
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "FakeHub":
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        self._stop = asyncio.Event()
        async with serve(self._connection, "127.0.0.1", 0) as server:
            port = next(iter(server.sockets)).getsockname()[1]
            self._write_record(f"ws://127.0.0.1:{port}/rpc")
            self._ready.set()
            await self._stop.wait()
            for sending in self._sending:
                sending.cancel()

    def _write_record(self, url: str) -> None:
        record = DiscoveryRecord(
            pid=os.getpid(),
            url=url,
            token=TOKEN,
            version=__version__,
            hub_id="hub_1",
            boot_id="boot_1",
            started_at=AT,
            protocol_min=1,
            protocol_max=1,
        )
        self.home.mkdir(parents=True, exist_ok=True)
        record_path(self.home).write_bytes(msgspec.json.encode(record))
        record_path(self.home).chmod(0o600)

    async def _connection(self, socket: ServerConnection) -> None:
        self._sockets.add(socket)
        try:
            async for frame in socket:
                await self._frame(socket, frame)
        except ConnectionClosed:
            pass
        finally:
            self._sockets.discard(socket)

    async def _frame(self, socket: ServerConnection, frame: str | bytes) -> None:
        call = decode_call(frame)
        params = msgspec.json.decode(call.params)
        with self.called:
            self.calls.append((call.method, params))
            self.called.notify_all()
        try:
            result = self._answer(socket, call, params)
            if inspect.isawaitable(result):
                result = await result
        except TurnbackError as error:
            await socket.send(encode_error(call.id, error), text=True)
            return
        if call.method in self.drop_before_answer:
            self.drop_before_answer.discard(call.method)
            await socket.close()
            return
        await socket.send(encode_result(call.id, result), text=True)
        if call.method == "events.subscribe":
            self._subscribed(socket, result.subscription, params)

    def _answer(self, socket: ServerConnection, call: Call, params: dict[str, Any]) -> Any:
        if call.method == "hub.hello":
            return HelloAnswer(
                protocol=1,
                hub_id="hub_1",
                boot_id="boot_1",
                log_id="log_1",
                version=__version__,
                scopes=[],
                actor="local",
                frame_limit=1 << 20,
            )
        if call.method == "events.subscribe":
            return Subscribed(subscription=self._number(), log_id="log_1", first_seq=1, last_seq=self._last_seq())
        if call.method == "events.unsubscribe":
            return {"id": "1", "state": "ended"}
        assert call.method in METHODS
        answer = self.answers.get(call.method, NotFoundError(f"no answer for {call.method}"))
        if isinstance(answer, TurnbackError):
            raise answer
        return answer(params) if callable(answer) else answer

    def _number(self) -> int:
        return sum(method == "events.subscribe" for method, _ in self.calls)

    def _last_seq(self) -> int:
        return self.events[-1].seq if self.events else 0

    def _subscribed(self, socket: ServerConnection, number: int, params: dict[str, Any]) -> None:
        after = params.get("after_seq")
        stream = _Stream(number, params.get("session_id"))
        for event in self.events:
            if after is not None and event.seq > after:
                stream.put_event(event)
        caught = CaughtUp(subscription=number, seq=self._last_seq())
        stream.frames.put_nowait(encode_notification("events.caught_up", caught))
        self._streams.add(stream)
        sending = asyncio.create_task(self._send_all(socket, stream))
        sending.add_done_callback(lambda _: self._streams.discard(stream))
        self._sending.add(sending)

    async def _send_all(self, socket: ServerConnection, stream: "_Stream") -> None:
        try:
            while True:
                await socket.send(await stream.frames.get(), text=True)
        except ConnectionClosed:
            pass

    def emit(self, type: str, *, session_id: str = "ses_1", run_id: str | None = None, **data: Any) -> None:
        """Append an event and send it to all who follow. The data must fit the table."""
        raw = msgspec.Raw(msgspec.json.encode(msgspec.convert(data, EVENTS[type])))

        def append() -> None:
            previous = [event.seq for event in self.events if event.session_id == session_id]
            event = Event(self._last_seq() + 1, previous[-1] if previous else 0, session_id, run_id, type, AT, raw)
            self.events.append(event)
            for stream in self._streams:
                stream.put_event(event)

        self._do(append)

    def live(self, type: str, *, session_id: str = "ses_1", run_id: str | None = None, **data: Any) -> None:
        """Send a live notice to all who follow."""
        notice = Live(type, session_id, run_id, msgspec.Raw(msgspec.json.encode(msgspec.convert(data, LIVE[type]))))

        def send() -> None:
            for stream in self._streams:
                if stream.session_id in (None, session_id):
                    stream.frames.put_nowait(encode_notification("live", LiveFrame(stream.number, notice)))

        self._do(send)

    def drop(self) -> None:
        """Cut every connection."""

        def close() -> None:
            for socket in self._sockets:
                self._sending.add(asyncio.create_task(socket.close()))

        self._do(close)

    def wait_call(self, method: str, count: int = 1) -> dict[str, Any]:
        """Wait until a method was called so often; return the params of that call."""
        with self.called:
            assert self.called.wait_for(lambda: len(self.params_of(method)) >= count, 20), self.calls
            return self.params_of(method)[count - 1]

    def params_of(self, method: str) -> list[dict[str, Any]]:
        """Return the params of all calls of a method."""
        return [params for name, params in self.calls if name == method]

    def _do(self, work: Callable[[], None]) -> None:
        if threading.current_thread() is self._thread:
            work()
            return
        done = threading.Event()

        def call() -> None:
            work()
            done.set()

        self._loop.call_soon_threadsafe(call)
        assert done.wait(10)


class _Stream:
    def __init__(self, number: int, session_id: str | None) -> None:
        self.number = number
        self.session_id = session_id
        self.frames: asyncio.Queue[bytes] = asyncio.Queue()

    def put_event(self, event: Event) -> None:
        if self.session_id in (None, event.session_id):
            self.frames.put_nowait(encode_notification("event", EventFrame(self.number, event)))
