"""What the benchmarks share: rows of numbers with their yardstick and goal, the table, the JSON document.

Invariant: a row's ratio is taken between medians of one run of one benchmark, so that both sides had the same machine.
It judges nothing: a goal is shown beside its row and never changes the exit code, for a shared machine proves nothing.
"""

import argparse
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import msgspec

from hub import __version__

DIGITS = {"s": 3, "ms": 2, "MB": 1, "x": 2}
"""Digits behind the point, by unit."""
HEADINGS = ("", "n", "median", "lowest", "highest", "ratio", "goal", "")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was measured. `ratio` is its median over that of the row `yardstick`; a goal is an upper bound.

    Units: s, ms, MB (10^6 bytes) and x (a ratio in itself).
    """

    key: str
    name: str
    unit: str
    count: int
    median: float
    low: float
    high: float
    yardstick: str | None
    ratio: float | None
    goal: float | None
    within: bool | None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where it was measured. `load_1m` is the load average when the benchmark ended: other work shows in it."""

    system: str
    python: str
    cpus: int
    load_1m: float


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A benchmark's whole result. `facts` are what is no number: processes, modules, what was shown."""

    benchmark: str
    version: str
    machine: Machine
    rows: list[Row]
    facts: dict[str, str]


def row(
    key: str,
    name: str,
    unit: str,
    values: Sequence[float],
    *,
    against: Row | None = None,
    goal: float | None = None,
    count: int | None = None,
) -> Row:
    """Return the row of some values, at least one, in this unit. `count` is given when a value stands for several."""
    median = statistics.median(values)
    return Row(
        key=key,
        name=name,
        unit=unit,
        count=count or len(values),
        median=median,
        low=min(values),
        high=max(values),
        yardstick=against.key if against else None,
        ratio=median / against.median if against and against.median else None,
        goal=goal,
        within=median <= goal if goal is not None else None,
    )


def milliseconds(seconds: Sequence[float]) -> list[float]:
    """Return durations in milliseconds."""
    return [value * 1e3 for value in seconds]


def megabytes(sizes: Sequence[int]) -> list[float]:
    """Return sizes in units of 10^6 bytes."""
    return [size / 1e6 for size in sizes]


def time_of(command: Sequence[str], environ: Mapping[str, str]) -> float:
    """Run a program to its end and return the seconds it took. Raises RuntimeError, with its output, when it failed."""
    began = time.perf_counter()
    done = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    took_s = time.perf_counter() - began
    if done.returncode != 0:
        raise RuntimeError(f"{shlex.join(command)} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return took_s


def report(benchmark: str, rows: Sequence[Row], facts: Mapping[str, str]) -> Report:
    """Return the report of a benchmark that has just ended."""
    machine = Machine(
        system=f"{platform.system()} {platform.machine()}",
        python=platform.python_version(),
        cpus=os.cpu_count() or 1,
        load_1m=round(os.getloadavg()[0], 2),
    )
    return Report(benchmark=benchmark, version=__version__, machine=machine, rows=list(rows), facts=dict(facts))


def show(result: Report, *, as_json: bool) -> None:
    """Print a report: as one JSON document, or as a table for people."""
    sys.stdout.write(msgspec.json.encode(result).decode() + "\n" if as_json else table(result))


def table(result: Report) -> str:
    """Return a report as text, its rows under each other in columns."""
    lines = [HEADINGS, *(_cells(one) for one in result.rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    machine = result.machine
    head = (
        f"{result.benchmark}: Turnback {result.version}, Python {machine.python}, {machine.system}, "
        f"{machine.cpus} CPUs, load {machine.load_1m}"
    )
    facts = [f"{name}: {text}" for name, text in result.facts.items()]
    return "\n".join([head, *(_aligned(line, widths) for line in lines), *facts]) + "\n\n"


def _cells(one: Row) -> tuple[str, ...]:
    digits = DIGITS[one.unit]
    ratio = f"{one.ratio:.2f} x {one.yardstick}" if one.ratio is not None else ""
    goal = f"<= {one.goal:g} {one.unit}" if one.goal is not None else ""
    verdict = "" if one.within is None else "met" if one.within else "missed"
    numbers = (f"{value:.{digits}f}" for value in (one.median, one.low, one.high))
    median, low, high = numbers
    return (one.name, str(one.count), f"{median} {one.unit}", low, high, ratio, goal, verdict)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.ljust(width) if column in (0, 5, 6) else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()


def command_line(about: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    parser.add_argument("--no-worker", action="store_true", help="leave out what needs the model worker")
    return parser


def repetitions(text: str) -> int:
    """Return a number of repetitions given on the command line. Raises ArgumentTypeError below 1."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)
