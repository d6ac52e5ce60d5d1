"""How long a capture takes, beside `git status` and other ways to save a worktree, in generated repositories.

Each round makes new content in 20 tracked and 20 untracked files before every side and measures all sides, one after
the other, in turning order; a round before the first fills caches and is not counted. A ratio is taken between medians
of one run. Memory is that of a process of its own that makes its first and two further captures.
"""

import argparse
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.measuring import Row, command_line, megabytes, milliseconds, repetitions, report, row, show
from benchmarks.other_ways import Shadow, stash_capture
from benchmarks.processes import PYTHON, ROOT, environment
from benchmarks.repositories import ALL_SIZES, SIZES, Generated, column, generated, git
from hub.checkpoint.engine import Engine

RUNS = 9
FIRST_RUNS = 7
EDITED = 20
MEMORY_GOAL_MB = 150.0
GOALS = {"dirty": (3.0, 1.6, 1.6), "idle": (1.9, 1.35, 1.1), "first": (9.0, 5.0, 5.0)}
"""Upper bounds of the ratio to `git status`, up to 10 k files, up to 100 k, and above."""
MEASURE = """
import re, sys
from pathlib import Path
from hub.checkpoint.engine import Engine
engine = Engine.open(Path(sys.argv[1]))
for number in range(3):
    engine.capture(f"memory/{number}", labels={})
    if number == 0:
        (engine.root / "memory.new").write_text("new")
status = Path("/proc/self/status").read_text()  # getrusage counts the parent's memory, too
print(int(re.search(r"VmHWM:\\s+([0-9]+) kB", status)[1]) * 1024)
"""

Times = Mapping[str, Sequence[float]]
NAMES = {
    "status": "git status --porcelain -uall",
    "dirty": "checkpoint: 20 + 20 files changed",
    "idle": "checkpoint: nothing changed",
    "first": "checkpoint: the first ever",
    "stash": "stash sequence: 20 + 20 files changed",
    "shadow": "shadow repository: 20 + 20 files changed",
    "shadow_idle": "shadow repository: nothing changed",
}


class Sides:
    """What is measured in one repository. Each call makes its own state first and returns the seconds of its work."""

    def __init__(self, repository: Generated, shadow: Path | None) -> None:
        self._repository = repository
        self._top = repository.top
        self._engine = Engine.open(self._top)
        self._shadow = Shadow(self._top, shadow) if shadow else None
        self._count = 0

    def groups(self) -> list[Callable[[], Mapping[str, float]]]:
        """Return the sides, those together that must follow each other; each gives seconds by key."""
        groups: list[Callable[[], Mapping[str, float]]] = [
            lambda: {"status": self._changed(lambda: git(self._top, "status", "--porcelain", "-uall"))},
            lambda: {"dirty": self._changed(self._capture), "idle": _timed(self._capture)},
            lambda: {"stash": self._changed(lambda: stash_capture(self._top, f"s{self._count}"))},
        ]
        if self._shadow is not None:
            shadow = self._shadow
            groups.append(lambda: {"shadow": self._changed(shadow.capture), "shadow_idle": _timed(shadow.capture)})
        return groups

    def first(self) -> float:
        """Measure the first capture of a repository that has none, in an engine just opened."""
        self._repository.forget_checkpoints()
        return self._changed(lambda: Engine.open(self._top).capture("first/1", labels={}))

    def _capture(self) -> None:
        self._count += 1
        self._engine.capture(f"c/{self._count}", labels={})

    def _changed(self, work: Callable[[], object]) -> float:
        self._count += 1
        files = [*self._repository.touched(EDITED), *self._repository.loose(EDITED)]
        self._repository.edit(files, f"{time.time_ns()}")
        return _timed(work)


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measured(repository: Generated, runs: int, first_runs: int, shadow: Path | None) -> Times:
    """Return the seconds of each side, by key."""
    times: dict[str, list[float]] = defaultdict(list)
    sides = Sides(repository, shadow)
    for number in range(runs + 1):
        groups = sides.groups()
        for group in groups[:: 1 if number % 2 else -1]:
            taken = group()
            for key, took_s in taken.items() if number else ():
                times[key].append(took_s)
    for _ in range(first_runs):
        times["first"].append(sides.first())
    return times


def memory_of(repository: Generated) -> int:
    """Return the largest RSS, in bytes, of a process that captures for the first time and twice more."""
    repository.forget_checkpoints()
    command = [PYTHON, "-c", MEASURE, str(repository.top)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    return int(done.stdout)


def rows_of(files: int, times: Times, memory: int) -> list[Row]:
    """Return the rows of one repository: each side, and the ratios that have a goal."""
    label = f"{files / 1000:g}k"
    status = row(f"status_{label}", f"{label}: {NAMES['status']}", "ms", milliseconds(times["status"]))
    rows = [status]
    for key, name in NAMES.items():
        if key != "status" and key in times:
            goal = GOALS[key][column(files)] * status.median if key in GOALS else None
            values = milliseconds(times[key])
            rows.append(row(f"{key}_{label}", f"- {name}", "ms", values, against=status, goal=goal))
    largest = megabytes([memory])
    rows.append(row(f"rss_{label}", "- largest RSS of the capturing process", "MB", largest, goal=MEMORY_GOAL_MB))
    return rows


def measured_rows(options: argparse.Namespace, files: int) -> list[Row]:
    """Return the rows of a repository of this size, made for them if there is none."""
    with generated(files, options.keep) as repository:
        shadow = None if options.no_shadow else repository.top.with_name(f"shadow{files}")
        try:
            times = measured(repository, options.runs, options.first_runs, shadow)
            return rows_of(files, times, memory_of(repository))
        finally:
            if shadow is not None:
                shutil.rmtree(shadow)
            repository.reset()


def main(words: Sequence[str] | None = None) -> int:
    parser = command_line("How long a capture takes, beside git status and other ways to save a worktree.")
    parser.add_argument("--runs", type=repetitions, default=RUNS)
    parser.add_argument("--first-runs", type=repetitions, default=FIRST_RUNS)
    parser.add_argument("--files", type=repetitions, nargs="+", default=SIZES, help="sizes of the repositories")
    parser.add_argument("--all-sizes", dest="files", action="store_const", const=ALL_SIZES, help="3.8, 50, 200 k files")
    parser.add_argument("--keep", type=Path, help="where repositories are made, and kept for the next time")
    parser.add_argument("--no-shadow", action="store_true", help="leave out the shadow repository, slow to fill")
    options = parser.parse_args(words)
    rows = [one for files in options.files for one in measured_rows(options, files)]
    show(report("bench_checkpoint", rows, {}), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
