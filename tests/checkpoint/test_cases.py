"""Every state of the table: captured without a trace, restored exactly, and the restore undone exactly."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.cases import CASES, Case
from tests.checkpoint.world import World, differing, restore

NUMBERS_C = range(1, 70)
NUMBERS_R = {
    *(1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 17, 18, 19, 21, 22, 23, 24, 25, 26, 28, 29, 30, 31, 33, 34, 36),
    *(37, 38, 39, 40, 41, 42, 43, 46, 47, 49, 50, 51, 53, 54, 56, 57, 58, 59, 61, 62, 63, 64, 65, 67, 68, 69),
}
ELSEWHERE = {
    "r22": "what a person is asked before a restore",
    "r53": "the conversation after a restore",
    "r62": "what a transcript holds",
    "r68": "how a checkpoint is bound to a run",
}
"""Recipes that are about the hub around the engine."""


def test_every_case_and_recipe_is_a_test() -> None:
    """By its id in the name: `c17`, `r12`."""
    names = [case.name for case in CASES]
    for path in (*Path(__file__).parent.glob("test_*.py"), *Path(__file__).parents[1].glob("faults/test_*.py")):
        names += [node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)]
    told = {id_.lower() for name in names for id_ in re.findall(r"(?<![A-Za-z0-9])[CcRr][0-9]{2}(?![0-9])", name)}
    wanted = {f"c{number:02}" for number in NUMBERS_C} | {f"r{number:02}" for number in NUMBERS_R}
    assert wanted - told == ELSEWHERE.keys()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_captured_restored_and_undone_exactly(case: Case, tmp_path: Path) -> None:
    w = World(tmp_path / "w", *case.init)
    case.make(w)
    engine = w.engine()
    before, index = w.state(), _index_bytes(w)
    first = engine.capture("ses/1", labels={"run": "1"})
    second = engine.capture("ses/2", labels={"run": "2"})
    assert (second.commit, second.tree_digest, second.unchanged_since) == (first.commit, first.tree_digest, "ses/1")
    assert (differing(before, w.state()), _index_bytes(w)) == ({}, index)
    case.agent(w)
    after = w.state()
    restore(engine, "ses/1", "ses/1u")
    assert _compared(case, before, w.state()) == {}
    restore(engine, "ses/1u", "ses/2u")
    assert _compared(case, after, w.state()) == {}
    assert w.git("fsck", "--strict", "--no-dangling") == b""


def _index_bytes(w: World) -> bytes | None:
    return w.get(".git/index") if w.exists(".git/index") else None


def _compared(case: Case, old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    found = differing(old, new)
    if "files" in found:
        found["files"] = differing(*found["files"])
    return {key: value for key, value in found.items() if key not in case.apart}
