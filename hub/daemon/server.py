"""The server: one loopback port, one WebSocket a client, two health pages. Frames are judged by ServerConnection.

One client's slowness, flood or nonsense is its own: calls in flight are bounded per connection, answers and events wait
for its socket alone, and whatever cannot be understood is answered by a coded error.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import Server, serve
from websockets.asyncio.server import ServerConnection as Socket
from websockets.datastructures import Headers
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from hub import __version__
from hub.daemon.bus import Bus
from hub.daemon.calls import Caller, Handlers
from hub.daemon.discovery import token_digest
from hub.daemon.services import Identity
from hub.daemon.subscriptions import Subscription
from hub.errors import AuthError, InternalError, NotFoundError, RefusedError, TurnbackError
from hub.protocol.connection import (
    FORWARDING_HEADERS,
    CallReceived,
    CloseCode,
    HelloReceived,
    Refused,
    ServerConnection,
    check_upgrade,
)
from hub.protocol.envelope import encode_error, encode_result
from hub.protocol.methods import FRAME_LIMIT, HELLO_DEADLINE_S, HelloAnswer
from hub.protocol.params import EventsSubscribe, EventsUnsubscribe
from hub.protocol.subscribing import Gap, Subscribed
from hub.protocol.views import Ack
from hub.store import eventlog, sessions
from hub.store.database import Database
from hub.store.registry import TokenGrant

log = logging.getLogger(__name__)

CALLS_IN_FLIGHT = 64
"""Calls of one connection that are worked on at once; further frames wait in the socket."""
SUBSCRIPTIONS = 32
CLOSE_S = 3.0
"""Seconds that calls in flight get when the hub stops."""
SEND_S = 30.0
"""Seconds a peer may take to accept a frame before it is disconnected, with its cursor still good."""
SOCKET_LIMIT = 2 * FRAME_LIMIT
"""Bytes beyond which a frame ends the connection instead of being answered."""


class Hub:
    """What the server needs of the rest."""

    def __init__(self, database: Database, bus: Bus, identity: Identity, handlers: Handlers) -> None:
        self.database = database
        self.bus = bus
        self.identity = identity
        self.handlers = handlers
        self.tokens: dict[str, TokenGrant] = {}
        self.calls: set[asyncio.Task[None]] = set()
        self.ready: Callable[[], dict[str, str]] = dict

    def grant_of(self, token: str) -> TokenGrant | None:
        """Return what a token grants, compared in constant time."""
        digest = token_digest(token)
        found = [grant for known, grant in self.tokens.items() if hmac.compare_digest(known, digest)]
        return found[0] if found else None


async def listen(hub: Hub, port: int) -> "Listener":
    """Listen on loopback. Raises OSError when the port is taken."""

    async def handle(socket: Socket) -> None:
        await Connection(hub, socket).serve()

    def guard(socket: Socket, request: Request) -> Response | None:
        return _http(hub, socket, request)

    listener = await serve(
        handle,
        "127.0.0.1",
        port,
        process_request=guard,
        max_size=SOCKET_LIMIT,
        max_queue=16,
        compression=None,
        server_header=None,
        ping_interval=20,
        ping_timeout=60,
        close_timeout=2,
    )
    return Listener(listener, hub)


class Listener:
    """The open port."""

    def __init__(self, listener: Server, hub: Hub) -> None:
        self._listener = listener
        self._hub = hub

    @property
    def port(self) -> int:
        return int(next(iter(self._listener.sockets)).getsockname()[1])

    async def close(self) -> None:
        """Close the port and every connection. Calls that do not end in time are given up; what they stored stands."""
        self._listener.close()
        try:
            async with asyncio.timeout(CLOSE_S):
                await asyncio.shield(self._listener.wait_closed())
        except TimeoutError:
            for task in self._hub.calls:
                task.cancel()
            await self._listener.wait_closed()


def _http(hub: Hub, socket: Socket, request: Request) -> Response | None:
    """Judge an HTTP request: a refusal, a health page, or None to go on to the WebSocket."""
    headers = request.headers
    refusal = check_upgrade(
        headers.get("Host"),
        headers.get("Origin"),
        any(name in headers for name in FORWARDING_HEADERS),
        socket.local_address[1],
    )
    if refusal is not None:
        return _response(refusal.status, refusal.text)
    path = request.path.partition("?")[0]
    if path == "/rpc":
        return None
    if path == "/healthz":
        return _response(200, "alive\n")
    if path == "/readyz":
        parts = hub.ready()
        well = all(state in ("ready", "idle", "off") for state in parts.values())
        return _response(200 if well else 503, "".join(f"{name}: {state}\n" for name, state in parts.items()))
    return _response(404, "There is nothing here. The hub speaks WebSocket on /rpc.\n")


def _response(status: int, text: str) -> Response:
    body = text.encode()
    headers = Headers(
        {
            "Content-Type": "text/plain; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
        }
    )
    return Response(status, HTTPStatus(status).phrase, headers, body)


class Connection:
    """One client's socket, from the first frame to the last."""

    def __init__(self, hub: Hub, socket: Socket) -> None:
        self._hub = hub
        self._socket = socket
        self._protocol = ServerConnection()
        self._caller = Caller("nobody", ())
        self._room = asyncio.Semaphore(CALLS_IN_FLIGHT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._pumps: dict[int, asyncio.Task[None]] = {}
        self._numbers = 0

    async def serve(self) -> None:
        """Read frames until the peer leaves or is refused."""
        try:
            async with asyncio.timeout(HELLO_DEADLINE_S):
                await self._receive(await self._socket.recv())
            if self._protocol.state != "open":
                return
            async for frame in self._socket:
                await self._receive(frame)
        except TimeoutError:
            await self._socket.close(CloseCode.HELLO_LATE, "hub.hello did not come in time")
        except ConnectionClosed:
            log.debug("a client left", extra={"actor": self._caller.actor})
        finally:
            self._protocol.close()
            tasks = [*self._pumps.values(), *self._tasks]
            for pump in self._pumps.values():
                pump.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, frame: str | bytes) -> None:
        decision = self._protocol.receive(frame)
        if isinstance(decision, HelloReceived):
            await self._hello(decision)
        elif isinstance(decision, CallReceived):
            await self._room.acquire()
            task = asyncio.create_task(self._answer(decision))
            self._tasks.add(task)
            self._hub.calls.add(task)
            task.add_done_callback(self._answered)
        else:
            await self._refuse(decision)

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._hub.calls.discard(task)
        self._room.release()

    async def _refuse(self, refused: Refused) -> None:
        await self._send(encode_error(refused.id, refused.error))
        if refused.close is not None:
            await self._socket.close(refused.close, refused.error.code)

    async def _hello(self, hello: HelloReceived) -> None:
        grant = self._hub.grant_of(hello.params.token)
        if grant is None:
            error = AuthError(
                "The token is not one of this hub's.",
                code="bad_token",
                hint="hubctl reads it from the home's hub.json; check --home and TURNBACK_HOME.",
            )
            await self._refuse(Refused(hello.id, error, CloseCode.HELLO_REFUSED))
            self._protocol.close()
            return
        self._protocol.accept(grant.scopes)
        self._caller = Caller(grant.name, grant.scopes)
        identity = self._hub.identity
        answer = HelloAnswer(
            protocol=hello.protocol,
            hub_id=identity.hub_id,
            boot_id=identity.boot_id,
            log_id=identity.log_id,
            version=__version__,
            scopes=list(grant.scopes),
            actor=grant.name,
            frame_limit=FRAME_LIMIT,
        )
        await self._send(encode_result(hello.id, answer))

    async def _answer(self, call: CallReceived) -> None:
        try:
            result = await self._carry_out(call)
            frame = encode_result(call.id, result)
            if len(frame) > FRAME_LIMIT:
                raise RefusedError(
                    "The answer is too large for one frame; ask for a smaller page.", code="answer_too_large"
                )
        except TurnbackError as error:
            frame = encode_error(call.id, error)
        except Exception:
            log.exception("a call failed unexpectedly", extra={"method": call.method.name})
            error_text = f"{call.method.name} failed by a defect of the hub; its log tells more."
            frame = encode_error(call.id, InternalError(error_text, hint="See `hubctl logs`."))
        await self._send(frame)

    async def _carry_out(self, call: CallReceived) -> Any:
        if isinstance(call.params, EventsSubscribe):
            return await self._subscribe(call.params)
        if isinstance(call.params, EventsUnsubscribe):
            return self._unsubscribe(call.params)
        return await self._hub.handlers.answer(call.method, call.params, self._caller)

    async def _subscribe(self, params: EventsSubscribe) -> Subscribed:
        if len(self._pumps) >= SUBSCRIPTIONS:
            raise RefusedError(f"A connection may have {SUBSCRIPTIONS} subscriptions.", code="too_many_subscriptions")
        session_id = params.session_id
        if session_id is not None:
            await self._hub.database.read(lambda conn: sessions.row(conn, session_id))
        trimmed = await self._hub.database.read(eventlog.trimmed_seq)
        last, log_id = self._hub.bus.last_seq, self._hub.identity.log_id
        after, reason = resume_point(params, log_id, trimmed, last)
        self._numbers += 1
        number = self._numbers
        subscription = Subscription(number, self._hub.database, self._hub.bus, session_id, after)
        if params.live:
            subscription.want_live()
        if reason is not None:
            subscription.begin_with_gap(Gap(subscription=number, log_id=log_id, reason=reason, seq=after))
        self._pumps[number] = asyncio.create_task(self._pump(subscription))
        return Subscribed(subscription=number, log_id=log_id, first_seq=trimmed + 1, last_seq=last)

    async def _pump(self, subscription: Subscription) -> None:
        try:
            await subscription.pump(self._send)
        except ConnectionClosed:
            log.debug("a reader left", extra={"actor": self._caller.actor})

    def _unsubscribe(self, params: EventsUnsubscribe) -> Ack:
        pump = self._pumps.pop(params.subscription, None)
        if pump is None:
            raise NotFoundError(f"There is no subscription {params.subscription}.", code="unknown_subscription")
        pump.cancel()
        return Ack(id=str(params.subscription), state="ended")

    async def _send(self, frame: bytes) -> None:
        try:
            async with asyncio.timeout(SEND_S):
                await self._socket.send(frame, text=True)
        except TimeoutError:
            await self._socket.close(CloseCode.SLOW_READER, "resume from your cursor")
        except ConnectionClosed:
            log.debug("a frame had nobody to go to", extra={"actor": self._caller.actor})


def resume_point(params: EventsSubscribe, log_id: str, trimmed: int, last: int) -> tuple[int, str | None]:
    """Return the seq to go on from, and why the cursor could not be served (None when it can)."""
    if params.after_seq is None:
        return last, None
    if params.log_id is not None and params.log_id != log_id:
        return last, "another_log"
    if params.after_seq > last:
        return last, "ahead_of_log"
    if params.after_seq < trimmed:
        return last, "trimmed"
    return params.after_seq, None
