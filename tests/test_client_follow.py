"""Following against a loopback server: through cuts, restarts, holes and gaps."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hub.client import HubClient, follow
from hub.errors import (
    AuthError,
    UnavailableError,
)
from hub.protocol.cursor import Item
from hub.protocol.envelope import Call, encode_notification
from hub.protocol.events import Event
from hub.protocol.subscribing import CaughtUp, Gap
from tests.loopback import (
    Log,
    LoopbackHub,
    Peer,
    ack,
    event,
    open_client,
    take,
)


@pytest.fixture
async def server() -> AsyncIterator[LoopbackHub]:
    server = LoopbackHub()
    await server.start()
    yield server
    await server.stop()


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


async def test_patience_is_renewed_by_every_return(server: LoopbackHub, quick: None) -> None:
    log = Log(server, 5, 1)
    async with aclosing(follow(lambda: open_client(server), after_seq=0, patience_s=0.2)) as items:
        for _ in range(3):
            await until_caught_up_open(items)
            await asyncio.sleep(0.15)
            server.peers[0].drop()
        await until_caught_up_open(items)
    assert len(log.wants) == 4


async def test_what_cannot_get_better_is_raised_at_once(server: LoopbackHub) -> None:
    tries: list[int] = []

    async def connect() -> HubClient:
        tries.append(1)
        return await open_client(server, "wrong")

    with pytest.raises(AuthError):
        await anext(follow(connect, after_seq=0))
    assert tries == [1]
