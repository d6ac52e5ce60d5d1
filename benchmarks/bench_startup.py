"""How long the hub and hubctl take to start, and how much memory an idle hub holds.

Each round measures everything once, one thing after the other, and the yardsticks with it; a round before the first is
not counted, for it fills caches. A start ends when the hub, found by its discovery record, has answered hub.status.
"""

import asyncio
import sys
from collections import defaultdict
from pathlib import Path

from benchmarks.measuring import (
    Report,
    Row,
    command_line,
    megabytes,
    milliseconds,
    repetitions,
    report,
    row,
    show,
    time_of,
)
from benchmarks.processes import PYTHON, environment, model_section, running_hub, workshop

RUNS = 7
SETTLE_S = 0.3
"""Seconds that a hub has been ready for when its memory is read."""
READY_GOAL_S = 0.6
MEMORY_GOAL_MB = 80.0
HELP_GOAL_S = 0.25
STATUS_GOAL_S = 0.45

HUBCTL = str(Path(PYTHON).with_name("hubctl"))
NOBODY = "http://127.0.0.1:9/v1"
"""Where the configured model would be asked; the benchmark asks nothing."""

Times = dict[str, list[float]]
Sizes = dict[str, list[int]]


async def measured(runs: int, *, worker: bool) -> Report:
    """Return what was measured in so many rounds."""
    times: Times = defaultdict(list)
    sizes: Sizes = defaultdict(list)
    facts: dict[str, str] = {}
    with workshop() as folder:
        await one_round(folder / "warm", defaultdict(list), defaultdict(list))
        for number in range(runs):
            await one_round(folder / str(number), times, sizes)
        if worker:
            facts |= await one_with_a_worker(folder / "model", sizes)
    facts["children of an idle hub"] = "none" if not any(sizes["children"]) else "see the row"
    return report("bench_startup", [*time_rows(times), *memory_rows(sizes)], facts)


async def one_round(home: Path, times: Times, sizes: Sizes) -> None:
    """Measure everything once, in a home that does not exist yet."""
    environ = environment() | {"TURNBACK_HOME": str(home)}
    times["python"].append(time_of([PYTHON, "-c", "pass"], environ))
    times["git"].append(time_of(["git", "--version"], environ))
    async with running_hub(home) as hub:
        times["first"].append(hub.ready_s)
    times["help"].append(time_of([HUBCTL, "--help"], environ))
    async with running_hub(home) as hub:
        times["ready"].append(hub.ready_s)
        times["status"].append(time_of([HUBCTL, "status"], environ))
        await asyncio.sleep(SETTLE_S)
        rss, uss = hub.memory()
        sizes["rss"].append(rss)
        sizes["uss"].append(uss)
        sizes["children"].append(sum(size for _, size in hub.children()))


async def one_with_a_worker(home: Path, sizes: Sizes) -> dict[str, str]:
    """Read the memory of a hub whose model worker has loaded its library; return what is told of its children."""
    async with running_hub(home, config=model_section("openai/benchmark", NOBODY)) as hub:
        states = await hub.model_ready()
        await asyncio.sleep(SETTLE_S)
        children = hub.children()
        sizes["worker hub"].append(hub.memory()[0])
        sizes["worker children"].append(sum(size for _, size in children))
    told = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in children)
    return {"children with a model configured": told, "states of the model worker": ", ".join(states)}


def time_rows(times: Times) -> list[Row]:
    """Return the rows of durations; each ratio is over `python -c pass`."""
    python = row("python", "python -c pass", "ms", milliseconds(times["python"]))
    rows = [python, row("git", "git --version", "ms", milliseconds(times["git"]), against=python)]
    for key, name, goal_s in (
        ("ready", "hub: start to ready", READY_GOAL_S),
        ("first", "- first start of a home", None),
        ("help", "hubctl --help", HELP_GOAL_S),
        ("status", "hubctl status", STATUS_GOAL_S),
    ):
        goal = goal_s * 1e3 if goal_s is not None else None
        rows.append(row(key, name, "ms", milliseconds(times[key]), against=python, goal=goal))
    return rows


def memory_rows(sizes: Sizes) -> list[Row]:
    """Return the rows of memory."""
    rows = [
        row("rss", "idle hub: RSS", "MB", megabytes(sizes["rss"]), goal=MEMORY_GOAL_MB),
        row("uss", "- USS", "MB", megabytes(sizes["uss"])),
        row("children", "- RSS of its children", "MB", megabytes(sizes["children"])),
    ]
    if sizes["worker hub"]:
        hub, children = megabytes(sizes["worker hub"]), megabytes(sizes["worker children"])
        rows.append(row("worker_rss", "hub with a model worker: RSS", "MB", hub, goal=MEMORY_GOAL_MB))
        rows.append(row("worker_children", "- RSS of its children", "MB", children))
    return rows


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = command_line("Start-up and idle memory of the hub, and start-up of hubctl.")
    parser.add_argument("--runs", type=repetitions, default=RUNS, help=f"rounds [{RUNS}]")
    options = parser.parse_args()
    show(asyncio.run(measured(options.runs, worker=not options.no_worker)), as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
