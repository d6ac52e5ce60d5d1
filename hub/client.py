"""The client side of the protocol: connect, call, subscribe, and follow events across lost connections.

Invariant: a call ends with the hub's answer or with a coded error, never with silence; what a subscription was sent is
handed on in order and whole, or the subscription ends with an error after which a cursor can resume.
It does not repeat calls by itself: a caller that repeats one passes the same idempotency key. Only `follow` reconnects.
"""

import asyncio
import copy
import os
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.asyncio.client import connect as open_socket
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from hub import __version__
from hub.errors import AuthError, InternalError, TurnbackError, UnavailableError, UsageError
from hub.protocol.cursor import Cursor, Item, Retry
from hub.protocol.discovery import DiscoveryRecord, decode_record, record_path
from hub.protocol.envelope import Reply, encode_call
from hub.protocol.frames import checked_params, decoded, item_of, result_of, row_of
from hub.protocol.methods import (
    FRAME_LIMIT,
    HELLO_DEADLINE_S,
    HELLO_LIMIT,
    METHODS,
    PROTOCOL_MIN,
    PROTOCOL_VERSION,
    HelloAnswer,
    Method,
)
from hub.protocol.subscribing import Subscribed
from hub.subscription import Subscription

GRACE_S = 5.0
"""Seconds that a client waits beyond a method's time limit: the hub's own refusal should come first."""
OPEN_S = 10.0
"""Seconds for the TCP connection and the upgrade."""
CLOSE_S = 2.0
"""Seconds for the closing handshake."""

_SUBSCRIBE = "events.subscribe"
_UNSUBSCRIBE = "events.unsubscribe"
_START_HINT = "Run `hubctl start`."


def find_hub(home: Path) -> DiscoveryRecord:
    """Return the discovery record of a hub whose process lives. Raises UnavailableError with code no_hub."""
    path = record_path(home)
    try:
        record = decode_record(path.read_bytes())
    except FileNotFoundError:
        raise _no_hub(f"No hub runs in {home}.") from None
    except (OSError, ValueError) as error:
        raise _no_hub(f"{path} cannot be read as a discovery record: {error}") from None
    if not _lives(record.pid):
        raise _no_hub(f"The hub of {home} is gone: its process {record.pid} does not exist.")
    return record


class _Pending(msgspec.Struct):
    row: Method
    answer: asyncio.Future[Any]


class HubClient:
    """One open connection. `hello` is the hub's answer to the handshake. Safe for concurrent use by one event loop."""

    hello: HelloAnswer

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._closing = False
        self._last_id = 0
        self._frame_limit = HELLO_LIMIT
        self._pending: dict[int, _Pending] = {}
        self._streams: dict[int, Subscription] = {}
        self._early: dict[int, Subscription] = {}
        self._moved = asyncio.Event()
        self._lost: TurnbackError | None = None
        self._reader = asyncio.create_task(self._read(), name="hub client reader")

    @classmethod
    async def connect(cls, home: Path, *, kind: str, name: str) -> Self:
        """Return a client of the hub of a home. Raises UnavailableError (no_hub), AuthError, UsageError."""
        record = find_hub(home)
        return await cls.connect_to(record.url, record.token, kind=kind, name=name)

    @classmethod
    async def connect_to(cls, url: str, token: str, *, kind: str, name: str) -> Self:
        """Return a client of the hub at a WebSocket address such as `ws://127.0.0.1:4000/rpc`."""
        client = cls(await _open(url))
        try:
            client.hello = await client._greet(token, kind, name)
        except BaseException:
            await client.close()
            raise
        client._frame_limit = min(client.hello.frame_limit, FRAME_LIMIT)
        return client

    async def call(self, method: str, /, **params: Any) -> Any:
        """Return the result as the method table's type.

        A mutating method gets a fresh idempotency key when none is given. Raises the hub's error; UsageError before
        anything is sent when the parameters do not fit; UnavailableError (connection_lost, timed_out), both retryable.
        """
        row = row_of(method)
        if method == _SUBSCRIBE:
            raise UsageError("Use subscribe(): the answer to events.subscribe is the beginning of a stream.")
        return await self._ask(row, checked_params(row, params))

    @asynccontextmanager
    async def _subscribe(self, params: dict[str, Any]) -> AsyncIterator[Subscription]:
        row = METHODS[_SUBSCRIBE]
        stream: Subscription = await self._ask(row, checked_params(row, params))
        try:
            yield stream
        finally:
            await self._unsubscribe(stream)

    def subscribe(self, **params: Any) -> AbstractAsyncContextManager[Subscription]:
        """Return a context that holds a subscription (parameters of events.subscribe); leaving it ends the stream."""
        return self._subscribe(params)

    async def close(self) -> None:
        """Close the connection; whatever still waits gets connection_lost. Closing twice is closing once."""
        self._fail(UnavailableError("This client was closed.", code="connection_lost", retryable=True))
        if not self._closing:
            self._closing = True
            await self._socket.close()
        await self._reader

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _greet(self, token: str, kind: str, name: str) -> HelloAnswer:
        row = METHODS["hub.hello"]
        hello = {
            "protocol": {"min": PROTOCOL_MIN, "max": PROTOCOL_VERSION},
            "client": {"kind": kind, "name": name, "version": __version__},
            "token": token,
        }
        answer: HelloAnswer = await self._ask(row, checked_params(row, hello), limit_s=HELLO_DEADLINE_S)
        return answer

    async def _ask(self, row: Method, params: msgspec.Raw, *, limit_s: float | None = None) -> Any:
        if self._lost is not None:
            raise copy.copy(self._lost)
        self._last_id = id = self._last_id + 1
        frame = encode_call(id, row.name, params)
        self._check_size(row, frame)
        waiting = self._pending[id] = _Pending(row, asyncio.get_running_loop().create_future())
        self._moved.set()
        try:
            async with asyncio.timeout(limit_s or row.time_limit_s + GRACE_S):
                await self._send(frame)
                return await waiting.answer
        except BaseException as error:
            await self._abandon(id, waiting)
            if isinstance(error, TimeoutError):
                raise _timed_out(row) from None
            raise

    async def _abandon(self, id: int, waiting: _Pending) -> None:
        if waiting.row.name != _SUBSCRIBE:  # a subscription that is answered later must still be ended
            self._pending.pop(id, None)
        if waiting.answer.cancelled() or waiting.answer.cancel():
            return
        if waiting.answer.exception() is None and isinstance(waiting.answer.result(), Subscription):
            await self._unsubscribe(waiting.answer.result())

    def _check_size(self, row: Method, frame: bytes) -> None:
        if len(frame) > self._frame_limit:
            raise UsageError(
                f"{row.name}: the call has {len(frame)} bytes; a frame may have {self._frame_limit}.",
                code="frame_too_large",
                hint="Send less text, or put it in a file of the workspace.",
            )

    async def _send(self, frame: bytes) -> None:
        try:
            await self._socket.send(frame, text=True)
        except ConnectionClosed as closed:
            raise _connection_lost(closed) from None

    async def _unsubscribe(self, stream: Subscription) -> None:
        stream.finish(None)
        self._moved.set()
        number = stream.ack.subscription
        self._streams.pop(number, None)
        await self._say_unsubscribe(number)

    async def _say_unsubscribe(self, number: int) -> None:
        """Tell the hub without waiting for its answer: whoever leaves a stream may be on the way out."""
        self._last_id += 1
        with suppress(UnavailableError):  # a lost connection has ended the subscription
            await self._send(encode_call(self._last_id, _UNSUBSCRIBE, {"subscription": number}))

    async def _read(self) -> None:
        try:
            while True:
                await self._take(await self._socket.recv(decode=False))
        except ConnectionClosed as closed:
            self._fail(_connection_lost(closed))
        except TurnbackError as broken:
            self._fail(broken)
            await self._socket.close(1002, broken.code)
        finally:
            self._fail(InternalError("The client's reader stopped."))

    async def _take(self, frame: bytes) -> None:
        message = decoded(frame)
        if isinstance(message, Reply):
            await self._settle(message)
            return
        known = item_of(message)
        stream = self._stream_of(known[0]) if known else None
        if known and stream:
            stream.put(known[1])
            await self._wait_for_room(stream)

    def _stream_of(self, number: int) -> Subscription | None:
        if number in self._streams:
            return self._streams[number]
        if self._subscribing():  # the hub may send the first items before its answer
            return self._early.setdefault(number, Subscription(self._moved))
        return None

    def _subscribing(self) -> bool:
        return any(waiting.row.name == _SUBSCRIBE for waiting in self._pending.values())

    async def _wait_for_room(self, stream: Subscription) -> None:
        """Read no further while the stream is full, unless a call waits: its answer lies behind the stream's items."""
        while stream.full and not self._pending:
            self._moved.clear()
            await self._moved.wait()

    async def _settle(self, reply: Reply) -> None:
        if reply.id is None:
            self._settle_all(reply.error)
            return
        waiting = self._pending.pop(reply.id, None) if isinstance(reply.id, int) else None
        if waiting is None:
            return
        try:
            result = result_of(waiting.row, reply)
        except TurnbackError as error:
            if not waiting.answer.done():
                waiting.answer.set_exception(error)
            return
        if isinstance(result, Subscribed):
            await self._begin(waiting, result)
        elif not waiting.answer.done():
            waiting.answer.set_result(result)

    async def _begin(self, waiting: _Pending, ack: Subscribed) -> None:
        stream = self._early.pop(ack.subscription, None) or Subscription(self._moved)
        if not self._subscribing():
            self._early.clear()
        if waiting.answer.done():
            await self._say_unsubscribe(ack.subscription)
            return
        stream.ack = ack
        self._streams[ack.subscription] = stream
        waiting.answer.set_result(stream)

    def _settle_all(self, error: TurnbackError | None) -> None:
        """Give an error that names no call to every call: one of them was not understood."""
        error = error or InternalError("The hub answered a call without saying which.", code="malformed_reply")
        waiting, self._pending = self._pending, {}
        for one in waiting.values():
            if not one.answer.done():
                one.answer.set_exception(copy.copy(error))

    def _fail(self, error: TurnbackError) -> None:
        self._lost = self._lost or error
        self._settle_all(self._lost)
        for stream in (*self._streams.values(), *self._early.values()):
            stream.finish(self._lost)
        self._streams.clear()
        self._early.clear()
        self._moved.set()


async def follow(
    connect: Callable[[], Awaitable[HubClient]],
    *,
    session_id: str | None = None,
    after_seq: int | None,
    live: bool = False,
    patience_s: float = 60.0,
) -> AsyncGenerator[Item]:
    """Yield events from a cursor on, across lost connections and restarts of the hub: none twice, none left out.

    What the hub no longer has is told as a Gap. Raises UnavailableError after `patience_s` without a hub, and at once
    whatever another attempt cannot mend. Wrap it in contextlib.aclosing to close its connection at once when leaving.
    """
    cursor = Cursor(after_seq, session_id)
    retry = Retry(patience_s)
    while True:
        try:
            async with aclosing(_continue(connect, cursor, live)) as items:
                async for item in items:
                    retry.reset()
                    yield item
        except TurnbackError as error:
            pause_s = retry.pause_after(error, asyncio.get_running_loop().time(), random.random())
            if pause_s is None:
                raise
            await asyncio.sleep(pause_s)


async def _continue(connect: Callable[[], Awaitable[HubClient]], cursor: Cursor, live: bool) -> AsyncGenerator[Item]:
    async with await connect() as client, client.subscribe(**cursor.params(live=live)) as stream:
        cursor.subscribed(stream.ack)
        async for item in stream:
            for wanted in cursor.take(item):
                yield wanted


async def _open(url: str) -> ClientConnection:
    """Return an upgraded connection. Nothing is taken from the environment (proxy), and no redirect leads elsewhere."""
    host, port = _address(url)
    try:
        return await open_socket(
            url,
            host=host,
            port=port,
            proxy=None,
            compression=None,
            open_timeout=OPEN_S,
            close_timeout=CLOSE_S,
            ping_interval=None,  # a reader that pauses sees no pong; the hub pings, and a dead hub's socket ends
            max_size=FRAME_LIMIT,
        )
    except InvalidStatus as refused:
        raise _refusal(url, refused.response.status_code, bytes(refused.response.body or b"")) from None
    except TimeoutError:
        raise UnavailableError(f"{url} does not answer.", code="no_answer", hint="See `hubctl logs`.") from None
    except OSError as error:
        raise _no_hub(f"No hub listens at {url}: {error.strerror or error}.") from None
    except (InvalidHandshake, ValueError) as error:
        if isinstance(error.__cause__, EOFError | ConnectionError):
            raise _no_hub(f"The hub at {url} ended before it answered.") from None
        raise UnavailableError(f"What listens at {url} is not a hub: {error}", code="not_a_hub") from None


def _address(url: str) -> tuple[str, int]:
    with suppress(ValueError):
        parts = urlsplit(url)
        if parts.hostname is not None and parts.port is not None and parts.scheme in ("ws", "wss"):
            return parts.hostname, parts.port
    raise UsageError(f"{url!r} is not a hub's address; expected ws://HOST:PORT/rpc.", code="bad_url")


def _refusal(url: str, status: int, body: bytes) -> TurnbackError:
    text = body.decode("utf-8", "replace").strip()[:500] or f"HTTP {status}"
    if status in (401, 403, 421):
        return AuthError(f"The hub at {url} refused the connection: {text}", code="upgrade_refused")
    return UnavailableError(f"{url} answered HTTP {status}: {text}", code="not_a_hub", retryable=status >= 500)


def _no_hub(text: str) -> UnavailableError:
    return UnavailableError(text, code="no_hub", hint=_START_HINT)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return pid > 0


def _connection_lost(closed: ConnectionClosed) -> TurnbackError:
    if closed.sent and closed.sent.code == 1009:
        return InternalError(f"The hub sent a frame of more than {FRAME_LIMIT} bytes.", code="malformed_frame")
    said = f" It said: {closed.rcvd.reason} ({closed.rcvd.code})." if closed.rcvd and closed.rcvd.reason else ""
    return UnavailableError(f"The connection to the hub was lost.{said}", code="connection_lost", retryable=True)


def _timed_out(row: Method) -> UnavailableError:
    key = " Repeat it with the same idempotency key to get its outcome." if row.mutating else ""
    return UnavailableError(f"The hub did not answer {row.name} in time.{key}", code="timed_out", retryable=True)
