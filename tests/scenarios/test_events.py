"""Everybody sees the same: two clients together, a third by replay, wherever it comes in and however often cut."""

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hub.client import HubClient, follow
from hub.protocol.events import Event, Live
from hub.protocol.subscribing import CaughtUp, Gap
from tests.hubs import HubProcess, ended, make_repo, scenario, submit

RUN = "turns:\n" + "\n".join(
    f"  - {{text: 'turn {n}', chunks: 5, tool_calls: [{{name: read_files, arguments: {{paths: [a.txt]}}}}]}}"
    for n in range(15)
)
SCENARIO = f"{RUN}\n  - text: 'Done.'\n"


def shape(events: list[Event]) -> list[tuple[int, int, str, bytes]]:
    return [(event.seq, event.prev_seq, event.type, bytes(event.data)) for event in events]


async def test_two_together_and_a_third_by_replay_see_the_same(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", SCENARIO)
    hub = await hubs().start()
    async with await hub.client("a") as one, await hub.client("b") as two, await hub.client("c") as late:
        session = await one.call("session.create", workspace=str(repo))
        watching = [asyncio.create_task(ended(client, session.id)) for client in (one, two)]
        await asyncio.sleep(0.05)
        await one.call("prompt.submit", text="go", session_id=session.id, run={"model": model})
        first, second = await asyncio.gather(*watching)
        assert shape(first) == shape(second)
        assert len(first) > 60
        assert first[0].prev_seq == 0
        assert all(now.prev_seq == before.seq for before, now in itertools.pairwise(first))
        cut = random.Random(7).randrange(len(first) - 1)
        third = await ended(late, session.id, after=first[cut].seq)
        assert shape(first[: cut + 1] + third) == shape(first)


async def test_a_follower_that_is_cut_at_random_misses_and_repeats_nothing(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", SCENARIO)
    hub = await hubs().start()
    chance = random.Random(11)
    open_clients: list[HubClient] = []

    async def connect() -> HubClient:
        open_clients.append(await hub.client("follower"))
        return open_clients[-1]

    async with await hub.client() as client:
        session = await client.call("session.create", workspace=str(repo))
        seen: list[Event] = []

        async def read() -> None:
            async with contextlib.aclosing(follow(connect, session_id=session.id, after_seq=0)) as stream:
                async for item in stream:
                    assert not isinstance(item, Gap)
                    if isinstance(item, Event):
                        seen.append(item)
                        if chance.random() < 0.1:
                            await open_clients[-1].close()
                        if item.type == "run.completed":
                            return

        reading = asyncio.create_task(read())
        await client.call("prompt.submit", text="go", session_id=session.id, run={"model": model})
        whole = await ended(client, session.id)
        await asyncio.wait_for(reading, 40)
        assert shape(seen) == shape(whole)
        assert len(open_clients) > 3


async def test_streamed_text_is_live_only_and_adds_up(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    text = "the quick brown fox " * 20
    model = scenario(tmp_path / "s.yaml", f"turns: [{{text: '{text}', chunks: 40, delay_s: 1}}]")
    hub = await hubs().start()
    async with await hub.client("watcher") as watcher, await hub.client() as client:
        accepted = await submit(client, repo, model)
        shown: dict[str, str] = {}
        async with watcher.subscribe(session_id=accepted.session_id, after_seq=0, live=True) as stream:
            async for item in stream:
                if isinstance(item, Live) and item.type == "message.delta":
                    data = msgspec.json.decode(item.data)
                    known = shown.get(data["message_id"], "")
                    assert data["offset"] <= len(known)
                    shown[data["message_id"]] = known[: data["offset"]] + data["text"]
                if isinstance(item, Event) and item.type == "run.completed":
                    break
        events = await ended(client, accepted.session_id)
        assert list(shown.values()) == [text]
        assert not [event for event in events if event.type == "message.delta"]


async def test_a_cursor_of_another_log_or_ahead_of_it_gets_a_gap(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    hub = await hubs().start()
    async with await hub.client() as client:
        for cursor in ({"after_seq": 0, "log_id": "log_other"}, {"after_seq": 10_000}):
            async with client.subscribe(**cursor) as stream:
                first = await anext(stream)
                assert isinstance(first, Gap)
                assert first.log_id == client.hello.log_id
                assert isinstance(await anext(stream), CaughtUp)


async def test_two_hubs_never_share_a_home(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    hub = await hubs().start()
    assert hub.process is not None
    other = HubProcess(hub.home)
    with pytest.raises(RuntimeError, match="already runs"):
        await other.start()
    async with await hub.client() as client:
        assert (await client.call("hub.status")).pid == hub.process.pid
    other.kill()
    assert (hub.home / "hub.json").exists()
