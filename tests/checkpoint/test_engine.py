"""The engine's calls: what they return, what they refuse, and with which code."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.values import CheckpointError, Plan
from hub.errors import ConflictError, NotFoundError, RefusedError, TurnbackError, UsageError
from tests.checkpoint.world import World, differing, restore


@pytest.fixture
def w(tmp_path: Path) -> World:
    world = World(tmp_path / "w")
    world.base()
    return world


def code_of(call: Any, *words: Any, **options: Any) -> str:
    with pytest.raises(TurnbackError) as raised:
        call(*words, **options)
    return raised.value.code


def test_a_checkpoint_says_what_it_holds(w: World) -> None:
    taken = w.engine().capture("01k5abcd1234/7", labels={"run": "run_1"})
    assert (taken.ref, taken.files, taken.labels) == ("01k5abcd1234/7", 5, {"run": "run_1"})
    assert taken.head == w.git("rev-parse", "HEAD").decode().strip()
    assert taken.branch == "refs/heads/main"
    assert (taken.uncaptured, taken.unchanged_since) == ((), None)
    assert w.engine().get("01k5abcd1234/7") == taken
    assert json.loads(msgspec.json.encode(taken))["ref"] == taken.ref


def test_the_tree_has_the_documented_shape(w: World) -> None:
    taken = w.engine().capture("ses/1", labels={})
    names = w.git("ls-tree", "--name-only", taken.commit).decode().split()
    assert names == ["index", "meta.json", "worktree"]
    assert w.git("show", f"{taken.commit}:worktree/c.txt") == w.get("c.txt")
    assert w.git("show", f"{taken.commit}:index/c.txt") == b"c staged\n"
    meta = json.loads(w.git("show", f"{taken.commit}:meta.json"))
    assert (meta["complete"], meta["state"]["head"]) == (True, taken.head)
    assert w.git("rev-parse", f"{taken.commit}^").decode().strip() == taken.head


@pytest.mark.parametrize("ref", ["", "a b", "../x", "a/", "/a", "a..b", "x" * 60, "a.lock", "-x", "é"])
def test_bad_names_are_refused(w: World, ref: str) -> None:
    assert code_of(w.engine().capture, ref, labels={}) == "bad_ref"
    assert w.git("for-each-ref", "refs/turnback") == b""


def test_a_name_in_use_is_refused(w: World) -> None:
    engine = w.engine()
    first = engine.capture("ses/1", labels={})
    w.put("a.txt", "other")
    with pytest.raises(ConflictError) as conflict:
        engine.capture("ses/1", labels={})
    assert conflict.value.code == "ref_exists"
    assert code_of(engine.plan, "ses/1", undo_ref="ses/1", labels={}) == "ref_exists"
    assert engine.get("ses/1") == first


def test_list_and_forget(w: World) -> None:
    engine = w.engine()
    for name in ("one/1", "one/2", "two/1"):
        w.put("a.txt", name)
        engine.capture(name, labels={})
    assert [checkpoint.ref for checkpoint in engine.list()] == ["one/1", "one/2", "two/1"]
    assert [checkpoint.ref for checkpoint in engine.list("one/")] == ["one/1", "one/2"]
    engine.forget(["one/1", "two/1", "never/1"])
    assert [checkpoint.ref for checkpoint in engine.list()] == ["one/2"]
    assert code_of(engine.get, "one/1") == "checkpoint_not_found"
    assert code_of(engine.plan, "one/1", undo_ref="u/1", labels={}) == "checkpoint_not_found"
    restore(engine, "one/2", "one/2u")


def test_nothing_changed_writes_no_object(w: World) -> None:
    engine = w.engine()
    first = engine.capture("ses/1", labels={})
    objects = w.git("count-objects", "-v")
    again = engine.capture("ses/2", labels={"run": "2"})
    assert (again.commit, again.unchanged_since, again.labels) == (first.commit, "ses/1", {"run": "2"})
    assert w.git("count-objects", "-v") == objects


def test_a_new_engine_knows_the_earlier_checkpoint(w: World) -> None:
    first = w.engine().capture("ses/1", labels={})
    assert w.engine().capture("ses/2", labels={}).unchanged_since == first.ref
    w.engine().forget(["ses/1", "ses/2"])
    assert w.engine().capture("ses/3", labels={}).unchanged_since is None


def test_diff_between_checkpoints_and_now(w: World) -> None:
    engine = w.engine()
    engine.capture("ses/1", labels={})
    assert list(engine.diff("ses/1", None)) == []
    w.put("a.txt", "one\ntwo\n")
    w.remove("u.txt")
    w.put("bin", b"\0\1")
    os.chmod(w.path("c.txt"), 0o600)
    w.remove("dir/d.txt")
    w.link("dir/d.txt", "nowhere")
    engine.capture("ses/2", labels={})
    changes = {change.path: change for change in engine.diff("ses/1", "ses/2")}
    assert {path: change.kind for path, change in changes.items()} == {
        "a.txt": "modified", "u.txt": "deleted", "bin": "created", "c.txt": "mode", "dir/d.txt": "type",
    }  # fmt: skip
    assert (changes["a.txt"].added, changes["a.txt"].removed) == (2, 1)
    assert (changes["bin"].added, changes["bin"].new_size, changes["bin"].old_mode) == (None, 2, None)
    assert (changes["c.txt"].old_mode, changes["c.txt"].new_mode) == (0o100644, 0o100600)
    assert list(engine.diff("ses/1", None)) == list(changes.values())
    assert len(w.engine().list()) == 2


def test_patch_is_for_people(w: World) -> None:
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.put("a.txt", "by the agent\n")
    w.put("dir/d.txt", b"\xff\n")
    text = engine.patch("ses/1", None)
    assert "-a modified by the user\n+by the agent\n" in text
    assert "\ufffd" in text
    assert "dir/d.txt" not in engine.patch("ses/1", None, ["a.txt"])
    assert engine.patch("ses/1", None, [":(glob)**"]) == ""


def test_a_preview_writes_nothing_and_cannot_be_applied(w: World) -> None:
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.agent()
    before = w.state()
    plan = engine.preview("ses/1")
    assert {step.path for step in plan.writes} == {"a.txt", "u.txt", "dir/d.txt"}
    assert {step.path for step in plan.creations} == {"dir/sub/e.txt"}
    assert {step.path for step in plan.deletions} == {"b.txt", "dir/moved.txt", "new/n.txt"}
    assert plan.index_changes == ("a.txt", "new/n.txt")
    assert differing(before, w.state()) == {}
    assert [checkpoint.ref for checkpoint in engine.list()] == ["ses/1"]
    assert code_of(engine.apply, plan) == "plan_is_preview"


def test_a_plan_is_a_value_that_survives_json(w: World) -> None:
    engine = w.engine()
    w.put(b"caf\xe9", "x")
    before = w.state()
    engine.capture("ses/1", labels={})
    w.agent()
    w.put(b"caf\xe9", "y")
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    assert "caf\\xe9" in {step.path for step in plan.writes}
    again = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    assert again == plan
    engine.apply(again)
    engine.finish(plan.txid)
    assert differing(before, w.state()) == {}


def test_an_empty_plan(w: World) -> None:
    engine = w.engine()
    engine.capture("ses/1", labels={})
    plan = restore(engine, "ses/1", "ses/1u")
    assert plan.is_empty
    assert plan.undo.unchanged_since == "ses/1"


def test_abort_brings_back_the_state_before(w: World) -> None:
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.agent()
    before = w.state()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    assert differing(before, w.state()) != {}
    engine.abort(plan.txid)
    assert differing(before, w.state()) == {}
    assert code_of(engine.finish, plan.txid) == "restore_not_found"
    assert code_of(engine.abort, "../x") == "restore_not_found"


def test_some_paths_only(w: World) -> None:
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.agent()
    before = w.state()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={}, paths=["a.txt", "dir"])
    engine.apply(plan)
    engine.finish(plan.txid)
    changed = differing(before["files"], w.state()["files"])
    assert changed.keys() == {b"a.txt", b"dir/d.txt", b"dir/sub/e.txt", b"dir/moved.txt"}
    assert w.get("a.txt") == b"a modified by the user\n"
    assert w.index() == before["index"]


def test_the_index_of_a_plan_may_not_move_before_it_is_applied(w: World) -> None:
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.agent()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.forget(["ses/1u"])
    assert code_of(engine.apply, plan) == "checkpoint_not_found"


def test_missing_objects_are_told_and_nothing_is_touched(w: World) -> None:
    w.put("lost.txt", "content that will be lost\n")
    engine = w.engine()
    engine.capture("ses/1", labels={})
    oid = w.git("hash-object", "lost.txt").decode().strip()
    w.remove("lost.txt")
    Path(w.root, ".git/objects", oid[:2], oid[2:]).unlink()
    before = w.state()
    with pytest.raises(CheckpointError) as incomplete:
        engine.plan("ses/1", undo_ref="ses/1u", labels={})
    assert incomplete.value.code == "checkpoint_incomplete"
    assert differing(before, w.state()) == {}
    engine.capture("ses/1u", labels={})


def test_r56_a_capture_out_of_time_is_no_checkpoint(w: World) -> None:
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.put("a.txt", "other")
    assert code_of(engine.capture, "ses/2", labels={}, budget_s=0.0) == "over_budget"
    assert [checkpoint.ref for checkpoint in engine.list()] == ["ses/1"]
    assert engine.capture("ses/2", labels={}).files == 5


def test_progress_is_told(w: World) -> None:
    told: list[tuple[str, int, int]] = []
    w.engine().capture("ses/1", labels={}, progress=lambda *row: told.append(row))
    assert ("files", 5, 5) in told


def test_what_was_written_for_the_index_may_be_pruned(w: World) -> None:
    engine = w.engine()
    w.git("update-index", "--skip-worktree", "a.txt")
    engine.capture("ses/1", labels={})
    engine.forget(["ses/1"])
    w.git("gc", "-q", "--prune=now")
    w.put("a new file", b"so that there is something to write")
    engine.capture("ses/2", labels={})
    assert engine.verify(deep=True).is_sound


def test_not_a_directory_and_not_a_repository(tmp_path: Path) -> None:
    assert code_of(Engine.open, tmp_path / "none") == "not_a_directory"
    with pytest.raises(UsageError) as refused:
        Engine.open(tmp_path)
    assert refused.value.code == "not_a_repository"
    assert "git init" in (refused.value.hint or "")
    bare = tmp_path / "bare.git"
    subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
    assert code_of(Engine.open, bare) == "not_a_repository"


def test_r58_protected_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (".", "Downloads", "project"):
        World(tmp_path / name)
    assert code_of(Engine.open, tmp_path) == "protected_directory"
    assert code_of(Engine.open, tmp_path / "Downloads") == "protected_directory"
    assert Engine.open(tmp_path / "project").root == (tmp_path / "project")


def test_c62_foreign_owner(w: World) -> None:
    """C62: dubious ownership is told with the way out."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    for path in (w.root, w.root / ".git"):
        os.chown(path, 12345, 12345)
    with pytest.raises(UsageError) as refused:
        Engine.open(w.root)
    assert refused.value.code == "foreign_owner"
    assert "safe.directory" in (refused.value.hint or "")


def test_c59_r33_environment_of_another_repository(w: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C59: GIT_DIR and its relatives are not followed."""
    other = World(tmp_path / "other")
    other.base()
    for name, value in {
        "GIT_DIR": other.root / ".git",
        "GIT_WORK_TREE": other.root,
        "GIT_INDEX_FILE": other.root / ".git/index",
        "GIT_OBJECT_DIRECTORY": other.root / ".git/objects",
        "GIT_COMMON_DIR": other.root / ".git",
        "GIT_NAMESPACE": "elsewhere",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "core.worktree",
        "GIT_CONFIG_VALUE_0": str(other.root),
    }.items():
        monkeypatch.setenv(name, str(value))
    before = other.state()
    engine = w.engine()
    assert engine.root == w.root
    engine.capture("ses/1", labels={})
    w.agent()
    restore(engine, "ses/1", "ses/1u")
    assert w.get("a.txt") == b"a modified by the user\n"
    assert other.git("for-each-ref", "refs/turnback") == b""
    assert differing(before, other.state()) == {}
    assert b"refs/turnback/ses/1" in w.git("for-each-ref")


def test_c27_c68_a_checkpoint_of_another_worktree_is_refused(w: World, tmp_path: Path) -> None:
    """C68; and C27: a linked worktree shares the refs, not the checkpoints."""
    w.git("worktree", "add", "-q", str(tmp_path / "linked"))
    linked = World.__new__(World)
    linked.root = tmp_path / "linked"
    linked.base()
    engine = linked.engine()
    before = linked.files()
    engine.capture("ses/1", labels={})
    linked.agent()
    with pytest.raises(RefusedError) as refused:
        w.engine().plan("ses/1", undo_ref="ses/1u", labels={})
    assert refused.value.code == "other_worktree"
    restore(engine, "ses/1", "ses/2u")
    assert differing(before, linked.files()) == {}
    assert not w.exists(".git/turnback/index")


def test_c60_from_a_subdirectory_the_whole_worktree_counts(w: World) -> None:
    """C60: the engine says which root it works on."""
    engine = Engine.open(w.root / "dir" / "sub")
    before = w.state()
    assert engine.root == w.root
    engine.capture("ses/1", labels={})
    w.agent()
    restore(engine, "ses/1", "ses/1u")
    assert differing(before, w.state()) == {}


def test_a_worktree_whose_own_path_is_odd(tmp_path: Path) -> None:
    w = World(tmp_path / 'new\nline \u516c:"x')
    w.base()
    engine, before = w.engine(), w.state()
    assert engine.root == w.root
    engine.capture("ses/1", labels={})
    w.agent()
    restore(engine, "ses/1", "ses/1u")
    assert differing(before, w.state()) == {}


def test_a_git_directory_elsewhere(tmp_path: Path) -> None:
    w = World(tmp_path / "w", f"--separate-git-dir={tmp_path / 'git'}")
    w.base()
    engine, before = w.engine(), w.state()
    engine.capture("ses/1", labels={})
    w.agent()
    restore(engine, "ses/1", "ses/1u")
    assert differing(before, w.state()) == {}


def test_c63_an_unreadable_file_is_named_and_the_rest_captured(tmp_path: Path) -> None:
    """C63: root reads everything, so a child without its rights captures."""
    if os.geteuid() != 0:
        pytest.skip("the child gives up root's rights")
    home = Path("/var/tmp") / f"turnback-test-{os.getpid()}"
    try:
        w = World(home / "w")
        w.base()
        w.put("secret.txt", "secret\n", 0o000)
        w.put("dir/closed.txt", "closed\n", 0o000)
        w.put("shut/inside.txt", "inside\n")
        os.chmod(w.path("shut"), 0o000)
        subprocess.run(["chown", "-R", "65534:65534", str(home)], check=True)
        script = (
            "import os, sys, git.cmd; from pathlib import Path; from hub.checkpoint.engine import Engine\n"
            "os.setgid(65534); os.setuid(65534); root = Path(sys.argv[1])\n"
            "e = Engine.open(root); c = e.capture('ses/1', labels={}); (root / 'a.txt').write_text('x')\n"
            "p = e.plan('ses/1', undo_ref='ses/1u', labels={}); e.apply(p); e.finish(p.txid)\n"
            "print(c.files, sorted((u.path, u.why) for u in c.uncaptured))"
        )
        done = subprocess.run([sys.executable, "-c", script, str(w.root)], capture_output=True, text=True, check=False)
        expected = [("dir/closed.txt", "unreadable"), ("secret.txt", "unreadable"), ("shut/", "unreadable")]
        assert done.stdout == f"5 {expected}\n", done.stderr
        assert w.get("secret.txt") == b"secret\n"
        assert w.get("a.txt") == b"a modified by the user\n"
    finally:
        shutil.rmtree(home)


def test_c55_c69_many_checkpoints_and_the_first_still_restores(w: World) -> None:
    """C69; C55: and a clean-up of the user's in between takes nothing."""
    engine, before = w.engine(), w.files()
    engine.capture("ses/0", labels={})
    for number in range(1, 8):
        w.put("a.txt", f"turn {number}\n")
        engine.capture(f"ses/{number}", labels={})
    w.git("reflog", "expire", "--expire=now", "--all")
    w.git("gc", "--quiet", "--prune=now")
    restore(engine, "ses/0", "ses/0u")
    assert differing(before, w.files()) == {}


def test_c57_a_shallow_clone(w: World, tmp_path: Path) -> None:
    """C57."""
    w.commit("second")
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{w.root}", str(tmp_path / "shallow")], check=True)
    shallow = World.__new__(World)
    shallow.root = tmp_path / "shallow"
    shallow.put("a.txt", "mine\n")
    engine, before = shallow.engine(), shallow.state()
    engine.capture("ses/1", labels={})
    shallow.agent()
    restore(engine, "ses/1", "ses/1u")
    assert differing(before, shallow.state()) == {}


def test_not_found_is_its_own_error(w: World) -> None:
    with pytest.raises(NotFoundError):
        w.engine().get("no/1")
