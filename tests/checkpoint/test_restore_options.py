"""How a restore ends when something fails, what a plan tells, and what is said when the way back is broken."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.values import CheckpointError, Plan
from hub.errors import NotFoundError, RefusedError, TurnbackError
from tests.checkpoint.world import World, differing, restore


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    w = World(tmp_path_factory.mktemp("made") / "w")
    w.base()
    w.engine().capture("ses/1", labels={})
    w.agent()
    return w


@pytest.fixture
def world(made: World, tmp_path: Path) -> World:
    return made.copy(tmp_path / "w")


def planned(engine: Engine) -> Plan:
    return engine.plan("ses/1", undo_ref="ses/1u", labels={})


def at_target(tmp_path: Path) -> dict[bytes, tuple[str, int, bytes]]:
    w = World(tmp_path / "target")
    w.base()
    return w.files()


def failing_at(wanted: str, passed: list[str]) -> Callable[[str], None]:
    """Return a hook that meets a full disk at one step, by name or by number (`#3`)."""

    def hook(step: str) -> None:
        passed.append(step)
        if wanted in (step, f"#{len(passed) - 1}"):
            raise OSError(28, "No space left on device")

    return hook


def leftovers(w: World) -> list[str]:
    return os.listdir(Path(w.root, ".git/turnback/txn"))


@pytest.mark.parametrize("step", ["committed", "cleaning"])
def test_after_the_commit_point_nothing_that_fails_undoes_it(world: World, tmp_path: Path, step: str) -> None:
    """The restore counts, the worktree is free for others, and the next call cleans up."""
    engine, target = world.engine(), at_target(tmp_path)
    plan = planned(engine)
    engine.apply(plan)
    engine.hook = failing_at(step, [])
    assert engine.finish(plan.txid) == ()
    assert differing(target, world.files()) == {}
    assert leftovers(world) == [plan.txid]
    other = world.engine(lock_wait_s=0.0)
    other.capture("ses/2", labels={})
    assert leftovers(world) == []
    assert differing(target, world.files()) == {}
    engine.hook = lambda _: None
    engine.capture("ses/3", labels={})


def test_what_a_failed_clean_up_left_is_still_put_aside(world: World) -> None:
    """An editor wrote on into the old file, and the disk was full when the restore ended: its bytes are kept."""
    engine = world.engine()
    plan = planned(engine)
    with open(world.path("a.txt"), "ab") as editor:
        engine.apply(plan)
        editor.write(b"typed on\n")
    engine.hook = failing_at("committed", [])
    engine.finish(plan.txid)
    (recovered,) = world.engine().recover(lambda _: False)
    assert (recovered.direction, [kept.path for kept in recovered.rescued]) == ("forward", ["a.txt"])
    assert Path(recovered.rescued[0].reason.removeprefix("moved to ")).read_bytes().endswith(b"typed on\n")
    assert leftovers(world) == []


def test_before_the_commit_point_the_caller_may_try_again(world: World, tmp_path: Path) -> None:
    engine, target = world.engine(), at_target(tmp_path)
    plan = planned(engine)
    engine.apply(plan)
    engine.hook = failing_at("finishing", [])
    with pytest.raises(CheckpointError) as failed:
        engine.finish(plan.txid)
    assert failed.value.code == "disk_full"
    with pytest.raises(TurnbackError) as refused:
        world.engine(lock_wait_s=0.0).capture("ses/2", labels={})
    assert refused.value.code == "workspace_busy"
    engine.hook = lambda _: None
    engine.finish(plan.txid)
    assert differing(target, world.files()) == {}
    world.engine(lock_wait_s=0.0).capture("ses/2", labels={})


def steps_of(world: World, tmp_path: Path, end: Callable[[Engine, str], object]) -> list[str]:
    """Return the steps that the end of an applied restore has."""
    w, passed = world.copy(tmp_path / "counted"), []
    engine = w.engine()
    plan = planned(engine)
    engine.apply(plan)
    engine.hook = failing_at("", passed)
    end(engine, plan.txid)
    return passed


def abort(engine: Engine, txid: str) -> object:
    return engine.abort(txid)


def recover(engine: Engine, txid: str) -> object:
    return engine.recover(lambda _: False)


@pytest.mark.parametrize("end", [abort, recover])
def test_an_end_that_fails_on_the_way_back_is_ended_by_the_next_call(
    world: World, tmp_path: Path, end: Callable[[Engine, str], object]
) -> None:
    before = world.state()
    steps = steps_of(world, tmp_path, end)
    assert {"back:index", "back:clean"} <= set(steps)
    for number in range(0, len(steps), 9):
        w = world.copy(tmp_path / f"{number}")
        engine = w.engine()
        plan = planned(engine)
        engine.apply(plan)
        engine.hook = failing_at(f"#{number}", [])
        if steps[number] == "back:clean":
            end(engine, plan.txid)
        else:
            with pytest.raises(CheckpointError) as failed:
                end(engine, plan.txid)
            assert failed.value.code == "disk_full"
        other = w.engine(lock_wait_s=0.0)
        assert other.capture("ses/2", labels={}).tree_digest == other.get("ses/1u").tree_digest
        assert (differing(before, w.state()), leftovers(w)) == ({}, [])
        engine.capture("ses/3", labels={})


@pytest.mark.parametrize("committed", [False, True])
def test_an_index_that_git_has_only_refreshed_is_still_ours(world: World, tmp_path: Path, committed: bool) -> None:
    """Somebody looks with `git status` while a restore waits for its end: that is nobody's staging."""
    before, target, engine = world.state(), at_target(tmp_path), world.engine()
    plan = planned(engine)
    engine.apply(plan)
    inode = os.stat(world.path(".git/index")).st_ino
    os.utime(world.path("dir/d.txt"))
    world.git("update-index", "-q", "--refresh", check=False)
    assert os.stat(world.path(".git/index")).st_ino != inode
    (recovered,) = engine.recover(lambda _: committed)
    assert recovered.rescued == ()
    assert differing(target if committed else before["files"], world.files()) == {}
    assert (world.index() == before["index"]) != committed


def test_a_staging_after_the_restore_stays(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    engine.apply(plan)
    world.git("add", "u.txt")
    staged = world.index()
    (kept,) = engine.abort(plan.txid)
    assert (kept.path, world.index()) == ("index", staged)


def test_the_way_back_after_a_failed_clean_up_is_no_failure(world: World) -> None:
    before, engine = world.state(), world.engine()
    plan = planned(engine)
    engine.apply(plan)
    engine.hook = failing_at("back:clean", [])
    assert engine.abort(plan.txid) == ()
    assert differing(before, world.state()) == {}
    world.engine(lock_wait_s=0.0).capture("ses/2", labels={})
    assert leftovers(world) == []


def test_a_failure_at_each_step_of_a_restore_takes_it_back(world: World, tmp_path: Path) -> None:
    before, passed = world.state(), []
    w = world.copy(tmp_path / "counted")
    engine = w.engine()
    engine.hook = failing_at("", passed)
    restore(engine, "ses/1", "ses/1u")
    first, last = passed.index("staging"), passed.index("applied")
    for number in range(first, last, 9):
        w = world.copy(tmp_path / f"{number}")
        engine = w.engine()
        engine.hook = failing_at(f"#{number}", [])
        with pytest.raises(CheckpointError):
            restore(engine, "ses/1", "ses/1u")
        assert (differing(before, w.state()), leftovers(w)) == ({}, []), passed[number]
        w.engine(lock_wait_s=0.0).capture("ses/2", labels={})


def test_one_that_cannot_be_ended_does_not_hold_up_the_others(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    engine.apply(plan)
    broken = Path(world.root, ".git/turnback/txn/0000")
    broken.mkdir()
    (broken / "plan.json").write_text("{")
    with pytest.raises(CheckpointError) as failed:
        engine.recover(lambda _: True)
    assert failed.value.code == "journal_unreadable"
    assert leftovers(world) == ["0000"]


def test_a_plan_is_a_value(world: World, tmp_path: Path) -> None:
    """It can be sent, read by others and carried out from what was sent; its id is that of the restore."""
    target = at_target(tmp_path)
    plan = planned(world.engine())
    sent = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    assert (sent, sent.id) == (plan, plan.txid)
    engine = world.engine()
    engine.apply(sent)
    engine.finish(sent.id)
    assert differing(target, world.files()) == {}


def test_a_plan_tells_sizes(world: World) -> None:
    plan = world.engine().preview("ses/1")
    sizes = {step.path: (step.old_size, step.new_size) for step in (*plan.writes, *plan.creations, *plan.deletions)}
    assert sizes["a.txt"] == (len("a by the agent\n"), len("a modified by the user\n"))
    assert sizes["new/n.txt"] == (4, None)
    assert sizes["dir/sub/e.txt"] == (None, len("dir/sub/e.txt at base\n"))


def losing(w: World, oid: str, *, damage: bool) -> None:
    """Lose an object of the repository, or damage it."""
    path = Path(w.root, ".git/objects", oid[:2], oid[2:])
    path.chmod(0o644)
    if damage:
        path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    else:
        path.unlink()


def object_of(w: World, what: str) -> str:
    return w.git("rev-parse", f"refs/turnback/ses/1{what}").decode().strip()


@pytest.fixture
def own(tmp_path: Path) -> World:
    """A worktree whose checkpoint has every object for itself: nothing of it is in a commit of the user's."""
    w = World(tmp_path / "w")
    w.put("first", "first\n")
    w.commit()
    w.put("dir/only", "only here\n")
    w.put("staged", "staged\n")
    w.git("add", "staged")
    w.engine().capture("ses/1", labels={})
    w.git("rm", "-q", "--cached", "staged")
    for name in ("dir/only", "staged"):
        w.remove(name)
    os.rmdir(w.path("dir"))
    return w


@pytest.mark.parametrize("damage", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "what", ["", "^{tree}", ":worktree", ":worktree/dir", ":worktree/dir/only", ":index", ":meta.json"]
)
def test_a_checkpoint_that_lost_an_object_is_refused(own: World, what: str, damage: bool) -> None:
    """Pruned by somebody, or a damaged disk: a clear text, and nothing touched."""
    before = own.state()
    losing(own, object_of(own, what), damage=damage)
    engine = own.engine()
    with pytest.raises(TurnbackError) as refused:
        restore(engine, "ses/1", "ses/1u")
    assert refused.value.code in ("checkpoint_incomplete", "checkpoint_not_found")
    assert refused.value.hint is not None or what in ("", "^{tree}", ":meta.json")
    assert differing(before, own.state()) == {}
    if what:
        engine.capture("ses/2", labels={})


def test_an_object_lost_after_the_plan_is_found_before_anything_is_touched(own: World) -> None:
    engine, before = own.engine(), own.state()
    plan = planned(engine)
    losing(own, object_of(own, ":worktree/dir/only"), damage=False)
    with pytest.raises(CheckpointError) as refused:
        engine.apply(plan)
    assert (refused.value.code, differing(before, own.state()), leftovers(own)) == ("checkpoint_incomplete", {}, [])


def test_other_content_under_the_same_name_is_not_restored(own: World) -> None:
    """A store that gives other bytes for an object: what is staged is checked."""
    engine, before = own.engine(), own.state()
    plan = planned(engine)
    oid = object_of(own, ":worktree/dir/only")
    losing(own, oid, damage=False)
    other = own.git("hash-object", "-w", "--stdin", stdin=b"other here\n").decode().strip()
    own.put(f".git/objects/{oid[:2]}/{oid[2:]}", own.get(f".git/objects/{other[:2]}/{other[2:]}"))
    with pytest.raises(CheckpointError) as refused:
        engine.apply(plan)
    assert (refused.value.code, differing(before, own.state())) == ("checkpoint_incomplete", {})


def test_a_ref_deleted_by_hand(world: World) -> None:
    engine, before = world.engine(), world.state()
    plan = planned(engine)
    world.git("update-ref", "-d", "refs/turnback/ses/1")
    for call in (lambda: engine.apply(plan), lambda: engine.preview("ses/1"), lambda: engine.get("ses/1")):
        with pytest.raises(NotFoundError) as missing:
            call()
        assert missing.value.code == "checkpoint_not_found"
    assert differing(before, world.state()) == {}


def test_a_repository_that_was_cloned_anew(world: World, tmp_path: Path) -> None:
    """Same path, another repository: the checkpoints are not there, and the text says so."""
    engine = world.engine()
    plan = planned(engine)
    shutil.move(world.root, tmp_path / "old")
    subprocess.run(["git", "clone", "-q", str(tmp_path / "old"), str(world.root)], check=True, capture_output=True)
    before = world.state()
    for call in (lambda: engine.apply(plan), lambda: engine.preview("ses/1")):
        with pytest.raises(NotFoundError) as missing:
            call()
        assert missing.value.code == "checkpoint_not_found"
    assert differing(before, world.state()) == {}
    engine.capture("ses/1", labels={})
    with pytest.raises(NotFoundError):
        engine.finish(plan.txid)


def test_a_checkpoint_fetched_from_another_clone_is_of_another_worktree(world: World, tmp_path: Path) -> None:
    """C68: its bytes are here, but it says of itself where it was taken."""
    subprocess.run(["git", "clone", "-q", str(world.root), str(tmp_path / "b")], check=True, capture_output=True)
    other = World.at(tmp_path / "b")
    other.git("fetch", "-q", "origin", "refs/turnback/*:refs/turnback/*")
    with pytest.raises(RefusedError) as refused:
        other.engine().preview("ses/1")
    assert refused.value.code == "other_worktree"


def test_a_worktree_that_vanished(world: World, tmp_path: Path) -> None:
    engine = world.engine()
    plan = planned(engine)
    shutil.move(world.root, tmp_path / "gone")
    calls = (
        lambda: engine.capture("ses/2", labels={}),
        lambda: engine.apply(plan),
        lambda: engine.preview("ses/1"),
        lambda: engine.finish(plan.txid),
        lambda: engine.recover(lambda _: False),
    )
    for call in calls:
        with pytest.raises(TurnbackError) as gone:
            call()
        assert (gone.value.code, gone.value.hint is not None) == ("worktree_gone", True)
    assert not world.root.exists()
    shutil.move(tmp_path / "gone", world.root)
    engine.apply(plan)
    engine.finish(plan.txid)
