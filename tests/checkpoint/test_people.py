"""A restore among people who go on working: what they save at any moment is never lost, and they are told."""

import contextlib
import itertools
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hub.checkpoint.capture import known
from hub.checkpoint.engine import Engine
from hub.checkpoint.restoring import restore as restores
from hub.checkpoint.restoring.journal import Operation
from hub.checkpoint.restoring.moves import Ground
from hub.checkpoint.values import CheckpointError, Plan
from hub.errors import ConflictError, RefusedError
from tests.checkpoint.world import World, differing, lost, restore

MINE = b"saved by the user in the middle\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    w = World(tmp_path / "w")
    w.base()
    w.engine().capture("ses/1", labels={})
    w.agent()
    return w


def planned(engine: Engine) -> Plan:
    return engine.plan("ses/1", undo_ref="ses/1u", labels={})


def replace(w: World, name: str) -> None:
    w.put(name + ".swp", MINE)
    os.rename(w.path(name + ".swp"), w.path(name))


def overwrite(w: World, name: str) -> None:
    w.put(name, MINE)


def append(w: World, name: str) -> None:
    if w.exists(name):
        with open(w.path(name), "ab") as stream:
            stream.write(MINE)
    else:
        w.put(name, MINE)


def everywhere(w: World) -> bytes:
    """Return all bytes that are on disk in the worktree or were put aside."""
    found = [entry[2] for entry in w.files().values()]
    for folder, _, files in os.walk(w.path(".git/turnback/rescue")):
        for name in files:
            with open(os.path.join(folder, name), "rb") as stream:
                found.append(stream.read())
    return b"\n".join(found)


def in_history(w: World) -> bytes:
    """Return the content of every blob that our refs hold."""
    names = w.git("rev-list", "--objects", "--glob=refs/turnback/*")
    oids = b"".join(line.split(b" ")[0] + b"\n" for line in names.splitlines())
    return w.git("cat-file", "--batch", stdin=oids)


SAVES = [replace, overwrite, append]
PATHS = ["a.txt", "b.txt", "dir/sub/e.txt", "new/n.txt", "c.txt", "u.txt", "dir/moved.txt"]
"""Some are written by the restore, some created, some deleted, one is left alone."""


def save_at(world: World, copy: Path, save: Callable[[World, str], None], name: str, wanted: int) -> bool:
    """Let the user save a path before a step of a restore in a copy; return whether there is such a step.

    What he saved, and all that was there before, must be on disk or in a checkpoint afterwards.
    """
    w = world.copy(copy)
    engine, passed = w.engine(), 0

    def hook(step: str) -> None:
        nonlocal passed
        if passed == wanted:
            save(w, name)
        passed += 1

    plan = planned(engine)
    before = w.blobs()
    engine.hook = hook
    try:
        engine.apply(plan)
        engine.finish(plan.txid)
    except ConflictError as error:
        told = error.code, name in error.message
    else:
        told = "files_moved", True
    assert told == ("files_moved", True)
    if passed > wanted:
        assert MINE in everywhere(w) + in_history(w), f"{name} before step {wanted}"
    assert lost(w, before, plan.undo.commit) == set(), f"{name} before step {wanted}"
    shutil.rmtree(w.root)
    return passed > wanted


@pytest.mark.parametrize("save", SAVES)
def test_c65_a_save_at_some_steps_is_never_lost(
    world: World, tmp_path: Path, save: Callable[[World, str], None]
) -> None:
    """By replacing the file, in place, or as a new file: another path at each of the steps, others each time."""
    first = random.randrange(2)
    for number, name in enumerate(random.sample(PATHS, len(PATHS))):
        assert save_at(world, tmp_path / f"w{number}", save, name, first + 2 * number), "there are that many steps"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("name", PATHS)
def test_c65_a_save_at_every_step_is_never_lost(
    world: World, tmp_path: Path, save: Callable[[World, str], None], name: str
) -> None:
    steps = itertools.takewhile(lambda step: save_at(world, tmp_path / f"w{step}", save, name, step), itertools.count())
    assert len(list(steps)) > 10


def test_a_conflict_rolls_everything_back_and_names_the_path(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    world.put("u.txt", MINE)
    before = world.state()
    with pytest.raises(ConflictError) as conflict:
        engine.apply(plan)
    assert conflict.value.code == "files_moved"
    assert "u.txt" in conflict.value.message
    assert differing(before, world.state()) == {}
    restore(engine, "ses/1", "ses/2u")
    assert world.get("u.txt") == b"untracked\n"


def test_an_editor_that_goes_on_writing_into_the_old_file_is_rescued(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    with open(world.path("a.txt"), "ab") as editor:
        engine.apply(plan)
        editor.write(MINE)
    (kept,) = engine.finish(plan.txid)
    assert kept.path == "a.txt"
    with open(kept.reason.removeprefix("moved to "), "rb") as stream:
        assert stream.read() == b"a by the agent\n" + MINE


def test_a_staging_since_the_plan_is_a_conflict(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    world.git("add", "u.txt")
    before = world.state()
    with pytest.raises(ConflictError) as conflict:
        engine.apply(plan)
    assert (conflict.value.code, differing(before, world.state())) == ("index_moved", {})


def test_a_commit_since_the_plan_is_a_conflict(world: World) -> None:
    engine = world.engine()
    plan = planned(engine)
    world.git("commit", "-q", "--allow-empty", "-m", "meanwhile")
    before = world.state()
    with pytest.raises(ConflictError) as conflict:
        engine.apply(plan)
    assert (conflict.value.code, differing(before, world.state())) == ("head_moved", {})


def test_c54_r31_a_locked_index_is_a_conflict_and_captures_do_not_mind(world: World) -> None:
    """C54: `index.lock` left behind."""
    world.put(".git/index.lock", "")
    engine = world.engine()
    engine.capture("ses/2", labels={})
    plan = planned(engine)
    before = world.files()
    with pytest.raises(ConflictError) as conflict:
        engine.apply(plan)
    assert conflict.value.code == "index_locked"
    assert (world.files(), world.exists(".git/index.lock")) == (before, True)


def test_c64_r02_files_that_appeared_later_are_in_the_undo(world: World) -> None:
    """C64: a download goes, is listed before it goes, and comes back."""
    world.put("download.bin", MINE)
    engine = world.engine()
    plan = restore(engine, "ses/1", "ses/1u")
    assert "download.bin" in {step.path for step in plan.deletions}
    assert not world.exists("download.bin")
    restore(engine, "ses/1u", "ses/2u")
    assert world.get("download.bin") == MINE


def test_r65_untouched_files_keep_their_times(world: World) -> None:
    keep = os.stat(world.path("dir"))
    world.put("dir/keep.txt", "k")
    engine = world.engine()
    engine.capture("ses/2", labels={})
    stamp = os.stat(world.path("dir/keep.txt"))
    world.put("a.txt", "again\n")
    restore(engine, "ses/2", "ses/2u")
    assert os.stat(world.path("dir/keep.txt")) == stamp
    assert os.stat(world.path("dir")).st_ino == keep.st_ino


@pytest.mark.parametrize("content", [b"5678", b"1234"])
def test_a_change_that_keeps_size_and_time_within_one_second(world: World, content: bytes) -> None:
    """Git compares times by the second; what it cannot tell from before is read anew. Permission bits alone, too."""
    engine = world.engine()
    engine.capture("ses/2", labels={})
    time.sleep(1.05 - time.time() % 1)
    world.put("a.txt", b"1234")
    os.utime(world.path("a.txt"), ns=(10**18, 10**18))
    engine.capture("ses/3", labels={})
    world.put("a.txt", content, 0o600)
    os.utime(world.path("a.txt"), ns=(10**18, 10**18))
    restore(engine, "ses/3", "ses/3u")
    assert (world.get("a.txt"), os.stat(world.path("a.txt")).st_mode & 0o777) == (b"1234", 0o644)


def test_c45_a_file_that_is_written_all_the_time(world: World) -> None:
    """C45: the capture ends, and says which file it could not hold still, if it met it."""
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            append(world, "busy.log")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        taken = [world.engine().capture(f"ses/b{number}", labels={}) for number in range(3)]
    finally:
        stop.set()
        writer.join()
    assert {missed.path for checkpoint in taken for missed in checkpoint.uncaptured} <= {"busy.log"}
    content = world.git("show", f"{taken[-1].commit}:worktree/busy.log")
    assert content == MINE * (len(content) // len(MINE))


def _hold(root: str, ready: "multiprocessing.synchronize.Event", done: "multiprocessing.synchronize.Event") -> None:
    engine = Engine.open(Path(root), owner="session ses_1")

    def progress(phase: str, part: int, total: int) -> None:
        ready.set()
        done.wait(30)

    engine.capture("other/1", labels={}, progress=progress)


def test_c66_the_holder_of_the_lock_is_named(world: World) -> None:
    """C66: two sessions of different processes in one tree."""
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=_hold, args=(str(world.root), ready, done))
    holder.start()
    assert ready.wait(30)
    try:
        with pytest.raises(RefusedError) as refused:
            world.engine(lock_wait_s=0.1).capture("ses/2", labels={})
        assert refused.value.code == "workspace_busy"
        assert f"process {holder.pid} (session ses_1)" in refused.value.message
    finally:
        done.set()
        holder.join()
    assert world.engine().capture("ses/2", labels={}).files > 0


def test_the_lock_is_held_from_apply_to_finish(world: World) -> None:
    engine, other = world.engine(), world.engine(lock_wait_s=0.0)
    plan = planned(engine)
    engine.apply(plan)
    with pytest.raises(RefusedError) as refused:
        other.capture("ses/2", labels={})
    assert refused.value.code == "workspace_busy"
    with pytest.raises(RefusedError) as refused:
        engine.capture("ses/2", labels={})
    assert refused.value.code == "restore_in_progress"
    engine.finish(plan.txid)
    other.capture("ses/2", labels={})


def test_c66_two_processes_capture_at_once(world: World) -> None:
    script = (
        "import sys; from pathlib import Path; from hub.checkpoint.engine import Engine;"
        "e = Engine.open(Path(sys.argv[1]), lock_wait_s=60.0);"
        "[e.capture(f'{sys.argv[2]}/{n}', labels={}) for n in range(5)]"
    )
    children = [subprocess.Popen([sys.executable, "-c", script, str(world.root), name]) for name in ("one", "two")]
    assert [child.wait() for child in children] == [0, 0]
    assert len({checkpoint.tree_digest for checkpoint in world.engine().list()}) == 2


def test_c66_two_engines_take_turns(world: World) -> None:
    """What one of them knows of the folder is not what the other one has found since."""
    engines = [world.engine(), world.engine()]
    acts = [
        lambda: os.mkdir(world.path("empty")),
        lambda: world.put("dir/fresh.txt", "fresh\n"),
        lambda: os.chmod(world.path("dir/d.txt"), 0o600),
        lambda: shutil.rmtree(world.path("dir")),
        lambda: world.put(".git/info/exclude", "u.txt\n"),
        lambda: os.rmdir(world.path("empty")),
        lambda: world.git("add", "-A"),
    ]
    for number, act in enumerate(acts):
        act()
        time.sleep(2 * known.TICK_NS / 1e9)  # so long that the next look believes what the last one saw
        taken = [engine.capture(f"turn/{number}-{who}", labels={}).tree_digest for who, engine in enumerate(engines)]
        taken.append(world.engine().capture(f"turn/{number}-new", labels={}).tree_digest)
        assert len(set(taken)) == 1, f"act {number}"
        engines.reverse()


def test_r64_pruning_at_the_same_time_leaves_no_hole(world: World) -> None:
    """A checkpoint is complete or not there, while somebody prunes in a loop."""
    stop = threading.Event()

    def prune() -> None:
        while not stop.is_set():
            world.git("prune", "--expire=now", check=False)

    pruner = threading.Thread(target=prune)
    pruner.start()
    engine = world.engine()
    try:
        for number in range(6):
            world.put("u.txt", f"turn {number}\n")
            with contextlib.suppress(CheckpointError):
                engine.capture(f"ses/p{number}", labels={})
    finally:
        stop.set()
        pruner.join()
    for checkpoint in engine.list():
        assert world.git("rev-list", "--objects", checkpoint.commit)


def test_a_git_child_that_outlives_its_parent_keeps_the_lock(world: World, tmp_path: Path) -> None:
    """The process that captures is killed while git works: nobody else begins before that git has ended."""
    started, hold = tmp_path / "started", tmp_path / "hold"
    hold.touch()
    tools = tmp_path / "tools"
    tools.mkdir()
    git = shutil.which("git")
    (tools / "git").write_text(
        f'#!/bin/sh\ncase "$*" in *ls-files*) touch {started}; while [ -e {hold} ]; do sleep 0.02; done;; esac\n'
        f'exec {git} "$@"\n'
    )
    (tools / "git").chmod(0o755)
    script = (
        "import sys; from pathlib import Path; from hub.checkpoint.engine import Engine;"
        "Engine.open(Path(sys.argv[1])).capture('ses/2', labels={})"
    )
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"}
    parent = subprocess.Popen([sys.executable, "-c", script, str(world.root)], env=environment)
    while not started.exists():
        assert parent.poll() is None
        time.sleep(0.01)
    parent.kill()
    parent.wait()
    with pytest.raises(RefusedError) as refused:
        world.engine(lock_wait_s=0.0).capture("ses/3", labels={})
    assert refused.value.code == "workspace_busy"
    hold.unlink()
    assert world.engine(lock_wait_s=60.0).capture("ses/3", labels={}).files > 0
    assert [checkpoint.ref for checkpoint in world.engine().list()] == ["ses/1", "ses/3"]


def test_contents_and_journal_are_durable_before_the_first_rename(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What SIGKILL cannot show: the order of fsync and rename."""
    told: list[str] = []
    real_sync, real_do = os.fsync, restores.do

    def sync(descriptor: int) -> None:
        told.append(os.readlink(f"/proc/self/fd/{descriptor}").removeprefix(str(world.root)))
        real_sync(descriptor)

    def do(ground: Ground, operation: Operation, *, take: bool) -> bool:
        told.append("operation")
        return real_do(ground, operation, take=take)

    engine = world.engine()
    plan = planned(engine)
    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(restores, "do", do)
    engine.apply(plan)
    monkeypatch.undo()
    engine.finish(plan.txid)
    folder = f"/.git/turnback/txn/{plan.txid}"
    first = told.index("operation")
    wanted = [f"{folder}/slots/s{number}" for number in range(len(plan.writes) + len(plan.creations))]
    wanted += [f"{folder}/index.new", f"{folder}/slots", f"{folder}/plan.json.tmp", folder, "/.git/turnback/txn"]
    assert set(wanted) <= set(told[:first])
    last = max(number for number, what in enumerate(told) if what == "operation")
    assert {"", "/dir", "/dir/sub", "/.git"} <= set(told[last:])
    assert told.index(f"{folder}/applied.tmp") > last
