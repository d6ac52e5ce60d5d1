"""The client against a loopback server: subscriptions."""

import asyncio
import itertools
from collections.abc import AsyncIterator

import msgspec
import pytest

import hub.client
import hub.subscription
from hub.client import HubClient
from hub.errors import (
    NotFoundError,
    UnavailableError,
)
from hub.protocol.envelope import Call, encode_notification
from hub.protocol.events import Event, Live
from hub.protocol.methods import LiveFrame
from hub.protocol.subscribing import CaughtUp, Gap
from tests.loopback import (
    Handler,
    LoopbackHub,
    Peer,
    ack,
    answering,
    event,
    open_client,
    session,
    take,
)


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


async def test_strays_are_not_taken_for_the_beginning_of_a_later_stream(server: LoopbackHub, client: HubClient) -> None:
    async def with_a_stray(peer: Peer, call: Call) -> None:
        await peer.event(5, event(99, 0))
        await replaying(event(1, 0))(peer, call)
        server.on["events.subscribe"] = replaying(event(1, 0), number=5)

    server.on["events.subscribe"] = with_a_stray
    async with client.subscribe() as one, client.subscribe() as two:
        assert two.ack.subscription == 5
        assert [await anext(one), await anext(two)] == [event(1, 0), event(1, 0)]


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
    async with client.subscribe(after_seq=0) as stream:
        assert (await take(stream, 6))[:-1] == events
        with pytest.raises(UnavailableError) as caught:
            await anext(stream)
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
        while not stream.full:
            await asyncio.sleep(0.005)
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


async def test_a_stream_handed_over_while_its_caller_is_cancelled_is_ended(
    server: LoopbackHub, client: HubClient
) -> None:
    server.on["events.subscribe"] = replaying(event(1, 0))
    server.on["session.get"] = answering(session())

    async def subscribe() -> None:
        async with client.subscribe():
            await asyncio.sleep(60)

    task = asyncio.create_task(subscribe())
    while 1 not in client._streams:
        await asyncio.sleep(0)
    task.cancel()  # before the task has run again, or just after: either way the hub must be told
    await asyncio.gather(task, return_exceptions=True)
    await client.call("session.get", session_id="s")
    assert [call.method for call in server.calls] == ["events.subscribe", "events.unsubscribe", "session.get"]
    assert client._streams == {}
