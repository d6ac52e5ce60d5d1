"""`hubctl logs`: the last lines, then what comes, through rotations."""

import itertools
from pathlib import Path

import pytest

from cli import logs
from tests.cli.conftest import Call


@pytest.fixture
def log(home: Path) -> Path:
    path = home / "logs" / "hub.log"
    path.parent.mkdir(parents=True)
    return path


def test_the_last_lines(log: Path, call: Call) -> None:
    log.write_text("".join(f'{{"at": "t{n}", "level": "INFO", "text": "m{n}", "run": {n}}}\n' for n in range(9)))
    said = call("logs", "-n", "2")
    assert said.out == "t7 INFO    m7  run=7\nt8 INFO    m8  run=8\n"
    assert len(call("logs", "--json").out.splitlines()) == 9


def test_a_line_that_is_no_record_is_shown_as_it_is_but_safely(log: Path, call: Call) -> None:
    log.write_text("Traceback \x1b[2J\n[1]\n")
    assert call("logs").out == "Traceback \\x1b[2J\n[1]\n"


def test_no_log(call: Call) -> None:
    assert call("logs", "--json").error["code"] == "no_log"


def test_it_follows_through_rotation_and_waits_for_whole_lines(log: Path) -> None:
    log.write_text("one\ntwo\n")
    reading = logs.read(log, 1, follow=True)
    assert next(reading) == "two"
    with log.open("a") as file:
        file.write("three\nfo")
    assert next(reading) == "three"
    with log.open("a") as file:
        file.write("ur\n")
    assert next(reading) == "four"
    log.rename(log.with_suffix(".1"))
    log.write_text("five\n")
    assert next(reading) == "five"


def test_it_waits_for_a_log_that_is_not_there_yet(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs.time, "sleep", lambda s: log.write_text("first\n"))
    assert list(itertools.islice(logs.read(log, 5, follow=True), 1)) == ["first"]
