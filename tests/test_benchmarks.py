"""The benchmarks run and tell what they promise; and the module check that they print, made to hold.

No time is asserted. A small module stands in litellm's place, except in a test that is marked slow.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.measuring import Machine, Report, milliseconds, row, table
from benchmarks.modules import heavy_ones, loaded_by_a_scripted_run
from benchmarks.processes import make_repository
from tests.agent.stand_in import stand_in_environment

ROOT = Path(__file__).parents[1]

SCRIPTED_KEYS = {
    *("commit", "scripted", "scripted_cpu", "scripted_first", "saved", "saved_cpu", "grown"),
    *("early", "late", "growth", "fresh", "long", "growth_in_turn"),
}
WORKER_KEYS = {"direct", "run", "overhead", "paired", "run_cpu", "import", "direct_first", "cold"}
STARTUP_KEYS = {"python", "git", "ready", "first", "help", "status", "rss", "uss", "children"}


def start(name: str, *words: str, library: str = "") -> subprocess.CompletedProcess[str]:
    """Run a benchmark as `make bench` does; modules in the folder `library` are found before all others."""
    environ = {**os.environ, "PYTHONPATH": library}
    command = [sys.executable, "-m", f"benchmarks.{name}", *words]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)


def document(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the JSON document that a benchmark printed, whose rows agree with themselves."""
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = msgspec.json.decode(done.stdout)
    assert set(told) == {"benchmark", "version", "machine", "rows", "facts"}
    assert set(told["machine"]) == {"system", "python", "cpus", "load_1m"}
    rows = {one["key"]: one for one in told["rows"]}
    assert len(rows) == len(told["rows"])
    for one in rows.values():
        assert one["low"] <= one["median"] <= one["high"]
        if one["yardstick"] is not None:
            assert one["ratio"] == one["median"] / rows[one["yardstick"]]["median"]
        assert one["within"] == (None if one["goal"] is None else one["median"] <= one["goal"])
    return told | {"rows": rows}


@pytest.fixture
def stand_in(tmp_path: Path) -> str:
    """The folder in which another module is found as litellm."""
    return stand_in_environment(tmp_path)["PYTHONPATH"]


def test_bench_startup_tells_every_row(stand_in: str) -> None:
    told = document(start("bench_startup", "--runs", "1", "--json", library=stand_in))
    assert told["benchmark"] == "bench_startup"
    assert set(told["rows"]) == STARTUP_KEYS | {"worker_rss", "worker_children"}
    assert (told["rows"]["python"]["count"], told["rows"]["children"]["median"]) == (1, 0.0)
    assert "hub.agent.worker" in told["facts"]["children with a model configured"]
    assert told["facts"]["states of the model worker"].endswith("ready")
    assert told["rows"]["worker_children"]["median"] > 0


def test_bench_run_tells_every_row(stand_in: str) -> None:
    told = document(start("bench_run", "--runs", "5", "--worker-runs", "2", "--json", library=stand_in))
    assert told["benchmark"] == "bench_run"
    assert set(told["rows"]) == SCRIPTED_KEYS | WORKER_KEYS
    counts = {key: told["rows"][key]["count"] for key in ("scripted", "early", "late", "saved", "direct", "paired")}
    assert counts == {"scripted": 5, "early": 2, "late": 2, "saved": 2, "direct": 2, "paired": 2}
    for program in ("hub", "hubctl"):
        assert told["facts"][f"heavy libraries loaded by {program}"].startswith("none (")


@pytest.mark.slow
def test_the_worker_can_be_left_out() -> None:
    told = document(start("bench_run", "--runs", "1", "--no-worker", "--json"))
    assert set(told["rows"]) == SCRIPTED_KEYS


@pytest.mark.parametrize("words", [("--runs", "0"), ("--runs", "x"), ("--rounds", "1")])
def test_a_wrong_option_is_refused(words: tuple[str, str]) -> None:
    assert start("bench_run", *words).returncode == 2


@pytest.mark.slow
def test_the_real_worker_is_measured() -> None:
    told = document(start("bench_run", "--runs", "1", "--worker-runs", "3", "--json"))
    assert set(told["rows"]) == SCRIPTED_KEYS | WORKER_KEYS
    assert "model is loading" in told["facts"]["shown during the cold first run"]


async def test_neither_hub_nor_hubctl_loads_a_heavy_library(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text("turns: [{text: Hello.}]\n")
    model = f"scripted:{tmp_path / 'scenario.yaml'}"
    loaded = await loaded_by_a_scripted_run(tmp_path, make_repository(tmp_path / "repository"), model)
    assert {"hub.daemon.app", "hub.agent.scripted", "websockets", "sqlalchemy"} <= loaded["hub"]
    assert {"cli.run", "hub.client"} <= loaded["hubctl"]
    assert {program: heavy_ones(names) for program, names in loaded.items()} == {"hub": [], "hubctl": []}


async def test_the_module_check_fails_when_the_run_does(tmp_path: Path) -> None:
    (tmp_path / "scenario.yaml").write_text("turns: [{fail: auth}]\n")
    repository = make_repository(tmp_path / "repository")
    with pytest.raises(RuntimeError, match=r"run\.failed"):
        await loaded_by_a_scripted_run(tmp_path, repository, f"scripted:{tmp_path / 'scenario.yaml'}")


def test_heavy_libraries_are_seen_by_their_modules() -> None:
    assert heavy_ones(frozenset({"os", "telegram.ext", "litellm", "telegraph"})) == ["litellm", "telegram"]


def test_a_table() -> None:
    one = row("plain", "python", "ms", milliseconds([0.010, 0.030, 0.020]))
    two = row("start", "a start", "ms", [50.0], against=one, goal=40.0)
    three = row("rss", "memory", "MB", [50.25], goal=80.0, count=7)
    machine = Machine(system="Linux x86_64", python="3.11.7", cpus=2, load_1m=0.5)
    report = Report(benchmark="b", version="1", machine=machine, rows=[one, two, three], facts={"children": "none"})
    assert table(report).splitlines() == [
        "b: Turnback 1, Python 3.11.7, Linux x86_64, 2 CPUs, load 0.5",
        "         n    median  lowest  highest  ratio         goal",
        "python   3  20.00 ms   10.00    30.00",
        "a start  1  50.00 ms   50.00    50.00  2.50 x plain  <= 40 ms  missed",
        "memory   7   50.2 MB    50.2     50.2                <= 80 MB     met",
        "children: none",
        "",
    ]
