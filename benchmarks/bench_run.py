"""What a run costs beside the model's own time: wall time as a subscribed client sees it, and CPU of the hub.

Invariant: the model's own time is taken in the same run of the benchmark: none for a scripted model; for a real one
the same worker is driven directly, with the same request against the same server, in turn with the hub's runs.
A run is one model call of at most 8 pieces without tools. The numbers say nothing about a provider or about tools.
"""

import asyncio
import sqlite3
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.conversations import Conversation, DirectModel, opened
from benchmarks.measuring import Report, Row, command_line, megabytes, milliseconds, repetitions, report, row, show
from benchmarks.modules import heavy_ones, loaded_by_a_scripted_run
from benchmarks.processes import Hub, make_repository, model_section, running_hub, scripted_server, workshop

RUNS = 200
WORKER_RUNS = 60
EDGE = 20
"""How many runs at either end of a session are compared."""
CHECKPOINT_EVERY = 4
"""One run with checkpoints on for so many without."""

OVERHEAD_GOAL_MS = 10.0
CPU_GOAL_MS = 8.0
GROWTH_GOAL = 1.3
COLD_GOAL_S = 1.5
"""Seconds that a first run may take beyond the import of the worker's library."""

WORDS = "A run of one model call is answered in eight pieces, and nothing else."
SCRIPTED = f"turns: [{{text: '{WORDS}', chunks: 8}}]\n"
SERVED = f"replies: [{{text: '{WORDS}', pieces: 8}}]\n"
MODEL = "openai/benchmark"
OFF = '[checkpoint]\nmode = "off"\n'
ON = '[checkpoint]\nmode = "required"\n'

Times = dict[str, list[float]]


async def measured(runs: int, worker_runs: int, *, worker: bool) -> Report:
    """Return what was measured."""
    with workshop() as folder:
        repository = make_repository(folder / "repository")
        (folder / "scenario.yaml").write_text(SCRIPTED)
        model = f"scripted:{folder / 'scenario.yaml'}"
        rows = await with_a_scripted_model(folder, repository, model, runs)
        facts = await modules_told(folder, repository, model)
        if worker:
            (folder / "served.yaml").write_text(SERVED)
            with scripted_server(folder / "served.yaml") as api_base:
                more, shown = await with_the_worker(folder, repository, api_base, worker_runs)
            rows, facts = rows + more, facts | shown
    return report("bench_run", rows, facts)


async def with_a_scripted_model(folder: Path, repository: Path, model: str, runs: int) -> list[Row]:
    """Measure runs in one session without checkpoints; in turn with them, some in another hub and bare commits."""
    times: Times = defaultdict(list)
    saved = make_repository(folder / "saved")
    async with (
        running_hub(folder / "off", config=OFF) as hub,
        running_hub(folder / "on", config=ON) as saving,
        opened(hub, repository, model) as plain,
        opened(saving, saved, model) as kept,
    ):
        times["first"].append(await plain.run())
        await kept.run()
        before, cpu_s, saving_cpu_s = hub.memory()[0], hub.cpu_s(), saving.cpu_s() + saving.children_cpu_s()
        with bare_commits(folder / "bare.db") as commit_s:
            for number in range(runs):
                times["commit"].append(commit_s())
                times["plain"].append(await plain.run())
                if number % CHECKPOINT_EVERY == 0:
                    times["saved"].append(await kept.run())
        cpu_ms = (hub.cpu_s() - cpu_s) / runs * 1e3
        saving_cpu_ms = (saving.cpu_s() + saving.children_cpu_s() - saving_cpu_s) / len(times["saved"]) * 1e3
        grown = hub.memory()[0] - before
        async with opened(hub, repository, model) as fresh:
            for _ in range(min(EDGE, runs)):
                times["long"].append(await plain.run())
                times["fresh"].append(await fresh.run())
    return scripted_rows(times, cpu_ms, saving_cpu_ms, grown)


def scripted_rows(times: Times, cpu_ms: float, saving_cpu_ms: float, grown: int) -> list[Row]:
    """Return the rows of a scripted model, whose own time is none."""
    values, kept = milliseconds(times["plain"]), milliseconds(times["saved"])
    commit = row("commit", "sqlite alone: one durable commit", "ms", milliseconds(times["commit"]))
    plain = row("scripted", "scripted: overhead of a run", "ms", values, against=commit, goal=OVERHEAD_GOAL_MS)
    cpu = row("scripted_cpu", "- CPU of the hub, mean", "ms", [cpu_ms], goal=CPU_GOAL_MS, count=len(values))
    first = row("scripted_first", "- the very first run of a hub", "ms", milliseconds(times["first"]), against=plain)
    saved = row("saved", "scripted, checkpoints on", "ms", kept, against=plain)
    saved_cpu = row("saved_cpu", "- CPU of the hub and its git, mean", "ms", [saving_cpu_ms], count=len(kept))
    memory = row("grown", f"scripted: RSS of the hub grew in {len(values)} runs", "MB", megabytes([grown]))
    return [commit, plain, cpu, first, *growth_rows(times), saved, saved_cpu, memory]


def growth_rows(times: Times) -> list[Row]:
    """Return how a run's time grows with its session: over time as it was, and against a fresh session in turn."""
    values = milliseconds(times["plain"])
    edge = min(EDGE, max(1, len(values) // 2))
    early = row("early", f"scripted: first {edge} of the session", "ms", values[:edge])
    late = row("late", f"- last {edge}", "ms", values[-edge:], against=early)
    fresh = row("fresh", "scripted: a fresh session", "ms", milliseconds(times["fresh"]))
    long = row("long", "- the long one, in turn with it", "ms", milliseconds(times["long"]), against=fresh)
    growth = row("growth", "- growth: last over first", "x", [late.median / early.median], goal=GROWTH_GOAL)
    in_turn = row("growth_in_turn", "- growth: long over fresh", "x", [long.median / fresh.median], goal=GROWTH_GOAL)
    return [early, late, growth, fresh, long, in_turn]


@contextmanager
def bare_commits(path: Path) -> Iterator[Callable[[], float]]:
    """Hold a database with the hub's durability; what is yielded commits one small row and returns the seconds."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for words in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", "CREATE TABLE rows (text TEXT)"):
            connection.execute(words)

        def commit_s() -> float:
            began = time.perf_counter()
            connection.execute("INSERT INTO rows VALUES (?)", (WORDS * 5,))
            return time.perf_counter() - began

        yield commit_s


async def with_the_worker(folder: Path, repository: Path, api_base: str, runs: int) -> tuple[list[Row], dict[str, str]]:
    """Measure runs over the model worker, each in turn with a direct question to a worker of the benchmark's own."""
    times: Times = defaultdict(list)
    direct = DirectModel(folder, repository, MODEL, api_base)
    try:
        import_s, direct_first_s = await direct.first()
        async with (
            running_hub(folder / "worker", config=OFF + model_section(MODEL, api_base)) as hub,
            opened(hub, repository, MODEL) as session,
        ):
            cold_s = await session.run()
            notices = list(session.notices)
            cpu_ms = await in_turn(hub, session, direct, runs, times)
            cold = row("import", "worker alone: start to ready", "s", [import_s])
            rows = [
                *worker_rows(times, cpu_ms),
                cold,
                row("direct_first", "- start to the end of a first answer", "s", [direct_first_s], against=cold),
                row(
                    "cold",
                    "cold first run of a hub that has just started",
                    "s",
                    [cold_s],
                    against=cold,
                    goal=round(import_s + COLD_GOAL_S, 3),
                ),
            ]
    finally:
        await direct.close()
    return rows, {"shown during the cold first run": ", ".join(notices) or "nothing"}


async def in_turn(hub: Hub, session: Conversation, direct: DirectModel, runs: int, times: Times) -> float:
    """Measure pairs of a run and a direct question, the one first and then the other; return the CPU of a run in ms."""
    cpu_s = hub.cpu_s()
    for number in range(runs):
        if number % 2:
            times["direct"].append(await direct.ask())
            times["run"].append(await session.run())
        else:
            times["run"].append(await session.run())
            times["direct"].append(await direct.ask())
    return (hub.cpu_s() - cpu_s) / runs * 1e3


def worker_rows(times: Times, cpu_ms: float) -> list[Row]:
    """Return the rows of a warm worker: its own time, the run's, and the difference."""
    direct = row("direct", "worker driven directly", "ms", milliseconds(times["direct"]))
    whole = row("run", "run over the worker", "ms", milliseconds(times["run"]), against=direct)
    pairs = [run - alone for run, alone in zip(times["run"], times["direct"], strict=True)]
    overhead = [whole.median - direct.median]
    return [
        direct,
        whole,
        row("overhead", "- overhead: difference of the medians", "ms", overhead, goal=OVERHEAD_GOAL_MS),
        row("paired", "- overhead: differences of the pairs", "ms", milliseconds(pairs), goal=OVERHEAD_GOAL_MS),
        row("run_cpu", "- CPU of the hub, mean", "ms", [cpu_ms], goal=CPU_GOAL_MS, count=len(pairs)),
    ]


async def modules_told(folder: Path, repository: Path, model: str) -> dict[str, str]:
    """Return, for hub and hubctl, which heavy libraries they had loaded after a scripted run."""
    loaded = await loaded_by_a_scripted_run(folder / "modules", repository, model)
    return {
        f"heavy libraries loaded by {program}": f"{', '.join(heavy_ones(names)) or 'none'} ({len(names)} modules)"
        for program, names in loaded.items()
    }


def main() -> int:
    """Measure, print, and return the exit code."""
    parser = command_line("What a run costs beside the model's own time.")
    parser.add_argument("--runs", type=repetitions, default=RUNS, help=f"runs in one session, scripted [{RUNS}]")
    parser.add_argument(
        "--worker-runs", type=repetitions, default=WORKER_RUNS, help=f"pairs with the model worker [{WORKER_RUNS}]"
    )
    options = parser.parse_args()
    result = asyncio.run(measured(options.runs, options.worker_runs, worker=not options.no_worker))
    show(result, as_json=options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
