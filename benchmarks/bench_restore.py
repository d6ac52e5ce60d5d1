"""How long a restore takes, with the undo checkpoint that it makes first, beside `git status` and other ways.

Each round brings a generated repository to the state that was captured, then lets "the agent" edit 20 tracked files,
create 20 untracked ones and delete 5, and measures one way back; sides take turns, a round before the first is not
counted. Afterwards the files are compared with what was captured: a way that leaves something out is told as such.
"""

import argparse
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measuring import Row, command_line, milliseconds, repetitions, report, row, show
from benchmarks.other_ways import Shadow, stash_capture, stash_restore
from benchmarks.repositories import ALL_SIZES, SIZES, Generated, column, generated, git
from hub.checkpoint.engine import Engine

RUNS = 7
EDITED = 20
DELETED = 5
GOALS = (4.0, 2.1, 2.1)
"""Upper bounds of the ratio to `git status`, up to 10 k files, up to 100 k, and above."""
NAMES = {
    "status": "git status --porcelain -uall",
    "restore": "restore: plan with its undo checkpoint, apply, finish",
    "plan": "  of that: the plan and the undo checkpoint",
    "apply": "  of that: apply, fsync included",
    "finish": "  of that: finish",
    "preview": "preview: what a restore would do",
    "stash": "stash sequence, no way back",
    "shadow": "shadow repository: clean and reset, no undo checkpoint",
}
Times = Mapping[str, float]


class Sides:
    """The ways back in one repository. The state to come back to has edits and untracked files of the user's."""

    def __init__(self, repository: Generated, shadow: Shadow | None) -> None:
        self._repository = repository
        self._top = repository.top
        self._count = 0
        self._users = [*repository.touched(EDITED + DELETED)[:DELETED], *repository.loose(EDITED)[:DELETED]]
        self._agents = repository.touched(EDITED + DELETED)[DELETED:]
        self._created = [path.with_suffix(".made") for path in self._agents]
        self._deleted = [repository.path(number) for number in range(3, 3 + 7 * DELETED, 7)]
        repository.edit(self._users, "by the user")
        self._before = self._contents()
        self._engine = Engine.open(self._top)
        self._engine.capture("bench/target", labels={})
        self._stash = stash_capture(self._top, "target")
        self._shadow = shadow
        self._saved = shadow.capture() if shadow else ""

    def groups(self) -> list[Callable[[], Times]]:
        """Return the sides; each makes the agent's changes, measures, and gives seconds by key."""
        groups: list[Callable[[], Times]] = [self._status, self._restore, self._preview, self._by_stash]
        return [*groups, self._by_shadow] if self._shadow else groups

    def _status(self) -> Times:
        self._change()
        return {"status": _timed(lambda: git(self._top, "status", "--porcelain", "-uall"))}

    def _restore(self) -> Times:
        self._change()
        engine, began = self._engine, time.perf_counter()
        plan = engine.plan("bench/target", undo_ref=f"bench/u{self._count}", labels={})
        planned = time.perf_counter()
        engine.apply(plan)
        applied = time.perf_counter()
        engine.finish(plan.txid)
        ended = time.perf_counter()
        self._check("the restore")
        parts = {"plan": planned - began, "apply": applied - planned, "finish": ended - applied}
        return {"restore": ended - began, **parts}

    def _preview(self) -> Times:
        self._change()
        return {"preview": _timed(lambda: self._engine.preview("bench/target"))}

    def _by_stash(self) -> Times:
        self._change()
        took_s = _timed(lambda: stash_restore(self._top, self._stash))
        git(self._top, "reset", "-q")
        self._put_back()
        return {"stash": took_s}

    def _by_shadow(self) -> Times:
        self._change()
        assert self._shadow is not None
        shadow = self._shadow
        took_s = _timed(lambda: shadow.restore(self._saved))
        self._check("the shadow repository")
        return {"shadow": took_s}

    def _change(self) -> None:
        """Do what the agent does."""
        self._count += 1
        self._put_back()
        self._repository.edit(self._agents, f"by the agent {time.time_ns()}")
        self._repository.edit(self._created, f"new {time.time_ns()}")
        for path in self._deleted:
            path.unlink()

    def _put_back(self) -> None:
        """Bring the captured state back by hand."""
        for path, content in self._before.items():
            if content is None:
                path.unlink(missing_ok=True)
            elif not path.exists() or path.read_bytes() != content:
                path.write_bytes(content)

    def _contents(self) -> dict[Path, bytes | None]:
        paths = (*self._users, *self._agents, *self._created, *self._deleted)
        return {path: path.read_bytes() if path.exists() else None for path in paths}

    def _check(self, way: str) -> None:
        wrong = [str(path) for path, content in self._contents().items() if content != self._before[path]]
        if wrong:
            raise RuntimeError(f"{way} did not bring back {', '.join(wrong)}")


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measured(repository: Generated, runs: int, shadow: Shadow | None) -> Mapping[str, Sequence[float]]:
    """Return the seconds of each side, by key."""
    times: dict[str, list[float]] = defaultdict(list)
    groups = Sides(repository, shadow).groups()
    for number in range(runs + 1):
        for group in groups[:: 1 if number % 2 else -1]:
            taken = group()
            for key, took_s in taken.items() if number else ():
                times[key].append(took_s)
    return times


def rows_of(files: int, times: Mapping[str, Sequence[float]]) -> list[Row]:
    """Return the rows of one repository."""
    label = f"{files / 1000:g}k"
    status = row(f"status_{label}", f"{label}: {NAMES['status']}", "ms", milliseconds(times["status"]))
    goals = {"restore": GOALS[column(files)] * status.median}
    found = [
        row(f"{key}_{label}", f"- {name}", "ms", milliseconds(times[key]), against=status, goal=goals.get(key))
        for key, name in NAMES.items()
        if key != "status" and key in times
    ]
    return [status, *found]


def measured_rows(options: argparse.Namespace, files: int) -> list[Row]:
    """Return the rows of a repository of this size, made for them if there is none."""
    with generated(files, options.keep) as repository, _shadow_for(repository, wanted=not options.no_shadow) as shadow:
        try:
            return rows_of(files, measured(repository, options.runs, shadow))
        finally:
            repository.reset()


@contextmanager
def _shadow_for(repository: Generated, *, wanted: bool) -> Iterator[Shadow | None]:
    with tempfile.TemporaryDirectory(dir=repository.top.parent) as folder:
        yield Shadow(repository.top, Path(folder) / "git") if wanted else None


def main(words: Sequence[str] | None = None) -> int:
    parser = command_line("How long a restore takes, beside git status and other ways.")
    parser.add_argument("--runs", type=repetitions, default=RUNS)
    parser.add_argument("--files", type=repetitions, nargs="+", default=SIZES, help="sizes of the repositories")
    parser.add_argument("--all-sizes", dest="files", action="store_const", const=ALL_SIZES, help="3.8, 50, 200 k files")
    parser.add_argument("--keep", type=Path, help="where repositories are made, and kept for the next time")
    parser.add_argument("--no-shadow", action="store_true", help="leave out the shadow repository, slow to fill")
    options = parser.parse_args(words)
    rows = [one for files in options.files for one in measured_rows(options, files)]
    show(report("bench_restore", rows, {}), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
