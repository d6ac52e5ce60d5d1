"""Worktrees: threads in use are not closed, names are found, what was left of a restore is settled at next use."""

import asyncio
import threading
from pathlib import Path

import pytest

from hub.checkpoint.units import Units
from hub.checkpoint.values import Plan
from hub.client import HubClient
from hub.clock import ManualClock
from hub.daemon import worktrees as module
from hub.daemon.app import App
from hub.daemon.bus import Bus, Notice, Waker
from hub.daemon.progress import FIRST_S, Progress
from hub.daemon.worktrees import Request, Stores, Worktrees, ref_names
from hub.store import checkpoints
from hub.store.checkpoints import Bond, Intent, Outcome
from hub.store.database import Transaction
from tests.daemon.homes import running_app
from tests.hubs import make_repo


def some_worktrees(folder: Path) -> Worktrees:
    return Worktrees(Stores(folder=folder, owner="test", always_shadow=False), Bus(), ManualClock())


async def test_a_thread_in_use_is_not_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "OPEN_LIMIT", 1)
    repos = [str(make_repo(tmp_path / name)) for name in "abc"]
    worktrees, go = some_worktrees(tmp_path / "stores"), threading.Event()

    def wait(engine: Units) -> str:
        go.wait()
        return threading.current_thread().name

    first = asyncio.create_task(worktrees.work(repos[0], wait))
    await asyncio.sleep(0)
    second = asyncio.create_task(worktrees.work(repos[0], lambda engine: threading.current_thread().name))
    for repo in repos[1:]:
        assert await worktrees.work(repo, lambda engine: str(engine.root)) == repo
    go.set()
    assert await first == await second
    worktrees.close()


@pytest.mark.parametrize(
    ("letter", "names"),
    [
        ("", ["x/7", "x/8", "x/9"]),
        ("a", ["x/7a", "x/8a", "x/9a"]),
        ("s2", ["x/7s2", "x/7s3", "x/7s4"]),
        ("p", ["x/7p", "x/7p2", "x/7p3"]),
    ],
)
def test_names_that_are_tried(letter: str, names: list[str]) -> None:
    request = Request(worktree="/w", kind="before", bond=Bond(), series="x", number=7, letter=letter)
    assert ref_names(request)[:3] == names


async def test_progress_is_shown_when_there_is_some_and_it_takes_long() -> None:
    bus, seen = Bus(), list[Notice]()
    bus.attach(Waker(seen.append))
    with Progress(bus, "ses_1", None) as progress:
        progress.heard("files", 1, 9)
    await asyncio.sleep(FIRST_S + 0.1)
    assert seen == []
    with Progress(bus, "ses_1", "run_1") as progress:
        progress.heard("files", 1, 9)
        progress.heard("files", 2, 9)
        while not seen:
            await asyncio.sleep(0.01)
    assert [(notice.session_id, notice.run_id, notice.data.done) for notice in seen] == [("ses_1", "run_1", 2)]  # type: ignore[attr-defined]


async def applied(app: App, client: HubClient, repo: Path) -> tuple[Plan, str]:
    """Restore a checkpoint up to the point between its files and its commit, and leave it there."""
    made = await client.call("checkpoint.create", workspace=str(repo))
    (repo / "a.txt").write_text("two\n")
    worktrees = app.services.worktrees
    plan = await worktrees.work(str(repo), lambda engine: engine.plan(made.ref, undo_ref="x/1u", labels={}))
    intent = Intent(
        session_id=None,
        worktree=str(repo),
        checkpoint_id=made.id,
        undo_id=None,
        only=None,
        direction="restore",
        previous_head=None,
        txid=plan.txid,
        summary={"restored": 1, "created": 0, "deleted": 0},
        scope={"paths": None, "reach": "tree", "head": False},
    )
    restore_id = await app.services.database.write(lambda tx: checkpoints.begin_restore(tx, intent))
    await worktrees.work(str(repo), lambda engine: engine.apply(plan))
    assert (repo / "a.txt").read_text() == "one\n"
    return plan, restore_id


@pytest.mark.parametrize(("committed", "text"), [(False, "two\n"), (True, "one\n")])
async def test_what_was_left_of_a_restore_is_settled_at_next_use(tmp_path: Path, committed: bool, text: str) -> None:
    repo = make_repo(tmp_path / "repo")
    async with running_app(tmp_path / "home") as (app, client):
        _, restore_id = await applied(app, client, repo)

        def commit(tx: Transaction) -> None:
            outcome = Outcome(messages=0, cancelled=0, resumed=0, head_moved=False)
            checkpoints.commit_restore(tx, restore_id, outcome, None)

        if committed:
            await app.services.database.write(commit)
        await client.call("checkpoint.create", workspace=str(repo), note="the next use")
        assert (repo / "a.txt").read_text() == text
        assert await app.services.database.read(checkpoints.unsettled_restores) == []
