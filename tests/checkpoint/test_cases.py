"""Every state of the table: captured without a trace, restored exactly, and the restore undone exactly."""

from pathlib import Path
from typing import Any

import pytest

from tests.checkpoint.cases import CASES, Case
from tests.checkpoint.world import World, differing, restore


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
