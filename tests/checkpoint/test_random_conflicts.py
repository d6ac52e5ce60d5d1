"""Random edits between a plan and its end, for each way to treat conflicts: no byte lost, nothing half done."""

import contextlib
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hub.checkpoint.values import Applied, OnConflict, Plan, show
from hub.errors import ConflictError
from tests.checkpoint.edits import CONTENTS, FILE_ACT, MODES, OFTEN, Act, act
from tests.checkpoint.world import World, differing

WRITE = st.tuples(st.just("write"), st.sampled_from(OFTEN), CONTENTS, MODES)
EDITS = st.lists(st.one_of(WRITE, WRITE, FILE_ACT), min_size=3, max_size=8)
AIMED = st.sampled_from(["write", "replace", "remove", "chmod", "link", "folder", "above", "below"])
AIMS = st.lists(st.tuples(AIMED, st.integers(0, 20), st.binary(max_size=9)), min_size=1, max_size=4)
WAYS = st.sampled_from(["abort", "keep-mine", "take-checkpoint"])
Files = dict[bytes, tuple[str, int, bytes]]


def aim(w: World, plan: Plan, aims: list[tuple[str, int, bytes]]) -> None:
    """Let the user work on paths of the plan, or right above and below them."""
    names = sorted(steps(plan))
    for what, number, content in aims if names else []:
        name = names[number % len(names)]
        act(w, [_act(what, name, b"mine " + content)])


def _act(what: str, name: bytes, content: bytes) -> Act:
    table: dict[str, Act] = {
        "write": ("write", name, content, 0o644),
        "replace": ("replace", name, content),
        "remove": ("remove", name),
        "chmod": ("chmod", name, 0o700),
        "link": ("link", name, b"nowhere"),
        "folder": ("folder", name, 0o700),
        "above": ("write", os.path.dirname(name) or name, content, 0o600),
        "below": ("write", name + b"/mine", content, 0o644),
    }
    return table[what]


def contents(files: Files) -> set[bytes]:
    return {content for kind, _, content in files.values() if kind == "file"}


def reachable(w: World) -> set[bytes]:
    """Return all contents that are in the worktree, put aside, or held by our refs."""
    found = contents(w.files())
    for folder, _, names in os.walk(w.path(".git/turnback/rescue")):
        for name in names:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                found.add(Path(os.fsdecode(path)).read_bytes())
    rows = w.git("rev-list", "--objects", "--no-object-names", "--glob=refs/turnback/*")
    out = w.git("cat-file", "--batch", stdin=rows)
    while out:
        head, _, out = out.partition(b"\n")
        size = int(head.rsplit(b" ", 1)[1])
        found.add(out[:size])
        out = out[size + 1 :]
    return found


def steps(plan: Plan) -> set[bytes]:
    return {step.name for step in (*plan.writes, *plan.creations, *plan.deletions)}


def check_applied(plan: Plan, applied: Applied, mode: OnConflict, target: Files, now: Files) -> None:
    """Each path of the plan is as in the target, or named as a conflict."""
    named = {conflict.path for conflict in applied.conflicts}
    off = {show(name) for name in steps(plan) if now.get(name) != target.get(name)}
    if mode == "take-checkpoint":
        assert off == set()
    assert off <= named, (off, named)


Aims = list[tuple[str, int, bytes]]


def check(first: list[Act], second: list[Act], aims: Aims, moment: int, mode: OnConflict, final: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        w = World(Path(folder, "w"))
        act(w, first)
        w.git("commit", "-q", "--allow-empty", "-m", "some")
        target = w.files()
        engine = w.engine()
        engine.capture("ses/1", labels={})
        act(w, second)
        plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
        passed, seen = [], set[bytes]()

        def hook(step: str) -> None:
            if len(passed) == moment:
                aim(w, plan, aims)
                seen.update(contents(w.files()))
            passed.append(step)

        if moment < 0:
            aim(w, plan, aims)
            seen |= contents(w.files())
        before = w.state()
        engine.hook = hook
        applied = None
        with contextlib.suppress(ConflictError):
            applied = engine.apply(plan, on_conflict=mode)
        if applied is None and moment < 0:
            assert differing(before, w.state()) == {}
        if applied is not None and moment < 0 and mode != "abort":
            check_applied(plan, applied, mode, target, w.files())
        if applied is not None:
            (engine.finish if final else engine.abort)(plan.txid)
            if moment < 0 and not final:
                assert differing(before, w.state()) == {}
        assert seen <= reachable(w)
        engine.hook = lambda _: None
        engine.capture("ses/2", labels={})


CASES = given(EDITS, EDITS, AIMS, st.sampled_from([-1, -1, 1, 2, 3, 4, 5, 6, 7]), WAYS, st.booleans())
SETTINGS = settings(deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)


@settings(SETTINGS, max_examples=4, phases=[Phase.explicit, Phase.generate])
@CASES
def test_random_conflicts(
    first: list[Act], second: list[Act], aims: Aims, moment: int, mode: OnConflict, final: bool
) -> None:
    check(first, second, aims, moment, mode, final)


def test_a_folder_that_was_made_meanwhile_keeps_its_bits() -> None:
    first: list[Act] = [("write", b"a", b"", 0o644), ("rename", b"a", b"x.log/a")]
    second: list[Act] = [("write", name, b"", 0o644) for name in (b"a", b"b", b"x.log")]
    check(first, second, [("write", 3, b"")], -1, "abort", final=False)


@pytest.mark.parametrize("mode", ["abort", "keep-mine", "take-checkpoint"])
def test_a_folder_that_somebody_else_removed_does_not_come_back(mode: OnConflict) -> None:
    """It was empty, and to be removed by the restore: that it is gone does not mean that it was the restore."""
    first: list[Act] = [("write", b"a", b"", 0o644)]
    check(first, [("folder", b"a", 0o755)], [("remove", 0, b"")], -1, mode, final=False)


@pytest.mark.parametrize("mode", ["abort", "keep-mine", "take-checkpoint"])
def test_a_folder_that_somebody_else_made_stays_with_its_bits(mode: OnConflict) -> None:
    """The restore was to make it, and is taken back."""
    first: list[Act] = [("write", b"a", b"", 0o644), ("folder", b"a", 0o755)]
    check(first, [("write", b"a", b"", 0o644)], [("folder", 0, b"")], -1, mode, final=False)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(SETTINGS, max_examples=250)
@CASES
def test_many_random_conflicts(
    first: list[Act], second: list[Act], aims: Aims, moment: int, mode: OnConflict, final: bool
) -> None:
    check(first, second, aims, moment, mode, final)
