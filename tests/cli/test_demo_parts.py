"""The demo's own eyes: a proof that cannot fail proves nothing, so each facet is shown to notice its change."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli import demo_repository as made
from cli.demo import STEPS, Outcome, verdict
from cli.demo_proof import Proof, Snapshot, compare, look
from cli.output import out

BYTES, MODES, INDEX, HISTORY, IGNORED, TALK, TESTS = range(7)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made.make(tmp_path / "shop")
    return tmp_path / "shop"


def seen(repository: Path, messages: tuple[str, ...] = ("a", "b")) -> Snapshot:
    return look(repository, messages, tests_pass=made.tests_pass(repository))


def test_the_repository_has_work_in_progress(repository: Path) -> None:
    status = made.git(repository, "status", "--short").decode()
    assert status == "M  README.md\n M shop/prices.py\n?? notes.txt\n"
    assert made.tests_pass(repository)
    assert (repository / made.SCRIPT).stat().st_mode & 0o111
    assert made.git(repository, "check-ignore", "build/report.html")


def test_looking_changes_nothing_and_is_repeatable(repository: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in repository.rglob("*")}
    proofs = compare("step", seen(repository), seen(repository))
    assert all(proof.ok for proof in proofs)
    assert {path: path.stat().st_mtime_ns for path in repository.rglob("*")} == before


def commit(repository: Path) -> None:
    who = {f"GIT_{role}_{field}": "x" for role in ("AUTHOR", "COMMITTER") for field in ("NAME", "EMAIL")}
    made.git(repository, "commit", "-q", "--allow-empty", "--only", "-m", "x", **who)


CHANGES: list[tuple[Callable[[Path], Any], set[int]]] = [
    (lambda r: (r / "notes.txt").write_text("other"), {BYTES}),
    (lambda r: (r / "README.md").write_text("other"), {BYTES, INDEX}),
    (lambda r: (r / "new.txt").write_text(""), {BYTES, MODES, INDEX}),
    (lambda r: (r / "notes.txt").chmod(0o755), {MODES}),
    (lambda r: made.git(r, "add", "notes.txt"), {INDEX}),
    (lambda r: made.git(r, "reset", "-q", "README.md"), {INDEX}),
    (lambda r: made.git(r, "branch", "other"), {HISTORY}),
    (commit, {HISTORY}),
    (lambda r: (r / "build/report.html").unlink(), {IGNORED}),
    (lambda r: (r / "shop/legacy.py").unlink(), {BYTES, MODES, INDEX, TESTS}),
]


@pytest.mark.parametrize(("change", "facets"), CHANGES)
def test_each_facet_notices_its_change(repository: Path, change: Callable[[Path], Any], facets: set[int]) -> None:
    before = seen(repository)
    change(repository)
    proofs = compare("step", seen(repository), before)
    assert {place for place, proof in enumerate(proofs) if not proof.ok} == facets


def test_the_conversation_is_compared_by_content(repository: Path) -> None:
    proofs = compare("step", seen(repository, ("a", "c")), seen(repository, ("a", "b")))
    assert [place for place, proof in enumerate(proofs) if not proof.ok] == [TALK]


def test_what_the_scripted_model_does_breaks_the_tests(repository: Path) -> None:
    before = seen(repository)
    for turn in made.second_turns():
        for one in turn.get("tool_calls", ()):
            carry_out(repository, **one)
    proofs = compare("step", seen(repository), before)
    assert {place for place, proof in enumerate(proofs) if not proof.ok} == {BYTES, MODES, INDEX, TESTS}


def carry_out(repository: Path, name: str, arguments: dict[str, Any]) -> None:
    """Do what a call of the scenario says, as the tools would."""
    if name == "editor":
        path = repository / arguments["path"]
        assert path.read_text().count(arguments["old_text"]) == 1
        path.write_text(path.read_text().replace(arguments["old_text"], arguments["new_text"]))
    else:
        codes = [
            subprocess.run(command, shell=True, cwd=repository, env=made.environment(), capture_output=True).returncode
            for command in arguments["commands"]
        ]
        assert codes[0] == 0
        assert codes[1] != 0


def test_the_verdict_shows_what_did_not_hold() -> None:
    proofs = [Proof(step, what, "1 file", step != STEPS[1]) for step in STEPS for what in ("bytes", "modes")]
    with out().capture() as captured:
        out().print(verdict(Outcome(ok=False, model="scripted", folder=None, proofs=proofs)))
    assert captured.get().count("✓") == 4
    assert captured.get().count("✗") == 2
    assert "4 of 6 proofs held" in captured.get()
