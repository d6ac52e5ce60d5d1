"""Histories of edits, captures, restores and undos, against oracles that are plain copies of the folder.

A person and an agent do at random what people and agents do, git included. At each capture the folder is copied by
`cp -a`. A restore must give the copy back: bytes, modes, links, directories and the index with its stages and flags,
except for what its plan names as kept, and for ignored files and nested repositories of that time: those may not
change. Everything else of git's stays as it was before the restore, and no byte that was on disk is lost.

`HISTORIES` and `SEED` in the environment set how many histories the slow test takes, and which ones; with a `SEED` a
history that fails is made as short as it can be.
"""

import contextlib
import os
import random
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from hub.checkpoint.capture import adding
from hub.checkpoint.values import Plan
from hub.errors import RefusedError
from tests.checkpoint.edits import ACT, CONFLICT, CONTENTS, FILE_ACT, NAMES, PARTS, Act, act
from tests.checkpoint.world import World, differing, restore

ACTS = st.lists(ACT, min_size=2, max_size=8)
FILE_ACTS = st.lists(FILE_ACT, min_size=2, max_size=8)
BESIDE = adding.BESIDE
PICKED = st.integers(0, 1 << 30)


class Point:
    """A checkpoint: its ref, and the copy of the folder as it was then."""

    def __init__(self, ref: str, copy: World) -> None:
        self.ref = ref
        self.copy = copy
        out = copy.git("ls-files", "-z", "-o", "-i", "--exclude-standard", "--directory")
        nested = [name.removesuffix(b"/.git") for name in copy.files() if name.endswith(b"/.git")]
        self.apart = [name.rstrip(b"/") for name in out.split(b"\0") if name] + nested + self._unlisted(copy)

    def _unlisted(self, copy: World) -> list[bytes]:
        """Return ignored folders that stand where the index has a file: git lists them nowhere."""
        tracked = copy.git("ls-files", "-z").split(b"\0")[:-1]
        folders = [name for name in tracked if os.path.isdir(copy.path(name)) and not os.path.islink(copy.path(name))]
        names = b"".join(b"./%b\0" % name for name in folders)
        out = copy.git("check-ignore", "-z", "--stdin", "--no-index", stdin=names, check=False)
        return [name.removeprefix(b"./") for name in out.split(b"\0") if name]


class History(RuleBasedStateMachine):
    """One folder, its engine, and the checkpoints taken so far."""

    def __init__(self) -> None:
        super().__init__()
        self._room = tempfile.TemporaryDirectory(prefix="turnback-history-")
        self.w = World(Path(self._room.name, "w"))
        self.engine = self.w.engine()
        self.points: list[Point] = []
        self.undos: list[Point] = []
        self.count = 0

    def teardown(self) -> None:
        adding.BESIDE = BESIDE
        self._room.cleanup()

    @initialize(committed=st.booleans(), beside=st.sampled_from([200, 2, 0]))
    def begin(self, committed: bool, beside: int) -> None:
        adding.BESIDE = beside  # how many files are kept beside the private index
        for name in ("a", "b", "dir/a", "dir/b/dir"):
            self.w.put(name, f"{name}\none\ntwo\nthree\n")
        if committed:
            self.w.commit()
        self.captures(twice=False)

    @rule(acts=ACTS)
    def the_user_acts(self, acts: list[Act]) -> None:
        act(self.w, acts)

    @rule(acts=ACTS)
    def the_agent_acts(self, acts: list[Act]) -> None:
        act(self.w, acts)

    @rule(acts=ACTS, agents=ACTS)
    def a_turn(self, acts: list[Act], agents: list[Act]) -> None:
        """What happens most: the user works, a run begins, the agent works, and that is turned back."""
        act(self.w, acts)
        self.captures(twice=False)
        act(self.w, agents)
        self._restore(self.points[-1])

    @rule(conflict=CONFLICT, acts=FILE_ACTS, agents=FILE_ACTS)
    def a_turn_in_a_conflict(self, conflict: Act, acts: list[Act], agents: list[Act]) -> None:
        act(self.w, [conflict])
        self.a_turn(acts, agents)

    @rule(name=NAMES, content=CONTENTS)
    def a_turn_with_something_in_the_way(self, name: bytes, content: bytes) -> None:
        """Where a file was, there is now a directory with a file that git ignores."""
        act(self.w, [("write", name, content, 0o644)])
        self.captures(twice=False)
        act(self.w, [("ignore", b".git/info/exclude", b"*.log\n"), ("write", name + b"/x.log", content, 0o600)])
        self._restore(self.points[-1])

    @rule()
    def opens_anew(self) -> None:
        self.engine = self.w.engine()

    @rule(twice=st.booleans())
    def captures(self, twice: bool) -> None:
        before = self.w.state()
        point = Point(self._fresh("c"), self.w.copy(self._place()))
        taken = self.engine.capture(point.ref, labels={})
        if twice:
            assert self.engine.capture(self._fresh("c"), labels={}).commit == taken.commit
        assert differing(before, self.w.state()) == {}
        self.points.append(point)

    @precondition(lambda self: self.points)
    @rule(pick=PICKED)
    def restores(self, pick: int) -> None:
        self._restore(self.points[pick % len(self.points)])

    @precondition(lambda self: self.undos)
    @rule(pick=PICKED)
    def undoes(self, pick: int) -> None:
        self._restore(self.undos[-1 - min(pick % 3, len(self.undos) - 1)])

    @precondition(lambda self: self.points)
    @rule(pick=PICKED)
    def aborts(self, pick: int) -> None:
        before, point = self.w.state(), self.points[pick % len(self.points)]
        with contextlib.suppress(RefusedError):
            plan = self.engine.plan(point.ref, undo_ref=self._fresh("u"), labels={})
            self.engine.apply(plan)
            self.engine.abort(plan.txid)
        assert differing(before, self.w.state()) == {}

    def _restore(self, point: Point) -> None:
        before, undo = self.w.state(), Point(self._fresh("u"), self.w.copy(self._place()))
        try:
            plan = restore(self.engine, point.ref, undo.ref)
        except RefusedError as refused:
            return self._check_refused(refused, point, before)
        after = self.w.state()
        assert after["index"] == point.copy.index()
        untold = {"files", "index"}
        assert differing(before, after).keys() <= untold, "what git has besides stays"
        assert self._unexplained(plan, point, before["files"], after["files"]) == {}
        return self.undos.append(undo)

    def _check_refused(self, refused: RefusedError, point: Point, before: dict[str, Any]) -> None:
        assert refused.code == "operation_changed"
        assert before["operation"] != point.copy.surroundings()["operation"]
        assert differing(before, self.w.state()) == {}

    def _unexplained(self, plan: Plan, point: Point, before: dict[bytes, Any], after: dict[bytes, Any]) -> Any:
        """Return the differences between copy and folder that no path stands for that is kept, ignored or nested."""
        kept = [_name(row.path) for row in plan.kept] + point.apart
        aside = [folder.name for folder in plan.displaced]
        found = {}
        for name, (wanted, there) in differing(point.copy.files(), after).items():
            stays = any(_covers(path, name) or _covers(name, path) for path in kept)
            if not (stays and (there == before.get(name) or any(_covers(path, name) for path in aside))):
                found[name] = (wanted, before.get(name), there)
        return found

    def _fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind}/{self.count}"

    def _place(self) -> Path:
        return Path(self._room.name, f"copy{self.count}")


def _name(path: str) -> bytes:
    """Return the bytes of a shown path."""
    shown = {name.decode("utf-8", "backslashreplace"): name for name in PARTS}
    return b"/".join(shown.get(part, part.encode()) for part in path.rstrip("/").split("/"))


def _covers(path: bytes, name: bytes) -> bool:
    return name == path or name.startswith(path + b"/")


def run(histories: int, steps: int, number: int) -> None:
    print(f"SEED={number}")
    profile = settings(
        max_examples=histories,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate, *([Phase.shrink] if "SEED" in os.environ else [])],
        database=None,
        print_blob=True,
    )
    run_state_machine_as_test(seed(number)(History), settings=profile)


def test_histories() -> None:
    run(12, 4, random.randrange(1 << 32))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_many_histories() -> None:
    run(int(os.environ.get("HISTORIES", "500")), 20, int(os.environ.get("SEED", random.randrange(1 << 32))))
