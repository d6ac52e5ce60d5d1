"""The client against a loopback server: subscriptions, and following through cuts and restarts."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hub.client
import hub.subscription
from hub.client import HubClient, follow
from hub.errors import (
    AuthError,
    NotFoundError,
    UnavailableError,
)
from hub.protocol.cursor import Item
from hub.protocol.envelope import Call, encode_notification
from hub.protocol.events import CaughtUp, Event, Gap, Live
from hub.protocol.methods import LiveFrame
from tests.loopback import (
    Handler,
    Log,
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


# Following


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


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
async def test_a_hundred_random_cuts(server: LoopbackHub, quick: None, seed: int) -> None:
    log = Log(server, 1_000, seed)
    log.cut_after = lambda: log.random.randrange(10) if len(log.wants) <= 100 else 1_000
    async with aclosing(follow(lambda: open_client(server), session_id="ses_2", after_seq=0)) as items:
        assert await until_caught_up(items) == log.of("ses_2")
    assert len(log.wants) > 50


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
