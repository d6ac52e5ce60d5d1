"""Somebody prunes the repository while checkpoints are taken: nothing is written over whose bytes no store has."""

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from hub.checkpoint.repository import GitFailed
from hub.checkpoint.stores.incoming import Incoming
from hub.checkpoint.stores.reading import Reader
from hub.checkpoint.stores.ref_files import RefFiles
from tests.checkpoint.world import World, restore

CONTENT = b"the only copy\n"


@pytest.fixture
def w(tmp_path: Path) -> World:
    world = World(tmp_path / "w")
    world.put("a", "first\n")
    world.put("b", "b\n")
    world.commit()
    return world


def forget(w: World, name: str, ref: str) -> str:
    """Take the object of a captured file out of the store; return its id."""
    oid = w.git("rev-parse", f"refs/turnback/{ref}:worktree/{name}").decode().strip()
    (w.root / ".git/objects" / oid[:2] / oid[2:]).unlink()
    return oid


def test_what_a_restore_replaces_is_in_the_store_first(w: World) -> None:
    """The object of a file that nobody has touched since is gone: it is written again before anything replaces it."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("a", CONTENT)
    engine.capture("s/2", labels={})
    oid = forget(w, "a", "s/2")
    engine = w.engine()
    restore(engine, "s/1", "u/1")
    assert w.git("cat-file", "blob", oid) == CONTENT
    restore(engine, "u/1", "u/2")
    assert w.get("a") == CONTENT
    assert engine.verify().is_sound


def test_a_preview_minds_it_too(w: World) -> None:
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("a", CONTENT)
    engine.capture("s/2", labels={})
    forget(w, "a", "s/2")
    assert [step.path for step in w.engine().preview("s/1").writes] == ["a"]


def test_what_is_pruned_during_a_restore_is_put_aside(w: World) -> None:
    """Between the renames and the end: the old file is not cleaned up, for nothing else has its bytes."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("a", CONTENT)
    plan = engine.plan("s/1", undo_ref="u/1", labels={})
    engine.apply(plan)
    forget(w, "a", "u/1")
    (kept,) = engine.finish(plan.txid)
    assert kept.path == "a"
    assert Path(kept.reason.removeprefix("moved to ")).read_bytes() == CONTENT


def test_git_that_cannot_say_keeps_the_old_files(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The restore is final; what cannot be proven to be in the store is not cleaned up before it is."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("a", CONTENT)
    plan = engine.plan("s/1", undo_ref="u/1", labels={})
    engine.apply(plan)

    def dies(self: Reader, oids: Iterable[str]) -> set[str]:
        raise GitFailed(["cat-file"], 137, "killed")

    with monkeypatch.context() as patch:
        patch.setattr(Reader, "missing", dies)
        assert engine.finish(plan.txid) == ()
    assert w.get("a") == b"first\n"
    slots = w.root / ".git/turnback/txn" / plan.txid / "slots"
    assert [path.read_bytes() for path in slots.iterdir()] == [CONTENT]
    engine.capture("s/2", labels={})
    assert not slots.exists()


def test_the_next_capture_mends_what_was_pruned_right_after_one(w: World) -> None:
    """Git had looked through the refs before ours was there, and deleted after our proof."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("a", CONTENT)
    engine.capture("s/2", labels={})
    oid = forget(w, "a", "s/2")
    third = engine.capture("s/3", labels={})
    assert w.git("cat-file", "blob", oid) == CONTENT
    assert w.git("fsck", "--strict", "--no-dangling") == b""
    assert engine.diff("s/1", third.ref)[0].path == "a"
    assert engine.verify().is_sound


def test_git_leaves_new_packs_alone_until_a_ref_needs_them(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`repack -a -d` and `gc --prune=now` between the objects and the ref."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    create = RefFiles.create

    def tidy(self: RefFiles, ref: str, commit: str) -> bool:
        w.git("repack", "-q", "-a", "-d")
        assert list((w.root / ".git/objects/pack").glob("*.keep"))
        return create(self, ref, commit)

    for number in range(40):
        w.put(f"f{number}", f"{number}\n")
    with monkeypatch.context() as patch:
        patch.setattr(RefFiles, "create", tidy)
        engine.capture("s/2", labels={})
    assert not list((w.root / ".git/objects/pack").glob("*.keep"))
    w.git("gc", "-q", "--prune=now")
    assert w.git("fsck", "--strict", "--no-dangling") == b""
    assert engine.verify(deep=True).is_sound


def test_a_pack_that_the_user_keeps_stays_kept(w: World) -> None:
    engine = w.engine()
    engine.capture("s/1", labels={})
    for number in range(40):
        w.put(f"f{number}", f"{number}\n")
    engine.capture("s/2", labels={})
    (pack,) = (path for path in (w.root / ".git/objects/pack").glob("*.pack"))
    keep = pack.with_suffix(".keep")
    keep.write_text("mine\n")
    engine.capture("s/3", labels={})
    assert keep.read_text() == "mine\n"
    keep.write_bytes(b"held by turnback until a ref is written\n")  # as a killed process leaves it
    w.engine().capture("s/4", labels={})
    assert not keep.exists()


def test_folders_that_git_tidies_away_are_made_again(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """`git prune` removes empty fan folders, and unfinished files of ours, while objects move into the store."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    begin, times = Incoming.begin, []

    def tidied(self: Incoming) -> None:
        begin(self)
        times.append(1)
        if len(times) == 1:
            for path in (w.root / ".git/objects").glob("??/tmp_obj_*"):
                path.unlink()
            w.git("prune", "--expire=now")

    w.put("a", CONTENT)
    with monkeypatch.context() as patch:
        patch.setattr(Incoming, "begin", tidied)
        taken = engine.capture("s/2", labels={})
    assert len(times) > 1
    assert w.git("show", f"{taken.commit}:worktree/a") == CONTENT
    assert not [name for _, _, names in os.walk(w.root / ".git/objects") for name in names if name.startswith("tmp_")]
