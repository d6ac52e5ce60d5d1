"""What `verify` finds in real repositories, what it repairs, and what it leaves alone."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.keeping.retention import Limits
from hub.checkpoint.keeping.verify import Verified
from hub.checkpoint.units import Units
from hub.errors import NotFoundError, TurnbackError
from tests.checkpoint.world import World, restore
from tests.faults import killing


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A repository with three checkpoints, made once and copied."""
    world = World(tmp_path_factory.mktemp("once") / "w")
    world.base()
    engine = world.engine()
    for name in ("ses/1", "ses/2", "ses/3"):
        world.put("a.txt", f"at {name}\n")
        engine.capture(name, labels={})
    return world


@pytest.fixture
def w(once: World, tmp_path: Path) -> World:
    return once.copy(tmp_path / "w")


def found(verified: Verified) -> set[tuple[str, str, bool]]:
    return {(row.kind, os.path.basename(row.name), row.repaired) for row in verified.findings}


def object_of(w: World, name: str) -> Path:
    oid = w.git("rev-parse", name).decode().strip()
    return Path(w.root, ".git/objects", oid[:2], oid[2:])


def test_a_sound_repository(w: World) -> None:
    engine = w.engine()
    restore(engine, "ses/1", "ses/1u")
    before = w.state()
    for deep in (False, True):
        done = engine.verify(deep=deep)
        assert done == Verified(checkpoints=4, complete=4, deep=deep, findings=())
        assert done.is_sound
    assert w.state() == before
    assert msgspec.json.decode(msgspec.json.encode(done), type=Verified) == done


def test_nothing_there_at_all(tmp_path: Path) -> None:
    assert World(tmp_path / "w").engine().verify(repair=True, deep=True).checkpoints == 0


@pytest.mark.parametrize(
    "name",
    [
        "worktree/a.txt",
        pytest.param("worktree", marks=pytest.mark.slow),
        "index",
        pytest.param("worktree/dir/sub", marks=pytest.mark.slow),
    ],
)
def test_missing_objects_are_named(w: World, name: str) -> None:
    engine = w.engine()
    w.put("dir/sub/own.txt", "only here\n")
    w.put("c.txt", "staged anew\n")
    w.git("add", "c.txt")
    w.put("a.txt", "only here, too\n")
    engine.capture("own/1", labels={})
    object_of(w, f"refs/turnback/own/1:{name}").unlink()
    done = engine.verify(repair=True)
    assert found(done) == {("incomplete", "1", False)}
    assert (done.findings[0].name, done.is_sound) == ("own/1", False)
    assert (done.checkpoints, done.complete) == (4, 3)
    assert [checkpoint.ref for checkpoint in engine.list()] == ["own/1", "ses/1", "ses/2", "ses/3"]


@pytest.mark.parametrize("how", ["other content", "no object at all"])
def test_damaged_bytes_are_found_by_a_deep_look(w: World, how: str) -> None:
    engine = w.engine()
    path, other = object_of(w, "refs/turnback/ses/2:worktree/a.txt"), object_of(w, "HEAD:a.txt")
    path.chmod(0o600)
    path.write_bytes(other.read_bytes() if how == "other content" else b"x" * 30)
    done = engine.verify(deep=True, repair=True)
    assert found(done) == {("corrupt", "2", False)}
    assert (done.checkpoints, done.complete, done.is_sound) == (3, 2, False)
    assert re.search(r"Object [0-9a-f]{40} is damaged", done.findings[0].text)


def test_refs_that_point_at_nothing_are_deleted_by_repair(w: World) -> None:
    engine = w.engine()
    engine.keep("ses/2")
    object_of(w, "refs/turnback/ses/2").unlink()
    assert found(engine.verify()) == {("points_at_nothing", "2", False)}
    assert [(row.ref, bool(row.broken)) for row in engine.list()] == [
        ("ses/1", False),
        ("ses/2", True),
        ("ses/3", False),
    ]
    done = engine.verify(repair=True)
    assert found(done) == {("points_at_nothing", "2", True)}
    assert done.is_sound
    assert found(engine.verify()) == set()
    with pytest.raises(NotFoundError, match="its commit was missing"):
        engine.get("ses/2")
    w.git("gc", "-q")


def test_when_the_object_store_is_not_there_nothing_is_deleted(w: World, tmp_path: Path) -> None:
    """A store that is borrowed from may come back."""
    engine = w.engine()
    shutil.move(str(w.root / ".git/objects"), tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere/info", w.root / ".git/objects/info")
    (w.root / ".git/objects/info/alternates").write_text(f"{tmp_path / 'elsewhere'}\n")
    assert engine.verify().is_sound
    (tmp_path / "elsewhere").rename(tmp_path / "away")
    done = engine.verify(repair=True)
    assert found(done) == {("points_at_nothing", name, False) for name in "123"}
    (tmp_path / "away").rename(tmp_path / "elsewhere")
    assert engine.verify().complete == 3


def test_a_ref_of_something_else_is_left(w: World) -> None:
    engine = w.engine()
    w.git("update-ref", "refs/turnback/ses/8", "HEAD")
    w.git("update-ref", "refs/turnback/ses/9", "HEAD^{tree}")
    w.git("update-ref", "refs/turnback/ses/1o", "HEAD")
    done = engine.verify(repair=True)
    assert found(done) == {("no_checkpoint", "8", False), ("no_checkpoint", "9", False)}
    assert done.checkpoints == done.complete == 3


def test_a_protection_without_checkpoint_says_how_it_comes_back(w: World) -> None:
    engine = w.engine()
    taken = engine.get("ses/2")
    engine.keep("ses/2")
    w.git("update-ref", "-d", "refs/turnback/ses/2")
    [row] = engine.verify(repair=True).findings
    assert (row.kind, row.name) == ("protection", "keep/ses/2")
    subprocess.run(row.text.split("with: ")[1].split(), cwd=w.root, check=True)
    assert engine.get("ses/2") == taken


def killed(w: World, step: str) -> Engine:
    """Return an engine of a worktree in which a process was killed at a step of a restore."""
    assert killing.killed(w.root, lambda engine: restore(engine, "ses/1", "ses/1u"), step)
    return w.engine()


@pytest.mark.parametrize(
    ("step", "kind", "content"),
    [
        pytest.param("staging", "transaction", b"at ses/3\n", marks=pytest.mark.slow),
        ("write:0", "unfinished_restore", b"at ses/3\n"),
        ("cleaning", "transaction", b"at ses/1\n"),
    ],
)
def test_what_a_killed_restore_left(w: World, step: str, kind: str, content: bytes) -> None:
    engine = killed(w, step)
    before = w.state()
    assert {row.kind for row in engine.verify().findings} == {kind}
    assert w.state() == before
    done = engine.verify(repair=True)
    assert [(row.kind, row.repaired) for row in done.findings] == [(kind, True)]
    assert w.get("a.txt") == content
    assert engine.verify(repair=True).findings == ()
    assert os.listdir(w.root / ".git/turnback/txn") == []


def test_an_applied_restore_waits_for_its_maker(w: World) -> None:
    engine = killed(w, "finishing")
    for _ in range(2):
        done = engine.verify(repair=True)
        assert [(row.kind, row.repaired) for row in done.findings] == [("unfinished_restore", False)]
        assert not done.is_sound
        assert w.get("a.txt") == b"at ses/1\n"
    engine.recover(lambda _: True)
    assert engine.verify().findings == ()


def test_a_restore_in_progress_is_named(w: World) -> None:
    engine = w.engine()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    assert found(engine.verify(repair=True)) == {("unfinished_restore", plan.txid, False)}
    engine.finish(plan.txid)
    assert engine.verify().findings == ()


def test_a_journal_that_cannot_be_read_is_named(w: World) -> None:
    engine = w.engine()
    folder = w.root / ".git/turnback/txn/0123456789abcdef"
    folder.mkdir()
    (folder / "plan.json").write_text("{")
    assert found(engine.verify(repair=True)) == {("journal", "0123456789abcdef", False)}
    assert (folder / "plan.json").exists()


def test_r57_stale_files_of_ours_are_removed_and_no_others(w: World) -> None:
    engine = w.engine()
    room = w.root / ".git/turnback"
    ours = [room / "index.lock", room / "latest.tmp", room / "side.git/config.tmp", room / "side.git/index.lock"]
    old, young = (w.root / ".git/refs/turnback/ses" / name for name in ("7.lock", "8.lock"))
    users = [w.root / ".git/index.lock", w.root / ".git/packed-refs.lock", w.root / ".git/config.lock"]
    for path in (*ours, old, young, *users):
        path.touch()
    long_ago = time.time() - 3600
    os.utime(old, (long_ago, long_ago))
    removed = {path.name for path in (*ours, old)}
    told = engine.verify()
    assert {row.name for row in told.findings if row.kind in ("lock_file", "temporary_file")} == {
        str(path) for path in (*ours, old)
    }
    assert all(path.exists() for path in (*ours, old))
    done = engine.verify(repair=True)
    assert {os.path.basename(row.name) for row in done.findings if row.repaired} == removed
    assert {row.name for row in done.findings if row.kind == "index_lock"} == {str(path) for path in users[:2]}
    assert not any(path.exists() for path in (*ours, old))
    assert all(path.exists() for path in (young, *users))
    assert done.is_sound


def test_slots_without_a_transaction(w: World) -> None:
    """Empty ones go; bytes are never removed."""
    engine = w.engine()
    w.put(".turnback-0123456789abcdef/.gitignore", "*\n")
    w.put(".turnback-1123456789abcdef/.gitignore", "*\n")
    w.put(".turnback-1123456789abcdef/d0", "somebody's\n")
    w.put(".turnback-mine/x", "the user's own\n")
    done = engine.verify(repair=True)
    assert found(done) == {
        ("slots", ".turnback-0123456789abcdef", True),
        ("rescued", ".turnback-1123456789abcdef", False),
    }
    assert w.get(".turnback-1123456789abcdef/d0") == b"somebody's\n"
    assert w.exists(".turnback-mine/x")
    assert not w.exists(".turnback-0123456789abcdef")


def test_what_was_put_aside_is_named_and_stays(w: World) -> None:
    engine = w.engine()
    w.remove("a.txt")
    os.mkfifo(w.path("a.txt"))
    restore(engine, "ses/1", "ses/1u")
    [row] = engine.verify(repair=True).findings
    assert (row.kind, row.repaired, os.listdir(row.name)) == ("rescued", False, ["k0"])
    assert "k0" in row.text
    assert engine.verify().is_sound


def test_a_worktree_in_use_is_not_looked_at(w: World) -> None:
    engine = w.engine()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    with pytest.raises(TurnbackError) as busy:
        w.engine(lock_wait_s=0.0).verify()
    assert busy.value.code == "workspace_busy"
    engine.abort(plan.txid)


def test_all_units_are_looked_at(w: World, tmp_path: Path) -> None:
    """A nested repository has its part of a checkpoint; what is wrong with it is named by its place."""
    inner = World(w.root / "inner")
    inner.base()
    units = Units.open([w.root])
    units.capture("own/1", labels={})
    assert units.verify(deep=True) == Verified(checkpoints=4, complete=4, deep=True, findings=())
    (part,) = inner.git("for-each-ref", "--format=%(refname)", "refs/turnback").decode().split()
    object_of(inner, f"{part}:worktree/a.txt").unlink()
    (inner.root / ".git/turnback/latest.tmp").touch()
    done = units.verify(repair=True)
    names = {(row.kind, row.name, row.repaired) for row in done.findings}
    assert names == {
        ("incomplete", f"{inner.root}: {part.removeprefix('refs/turnback/')}", False),
        ("temporary_file", str(inner.root / ".git/turnback/latest.tmp"), True),
    }
    assert not done.is_sound
    inner.git("update-ref", "-d", part)
    done = units.verify()
    assert [(row.kind, row.name) for row in done.findings] == [("incomplete", "own/1")]
    assert (done.checkpoints, done.complete) == (4, 3)
    assert units.export(["own/1"], tmp_path / "out.bundle").refs == ("own/1",)
    inner.git("config", "remote.far.mirror", "true")
    [(place, mirrors)] = units.remotes_that_mirror()
    assert (place, mirrors.remotes[0].remote) == (inner.root, "far")


def test_pruning_a_whole_takes_its_parts(w: World) -> None:
    inner = World(w.root / "inner")
    inner.base()
    units = Units.open([w.root])
    for number in (4, 5):
        inner.put("a.txt", f"at {number}\n")
        units.capture(f"ses/{number}", labels={})
    done = units.prune(Limits(runs=1))
    assert {row.ref for row in done.pruned} == {"ses/2", "ses/3", "ses/4"}
    (left,) = inner.git("for-each-ref", "--format=%(refname)", "refs/turnback").decode().split()
    assert left.endswith("/ses/5")
    assert Engine.open(inner.root).prune(Limits(runs=0, days=0.0, bytes=0)).pruned == ()
    units.purge("ses")
    assert inner.git("for-each-ref", "refs/turnback") == b""
