"""Packs of ours: git reads them, we read them, many become one, and no object is missing at any instant."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.checkpoint.engine import Engine
from hub.checkpoint.stores import shelf
from hub.checkpoint.stores.objects import Object, made
from hub.checkpoint.stores.packs import Pack, write_entries, write_pack
from tests.checkpoint.world import World

CONTENTS = st.lists(st.binary(max_size=3000), min_size=1, max_size=40)


def blobs(contents: list[bytes], algorithm: str) -> list[Object]:
    return [made("blob", content, algorithm) for content in contents]


def pack_of(path: bytes, algorithm: str) -> Pack:
    return Pack(os.path.splitext(path)[0], 32 if algorithm == "sha256" else 20)


@given(CONTENTS, st.sampled_from(["sha1", "sha256"]), st.sampled_from([0, 1, 9]))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, contents: list[bytes], algorithm: str, level: int
) -> None:
    folder = os.fsencode(tmp_path_factory.mktemp("pack"))
    objects = blobs(contents, algorithm)
    pack = pack_of(write_pack(folder, objects, algorithm, level)[0], algorithm)
    for one in objects:
        oid = bytes.fromhex(one.oid)
        assert oid in pack
        assert pack.read(oid, 1 << 20) == ("blob", one.content)
    absent = bytes.fromhex(made("tree", b"", algorithm).oid)
    assert absent not in pack
    assert pack.read(absent, 1 << 20) is None
    assert pack.read(bytes.fromhex(objects[0].oid), -1) is None


@given(CONTENTS, CONTENTS)
def test_packs_put_together_have_what_each_had(
    tmp_path_factory: pytest.TempPathFactory, one: list[bytes], two: list[bytes]
) -> None:
    folder = os.fsencode(tmp_path_factory.mktemp("pack"))
    objects = [blobs(contents, "sha1") for contents in (one, two)]
    packs = [pack_of(write_pack(folder, some, "sha1", 1)[0], "sha1") for some in objects]
    entries = {entry.oid: entry for pack in packs for entry in pack.entries()}
    path, index = write_entries(folder, list(entries.values()), "sha1")
    both = pack_of(path, "sha1")
    for blob in (*objects[0], *objects[1]):
        assert both.read(bytes.fromhex(blob.oid), 1 << 20) == ("blob", blob.content)
    subprocess.run(["git", "verify-pack", os.fsdecode(index)], check=True)


def test_many_packs_become_few_and_every_checkpoint_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "TOGETHER", 3)
    w = World(tmp_path / "repo")
    top, engine = w.root, Engine.open(w.root)
    engine.capture("c/0", labels={})
    states = {}
    for number in range(1, 12):
        for file in range(20):
            (top / f"f{file}").write_text(f"{number} {file}\n")
        engine.capture(f"c/{number}", labels={})
        states[number] = [(top / f"f{file}").read_text() for file in range(20)]
        packs = list((top / ".git/objects/pack").glob("*.pack"))
        assert len(packs) <= 4, packs
        assert {p.stem for p in packs} == {p.stem for p in (top / ".git/objects/pack").glob("*.idx")}
    assert packs
    w.git("fsck", "--strict", "--no-dangling")
    for number in (1, 6, 11):
        plan = engine.plan(f"c/{number}", undo_ref=f"u/{number}", labels={})
        engine.apply(plan)
        engine.finish(plan.txid)
        assert [(top / f"f{file}").read_text() for file in range(20)] == states[number]


@pytest.mark.parametrize("before", ["written", "listed", "half"])
def test_putting_together_that_was_cut_off_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    """The next capture ends what was begun: superseded packs go, all objects stay."""
    monkeypatch.setattr(shelf, "TOGETHER", 3)
    w = World(tmp_path / "repo")
    top, engine = w.root, Engine.open(w.root)
    engine.capture("c/0", labels={})

    def cut_off(*_: object) -> None:
        raise KeyboardInterrupt

    def half_deleted(self: shelf.Shelf, name: str) -> None:
        (top / ".git/objects/pack" / f"{name}.idx").unlink()
        raise KeyboardInterrupt

    places: dict[str, tuple[object, str, object]] = {
        "written": (shelf, "write_entries", cut_off),
        "listed": (shelf, "sync_directory", cut_off),
        "half": (shelf.Shelf, "_is_left", half_deleted),
    }
    for number in range(1, 4):
        for file in range(20):
            (top / f"f{file}").write_text(f"{number} {file}\n")
        if number == 3:
            with monkeypatch.context() as cut:
                cut.setattr(*places[before])
                with pytest.raises(KeyboardInterrupt):
                    engine.capture(f"c/{number}", labels={})
        else:
            engine.capture(f"c/{number}", labels={})
    again = Engine.open(top)
    again.capture("c/9", labels={})
    w.git("fsck", "--strict", "--no-dangling")
    packs = top / ".git/objects/pack"
    assert {p.stem for p in packs.glob("*.pack")} == {p.stem for p in packs.glob("*.idx")}
    assert len(again.diff("c/1", "c/2")) == 20
    if before == "half":
        assert len(list(packs.glob("*.pack"))) == 1


def test_git_may_put_our_packs_together_itself(tmp_path: Path) -> None:
    w = World(tmp_path / "repo")
    top, engine = w.root, Engine.open(w.root)
    for number in range(3):
        for file in range(20):
            (top / f"f{file}").write_text(f"{number} {file}\n")
        engine.capture(f"c/{number}", labels={})
    w.git("gc", "--quiet", "--prune=now")
    assert len(engine.diff("c/1", "c/2")) == 20
    (top / "f1").write_text("after\n")
    engine.capture("c/3", labels={})
    plan = engine.plan("c/1", undo_ref="u/1", labels={})
    engine.apply(plan)
    engine.finish(plan.txid)
    assert (top / "f1").read_text() == "1 1\n"
    w.git("fsck", "--strict", "--no-dangling")


def test_a_damaged_pack_is_not_put_together_with_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a new pack damaged bytes would get a sum that says they are sound."""
    monkeypatch.setattr(shelf, "TOGETHER", 3)
    w = World(tmp_path / "repo")
    engine = Engine.open(w.root)
    engine.capture("c/0", labels={})
    for number in range(1, 4):
        for file in range(20):
            w.put(f"f{file}", f"{number} {file}\n")
        if number == 3:
            (damaged, _) = sorted((w.root / ".git/objects/pack").glob("*.pack"))
            content = bytearray(damaged.read_bytes())
            content[len(content) // 2] ^= 1
            damaged.chmod(0o644)
            damaged.write_bytes(content)
        engine.capture(f"c/{number}", labels={})
    assert damaged.read_bytes() == content
    assert len(list((w.root / ".git/objects/pack").glob("*.pack"))) == 3


def test_a_superseded_pack_that_cannot_be_deleted_keeps_nobody_from_capturing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shelf, "TOGETHER", 3)
    w = World(tmp_path / "repo")
    engine = Engine.open(w.root)
    engine.capture("c/0", labels={})
    unlink = os.unlink

    def refused(path: bytes | str, *, dir_fd: int | None = None) -> None:
        if b"/objects/pack/" in os.fsencode(path):
            raise PermissionError(path)
        unlink(path, dir_fd=dir_fd)

    for number in range(1, 5):
        for file in range(20):
            w.put(f"f{file}", f"{number} {file}\n")
        if number == 3:
            monkeypatch.setattr(os, "unlink", refused)
        engine.capture(f"c/{number}", labels={})
    monkeypatch.setattr(os, "unlink", unlink)
    engine.capture("c/5", labels={})
    w.git("fsck", "--strict", "--no-dangling")
    assert len(list((w.root / ".git/objects/pack").glob("*.pack"))) == 2
