"""Captures around a run's waits and within it: who changed what, the way back to any step, and what hooks save."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hub.client import HubClient
from hub.protocol.events import Event
from tests.hubs import HubProcess, collect, ended, make_repo, scenario, submit

EDITS: dict[str, Any] = {"auto_approve": ["edits"]}
ALL: dict[str, Any] = {"auto_approve": ["all"]}

WRITE_ASK_WRITE = """
turns:
  - tool_calls:
      - {name: editor, arguments: {path: mine.txt, new_text: "first\\n"}}
      - {name: run_commands, arguments: {commands: ["echo two > asked.txt"]}}
  - text: Done.
"""
ASK = """
turns:
  - tool_calls: [{name: run_commands, arguments: {commands: ["echo x > asked.txt"]}}]
  - text: Done.
"""
THREE_BATCHES = """
turns:
  - text: One.
    tool_calls: [{name: editor, arguments: {path: a.txt, old_text: one, new_text: two}}]
  - text: Two.
    tool_calls: [{name: editor, arguments: {path: a.txt, old_text: two, new_text: three}}]
  - text: Three.
    tool_calls: [{name: editor, arguments: {path: b.txt, new_text: "b\\n"}}]
  - text: Done.
"""
EVERY = ["before", "left", "back", "step", "after", "preimage"]


def data_of(events: list[Event], type: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(event.data) for event in events if event.type == type]


async def taken(client: HubClient, session_id: str, *kinds: str) -> list[Any]:
    """Return a session's captures, the oldest first."""
    found = await client.call("checkpoint.list", session_id=session_id, kinds=list(kinds or EVERY))
    return list(reversed(found))


async def refs(client: HubClient, session_id: str) -> list[tuple[str, str]]:
    return [(view.kind, view.ref.partition("/")[2]) for view in await taken(client, session_id)]


async def answer(client: HubClient, session_id: str, decision: str = "allow_once") -> None:
    (asked,) = await client.call("approval.list", session_id=session_id)
    await client.call("approval.answer", approval_id=asked.id, decision=decision)


async def run_of(client: HubClient, session_id: str) -> Any:
    return (await client.call("run.list", session_id=session_id))[0]


async def waiting(client: HubClient, session_id: str) -> None:
    while (await run_of(client, session_id)).state != "waiting":
        await asyncio.sleep(0.02)


async def test_what_others_change_while_a_run_waits_is_not_its_own(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", WRITE_ASK_WRITE)
    hub = await hubs(config="[checkpoint]\nsteps = 'off'\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        await collect(client, accepted.session_id, {"run.waiting"})
        (repo / "a.txt").write_text("the user's\n")
        (repo / "users.txt").write_text("new\n")
        await answer(client, accepted.session_id)
        events = await ended(client, accepted.session_id)
        assert data_of(events, "run.completed")[0]["files_changed"] == ["asked.txt", "mine.txt"]
        kinds = [("before", "1"), ("left", "1s1"), ("back", "1s2"), ("after", "1a")]
        assert await refs(client, accepted.session_id) == kinds

        (before,) = await taken(client, accepted.session_id, "before")
        done = await client.call("checkpoint.restore", checkpoint_id=before.id)
        assert (done.reach, sorted(done.deleted)) == ("session", ["asked.txt", "mine.txt"])
        assert {kept.path for kept in done.kept} >= {"a.txt", "users.txt"}
        assert (repo / "a.txt").read_text() == "the user's\n"


async def test_a_run_that_waits_before_it_writes_leaves_nothing_and_looks_again(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", ASK)
    hub = await hubs(config="[checkpoint]\nsteps = 'off'\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        await collect(client, accepted.session_id, {"run.waiting"})
        (repo / "users.txt").write_text("new\n")
        await answer(client, accepted.session_id)
        events = await ended(client, accepted.session_id)
        assert data_of(events, "run.completed")[0]["files_changed"] == ["asked.txt"]
        assert await refs(client, accepted.session_id) == [("before", "1"), ("back", "1s1"), ("after", "1a")]


async def test_a_waiting_run_captures_nothing_while_another_may_write(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    """Cancelled or taken up by another start while it waits, it holds no writer lock: what it left is its end."""
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", WRITE_ASK_WRITE)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        await collect(client, accepted.session_id, {"run.waiting"})
        (repo / "users.txt").write_text("new\n")
    await hub.restart()
    async with await hub.client() as client:
        await waiting(client, accepted.session_id)
        assert await refs(client, accepted.session_id) == [("before", "1"), ("left", "1s1")]
        await client.call("run.cancel", session_id=accepted.session_id)
        events = await ended(client, accepted.session_id)
        assert data_of(events, "run.cancelled")[0]["files_changed"] == ["mine.txt"]
        assert await refs(client, accepted.session_id) == [("before", "1"), ("left", "1s1")]


async def test_a_run_goes_back_to_any_of_its_steps(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", THREE_BATCHES)
    hub = await hubs(config="[checkpoint]\nsteps = 'on'\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        await ended(client, accepted.session_id)
        shown = await client.call("checkpoint.list", session_id=accepted.session_id)
        assert [view.kind for view in shown] == ["before"]
        steps = await taken(client, accepted.session_id, "step")
        assert [step.ref.partition("/")[2] for step in steps] == ["1s1", "1s2", "1s3"]

        done = await client.call("checkpoint.restore", checkpoint_id=steps[0].id)
        assert (done.restored, done.deleted) == (["a.txt"], ["b.txt"])
        assert (repo / "a.txt").read_text() == "two\n"
        told = await client.call("session.messages", session_id=accepted.session_id)
        assert [(message.role, message.text) for message in told.messages][:2] == [
            ("user", "do it"),
            ("assistant", "One."),
        ]
        assert [message.role for message in told.messages] == ["user", "assistant", "tool"]

        again = scenario(tmp_path / "again.yaml", "turns: [{text: And on.}]")
        await client.call("prompt.submit", session_id=accepted.session_id, text="go on", run={"model": again})
        while (await run_of(client, accepted.session_id)).state != "completed":
            await asyncio.sleep(0.02)
        told = await client.call("session.messages", session_id=accepted.session_id)
        assert [message.text for message in told.messages if message.text] == ["do it", "One.", "go on", "And on."]


async def test_a_run_goes_back_to_where_it_left_with_calls_open(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", WRITE_ASK_WRITE)
    hub = await hubs(config="[checkpoint]\nsteps = 'off'\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        await collect(client, accepted.session_id, {"run.waiting"})
        await answer(client, accepted.session_id)
        await ended(client, accepted.session_id)
        (left,) = await taken(client, accepted.session_id, "left")
        await client.call("checkpoint.restore", checkpoint_id=left.id, reach="tree")
        assert (repo / "mine.txt").exists()
        assert not (repo / "asked.txt").exists()
        again = scenario(tmp_path / "again.yaml", "turns: [{text: And on.}]")
        await client.call("prompt.submit", session_id=accepted.session_id, text="go on", run={"model": again})
        while (await run_of(client, accepted.session_id)).state != "completed":
            await asyncio.sleep(0.02)
        told = await client.call("session.messages", session_id=accepted.session_id)
        assert told.messages[-1].text == "And on."


async def test_steps_and_checkpoints_that_are_off_are_not_taken_and_that_is_said(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, other = make_repo(tmp_path / "repo"), make_repo(tmp_path / "other")
    model = scenario(tmp_path / "s.yaml", THREE_BATCHES)
    hub = await hubs(config="[checkpoint]\nsteps = 'off'\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        await ended(client, accepted.session_id)
        assert [kind for kind, _ in await refs(client, accepted.session_id)] == ["before", "after"]

        await client.call("workspace.add", name="plain", path=str(other), checkpoint="off")
        unsaved = await submit(client, other, model, **EDITS)
        events = await ended(client, unsaved.session_id)
        assert await refs(client, unsaved.session_id) == []
        assert data_of(events, "run.completed")[0]["no_checkpoint"] == "checkpoints are off"
        assert (await run_of(client, unsaved.session_id)).no_checkpoint == "checkpoints are off"
        assert data_of(events, "run.completed")[0]["files_changed"] == ["a.txt", "b.txt"]

        await client.call("workspace.add", name="plain", path=str(other), checkpoint="required")
        (other / "a.txt").write_text("one\n")
        (other / "b.txt").unlink()
        saved = await submit(client, other, model, **EDITS)
        events = await ended(client, saved.session_id)
        assert data_of(events, "run.completed")[0]["no_checkpoint"] is None
        assert [kind for kind, _ in await refs(client, saved.session_id)] == ["before", "after"]


async def test_a_run_without_a_checkpoint_says_why(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", THREE_BATCHES)
    hub = await hubs().start()
    (repo / ".git" / "refs" / "turnback").write_text("in the way\n")
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        events = await ended(client, accepted.session_id)
        assert events[-1].type == "run.completed"
        why = data_of(events, "checkpoint.failed")[0]["reason"]
        assert data_of(events, "run.completed")[0]["no_checkpoint"] == why
        assert (repo / "a.txt").read_text() == "three\n"

        await client.call("workspace.add", name="strict", path=str(repo), checkpoint="required")
        (repo / "a.txt").write_text("one\n")
        refused = await submit(client, repo, model, **EDITS)
        events = await ended(client, refused.session_id)
        assert data_of(events, "run.failed")[0]["stop_reason"] == "no_checkpoint"
        assert (repo / "a.txt").read_text() == "one\n"
