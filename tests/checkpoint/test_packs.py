"""Packs of ours: git reads them, we read them, many become one, and no object is missing at any instant."""

import os
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.checkpoint.engine import Engine
from hub.checkpoint.stores import shelf
from hub.checkpoint.stores.deltas import patched
from hub.checkpoint.stores.git_packs import GitPacks
from hub.checkpoint.stores.objects import Object, made
from hub.checkpoint.stores.packs import Pack, write_entries, write_pack
from hub.checkpoint.stores.side import Store
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


@pytest.mark.parametrize("algorithm", ["sha1", "sha256"])
def test_packs_of_git_are_read_deltas_and_all(tmp_path: Path, algorithm: str) -> None:
    """Every object of a repository that git has packed tightly: bases told by their distance, then by their ids."""
    w = World(tmp_path / "repo", *(() if algorithm == "sha1" else ("--object-format=sha256",)))
    chance = random.Random(algorithm)
    lines = [f"line {number} {chance.random()}\n" for number in range(3000)]
    for number in range(60):
        lines[chance.randrange(len(lines))] = f"changed {number}\n"
        lines.insert(chance.randrange(len(lines)), "x" * chance.randrange(200) + "\n")
        w.put("big.txt", "".join(lines))
        w.put(f"dir{number % 7}/file{number}.txt", f"{number}\n" * number)
        w.commit()
    for words in (("--depth=50", "--window=50"), ("--depth=10", "--no-write-bitmap-index")):
        w.git("repack", "-q", "-a", "-d", "-f", *words)
        rows = w.git("cat-file", "--batch-all-objects", "--batch-check").decode().split("\n")[:-1]
        (pack,) = GitPacks(os.fsencode(w.root / ".git/objects/pack"), algorithm).packs()
        assert b"chain length = 1" in w.git("verify-pack", "-v", *map(str, w.root.glob(".git/objects/pack/*.idx")))
        for oid, kind, size in map(str.split, rows):
            found = pack.read(bytes.fromhex(oid), 1 << 20)
            assert found is not None
            assert (found[0], len(found[1])) == (kind, int(size))
            assert made(kind, found[1], algorithm).oid == oid
        w.git("config", "repack.useDeltaBaseOffset", "false")


def test_an_object_that_git_packed_and_that_is_damaged_is_left_to_git(tmp_path: Path) -> None:
    w = World(tmp_path / "repo")
    w.put("a.txt", "text\n" * 500)
    w.commit()
    w.git("repack", "-q", "-a", "-d")
    reader = Store(w.root).reader
    oid = w.git("rev-parse", "HEAD:a.txt").decode().strip()
    assert reader.object(oid) == made("blob", b"text\n" * 500, "sha1")
    (path,) = w.root.glob(".git/objects/pack/*.pack")
    path.chmod(0o644)
    content = bytearray(path.read_bytes())
    for at in range(12, len(content) - 20):
        content[at] ^= 0x55
    path.write_bytes(bytes(content))
    assert Store(w.root).reader.object(oid) is None


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("copy"), st.integers(0, 200_000), st.integers(1, 0xFFFFFF)),
        st.tuples(st.just("put"), st.binary(min_size=1, max_size=127), st.just(0)),
    ),
    max_size=8,
)


@given(st.binary(min_size=1, max_size=300), STEPS)
def test_deltas_make_what_they_tell(seed: bytes, steps: list[tuple[str, Any, int]]) -> None:
    base = seed * 700
    wanted, delta = b"", b""
    for kind, what, size in steps:
        if kind == "put":
            delta += bytes([len(what)]) + what
            wanted += what
        else:
            start = what % len(base)
            size = min(size, len(base) - start)
            delta += copying(start, size)
            wanted += base[start : start + size]
    whole = number(len(base)) + number(len(wanted)) + delta
    assert patched(base, whole, len(wanted)) == wanted
    assert patched(base, whole, len(wanted) - 1) is None
    with pytest.raises(ValueError, match="another base"):
        patched(base + b"x", whole, len(wanted))
    with pytest.raises((ValueError, IndexError)):
        patched(base, whole + b"\0", 1 << 30)
    with pytest.raises((ValueError, IndexError)):
        patched(base, whole + b"\x01y", 1 << 30)


def number(value: int) -> bytes:
    """A length as a delta tells it: seven bits at a time, the lowest first."""
    out = bytearray([value & 0x7F])
    while value := value >> 7:
        out[-1] |= 0x80
        out.append(value & 0x7F)
    return bytes(out)


def copying(start: int, size: int) -> bytes:
    """A step that copies, with the bytes of both numbers that are not 0; no size stands for 65,536."""
    told = 0 if size == 0x10000 else size
    parts = [*start.to_bytes(4, "little"), *told.to_bytes(3, "little")]
    mark = sum(1 << place for place, byte in enumerate(parts) if byte)
    return bytes([0x80 | mark, *filter(None, parts)])


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
        if b"/objects/pack/" in os.fsencode(path) and not os.fsencode(path).endswith(b".keep"):
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
