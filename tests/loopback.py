"""A small real WebSocket server that speaks the envelope, and misbehaves when told to."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
from websockets.asyncio.server import Server, serve
from websockets.asyncio.server import ServerConnection as Socket
from websockets.exceptions import ConnectionClosed

from hub.client import HubClient
from hub.errors import (
    AuthError,
    TurnbackError,
)
from hub.protocol.cursor import Item
from hub.protocol.envelope import Call, decode_call, encode_error, encode_notification, encode_result
from hub.protocol.events import Event
from hub.protocol.methods import FRAME_LIMIT, EventFrame, HelloAnswer
from hub.protocol.subscribing import CaughtUp, Subscribed
from hub.protocol.views import SessionView

TOKEN = "right-token"
HELLO = HelloAnswer(
    protocol=1,
    hub_id="hub_1",
    boot_id="boot_1",
    log_id="log_1",
    version="0",
    scopes=["read"],
    actor="cli",
    frame_limit=FRAME_LIMIT,
)
Handler = Callable[["Peer", Call], Awaitable[None]]


class Peer:
    """The server's end of one connection."""

    def __init__(self, socket: Socket) -> None:
        self.socket = socket

    async def send(self, frame: bytes) -> None:
        await self.socket.send(frame, text=True)

    async def result(self, call: Call, result: Any) -> None:
        await self.send(encode_result(call.id, result))

    async def error(self, call: Call, error: TurnbackError) -> None:
        await self.send(encode_error(call.id, error))

    async def event(self, number: int, event: Event) -> None:
        await self.send(encode_notification("event", EventFrame(number, event)))

    async def caught_up(self, number: int, seq: int) -> None:
        await self.send(encode_notification("events.caught_up", CaughtUp(subscription=number, seq=seq)))

    def drop(self) -> None:
        self.socket.transport.abort()


class LoopbackHub:
    """Accepts hello with the right token; every other call goes to `on`, by method name."""

    def __init__(self) -> None:
        self.on: dict[str, Handler] = {}
        self.calls: list[Call] = []
        self.peers: list[Peer] = []
        self.server: Server | None = None
        self.port = 0

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/rpc"

    async def start(self) -> None:
        self.server = await serve(self._serve, "127.0.0.1", self.port, max_size=None, ping_interval=None)
        self.port = next(iter(self.server.sockets)).getsockname()[1]

    async def stop(self) -> None:
        assert self.server is not None
        for peer in self.peers:
            peer.drop()
        self.server.close()
        await self.server.wait_closed()

    async def _serve(self, socket: Socket) -> None:
        peer = Peer(socket)
        self.peers.append(peer)
        try:
            with suppress(ConnectionClosed):  # by `drop`, in the middle of an answer
                async for frame in socket:
                    assert isinstance(frame, str), "the protocol is made of text frames"
                    await self._answer(peer, decode_call(frame))
        finally:
            self.peers.remove(peer)

    async def _answer(self, peer: Peer, call: Call) -> None:
        if call.method == "hub.hello" and "hub.hello" not in self.on:
            if msgspec.json.decode(call.params)["token"] == TOKEN:
                await peer.result(call, HELLO)
            else:
                await peer.error(call, AuthError("This token opens nothing.", code="bad_token"))
            return
        self.calls.append(call)
        if call.method in self.on:
            await self.on[call.method](peer, call)

    def params(self, number: int = -1) -> dict[str, Any]:
        return msgspec.json.decode(self.calls[number].params)


async def open_client(server: LoopbackHub, token: str = TOKEN) -> HubClient:
    return await HubClient.connect_to(server.url, token, kind="cli", name="test")


def event(seq: int, prev: int, session: str | None = "ses_1") -> Event:
    return Event(seq, prev, session, None, "run.cancelling", "2026-01-01T00:00:00.000Z", msgspec.Raw(b'{"by":"me"}'))


def ack(number: int = 1, *, last_seq: int = 0, log_id: str = "log_1") -> Subscribed:
    return Subscribed(subscription=number, log_id=log_id, first_seq=1, last_seq=last_seq)


def session(id: str = "ses_1") -> SessionView:
    return SessionView(
        id=id,
        workspace="w",
        title="",
        state="idle",
        run_count=0,
        active_run_id=None,
        pending_prompts=0,
        last_seq=0,
        forked_from=None,
        created_at="",
        updated_at="",
    )


def answering(*results: Any) -> Handler:
    left = list(results)

    async def handler(peer: Peer, call: Call) -> None:
        await peer.result(call, left.pop(0) if len(left) > 1 else left[0])

    return handler


async def silent(peer: Peer, call: Call) -> None:
    """Never answer."""


async def take(items: Any, count: int) -> list[Item]:
    return [await anext(items) for _ in range(count)]


class Log:
    """An event log of two sessions, served page by page; the connection may be cut after any item."""

    def __init__(self, server: LoopbackHub, count: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.events: list[Event] = []
        last = {"ses_1": 0, "ses_2": 0}
        for seq in range(1, count + 1):
            name = self.random.choice(["ses_1", "ses_2"])
            self.events.append(event(seq, last[name], name))
            last[name] = seq
        self.cut_after: Callable[[], int] = lambda: 1_000_000
        self.wants: list[tuple[int | None, str | None]] = []
        server.on["events.subscribe"] = self.serve

    def of(self, session_id: str | None, after: int = 0) -> list[Event]:
        return [one for one in self.events if session_id in (None, one.session_id) and one.seq > after]

    async def serve(self, peer: Peer, call: Call) -> None:
        params = msgspec.json.decode(call.params)
        self.wants.append((params.get("after_seq"), params.get("log_id")))
        await peer.result(call, ack(last_seq=self.events[-1].seq))
        left = self.cut_after()
        for one in self.of(params.get("session_id"), params.get("after_seq", self.events[-1].seq)):
            if left == 0:
                peer.drop()
                return
            await peer.event(1, one)
            left -= 1
        await peer.caught_up(1, self.events[-1].seq)


async def http_server(answer: bytes) -> tuple[asyncio.Server, str]:
    """Serve these bytes to every HTTP request; return the server and its address."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/rpc"
