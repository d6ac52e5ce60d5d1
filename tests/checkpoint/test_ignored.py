"""Which files git keeps out of a capture, in every unit; and what differs from a capture that had them all the same."""

from pathlib import Path

from hub.checkpoint.units import Units
from tests.hubs import git, make_repo


def make_pair(folder: Path) -> Path:
    """A repository that ignores some files, one of which is tracked all the same, with a repository inside it."""
    top = make_repo(folder / "top", {"a.txt": "a\n", "tracked.env": "t\n"})
    (top / ".gitignore").write_text("*.env\nbuild/\n")
    (top / "one.env").write_text("one\n")
    (top / "build").mkdir()
    (top / "build" / "made").write_text("made\n")
    inner = make_repo(top / "inner", {"b.txt": "b\n"})
    (inner / ".gitignore").write_text("*.log\n")
    (inner / "one.log").write_text("one\n")
    git(top, "add", ".gitignore")
    return top


def test_ignored_files_of_every_unit_are_known_and_tracked_ones_are_not_ignored(tmp_path: Path) -> None:
    units = Units.open([make_pair(tmp_path)])
    units.capture("x/1", labels={})
    names = ["a.txt", "tracked.env", "one.env", "build/made", "inner/b.txt", "inner/one.log", "inner/one.env"]
    assert units.ignored(names) == ["build/made", "inner/one.log", "one.env"]
    assert units.ignored([]) == []


def test_a_capture_with_ignored_files_differs_only_where_they_do(tmp_path: Path) -> None:
    top = make_pair(tmp_path)
    units = Units.open([top])
    units.capture("x/1", labels={}, include=["one.env", "build/made", "inner/one.log"])
    assert units.diff("x/1", None) == []
    (top / "one.env").write_text("two\n")
    (top / "inner" / "one.log").write_text("two\n")
    (top / "build" / "made").unlink()
    changes = [(change.path, change.kind) for change in units.diff("x/1", None)]
    assert changes == [("build/made", "deleted"), ("inner/one.log", "modified"), ("one.env", "modified")]
    assert "+two" in units.patch("x/1", None)
