"""Paths that change while a restore is carried out: taken back, kept or overruled, as the caller wants; never lost."""

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.restoring import renames
from hub.checkpoint.values import Applied, CheckpointError, FilesMoved, OnConflict, Plan
from hub.errors import ConflictError
from tests.checkpoint.world import World, differing, restore

MINE = b"saved by the user in the middle\n"
PATHS = ["a.txt", "b.txt", "dir/sub/e.txt", "new/n.txt", "u.txt", "dir/moved.txt"]
SOME = [*PATHS[:3], *(pytest.param(name, marks=pytest.mark.slow) for name in PATHS[3:])]
"""One that is written, one that is deleted, one that is created."""


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


def replace(w: World, name: str) -> None:
    w.put(".git/swap", MINE)
    os.makedirs(os.path.dirname(w.path(name)), exist_ok=True)
    os.rename(w.path(".git/swap"), w.path(name))


def overwrite(w: World, name: str) -> None:
    w.put(name, MINE)


def append(w: World, name: str) -> None:
    w.put(name, (w.get(name) if w.exists(name) else b"") + MINE)


def at_target(tmp_path: Path) -> World:
    """Return a world that is as it was at the checkpoint."""
    w = World(tmp_path / "target")
    w.base()
    return w


def rescued(applied: Applied) -> bytes:
    """Return the bytes that a restore put aside, from where it says they are."""
    found = b""
    for conflict in applied.conflicts:
        if conflict.rescue is not None:
            with open(conflict.rescue, "rb") as stream:
                found += stream.read()
    return found


@pytest.mark.parametrize("name", SOME)
def test_mine_is_kept_and_named(world: World, tmp_path: Path, name: str) -> None:
    engine, target = world.engine(), at_target(tmp_path).files()
    plan = planned(engine)
    replace(world, name)
    applied = engine.apply(plan, on_conflict="keep-mine")
    engine.finish(plan.txid)
    assert name in {conflict.path for conflict in applied.conflicts}
    assert world.get(name) == MINE
    others = {path for path in differing(target, world.files()) if not os.fsencode(name).startswith(path)}
    assert others == set()
    counts = len(plan.writes) + len(plan.creations) + len(plan.deletions)
    assert applied.written + applied.created + applied.deleted == counts - 1


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("save", [replace, pytest.param(append, marks=pytest.mark.slow)])
def test_the_checkpoint_is_taken_and_mine_put_aside(
    world: World, tmp_path: Path, name: str, save: Callable[[World, str], None]
) -> None:
    engine, target = world.engine(), at_target(tmp_path).files()
    plan = planned(engine)
    save(world, name)
    applied = engine.apply(plan, on_conflict="take-checkpoint")
    kept = engine.finish(plan.txid)
    assert differing(target, world.files()) == {}
    (conflict,) = applied.conflicts
    assert conflict.path == name
    assert [f"moved to {conflict.rescue}"] == [row.reason for row in kept if row.path == name]
    assert MINE in rescued(applied)


@pytest.mark.parametrize("mode", ["keep-mine", "take-checkpoint"])
def test_what_was_taken_out_comes_back_with_an_abort(world: World, mode: OnConflict) -> None:
    engine = world.engine()
    plan = planned(engine)
    for name in PATHS[1:-1]:
        replace(world, name)
    world.remove("a.txt")
    world.remove("dir/moved.txt")
    before = world.state()
    applied = engine.apply(plan, on_conflict=mode)
    already = {"dir/moved.txt"} if mode == "take-checkpoint" else set()  # gone, as the checkpoint wants it
    assert {conflict.path for conflict in applied.conflicts} == set(PATHS) - already
    assert [conflict.rescue for conflict in applied.conflicts if conflict.path == "a.txt"] == [None]
    assert engine.abort(plan.txid) == ()
    assert differing(before, world.state()) == {}


def test_a_folder_and_a_new_file_in_the_way_of_the_checkpoint(world: World, tmp_path: Path) -> None:
    """What took the place of a file, or of a folder that is made, goes aside whole."""
    engine, target = world.engine(), at_target(tmp_path).files()
    plan = planned(engine)
    world.remove("a.txt")
    world.put("a.txt/deep/inside", MINE)
    world.put("dir/sub", MINE) if not world.exists("dir/sub") else shutil.rmtree(world.path("dir/sub"))
    world.put("dir/sub", MINE)
    applied = engine.apply(plan, on_conflict="take-checkpoint")
    engine.finish(plan.txid)
    assert differing(target, world.files()) == {}
    places = {conflict.path: str(conflict.rescue) for conflict in applied.conflicts}
    assert Path(places["a.txt"], "deep/inside").read_bytes() == MINE


def test_all_paths_that_moved_are_named(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    for name in ("u.txt", "new/n.txt", "dir/sub/e.txt"):
        overwrite(world, name)
    before = world.state()
    with pytest.raises(FilesMoved) as conflict:
        engine.apply(plan)
    assert conflict.value.code == "files_moved"
    assert conflict.value.details == {"paths": ["dir/sub/e.txt", "new/n.txt", "u.txt"]}
    assert "new/n.txt" in conflict.value.message
    assert differing(before, world.state()) == {}


def test_a_staging_of_mine_is_kept_with_its_index(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    world.git("add", "u.txt")
    staged = world.index()
    applied = engine.apply(plan, on_conflict="keep-mine")
    engine.finish(plan.txid)
    assert (applied.index_restored, [c.path for c in applied.conflicts]) == (False, ["index"])
    assert world.index() == staged
    assert world.get("u.txt") == b"untracked\n"


def staging_at_the_index(engine: Engine, world: World) -> None:
    engine.hook = lambda step: world.git("add", "-A") if step == "index" else None


def test_a_staging_in_the_middle_is_kept(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    staging_at_the_index(engine, world)
    applied = engine.apply(plan, on_conflict="keep-mine")
    engine.finish(plan.txid)
    assert ([conflict.path for conflict in applied.conflicts], applied.index_restored) == (["index"], False)
    assert b"untracked\n" in world.git("show", ":u.txt")


@pytest.mark.parametrize("mode", ["abort", "take-checkpoint"])
def test_a_staging_in_the_middle_takes_all_back(world: World, mode: OnConflict) -> None:
    """No checkpoint has the new entries: they are not overruled."""
    engine, files = world.engine(), world.files()
    plan = planned(engine)
    staging_at_the_index(engine, world)
    with pytest.raises(ConflictError) as conflict:
        engine.apply(plan, on_conflict=mode)
    assert (conflict.value.code, differing(files, world.files())) == ("index_moved", {})
    assert world.git("diff", "--cached", "--name-only", "--", "a.txt") == b"a.txt\n"


def everywhere(w: World) -> bytes:
    """Return all bytes that are on disk in the worktree or were put aside, or are held by our refs."""
    found = [entry[2] for entry in w.files().values()]
    for folder, _, files in os.walk(w.path(".git/turnback/rescue")):
        for name in files:
            with open(os.path.join(folder, name), "rb") as stream:
                found.append(stream.read())
    names = w.git("rev-list", "--objects", "--glob=refs/turnback/*")
    oids = b"".join(line.split(b" ")[0] + b"\n" for line in names.splitlines())
    return b"\n".join(found) + w.git("cat-file", "--batch", stdin=oids)


def save_at_every_step(world: World, tmp_path: Path, name: str, save: Callable[[World, str], None], **how: int) -> None:
    """Save a path at every `stride`-th step of a restore, for each way to treat conflicts; no byte is ever lost."""
    stride = how.get("stride", 1)
    modes: tuple[OnConflict, ...] = ("abort", "keep-mine", "take-checkpoint")
    for mode in modes:
        for wanted in itertools.count(how.get("start", 0), stride):
            w, passed = world.copy(tmp_path / f"{mode}{wanted}"), []
            engine = w.engine()

            def hook(step: str, w: World = w, passed: list[str] = passed, wanted: int = wanted) -> None:
                passed.append(step)
                if len(passed) == wanted + 1:
                    save(w, name)

            engine.hook = hook
            with contextlib.suppress(FilesMoved) if mode != "keep-mine" else contextlib.nullcontext():
                plan = planned(engine)
                engine.apply(plan, on_conflict=mode)
                engine.finish(plan.txid)
            saved = len(passed) > wanted
            assert not saved or MINE in everywhere(w), (mode, passed)
            shutil.rmtree(w.root)
            if not saved:
                break


def test_a_save_at_some_steps_is_never_lost(world: World, tmp_path: Path) -> None:
    save_at_every_step(world, tmp_path, "a.txt", append, stride=24, start=9)


@pytest.mark.slow
@pytest.mark.parametrize("save", [replace, overwrite, append])
@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("native", [True, False])
def test_a_save_at_every_step_is_never_lost(
    world: World,
    tmp_path: Path,
    name: str,
    save: Callable[[World, str], None],
    native: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not native:
        monkeypatch.setattr(renames, "NATIVE", None)
    save_at_every_step(world, tmp_path, name, save)


@pytest.mark.parametrize("mode", ["abort", "keep-mine", "take-checkpoint"])
def test_a_file_system_that_knows_no_swap(
    world: World, tmp_path: Path, mode: OnConflict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel has the call, and answers that this file system does not: the portable way does the same."""
    target = at_target(tmp_path).files()
    monkeypatch.setattr(renames, "NATIVE", (_refuses, 1, 2))
    engine = world.engine()
    plan = planned(engine)
    replace(world, "a.txt")
    replace(world, "dir/sub/e.txt")
    before = world.state()
    if mode == "abort":
        with pytest.raises(FilesMoved):
            engine.apply(plan)
        assert differing(before, world.state()) == {}
        return
    applied = engine.apply(plan, on_conflict=mode)
    engine.finish(plan.txid)
    assert {conflict.path for conflict in applied.conflicts} == {"a.txt", "dir/sub/e.txt"}
    left = {b"a.txt", b"dir/sub/e.txt"} if mode == "keep-mine" else set()
    assert differing(target, world.files()).keys() == left
    assert MINE in everywhere(world)


def _refuses(*words: object) -> int:
    renames.ctypes.set_errno(22)
    return -1


def test_overtaken_in_the_middle_of_the_portable_swap(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file appears while nothing stands at the path: it stays, and so does what stood there before."""
    monkeypatch.setattr(renames, "NATIVE", None)
    real = os.rename

    def rename(source: bytes, target: bytes, **options: int) -> None:
        real(source, target, **options)
        if target.endswith(renames.ASIDE) and source == b"a.txt":
            world.put("a.txt", MINE)

    engine = world.engine()
    for number, mode in enumerate(("abort", "keep-mine", "take-checkpoint")):
        world.put("a.txt", "a by the agent\n")
        plan = engine.plan("ses/1", undo_ref=f"ses/{number}u", labels={})
        with monkeypatch.context() as patched:
            patched.setattr(os, "rename", rename)
            if mode == "keep-mine":
                engine.apply(plan, on_conflict="keep-mine")
                engine.finish(plan.txid)
            else:
                with pytest.raises(FilesMoved):
                    engine.apply(plan, on_conflict=mode)  # type: ignore[arg-type]
        assert world.get("a.txt") == MINE
        assert b"a by the agent\n" in everywhere(world)


def test_a_restore_that_cannot_be_taken_back_at_once(world: World) -> None:
    """The way back fails, too: it is said, and the next call takes it back."""
    engine = world.engine()
    plan = planned(engine)
    before = world.state()

    def hook(step: str) -> None:
        if step == "index" or step.startswith("back:write"):
            raise OSError(28, "No space left on device")

    engine.hook = hook
    with pytest.raises(CheckpointError) as failed:
        engine.apply(plan)
    assert failed.value.code in ("rollback_failed", "disk_full")
    engine.hook = lambda _: None
    restore(engine, "ses/1u", "ses/2u")
    assert differing(before, world.state()) == {}


def cut_off_at(world: World, tmp_path: Path, mode: OnConflict, stride: int) -> None:
    """Cut a restore with conflicts off at every `stride`-th step; recovery brings back what was there before it."""
    for wanted in itertools.count(1, stride):
        w, passed = world.copy(tmp_path / f"{mode}{wanted}"), []
        engine = w.engine()
        plan = planned(engine)
        for name in ("u.txt", "new/n.txt", "b.txt"):
            replace(w, name)
        w.remove("a.txt")
        w.put("a.txt/inside", MINE)
        shutil.rmtree(w.path("dir/sub"))
        w.put("dir/sub", MINE)
        before = w.state()

        def hook(step: str, passed: list[str] = passed, wanted: int = wanted) -> None:
            passed.append(step)
            if len(passed) == wanted + 1:
                raise KeyboardInterrupt

        engine.hook = hook
        try:
            applied = engine.apply(plan, on_conflict=mode)
        except KeyboardInterrupt:
            settled = w.engine().recover(lambda _: False)
            assert {(row.direction, row.rescued) for row in settled} <= {("back", ()), ("discarded", ())}, passed
            assert differing(before, w.state()) == {}, passed
        else:
            assert {"a.txt", "u.txt", "new/n.txt", "b.txt"} <= {conflict.path for conflict in applied.conflicts}
            engine.hook = lambda _: None
            assert (engine.abort(plan.txid), differing(before, w.state())) == ((), {})
            return
        shutil.rmtree(w.root)


@pytest.mark.parametrize("mode", ["keep-mine", "take-checkpoint"])
def test_cut_off_among_conflicts(world: World, tmp_path: Path, mode: OnConflict) -> None:
    cut_off_at(world, tmp_path, mode, 8)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["keep-mine", "take-checkpoint"])
@pytest.mark.parametrize("native", [True, False])
def test_cut_off_everywhere_among_conflicts(
    world: World, tmp_path: Path, mode: OnConflict, native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not native:
        monkeypatch.setattr(renames, "NATIVE", None)
    cut_off_at(world, tmp_path, mode, 1)
