"""Captures around a run's waits and within it: who changed what, the way back to any step, and what hooks save."""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from hub.client import HubClient
from hub.protocol.events import Event, Live
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


async def test_a_run_that_comes_back_after_a_restart_saves_what_others_did_and_goes_on_counting(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", WRITE_ASK_WRITE)
    hub = await hubs(config="[checkpoint]\nsteps = 'off'\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        await collect(client, accepted.session_id, {"run.waiting"})
    hub.kill()
    (repo / "users.txt").write_text("new\n")
    await hub.start()
    async with await hub.client() as client:
        await waiting(client, accepted.session_id)
        await answer(client, accepted.session_id)
        events = await ended(client, accepted.session_id)
        assert data_of(events, "run.completed")[0]["files_changed"] == ["asked.txt", "mine.txt"]
        kinds = [("before", "1"), ("left", "1s1"), ("back", "1s2"), ("after", "1a")]
        assert await refs(client, accepted.session_id) == kinds


async def test_what_others_write_while_the_hub_is_down_is_not_the_runs_that_goes_on(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    text = "turns: [{delay_s: 1.5, tool_calls: [{name: editor, arguments: {path: b.txt, new_text: b}}]}, {text: Done.}]"
    hub = await hubs(config="[checkpoint]\nsteps = 'off'\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, scenario(tmp_path / "s.yaml", text), **EDITS)
        await collect(client, accepted.session_id, {"checkpoint.created"})
    hub.kill()
    (repo / "users.txt").write_text("new\n")
    await hub.start()
    async with await hub.client() as client:
        events = await ended(client, accepted.session_id)
        assert data_of(events, "run.completed")[0]["files_changed"] == ["b.txt"]
        assert await refs(client, accepted.session_id) == [("before", "1"), ("back", "1s1"), ("after", "1a")]


async def test_a_run_that_needs_a_way_back_writes_nothing_when_it_comes_back_without_one(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    """Not even after a step, which it does not need, was tried as well."""
    more = "  - tool_calls: [{name: editor, arguments: {path: more.txt, new_text: more}}]\n  - text: Done.\n"
    model = scenario(tmp_path / "s.yaml", WRITE_ASK_WRITE.replace("  - text: Done.\n", more))
    repo = make_repo(tmp_path / "repo")
    hub = await hubs(config="[checkpoint]\nmode = 'required'\nsteps = 'on'\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        await collect(client, accepted.session_id, {"run.waiting"})
        shutil.rmtree(repo / ".git" / "refs" / "turnback")
        (repo / ".git" / "refs" / "turnback").write_text("in the way\n")
        await answer(client, accepted.session_id, "reject")
        events = await ended(client, accepted.session_id)
        assert data_of(events, "run.failed")[0]["stop_reason"] == "no_checkpoint"
        assert data_of(events, "checkpoint.failed")[0]["kind"] == "back"
        assert not (repo / "more.txt").exists()


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


@pytest.mark.slow
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


async def test_an_ignored_file_that_a_tool_overwrites_is_saved_before(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo", {"a.txt": "one\n", ".gitignore": "*.env\nout/\n"})
    (repo / "local.env").write_text("precious\n")
    (repo / "out").mkdir()
    (repo / "out" / "made").write_text("made before\n")
    model = scenario(
        tmp_path / "s.yaml",
        """
        turns:
          - tool_calls:
              - {name: editor, arguments: {path: local.env, old_text: precious, new_text: changed}}
              - {name: editor, arguments: {path: local.env, old_text: changed, new_text: "changed again"}}
              - {name: editor, arguments: {path: out/made, old_text: before, new_text: anew}}
              - {name: editor, arguments: {path: fresh.env, new_text: "new\\n"}}
              - {name: editor, arguments: {path: a.txt, old_text: one, new_text: two}}
          - text: Done.
        """,
    )
    hub = await hubs(config="[checkpoint]\nsteps = 'off'\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        events = await ended(client, accepted.session_id)
        assert data_of(events, "run.completed")[0]["files_changed"] == ["a.txt"]
        images = await taken(client, accepted.session_id, "preimage")
        assert [image.ref.partition("/")[2] for image in images] == ["1p", "1p2"]
        await client.call("checkpoint.restore", checkpoint_id=images[0].id, paths=["local.env"])
        await client.call("checkpoint.restore", checkpoint_id=images[1].id, paths=["out/made"])
        assert (repo / "local.env").read_text() == "precious\n"
        assert (repo / "out" / "made").read_text() == "made before\n"
        assert (repo / "fresh.env").read_text() == "new\n"
        assert (repo / "a.txt").read_text() == "two\n"
        await client.call("checkpoint.undo", session_id=accepted.session_id)
        assert (repo / "out" / "made").read_text() == "made anew\n"


async def test_ignored_files_that_settings_name_go_with_every_capture(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo", {"a.txt": "one\n", ".gitignore": "*.env\nkeep/\n"})
    for name in (".local.env", "other.env", "keep/deep/file"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text("before\n")
    text = "echo after | tee .local.env other.env keep/deep/file > a.txt"
    calls = f"{{name: run_commands, arguments: {{commands: ['{text}']}}}}"
    model = scenario(tmp_path / "s.yaml", f"turns: [{{tool_calls: [{calls}]}}, {{text: Done.}}]")
    hub = await hubs(config="[checkpoint]\nsteps = 'off'\ninclude = ['.local.*', 'keep', 'not-there']\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **ALL)
        events = await ended(client, accepted.session_id)
        changed = data_of(events, "run.completed")[0]["files_changed"]
        assert changed == [".local.env", "a.txt", "keep/deep/file"]
        (before,) = await taken(client, accepted.session_id, "before")
        differs = await client.call("checkpoint.diff", checkpoint_id=before.id)
        assert [(change.path, change.kind) for change in differs.changes] == [(path, "modified") for path in changed]
        done = await client.call("checkpoint.restore", checkpoint_id=before.id, reach="tree")
        assert sorted(done.restored) == changed
        assert (repo / "keep" / "deep" / "file").read_text() == "before\n"
        assert (repo / "other.env").read_text() == "after\n"


def slow_git(folder: Path) -> dict[str, str]:
    """Return an environment in which each call of git takes a while, as it does in a very large repository."""
    real = shutil.which("git")
    folder.mkdir()
    (folder / "git").write_text(f'#!/bin/sh\nsleep 0.3\nexec {real} "$@"\n')
    (folder / "git").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


async def test_a_slow_capture_shows_how_far_it_is_and_is_not_repeated_after_each_step(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", THREE_BATCHES)
    hub = await hubs(**slow_git(tmp_path / "bin")).start()
    shown: list[Live] = []
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        async with asyncio.timeout(60), client.subscribe(session_id=accepted.session_id, after_seq=0, live=True) as all:
            async for item in all:
                if isinstance(item, Live):
                    shown.append(item)
                elif isinstance(item, Event) and item.type == "run.completed":
                    break
        assert [kind for kind, _ in await refs(client, accepted.session_id)] == ["before", "after"]
    told = [msgspec.json.decode(notice.data) for notice in shown if notice.type == "checkpoint.progress"]
    assert told
    assert {"step", "done", "total"} == set(told[0])


HOOKS = """
[checkpoint]
mode = "{mode}"
[hooks]
checkpoint_before = '''cp "{database}" "$TURNBACK_HOOK_DIR/dump" && echo saved "$TURNBACK_CHECKPOINT_ID"'''
restore_after = '''cp "$TURNBACK_HOOK_DIR/dump" "{database}"'''
timeout_s = 5
"""


async def test_hooks_save_and_bring_back_what_files_do_not_cover(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, database = make_repo(tmp_path / "repo"), tmp_path / "database"
    database.write_text("rows\n")
    text = f"turns: [{{tool_calls: [{{name: run_commands, arguments: {{commands: ['echo more >> {database}']}}}}]}}]"
    model = scenario(tmp_path / "s.yaml", text.replace("}]}]", "}]}, {text: Done.}]"))
    hub = await hubs(config=HOOKS.format(mode="best_effort", database=database)).start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **ALL)
        await ended(client, accepted.session_id)
        assert database.read_text() == "rows\nmore\n"
        (before,) = await taken(client, accepted.session_id, "before")
        saved = hub.home / "hooks" / before.id
        assert saved.stat().st_mode & 0o777 == 0o700
        assert (saved / "output.txt").read_text() == f"saved {before.id}\n"

        done = await client.call("checkpoint.restore", checkpoint_id=before.id)
        assert done.notes == []
        assert database.read_text() == "rows\n"
        await client.call("checkpoint.undo", session_id=accepted.session_id)
        assert database.read_text() == "rows\nmore\n"

        shutil.rmtree(saved)
        key = {"idempotency_key": "restored-once"}
        done = await client.call("checkpoint.restore", checkpoint_id=before.id, **key)
        assert "restore_after ended with code 1" in done.notes[-1]
        again = await client.call("checkpoint.restore", checkpoint_id=before.id, **key)
        assert again.notes == done.notes
        gone = await client.call("checkpoint.purge", session_id=accepted.session_id)
        assert gone.pruned
        assert list((hub.home / "hooks").iterdir()) == []


def living_in_group(group: int) -> list[int]:
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


async def test_a_hook_that_fails_ends_only_a_run_that_needs_it(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", THREE_BATCHES)
    marks = tmp_path / "marks"
    command = f"echo $$ > {marks}; sleep 90 & sleep 90"
    hub = await hubs(config=f"[hooks]\ncheckpoint_before = '{command}'\ntimeout_s = 0.5\n").start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, **EDITS)
        events = await ended(client, accepted.session_id)
        assert events[-1].type == "run.completed"
        said = data_of(events, "checkpoint.failed")
        assert [(one["kind"], one["code"]) for one in said] == [("hook", "hook_failed")]
        (before,) = await taken(client, accepted.session_id, "before")
        assert "took more than 0.5 s" in before.note
        assert living_in_group(int(marks.read_text())) == []

        (repo / "a.txt").write_text("one\n")
        await client.call("workspace.add", name="strict", path=str(repo), checkpoint="required")
        refused = await submit(client, repo, model, **EDITS)
        events = await ended(client, refused.session_id)
        assert data_of(events, "run.failed")[0]["stop_reason"] == "no_checkpoint"
        assert "took more than" in (await run_of(client, refused.session_id)).no_checkpoint
        assert (repo / "a.txt").read_text() == "one\n"
