"""What git says and holds of the user's besides files and index: byte for byte the same before and after."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.cases import conflict
from tests.checkpoint.world import World, differing, restore

QUESTIONS = (
    *("fsck --full --strict --no-dangling", "status --porcelain=v2 --branch -uall", "stash list", "reflog --all"),
    *("config -l --show-origin", "branch -avv", "tag -n", "worktree list", "notes list", "log --oneline -5"),
    *("remote -v", "ls-files --stage --debug", "diff", "diff --cached", "submodule status", "rev-parse HEAD"),
)
OURS = ("turnback", "objects", "refs/turnback")


def lived_in(w: World) -> None:
    """A repository with a past: branches, tags, notes, stashes, hooks, a remote, packed refs, settings."""
    w.base()
    w.git("stash", "-q", "-u")
    w.base()
    w.git("branch", "feature")
    w.git("tag", "-a", "v1", "-m", "first")
    w.git("notes", "add", "-m", "a note")
    w.git("pack-refs", "--all")
    w.git("branch", "loose")
    w.git("remote", "add", "origin", "https://example.invalid/x.git")
    w.git("config", "alias.st", "status")
    w.put(".git/info/exclude", "*.mine\n")
    w.put("x.mine", "ignored\n")
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction"):
        w.put(f".git/hooks/{name}", "#!/bin/sh\nexit 1\n", 0o755)


def stopped(w: World) -> None:
    """In the middle of a merge."""
    conflict(w)
    w.git("branch", "feature")


def said(w: World) -> dict[str, bytes]:
    """Return what git answers, without letting it refresh the index."""
    return {words: w.git("--no-optional-locks", *words.split(" "), check=False) for words in QUESTIONS}


def held(w: World) -> dict[str, tuple[int, int, bytes]]:
    """Return every file of the git directory that is not ours: mode, time and content."""
    found = {}
    for folder, names, files in os.walk(w.root / ".git"):
        place = Path(folder).relative_to(w.root / ".git")
        names[:] = [name for name in names if str(place / name) not in OURS]
        for name in files:
            status = os.stat(Path(folder, name))
            found[str(place / name)] = status.st_mode, status.st_mtime_ns, Path(folder, name).read_bytes()
    return found


def times(w: World) -> dict[bytes, tuple[int, int]]:
    """Return when each path of the worktree was changed."""
    return {name: (os.lstat(w.path(name)).st_mtime_ns, os.lstat(w.path(name)).st_ctime_ns) for name in w.files()}


@pytest.mark.parametrize("make", [lived_in, stopped])
def test_a_capture_leaves_no_trace(tmp_path: Path, make: Callable[[World], None]) -> None:
    """Neither the first one, nor one that finds something new, nor one that finds nothing."""
    w = World(tmp_path / "w")
    make(w)
    engine = w.engine()
    for number in range(3):
        before = said(w), held(w), w.state(), times(w)
        engine.capture(f"ses/{number}", labels={})
        for old, new in zip(before, (said(w), held(w), w.state(), times(w)), strict=True):
            assert differing(old, new) == {}
        if number == 0:
            w.put("fresh.txt", "fresh\n")


@pytest.mark.parametrize("make", [lived_in, stopped])
def test_a_restore_and_its_undo_change_what_was_asked(tmp_path: Path, make: Callable[[World], None]) -> None:
    """Files and index, and nothing else that git holds or says; after the undo the index is as it was, too."""
    w = World(tmp_path / "w")
    make(w)
    engine = w.engine()
    start = _apart(said(w))
    engine.capture("ses/1", labels={})
    w.agent()
    w.git("add", "u.txt", check=False)
    before, there = said(w), held(w)
    restore(engine, "ses/1", "ses/1u")
    assert differing(start, _apart(said(w))) == {}
    assert differing(there, held(w)).keys() == {"index"}
    restore(engine, "ses/1u", "ses/2u")
    assert differing(_apart(before), _apart(said(w))) == {}
    assert differing(there, held(w)).keys() == {"index"}


def _apart(answers: dict[str, bytes]) -> dict[str, bytes]:
    """Return the answers that do not tell times of files: those of restored files are new."""
    return {words: answer for words, answer in answers.items() if "--debug" not in words}
