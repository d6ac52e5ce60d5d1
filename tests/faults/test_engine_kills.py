"""Whatever step an engine is killed at, the next one finds exactly the old or exactly the new state, or makes it so."""

import itertools
import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.keeping.retention import Limits
from hub.checkpoint.stores import shelf
from hub.checkpoint.values import Plan
from tests.checkpoint.world import World, differing, restore
from tests.faults.killing import Act, fork, killed, steps_of
from tests.faults.states import change, make

State = dict[str, object]


class Stage:
    """A call to be killed: the world it starts from, and the states it may lead to.

    `first` is another call, and the step at which it is killed before: a journal names inodes, which no copy keeps.
    """

    def __init__(
        self, world: World, act: Act, before: State, after: State, first: tuple[Act, str] | None = None
    ) -> None:
        self.world = world
        self.act = act
        self.before = before
        self.after = after
        self._first = first
        self._numbers = itertools.count()

    def copy(self) -> World:
        w = self.world.copy(self.world.root.with_name(f"{self.world.root.name}{next(self._numbers)}"))
        if self._first is not None:
            assert killed(w.root, *self._first)
        return w

    def side(self, w: World) -> str:
        """Return where a world is: before or after. Anything else is a mixture and fails."""
        now = w.state()
        if not differing(self.before, now):
            return "before"
        assert differing(self.after, now) == {}, f"mixed: not before by {differing(self.before, now).keys()}"
        return "after"

    def steps(self) -> list[str]:
        w = self.copy()
        found = steps_of(w.root, self.act, w.root.with_suffix(".steps"))
        shutil.rmtree(w.root)
        return found


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with a checkpoint, changed since."""
    w = World(tmp_path_factory.mktemp("kills") / "changed")
    make(w)
    w.engine().capture("ses/1", labels={})
    change(w)
    return w


@pytest.fixture(scope="module")
def restored(changed: World) -> World:
    """The same world after a restore."""
    w = changed.copy(changed.root.with_name("restored"))
    restore(w.engine(), "ses/1", "ses/1u")
    return w


def _planned(w: World, target: str, undo: str) -> Plan:
    return w.engine().plan(target, undo_ref=undo, labels={})


def _carry_out(plan: Plan) -> Act:
    content = msgspec.json.encode(plan)

    def act(engine: Engine) -> None:
        engine.apply(msgspec.json.decode(content, type=Plan))
        engine.finish(plan.txid)

    return act


def _turn_back(plan: Plan) -> Act:
    def act(engine: Engine) -> None:
        engine.apply(plan)
        engine.abort(plan.txid)

    return act


def _capture(engine: Engine) -> None:
    engine.capture("ses/2", labels={})


def _recover(committed: bool) -> Act:
    return lambda engine: engine.recover(lambda _: committed)


def _capture_stage(w: World, before: State, after: State) -> Stage:
    return Stage(w, _capture, before, before)


def _first_stage(w: World, before: State, after: State) -> Stage:
    """The first capture, which begins with a copy of the user's index."""
    shutil.rmtree(w.git_dir() / "turnback")
    w.git("update-ref", "-d", "refs/turnback/ses/1")
    return Stage(w, _capture, before, before)


def _short_stage(w: World, before: State, after: State) -> Stage:
    """A capture by an engine that knows the folder: few files are read, and git need not be told of them."""

    def act(engine: Engine) -> None:
        engine.capture("ses/2", labels={})
        (engine.root / "new.txt").write_text("new\n")
        engine.capture("ses/3", labels={})

    later = w.copy(w.root.with_name("later"))
    later.put("new.txt", "new\n")
    return Stage(w, act, before, later.state())


def _restore_stage(w: World, before: State, after: State) -> Stage:
    return Stage(w, _carry_out(_planned(w, "ses/1", "ses/1u")), before, after)


def _abort_stage(w: World, before: State, after: State) -> Stage:
    return Stage(w, _turn_back(_planned(w, "ses/1", "ses/1u")), before, before)


def _undo_stage(w: World, before: State, after: State) -> Stage:
    restore(w.engine(), "ses/1", "ses/1u")
    undone = w.copy(w.root.with_name("undone"))
    restore(undone.engine(), "ses/1u", "ses/2u")
    assert differing(before, undone.state()).keys() == {"files"}, "but for the ignored file that was moved aside"
    return Stage(w, _carry_out(_planned(w, "ses/1u", "ses/2u")), after, undone.state())


def _recovery(w: World, step: str, committed: bool, before: State, after: State) -> Stage:
    """Recovery of a restore that was killed at a step."""
    return Stage(w, _recover(committed), before, after, (_carry_out(_planned(w, "ses/1", "ses/1u")), step))


def _recovery_back_stage(w: World, before: State, after: State) -> Stage:
    """All operations are done and none is noted: all the way back."""
    return _recovery(w, "index_done", True, before, before)


def _recovery_refused_stage(w: World, before: State, after: State) -> Stage:
    """It is applied, and its caller does not count it."""
    return _recovery(w, "finishing", False, before, before)


def _recovery_forward_stage(w: World, before: State, after: State) -> Stage:
    """It is applied, and its caller counts it."""
    return _recovery(w, "finishing", True, after, after)


STAGES: dict[str, Callable[[World, State, State], Stage]] = {
    "capture": _capture_stage,
    "first": _first_stage,
    "short": _short_stage,
    "restore": _restore_stage,
    "abort": _abort_stage,
    "undo": _undo_stage,
    "recovery_back": _recovery_back_stage,
    "recovery_refused": _recovery_refused_stage,
    "recovery_forward": _recovery_forward_stage,
}
COMMITTED = {"recovery_forward"}
"""Where the caller's word is that the applied restore counts."""


@pytest.fixture
def stages(changed: World, restored: World, tmp_path: Path) -> Callable[[str], Stage]:
    before, after = changed.state(), restored.state()

    def make_stage(name: str) -> Stage:
        return STAGES[name](changed.copy(tmp_path / name), before, after)

    return make_stage


def settled(stage: Stage, w: World, *, committed: bool) -> str:
    """Recover in a new process's stead, check that nothing is left, and return on which side it ended."""
    w.engine(lock_wait_s=30.0).recover(lambda _: committed)
    side = stage.side(w)
    room = w.git_dir() / "turnback"
    assert list((room / "txn").iterdir()) == []
    assert list(w.git_dir().glob("*.lock")) == []
    assert not any(name.startswith(b".turnback") for name in os.listdir(w.path(".")))
    return side


def kill_at(stage: Stage, steps: list[int | str], *, committed: bool = False) -> set[str]:
    """Kill the call at each of the steps, each in a copy; return on which sides it ended."""
    seen = set()
    for step in steps:
        w = stage.copy()
        reached = killed(w.root, stage.act, step)
        assert reached or isinstance(step, int), f"there is no step {step}"
        seen.add(settled(stage, w, committed=committed))
        usable(w)
        shutil.rmtree(w.root)
    return seen


def usable(w: World) -> None:
    """Every checkpoint is complete, nothing is left but what was put aside, and the next capture is as good as any."""
    engine = w.engine()
    engine.verify(repair=True)
    verified = engine.verify()
    assert [(found.kind, found.name) for found in verified.findings if found.kind != "rescued"] == []
    assert (verified.complete, verified.checkpoints) == (len(engine.list()), len(engine.list()))
    taken = engine.capture("next/1", labels={})
    assert taken.files == int(w.git("ls-tree", "-r", "--name-only", f"{taken.commit}:worktree").count(b"\n"))


def spread(steps: list[str], count: int) -> list[int | str]:
    """Return that many of the steps, evenly spread, another set each time."""
    stride = max(1, len(steps) // count)
    return list(range(random.randrange(stride), len(steps), stride))


SOME = {"capture": 4, "first": 4, "short": 8, "restore": 7, "abort": 3, "undo": 3}
SOME |= {"recovery_back": 4, "recovery_refused": 2, "recovery_forward": 2}


@pytest.mark.parametrize("name", STAGES)
def test_c67_killed_at_some_steps(stages: Callable[[str], Stage], name: str) -> None:
    """Killed before a step, recovered by another process: no lock, pid or boot id of the dead one is believed."""
    stage = stages(name)
    chosen = spread(stage.steps(), SOME[name])
    print(f"steps {chosen}")
    assert kill_at(stage, chosen, committed=name in COMMITTED) <= {"before", "after"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", STAGES)
def test_c67_killed_at_every_step(stages: Callable[[str], Stage], name: str) -> None:
    stage = stages(name)
    sides = kill_at(stage, list(range(len(stage.steps()))), committed=name in COMMITTED)
    assert sides == ({"before", "after"} if name in ("restore", "undo", "short") else {"before"})


@pytest.mark.parametrize(
    ("name", "step", "side"),
    [
        ("restore", "begun", "before"),
        ("restore", "applied", "before"),
        ("restore", "committed", "after"),
        ("restore", "cleaning", "after"),
        ("capture", "written", "before"),
    ],
)
def test_the_commit_point_divides(stages: Callable[[str], Stage], name: str, step: str, side: str) -> None:
    """Before it a killed restore never was; after it, it is."""
    assert kill_at(stages(name), [step]) == {side}


def test_a_capture_killed_after_its_ref_is_a_checkpoint(stages: Callable[[str], Stage]) -> None:
    stage = stages("capture")
    w = stage.copy()
    assert killed(w.root, _capture, "written")
    assert [checkpoint.ref for checkpoint in w.engine().list()] == ["ses/1", "ses/2"]
    w.put("a.txt", "later\n")
    restore(w.engine(), "ses/2", "ses/2u")
    assert stage.side(w) == "before"


def test_killed_in_recovery_again_and_again(stages: Callable[[str], Stage]) -> None:
    """Each recovery is killed a few steps later than the one before, until one gets through."""
    stage = stages("recovery_back")
    w = stage.copy()
    for step in range(0, 1000, 3):
        if not killed(w.root, stage.act, step):
            break
    assert settled(stage, w, committed=True) == "before"


KEEPING = Limits(runs=1, days=None, bytes=None)
LATER = {"ses/1", "ses/4"}
"""The first of a session is always kept, and its last run."""


@pytest.fixture
def many(changed: World, tmp_path: Path) -> Stage:
    """A world with four checkpoints, of which two are to be pruned."""
    w = changed.copy(tmp_path / "many")
    engine = w.engine()
    for number in range(2, 5):
        w.put("a.txt", f"turn {number}\n")
        engine.capture(f"ses/{number}", labels={})
    state = w.state()
    return Stage(w, lambda engine: engine.prune(KEEPING), state, state)


def prune_killed(stage: Stage, steps: list[int | str]) -> set[bool]:
    """Kill a pruning at steps; return whether afterwards checkpoints were gone. Never some of them."""
    seen = set()
    for step in steps:
        w = stage.copy()
        killed(w.root, stage.act, step)
        settled(stage, w, committed=False)
        left = {checkpoint.ref for checkpoint in w.engine().list()}
        assert left in (LATER, {"ses/1", "ses/2", "ses/3", "ses/4"})
        seen.add(left == LATER)
        usable(w)
        w.engine().prune(KEEPING)
        assert {row.ref for row in w.engine().list("ses/")} == LATER
        shutil.rmtree(w.root)
    return seen


def test_killed_at_some_steps_of_pruning(many: Stage) -> None:
    assert prune_killed(many, ["prune:noting", "prune:deleting", "prune:tidying"]) == {True, False}


@pytest.mark.slow
def test_killed_at_every_step_of_pruning(many: Stage) -> None:
    assert prune_killed(many, list(range(len(many.steps())))) == {True, False}


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    """A world with two packs of ours, which the next capture puts together."""
    w = World(tmp_path / "packed")
    w.base()
    engine = w.engine()
    engine.capture("ses/0", labels={})
    for number in range(1, 3):
        for file in range(20):
            w.put(f"f{file}", f"{number} {file}\n")
        engine.capture(f"ses/{number}", labels={})
    assert len(packs_of(w)) == 2
    monkeypatch.setattr(shelf, "TOGETHER", 2)
    state = w.state()
    return Stage(w, lambda engine: engine.capture("ses/3", labels={}), state, state)


def packs_of(w: World) -> set[str]:
    """Return the names of all packs; each has an index, and no index is alone."""
    folder = w.git_dir() / "objects" / "pack"
    packs, indexes = ({path.stem for path in folder.glob(ending)} for ending in ("*.pack", "*.idx"))
    assert packs == indexes
    return packs


def pack_killed(stage: Stage, steps: list[int | str]) -> None:
    """Kill a capture that puts packs together: no object is missing, and the next capture leaves one pack."""
    for step in steps:
        w = stage.copy()
        killed(w.root, stage.act, step)
        assert settled(stage, w, committed=False) == "before"
        w.git("fsck", "--strict", "--no-dangling")
        usable(w)
        assert len(packs_of(w)) == 1, step
        assert len(w.engine().diff("ses/1", "ses/2")) == 20
        restore(w.engine(), "ses/1", "ses/1u")
        assert Path(w.root, "f7").read_text() == "1 7\n"
        shutil.rmtree(w.root)


def packing(stage: Stage) -> list[int | str]:
    """Return the steps that have to do with packs."""
    return [number for number, name in enumerate(stage.steps()) if "pack" in name]


def test_killed_at_some_steps_of_putting_packs_together(packed: Stage) -> None:
    steps = packing(packed)
    assert len(steps) > 10
    pack_killed(packed, steps[random.randrange(3) :: 3])


@pytest.mark.slow
def test_killed_at_every_step_of_putting_packs_together(packed: Stage) -> None:
    pack_killed(packed, packing(packed))


def kill_at_random(stage: Stage, times: int) -> list[str]:
    """Kill the call from outside, at moments spread over the time that it takes when nobody does."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice, seen = random.Random(seed), []
    lasts = _duration(stage)
    for _ in range(times):
        w = stage.copy()
        pid = fork(w.root, stage.act)
        time.sleep(dice.uniform(0.0, lasts))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        seen.append(settled(stage, w, committed=False))
        shutil.rmtree(w.root)
    return seen


def _duration(stage: Stage) -> float:
    w = stage.copy()
    begun = time.monotonic()
    os.waitpid(fork(w.root, stage.act), 0)
    return (time.monotonic() - begun) * 1.1


def _whole_restore(engine: Engine) -> None:
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    engine.finish(plan.txid)


@pytest.fixture
def whole(changed: World, restored: World, tmp_path: Path) -> Stage:
    return Stage(changed.copy(tmp_path / "whole"), _whole_restore, changed.state(), restored.state())


def test_killed_at_30_random_moments(whole: Stage) -> None:
    assert set(kill_at_random(whole, 30)) <= {"before", "after"}


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_at_300_random_moments(whole: Stage) -> None:
    assert set(kill_at_random(whole, 300)) == {"before", "after"}
