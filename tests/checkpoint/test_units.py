"""Several units as one: submodules, nested repositories, further roots; whatever is killed, all go one way."""

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.units import Units
from hub.checkpoint.values import FilesMoved, Mark, Plan
from hub.errors import ConflictError, NotFoundError, TurnbackError
from tests.checkpoint.world import World, differing

CHILD = str(Path(__file__).with_name("units_child.py"))


class Workspace:
    """A repository with a nested repository; if it is the whole one, with a submodule, and a second root, too."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.top, self.other = World.at(base / "w"), World.at(base / "other")
        self.sub, self.nested = World.at(base / "w" / "sub"), World.at(base / "w" / "dir" / "nested")

    @classmethod
    def make(cls, base: Path, *, whole: bool) -> "Workspace":
        ws = cls(base)
        World(ws.top.root).base()
        if whole:
            source = World(base / "source")
            source.put("s.txt", "s\n")
            source.commit()
            ws.top.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(source.root), "sub")
            ws.top.commit("with submodule")
            ws.sub.put("s.txt", "dirty\n")
            World(ws.other.root).base()
        World(ws.nested.root).base()
        return ws

    def copy(self, base: Path) -> "Workspace":
        subprocess.run(["cp", "-a", "--", self.base, base], check=True)
        return Workspace(base)

    def units(self, **options: Any) -> Units:
        return Units.open([self.top.root, *([self.other.root] if self.other.root.exists() else [])], **options)

    def worlds(self) -> list[World]:
        return [world for world in (self.top, self.sub, self.nested, self.other) if world.root.exists()]

    def edit(self, text: str = "edited\n") -> None:
        """Change something in each unit, the index too."""
        for world in self.worlds():
            world.put("new.txt", text)
            world.git("add", "new.txt")
            world.put("a.txt", f"{world.root.name} {text}")

    def state(self) -> dict[str, Any]:
        found = {world.root.name: world.state() for world in self.worlds()}
        return found | {"w": outside(self.top, b"sub/", b"dir/nested/")}


def outside(world: World, *inside: bytes) -> dict[str, Any]:
    """Return a state without what lies in the repositories inside, their git directories too."""
    state = world.state()
    return state | {"files": {name: row for name, row in state["files"].items() if not name.startswith(inside)}}


Prepared = tuple[Workspace, dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def templates(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Workspace]:
    base = tmp_path_factory.mktemp("units")
    return {whole: Workspace.make(base / str(whole), whole=whole) for whole in (True, False)}


@pytest.fixture
def ws(tmp_path: Path, templates: dict[bool, Workspace]) -> Workspace:
    """The whole workspace."""
    return templates[True].copy(tmp_path / "base")


@pytest.fixture
def pair(tmp_path: Path, templates: dict[bool, Workspace]) -> Workspace:
    """The small one."""
    return templates[False].copy(tmp_path / "base")


def restore(units: Units, target: str, undo: str, **options: Any) -> Plan:
    plan = units.plan(target, undo_ref=undo, labels={}, **options)
    units.apply(plan)
    units.finish(plan.txid)
    return plan


def code_of(call: Callable[..., Any], *words: Any, **options: Any) -> str:
    with pytest.raises(TurnbackError) as raised:
        call(*words, **options)
    return raised.value.code


def part_refs(world: World) -> list[bytes]:
    return [name for name in world.git("for-each-ref", "--format=%(refname)").split() if b"/turnback/part/" in name]


def test_c22_c23_c24_all_units_come_back_and_undo_brings_back_what_was_there(ws: Workspace) -> None:
    first = ws.state()
    taken = ws.units().capture("ses/1", labels={"run": "1"})
    assert (taken.uncaptured, taken.files) == ((), 17)
    assert differing(first, ws.state()) == {}
    ws.edit()
    ws.sub.git("commit", "-qm", "by the agent")
    second = ws.state()
    plan = restore(ws.units(), "ses/1", "ses/1u")
    assert {"new.txt", "sub/new.txt", "dir/nested/new.txt", f"{ws.other.root}/new.txt"} == {
        step.path for step in plan.deletions if "new" in step.path
    }
    assert any(note.startswith("In sub: HEAD stays") for note in plan.notes)
    now = ws.state()
    for unit in ("w", "nested", "other"):
        assert differing(first[unit], now[unit]) == {}
    assert (first["sub"]["files"], first["sub"]["index"]) == (now["sub"]["files"], now["sub"]["index"])
    restore(ws.units(), "ses/1u", "ses/2u")
    assert differing(second, ws.state()) == {}


def test_a_single_unit_is_as_the_engine_does_it(tmp_path: Path) -> None:
    """The same values, and nothing is kept besides."""
    seen = []
    for kind, name in ((Engine.open, "one"), (lambda root: Units.open([root]), "two")):
        w = World(tmp_path / name / "w")
        w.base()
        engine = kind(w.root)
        engine.capture("ses/0", labels={})
        w.agent()
        found = [call(engine) for call in CALLS]
        plan = engine.plan("ses/0", undo_ref="ses/0u", labels={})
        found += [engine.apply(plan), engine.finish(plan.txid)]
        engine.forget(["ses/0u"])
        seen.append([_plain(value) for value in (*found, engine.list())])
        assert not (w.root / ".git/turnback/joint").exists()
        assert not (w.root / ".git/turnback/parts.json").exists()
    assert seen[0] == seen[1]


def test_a_single_unit_costs_no_git_process_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that run do so inside a call of the one engine."""
    w = World(tmp_path / "w")
    w.base()
    units = Units.open([w.root])
    units.capture("ses/0", labels={})
    w.agent()
    trace = tmp_path / "trace"
    monkeypatch.setenv("GIT_TRACE2_EVENT", str(trace))
    inside = 0

    def count() -> int:
        return trace.read_text().count('"event":"version"') if trace.exists() else 0

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*words: Any, **options: Any) -> Any:
            nonlocal inside
            before = count()
            try:
                return call(*words, **options)
            finally:
                inside += count() - before

        return counting

    (engine,) = units._family.roots
    for name in ("capture", "diff", "patch", "preview", "plan", "apply", "finish", "forget", "list", "recover"):
        monkeypatch.setattr(engine, name, counted(getattr(engine, name)))
    for call in CALLS:
        call(units)
    plan = units.plan("ses/0", undo_ref="ses/0u", labels={})
    units.apply(plan)
    units.finish(plan.txid)
    units.recover(lambda _: False)
    units.forget(["ses/0u"])
    assert count() == inside > 20


CALLS: tuple[Callable[[Any], Any], ...] = (
    lambda engine: engine.capture("ses/1", labels={"a": "b"}),
    lambda engine: engine.diff("ses/0", "ses/1"),
    lambda engine: engine.patch("ses/0", None, ["a.txt"]),
    lambda engine: engine.preview("ses/0"),
)


def _plain(value: Any) -> Any:
    """Return a value without what differs between two worlds on purpose: ids of commits, times, transactions."""
    built = msgspec.to_builtins(value)

    def clean(part: Any) -> Any:
        if isinstance(part, dict):
            apart = ("commit", "tree_digest", "created_at", "txid", "id")
            return {key: clean(inner) for key, inner in part.items() if key not in apart}
        return [clean(inner) for inner in part] if isinstance(part, list | tuple) else part

    return clean(built)


def test_the_checkpoint_of_each_unit_is_its_own(ws: Workspace) -> None:
    ws.units().capture("ses/1", labels={"run": "1"})
    for world in (ws.sub, ws.nested, ws.other):
        (name,) = part_refs(world)
        assert world.git(
            "show", f"{name.decode()}:worktree/a.txt" if world is not ws.sub else f"{name.decode()}:worktree/s.txt"
        )
    assert part_refs(ws.top) == []
    assert [row.ref for row in ws.units().list()] == ["ses/1"]
    assert Engine.open(ws.nested.root).list() == []


def test_nothing_changed_is_the_same_commit_and_a_change_in_a_unit_is_another(pair: Workspace) -> None:
    first = pair.units().capture("ses/1", labels={})
    again = pair.units().capture("ses/2", labels={})
    assert (again.commit, again.unchanged_since, again.bytes) == (first.commit, "ses/1", 0)
    pair.nested.put("a.txt", "changed\n")
    third = pair.units().capture("ses/3", labels={})
    assert (third.unchanged_since, third.tree_digest == first.tree_digest) == (None, False)
    pair.units().forget(["ses/1"])
    restore(pair.units(), "ses/2", "ses/2u")
    assert pair.nested.get("a.txt") == b"a modified by the user\n"


def test_diff_and_patch_show_the_paths_of_all_units(ws: Workspace) -> None:
    units = ws.units()
    units.capture("ses/1", labels={})
    ws.edit()
    units.capture("ses/2", labels={})
    wanted = ["a.txt", "new.txt", "sub/a.txt", "sub/new.txt", "dir/nested/a.txt", "dir/nested/new.txt"]
    wanted += [f"{ws.other.root}/a.txt", f"{ws.other.root}/new.txt"]
    for newer in ("ses/2", None):
        assert [change.path for change in units.diff("ses/1", newer)] == sorted(wanted)
        text = units.patch("ses/1", newer)
        assert "+++ b/sub/new.txt\n" in text
        assert "--- a/dir/nested/a.txt\n" in text
        assert units.patch("ses/1", newer, ["sub/new.txt"]).count("+++ ") == 1
        assert units.patch("ses/1", newer, ["dir"]).count("+++ ") == 2


def test_only_some_paths_of_some_units(ws: Workspace) -> None:
    ws.units().capture("ses/1", labels={})
    ws.edit()
    plan = restore(ws.units(), "ses/1", "ses/1u", paths=["sub/new.txt", f"{ws.other.root}/a.txt"])
    assert [step.path for step in (*plan.writes, *plan.deletions)] == [f"{ws.other.root}/a.txt", "sub/new.txt"]
    assert (ws.nested.get("a.txt"), ws.other.exists("new.txt"), ws.sub.exists("new.txt")) == (
        b"nested edited\n",
        True,
        False,
    )
    ws.edit("again\n")
    restore(ws.units(), "ses/1u", "ses/2u")
    assert (ws.nested.get("a.txt"), ws.top.get("a.txt")) == (b"nested edited\n", b"w edited\n")


def test_only_what_the_session_changed_in_each_unit(pair: Workspace) -> None:
    units = pair.units()
    units.capture("ses/1", labels={})
    pair.edit("by the agent\n")
    units.capture("ses/1a", labels={})
    pair.nested.put("mine.txt", "by the user\n")
    pair.nested.put("new.txt", "by the user\n")
    history = [Mark(ref="ses/1", kind="before", owner="run"), Mark(ref="ses/1a", kind="after", owner="run")]
    plan = restore(units, "ses/1", "ses/1u", owner="run", history=history)
    assert plan.reach == "session"
    assert {"dir/nested/mine.txt", "dir/nested/new.txt"} <= {row.path for row in plan.kept}
    assert (pair.top.exists("new.txt"), pair.nested.get("a.txt")) == (False, b"a modified by the user\n")
    assert (pair.nested.get("new.txt"), pair.nested.get("mine.txt")) == (b"by the user\n", b"by the user\n")


def test_the_branches_of_all_units_go_back_and_forward(pair: Workspace) -> None:
    units = pair.units()
    units.capture("ses/1", labels={})
    first = pair.state()
    for world in (pair.nested, pair.top):
        world.put("a.txt", "by the agent\n")
        world.git("commit", "-qam", "by the agent")
    second = pair.state()
    plan = restore(units, "ses/1", "ses/1u", head=True, kept_head_ref="ses/1o")
    assert any(note.startswith("In dir/nested: ") for note in plan.notes)
    for unit in ("w", "nested"):
        assert pair.state()[unit]["refs"] == first[unit]["refs"]
        assert pair.state()[unit]["files"] == first[unit]["files"]
    restore(units, "ses/1u", "ses/2u", head=True, kept_head_ref="ses/2o")
    for unit in ("w", "nested"):
        assert pair.state()[unit]["refs"] == second[unit]["refs"]
        assert pair.state()[unit]["files"] == second[unit]["files"]


def test_a_preview_writes_nothing(pair: Workspace) -> None:
    units = pair.units()
    units.capture("ses/1", labels={})
    pair.edit()
    before, refs = pair.state(), [part_refs(world) for world in pair.worlds()]
    plan = units.preview("ses/1")
    assert "dir/nested/new.txt" in {step.path for step in plan.deletions}
    assert [part_refs(world) for world in pair.worlds()] == refs
    assert differing(before, pair.state()) == {}
    assert code_of(units.apply, plan) == "plan_is_preview"


def test_a_plan_of_several_units_survives_json(pair: Workspace) -> None:
    first = pair.state()
    pair.units().capture("ses/1", labels={})
    pair.edit()
    plan = pair.units().plan("ses/1", undo_ref="ses/1u", labels={})
    again = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    assert again == plan
    units = pair.units()
    units.apply(again)
    units.finish(again.id)
    assert differing(first, pair.state()) == {}


def test_c26_units_that_vanished_or_appeared_are_named_and_kept(pair: Workspace) -> None:
    units = pair.units()
    units.capture("ses/1", labels={})
    shutil.rmtree(pair.nested.root)
    made = World(pair.top.root / "made")
    made.put("x", "x\n")
    made.commit()
    pair.top.put("a.txt", "agent\n")
    plan = restore(units, "ses/1", "ses/1u")
    kept = {row.path: row.reason for row in plan.kept}
    assert "is gone" in kept["dir/nested/"]
    assert kept["made/"] == "a repository of its own"
    assert (made.get("x"), pair.top.get("a.txt")) == (b"x\n", b"a modified by the user\n")
    made.put("x", "changed\n")
    restore(units, "ses/1u", "ses/2u")
    assert made.get("x") == b"x\n"  # part of the undo checkpoint


def test_another_repository_in_the_place_of_a_unit_is_left_alone(pair: Workspace) -> None:
    pair.units().capture("ses/1", labels={})
    shutil.rmtree(pair.nested.root)
    other = World(pair.nested.root)
    other.put("mine", "mine\n")
    plan = restore(pair.units(), "ses/1", "ses/1u")
    assert "another repository" in {row.path: row.reason for row in plan.kept}["dir/nested/"]
    assert other.get("mine") == b"mine\n"
    assert not other.exists("a.txt")


def test_a_part_that_was_deleted_by_hand_refuses_the_whole(ws: Workspace) -> None:
    ws.units().capture("ses/1", labels={})
    (name,) = part_refs(ws.nested)
    ws.nested.git("update-ref", "-d", name)
    ws.edit()
    before = ws.state()
    with pytest.raises(TurnbackError) as refused:
        ws.units().plan("ses/1", undo_ref="ses/1u", labels={})
    assert (refused.value.code, "dir/nested" in refused.value.message) == ("checkpoint_incomplete", True)
    assert differing(before, ws.state()) == {}
    assert [row.ref for row in ws.units().list()] == ["ses/1"]
    plan = ws.units().plan("ses/1", undo_ref="ses/1u", labels={}, paths=["a.txt", "sub"])
    assert {step.path for step in plan.writes} == {"a.txt"}


def test_c25_c28_one_without_a_commit_is_a_unit_like_any_other(tmp_path: Path) -> None:
    w = World(tmp_path / "w")
    w.base()
    empty = World(w.root / "empty")
    empty.put("two-days", "of work\n")
    units = Units.open([w.root])
    assert units.capture("ses/1", labels={}).uncaptured == ()
    empty.remove("two-days")
    w.agent()
    restore(units, "ses/1", "ses/1u")
    assert empty.get("two-days") == b"of work\n"


def test_ignored_repositories_and_deinitialised_submodules_are_no_units(ws: Workspace) -> None:
    ws.top.put(".git/info/exclude", "dir/nested\n")
    ws.top.git("submodule", "--quiet", "deinit", "-f", "sub")
    taken = Units.open([ws.top.root]).capture("ses/1", labels={})
    assert (part_refs(ws.nested), part_refs(ws.top)) == ([], [])
    assert [(row.path, row.why) for row in taken.uncaptured] == [("dir/nested/", "nested_repository")]


def test_a_unit_that_was_ignored_since_is_still_restored(pair: Workspace) -> None:
    """C48: the agent hides what was captured."""
    units = Units.open([pair.top.root])
    units.capture("ses/1", labels={})
    pair.nested.put("a.txt", "agent\n")
    pair.top.put(".gitignore", "dir/\n")
    restore(units, "ses/1", "ses/1u")
    assert (pair.nested.get("a.txt"), pair.top.exists(".gitignore")) == (b"a modified by the user\n", False)


def test_repositories_inside_a_folder_without_git_and_inside_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    (folder / "plain").mkdir(parents=True)
    (folder / "plain" / "x").write_text("x\n")
    outer = World(folder / "be")
    outer.base()
    inner = World(folder / "be" / "lib")
    inner.base()
    units = Units.open([folder], shadow=tmp_path / "home")
    first = outside(outer, b"lib/"), inner.state()
    assert units.capture("ses/1", labels={}).uncaptured == ()
    for world in (outer, inner):
        world.agent()
    (folder / "plain" / "x").write_text("agent\n")
    plan = restore(units, "ses/1", "ses/1u")
    assert {"plain/x", "be/a.txt", "be/lib/a.txt"} <= {step.path for step in plan.writes}
    assert differing(first[0], outside(outer, b"lib/")) == {}
    assert differing(first[1], inner.state()) == {}
    assert (folder / "plain" / "x").read_text() == "x\n"
    assert not (folder / ".turnback").exists()


def test_a_capture_that_fails_in_one_unit_leaves_no_checkpoint_in_any(pair: Workspace) -> None:
    (pair.nested.root / ".git" / "objects").rename(pair.nested.root / ".git" / "gone")
    (pair.nested.root / ".git" / "objects").mkdir()
    units = pair.units()
    with pytest.raises(TurnbackError):
        units.capture("ses/1", labels={})
    assert units.list() == []
    assert part_refs(pair.nested) == []


def test_a_name_in_use_in_one_unit_is_refused_and_the_other_checkpoint_stays(pair: Workspace) -> None:
    units = pair.units()
    units.capture("ses/1", labels={})
    Engine.open(pair.top.root).forget(["ses/1"])
    names = part_refs(pair.nested)
    assert code_of(units.capture, "ses/1", labels={}) == "ref_exists"
    assert part_refs(pair.nested) == names
    units.capture("ses/2", labels={})


def test_forget_prune_and_purge_take_the_parts_along(pair: Workspace) -> None:
    units = pair.units()
    for number in (1, 2):
        pair.edit(f"{number}\n")
        units.capture(f"ses/{number}", labels={})
    units.forget(["ses/1"])
    assert len(part_refs(pair.nested)) == 1
    units.purge("ses")
    assert [part_refs(world) for world in pair.worlds()] == [[], []]


def test_a_conflict_in_one_unit_takes_all_units_back(ws: Workspace) -> None:
    units = ws.units()
    units.capture("ses/1", labels={})
    ws.edit()
    plan = units.plan("ses/1", undo_ref="ses/1u", labels={})
    ws.other.put("a.txt", "saved by the user\n")
    before = ws.state()
    assert code_of(units.apply, plan) == "files_moved"
    assert differing(before, ws.state()) == {}
    assert leftovers(ws) == []
    applied = units.apply(plan, on_conflict="keep-mine")
    assert [row.path for row in applied.conflicts] == [f"{ws.other.root}/a.txt"]
    units.finish(plan.txid)
    assert (ws.other.get("a.txt"), ws.sub.exists("new.txt")) == (b"saved by the user\n", False)


def test_an_applied_restore_is_rolled_back_in_all_units(pair: Workspace) -> None:
    units = pair.units()
    units.capture("ses/1", labels={})
    pair.edit()
    before = pair.state()
    plan = units.plan("ses/1", undo_ref="ses/1u", labels={})
    units.apply(plan)
    assert code_of(units.capture, "ses/2", labels={}) == "restore_in_progress"
    for world in pair.worlds():
        assert code_of(Engine.open(world.root, lock_wait_s=0.05).capture, "x/1", labels={}) == "workspace_busy"
    units.abort(plan.txid)
    assert differing(before, pair.state()) == {}
    assert leftovers(pair) == []
    with pytest.raises(NotFoundError):
        units.finish(plan.txid)
    units.apply(plan)
    units.finish(plan.txid)
    with pytest.raises(NotFoundError):
        units.abort(plan.txid)
    assert code_of(Units.open, []) == "invalid_params"


def test_a_final_restore_is_not_aborted(pair: Workspace) -> None:
    units = pair.units()
    units.capture("ses/1", labels={})
    pair.edit()
    plan = units.plan("ses/1", undo_ref="ses/1u", labels={})
    units.apply(plan)

    def fail(step: str) -> None:
        if step == "joint:done":
            raise RuntimeError("it went wrong here")

    units.hook = fail
    with pytest.raises(RuntimeError, match="wrong here"):
        units.finish(plan.txid)
    units.hook = lambda step: None
    with pytest.raises(ConflictError) as conflict:
        units.abort(plan.txid)
    assert conflict.value.code == "restore_final"
    units.finish(plan.txid)
    assert leftovers(pair) == []


@pytest.mark.parametrize("places", [("f", "f/inner"), ("f/inner", "f")])
def test_plain_folders_inside_each_other_are_refused(tmp_path: Path, places: tuple[str, str]) -> None:
    (tmp_path / "f" / "inner").mkdir(parents=True)
    directories = [tmp_path / place for place in places]
    assert code_of(Units.open, directories, shadow=tmp_path / "home") == "roots_overlap"


def test_a_root_named_twice_and_one_that_lies_in_another(ws: Workspace) -> None:
    units = Units.open([ws.top.root, ws.top.root / "dir", ws.nested.root])
    assert units.roots == (ws.top.root, ws.nested.root)
    first = ws.state()
    units.capture("ses/1", labels={})
    assert len(part_refs(ws.nested)) == 1
    ws.edit()
    units.plan("ses/1", undo_ref="ses/1u", labels={})
    restore(units, "ses/1", "ses/2u")
    now = ws.state()
    assert [unit for unit in now if differing(first[unit], now[unit])] == ["other"]


def leftovers(ws: Workspace) -> list[str]:
    """Return what a restore left behind in any unit."""
    rooms = [ws.top.root / ".git", ws.top.root / ".git/modules/sub", ws.nested.root / ".git", ws.other.root / ".git"]
    found = [path for room in rooms for folder in ("txn", "joint") for path in (room / "turnback" / folder).glob("*")]
    return [str(path) for path in (*found, *(lock for room in rooms for lock in room.glob("*.lock")))]


def killed(ws: Workspace, call: str, step: str) -> subprocess.CompletedProcess[bytes]:
    words = [sys.executable, CHILD, call, step, *map(str, ws.units().roots)]
    return subprocess.run(words, capture_output=True, check=False, cwd=Path(__file__).parents[2])


JOINTS = ("joint:beginning", "joint:apply:", "joint:apply:sub", "staging", "sub:begun", "dir/nested:applied")
ENDS = ("joint:applied", "joint:finishing", "joint:done", "joint:end:sub", "sub:committed", "joint:end:dir/nested")


def side(ws: Workspace, before: dict[str, Any], after: dict[str, Any]) -> str:
    now = ws.state()
    if differing(before, now) == {}:
        return "before"
    mixed = {unit: differing(after[unit], now[unit]).keys() for unit in now if differing(after[unit], now[unit])}
    assert mixed == {}, "some units are as before and some as after"
    return "after"


@pytest.fixture
def prepared(ws: Workspace) -> Prepared:
    """A whole workspace that the agent has edited, its state now, and its state at the checkpoint."""
    return edited(ws)


@pytest.fixture
def prepared_pair(pair: Workspace) -> Prepared:
    """The same of the small one."""
    return edited(pair)


def edited(ws: Workspace) -> Prepared:
    after = ws.state()
    ws.units().capture("ses/1", labels={})
    ws.edit()
    return ws, ws.state(), after


def kill_at(prepared: Prepared, call: str, steps: tuple[str, ...]) -> dict[str, str]:
    """Kill a call at each of the steps, recover in a new process's stead, and return on which side it ended."""
    ws, before, after = prepared
    pristine = ws.copy(ws.base.with_name("pristine"))
    seen = {}
    for step in steps:
        done = killed(ws, call, step)
        assert done.returncode == -9, f"{step}: {done.stderr.decode()}"
        for world in (ws.nested, ws.other):
            Engine.open(world.root).recover(lambda _: False)  # another hub, which knows nothing of this restore
        ws.units().recover(lambda _: False)
        seen[step] = side(ws, before, after)
        assert leftovers(ws) == [], step
        assert ws.units().recover(lambda _: True) == []
        shutil.rmtree(ws.base)
        pristine.copy(ws.base)
    return seen


def test_killed_between_the_units_of_a_restore(prepared: Prepared) -> None:
    seen = kill_at(prepared, "restore", ("joint:apply:sub", "joint:end:sub"))
    assert list(seen.values()) == ["before", "after"]


@pytest.mark.slow
def test_killed_at_every_step_between_units(prepared: Prepared) -> None:
    seen = kill_at(prepared, "restore", (*JOINTS, *ENDS, "joint:clean"))
    assert list(seen.values()) == ["before"] * (len(JOINTS) + 2) + ["after"] * (len(ENDS) - 1)


@pytest.mark.slow
def test_killed_at_every_step_of_an_abort(prepared: Prepared) -> None:
    steps = ("joint:void", f"joint:end:{prepared[0].other.root}", "sub:back:clean", "joint:end:", "joint:clean")
    assert set(kill_at(prepared, "abort", steps).values()) == {"before"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["recover forward", "recover back"])
def test_killed_in_recovery(prepared: Prepared, way: str) -> None:
    """Whatever recovery had decided stays decided, even if the next one is told otherwise."""
    ws, before, after = prepared
    pristine = ws.copy(ws.base.with_name("pristine"))
    inner = "dir/nested:committed" if way == "recover forward" else "dir/nested:back:clean"
    for step in ("joint:end:", inner, "joint:end:sub", "joint:clean"):
        assert killed(ws, "restore", "joint:applied").returncode == -9
        assert killed(ws, way, step).returncode == -9, step
        (settled,) = ws.units().recover(lambda _: way == "recover back")
        assert settled.direction == way.removeprefix("recover ")
        assert side(ws, before, after) == ("after" if way == "recover forward" else "before"), step
        assert leftovers(ws) == []
        shutil.rmtree(ws.base)
        pristine.copy(ws.base)


@pytest.mark.slow
def test_killed_at_random_instants(prepared: Prepared) -> None:
    ws, before, after = prepared
    pristine = ws.copy(ws.base.with_name("pristine"))
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    dice, seen = random.Random(seed), []
    words = [sys.executable, CHILD, "restore", "", *map(str, ws.units().roots)]
    for _ in range(40):
        child = subprocess.Popen(words, cwd=Path(__file__).parents[2])
        time.sleep(dice.uniform(0.5, 2.5))
        child.kill()
        child.wait()
        ws.units(lock_wait_s=30.0).recover(lambda _: False)
        seen.append(side(ws, before, after))
        assert leftovers(ws) == []
        shutil.rmtree(ws.base)
        pristine.copy(ws.base)
    print(f"before {seen.count('before')}, after {seen.count('after')}")
    assert set(seen) == {"before", "after"}


@pytest.mark.parametrize("committed", [pytest.param(True, marks=pytest.mark.slow), False])
def test_killed_before_the_word_was_given(prepared_pair: Prepared, committed: bool) -> None:
    """The caller's store says whether it counts; until it is asked, nobody works in any of the units."""
    ws, before, after = prepared_pair
    assert killed(ws, "restore", "joint:applied").returncode == -9
    assert code_of(ws.units().capture, "ses/2", labels={}) == "restore_unfinished"
    assert code_of(Engine.open(ws.nested.root).capture, "ses/2", labels={}) == "restore_unfinished"
    (settled,) = ws.units().recover(lambda _: committed)
    assert (settled.direction, settled.target_ref, settled.undo_ref) == (
        "forward" if committed else "back",
        "ses/1",
        "ses/1u",
    )
    assert side(ws, before, after) == ("after" if committed else "before")
    assert leftovers(ws) == []


def test_recovered_from_the_first_root_alone(prepared: Prepared) -> None:
    """The journal names the further roots: whoever recovers need not know them."""
    ws, before, after = prepared
    assert killed(ws, "restore", "joint:applied").returncode == -9
    (settled,) = Units.open([ws.top.root]).recover(lambda _: True)
    assert settled.direction == "forward"
    assert side(ws, before, after) == "after"
    assert leftovers(ws) == []


def test_the_next_call_ends_what_needs_nobodys_word(prepared_pair: Prepared) -> None:
    ws, before, after = prepared_pair
    assert killed(ws, "restore", "dir/nested:begun").returncode == -9
    ws.units().capture("ses/2", labels={})
    assert side(ws, before, after) == "before"
    assert killed(ws, "restore2", "joint:end:dir/nested").returncode == -9
    ws.units().capture("ses/3", labels={})
    assert side(ws, before, after) == "after"
    assert leftovers(ws) == []


def test_a_unit_that_vanished_after_a_crash_does_not_hold_up_the_others(prepared_pair: Prepared) -> None:
    ws, _, _ = prepared_pair
    assert killed(ws, "restore", "joint:done").returncode == -9
    shutil.rmtree(ws.nested.root)
    (settled,) = ws.units().recover(lambda _: False)
    assert [row.path for row in settled.rescued] == [os.fspath(ws.nested.root)]
    assert settled.direction == "forward"
    assert (ws.top.get("a.txt"), ws.top.exists("new.txt")) == (b"a modified by the user\n", False)


def test_named_files_are_captured_in_the_unit_that_holds_them(ws: Workspace) -> None:
    for world in (ws.top, ws.nested, ws.other):
        world.put(".git/info/exclude", "*.env\n")
        world.put("x.env", "before\n")
    units = ws.units()
    units.capture("ses/1", labels={}, include=["x.env", "dir/nested/x.env", f"{ws.other.root}/x.env"])
    for world in (ws.top, ws.nested, ws.other):
        world.put("x.env", "after\n")
    restore(units, "ses/1", "ses/1u")
    assert [world.get("x.env") for world in (ws.top, ws.nested, ws.other)] == [b"before\n"] * 3


def test_c39_c40_units_with_odd_names(tmp_path: Path) -> None:
    """Bytes that are no UTF-8, newlines and blanks; the plan can be sent, and the journal written."""
    w = World(tmp_path / "w")
    w.base()
    name = b" odd\n\xff"
    inner = World(w.root / os.fsdecode(name))
    inner.base()
    units = Units.open([w.root])
    assert units.capture("ses/1", labels={}).uncaptured == ()
    inner.put("a.txt", "agent\n")
    plan = units.plan("ses/1", undo_ref="ses/1u", labels={})
    assert [(step.path, step.name) for step in plan.writes] == [(" odd\n\\xff/a.txt", name + b"/a.txt")]
    plan = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
    units.apply(plan)
    units.finish(plan.txid)
    assert inner.get("a.txt") == b"a modified by the user\n"
    assert [change.path for change in units.diff("ses/1u", None)] == [" odd\n\\xff/a.txt"]
    assert "odd" in units.patch("ses/1u", None)


def test_errors_say_in_which_unit_they_arose(pair: Workspace) -> None:
    units = pair.units()
    units.capture("ses/1", labels={})
    pair.edit()
    plan = units.plan("ses/1", undo_ref="ses/1u", labels={})
    pair.nested.put("a.txt", "saved by the user\n")
    with pytest.raises(FilesMoved) as moved:
        units.apply(plan)
    assert moved.value.details == {"paths": ["dir/nested/a.txt"]}
    pair.nested.git("checkout", "-q", "-b", "other")
    with pytest.raises(TurnbackError, match=r"^In dir/nested: HEAD has moved"):
        units.apply(plan)
    pair.nested.put(".git/MERGE_HEAD", pair.nested.git("rev-parse", "HEAD"))
    with pytest.raises(TurnbackError, match=r"^In dir/nested: The checkpoint was taken with no operation") as refused:
        units.plan("ses/1", undo_ref="ses/2u", labels={})
    assert refused.value.code == "operation_changed"
    assert [row.ref for row in units.list()] == ["ses/1", "ses/1u"]
    assert len(part_refs(pair.nested)) == 2


@pytest.mark.slow
def test_two_sessions_with_the_same_roots_in_another_order(ws: Workspace) -> None:
    """They lock them in one order: one waits, none is refused."""
    words = "import sys; from pathlib import Path; from hub.checkpoint.units import Units\n"
    words += "units = Units.open([Path(p) for p in sys.argv[2:]], lock_wait_s=60)\n"
    words += "for n in range(3): units.capture(f'{sys.argv[1]}/{n}', labels={})\n"
    places = [str(ws.top.root), str(ws.other.root)]
    orders = (("one", *places), ("two", *reversed(places)))
    cwd = Path(__file__).parents[2]
    running = [subprocess.Popen([sys.executable, "-c", words, *order], cwd=cwd) for order in orders]
    assert [process.wait() for process in running] == [0, 0]
    assert [len(world.git("for-each-ref", "refs/turnback").splitlines()) for world in (ws.top, ws.other)] == [6, 6]
