"""Linked worktrees, bare repositories and files named .git: each worktree has its own room, or is refused, and why."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.units import Units
from hub.errors import TurnbackError
from tests.checkpoint.world import World, differing, restore


@pytest.fixture
def main(tmp_path: Path) -> World:
    w = World(tmp_path / "main")
    w.base()
    w.git("stash", "-q")
    return w


def linked(main: World, path: Path, branch: str) -> World:
    main.git("worktree", "add", "-q", "-b", branch, str(path))
    return World.at(path)


def refused(call: Callable[..., Any], *words: Any, **options: Any) -> TurnbackError:
    with pytest.raises(TurnbackError) as raised:
        call(*words, **options)
    return raised.value


def test_c27_linked_worktrees_are_restored_one_by_one(main: World, tmp_path: Path) -> None:
    one = linked(main, tmp_path / "one", "one")
    one.put("a.txt", "one\n")
    one.git("add", "a.txt")
    first, other = one.state(), main.state()
    one.engine().capture("one/1", labels={})
    one.agent()
    main.put("a.txt", "main, by somebody else\n")
    touched = main.state()
    assert differing(first, one.state()).keys() == {"files", "index"}
    restore(one.engine(), "one/1", "one/1u")
    assert differing(first, one.state()) == {}
    assert differing(touched, main.state()) == {}
    assert differing(other, main.state()).keys() == {"files"}
    room = main.root / ".git/worktrees/one/turnback"
    assert (room.is_dir(), (main.root / ".git/turnback/txn").exists()) == (True, False)


def test_each_linked_worktree_has_its_own_lock(main: World, tmp_path: Path) -> None:
    one, two = linked(main, tmp_path / "one", "one"), linked(main, tmp_path / "two", "two")
    engines = [one.engine(), two.engine(), main.engine(lock_wait_s=0.05)]
    with engines[0].hold(), engines[1].hold():
        engines[2].capture("main/1", labels={})
        assert refused(one.engine(lock_wait_s=0.05).capture, "one/1", labels={}).code == "workspace_busy"


def test_names_are_shared_and_a_checkpoint_of_another_worktree_is_refused(main: World, tmp_path: Path) -> None:
    """C68: they share refs, so a name in use is in use in all; what it holds is only for its own worktree."""
    one = linked(main, tmp_path / "one", "one")
    main.engine().capture("ses/1", labels={})
    assert refused(one.engine().capture, "ses/1", labels={}).code == "ref_exists"
    assert refused(one.engine().plan, "ses/1", undo_ref="ses/1u", labels={}).code == "other_worktree"
    assert one.engine().capture("ses/2", labels={}).unchanged_since is None
    assert main.engine().get("ses/2").branch == "refs/heads/one"


def test_a_linked_worktree_inside_the_main_one_is_a_unit(main: World) -> None:
    """Both keep their checkpoints in one repository, under names of their own."""
    inner = linked(main, main.root / "trees" / "inner", "inner")
    units = Units.open([main.root])
    first = main.get("a.txt"), inner.state()
    assert units.capture("ses/1", labels={}).uncaptured == ()
    main.put("a.txt", "agent\n")
    inner.agent()
    restored = units.plan("ses/1", undo_ref="ses/1u", labels={})
    units.apply(restored)
    units.finish(restored.txid)
    assert (main.get("a.txt"), differing(first[1], inner.state())) == (first[0], {})
    assert [row.ref for row in units.list()] == ["ses/1", "ses/1u"]
    units.forget(["ses/1", "ses/1u"])
    assert main.git("for-each-ref", "refs/turnback") == b""


def test_a_worktree_that_was_moved_is_known_again(main: World, tmp_path: Path) -> None:
    one = linked(main, tmp_path / "one", "one")
    one.engine().capture("one/1", labels={})
    main.git("worktree", "move", str(one.root), str(tmp_path / "moved"))
    moved = World.at(tmp_path / "moved")
    moved.put("a.txt", "agent\n")
    restore(moved.engine(), "one/1", "one/1u")
    assert moved.get("a.txt") == main.get("a.txt")


def test_a_worktree_that_was_removed_leaves_checkpoints_that_fit_no_other(main: World, tmp_path: Path) -> None:
    one = linked(main, tmp_path / "one", "one")
    one.engine().capture("one/1", labels={})
    main.git("worktree", "remove", "--force", str(one.root))
    again = linked(main, tmp_path / "again", "again")
    assert refused(again.engine().preview, "one/1").code == "other_worktree"
    assert [row.ref for row in main.engine().list()] == ["one/1"]


def test_worktrees_of_a_bare_repository(main: World, tmp_path: Path) -> None:
    """The repository itself has no files to capture; its worktrees have."""
    bare = tmp_path / "bare.git"
    main.git("clone", "-q", "--bare", str(main.root), str(bare))
    main.git("worktree", "add", "-q", str(tmp_path / "one"), "main", cwd=str(bare))
    one = World.at(tmp_path / "one")
    one.engine().capture("ses/1", labels={})
    first = one.state()
    one.agent()
    restore(one.engine(), "ses/1", "ses/1u")
    assert differing(first, one.state()) == {}
    for shadow in (None, tmp_path / "home"):
        error = refused(Engine.open, bare, shadow=shadow)
        assert (error.code, "bare repository" in error.message) == ("not_a_repository", True)
    assert not (tmp_path / "home").exists()


def test_a_git_directory_apart_from_the_worktree(tmp_path: Path) -> None:
    w = World(tmp_path / "w", "--separate-git-dir", str(tmp_path / "apart.git"))
    w.base()
    first = w.state()
    w.engine().capture("ses/1", labels={})
    w.agent()
    restore(w.engine(), "ses/1", "ses/1u")
    assert differing(first, w.state()) == {}
    assert (tmp_path / "apart.git/turnback").is_dir()


@pytest.mark.parametrize("content", ["gitdir: /nowhere/at/all\n", "no git file\n"])
def test_a_git_file_that_leads_nowhere_is_refused_not_shadowed(tmp_path: Path, content: str) -> None:
    """Its repository may come back: a shadow store would begin a second history beside it."""
    folder = tmp_path / "f"
    folder.mkdir()
    (folder / ".git").write_text(content)
    for shadow in (None, tmp_path / "home"):
        error = refused(Engine.open, folder, shadow=shadow)
        assert (error.code, "git worktree repair" in (error.hint or "")) == ("not_a_repository", True)


def test_a_repository_that_keeps_its_files_elsewhere_is_refused(tmp_path: Path) -> None:
    w = World(tmp_path / "w")
    (tmp_path / "elsewhere").mkdir()
    w.git("config", "core.worktree", str(tmp_path / "elsewhere"))
    error = refused(Engine.open, w.root)
    assert (error.code, str(tmp_path / "elsewhere") in error.message) == ("not_a_repository", True)


def test_a_linked_worktree_whose_repository_is_gone(main: World, tmp_path: Path) -> None:
    one = linked(main, tmp_path / "one", "one")
    engine = one.engine()
    engine.capture("one/1", labels={})
    shutil.rmtree(main.root)
    assert refused(Engine.open, one.root).code == "not_a_repository"
    assert refused(engine.capture, "one/2", labels={}).code in ("git_failed", "checkpoint_failed", "worktree_gone")
    assert os.listdir(tmp_path) == ["one"]
