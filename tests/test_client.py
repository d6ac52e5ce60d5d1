"""The client against a small real WebSocket server that speaks the envelope, and misbehaves when told to."""

import asyncio
import itertools
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from websockets.asyncio.server import Server, serve
from websockets.asyncio.server import ServerConnection as Socket
from websockets.exceptions import ConnectionClosed

import hub.client
import hub.subscription
from hub.client import HubClient, follow
from hub.errors import (
    AuthError,
    ConflictError,
    InternalError,
    NotFoundError,
    TurnbackError,
    UnavailableError,
    UsageError,
)
from hub.protocol.cursor import Item
from hub.protocol.discovery import DiscoveryRecord, record_path
from hub.protocol.envelope import Call, decode_call, encode_error, encode_notification, encode_result
from hub.protocol.events import CaughtUp, Event, Gap, Live, Subscribed
from hub.protocol.methods import FRAME_LIMIT, EventFrame, HelloAnswer, LiveFrame
from hub.protocol.views import Ack, SessionView

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
            async for frame in socket:
                assert isinstance(frame, str), "the protocol is made of text frames"
                await self._answer(peer, decode_call(frame))
        except ConnectionClosed:
            pass
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


@pytest.fixture
async def server() -> AsyncIterator[LoopbackHub]:
    server = LoopbackHub()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: LoopbackHub) -> AsyncIterator[HubClient]:
    async with await open_client(server) as client:
        yield client


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


# Connecting


async def test_hello_tells_who_answers(client: HubClient) -> None:
    assert client.hello == HELLO


async def test_a_wrong_token_is_refused_with_the_hubs_error(server: LoopbackHub) -> None:
    with pytest.raises(AuthError) as caught:
        await open_client(server, "wrong")
    assert caught.value.code == "bad_token"


async def test_the_record_leads_to_the_hub(server: LoopbackHub, tmp_path: Path) -> None:
    write_record(tmp_path, server.url, os.getpid())
    async with await HubClient.connect(tmp_path, kind="cli", name="test") as client:
        assert client.hello.hub_id == "hub_1"


def write_record(home: Path, url: str, pid: int) -> None:
    record = DiscoveryRecord(
        pid=pid,
        url=url,
        token=TOKEN,
        version="0",
        hub_id="hub_1",
        boot_id="boot_1",
        started_at="",
        protocol_min=1,
        protocol_max=1,
    )
    record_path(home).write_bytes(msgspec.json.encode(record))


async def no_hub_text(home: Path) -> str:
    with pytest.raises(UnavailableError) as caught:
        await HubClient.connect(home, kind="cli", name="test")
    assert (caught.value.code, caught.value.hint) == ("no_hub", "Run `hubctl start`.")
    return caught.value.message


async def test_no_record_is_no_hub(tmp_path: Path) -> None:
    assert "No hub runs" in await no_hub_text(tmp_path)


async def test_a_broken_record_is_no_hub_and_is_named(tmp_path: Path) -> None:
    record_path(tmp_path).write_bytes(b'{"pid": 1, "url":')
    assert "hub.json" in await no_hub_text(tmp_path)


async def test_a_record_of_a_dead_process_is_no_hub(server: LoopbackHub, tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, 0, -1, 1 << 80):
        write_record(tmp_path, server.url, pid)
        assert "gone" in await no_hub_text(tmp_path)
    assert server.calls == []


async def test_a_port_where_nobody_listens_is_no_hub(server: LoopbackHub, tmp_path: Path) -> None:
    await server.stop()
    write_record(tmp_path, server.url, os.getpid())
    assert "No hub listens" in await no_hub_text(tmp_path)
    await server.start()


@pytest.mark.parametrize(
    "url", ["", "http://127.0.0.1:1/rpc", "ws://127.0.0.1/rpc", "ws://[x", "ws://127.0.0.1:99999/"]
)
async def test_an_address_that_is_none_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        await HubClient.connect_to(url, TOKEN, kind="cli", name="test")
    assert caught.value.code == "bad_url"


async def http_server(answer: bytes) -> tuple[asyncio.Server, str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    return server, f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}/rpc"


@pytest.mark.parametrize(
    ("answer", "kind", "code", "text"),
    [
        (b"HTTP/1.1 403 No\r\nContent-Length: 9\r\n\r\nUse Host.", AuthError, "upgrade_refused", "Use Host."),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", UnavailableError, "not_a_hub", "HTTP 404"),
        (b"SSH-2.0-x\r\n\r\n", UnavailableError, "not_a_hub", "not a hub"),
        (b"", UnavailableError, "not_a_hub", "not a hub"),
    ],
)
async def test_what_is_no_hub_is_said(answer: bytes, kind: type[TurnbackError], code: str, text: str) -> None:
    server, url = await http_server(answer)
    async with server:
        with pytest.raises(kind) as caught:
            await HubClient.connect_to(url, TOKEN, kind="cli", name="test")
    assert caught.value.code == code
    assert text in caught.value.message


async def test_a_redirect_is_never_followed_to_another_place(server: LoopbackHub) -> None:
    seen: list[str] = []
    server.on["hub.hello"] = lambda peer, call: asyncio.sleep(0, seen.append(call.method))
    answer = f"HTTP/1.1 302 Found\r\nLocation: {server.url}\r\nContent-Length: 0\r\n\r\n"
    front, url = await http_server(answer.encode())
    async with front:
        with pytest.raises(UnavailableError) as caught:
            await HubClient.connect_to(url, TOKEN, kind="cli", name="test")
    assert caught.value.code == "not_a_hub"
    assert seen == []


async def test_no_proxy_is_taken_from_the_environment(server: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "ws_proxy", "socks_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    async with await open_client(server) as client:
        assert client.hello.hub_id == "hub_1"


async def test_a_hub_that_closes_during_hello_is_a_lost_connection(server: LoopbackHub) -> None:
    async def close(peer: Peer, call: Call) -> None:
        await peer.socket.close(4001, "token rotated")

    server.on["hub.hello"] = close
    with pytest.raises(UnavailableError) as caught:
        await open_client(server)
    assert caught.value.code == "connection_lost"
    assert "token rotated" in caught.value.message


# Calls


async def test_a_result_has_the_tables_type(server: LoopbackHub, client: HubClient) -> None:
    server.on["session.list"] = answering([session("ses_1"), session("ses_2")])
    assert await client.call("session.list", limit=2) == [session("ses_1"), session("ses_2")]
    assert server.params() == {"limit": 2}


async def test_fields_of_a_newer_hub_are_overlooked(server: LoopbackHub, client: HubClient) -> None:
    server.on["run.cancel"] = answering({"id": "run_1", "state": "running", "mood": "new"})
    assert await client.call("run.cancel", run_id="run_1") == Ack(id="run_1", state="running")


async def test_a_mutation_gets_a_fresh_key_unless_one_is_given(server: LoopbackHub, client: HubClient) -> None:
    server.on["run.cancel"] = answering(Ack(id="r", state="s"))
    for given in ({}, {"idempotency_key": None}, {"idempotency_key": "my-own-key"}):
        await client.call("run.cancel", run_id="r", **given)
    keys = [server.params(number)["idempotency_key"] for number in range(3)]
    assert len(set(keys)) == 3
    assert keys[2] == "my-own-key"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session.get", {}),
        ("session.get", {"session_id": 7}),
        ("session.get", {"session_id": "s", "extra": 1}),
        ("session.list", {"limit": 0}),
        ("prompt.submit", {"text": "x", "run": {"agent_mode": "fly"}}),
        ("session.get", {"session_id": Path("s") / "t", "x": object()}),
    ],
)
async def test_params_that_do_not_fit_are_never_sent(
    server: LoopbackHub, client: HubClient, method: str, params: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        await client.call(method, **params)
    assert caught.value.code == "invalid_params"
    assert method in caught.value.message
    assert server.calls == []


async def test_an_unknown_method_and_a_bare_subscribe_are_refused(client: HubClient) -> None:
    with pytest.raises(NotFoundError):
        await client.call("session.destroy")
    with pytest.raises(UsageError):
        await client.call("events.subscribe")


async def test_a_call_larger_than_a_frame_is_not_sent(server: LoopbackHub, client: HubClient) -> None:
    with pytest.raises(UsageError) as caught:
        await client.call("prompt.submit", text="\N{SNOWMAN}" * 399_999, session_id="s")
    assert caught.value.code == "frame_too_large"
    assert server.calls == []


async def test_the_hubs_error_arrives_whole(server: LoopbackHub, client: HubClient) -> None:
    sent = ConflictError("Taken.", code="taken", hint="Wait.", retryable=True, retry_after_s=1.5)
    server.on["session.get"] = lambda peer, call: peer.error(call, sent)
    with pytest.raises(ConflictError) as caught:
        await client.call("session.get", session_id="s")
    got = caught.value
    assert (got.message, got.code, got.hint, got.retryable, got.retry_after_s) == (
        "Taken.",
        "taken",
        "Wait.",
        True,
        1.5,
    )


async def test_answers_find_their_calls_in_any_order(server: LoopbackHub, client: HubClient) -> None:
    held: list[Call] = []

    async def shuffle(peer: Peer, call: Call) -> None:
        held.append(call)
        if len(held) == 20:
            random.Random(7).shuffle(held)
            for one in held:
                await peer.result(one, session(msgspec.json.decode(one.params)["session_id"]))

    server.on["session.get"] = shuffle
    names = [f"ses_{number}" for number in range(20)]
    got = await asyncio.gather(*(client.call("session.get", session_id=name) for name in names))
    assert [one.id for one in got] == names


async def test_an_answer_of_the_wrong_shape_fails_its_call_only(server: LoopbackHub, client: HubClient) -> None:
    server.on["session.get"] = answering({"id": 7}, session())
    with pytest.raises(InternalError) as caught:
        await client.call("session.get", session_id="s")
    assert caught.value.code == "malformed_reply"
    assert await client.call("session.get", session_id="s") == session()


async def test_an_error_that_names_no_call_reaches_whoever_waits(server: LoopbackHub, client: HubClient) -> None:
    async def unattributed(peer: Peer, call: Call) -> None:
        await peer.send(encode_error(None, UsageError("Unreadable.", code="parse_error")))

    server.on["session.get"] = unattributed
    with pytest.raises(UsageError) as caught:
        await client.call("session.get", session_id="s")
    assert caught.value.code == "parse_error"
    server.on["session.get"] = answering(session())
    assert await client.call("session.get", session_id="s") == session()


@pytest.mark.parametrize(
    "frame",
    [
        b"not json",
        b"[1]",
        b'{"jsonrpc":"1.0","id":1,"result":1}',
        b'{"jsonrpc":"2.0","method":"event","params":{"subscription":"one"}}',
        b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 200_000 + b"}",
        b'{"jsonrpc":"2.0","method":"live","params":[]}',
        b'"' + b"x" * (FRAME_LIMIT + 1) + b'"',
    ],
)
async def test_an_unreadable_frame_ends_the_connection_with_a_reason(
    server: LoopbackHub, client: HubClient, frame: bytes
) -> None:
    server.on["session.get"] = lambda peer, call: peer.send(frame)
    with pytest.raises(InternalError) as caught:
        await client.call("session.get", session_id="s")
    assert caught.value.code == "malformed_frame"
    with pytest.raises(InternalError):
        await client.call("session.get", session_id="s")


async def test_unknown_notices_and_late_answers_are_overlooked(server: LoopbackHub, client: HubClient) -> None:
    async def chatty(peer: Peer, call: Call) -> None:
        await peer.send(encode_notification("weather.changed", {"sun": True}))
        await peer.send(encode_result(999_999, 1))
        await peer.send(encode_result("word", 1))
        await peer.event(77, event(1, 0))
        await peer.result(call, session())

    server.on["session.get"] = chatty
    assert await client.call("session.get", session_id="s") == session()


async def test_a_cut_gives_every_waiting_call_its_own_error(server: LoopbackHub, client: HubClient) -> None:
    server.on["session.get"] = silent
    calls = [asyncio.create_task(client.call("session.get", session_id="s")) for _ in range(5)]
    while len(server.calls) < 5:
        await asyncio.sleep(0.005)
    server.peers[0].drop()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert {(type(error), getattr(error, "code", None)) for error in errors} == {(UnavailableError, "connection_lost")}
    assert all(getattr(error, "retryable", False) for error in errors)
    assert len({id(error) for error in errors}) == 5
    with pytest.raises(UnavailableError):
        await client.call("session.get", session_id="s")


async def test_a_silent_hub_is_left_after_the_time_limit(
    server: LoopbackHub, client: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.client, "GRACE_S", -29.9)
    server.on["run.cancel"] = silent
    with pytest.raises(UnavailableError) as caught:
        await client.call("run.cancel", run_id="r")
    assert (caught.value.code, caught.value.retryable) == ("timed_out", True)
    assert "idempotency key" in caught.value.message


async def test_closing_ends_what_waits(server: LoopbackHub) -> None:
    client = await open_client(server)
    server.on["session.get"] = silent
    call = asyncio.create_task(client.call("session.get", session_id="s"))
    while not server.calls:
        await asyncio.sleep(0.005)
    await client.close()
    await client.close()
    with pytest.raises(UnavailableError) as caught:
        await call
    assert caught.value.code == "connection_lost"


# Subscriptions


def replaying(*items: Event, number: int = 1, before: int = 0) -> Handler:
    """Answer a subscription with these events; the first `before` of them are sent ahead of the answer."""

    async def handler(peer: Peer, call: Call) -> None:
        for one in items[:before]:
            await peer.event(number, one)
        await peer.result(call, ack(number, last_seq=len(items)))
        for one in items[before:]:
            await peer.event(number, one)
        await peer.caught_up(number, len(items))

    return handler


@pytest.mark.parametrize("before", [0, 1, 3])
async def test_items_may_come_before_the_answer(server: LoopbackHub, client: HubClient, before: int) -> None:
    events = [event(seq, seq - 1) for seq in (1, 2, 3)]
    server.on["events.subscribe"] = replaying(*events, before=before)
    async with client.subscribe(session_id="ses_1", after_seq=0) as stream:
        assert stream.ack == ack(last_seq=3)
        assert await take(stream, 4) == [*events, CaughtUp(subscription=1, seq=3)]


async def test_every_kind_of_item_arrives(server: LoopbackHub, client: HubClient) -> None:
    live = Live("model.notice", "ses_1", None, msgspec.Raw(b'{"text":"x"}'))
    gap = Gap(subscription=1, log_id="log_1", reason="old", seq=5)

    async def handler(peer: Peer, call: Call) -> None:
        await peer.result(call, ack())
        await peer.send(encode_notification("events.gap", gap))
        await peer.send(encode_notification("live", LiveFrame(1, live)))

    server.on["events.subscribe"] = handler
    async with client.subscribe(live=True) as stream:
        assert await take(stream, 2) == [gap, live]


async def test_streams_are_kept_apart_and_end_with_their_context(server: LoopbackHub, client: HubClient) -> None:
    numbers = itertools.count(1)

    async def handler(peer: Peer, call: Call) -> None:
        number = next(numbers)
        await peer.result(call, ack(number))
        await peer.event(number, event(number, 0))

    server.on["events.subscribe"] = handler
    server.on["session.get"] = answering(session())
    async with client.subscribe() as one:
        async with client.subscribe() as two:
            assert [await anext(two), await anext(one)] == [event(2, 0), event(1, 0)]
        await server.peers[0].event(2, event(3, 2))
        await client.call("session.get", session_id="s")
        with pytest.raises(StopAsyncIteration):
            await anext(two)
    await client.call("session.get", session_id="s")
    ended = [msgspec.json.decode(call.params) for call in server.calls if call.method == "events.unsubscribe"]
    assert ended == [{"subscription": 2}, {"subscription": 1}]


async def test_a_refused_subscription_raises(server: LoopbackHub, client: HubClient) -> None:
    server.on["events.subscribe"] = lambda peer, call: peer.error(call, NotFoundError("No.", code="unknown_session"))
    with pytest.raises(NotFoundError):
        async with client.subscribe(session_id="s"):
            pass


async def test_what_came_before_a_cut_is_handed_on_first(server: LoopbackHub, client: HubClient) -> None:
    events = [event(seq, seq - 1) for seq in range(1, 6)]

    async def handler(peer: Peer, call: Call) -> None:
        await replaying(*events)(peer, call)
        await peer.socket.close(1001, "restart")

    server.on["events.subscribe"] = handler
    got: list[Item] = []
    with pytest.raises(UnavailableError) as caught:
        async with client.subscribe(after_seq=0) as stream:
            async for item in stream:
                got.append(item)
    assert got[:-1] == events
    assert caught.value.code == "connection_lost"
    assert "restart" in caught.value.message


async def flood(peer: Peer, call: Call, count: int, sent: list[int]) -> None:
    await peer.result(call, ack())
    for seq in range(1, count + 1):
        await peer.event(1, event(seq, seq - 1))
        sent[0] = seq


async def test_a_slow_consumer_holds_the_hub_back(server: LoopbackHub, client: HubClient) -> None:
    sent, count = [0], 40_000
    floods: list[asyncio.Task[None]] = []

    async def handler(peer: Peer, call: Call) -> None:
        floods.append(asyncio.create_task(flood(peer, call, count, sent)))

    server.on["events.subscribe"] = handler
    async with client.subscribe() as stream:
        before = -1
        while before != sent[0]:
            before = sent[0]
            await asyncio.sleep(0.1)
        assert before < count, "the server could send everything although nobody read"
        got = [item.seq for item in await take(stream, count) if isinstance(item, Event)]
    assert got == list(range(1, count + 1))
    await asyncio.gather(*floods)


async def test_a_call_is_answered_although_its_stream_is_full(server: LoopbackHub, client: HubClient) -> None:
    count = hub.subscription.BUFFER_ITEMS * 4

    async def handler(peer: Peer, call: Call) -> None:
        await flood(peer, call, count, [0])

    server.on["events.subscribe"] = handler
    server.on["session.get"] = answering(session())
    async with client.subscribe() as stream:
        first = await anext(stream)
        assert await client.call("session.get", session_id="s") == session()
        rest = await take(stream, count - 1)
    assert [item.seq for item in (first, *rest) if isinstance(item, Event)] == list(range(1, count + 1))


async def test_a_stream_that_overruns_ends_and_the_connection_goes_on(
    server: LoopbackHub, client: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.subscription, "OVERRUN_ITEMS", 1_000)

    async def handler(peer: Peer, call: Call) -> None:
        await flood(peer, call, 3_000, [0])

    server.on["events.subscribe"] = handler
    server.on["session.get"] = answering(session())
    async with client.subscribe() as stream:
        assert await client.call("session.get", session_id="s") == session()
        await take(stream, 1_000)
        with pytest.raises(UnavailableError) as caught:
            await anext(stream)
    assert (caught.value.code, caught.value.retryable) == ("slow_reader", True)


async def test_a_full_stream_does_not_hold_up_closing(server: LoopbackHub) -> None:
    async def handler(peer: Peer, call: Call) -> None:
        await flood(peer, call, 5_000, [0])

    server.on["events.subscribe"] = handler
    client = await open_client(server)
    async with client.subscribe() as stream:
        await anext(stream)
        await asyncio.sleep(0.05)
        await client.close()
    assert client._socket.close_code == 1000


async def test_a_subscribe_given_up_is_ended_when_its_answer_comes(server: LoopbackHub, client: HubClient) -> None:
    held: list[Call] = []
    server.on["events.subscribe"] = lambda peer, call: asyncio.sleep(0, held.append(call))
    server.on["session.get"] = answering(session())

    async def subscribe() -> None:
        async with client.subscribe():
            pass

    task = asyncio.create_task(subscribe())
    while not held:
        await asyncio.sleep(0.005)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await server.peers[0].event(9, event(1, 0))
    await server.peers[0].result(held[0], ack(9))
    await client.call("session.get", session_id="s")
    await client.call("session.get", session_id="s")
    assert [msgspec.json.decode(c.params) for c in server.calls if c.method == "events.unsubscribe"] == [
        {"subscription": 9}
    ]


# Following


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


async def until_caught_up(items: AsyncIterator[Item]) -> list[Event]:
    got: list[Event] = []
    async for item in items:
        if isinstance(item, CaughtUp):
            break
        assert isinstance(item, Event)
        got.append(item)
    return got


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.protocol.cursor.BACKOFF_S", (0.001, 0.01))


@pytest.mark.parametrize("session_id", [None, "ses_1"])
@pytest.mark.parametrize("seed", range(3))
async def test_random_cuts_leave_no_hole_and_no_repeat(
    server: LoopbackHub, quick: None, session_id: str | None, seed: int
) -> None:
    log = Log(server, 300, seed)
    log.cut_after = lambda: log.random.randrange(25)
    async with aclosing(follow(lambda: open_client(server), session_id=session_id, after_seq=7)) as items:
        assert await until_caught_up(items) == log.of(session_id, after=7)
    assert len(log.wants) > 5


async def test_following_goes_through_a_restart_of_the_hub(server: LoopbackHub, quick: None) -> None:
    log = Log(server, 10, 1)
    async with aclosing(follow(lambda: open_client(server), after_seq=0)) as items:
        assert len(await until_caught_up_open(items)) == 10
        await server.stop()
        log.events += [event(11, 0, "ses_3"), event(12, 11, "ses_3")]
        waiting = asyncio.create_task(anext(items))
        await asyncio.sleep(0.05)
        await server.start()
        assert await waiting == log.events[10]
        assert await anext(items) == log.events[11]
    assert log.wants[-1] == (10, "log_1")


async def until_caught_up_open(items: AsyncIterator[Item]) -> list[Item]:
    """Like until_caught_up, and leaves the iterator open for more."""
    got: list[Item] = []
    while not isinstance(item := await anext(items), CaughtUp):
        got.append(item)
    return got


async def test_from_now_on_means_from_the_first_answer_on(server: LoopbackHub, quick: None) -> None:
    log = Log(server, 10, 1)
    async with aclosing(follow(lambda: open_client(server), after_seq=None)) as items:
        assert await anext(items) == CaughtUp(subscription=1, seq=10)
        log.events.append(event(11, 0, "ses_3"))
        server.peers[0].drop()
        assert await anext(items) == log.events[10]
    assert log.wants == [(None, None), (10, "log_1")]


async def test_a_hole_in_a_session_is_asked_for_again(server: LoopbackHub, quick: None) -> None:
    log = Log(server, 40, 3)
    whole = log.of("ses_1")
    lost = whole[len(whole) // 2]
    log.events.remove(lost)

    async def serve(peer: Peer, call: Call) -> None:
        await log.serve(peer, call)
        if lost not in log.events:
            log.events = sorted([*log.events, lost], key=lambda one: one.seq)

    server.on["events.subscribe"] = serve
    async with aclosing(follow(lambda: open_client(server), session_id="ses_1", after_seq=0)) as items:
        assert await until_caught_up(items) == whole
    assert [want for want, _ in log.wants] == [0, lost.prev_seq]


async def test_a_hole_that_stays_is_told_as_a_gap(server: LoopbackHub, quick: None) -> None:
    log = Log(server, 0, 3)
    log.events = [event(1, 0), event(9, 5), event(10, 9)]
    async with aclosing(follow(lambda: open_client(server), session_id="ses_1", after_seq=0)) as items:
        first, gap, *rest = await until_caught_up_open(items)
    assert [first, *rest] == log.events
    assert isinstance(gap, Gap)
    assert gap.seq == 5


async def test_a_gap_moves_the_cursor_to_the_new_log(server: LoopbackHub, quick: None) -> None:
    wants: list[dict[str, Any]] = []

    async def serve(peer: Peer, call: Call) -> None:
        wants.append(msgspec.json.decode(call.params))
        await peer.result(call, ack(last_seq=3, log_id="log_2" if len(wants) > 1 else "log_1"))
        if len(wants) == 2:
            gap = Gap(subscription=1, log_id="log_2", reason="another log", seq=3)
            await peer.send(encode_notification("events.gap", gap))
            await peer.event(1, event(4, 2))
        await peer.caught_up(1, 4 if len(wants) > 1 else 50)

    server.on["events.subscribe"] = serve
    async with aclosing(follow(lambda: open_client(server), session_id="ses_1", after_seq=50)) as items:
        await anext(items)
        server.peers[0].drop()
        gap, after = await take(items, 2)
        assert isinstance(gap, Gap)
        assert after == event(4, 2)
        await anext(items)
        server.peers[0].drop()
        await anext(items)
    assert [(want["after_seq"], want.get("log_id")) for want in wants] == [(50, None), (50, "log_1"), (4, "log_2")]


async def test_patience_ends_with_the_last_reason(tmp_path: Path, quick: None) -> None:
    items = follow(lambda: HubClient.connect(tmp_path, kind="cli", name="t"), after_seq=0, patience_s=0.05)
    with pytest.raises(UnavailableError) as caught:
        await anext(items)
    assert caught.value.code == "no_hub"


async def test_what_cannot_get_better_is_raised_at_once(server: LoopbackHub) -> None:
    tries: list[int] = []

    async def connect() -> HubClient:
        tries.append(1)
        return await open_client(server, "wrong")

    with pytest.raises(AuthError):
        await anext(follow(connect, after_seq=0))
    assert tries == [1]


def test_importing_the_client_stays_light() -> None:
    heavy = (
        "sqlalchemy",
        "litellm",
        "alembic",
        "git",
        "slack_bolt",
        "telegram",
        "apscheduler",
        "rich",
        "typer",
        "psutil",
    )
    code = f"import sys, hub.client; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
