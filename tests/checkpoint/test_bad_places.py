"""Places where things go wrong: full, closed, vanished, busy or damaged ones. Nothing is lost, and the text is clear.

Full and closed file systems are real ones, mounted for the test, which only root may do.
"""

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hub.checkpoint.capture import worktree
from hub.checkpoint.engine import Engine
from hub.checkpoint.stores.writing import Writer
from hub.errors import TurnbackError
from tests.checkpoint.world import ENVIRONMENT, World, differing, restore

SMALL_BYTES = 24 << 20


@pytest.fixture
def w(tmp_path: Path) -> World:
    world = World(tmp_path / "w")
    world.base()
    return world


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    folder = tmp_path / "small"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(words, capture_output=True, check=False).returncode:
        pytest.skip("a file system can only be mounted by root, where the system lets it")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def small(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A repository on it. The engine does not look for spare space first, so that the disk really gets full."""
    monkeypatch.setattr(worktree, "SPARE_BYTES", -SMALL_BYTES)
    world = World(mounted / "w")
    world.base()
    return world


def refused(call: Callable[..., Any], *words: Any, **options: Any) -> TurnbackError:
    with pytest.raises(TurnbackError) as raised:
        call(*words, **options)
    return raised.value


def fill(w: World, left: int) -> None:
    """Leave this many bytes free on the file system."""
    disk = os.statvfs(w.root)
    with open(w.root.parent / "filler", "wb") as stream:
        os.posix_fallocate(stream.fileno(), 0, disk.f_bavail * disk.f_frsize - left)


def free(w: World) -> None:
    (w.root.parent / "filler").unlink()


def refs(w: World) -> list[str]:
    return w.git("for-each-ref", "--format=%(refname:lstrip=2)", "refs/turnback").decode().split()


@pytest.mark.parametrize("left", [0, pytest.param(8 << 10, marks=pytest.mark.slow), 40 << 10])
def test_a_capture_on_a_full_disk(small: World, left: int) -> None:
    """It is complete, or it is refused and there is no ref; afterwards all works."""
    engine = small.engine()
    engine.capture("ses/1", labels={})
    for number in range(8):
        small.put(f"new/{number}.bin", os.urandom(10_000))
    before = small.state()
    fill(small, left)
    error = refused(engine.capture, "ses/2", labels={})
    assert (error.code, error.retryable) == ("disk_full", True)
    assert "space" in (error.hint or "")
    assert refs(small) == ["ses/1"]
    assert [checkpoint.ref for checkpoint in engine.list()] == ["ses/1"]
    free(small)
    assert differing(before, small.state()) == {}
    assert engine.capture("ses/2", labels={}).files == 13
    assert engine.verify(repair=True, deep=True).is_sound
    restore(engine, "ses/1", "ses/1u")
    restore(engine, "ses/1u", "ses/2u")
    assert differing(before, small.state()) == {}


def test_the_first_capture_on_a_full_disk(small: World) -> None:
    fill(small, 0)
    assert refused(small.engine().capture, "ses/1", labels={}).code == "disk_full"
    free(small)
    assert small.engine().capture("ses/1", labels={}).files == 5


def test_a_disk_with_little_left_is_not_filled_up(mounted: Path) -> None:
    world = World(mounted / "w")
    world.base()
    error = refused(world.engine().capture, "ses/1", labels={})
    assert error.code == "disk_full"
    assert refs(world) == []


@pytest.mark.parametrize("left", [0, pytest.param(40 << 10, marks=pytest.mark.slow)])
def test_a_restore_on_a_full_disk(small: World, left: int) -> None:
    """What cannot be staged is not begun: every byte is where it was, and later it goes."""
    for number in range(8):
        small.put(f"big/{number}.bin", os.urandom(12_000))
    engine, before = small.engine(), small.state()
    engine.capture("ses/1", labels={})
    small.agent()
    for number in range(8):
        small.put(f"big/{number}.bin", "small")
    after = small.state()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    fill(small, left)
    error = refused(engine.apply, plan)
    assert error.code == "disk_full"
    assert differing(after, small.state()) == {}
    assert engine.verify().is_sound
    free(small)
    assert engine.verify(repair=True).is_sound
    assert differing(after, small.state()) == {}
    engine.apply(plan)
    engine.finish(plan.txid)
    assert differing(before, small.state()) == {}


@pytest.mark.parametrize(
    "end",
    [
        "finish",
        "abort",
        pytest.param("recover forward", marks=pytest.mark.slow),
        pytest.param("recover back", marks=pytest.mark.slow),
    ],
)
def test_a_restore_is_ended_on_a_full_disk(small: World, end: str) -> None:
    """The disk got full after everything was applied."""
    engine, before = small.engine(), small.state()
    engine.capture("ses/1", labels={})
    small.agent()
    after = small.state()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    fill(small, 0)
    if end == "finish":
        engine.finish(plan.txid)
    elif end == "abort":
        engine.abort(plan.txid)
    else:
        engine.recover(lambda txid: txid == plan.txid and end.endswith("forward"))
    free(small)
    wanted = before if end in ("finish", "recover forward") else after
    assert differing(wanted, small.state()) == {}
    assert engine.verify(repair=True, deep=True).is_sound
    restore(engine, "ses/1u", "ses/2u")
    assert differing(after, small.state()) == {}


def test_looking_and_pruning_on_a_full_disk(small: World) -> None:
    engine = small.engine()
    for number in (1, 2, 3):
        small.put("a.txt", f"{number}\n")
        engine.capture(f"ses/{number}", labels={})
    fill(small, 0)
    assert engine.verify(deep=True).complete == 3
    assert len(small.engine().list()) == 3
    assert refused(engine.export, ["ses/1"], small.root.parent / "out.bundle").code == "disk_full"
    assert sorted(os.listdir(small.root.parent)) == ["filler", "w"]
    assert refused(engine.keep, "ses/2").code == "disk_full"
    assert refused(engine.purge, "ses/3").code == "disk_full"
    assert refs(small) == ["ses/1", "ses/2", "ses/3"]
    free(small)
    assert [row.ref for row in engine.purge("ses/3").pruned] == ["ses/3"]
    assert engine.verify(repair=True).is_sound


def remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def test_a_read_only_file_system(small: World) -> None:
    """What exists can be looked at; nothing else begins; afterwards all works."""
    engine = small.engine()
    engine.capture("ses/1", labels={})
    small.agent()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    before = small.state()
    remount(small.root.parent, "ro")
    try:
        engine = small.engine()
        assert [checkpoint.ref for checkpoint in engine.list()] == ["ses/1", "ses/1u"]
        assert engine.get("ses/1").files == 5
        assert engine.diff("ses/1", "ses/1u")
        assert engine.verify(deep=True).complete == 2
        assert engine.prune(dry_run=True).kept == 2
        for call in (
            lambda: engine.capture("ses/2", labels={}),
            lambda: engine.plan("ses/1", undo_ref="ses/2u", labels={}),
            lambda: engine.apply(plan),
            lambda: engine.purge("ses/1"),
            lambda: engine.keep("ses/1"),
            lambda: engine.verify(repair=True),
        ):
            error = refused(call)
            assert error.code == "store_unwritable", error.message
            assert "writable" in (error.hint or "")
    finally:
        remount(small.root.parent, "rw")
    assert differing(before, small.state()) == {}
    engine.apply(plan)
    engine.finish(plan.txid)
    assert small.get("a.txt") == b"a modified by the user\n"


def test_a_worktree_that_vanished(w: World) -> None:
    """Nothing is made where it was."""
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.agent()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    shutil.move(w.root, w.root.with_name("moved"))
    for call in (
        lambda: engine.capture("ses/2", labels={}),
        lambda: engine.plan("ses/1", undo_ref="ses/2u", labels={}),
        lambda: engine.preview("ses/1"),
        lambda: engine.apply(plan),
        lambda: engine.recover(lambda _: False),
        lambda: engine.get("ses/1"),
        engine.list,
        engine.prune,
        engine.verify,
    ):
        error = refused(call)
        assert error.code == "worktree_gone"
        assert "bring it back" in (error.hint or "")
    assert not w.root.exists()
    assert refused(Engine.open, w.root).code == "not_a_directory"
    shutil.move(w.root.with_name("moved"), w.root)
    engine.apply(plan)
    engine.finish(plan.txid)
    assert w.get("a.txt") == b"a modified by the user\n"


def test_a_linked_worktree_that_vanished(w: World, tmp_path: Path) -> None:
    """Its checkpoints are still in the repository, to look at and to export."""
    w.git("worktree", "add", "-q", str(tmp_path / "linked"))
    engine = Engine.open(tmp_path / "linked")
    taken = engine.capture("ses/1", labels={})
    shutil.rmtree(tmp_path / "linked")
    assert refused(engine.capture, "ses/2", labels={}).code == "worktree_gone"
    assert w.engine().get("ses/1") == taken
    assert w.engine().export(["ses/1"], tmp_path / "out.bundle").bytes > 0
    assert refused(w.engine().plan, "ses/1", undo_ref="ses/1u", labels={}).code == "other_worktree"


def test_a_repository_that_was_cloned_anew(w: World, tmp_path: Path) -> None:
    """The old checkpoints went with it; an engine that is still open goes on with what is there."""
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.agent()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    shutil.move(w.root, tmp_path / "old")
    subprocess.run(["git", "clone", "-q", str(tmp_path / "old"), str(w.root)], check=True, env=ENVIRONMENT)
    w.put("a.txt", "mine, in the new clone\n")
    before = w.state()
    for used in (engine, w.engine()):
        for call in (
            lambda used=used: used.plan("ses/1", undo_ref="ses/2u", labels={}),
            lambda used=used: used.apply(plan),
        ):
            error = refused(call)
            assert error.code == "checkpoint_not_found"
            assert "git directory" in (error.hint or "")
    assert differing(before, w.state()) == {}
    for number, used in enumerate((engine, w.engine()), 1):
        used.capture(f"new/{number}", labels={})
        w.agent()
        restore(used, f"new/{number}", f"new/{number}u")
        assert differing(before, w.state()) == {}


def test_a_rebase_that_another_process_runs(w: World, tmp_path: Path) -> None:
    """A capture goes on beside it; a restore across it is refused and changes nothing; afterwards it works."""
    w.commit("all of it")
    w.put("a.txt", "second\n")
    w.commit("second")
    w.put("u.txt", "edited\n")
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.git("checkout", "-q", "u.txt")
    before_rebase = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    started, go = tmp_path / "started", tmp_path / "go"
    wait = f"touch {shlex.quote(str(started))}; while [ ! -e {shlex.quote(str(go))} ]; do sleep 0.02; done"
    rebase = subprocess.Popen(
        ["git", "rebase", "-q", "--force-rebase", "--exec", wait, "HEAD~1"],
        cwd=w.root,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(started)
        w.put("beside.txt", "written beside the rebase\n")
        during = w.state()
        engine.capture("ses/2", labels={})
        assert refused(engine.plan, "ses/1", undo_ref="ses/2u", labels={}).code == "operation_changed"
        assert refused(engine.preview, "ses/1").code == "operation_changed"
        assert refused(engine.apply, before_rebase).code in ("head_moved", "index_moved")
        assert differing(during, w.state()) == {}
        restore(engine, "ses/2", "ses/3u")
        assert differing(during, w.state()) == {}
    finally:
        go.touch()
        rebase.wait(timeout=30)
    assert rebase.returncode == 0
    w.remove("beside.txt")
    restore(engine, "ses/1", "ses/4u")
    assert w.get("u.txt") == b"edited\n"


def wait_for(path: Path) -> None:
    give_up = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_an_index_lock_left_behind(w: World) -> None:
    """Captures do not mind; a restore that needs the index is refused whole; one that does not goes on."""
    engine, before = w.engine(), w.state()
    engine.capture("ses/1", labels={})
    w.agent()
    lock = w.root / ".git/index.lock"
    lock.touch()
    after = w.state()
    engine.capture("ses/2", labels={})
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    error = refused(engine.apply, plan)
    assert error.code == "index_locked"
    assert "index.lock" in (error.hint or "")
    assert differing(after, w.state()) == {}
    assert [row.kind for row in engine.verify(repair=True).findings] == ["index_lock"]
    some = engine.plan("ses/1", undo_ref="ses/2u", labels={}, paths=["a.txt"])
    engine.apply(some)
    engine.finish(some.txid)
    assert w.get("a.txt") == b"a modified by the user\n"
    assert lock.exists()
    lock.unlink()
    restore(engine, "ses/1", "ses/3u")
    assert differing(before, w.state()) == {}


def test_an_untrusted_owner_and_the_way_out(w: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line in the error, carried out, is enough; also from a folder further down."""
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    (tmp_path / "gitconfig").touch()
    for path in (w.root, w.root / "dir", w.root / ".git"):
        os.chown(path, 12345, 12345)
    error = refused(Engine.open, w.root / "dir")
    assert error.code == "foreign_owner"
    line = (error.hint or "").split(": ", 1)[1]
    monkeypatch.delenv("GIT_CONFIG_GLOBAL")
    subprocess.run(["sh", "-ec", line], check=True)
    engine = Engine.open(w.root / "dir")
    before = w.files()
    engine.capture("ses/1", labels={})
    w.put("a.txt", "by the agent\n")
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    engine.finish(plan.txid)
    assert differing(before, w.files()) == {}


def test_variables_of_git_in_the_environment(w: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them changes what is captured, how, or what is said about it."""
    for name, value in {
        "GIT_EXTERNAL_DIFF": "false",
        "GIT_DIFF_OPTS": "--unified=0",
        "GIT_PAGER": "false",
        "GIT_EDITOR": "false",
        "GIT_ATTR_SOURCE": "nowhere",
        "GIT_DEFAULT_HASH": "sha256",
        "GIT_INDEX_VERSION": "4",
        "GIT_LITERAL_PATHSPECS": "0",
        "GIT_GLOB_PATHSPECS": "1",
        "GIT_TEMPLATE_DIR": str(tmp_path),
        "GIT_TRACE": "1",
        "GIT_TRACE_SETUP": "1",
        "GIT_SHALLOW_FILE": str(tmp_path / "shallow"),
        "GIT_REFLOG_ACTION": "elsewhere",
        "GIT_CONFIG_PARAMETERS": "'core.bare=true'",
        "GIT_CEILING_DIRECTORIES": str(w.root.parent),
        "GIT_WORK_TREE": str(tmp_path),
        "GIT_REDIRECT_STDOUT": "off",
        "LC_ALL": "de_DE.UTF-8",
        "LANGUAGE": "de",
    }.items():
        monkeypatch.setenv(name, value)
    engine, before = w.engine(), w.state()
    engine.capture("ses/1", labels={})
    w.agent()
    assert "-a modified by the user" in engine.patch("ses/1", None)
    restore(engine, "ses/1", "ses/1u")
    assert differing(before, w.state()) == {}
    assert engine.verify(deep=True).is_sound
    assert refused(engine.get, "no/1").code == "checkpoint_not_found"


def test_unknown_ids(w: World) -> None:
    engine, before = w.engine(), w.state()
    engine.capture("ses/1", labels={})
    for ref in ("no/1", "", "..", "ses/1/x", "-d", "HEAD", "../heads/main", "a b", "ses/1^", "x" * 300):
        assert refused(engine.get, ref).code == "checkpoint_not_found"
    for call in (
        lambda: engine.plan("no/1", undo_ref="ses/1u", labels={}),
        lambda: engine.preview("../heads/main"),
        lambda: engine.diff("-d", "ses/1"),
        lambda: engine.keep("ses/1^"),
        lambda: engine.keep("HEAD", on=False),
        lambda: engine.export(["../heads/main"], w.root.parent / "x"),
    ):
        assert refused(call).code == "checkpoint_not_found"
    assert refs(w) == ["ses/1"]
    assert differing(before, w.state()) == {}


def test_a_ref_deleted_by_hand(w: World) -> None:
    engine, before = w.engine(), w.state()
    engine.capture("ses/1", labels={})
    engine.capture("ses/2", labels={})
    w.agent()
    after = w.state()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    w.git("update-ref", "-d", "refs/turnback/ses/1")
    assert refused(engine.apply, plan).code == "checkpoint_not_found"
    assert refused(engine.get, "ses/1").code == "checkpoint_not_found"
    assert differing(after, w.state()) == {}
    restore(engine, "ses/2", "ses/2u")
    assert differing(before, w.state()) == {}
    assert engine.verify().is_sound


@pytest.mark.parametrize(
    ("what", "how"),
    [
        pytest.param("worktree/lost.txt", "missing", marks=pytest.mark.slow),
        ("worktree/lost.txt", "damaged"),
        ("index", "missing"),
        pytest.param("meta.json", "damaged", marks=pytest.mark.slow),
        ("", "missing"),
        pytest.param("worktree", "missing", marks=pytest.mark.slow),
        pytest.param("worktree", "damaged", marks=pytest.mark.slow),
        pytest.param("index", "damaged", marks=pytest.mark.slow),
        pytest.param("meta.json", "missing", marks=pytest.mark.slow),
        pytest.param("", "damaged", marks=pytest.mark.slow),
    ],
)
def test_a_corrupt_object(w: World, what: str, how: str) -> None:
    """The restore is refused and nothing is touched; captures go on; `verify` names the checkpoint."""
    w.put("lost.txt", "content that will be lost\n")
    w.put("c.txt", "staged for this test\n")
    w.git("add", "c.txt")
    engine = w.engine()
    engine.capture("ses/1", labels={})
    oid = w.git("rev-parse", f"refs/turnback/ses/1:{what}" if what else "refs/turnback/ses/1").decode().strip()
    w.remove("lost.txt")
    w.put("c.txt", "staged later\n")
    w.git("add", "c.txt")
    path = Path(w.root, ".git/objects", oid[:2], oid[2:])
    path.chmod(0o600)
    path.unlink() if how == "missing" else path.write_bytes(b"\0" * 40)
    before = w.state()
    error = refused(try_restore, w.engine())  # the other one may remember what it wrote
    assert error.code in ("checkpoint_incomplete", "git_failed")
    assert differing(before, w.state()) == {}
    assert engine.capture("ses/2", labels={}).ref == "ses/2"
    named = {row.name for row in engine.verify(deep=True).findings if row.kind != "rescued"}
    assert named == {"ses/1"}
    assert {row.ref for row in engine.list("ses/")} == {"ses/1", "ses/2"} | {r for r in refs(w) if r.endswith("u")}


def try_restore(engine: Engine) -> None:
    engine.apply(engine.plan("ses/1", undo_ref="ses/1u", labels={}))


def test_a_shadow_store_that_cannot_be_made(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "stores").write_text("a file where the stores should be")
    assert refused(Engine.open, folder, shadow=tmp_path / "stores").code == "checkpoint_failed"
    assert os.listdir(folder) == []


def test_a_capture_that_cannot_be_proven_leaves_no_ref(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up in the moment between the ref and the proof of its objects."""
    engine = w.engine()
    engine.capture("ses/1", labels={})
    w.put("a.txt", "another\n")

    def out_of_time(*_: object) -> None:
        engine._store.user.deadline = 0.0
        engine._store.user.time_left()

    monkeypatch.setattr(Writer, "_prove", out_of_time)
    assert refused(engine.capture, "ses/2", labels={}).code == "over_budget"
    monkeypatch.undo()
    assert refs(w) == ["ses/1"]
    assert engine.capture("ses/2", labels={}).ref == "ses/2"
