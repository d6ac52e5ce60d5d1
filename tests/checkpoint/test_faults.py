"""A restore that is killed at any step ends, in a new process, exactly before or exactly after; and so does its end."""

import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hub.checkpoint import renames
from hub.checkpoint.engine import Engine
from hub.errors import RefusedError
from tests.checkpoint.world import World, differing, restore

CHILD = str(Path(__file__).with_name("child.py"))


def make(w: World) -> None:
    """A state in which a restore needs every kind of operation."""
    w.base()
    w.put("file", "a file\n")
    w.put("folder/x/y", "y\n")
    w.put("blocked", "a file, later a directory with an ignored file\n")
    w.put("empty/keep", "")
    w.remove("empty/keep")
    w.link("link", "file")
    w.git("add", "file")


def agent(w: World) -> None:
    w.agent()
    w.remove("file")
    w.put("file/inside", "inside\n")
    shutil.rmtree(w.path("folder"))
    w.put("folder", "a file now\n")
    w.remove("blocked")
    w.put(".git/info/exclude", "*.ign\n")
    w.put("blocked/left.ign", "ignored\n")
    shutil.rmtree(w.path("empty"))
    w.remove("link")
    Path(w.root, "dir").chmod(0o700)
    w.git("add", "-A")


@pytest.fixture
def world(tmp_path: Path) -> World:
    w = World(tmp_path / "w")
    make(w)
    w.engine().capture("ses/1", labels={})
    agent(w)
    return w


def run(w: World, call: str, step: str = "") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, CHILD, str(w.root), call, step]
    return subprocess.run(command, capture_output=True, check=False, cwd=Path(__file__).parents[2])


def steps(tmp_path: Path, call: str) -> int:
    """Return how many named steps a call has."""
    w = World(tmp_path / "counted")
    make(w)
    w.engine().capture("ses/1", labels={})
    agent(w)
    done = run(w, call)
    assert done.returncode == 0, done.stderr.decode()
    return int(done.stdout)


def states(w: World, tmp_path: Path) -> tuple[dict[str, object], dict[str, object]]:
    """Return the state before a restore and the state after it, the latter by a restore in a copy."""
    copy = World(tmp_path / "copy")
    make(copy)
    engine = copy.engine()
    engine.capture("ses/1", labels={})
    agent(copy)
    restore(engine, "ses/1", "ses/1u")
    return w.state(), copy.state()


def side_of(w: World, before: dict[str, object], after: dict[str, object]) -> str:
    now = w.state()
    if not differing(before, now):
        return "before"
    assert differing(after, now) == {}, f"mixed: not before by {differing(before, now).keys()}"
    return "after"


def clean(w: World) -> bool:
    room = Path(w.root, ".git/turnback")
    return not list((room / "txn").iterdir()) and not list(Path(w.root, ".git").glob("*.lock"))


def copies(w: World, tmp_path: Path, name: str) -> World:
    """Return a copy of a world, with inodes of its own and the same content."""
    target = tmp_path / name
    shutil.copytree(w.root, target, symlinks=True)
    twin = World.__new__(World)
    twin.root = target
    return twin


def kill_everywhere(world: World, tmp_path: Path, call: str, stride: int, *named: str) -> set[str]:
    """Kill a call at every `stride`-th step and at the named ones, each in a copy; return on which sides it ended."""
    before, after = states(world, tmp_path)
    seen = set()
    for step in (*named, *(f"#{number}" for number in range(0, steps(tmp_path, call), stride))):
        w = copies(world, tmp_path, f"{call}{step}")
        killed = run(w, call, step)
        assert killed.returncode == -9, f"{step}: {killed.stderr.decode()}"
        w.engine().recover(lambda _: False)
        seen.add(side_of(w, before, after))
        assert clean(w), step
        shutil.rmtree(w.root)
    return seen


def test_killed_at_steps_of_a_restore(world: World, tmp_path: Path) -> None:
    assert kill_everywhere(world, tmp_path, "restore", 9, "index_done", "committed", "cleaning") == {"before", "after"}


@pytest.mark.slow
@pytest.mark.parametrize("call", ["restore", "abort"])
def test_killed_at_every_step(world: World, tmp_path: Path, call: str) -> None:
    assert "before" in kill_everywhere(world, tmp_path, call, 1)


def test_killed_at_steps_of_an_abort(world: World, tmp_path: Path) -> None:
    """The way back can be killed as well."""
    assert kill_everywhere(world, tmp_path, "abort", 18, "back:index", "back:clean") == {"before"}


@pytest.mark.parametrize(("committed", "side"), [(True, "after"), (False, "before")])
def test_killed_between_apply_and_finish(world: World, tmp_path: Path, committed: bool, side: str) -> None:
    """C67: whether an applied restore counts is for the caller to say; until then nobody else may work here."""
    before, after = states(world, tmp_path)
    assert run(world, "apply_only").returncode == -9
    engine = world.engine()
    with pytest.raises(RefusedError) as refused:
        engine.capture("ses/2", labels={})
    assert refused.value.code == "restore_unfinished"
    (settled,) = engine.recover(lambda _: committed)
    assert (settled.direction, settled.target_ref, settled.undo_ref) == (
        "forward" if committed else "back",
        "ses/1",
        "ses/1u",
    )
    assert side_of(world, before, after) == side
    assert clean(world)
    assert engine.recover(lambda _: True) == []


def test_the_next_call_rolls_back_what_never_was_applied(world: World, tmp_path: Path) -> None:
    before, after = states(world, tmp_path)
    assert run(world, "restore", "index").returncode == -9
    undo = world.engine().get("ses/1u")
    assert world.engine().capture("ses/2", labels={}).tree_digest == undo.tree_digest
    assert side_of(world, before, after) == "before"


@pytest.mark.slow
def test_killed_at_random_instants(world: World, tmp_path: Path) -> None:
    before, after = states(world, tmp_path)
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice, seen = random.Random(seed), []
    for number in range(60):
        w = copies(world, tmp_path, f"random{number}")
        child = subprocess.Popen([sys.executable, CHILD, str(w.root), "restore", ""], stdout=subprocess.DEVNULL)
        time.sleep(dice.uniform(0.1, 0.7))
        child.kill()
        child.wait()
        w.engine(lock_wait_s=30.0).recover(lambda _: False)
        seen.append(side_of(w, before, after))
        assert clean(w)
        shutil.rmtree(w.root)
    assert set(seen) == {"before", "after"}


def test_the_portable_way_without_the_kernels_swap(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = states(world, tmp_path)
    monkeypatch.setattr(renames, "NATIVE", None)
    engine = world.engine()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    assert side_of(world, before, after) == "after"
    engine.abort(plan.txid)
    assert side_of(world, before, after) == "before"
    restore(engine, "ses/1", "ses/2u")
    assert side_of(world, before, after) == "after"


def test_the_portable_swap_cut_off_in_the_middle(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of its single steps is the last one, recovery brings back the state before."""
    before, after = states(world, tmp_path)
    for cut in range(1, 5):
        w = copies(world, tmp_path, f"cut{cut}")
        with monkeypatch.context() as patched:
            patched.setattr(renames, "NATIVE", None)
            _cut_off(patched, cut)
            engine = Engine.open(w.root)
            plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
            with pytest.raises(KeyboardInterrupt):
                engine.apply(plan)
        (settled,) = w.engine().recover(lambda _: False)
        assert settled.direction == "back"
        assert side_of(w, before, after) == "before"
        assert clean(w)


def _cut_off(patched: pytest.MonkeyPatch, after: int) -> None:
    """Let the portable swap be interrupted after some of its calls."""
    counted = 0

    def counting(name: str) -> None:
        real = getattr(renames.os, name)

        def call(*words: object, **options: object) -> object:
            nonlocal counted
            counted += 1
            if counted == after:
                raise KeyboardInterrupt
            return real(*words, **options)

        patched.setattr(renames.os, name, call)

    real_swap = renames._portable_swap

    def swap(slot: renames.Place, path: renames.Place) -> None:
        for name in ("rename", "link", "unlink"):
            counting(name)
        real_swap(slot, path)

    patched.setattr(renames, "_portable_swap", swap)
