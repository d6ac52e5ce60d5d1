"""Files and conversation go back together, to the byte, and forward again; a kill leaves one or the other."""

import asyncio
import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hub.client import HubClient
from hub.errors import ConflictError, FailedError, NotFoundError, RefusedError, TurnbackError, UnavailableError
from tests.hubs import HubProcess, collect, ended, git, make_repo, scenario, submit

FILES = {
    "edit.txt": "one\n",
    "gone.txt": "gone\n",
    "name.txt": "name\n",
    "run.sh": "#!/bin/sh\n",
    "sub/deep.txt": "d\n",
}

AGENT = """
turns:
  - tool_calls:
      - {name: editor, arguments: {path: edit.txt, old_text: one, new_text: two}}
      - {name: editor, arguments: {path: new/file.txt, new_text: "made\\n"}}
      - name: run_commands
        arguments:
          commands: ["rm gone.txt", "mv name.txt renamed.txt", "chmod 755 run.sh", "rm -r sub", "echo x >> notes.md"]
  - text: Changed everything.
"""


def prepare(folder: Path) -> Path:
    """A repository with something staged, something not, something untracked, something ignored, and odd modes."""
    repo = make_repo(folder, FILES)
    (repo / "staged.txt").write_text("staged\n")
    git(repo, "add", "staged.txt")
    (repo / "staged.txt").write_text("staged, then edited\n")
    (repo / "notes.md").write_text("mine, untracked\n")
    (repo / ".gitignore").write_text("ignored/\n")
    (repo / "ignored").mkdir()
    (repo / "ignored" / "data").write_text("precious\n")
    (repo / "private").write_text("secret\n")
    (repo / "private").chmod(0o600)
    (repo / "link").symlink_to("edit.txt")
    (repo / "empty").mkdir()
    return repo


def state_of(repo: Path) -> dict[str, Any]:
    """Every byte, mode and link of the worktree, and what git says of the index, HEAD, stash and branches."""
    tree: dict[str, Any] = {}
    for path in sorted(repo.rglob("*")):
        if ".git" in path.relative_to(repo).parts:
            continue
        mode = path.lstat().st_mode
        content = str(path.readlink()) if path.is_symlink() else ""
        if path.is_file() and not path.is_symlink():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        tree[str(path.relative_to(repo))] = (oct(mode), content)
    asked = [("ls-files", "--stage"), ("rev-parse", "HEAD"), ("stash", "list"), ("branch", "-v"), ("status", "--short")]
    return {"tree": tree, **{" ".join(words): git(repo, *words) for words in asked}}


async def messages_of(client: HubClient, session_id: str) -> list[str]:
    told = await client.call("session.messages", session_id=session_id)
    return [message.id for message in told.messages]


async def run_agent(client: HubClient, repo: Path, tmp_path: Path) -> Any:
    model = scenario(tmp_path / "s.yaml", AGENT)
    accepted = await submit(client, repo, model, auto_approve=["all"])
    events = await ended(client, accepted.session_id)
    assert events[-1].type == "run.completed"
    return accepted


async def test_back_and_forth_to_the_byte(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = prepare(tmp_path / "repo")
    before = state_of(repo)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await run_agent(client, repo, tmp_path)
        after, said = state_of(repo), await messages_of(client, accepted.session_id)
        assert after != before
        (run,) = await client.call("run.list", session_id=accepted.session_id)
        assert sorted(run.files_changed) == sorted(
            ["edit.txt", "gone.txt", "name.txt", "new/file.txt", "notes.md", "renamed.txt", "run.sh", "sub/deep.txt"]
        )
        (checkpoint,) = await client.call("checkpoint.list", session_id=accepted.session_id)
        assert (checkpoint.run_count, checkpoint.kind) == (1, "before")

        shown = await client.call("checkpoint.restore", checkpoint_id=checkpoint.id, dry_run=True)
        assert state_of(repo) == after
        assert shown.effects
        assert sorted(shown.deleted) == ["new/file.txt", "renamed.txt"]

        done = await client.call("checkpoint.restore", checkpoint_id=checkpoint.id)
        assert state_of(repo) == before
        assert await messages_of(client, accepted.session_id) == []
        assert done.messages == len(said)
        assert (sorted(done.deleted), done.undo is not None) == (sorted(shown.deleted), True)

        await client.call("checkpoint.undo", session_id=accepted.session_id)
        assert state_of(repo) == after
        assert await messages_of(client, accepted.session_id) == said

        await client.call("checkpoint.restore", checkpoint_id=checkpoint.id, only="files")
        assert state_of(repo) == before
        assert await messages_of(client, accepted.session_id) == said
        await client.call("checkpoint.undo", session_id=accepted.session_id)
        await client.call("checkpoint.restore", checkpoint_id=checkpoint.id, only="conversation")
        assert state_of(repo) == after
        assert await messages_of(client, accepted.session_id) == []
        await client.call("checkpoint.undo", session_id=accepted.session_id)
        assert await messages_of(client, accepted.session_id) == said


async def test_a_conversation_goes_on_from_where_it_was_turned_back_to(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = prepare(tmp_path / "repo"), scenario(tmp_path / "s.yaml", "turns: [{text: fine}]")
    hub = await hubs().start()
    async with await hub.client() as client:
        first = await submit(client, repo, model, "first")
        events = await ended(client, first.session_id)
        for text in ("second", "third"):
            await client.call("prompt.submit", text=text, session_id=first.session_id)
            events = await ended(client, first.session_id, after=events[-1].seq)
        by_run = {c.run_count: c.id for c in await client.call("checkpoint.list", session_id=first.session_id)}
        await client.call("checkpoint.restore", checkpoint_id=by_run[2])
        await client.call("prompt.submit", text="another second", session_id=first.session_id)
        await collect(client, first.session_id, {"run.completed"}, after=(await last(client, first.session_id)))
        told = await client.call("session.messages", session_id=first.session_id)
        assert [m.text for m in told.messages if m.role == "user"] == ["first", "another second"]
        runs = await client.call("run.list", session_id=first.session_id)
        assert [(run.run_count, run.superseded) for run in runs] == [(4, False), (3, True), (2, True), (1, False)]
        every = await client.call("session.messages", session_id=first.session_id, superseded=True)
        assert [m.text for m in every.messages if m.role == "user"] == ["first", "second", "third", "another second"]


async def last(client: HubClient, session_id: str) -> int:
    events = await collect(client, session_id, {"restore.committed"})
    return events[-1].seq


async def test_a_folder_without_a_session_is_saved_and_turned_back(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = prepare(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        before = state_of(repo)
        made = await client.call("checkpoint.create", workspace=str(repo), note="by hand")
        assert made.ref.startswith("ws-")
        (repo / "edit.txt").unlink()
        (repo / "more.txt").write_text("more\n")
        changed = await client.call("checkpoint.diff", checkpoint_id=made.id, patch=True)
        assert {(change.path, change.kind) for change in changed.changes} == {
            ("edit.txt", "deleted"),
            ("more.txt", "created"),
        }
        assert "+more" in changed.patch
        after = state_of(repo)
        await client.call("checkpoint.restore", checkpoint_id=made.id)
        assert state_of(repo) == before
        await client.call("checkpoint.undo", workspace=str(repo))
        assert state_of(repo) == after


async def test_a_capture_leaves_the_repository_as_it_was(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = prepare(tmp_path / "repo")
    hub = await hubs().start()
    before, index = state_of(repo), (repo / ".git" / "index").read_bytes()
    async with await hub.client() as client:
        for _ in range(2):
            await client.call("checkpoint.create", workspace=str(repo))
    assert (repo / ".git" / "index").read_bytes() == index
    assert state_of(repo) == before
    assert git(repo, "fsck", "--no-progress").strip() == ""


async def test_a_restore_waits_for_no_run_and_overtakes_none(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = prepare(tmp_path / "repo")
    long = "turns: [{tool_calls: [{name: run_commands, arguments: {commands: ['touch began; sleep 90']}}]}, {text: ok}]"
    model = scenario(tmp_path / "long.yaml", long)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"])
        while not (repo / "began").exists():
            await asyncio.sleep(0.02)
        found = await client.call("checkpoint.list", session_id=accepted.session_id)
        with pytest.raises(RefusedError) as caught:
            await client.call("checkpoint.restore", checkpoint_id=found[0].id)
        assert caught.value.code == "run_active"
        await client.call("checkpoint.restore", checkpoint_id=found[0].id, interrupt=True)
        (run,) = await client.call("run.list", session_id=accepted.session_id)
        assert (run.state, run.superseded) == ("cancelled", True)
        assert not (repo / "began").exists()


async def test_what_is_not_there_is_told(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = prepare(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        for name, params, kind, code in [
            ("checkpoint.restore", {"checkpoint_id": "ckp_none"}, NotFoundError, "unknown_checkpoint"),
            ("checkpoint.undo", {"workspace": str(repo)}, NotFoundError, "nothing_to_undo"),
        ]:
            with pytest.raises(kind) as caught:
                await client.call(name, **params)
            assert caught.value.code == code
        made = await client.call("checkpoint.create", workspace=str(repo))
        before = state_of(repo)
        git(repo, "update-ref", "-d", f"refs/turnback/{made.ref}")
        with pytest.raises(TurnbackError) as lost:
            await client.call("checkpoint.restore", checkpoint_id=made.id)
        assert lost.value.code in ("checkpoint_not_found", "checkpoint_incomplete")
        assert state_of(repo) == before


async def restore_and_kill(hub: HubProcess, checkpoint_id: str, after_s: float) -> None:
    async with await hub.client() as client:
        call = asyncio.create_task(client.call("checkpoint.restore", checkpoint_id=checkpoint_id))
        await asyncio.sleep(after_s)
        hub.kill()
        outcome = (await asyncio.gather(call, return_exceptions=True))[0]
        assert not isinstance(outcome, BaseException) or isinstance(outcome, UnavailableError | ConflictError)


async def test_a_kill_during_a_restore_leaves_the_old_or_the_new_state(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = prepare(tmp_path / "repo")
    chance = random.Random(3)
    hub = await hubs().start()
    async with await hub.client() as client:
        old = state_of(repo)
        accepted = await run_agent(client, repo, tmp_path)
        new, said = state_of(repo), await messages_of(client, accepted.session_id)
        (checkpoint,) = await client.call("checkpoint.list", session_id=accepted.session_id)
    seen = set()
    for _ in range(6):
        await restore_and_kill(hub, checkpoint.id, chance.uniform(0.01, 0.35))
        await hub.start()
        async with await hub.client() as client:
            files, conversation = state_of(repo), await messages_of(client, accepted.session_id)
            assert (files, conversation) in [(new, said), (old, [])]
            seen.add(not conversation)
            if not conversation:
                await client.call("checkpoint.undo", session_id=accepted.session_id)
                assert (state_of(repo), await messages_of(client, accepted.session_id)) == (new, said)
    assert seen


async def test_a_repository_inside_the_workspace_goes_back_with_it(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    inner = make_repo(repo / "vendor" / "inner", {"lib.txt": "old\n"})
    commands = "['echo new > vendor/inner/lib.txt; echo new > a.txt']"
    text = f"turns: [{{tool_calls: [{{name: run_commands, arguments: {{commands: {commands}}}}}]}}, {{text: ok}}]"
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, scenario(tmp_path / "s.yaml", text), auto_approve=["all"])
        await ended(client, accepted.session_id)
        (saved,) = await client.call("checkpoint.list", session_id=accepted.session_id)
        done = await client.call("checkpoint.restore", checkpoint_id=saved.id)
        assert sorted(done.restored + done.deleted) == ["a.txt", "vendor/inner/lib.txt"]
        assert (inner / "lib.txt").read_text() == "old\n"
        await client.call("checkpoint.undo", session_id=accepted.session_id)
        assert (inner / "lib.txt").read_text() == "new\n"
        assert (repo / "a.txt").read_text() == "new\n"


async def test_an_undo_spares_what_was_changed_since_the_restore(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    """Only what the restore had changed goes forth again; what a person did meanwhile is named and stays."""
    repo = prepare(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await run_agent(client, repo, tmp_path)
        (checkpoint,) = await client.call("checkpoint.list", session_id=accepted.session_id)
        await client.call("checkpoint.restore", checkpoint_id=checkpoint.id)
        (repo / "mine.txt").write_text("mine\n")
        (repo / "edit.txt").write_text("edited by hand\n")
        (repo / "staged.txt").write_text("edited by hand, too\n")
        shown = await client.call("checkpoint.undo", session_id=accepted.session_id, dry_run=True)
        done = await client.call("checkpoint.undo", session_id=accepted.session_id)
        assert (shown.reach, done.reach) == ("session", "session")
        kept = {row.path: row.reason for row in done.kept}
        assert {"mine.txt", "edit.txt", "staged.txt"} <= kept.keys()
        assert kept["edit.txt"] == "changed by the user or another program after the restore"
        assert (repo / "mine.txt").read_text() == "mine\n"
        assert (repo / "edit.txt").read_text() == "edited by hand\n"
        assert (repo / "staged.txt").read_text() == "edited by hand, too\n"
        assert (repo / "new" / "file.txt").read_text() == "made\n"
        assert not (repo / "gone.txt").exists()
        (repo / "later.txt").write_text("later\n")
        again = await client.call("checkpoint.redo", session_id=accepted.session_id)
        assert again.reach == "session"
        assert (repo / "gone.txt").read_text() == "gone\n"
        assert not (repo / "new").exists()
        assert {path.name for path in repo.glob("*.txt")} >= {"mine.txt", "later.txt"}
        assert all(change.author is None for change in again.changes)
        (repo / "last.txt").write_text("last\n")
        exact = await client.call("checkpoint.undo", session_id=accepted.session_id, reach="tree")
        assert exact.reach == "tree"
        assert not (repo / "last.txt").exists()
        assert (repo / "mine.txt").exists()
        assert (repo / "later.txt").exists()


async def test_a_restore_that_has_nothing_to_do_takes_nobodys_place(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = prepare(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await run_agent(client, repo, tmp_path)
        after = state_of(repo)
        (checkpoint,) = await client.call("checkpoint.list", session_id=accepted.session_id)
        assert checkpoint.prompt == "do it"
        await client.call("checkpoint.restore", checkpoint_id=checkpoint.id)
        refs = git(repo, "for-each-ref", "refs/turnback")
        for dry in (True, False):
            with pytest.raises(NotFoundError) as caught:
                await client.call(
                    "checkpoint.restore", checkpoint_id=checkpoint.id, paths=["nope", "no/where"], dry_run=dry
                )
            assert caught.value.code == "no_such_path"
        for paths in (["edit.txt"], None):
            done = await client.call("checkpoint.restore", checkpoint_id=checkpoint.id, paths=paths)
            assert (done.undo, done.restored, done.messages) == (None, [], 0)
        once = {"checkpoint_id": checkpoint.id, "idempotency_key": "nothing-to-do"}
        idle = await client.call("checkpoint.restore", **once)
        (repo / "edit.txt").write_text("edited since\n")
        assert await client.call("checkpoint.restore", **once) == idle
        assert (repo / "edit.txt").read_text() == "edited since\n"
        (repo / "edit.txt").write_text("one\n")
        assert git(repo, "for-each-ref", "refs/turnback") == refs
        await client.call("checkpoint.undo", session_id=accepted.session_id)
        assert state_of(repo) == after
        (repo / "empty").rmdir()
        made = await client.call("checkpoint.restore", checkpoint_id=checkpoint.id, paths=["empty"])
        assert (made.undo is not None, (repo / "empty").is_dir()) == (True, True)
        none = await client.call("checkpoint.restore", checkpoint_id=checkpoint.id, paths=["private", "nope"])
        assert (none.undo, none.notes[-1]) == (None, "Neither here nor in the checkpoint: nope.")
        some = await client.call("checkpoint.restore", checkpoint_id=checkpoint.id, paths=["edit.txt", "nope"])
        assert some.restored == ["edit.txt"]
        assert "Neither here nor in the checkpoint: nope." in some.notes
        listed = await client.call("checkpoint.list", session_id=accepted.session_id)
        assert [row.kind for row in listed] == ["before"]


async def test_an_undo_is_exact_when_nobody_came_in_between(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    """The restore takes ignore rules back, so that an ignored file shows: that is nobody's change."""
    repo = make_repo(tmp_path / "repo", {"a": "a\n", "b": "b\n", "d/x": "x\n"})
    (repo / "out").mkdir()
    (repo / "out" / "p").write_text("p\n")
    hub = await hubs().start()
    async with await hub.client() as client:
        taken = await client.call("checkpoint.create", workspace=str(repo))
        (repo / ".gitignore").write_text("out/\n")
        (repo / "out" / "q").write_text("q\n")
        (repo / "out" / "p").write_text("p2\n")
        (repo / "d").chmod(0o700)
        (repo / "empty").mkdir()
        (repo / "b").write_text("bb\n")
        git(repo, "add", "b")
        git(repo, "rm", "-q", "--cached", "a")
        before = state_of(repo)
        await client.call("checkpoint.restore", checkpoint_id=taken.id)
        assert state_of(repo) != before
        done = await client.call("checkpoint.undo", workspace=str(repo))
        assert (done.reach, state_of(repo)) == ("tree", before)


async def test_an_error_of_a_checkpoint_reaches_the_caller(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo", {"a": "a\n"})
    hub = await hubs().start()
    async with await hub.client() as client:
        (repo / "a").write_text("captured\n")
        taken = await client.call("checkpoint.create", workspace=str(repo))
        oid = git(repo, "rev-parse", f"refs/turnback/{taken.ref}:worktree/a").strip()
        (repo / ".git" / "objects" / oid[:2] / oid[2:]).unlink()
        (repo / "a").write_text("later\n")
        with pytest.raises(FailedError) as caught:
            await client.call("checkpoint.restore", checkpoint_id=taken.id)
        assert caught.value.code == "checkpoint_incomplete"
        assert (repo / "a").read_text() == "later\n"
