"""kill -9 of the hub, wherever it is: the same session, the same run to its end, every command once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hub.client import HubClient
from hub.protocol.events import Event
from tests.hubs import HubProcess, collect, ended, lines, make_repo, scenario, submit


def data_of(events: list[Event], type: str) -> list[dict]:
    return [msgspec.json.decode(event.data) for event in events if event.type == type]


async def wait_for(path: Path) -> None:
    async with asyncio.timeout(20):
        while not path.exists():
            await asyncio.sleep(0.01)


async def carries_on(client: HubClient, session_id: str, run_id: str) -> list[Event]:
    """The session is there under its id, and the same run ends well."""
    assert [session.id for session in await client.call("session.list")] == [session_id]
    events = await ended(client, session_id)
    assert (events[-1].type, events[-1].run_id) == ("run.completed", run_id)
    assert [event.seq for event in events if event.type == "run.started"] != []
    seqs = [event.seq for event in events]
    assert seqs == sorted(set(seqs))
    return events


SLOW_MODEL = """
turns:
  - tool_calls: [{name: run_commands, arguments: {commands: ["echo first >> count"]}}]
  - text: a long answer that streams for a while
    chunks: 20
    delay_s: 2
"""


async def test_killed_during_a_model_call(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", SLOW_MODEL)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"])
        events = await collect(client, accepted.session_id, {"tool_call.ended"})
        await asyncio.sleep(0.5)
    hub.kill()
    await hub.start()
    async with await hub.client() as client:
        told = await carries_on(client, accepted.session_id, events[-1].run_id or "")
        assert data_of(told, "message.discarded")
        assert lines(repo / "count") == ["first"]
        again = await client.call("prompt.submit", text="more", session_id=accepted.session_id)
        assert again.mode == "follow_up"


IN_A_TOOL = """
turns:
  - tool_calls:
      - {name: run_commands, arguments: {commands: ["echo first >> count"]}}
      - {name: run_commands, arguments: {commands: ["echo second >> count; touch began; sleep 60; echo late >> count"]}}
      - {name: run_commands, arguments: {commands: ["echo third >> count"]}}
  - text: I see.
"""


async def test_killed_in_a_tool(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", IN_A_TOOL)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"])
        await wait_for(repo / "began")
        (run,) = await client.call("run.list", session_id=accepted.session_id)
    await hub.restart()
    async with await hub.client() as client:
        events = await carries_on(client, accepted.session_id, run.id)
        assert lines(repo / "count") == ["first", "second", "third"]
        assert [data["state"] for data in data_of(events, "tool_call.ended")] == ["completed", "unknown", "completed"]
        told = await client.call("session.messages", session_id=accepted.session_id)
        results = [part for message in told.messages for part in message.results]
        assert "outcome is unknown" in results[1].text
        assert (await client.call("hub.status")).runs_active == 0


ASKS = """
turns:
  - tool_calls: [{name: run_commands, arguments: {commands: ["echo once >> count"]}}]
  - text: Done.
"""


async def test_killed_while_an_approval_waits(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", ASKS)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        events = await collect(client, accepted.session_id, {"run.waiting"})
        (asked,) = await client.call("approval.list")
    for _ in range(2):
        await hub.restart()
    async with await hub.client() as client:
        (still,) = await client.call("approval.list")
        assert (still.id, still.arguments_hash) == (asked.id, asked.arguments_hash)
        assert (await client.call("session.get", session_id=accepted.session_id)).state == "waiting"
        await client.call("approval.answer", approval_id=asked.id, decision="allow_once")
        await carries_on(client, accepted.session_id, events[-1].run_id or "")
    assert lines(repo / "count") == ["once"]


async def test_a_run_that_takes_the_hub_down_three_times_is_failed(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    model = scenario(tmp_path / "s.yaml", "turns: [{text: hello, delay_s: 60}]")
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        await collect(client, accepted.session_id, {"run.started"})
    for _ in range(2):
        await hub.restart()
        async with await hub.client() as client:
            while (await client.call("run.list", session_id=accepted.session_id))[0].state != "running":
                await asyncio.sleep(0.02)
    await hub.restart()
    async with await hub.client() as client:
        events = await ended(client, accepted.session_id)
        assert data_of(events, "run.failed")[0]["stop_reason"] == "crash_loop"
        assert len(data_of(events, "message.discarded")) == 2


@pytest.mark.parametrize("kills", [2])
async def test_killed_between_at_random(hubs: Callable[..., HubProcess], tmp_path: Path, kills: int) -> None:
    calls = "\n".join(
        f"  - tool_calls: [{{name: run_commands, arguments: {{commands: ['echo {n} >> count']}}}}]" for n in range(30)
    )
    repo = make_repo(tmp_path / "repo")
    model = scenario(tmp_path / "s.yaml", f"turns:\n{calls}\n  - text: Done.\n")
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"])
        queued = await client.call(
            "prompt.submit",
            text="next",
            session_id=accepted.session_id,
            mode="follow_up",
            run={"preset": "yolo", "limits": {"max_turns": 1}},
        )
        events = await collect(client, accepted.session_id, {"run.started"})
    for kill in range(kills):
        while len(lines(repo / "count")) < 3 * (kill + 1):
            await asyncio.sleep(0.003)
        await hub.restart()
    async with await hub.client() as client:
        told = await ended(client, accepted.session_id)
        assert told[-1].run_id == events[-1].run_id
        states = [data["state"] for data in data_of(told, "tool_call.ended")]
        done = lines(repo / "count")
        assert len(set(done)) == len(done), "a command ran twice"
        assert done == sorted(done, key=int)
        assert states.count("completed") <= len(done)
        second = await ended(client, accepted.session_id, after=told[-1].seq)
        assert data_of(second, "prompt.taken")[0]["prompt_id"] == queued.prompt_id


async def test_queued_prompts_survive_and_run_in_order(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    slow = scenario(tmp_path / "slow.yaml", "turns: [{text: hello, delay_s: 1}]")
    quick = scenario(tmp_path / "quick.yaml", "turns: [{text: hello}]")
    hub = await hubs().start()
    async with await hub.client() as client:
        first = await submit(client, repo, slow, "number 0")
        await collect(client, first.session_id, {"run.started"})
        for number in range(1, 6):
            await client.call(
                "prompt.submit",
                text=f"number {number}",
                session_id=first.session_id,
                mode="follow_up",
                run={"model": quick},
            )
    await hub.restart()
    async with await hub.client() as client:
        seen: list[Event] = []
        while sum(event.type == "run.completed" for event in seen) < 6:
            seen += await ended(client, first.session_id, after=seen[-1].seq if seen else 0)
        told = await client.call("session.messages", session_id=first.session_id)
        asked = [message.text for message in told.messages if message.role == "user"]
        assert asked == [f"number {number}" for number in range(6)]


async def test_a_clean_stop_waits_for_the_run_and_withdraws_the_record(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    model = scenario(tmp_path / "s.yaml", "turns: [{text: hello, delay_s: 1}]")
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        await collect(client, accepted.session_id, {"run.started"})
    assert hub.stop() == 0
    assert not (hub.home / "hub.json").exists()
    await hub.start()
    async with await hub.client() as client:
        assert (await client.call("run.list"))[0].state == "completed"


async def test_a_second_signal_stops_at_once_and_the_run_goes_on_later(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", IN_A_TOOL)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"])
        await wait_for(repo / "began")
        (run,) = await client.call("run.list", session_id=accepted.session_id)
    assert hub.process is not None
    hub.process.terminate()
    await asyncio.sleep(0.3)
    assert hub.stop() == 0
    await hub.start()
    async with await hub.client() as client:
        await carries_on(client, accepted.session_id, run.id)
        assert lines(repo / "count") == ["first", "second", "third"]
