"""What a restore leaves alone, moves aside or refuses, and that it says so."""

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from hub.checkpoint.capture import worktree
from hub.checkpoint.values import Plan
from hub.errors import RefusedError
from tests.checkpoint.cases import conflict
from tests.checkpoint.world import World, differing, restore


@pytest.fixture
def w(tmp_path: Path) -> World:
    world = World(tmp_path / "w")
    world.base()
    return world


def kept(plan: Plan) -> dict[str, str]:
    return {row.path: row.reason for row in plan.kept}


def test_c47_c50_ignored_files_are_never_deleted(w: World) -> None:
    """C47, C50: what the agent ignores or un-ignores stays, and is named."""
    w.put(".gitignore", "build/\n.env\n")
    w.put(".env", "secret\n")
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.put(".gitignore", "build/\n*.log\n")
    w.put(".env", "changed by the agent\n")
    w.put("build/out", "out\n")
    w.put("agent.log", "log\n")
    plan = restore(engine, "ses/1", "ses/1u")
    assert (w.get(".env"), w.get("build/out"), w.get("agent.log")) == (b"changed by the agent\n", b"out\n", b"log\n")
    assert kept(plan).keys() == {".env", "build/", "agent.log"}


def test_c50_ignored_files_that_are_included_come_back(w: World) -> None:
    """C50: what is named is captured although ignored."""
    w.put(".gitignore", "build/\n.env\n")
    w.put(".env", "secret\n")
    w.put("build/out", "out\n")
    engine, before = w.engine(), w.state()
    engine.capture("ses/1", labels={}, include=[".env", "build/out", "missing"])
    w.put(".env", "changed by the agent\n")
    shutil.rmtree(w.path("build"))
    after = w.state()
    restore(engine, "ses/1", "ses/1u")
    assert differing(before, w.state()) == {}
    restore(engine, "ses/1u", "ses/2u")
    assert differing(after["files"], w.files()).keys() == {b"build", b"build/out"}
    assert w.get("build/out") == b"out\n"


def test_c44_r59_a_large_file_is_named_and_never_touched(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """C44: also one that grows past the limit between two checkpoints."""
    monkeypatch.setattr(worktree, "FILE_BYTES", 1000)
    w.put("large.bin", b"x" * 2000)
    w.put("grows.bin", b"y" * 900)
    engine = w.engine()
    first = engine.capture("ses/1", labels={})
    assert [(row.path, row.why) for row in first.uncaptured] == [("large.bin", "too_large")]
    w.put("grows.bin", b"y" * 3000)
    w.put("new.bin", b"z" * 3000)
    second = engine.capture("ses/2", labels={})
    assert {row.path for row in second.uncaptured} == {"large.bin", "grows.bin", "new.bin"}
    plan = restore(engine, "ses/1", "ses/1u")
    assert w.get("grows.bin") == b"y" * 900
    assert (len(w.get("large.bin")), len(w.get("new.bin"))) == (2000, 3000)
    assert "new.bin" in kept(plan)
    restore(engine, "ses/1u", "ses/2u")
    assert w.get("grows.bin") == b"y" * 3000


def test_the_sum_of_untracked_files_has_a_limit(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worktree, "TOTAL_BYTES", 1500)
    for name in ("1.bin", "2.bin"):
        w.put(name, name.encode() * 200)
    taken = w.engine().capture("ses/1", labels={})
    assert [(row.path, row.why) for row in taken.uncaptured] == [("2.bin", "over_budget")]


@pytest.mark.slow
def test_c44_a_tracked_file_of_200_mb(w: World) -> None:
    """C44: tracked files have no limit."""
    w.put("big.bin", b"0123456789abcdef" * (200 << 16))
    w.git("add", "big.bin")
    engine, before = w.engine(), w.files()
    engine.capture("ses/1", labels={})
    w.put("big.bin", "small")
    restore(engine, "ses/1", "ses/1u")
    assert differing(before, w.files()) == {}


def test_c43_special_files_are_named_and_moved_aside_when_in_the_way(w: World) -> None:
    """C43: a fifo where a file was."""
    os.mkfifo(w.path("pipe"))
    engine = w.engine()
    first = engine.capture("ses/1", labels={})
    assert [(row.path, row.why) for row in first.uncaptured] == [("pipe", "special_file")]
    w.remove("a.txt")
    os.mkfifo(w.path("a.txt"))
    plan = restore(engine, "ses/1", "ses/1u")
    assert w.get("a.txt") == b"a modified by the user\n"
    assert "a.txt" in kept(plan)
    assert w.exists("pipe")
    assert len(list(Path(w.root, ".git/turnback/rescue").rglob("k*"))) == 1


def test_c36_a_directory_with_an_ignored_file_in_the_way(w: World) -> None:
    """C36: it is moved aside whole, and named."""
    w.put(".gitignore", "*.ign\n")
    engine, before = w.engine(), w.files()
    engine.capture("ses/1", labels={})
    w.remove("a.txt")
    w.put("a.txt/left.ign", "ignored\n")
    w.put("a.txt/seen", "captured\n")
    after = w.files()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    applied = engine.apply(plan)
    (rescued,) = engine.finish(plan.txid)
    assert (applied.displaced, rescued.path) == (("a.txt",), "a.txt")
    assert differing(before, w.files()) == {}
    folder = Path(rescued.reason.removeprefix("moved to "))
    assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("left.ign", "ignored\n")]
    restore(engine, "ses/1u", "ses/2u")
    assert differing(after, w.files()).keys() == {b"a.txt/left.ign"}


def test_an_ignored_file_in_the_way_is_captured_first(w: World) -> None:
    """A path that the target has, ignored by now, is in the undo before it is replaced."""
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.put(".git/info/exclude", "u.txt\ndir\n")
    shutil.rmtree(w.path("dir"))
    w.put("dir", "a file, ignored\n")
    w.put("u.txt", "ignored now, and changed\n")
    w.git("rm", "-q", "-r", "--cached", "dir")
    before = w.state()
    restore(engine, "ses/1", "ses/1u")
    assert w.get("u.txt") == b"untracked\n"
    assert w.get("dir/sub/e.txt") == b"dir/sub/e.txt at base\n"
    restore(engine, "ses/1u", "ses/2u")
    assert differing(before, w.state()) == {}


def test_c34_r49_nothing_is_written_through_a_symlink(w: World, tmp_path: Path) -> None:
    """C34: a directory replaced by a link to the outside."""
    outside = tmp_path / "outside"
    (outside / "sub").mkdir(parents=True)
    (outside / "d.txt").write_text("outside\n")
    engine, before = w.engine(), w.state()
    engine.capture("ses/1", labels={})
    shutil.rmtree(w.path("dir"))
    w.link("dir", str(outside))
    restore(engine, "ses/1", "ses/1u")
    assert differing(before, w.state()) == {}
    assert sorted(path.name for path in outside.iterdir()) == ["d.txt", "sub"]
    assert (outside / "d.txt").read_text() == "outside\n"
    restore(engine, "ses/1u", "ses/2u")
    assert os.readlink(w.path("dir")) == os.fsencode(outside)


def test_a_link_that_appears_between_plan_and_apply(w: World, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "d.txt").write_text("outside\n")
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.put("dir/d.txt", "agent\n")
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    os.rename(w.path("dir"), w.path("aside"))
    w.link("dir", str(outside))
    with pytest.raises(Exception, match=r"dir/d\.txt has changed"):
        engine.apply(plan)
    assert (outside / "d.txt").read_text() == "outside\n"


def test_c24_c25_c26_r38_nested_repositories_are_named_and_kept(w: World) -> None:
    """C24, C25, C26: one that was there, one without a commit, one that the agent made."""
    World(w.root / "old").put("x", "x\n")
    engine = w.engine()
    first = engine.capture("ses/1", labels={})
    assert [(row.path, row.why) for row in first.uncaptured] == [("old/", "nested_repository")]
    made = World(w.root / "made")
    made.put("x", "x\n")
    made.commit()
    World(w.root / "old").put("x", "changed\n")
    plan = restore(engine, "ses/1", "ses/1u")
    assert kept(plan) == {"made/": "a repository of its own"}
    assert (w.get("made/x"), w.get("old/x")) == (b"x\n", b"changed\n")
    assert made.git("status", "--short") == b""


def test_c22_c23_submodules_are_named_and_their_entry_restored(w: World, tmp_path: Path) -> None:
    """C22, C23: dirty inside, and a commit of the agent's in it: the inside stays, the staged entry comes back."""
    source = World(tmp_path / "source")
    source.put("s.txt", "s\n")
    source.commit()
    w.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source.root), "sub")
    w.commit("with submodule")
    w.put("sub/s.txt", "dirty\n")
    engine, index = w.engine(), w.index()
    first = engine.capture("ses/1", labels={})
    assert [(row.path, row.why) for row in first.uncaptured] == [("sub/", "submodule")]
    w.git("commit", "-qam", "agent", cwd="sub")
    w.git("add", "sub")
    w.put("a.txt", "agent\n")
    assert w.index() != index
    plan = restore(engine, "ses/1", "ses/1u")
    assert plan.index_changes == ("sub",)
    assert w.index() == index
    assert w.get("sub/s.txt") == b"dirty\n"


def test_c09_c10_r25_head_stays_and_the_plan_says_how_far_it_moved(w: World) -> None:
    """C09, C10."""
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.git("checkout", "-q", "-b", "agent")
    for number in range(2):
        w.commit(f"agent {number}")
    head = w.git("rev-parse", "HEAD")
    plan = restore(engine, "ses/1", "ses/1u")
    assert plan.head_distance == 2
    assert "taken on main; you are on agent" in plan.notes[0]
    assert "2 commits" in plan.notes[1]
    assert w.git("rev-parse", "HEAD") == head


@pytest.mark.parametrize("end", [("merge", "--abort"), ("commit", "-qam", "merged by the agent")])
def test_c11_c13_another_state_of_a_merge_is_refused(tmp_path: Path, end: tuple[str, ...]) -> None:
    """C11, C13: with the reason, and nothing changed; single paths can still be restored."""
    w = World(tmp_path / "w")
    conflict(w)
    engine = w.engine()
    engine.capture("ses/1", labels={})
    half = w.get("f.txt")
    w.put("f.txt", "by the agent\n")
    w.git(*end, check=True)
    w.put("untracked.txt", "agent\n")
    before = w.state()
    with pytest.raises(RefusedError) as refused:
        engine.plan("ses/1", undo_ref="ses/1u", labels={})
    assert refused.value.code == "operation_changed"
    assert "a merge in progress, now it is no operation" in refused.value.message
    assert differing(before, w.state()) == {}
    plan = engine.plan("ses/1", undo_ref="ses/2u", labels={}, paths=["f.txt"])
    engine.apply(plan)
    engine.finish(plan.txid)
    assert w.get("f.txt") == half


def test_c51_hooks_of_the_user_never_run(w: World) -> None:
    """C51."""
    for name in ("post-checkout", "post-index-change", "pre-commit", "reference-transaction", "fsmonitor-watchman"):
        w.put(f".git/hooks/{name}", f"#!/bin/sh\ntouch {w.root}/../ran-{name}\n", 0o755)
    w.git("config", "core.fsmonitor", ".git/hooks/fsmonitor-watchman")
    ran = w.root.parent
    engine = w.engine()
    for path in ran.glob("ran-*"):
        path.unlink()
    engine.capture("ses/1", labels={})
    w.put("a.txt", "agent\n")
    w.put(".git/index", w.get(".git/index"))
    restore(engine, "ses/1", "ses/1u")
    assert list(ran.glob("ran-*")) == []


def test_extended_attributes_of_a_replaced_file_stay(w: World) -> None:
    try:
        os.setxattr(w.path("a.txt"), "user.note", b"mine")
    except OSError:
        pytest.skip("this file system has no extended attributes")
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.put("a.txt", "agent\n")
    restore(engine, "ses/1", "ses/1u")
    assert os.getxattr(w.path("a.txt"), "user.note") == b"mine"


def test_c43_a_socket_is_named(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(w.root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("sock")
        taken = w.engine().capture("ses/1", labels={})
    assert [(row.path, row.why) for row in taken.uncaptured] == [("sock", "special_file")]


def test_a_worktree_on_another_file_system_than_its_git_directory(tmp_path: Path) -> None:
    """Contents are staged in the worktree, in a folder that hides itself and goes; so is what was in the way."""
    shm = Path("/dev/shm", f"turnback-test-{os.getpid()}")
    if not shm.parent.is_dir() or shm.parent.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is no second file system")
    try:
        w = World(tmp_path / "w", f"--separate-git-dir={shm}")
        w.base()
        w.put(".gitignore", "*.ign\n")
        engine, before = w.engine(), w.state()
        engine.capture("ses/1", labels={})
        w.agent()
        w.remove("c.txt")
        w.put("c.txt/left.ign", "ignored\n")
        plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
        engine.apply(plan)
        assert w.git("status", "--porcelain", "--ignored").count(b".turnback-") == 1
        (rescued,) = engine.finish(plan.txid)
        assert Path(rescued.reason.removeprefix("moved to "), "left.ign").read_text() == "ignored\n"
        shutil.rmtree(next(w.root.glob(".turnback-rescue-*")))
        assert differing(before, w.state()) == {}
    finally:
        shutil.rmtree(shm, ignore_errors=True)


def test_a_path_on_another_mount_is_refused(w: World) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(w.root / "dir")], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("nothing can be mounted here")
    try:
        w.put("dir/x.txt", "x\n")
        engine = w.engine()
        engine.capture("ses/1", labels={})
        w.put("dir/x.txt", "agent\n")
        w.put("a.txt", "agent\n")
        before = w.state()
        plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
        with pytest.raises(RefusedError) as refused:
            engine.apply(plan)
        assert (refused.value.code, differing(before, w.state())) == ("other_filesystem", {})
    finally:
        subprocess.run(["umount", str(w.root / "dir")], check=True)


def test_what_is_moved_aside_is_told_with_its_place(tmp_path: Path) -> None:
    """An ignored file in a folder that stands in a file's way goes with the folder, and is not told to stay."""
    w = World(tmp_path / "aside")
    w.put("a", "file\n")
    w.commit()
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.remove("a")
    w.put(".gitignore", "*.ign\n")
    w.put("a/p.ign", "precious\n")
    assert not any("/rescue/" in kept.reason for kept in engine.preview("s/1").kept)
    plan = restore(engine, "s/1", "s/1u")
    kept = {row.path: row.reason for row in plan.kept}
    assert kept.keys() == {"a"}
    place = Path(kept["a"].rpartition(", to ")[2])
    assert (place / "p.ign").read_text() == "precious\n"
