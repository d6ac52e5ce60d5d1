"""What hangs on runs that a restore supersedes: it does not proceed, is listed, and comes back with an undo."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hub.client import HubClient
from hub.errors import ConflictError, NotFoundError, RefusedError
from hub.protocol.views import GrantView
from tests.hubs import HubProcess, collect, ended, git, make_repo, scenario, submit

WRITES = """
turns:
  - tool_calls: [{{name: editor, arguments: {{path: {name}, new_text: made}}}}]
  - text: Done.
"""
ASKS = """
turns:
  - tool_calls: [{name: run_commands, arguments: {commands: ['echo once >> count']}}]
  - text: Done.
"""


def writes(folder: Path, name: str) -> str:
    return scenario(folder / f"{name}.yaml", WRITES.format(name=name))


async def go_on(client: HubClient, session_id: str, model: str, **run: Any) -> Any:
    return await client.call("prompt.submit", session_id=session_id, text="go on", run={"model": model, **run})


async def three_runs(client: HubClient, repo: Path, folder: Path) -> str:
    """Run one.txt, two.txt, three.txt in one session and return its id."""
    accepted = await submit(client, repo, writes(folder, "one.txt"), auto_approve=["all"])
    await ended(client, accepted.session_id)
    for number, name in enumerate(("two.txt", "three.txt"), 2):
        await go_on(client, accepted.session_id, writes(folder, name), auto_approve=["all"])
        await collect_runs(client, accepted.session_id, number)
    return accepted.session_id


async def collect_runs(client: HubClient, session_id: str, number: int) -> None:
    while [run.state for run in await client.call("run.list", session_id=session_id)] != ["completed"] * number:
        await asyncio.sleep(0.02)


async def state_of_newest(client: HubClient, session_id: str, state: str) -> Any:
    while (run := (await client.call("run.list", session_id=session_id))[0]).state != state:
        await asyncio.sleep(0.02)
    return run


async def before(client: HubClient, session_id: str, run_count: int) -> str:
    found = await client.call("checkpoint.list", session_id=session_id, kinds=["before"])
    return next(view.id for view in found if view.run_count == run_count)


async def test_a_queued_prompt_and_an_open_approval_do_not_proceed_and_come_back(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id = await three_runs(client, repo, tmp_path)
        await go_on(client, session_id, scenario(tmp_path / "asks.yaml", ASKS))
        waiting = await state_of_newest(client, session_id, "waiting")
        (asked,) = await client.call("approval.list")
        later = {"model": writes(tmp_path, "five.txt"), "auto_approve": ["all"]}
        queued = await client.call("prompt.submit", session_id=session_id, text="five", mode="follow_up", run=later)

        target = await before(client, session_id, 2)
        planned = await client.call("checkpoint.restore", checkpoint_id=target, dry_run=True)
        expected = [("approval", asked.id), ("prompt", queued.prompt_id), ("run", waiting.id)]
        assert [(item.kind, item.id) for item in planned.cancelled] == expected
        await state_of_newest(client, session_id, "waiting")

        done = await client.call("checkpoint.restore", checkpoint_id=target)
        assert [(item.kind, item.id) for item in done.cancelled] == expected
        assert sorted(done.deleted) == ["three.txt", "two.txt"]
        assert await client.call("approval.list") == []
        assert await client.call("prompt.list", session_id=session_id) == []
        put_aside = await state_of_newest(client, session_id, "interrupted")
        assert (put_aside.stop_reason, put_aside.superseded) == ("superseded", True)
        with pytest.raises(ConflictError):
            await client.call("approval.answer", approval_id=asked.id, decision="allow_once")
    await hub.restart()
    async with await hub.client() as client:
        assert (await client.call("session.get", session_id=session_id)).state == "idle"
        undone = await client.call("checkpoint.undo", session_id=session_id)
        assert [(item.kind, item.id) for item in undone.resumed] == expected[::-1]
        await state_of_newest(client, session_id, "waiting")
        (again,) = await client.call("approval.list")
        assert (again.id, again.arguments_hash) == (asked.id, asked.arguments_hash)
        assert [view.id for view in await client.call("prompt.list", session_id=session_id)] == [queued.prompt_id]
        await client.call("approval.answer", approval_id=asked.id, decision="allow_once")
        await collect_runs(client, session_id, 5)
    assert (repo / "count").read_text() == "once\n"
    assert (repo / "five.txt").exists()


async def test_a_restore_that_fails_leaves_the_waiting_run_waiting(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id = (await submit(client, repo, writes(tmp_path, "one.txt"), auto_approve=["all"])).session_id
        await collect_runs(client, session_id, 1)
        await go_on(client, session_id, scenario(tmp_path / "asks.yaml", ASKS))
        await state_of_newest(client, session_id, "waiting")
        target = await before(client, session_id, 1)
        (repo / ".git" / "MERGE_HEAD").write_text(git(repo, "rev-parse", "HEAD"))
        with pytest.raises(RefusedError) as caught:
            await client.call("checkpoint.restore", checkpoint_id=target)
        assert caught.value.code == "operation_changed"
        (asked,) = await client.call("approval.list")
        (repo / ".git" / "MERGE_HEAD").unlink()
        await client.call("approval.answer", approval_id=asked.id, decision="allow_once")
        await collect_runs(client, session_id, 2)
    assert (repo / "count").read_text() == "once\n"


async def granted_for_session(client: HubClient, repo: Path, tmp_path: Path) -> tuple[str, GrantView]:
    """Run what asks, allow it for the session; return the session and its grant."""
    accepted = await submit(client, repo, scenario(tmp_path / "asks.yaml", ASKS))
    await collect(client, accepted.session_id, {"run.waiting"})
    (asked,) = await client.call("approval.list")
    await client.call("approval.answer", approval_id=asked.id, decision="allow_session")
    await ended(client, accepted.session_id)
    (granted,) = await client.call("grant.list")
    return accepted.session_id, granted


async def test_a_grant_for_the_session_goes_with_the_run_that_asked_for_it(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id, granted = await granted_for_session(client, repo, tmp_path)
        target = await before(client, session_id, 1)
        done = await client.call("checkpoint.restore", checkpoint_id=target)
        assert [(item.kind, item.id) for item in done.cancelled] == [("grant", granted.id)]
        assert await client.call("grant.list") == []
        await client.call("checkpoint.undo", session_id=session_id)
        assert await client.call("grant.list") == [granted]


async def test_a_grant_that_was_revoked_meanwhile_does_not_come_back(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id, granted = await granted_for_session(client, repo, tmp_path)
        await client.call("checkpoint.restore", checkpoint_id=await before(client, session_id, 1))
        await client.call("grant.revoke", grant_id=granted.id)
        undone = await client.call("checkpoint.undo", session_id=session_id)
        assert undone.resumed == []
        assert await client.call("grant.list") == []


async def test_the_model_is_told_which_files_were_turned_back(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id = await three_runs(client, repo, tmp_path)
        target = await before(client, session_id, 2)
        await client.call("checkpoint.restore", checkpoint_id=target, only="files")
        await go_on(client, session_id, writes(tmp_path, "four.txt"), auto_approve=["all"])
        await collect_runs(client, session_id, 4)
        told = (await client.call("session.messages", session_id=session_id)).messages
        (notice,) = [message.text for message in told if "notice from the hub" in message.text]
        assert "three.txt" in notice
        assert "two.txt" in notice
        assert "one.txt" not in notice
        places = [number for number, message in enumerate(told) if message.text in (notice, "go on")]
        assert told[places[-1]].text == notice, "the notice stands right before the request that it is for"


async def test_effects_outside_of_files_are_told_and_never_called_undone(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, counter = make_repo(tmp_path / "repo"), tmp_path / "counter"
    calls = f"[{{name: run_commands, arguments: {{commands: ['echo x >> {counter}; echo y > f']}}}}]"
    model = scenario(tmp_path / "s.yaml", f"turns: [{{tool_calls: {calls}}}, {{text: ok}}]")
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"])
        await ended(client, accepted.session_id)
        done = await client.call("checkpoint.restore", checkpoint_id=await before(client, accepted.session_id, 1))
        assert done.deleted == ["f"]
        assert [str(counter) in effect.summary for effect in done.effects] == [True]
        await go_on(client, accepted.session_id, writes(tmp_path, "a.txt"), auto_approve=["all"])
        await state_of_newest(client, accepted.session_id, "completed")
        told = (await client.call("session.messages", session_id=accepted.session_id)).messages
        (notice,) = [message.text for message in told if "notice from the hub" in message.text]
        assert str(counter) in notice
    assert counter.read_text() == "x\n"


async def test_an_undo_is_undone_by_redo_until_something_else_is_restored(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id = await three_runs(client, repo, tmp_path)
        names = ["one.txt", "two.txt", "three.txt"]
        with pytest.raises(NotFoundError):
            await client.call("checkpoint.redo", session_id=session_id)
        await client.call("checkpoint.restore", checkpoint_id=await before(client, session_id, 3))
        await client.call("checkpoint.restore", checkpoint_id=await before(client, session_id, 1))
        steps = [("undo", 2), ("undo", 3), ("redo", 2), ("redo", 0), ("undo", 2), ("redo", 0)]
        for method, there in steps:
            await client.call(f"checkpoint.{method}", session_id=session_id)
            assert [name for name in names if (repo / name).exists()] == names[:there], (method, there)
            talk = (await client.call("session.messages", session_id=session_id)).messages
            assert sum(message.role == "user" for message in talk) == there
        await client.call("checkpoint.undo", session_id=session_id)
        await client.call("checkpoint.restore", checkpoint_id=await before(client, session_id, 1))
        with pytest.raises(NotFoundError) as caught:
            await client.call("checkpoint.redo", session_id=session_id)
        assert caught.value.code == "nothing_to_redo"


async def test_only_some_paths_go_back_and_forth(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id = await three_runs(client, repo, tmp_path)
        done = await client.call(
            "checkpoint.restore", checkpoint_id=await before(client, session_id, 1), paths=["two.txt"]
        )
        assert (done.deleted, done.messages) == (["two.txt"], 0)
        (repo / "three.txt").write_text("mine, since then")
        await client.call("checkpoint.undo", session_id=session_id)
        assert (repo / "two.txt").read_text() == "made"
        assert (repo / "three.txt").read_text() == "mine, since then"


async def test_what_others_wrote_stays_unless_the_whole_tree_is_asked_for(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id = await three_runs(client, repo, tmp_path)
        (repo / "mine.txt").write_text("by hand")
        target = await before(client, session_id, 2)
        planned = await client.call("checkpoint.restore", checkpoint_id=target, dry_run=True)
        assert (planned.reach, sorted(planned.deleted)) == ("session", ["three.txt", "two.txt"])
        assert {change.author for change in planned.changes} == {session_id}
        assert ("mine.txt", None) in [(kept.path, kept.author) for kept in planned.kept]
        await client.call("checkpoint.restore", checkpoint_id=target)
        assert (repo / "mine.txt").exists()
        await client.call("checkpoint.undo", session_id=session_id)
        assert (repo / "two.txt").exists()
        whole = await client.call("checkpoint.restore", checkpoint_id=target, reach="tree")
        assert "mine.txt" in whole.deleted


async def test_a_fork_begins_where_the_first_session_stood(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id = await three_runs(client, repo, tmp_path)
        target = await before(client, session_id, 2)
        place = tmp_path / "forked"
        fork = await client.call("session.fork", session_id=session_id, checkpoint_id=target, worktree=str(place))
        assert (fork.forked_from, fork.workspace) == (session_id, str(place.resolve()))
        talk = (await client.call("session.messages", session_id=fork.id)).messages
        assert [message.text for message in talk if message.role == "user"] == ["do it"]
        assert (place / "one.txt").read_text() == "made"
        assert not (place / "two.txt").exists()
        assert git(place, "status", "--porcelain") == "?? one.txt\n"
        await go_on(client, fork.id, writes(tmp_path, "other.txt"), auto_approve=["all"])
        await collect_runs(client, fork.id, 1)
        assert (place / "other.txt").exists()
        assert not (repo / "other.txt").exists()
        here = await client.call("session.fork", session_id=session_id, checkpoint_id=target)
        assert here.workspace == str(repo)
        with pytest.raises(ConflictError):
            await client.call("session.fork", session_id=session_id, checkpoint_id=target, worktree=str(place))


async def test_checkpoints_are_kept_pruned_proven_and_carried_away(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        session_id = await three_runs(client, repo, tmp_path)
        ids = {number: await before(client, session_id, number) for number in (1, 2, 3)}
        assert (await client.call("checkpoint.keep", checkpoint_id=ids[2])).protected
        would = await client.call("checkpoint.prune", workspace=str(repo), runs=1, dry_run=True)
        assert ids[2] not in [item.checkpoint_id for item in would.pruned]
        await client.call("checkpoint.keep", checkpoint_id=ids[2], keep=False)
        gone = await client.call("checkpoint.prune", workspace=str(repo), runs=1)
        assert ids[2] in [item.checkpoint_id for item in gone.pruned]
        assert (await client.call("checkpoint.show", checkpoint_id=ids[2])).pruned_at is not None
        with pytest.raises(NotFoundError) as caught:
            await client.call("checkpoint.restore", checkpoint_id=ids[2])
        assert caught.value.code == "checkpoint_pruned"
        found = await client.call("checkpoint.verify", workspace=str(repo), deep=True)
        assert (found.sound, found.complete) == (True, found.checkpoints)
        git(repo, "config", "remote.backup.url", str(tmp_path / "backup.git"))
        git(repo, "config", "remote.backup.mirror", "true")
        (mirror,) = await client.call("workspace.mirrors", workspace=str(repo))
        assert (mirror.remote, bool(mirror.remedy)) == ("backup", True)
        bundle = tmp_path / "saved.bundle"
        out = await client.call("checkpoint.export", checkpoint_ids=[ids[3]], path=str(bundle))
        assert (out.path, out.bytes) == (str(bundle), bundle.stat().st_size)
        purged = await client.call("checkpoint.purge", session_id=session_id)
        assert len(purged.pruned) == found.checkpoints
        assert git(repo, "for-each-ref", "refs/turnback").strip() == ""
