"""The branch that moves with a restore: only along its own history, told in the reflog, never without a way back."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hub.checkpoint.capture.operations import head_of
from hub.checkpoint.engine import Engine
from hub.checkpoint.values import Plan
from hub.errors import ConflictError, RefusedError, TurnbackError, UsageError
from tests.checkpoint.world import World, differing

CHILD = """
import os, signal, sys
from pathlib import Path
from hub.checkpoint.engine import Engine

engine = Engine.open(Path(sys.argv[1]))
plan = engine.plan("ses/1", undo_ref="ses/1u", labels={}, head=True, kept_head_ref="ses/1o")
passed = 0

def hook(step):
    global passed
    if sys.argv[3] in (step, f"#{passed}"):
        os.kill(os.getpid(), signal.SIGKILL)
    passed += 1

engine.hook = hook
engine.apply(plan)
getattr(engine, sys.argv[2])(plan.txid)
print(passed)
"""
"""Carries out a restore with its branch, ends it by `finish` or `abort`, and kills itself at a step."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    w = World(tmp_path_factory.mktemp("made") / "w")
    w.base()
    w.engine().capture("ses/1", labels={})
    w.put("a.txt", "a by the agent\n")
    w.commit("first of the agent")
    w.put("new.txt", "new\n")
    w.commit("second of the agent")
    w.put("a.txt", "a again\n")
    return w


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    return made.copy(tmp_path / "w")


def tip(w: World, ref: str = "HEAD") -> str:
    return w.git("rev-parse", ref).decode().strip()


def planned(engine: Engine, target: str = "ses/1", number: int = 1) -> Plan:
    return engine.plan(target, undo_ref=f"ses/{number}u", labels={}, head=True, kept_head_ref=f"ses/{number}o")


def carry_out(engine: Engine, plan: Plan) -> bool:
    applied = engine.apply(plan)
    engine.finish(plan.txid)
    return applied.head_moved


def without_reflog(state: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in state.items() if name != "reflog"}


def at_target(tmp_path: Path) -> dict[str, object]:
    w = World(tmp_path / "target")
    w.base()
    return without_reflog(w.state())


def test_the_branch_goes_back_and_its_old_tip_is_kept(world: World, tmp_path: Path) -> None:
    """C09: with the branch, everything is as at the checkpoint, and the agent's commits are under a ref."""
    engine, old = world.engine(), tip(world)
    plan = planned(engine)
    assert plan.head is not None
    assert (plan.head.ref, plan.head.commits, plan.head.kept_ref) == ("refs/heads/main", 2, "ses/1o")
    assert plan.notes == ("2 commits come off main; a ref keeps them, and undo brings them back.",)
    assert carry_out(engine, plan) is True
    assert differing(at_target(tmp_path), without_reflog(world.state())) == {}
    assert tip(world, "refs/turnback/ses/1o") == old
    told = world.git("reflog", "-n1", "--format=%gs", "HEAD")
    assert told == b"turnback: restore of ses/1\n"
    assert world.git("fsck", "--strict", "--no-dangling") == b""


def test_undo_brings_the_branch_forward_again(world: World) -> None:
    engine, before = world.engine(), without_reflog(world.state())
    carry_out(engine, planned(engine))
    plan = engine.plan("ses/1u", undo_ref="ses/2u", labels={}, head=True, kept_head_ref="ses/2o")
    assert plan.head is not None
    assert (plan.head.forward, plan.head.commits, plan.head.kept_ref) == (True, 2, None)
    carry_out(engine, plan)
    assert differing(before, without_reflog(world.state())) == {}
    carry_out(engine, engine.plan("ses/2u", undo_ref="ses/3u", labels={}, head=True, kept_head_ref="ses/3o"))
    assert tip(world, "refs/turnback/ses/3o") == tip(world, "refs/turnback/ses/1o")


def test_without_asking_the_branch_stays(world: World) -> None:
    engine, old = world.engine(), tip(world)
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    assert (plan.head, plan.head_distance) == (None, 2)
    carry_out(engine, plan)
    assert tip(world) == old


def test_nothing_moves_where_no_commit_was_made(tmp_path: Path) -> None:
    w = World(tmp_path / "w")
    w.base()
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.agent()
    plan = planned(engine)
    assert (plan.head, carry_out(engine, plan)) == (None, False)
    assert w.git("for-each-ref", "refs/turnback/ses/1o") == b""


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (["checkout", "-q", "-b", "other"], "other_branch"),
        (["checkout", "-q", "--detach"], "other_branch"),
        (["reset", "-q", "--soft", "HEAD~2"], None),
        (["commit", "-q", "--amend", "-m", "amended"], None),
    ],
)
def test_another_branch_is_refused(world: World, change: list[str], code: str | None) -> None:
    world.git(*change)
    before, engine = world.state(), world.engine()
    if code is None:
        head = planned(engine).head
        assert (head is None) == (change[0] == "reset")
        return
    with pytest.raises(RefusedError) as refused:
        planned(engine)
    assert refused.value.code == code
    assert differing(before, world.state()) == {}


def test_a_history_that_was_rewritten_is_refused(world: World) -> None:
    """The recorded commit is not behind the present one, and nobody took the present one off the branch."""
    world.git("checkout", "-q", "--orphan", "fresh")
    world.git("commit", "-q", "-m", "rewritten")
    world.git("branch", "-q", "-f", "main", "fresh")
    world.git("checkout", "-q", "main")
    with pytest.raises(RefusedError) as refused:
        planned(world.engine())
    assert refused.value.code == "head_not_ancestor"


def test_forward_goes_only_what_a_restore_took_off(world: World) -> None:
    """The user himself went back: his choice is not turned round by a restore."""
    engine = world.engine()
    engine.capture("ses/2", labels={})
    world.git("reset", "-q", "--soft", "HEAD~1")
    with pytest.raises(RefusedError) as refused:
        planned(engine, "ses/2", 2)
    assert refused.value.code == "head_not_ancestor"


def test_an_unborn_branch_is_refused(tmp_path: Path) -> None:
    w = World(tmp_path / "w")
    w.put("a", "a\n")
    engine = w.engine()
    engine.capture("ses/1", labels={})
    assert planned(engine, number=2).head is None
    w.commit("first")
    with pytest.raises(RefusedError) as refused:
        planned(engine, number=3)
    assert refused.value.code == "head_unknown"


def test_a_merge_in_progress_is_refused_with_the_reason(world: World) -> None:
    world.git("checkout", "-q", "--", "a.txt")
    world.git("checkout", "-q", "-b", "side", "HEAD~1")
    world.put("new.txt", "another\n")
    world.commit("other")
    world.git("checkout", "-q", "main")
    world.git("merge", "side", check=False)
    with pytest.raises(RefusedError) as refused:
        planned(world.engine())
    assert refused.value.code == "operation_changed"
    assert "a merge" in refused.value.message


def test_what_does_not_go_together(world: World) -> None:
    engine = world.engine()
    for options in ({"paths": ["a.txt"]}, {"reach": "session", "owner": "one"}):
        with pytest.raises(UsageError):
            engine.preview("ses/1", head=True, kept_head_ref="ses/1o", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError):
        engine.preview("ses/1", head=True)
    with pytest.raises(RefusedError) as refused:
        engine.preview("ses/1", head=True, kept_head_ref="ses/1o", owner="one")
    assert refused.value.code == "head_needs_tree"
    with pytest.raises(ConflictError) as taken:
        engine.plan("ses/1", undo_ref="ses/2u", labels={}, head=True, kept_head_ref="ses/1")
    assert taken.value.code == "ref_exists"


def test_a_detached_head_goes_back_as_well(tmp_path: Path) -> None:
    w = World(tmp_path / "w")
    w.base()
    w.git("checkout", "-q", "--detach")
    engine = w.engine()
    engine.capture("ses/1", labels={})
    first = tip(w)
    w.commit("detached")
    plan = planned(engine)
    assert plan.head is not None
    assert (plan.head.ref, carry_out(engine, plan)) == ("HEAD", True)
    assert (tip(w), w.get(".git/HEAD").decode().strip()) == (first, first)


def test_a_linked_worktree_moves_its_own_branch(world: World, tmp_path: Path) -> None:
    world.git("branch", "-q", "linked")
    world.git("worktree", "add", "-q", str(tmp_path / "linked"), "linked")
    linked = World.at(tmp_path / "linked")
    engine, main, first = linked.engine(), tip(world), tip(linked)
    engine.capture("lin/1", labels={})
    linked.put("x", "x\n")
    linked.commit("linked")
    carry_out(engine, planned(engine, "lin/1"))
    assert (tip(linked), tip(world)) == (first, main)


@pytest.mark.parametrize("step", ["begun", "index", "head"])
def test_a_commit_in_the_middle_takes_all_back(world: World, step: str) -> None:
    engine = world.engine()
    plan = planned(engine)
    files = world.files()

    def hook(name: str) -> None:
        if name == step:
            world.git("update-ref", "HEAD", world.git("commit-tree", "HEAD^{tree}", "-p", "HEAD", "-m", "m").strip())

    engine.hook = hook
    with pytest.raises(ConflictError) as moved:
        engine.apply(plan)
    assert moved.value.code == "head_moved"
    assert (differing(files, world.files()), world.git("for-each-ref", "refs/turnback/ses/1o")) == ({}, b"")
    assert world.git("log", "-1", "--format=%s") == b"m\n"


def test_an_abort_brings_the_branch_back(world: World) -> None:
    engine, before = world.engine(), without_reflog(world.state())
    plan = planned(engine)
    engine.apply(plan)
    assert tip(world) != tip(world, "refs/turnback/ses/1o")
    assert engine.abort(plan.txid) == ()
    assert differing(before, without_reflog(world.state())) == {}
    assert world.git("for-each-ref", "refs/turnback/ses/1o") == b""


def test_a_branch_that_the_user_moved_since_stays_there(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    engine.apply(plan)
    world.git("commit", "-q", "--allow-empty", "-m", "by the user")
    mine = tip(world)
    (kept,) = engine.abort(plan.txid)
    assert (kept.path, tip(world)) == ("HEAD", mine)
    assert tip(world, "refs/turnback/ses/1o") == plan.head.old if plan.head else ""


def test_a_locked_branch_takes_all_back(world: World) -> None:
    engine, before = world.engine(), world.state()
    plan = planned(engine)
    world.put(".git/refs/heads/main.lock", "")
    with pytest.raises(TurnbackError):
        engine.apply(plan)
    world.remove(".git/refs/heads/main.lock")
    engine.capture("ses/2", labels={})
    assert differing(without_reflog(before), without_reflog(world.state())) == {}
    assert world.git("for-each-ref", "refs/turnback/ses/1o") == b""


def killed_at(world: World, end: str, step: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-c", CHILD, str(world.root), end, step]
    return subprocess.run(command, capture_output=True, check=False, cwd=Path(__file__).parents[2])


def kill_at(world: World, tmp_path: Path, end: str, steps: list[str]) -> set[str]:
    """Kill a restore at these steps, each in a copy; return on which sides recovery ended."""
    before = without_reflog(world.state())
    twin = world.copy(tmp_path / "whole")
    done = killed_at(twin, "finish", "")
    assert done.returncode == 0, done.stderr.decode()
    after, seen = without_reflog(twin.state()), set()
    steps = steps or [f"#{number}" for number in range(int(killed_at(world.copy(tmp_path / "n"), end, "").stdout))]
    for step in steps:
        w = world.copy(tmp_path / f"{end}{step}")
        killed = killed_at(w, end, step)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        w.engine(lock_wait_s=30.0).recover(lambda _: False)
        now, kept = without_reflog(w.state()), w.git("for-each-ref", "refs/turnback/ses/1o") != b""
        side = "after" if kept else "before"
        assert differing(after if kept else before, now) == {}, step
        assert list(Path(w.root, ".git/turnback/txn").iterdir()) == []
        seen.add(side)
    return seen


def test_killed_around_the_branch(world: World, tmp_path: Path) -> None:
    assert kill_at(world, tmp_path, "finish", ["head_done", "committed"]) == {"before", "after"}


def test_killed_while_the_branch_comes_back(world: World, tmp_path: Path) -> None:
    assert kill_at(world, tmp_path, "abort", ["back:index"]) == {"before"}


@pytest.mark.slow
@pytest.mark.parametrize("end", ["finish", "abort"])
def test_killed_at_every_step_with_the_branch(world: World, tmp_path: Path, end: str) -> None:
    assert "before" in kill_at(world, tmp_path, end, [])


def test_head_is_read_wherever_git_keeps_it(world: World) -> None:
    """In a file of its own, packed, packed and then moved, detached, on no commit: as git says."""

    def told() -> tuple[str | None, str | None]:
        git_dir = world.path(".git")
        view = world.engine()._store.user
        return head_of(view, git_dir, git_dir)

    assert told() == (tip(world), "refs/heads/main")
    world.git("branch", "main2", "HEAD~1")
    world.git("pack-refs", "--all")
    assert not world.exists(".git/refs/heads/main")
    assert told() == (tip(world), "refs/heads/main")
    world.git("commit", "-q", "--allow-empty", "-m", "moved on")
    assert told() == (tip(world), "refs/heads/main")
    world.git("checkout", "-q", "--detach", "main2")
    assert told() == (tip(world), None)
    world.git("checkout", "-q", "--orphan", "fresh")
    assert told() == (None, "refs/heads/fresh")
    world.put(".git/refs/heads/fresh", "ref: refs/heads/main2\n")
    assert told() == (tip(world, "main2"), "refs/heads/fresh")
