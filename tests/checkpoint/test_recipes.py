"""The recipes of reports about comparable systems, as shell commands made them fail; each test carries its number.

`CK` takes a checkpoint, `RS` restores it, `UN` undoes the restore.
"""

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Literal

import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.units import Units
from hub.checkpoint.values import CheckpointError, Mark, Plan
from hub.errors import ConflictError, NotFoundError, RefusedError, UsageError
from tests.checkpoint.cases import conflict
from tests.checkpoint.world import World, differing, restore
from tests.faults.killing import killed


class Tale(World):
    """A repository with two committed files, and the three things that happen to it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.put("a", "a\n")
        self.put("b", "b\n")
        self.commit()
        self.eng = self.engine()
        self.taken = 0

    def ck(self) -> str:
        self.taken += 1
        return self.eng.capture(f"ses/{self.taken}", labels={}).ref

    def rs(self, ref: str | None = None) -> Plan:
        target = ref or f"ses/{self.taken}"
        self.taken += 1
        return restore(self.eng, target, f"ses/{self.taken}")

    def un(self) -> Plan:
        return self.rs()

    def add(self, name: str, text: str) -> None:
        """Append a line: `echo text >> name`."""
        self.put(name, (self.get(name) if self.exists(name) else b"") + text.encode() + b"\n")


@pytest.fixture
def t(tmp_path: Path) -> Tale:
    return Tale(tmp_path / "w")


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with settings of the user's own: everything that stopped somebody's checkpoints."""
    home = tmp_path / "home"
    (home / "hooks").mkdir(parents=True)
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction"):
        (home / "hooks" / name).write_text(f"#!/bin/sh\ntouch {home}/ran\nexit 1\n")
        (home / "hooks" / name).chmod(0o755)
    (home / ".gitconfig").write_text(
        "[core]\nautocrlf = true\nsafecrlf = true\n"
        f"hooksPath = {home}/hooks\n[commit]\ngpgsign = true\n[gpg]\nprogram = /nonexistent\n"
        "[user]\nuseConfigOnly = true\n[status]\nshowUntrackedFiles = no\n"
    )
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "GIT_CONFIG_GLOBAL", "GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.delenv(name, raising=False)
    return home


def test_r01_an_uncommitted_gitignore_protects_what_it_hides(t: Tale) -> None:
    t.put(".gitignore", "data/\n")
    t.put("data/d", "x")
    t.put("u", "u")
    t.ck()
    t.put("a", "y")
    t.rs()
    assert (t.get("data/d"), t.get("a"), t.get(".gitignore")) == (b"x", b"a\n", b"data/\n")


def test_r02_a_download_is_announced_before_it_goes_and_comes_back(t: Tale) -> None:
    t.ck()
    t.put("out/r.jsonl", "r")
    preview = t.eng.preview("ses/1")
    assert [(step.path, step.old_size) for step in preview.deletions] == [("out/r.jsonl", 1)]
    t.rs()
    t.un()
    assert t.get("out/r.jsonl") == b"r"


def test_r04_a_deletion_by_the_agent_is_taken_back(t: Tale) -> None:
    t.put("n", "n")
    t.ck()
    t.remove("n")
    t.rs()
    assert t.get("n") == b"n"


def test_r05_an_untracked_file_edited_in_the_session(t: Tale) -> None:
    t.put("t", "v1")
    t.ck()
    t.put("t", "v2")
    t.rs()
    assert t.get("t") == b"v1"


def test_r06_a_restore_over_a_new_ignore_file_leaves_what_it_hides(t: Tale) -> None:
    t.ck()
    t.put(".gitignore", "venv\n")
    t.link("venv/p", "/usr/bin/python3")
    t.rs()
    assert (t.exists(".gitignore"), os.readlink(t.path("venv/p"))) == (False, b"/usr/bin/python3")
    t.un()
    assert (t.get(".gitignore"), os.readlink(t.path("venv/p"))) == (b"venv\n", b"/usr/bin/python3")


def test_r07_a_file_that_existed_untracked_stays_when_its_staging_goes(t: Tale) -> None:
    t.put("f", "f")
    t.ck()
    t.git("add", "f")
    t.rs()
    assert (t.get("f"), t.git("ls-files", "f")) == (b"f", b"")


def test_r09_a_created_file_goes_and_is_in_the_undo(t: Tale) -> None:
    t.ck()
    t.put("Foo.md", "p")
    plan = t.rs()
    assert not t.exists("Foo.md")
    assert t.git("show", f"{plan.undo.commit}:worktree/Foo.md") == b"p"


def test_r10_r39_r40_r41_settings_of_the_user_stop_no_checkpoint(t: Tale, configured: Path) -> None:
    """safecrlf, no identity, hooks for the whole system, a signature that cannot be made."""
    t.eng = t.engine()
    t.put("f1", "w\n")
    t.put("f2", "w\r\nmixed\n")
    before = t.state()
    taken = t.eng.capture("ses/1", labels={})
    assert (taken.files, taken.uncaptured) == (4, ())
    t.taken = 1
    t.remove("f1")
    t.put("f2", "x")
    t.rs()
    assert differing(before, t.state()) == {}
    assert not (configured / "ran").exists()


def test_r11_a_rename_is_taken_back_and_nothing_else_is_touched(t: Tale) -> None:
    t.ck()
    stamp = os.stat(t.path("b"))
    t.git("mv", "a", "z")
    t.rs()
    assert (t.get("a"), t.exists("z"), os.stat(t.path("b"))) == (b"a\n", False, stamp)


class Sessions:
    """Sessions that run in one worktree, and the history that a hub keeps of them."""

    def __init__(self, t: Tale) -> None:
        self.t = t
        self.history: list[Mark] = []

    def capture(self, owner: str, kind: Literal["before", "after"]) -> str:
        ref = f"{owner}/{len(self.history)}"
        self.t.eng.capture(ref, labels={})
        self.history.append(Mark(ref=ref, kind=kind, owner=owner))
        return ref

    def run(self, owner: str, name: str = "", text: str = "") -> str:
        """Let a session append a line to a file, or change nothing; return the ref of the checkpoint before it."""
        before = self.capture(owner, "before")
        if name:
            self.t.add(name, text)
        self.capture(owner, "after")
        return before

    def back(self, owner: str, target: str) -> Plan:
        plan = self.t.eng.plan(target, undo_ref=f"{owner}/undo", labels={}, owner=owner, history=self.history)
        self.t.eng.apply(plan)
        self.t.eng.finish(plan.txid)
        return plan


def test_r12_a_session_that_changed_nothing_takes_nothing_of_another_back(t: Tale) -> None:
    sessions = Sessions(t)
    target = sessions.run("B")
    sessions.run("A", "a", "A")
    plan = sessions.back("B", target)
    assert (plan.is_empty, plan.reach, [row.path for row in plan.kept]) == (True, "session", ["a"])
    assert t.get("a") == b"a\nA\n"


def test_r13_an_undo_in_one_session_leaves_the_other_alone(t: Tale) -> None:
    sessions = Sessions(t)
    sessions.run("A", "a", "A")
    target = sessions.run("B", "b", "B")
    sessions.run("A", "a", "A again")
    sessions.back("B", target)
    assert (t.get("a"), t.get("b")) == (b"a\nA\nA again\n", b"b\n")
    t.rs("B/undo")
    assert (t.get("a"), t.get("b")) == (b"a\nA\nA again\n", b"b\nB\n")


def test_r17_r21_what_the_user_wrote_since_is_listed_as_his_and_kept(t: Tale) -> None:
    """A line of his in the agent's file, and a file of his own; the agent's other file goes back."""
    sessions = Sessions(t)
    target = sessions.capture("S", "before")
    t.add("a", "agent")
    t.add("b", "agent")
    sessions.capture("S", "after")
    t.add("a", "user")
    t.put("c", "mine")
    plan = sessions.back("S", target)
    assert (t.get("a"), t.get("b"), t.get("c")) == (b"a\nagent\nuser\n", b"b\n", b"mine")
    assert {row.path for row in plan.kept} == {"a", "c"}


def test_c60_files_that_others_changed_elsewhere_stay_unless_asked(t: Tale) -> None:
    sessions = Sessions(t)
    t.put("s/x", "x\n")
    t.eng = Engine.open(t.root / "s")
    target = sessions.run("S", "s/x", "session")
    t.add("a", "somebody else")
    sessions.back("S", target)
    assert (t.get("s/x"), t.get("a")) == (b"x\n", b"a\nsomebody else\n")
    plan = t.eng.plan(target, undo_ref="S/all", labels={}, owner="S", history=sessions.history, reach="tree")
    t.eng.apply(plan)
    t.eng.finish(plan.txid)
    assert t.get("a") == b"a\n"


def test_r14_a_turn_that_changed_nothing_has_nothing_to_restore(t: Tale) -> None:
    t.add("a", "user")
    t.ck()
    stamp = os.stat(t.path("a"))
    assert t.rs().is_empty
    assert os.stat(t.path("a")) == stamp


def test_r15_from_a_subdirectory_the_rest_of_the_tree_is_never_older(t: Tale) -> None:
    t.add("a", "before")
    t.put("s/x", "x")
    t.eng = Engine.open(t.root / "s")
    t.ck()
    t.add("a", "later")
    assert {step.path for step in t.eng.preview("ses/1").writes} == {"a"}
    t.rs()
    assert t.get("a") == b"a\nbefore\n"
    t.un()
    assert t.get("a") == b"a\nbefore\nlater\n"


def test_r18_a_restore_is_undone_and_done_again(t: Tale) -> None:
    t.ck()
    t.put("a", "w")
    t.rs()
    t.un()
    assert t.get("a") == b"w"
    t.rs("ses/1")
    assert t.get("a") == b"a\n"


def test_r19_edits_older_than_the_turn_stay(t: Tale) -> None:
    t.add("a", "user")
    t.ck()
    t.add("a", "agent")
    t.rs()
    assert t.get("a") == b"a\nuser\n"


def test_r23_a_checkpoint_whose_ref_and_objects_are_gone_is_refused(t: Tale) -> None:
    t.put("a", "w")
    ref = t.ck()
    t.put("a", "v")
    t.git("update-ref", "-d", f"refs/turnback/{ref}")
    t.git("gc", "-q", "--prune=now")
    before = t.state()
    with pytest.raises(NotFoundError):
        t.rs()
    assert differing(before, t.state()) == {}


def test_r24_commits_beside_captures_hold_what_was_staged(t: Tale) -> None:
    """The user commits again and again while checkpoints are taken: no lock, no lost staging, no empty commit."""

    def commit() -> None:
        for number in range(8):
            t.put("a", f"turn {number}\n")
            t.git("add", "a")
            t.git("commit", "-q", "-m", f"turn {number}")

    committer = threading.Thread(target=commit)
    committer.start()
    while committer.is_alive():
        t.ck()
    committer.join()
    told = t.git("log", "--format=%s", "-8").decode().split("\n")[:8]
    assert told == [f"turn {number}" for number in reversed(range(8))]
    assert [t.git("show", f"HEAD~{number}:a").decode() for number in range(8)] == [f"{line}\n" for line in told]


def test_r25_a_commit_of_the_agent_stays_unless_the_branch_is_asked_for(t: Tale) -> None:
    t.ck()
    t.put("n", "n")
    t.commit("later")
    t.rs()
    assert (t.git("log", "-1", "--format=%s"), t.exists("n")) == (b"later\n", False)
    tip = t.git("rev-parse", "HEAD").decode().strip()
    t.un()
    plan = t.eng.plan("ses/1", undo_ref="ses/8u", labels={}, head=True, kept_head_ref="ses/8o")
    t.eng.apply(plan)
    t.eng.finish(plan.txid)
    assert t.git("log", "-1", "--format=%s") == b"base\n"
    assert t.git("rev-parse", "refs/turnback/ses/8o").decode().strip() == tip


def test_r26_staged_and_edited_again_both_come_back(t: Tale) -> None:
    t.put("a", "s\n")
    t.git("add", "a")
    t.put("a", "w\n")
    t.ck()
    t.put("a", "x\n")
    t.git("add", "a")
    t.rs()
    assert (t.git("show", ":a"), t.get("a")) == (b"s\n", b"w\n")


def test_r28_unmerged_entries_come_back(tmp_path: Path) -> None:
    w = World(tmp_path / "w")
    conflict(w)
    engine, stages = w.engine(), w.git("ls-files", "-u")
    engine.capture("ses/1", labels={})
    w.put("f.txt", "x\n")
    w.git("add", "f.txt")
    restore(engine, "ses/1", "ses/1u")
    assert w.git("ls-files", "-u") == stages != b""


def test_r29_no_phantom_stays_staged(t: Tale) -> None:
    t.ck()
    t.put("n", "n")
    t.git("add", "n")
    t.rs()
    assert t.git("status", "--porcelain") == b""


def test_r30_no_branch_moves_by_halves(t: Tale) -> None:
    """The agent moved two branches: a restore leaves all where they are, or moves the one that it was asked to."""
    t.git("branch", "other")
    t.ck()
    t.put("a", "agent")
    t.commit("agent")
    t.git("branch", "-f", "other", "HEAD")
    refs = t.state()["refs"]
    t.rs()
    assert t.state()["refs"] == refs
    plan = t.eng.plan("ses/1", undo_ref="ses/8u", labels={}, head=True, kept_head_ref="ses/8o")
    t.eng.apply(plan)
    t.eng.finish(plan.txid)
    assert differing(refs, t.state()["refs"]).keys() == {"refs/heads/main"}


def test_r31_a_locked_index_holds_up_only_what_needs_the_index(t: Tale) -> None:
    t.ck()
    t.put("a", "x")
    t.put(".git/index.lock", "")
    t.rs()
    assert t.get("a") == b"a\n"
    t.remove(".git/index.lock")
    t.put("a", "x")
    t.git("add", "a")
    t.put(".git/index.lock", "")
    with pytest.raises(ConflictError) as locked:
        t.rs("ses/1")
    assert (locked.value.code, t.get("a")) == ("index_locked", b"x")
    assert "index.lock" in (locked.value.hint or "")


@pytest.mark.parametrize("step", ["capturing", "captured", "written"])
def test_r34_a_nested_repository_survives_a_capture_that_is_killed(t: Tale, step: str) -> None:
    World(t.root / "n").put("x", "x")
    assert killed(t.root, lambda engine: engine.capture("ses/1", labels={}), step)
    assert t.exists("n/.git/HEAD")
    assert World.at(t.root / "n").git("status", "--porcelain") == b"?? x\n"


def test_r36_r38_an_empty_nested_repository_makes_no_checkpoint_stale(t: Tale) -> None:
    t.ck()
    t.put("a", "v2")
    World(t.root / "n")
    taken = t.eng.capture("ses/2", labels={})
    assert t.git("show", f"{taken.commit}:worktree/a") == b"v2"
    assert [(row.path, row.why) for row in taken.uncaptured] == [("n/", "nested_repository")]


def test_r37_no_answer_from_a_stale_index(t: Tale) -> None:
    """A lock that a killed git left on our own index: the answer is right, as if it had not been there."""
    t.ck()
    t.put("a", "x\n")
    for name in ("index.lock", "side.git/index.lock"):
        t.put(f".git/turnback/{name}", "")
    assert [(change.path, change.kind) for change in t.eng.diff("ses/1", None)] == [("a", "modified")]
    t.rs()
    assert t.get("a") == b"a\n"


def test_r42_no_repository_is_a_shadow_checkpoint_or_said_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a").write_text("a")
    with pytest.raises(UsageError) as refused:
        Engine.open(folder)
    assert refused.value.code == "not_a_repository"
    engine = Engine.open(folder, shadow=tmp_path / "stores")
    assert engine.capture("ses/1", labels={}).files == 1
    (folder / "a").write_text("b")
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    engine.finish(plan.txid)
    assert (folder / "a").read_text() == "a"


def test_r43_a_broken_checkpoint_is_listed_as_broken(t: Tale) -> None:
    t.ck()
    t.put("a", "other")
    commit = t.eng.capture("ses/2", labels={}).commit
    meta = t.git("rev-parse", f"{commit}:meta.json").decode().strip()
    Path(t.root, ".git/objects", meta[:2], meta[2:]).unlink()
    assert [(row.ref, row.broken is None) for row in t.eng.list()] == [("ses/1", True), ("ses/2", False)]


def test_r46_another_folder_of_the_same_path_is_not_the_same_worktree(t: Tale, tmp_path: Path) -> None:
    t.ck()
    t.root.rename(tmp_path / "moved")
    again = World(t.root)
    again.git("fetch", "-q", str(tmp_path / "moved"), "refs/turnback/*:refs/turnback/*")
    again.put("a", "mine")
    with pytest.raises(RefusedError) as refused:
        again.engine().plan("ses/1", undo_ref="ses/1u", labels={})
    assert (refused.value.code, again.get("a")) == ("other_worktree", b"mine")


def test_r47_names_that_git_quotes(t: Tale) -> None:
    for name in ("公共.txt", " lead", "trail ", "\ttab"):
        t.put(name, "v")
    before = t.files()
    t.ck()
    for name in ("公共.txt", " lead", "trail ", "\ttab"):
        t.put(name, "changed")
    t.rs()
    assert differing(before, t.files()) == {}


def test_r50_r51_several_repositories_in_a_folder_are_restored_all_together(tmp_path: Path) -> None:
    """A folder without git that holds two repositories, and one repository that holds two others."""
    for top in (tmp_path / "plain", World(tmp_path / "outer").root):
        inner = [World(top / name) for name in ("be", "fe")]
        for w in inner:
            w.base()
        before = [w.state() for w in inner]
        units = Units.open([top], shadow=tmp_path / "stores")
        units.capture("ses/1", labels={})
        for w in inner:
            w.agent()
        plan = units.plan("ses/1", undo_ref="ses/1u", labels={})
        units.apply(plan)
        units.finish(plan.txid)
        assert [differing(old, w.state()) for old, w in zip(before, inner, strict=True)] == [{}, {}]


def test_r54_a_large_untracked_file_is_read_once(t: Tale) -> None:
    t.put("big", b"x" * (4 << 20))
    first = t.eng.capture("ses/1", labels={})
    t.put("a", "x")
    second = t.eng.capture("ses/2", labels={})
    assert (first.bytes >= 4 << 20, second.bytes) == (True, 1)


def test_r61_no_name_of_a_ref_is_longer_than_sixty(t: Tale) -> None:
    t.eng.capture("0123456789ab/" + "7" * 33, labels={})
    with pytest.raises(UsageError) as refused:
        t.eng.capture("0123456789ab/" + "7" * 34, labels={})
    assert refused.value.code == "bad_ref"
    assert max(map(len, t.git("for-each-ref", "--format=%(refname)").split())) == 60


def test_r63_the_base_amended_away_and_collected(t: Tale) -> None:
    t.put("a", "w")
    before = t.files()
    t.ck()
    t.git("commit", "-q", "--amend", "-m", "other", "-a")
    t.git("reflog", "expire", "--expire=now", "--all")
    t.git("gc", "-q", "--prune=now")
    t.put("a", "x")
    t.rs()
    assert differing(before, t.files()) == {}
    assert t.git("fsck", "--strict") == b""


def test_r67_a_checkpoint_costs_what_has_changed(t: Tale) -> None:
    for number in range(60):
        t.put(f"many/{number}", f"{number}\n")
    t.ck()
    first = _objects(t)
    for number in range(20):
        t.put("a", f"turn {number}\n")
        t.ck()
    assert _objects(t) - first <= 20 * 5, "content, folder, meta.json, root and commit for each"


def _objects(w: World) -> int:
    return sum(len(files) for _, _, files in os.walk(w.path(".git/objects")))


def test_r69_edits_made_in_a_shell(t: Tale) -> None:
    t.ck()
    subprocess.run(["sed", "-i", "s/a/z/", "a"], cwd=t.root, check=True)
    assert t.get("a") == b"z\n"
    t.rs()
    assert t.get("a") == b"a\n"


def test_c28_two_days_of_work_beside_an_empty_nested_repository(t: Tale) -> None:
    World(t.root / "empty")
    for number in range(5):
        t.put(f"work/{number}", f"two days {number}\n")
    t.put("a", "two days\n")
    before = t.state()
    t.ck()
    shutil.rmtree(t.path("work"))
    t.put("a", "agent\n")
    t.rs()
    assert differing(before, t.state()) == {}


def test_c52_c53_settings_that_stop_commits_stop_no_restore(t: Tale, configured: Path) -> None:
    t.eng = t.engine()
    t.ck()
    t.put("a", "agent\n")
    t.git("add", "a")
    t.rs()
    assert (t.get("a"), t.git("status", "--porcelain"), (configured / "ran").exists()) == (b"a\n", b"", False)


def test_a_checkpoint_that_lost_its_objects_touches_nothing(t: Tale) -> None:
    t.put("a", "only here\n")
    t.ck()
    oid = t.git("hash-object", "a").decode().strip()
    t.put("a", "x\n")
    Path(t.root, ".git/objects", oid[:2], oid[2:]).unlink()
    before = t.state()
    with pytest.raises(CheckpointError) as incomplete:
        t.rs()
    assert (incomplete.value.code, differing(before, t.state())) == ("checkpoint_incomplete", {})
