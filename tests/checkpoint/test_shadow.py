"""Folders without git, or with a repository that is to hold no checkpoints: C61, C62, and what becomes of a folder."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.units import Units
from hub.checkpoint.values import Plan
from hub.errors import TurnbackError
from tests.checkpoint.world import World, differing


class Folder(World):
    """A folder without git."""

    def __init__(self, root: Path, stores: Path) -> None:
        self.root, self.stores = root, stores
        root.mkdir(parents=True, exist_ok=True)

    def engine(self, **options: Any) -> Engine:
        return Engine.open(self.root, shadow=self.stores, **options)


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    return tmp_path / "home" / "checkpoints"


@pytest.fixture
def f(tmp_path: Path, stores: Path) -> Folder:
    folder = Folder(tmp_path / "f", stores)
    folder.put("a.txt", "a\n")
    folder.put("dir/run", "#!/bin/sh\n", 0o755)
    folder.put("secret", "s\n", 0o600)
    folder.put(b"crlf\xff", b"one\r\ntwo\n")
    folder.link("link", "nowhere")
    folder.put(".gitignore", "*.log\nbuild/\n")
    folder.put("x.log", "log\n")
    folder.put("build/out", "out\n")
    (folder.root / "empty").mkdir()
    return folder


def agent(f: Folder) -> None:
    f.put("a.txt", "by the agent\n")
    f.remove("link")
    f.put("link", "a file now\n")
    os.chmod(f.path("dir/run"), 0o644)
    f.remove(b"crlf\xff")
    f.put("new/n", "new\n")
    (f.root / "empty").rmdir()


def restore(engine: Engine, target: str, undo: str) -> Plan:
    plan = engine.plan(target, undo_ref=undo, labels={})
    engine.apply(plan)
    engine.finish(plan.txid)
    return plan


def code_of(call: Any, *words: Any, **options: Any) -> str:
    with pytest.raises(TurnbackError) as raised:
        call(*words, **options)
    return raised.value.code


def test_c61_a_folder_without_git_is_restored_and_the_restore_undone(f: Folder) -> None:
    first = f.files()
    engine = f.engine()
    taken = engine.capture("ses/1", labels={"run": "1"})
    assert (taken.head, taken.branch, taken.uncaptured) == (None, None, ())
    assert f.files() == first
    agent(f)
    second = f.files()
    plan = restore(engine, "ses/1", "ses/1u")
    assert differing(first, f.files()) == {}
    assert (plan.head_distance, plan.restores_index, plan.index_changes) == (0, False, ())
    restore(f.engine(), "ses/1u", "ses/2u")
    assert differing(second, f.files()) == {}


def test_ignore_rules_are_those_of_the_folder(f: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git would ignore for this user everywhere is captured all the same; what is ours is not."""
    (tmp_path / "git").mkdir()
    (tmp_path / "git" / "ignore").write_text("a.txt\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    f.put(".turnback/own", "ours\n")
    engine = f.engine()
    engine.capture("ses/1", labels={})
    f.put("a.txt", "changed\n")
    for name in ("x.log", "build/out", ".turnback/own"):
        f.put(name, "changed\n")
    assert [change.path for change in engine.diff("ses/1", None)] == ["a.txt"]
    restore(engine, "ses/1", "ses/1u")
    assert (f.get("a.txt"), f.get("x.log"), f.get("build/out")) == (b"a\n", b"changed\n", b"changed\n")


def test_nothing_changed_is_the_same_commit(f: Folder) -> None:
    first = f.engine().capture("ses/1", labels={})
    again = f.engine().capture("ses/2", labels={})
    assert (again.commit, again.unchanged_since) == (first.commit, "ses/1")
    assert [row.ref for row in f.engine().list()] == ["ses/1", "ses/2"]


def test_a_store_without_checkpoints_lists_none(f: Folder) -> None:
    assert f.engine().list() == []
    assert code_of(f.engine().get, "ses/1") == "checkpoint_not_found"


def test_without_a_place_for_shadow_stores_there_is_none(f: Folder) -> None:
    assert code_of(Engine.open, f.root) == "not_a_repository"


def test_a_directory_inside_the_folder_is_a_folder_of_its_own(f: Folder) -> None:
    engine = Engine.open(f.root / "dir", shadow=f.stores)
    assert (engine.root, engine.capture("ses/1", labels={}).files) == (f.root / "dir", 1)


def test_a_repository_keeps_its_checkpoints_itself(tmp_path: Path, stores: Path) -> None:
    w = World(tmp_path / "w")
    w.base()
    Engine.open(w.root, shadow=stores).capture("ses/1", labels={})
    assert w.git("for-each-ref", "--format=%(refname)").split()[-1] == b"refs/turnback/ses/1"
    assert not stores.exists()


def test_by_choice_a_repository_holds_nothing_of_ours(tmp_path: Path, stores: Path) -> None:
    w = World(tmp_path / "w")
    w.base()
    w.git("init", "-q", "nested")
    w.put("nested/x", "x\n")
    before, inside = w.state(), sorted((w.root / ".git").rglob("*"))
    engine = Engine.open(w.root, shadow=stores, always_shadow=True)
    engine.capture("ses/1", labels={})
    assert (differing(before, w.state()), sorted((w.root / ".git").rglob("*"))) == ({}, inside)
    w.put("a.txt", "agent\n")
    w.git("add", "a.txt")
    plan = restore(engine, "ses/1", "ses/1u")
    assert [step.path for step in plan.writes] == ["a.txt"]
    assert w.files() == before["files"]
    assert w.index() != before["index"]


def test_c46_what_the_folder_ignores_is_never_deleted(f: Folder) -> None:
    f.put("data/d", "x\n")
    f.put(".gitignore", "data/\n")
    engine = f.engine()
    engine.capture("ses/1", labels={})
    f.remove(".gitignore")
    f.put("data/new", "y\n")
    restore(engine, "ses/1", "ses/1u")
    assert (f.get("data/d"), f.get("data/new"), f.get(".gitignore")) == (b"x\n", b"y\n", b"data/\n")


@pytest.mark.parametrize("place", ["home", "Desktop", "Bureau", "above", "temporary", "store"])
def test_places_that_hold_everything_are_refused(
    tmp_path: Path, stores: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    home = tmp_path / "people" / "ada"
    names = ("Desktop", "Bureau", ".config")
    for name in names:
        (home / name).mkdir(parents=True)
    (home / ".config" / "user-dirs.dirs").write_text('# a comment\nXDG_DESKTOP_DIR="$HOME/Bureau"\n')
    monkeypatch.setenv("HOME", str(home))
    where = {"home": home, "above": home.parent, "temporary": Path("/tmp"), "store": stores}
    stores.mkdir(parents=True)
    assert code_of(Engine.open, where.get(place, home / place), shadow=stores) == "protected_directory"
    assert list(stores.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_c62_a_foreign_owner_is_refused_until_the_user_trusts(
    f: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(f.root, 12345, -1)
    with pytest.raises(TurnbackError) as refused:
        f.engine()
    assert refused.value.code == "foreign_owner"
    assert refused.value.hint == f"If you trust it: git config --global --add safe.directory {f.root}"
    config = tmp_path / "config"
    monkeypatch.setenv("HOME", str(tmp_path))
    trust = ["git", "config", "--file", str(config), "--add", "safe.directory", str(f.root)]
    subprocess.run(trust, check=True)
    config.rename(tmp_path / ".gitconfig")
    assert f.engine().capture("ses/1", labels={}).files == 6


def test_a_folder_that_was_replaced_is_another_one(f: Folder) -> None:
    f.engine().capture("ses/1", labels={})
    f.root.rename(f.root.with_name("old"))
    f.put("a.txt", "another project\n")
    engine = f.engine()
    assert engine.list() == []
    with pytest.raises(TurnbackError) as refused:
        engine.plan("ses/1", undo_ref="ses/1u", labels={})
    assert (refused.value.code, "replaced" in refused.value.message) == ("other_worktree", True)
    assert f.get("a.txt") == b"another project\n"
    assert engine.capture("ses/1", labels={}).files == 1


def test_a_folder_that_was_moved_is_told_where_it_was(f: Folder) -> None:
    f.engine().capture("ses/1", labels={})
    moved = Folder(f.root.with_name("moved"), f.stores)
    moved.root.rmdir()
    f.root.rename(moved.root)
    with pytest.raises(TurnbackError) as refused:
        moved.engine().get("ses/1")
    assert (refused.value.code, f"was at {f.root}" in refused.value.message) == ("other_worktree", True)
    assert f"move the folder back to {f.root}" in (refused.value.hint or "")
    moved.root.rename(f.root)
    assert f.engine().get("ses/1").files == 6


def test_a_folder_that_became_a_repository(f: Folder) -> None:
    f.engine().capture("ses/1", labels={})
    subprocess.run(["git", "init", "-q", str(f.root)], check=True)
    engine = f.engine()
    engine.capture("ses/2", labels={})
    with pytest.raises(TurnbackError) as refused:
        engine.preview("ses/1")
    assert (refused.value.code, "became a git repository" in refused.value.message) == ("other_worktree", True)
    agent(f)
    restore(f.engine(always_shadow=True), "ses/1", "ses/1u")
    assert f.get("a.txt") == b"a\n"


def test_device_numbers_count_only_within_one_boot(f: Folder) -> None:
    f.engine().capture("ses/1", labels={})
    (room,) = f.stores.iterdir()
    place = (room / "place.json").read_text()
    device = f'"device":{os.stat(f.root).st_dev}'
    (room / "place.json").write_text(place.replace(device, '"device":7'))
    other = room.rename(room.with_name("0" * 32))
    assert f.engine().list() == []  # the same boot: another disk
    shutil.rmtree(next(room for room in f.stores.iterdir() if room != other))
    (other / "place.json").write_text((other / "place.json").read_text().replace('"boot":"', '"boot":"earlier'))
    assert [row.ref for row in f.engine().list()] == ["ses/1"]


def test_a_place_for_stores_that_cannot_be_written(f: Folder) -> None:
    f.stores.parent.mkdir()
    f.stores.write_text("a file is in the way\n")
    assert code_of(f.engine) in ("checkpoint_failed", "store_unwritable")


def test_a_damaged_store_of_another_folder_is_passed_over(f: Folder) -> None:
    damaged = f.stores / ("0" * 32)
    damaged.mkdir(parents=True)
    (damaged / "place.json").write_text("{")
    assert f.engine().capture("ses/1", labels={}).files == 6
    assert code_of(f.engine().get, "ses/9") == "checkpoint_not_found"


def test_by_choice_the_repositories_inside_hold_nothing_of_ours_either(tmp_path: Path, stores: Path) -> None:
    outer, inner = World(tmp_path / "w"), World(tmp_path / "w" / "inner")
    for world in (inner, outer):
        world.put("x", "x\n")
    units = Units.open([outer.root], shadow=stores, always_shadow=True)
    inside = [sorted((world.root / ".git").rglob("*")) for world in (outer, inner)]
    units.capture("ses/1", labels={})
    inner.put("x", "changed\n")
    plan = units.plan("ses/1", undo_ref="ses/1u", labels={})
    units.apply(plan)
    units.finish(plan.txid)
    assert inner.get("x") == b"x\n"
    assert [sorted((world.root / ".git").rglob("*")) for world in (outer, inner)] == inside
    assert len(list(stores.iterdir())) == 2


def test_two_homes_have_one_lock_on_a_folder(f: Folder, tmp_path: Path) -> None:
    """Two hubs that keep the checkpoints of one folder in different places never work in it at once."""
    engine = f.engine()
    engine.capture("ses/1", labels={})
    agent(f)
    engine.apply(plan := engine.plan("ses/1", undo_ref="ses/1u", labels={}))
    other = Engine.open(f.root, shadow=tmp_path / "other", lock_wait_s=0.05)
    with pytest.raises(TurnbackError) as refused:
        other.capture("ses/1", labels={})
    assert (refused.value.code, f"process {os.getpid()}" in refused.value.message) == ("workspace_busy", True)
    engine.finish(plan.txid)
    assert other.capture("ses/1", labels={}).files == 6


def test_private_refs_and_a_shadow_store_have_one_lock(tmp_path: Path, stores: Path) -> None:
    w = World(tmp_path / "w")
    w.base()
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.agent()
    engine.apply(plan := engine.plan("ses/1", undo_ref="ses/1u", labels={}))
    other = Engine.open(w.root, shadow=stores, always_shadow=True, lock_wait_s=0.05)
    assert code_of(other.capture, "ses/1", labels={}) == "workspace_busy"
    engine.abort(plan.txid)
    assert other.capture("ses/1", labels={}).files == 7


@pytest.fixture
def bound(f: Folder, tmp_path: Path) -> Iterator[Folder]:
    """The folder, seen through a mount of its own: the same device, and yet nothing can be renamed out of it."""
    place = tmp_path / "bound"
    place.mkdir()
    mounted = subprocess.run(["mount", "--bind", str(f.root), str(place)], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip("this user cannot mount")
    try:
        yield Folder(place, f.stores)
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_folder_behind_a_mount_is_restored_from_within(bound: Folder) -> None:
    first = bound.files()
    engine = bound.engine()
    engine.capture("ses/1", labels={})
    agent(bound)
    second = bound.files()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    assert [path.name for path in bound.root.glob(".turnback*")] == [f".turnback-{plan.txid}"]
    engine.abort(plan.txid)
    assert differing(second, bound.files()) == {}
    restore(engine, "ses/1", "ses/2u")
    assert differing(first, bound.files()) == {}


def test_a_first_capture_of_many_files_is_one_pack(tmp_path: Path, stores: Path) -> None:
    folder = Folder(tmp_path / "many", stores)
    for number in range(2000):
        folder.put(f"d{number // 100}/{number}", f"{number}\r\n")
    engine = folder.engine()
    engine.capture("ses/1", labels={})
    (pack,) = stores.glob("*/store.git/objects/pack/*.pack")
    assert len(list(stores.glob("*/store.git/objects/??/*"))) < 100
    first = folder.files()
    for number in range(0, 2000, 40):
        folder.put(f"d{number // 100}/{number}", "changed\n")
    engine.capture("ses/2", labels={})
    packs = {*stores.glob("*/store.git/objects/pack/*.pack")}
    assert pack in packs
    assert len(packs) == 2  # the second is that of 50 changed files
    restore(engine, "ses/1", "ses/1u")
    assert folder.files() == first
