"""Subscribers are cursors: whatever they miss of the ring they read from the store, in order, each event once."""

import asyncio
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.clock import ManualClock
from hub.daemon import bus as bus_module
from hub.daemon.bus import Bus
from hub.daemon.subscriptions import Subscription
from hub.protocol.events import HubDraining, MessageDelta
from hub.store.database import Database


class Reader:
    """A client's end of a subscription: collects what was sent, as slowly as it is told to."""

    def __init__(self, pause_every: int = 0) -> None:
        self.seqs: list[int] = []
        self.texts: list[tuple[int, str]] = []
        self.caught_up = asyncio.Event()
        self._pause_every = pause_every

    async def send(self, frame: bytes) -> None:
        told = msgspec.json.decode(frame)
        if told["method"] == "event":
            self.seqs.append(told["params"]["event"]["seq"])
            if self._pause_every and len(self.seqs) % self._pause_every == 0:
                await asyncio.sleep(0)
        elif told["method"] == "live":
            data = told["params"]["live"]["data"]
            self.texts.append((data["offset"], data["text"]))
        else:
            self.caught_up.set()


async def store_with_bus(path: Path) -> tuple[Database, Bus]:
    database = await Database.open(path, ManualClock())
    bus = Bus(database.last_seq)
    database.on_commit = bus.publish
    return database, bus


async def write(database: Database, session_id: str, count: int = 1) -> None:
    def work(tx: object) -> None:
        for _ in range(count):
            tx.emit("hub.draining", HubDraining(deadline_s=1.0), session_id=session_id)  # type: ignore[attr-defined]

    await database.write(work)


@settings(max_examples=20, deadline=None)
@given(
    bursts=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), min_size=1, max_size=25),
    join_at=st.integers(0, 24),
    cursor=st.integers(0, 30),
    ring=st.integers(1, 8),
)
async def test_a_late_reader_gets_everything_after_its_cursor_once(
    tmp_path_factory: pytest.TempPathFactory, bursts: list[tuple[str, int]], join_at: int, cursor: int, ring: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bus_module, "RING", ring)
        database, bus = await store_with_bus(tmp_path_factory.mktemp("bus") / "hub.db")
    reader, only_a = Reader(3), Reader(2)
    pumps: list[asyncio.Task[None]] = []
    for place, (session, count) in enumerate(bursts):
        if place == min(join_at, len(bursts) - 1):
            start = min(cursor, bus.last_seq)
            for number, (who, wanted) in enumerate([(reader, None), (only_a, "a")]):
                subscription = Subscription(number, database, bus, wanted, start)
                pumps.append(asyncio.create_task(subscription.pump(who.send)))
        await write(database, session, count)
    while reader.seqs[-1:] != [bus.last_seq] and start < bus.last_seq:
        await asyncio.sleep(0.001)
    await only_a.caught_up.wait()
    await asyncio.sleep(0.005)
    for pump in pumps:
        pump.cancel()
    owner = [session for session, count in bursts for _ in range(count)]
    assert reader.seqs == list(range(start + 1, len(owner) + 1))
    assert only_a.seqs == [seq for seq in range(start + 1, len(owner) + 1) if owner[seq - 1] == "a"]
    await database.close()


async def test_who_comes_in_mid_answer_gets_its_text_so_far(tmp_path: Path) -> None:
    database, bus = await store_with_bus(tmp_path / "hub.db")

    def stream(text: str) -> None:
        offset = bus.stream("s", "r", "m", text)
        bus.live("message.delta", MessageDelta(message_id="m", offset=offset, text=text), "s", "r")

    stream("one ")
    stream("two ")
    reader = Reader()
    subscription = Subscription(1, database, bus, "s", bus.last_seq)
    subscription.want_live()
    pump = asyncio.create_task(subscription.pump(reader.send))
    await reader.caught_up.wait()
    stream("three")
    while len(reader.texts) < 2:
        await asyncio.sleep(0.001)
    pump.cancel()
    assert reader.texts == [(0, "one two "), (8, "three")]
    await database.close()
