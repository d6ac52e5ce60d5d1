"""The user's index, read from a copy: trees of its stages, and its raw bytes where trees do not say all.

Invariant: the index itself and its lock are not touched here. Not promised: stat data; git finds it anew by itself.
"""

import hashlib
import os
import re
import shutil
from collections.abc import Set

import msgspec

from hub.checkpoint.repository import Repository
from hub.checkpoint.stores.meta import IndexState
from hub.checkpoint.stores.side import Store

LISTING = ("ls-files", "-z", "--stage", "-v")
ORDINARY = {b"H 100644 ", b"H 100755 ", b"H 120000 "}
"""How the entry of a file or link begins, as `ls-files` prints it; object id, stage and name follow."""
STAGES = ("1", "2", "3")
INTENT_TO_ADD = 0x20000000
SUBMODULE = b"160000"
TRAILER = 32
"""Bytes at the end of an index that hold git's hash over it, of either kind."""
NO_HASH = bytes(20)
"""What stands there when git was told to leave the hash out."""
_DEBUG = re.compile(rb"([^\0]*)\0  ctime: .*?flags: ([0-9a-f]+)\n", re.DOTALL)


class Entries(msgspec.Struct, frozen=True):
    """The entries of files and links without stages: object ids, each with a line end, and names."""

    oids: bytes
    names: list[bytes]


class Row(msgspec.Struct, frozen=True):
    """One entry: git's tag letter (`H` when nothing is special), mode, object id, stage, path."""

    tag: bytes
    mode: bytes
    oid: bytes
    stage: bytes
    name: bytes


class Staged(msgspec.Struct, frozen=True):
    """The user's index as it was read: its state, its tracked paths (submodules apart), and its file's checksum."""

    state: IndexState
    names: Set[bytes]
    submodules: frozenset[bytes]
    checksum: str


class IndexReader:
    """Reads the index of one worktree; an unchanged file is read once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: Staged | None = None
        self._ordinary: Entries | None = None

    def read(self) -> Staged:
        """Return the user's index. The worktree's lock is held."""
        checksum = checksum_of(self._store.user_index)
        if self._last is None or self._last.checksum != checksum:
            self._last = self._read()
        return self._last

    def ordinary(self) -> Entries:
        """Return the entries of files and links in the copy that was read last, apart from those with stages."""
        if self._ordinary is None:
            out = self._store.user.with_index(self._store.index_copy).run(*LISTING)
            self._ordinary, _ = self._sorted_out(out)
        return self._ordinary

    def drop_entries(self) -> None:
        """Keep them no longer: they are many."""
        self._ordinary = None

    def forget(self) -> None:
        """Read the index anew at the next call: objects that were written for it may have been pruned."""
        self._last = None

    def _read(self) -> Staged:
        copy = self._store.index_copy
        if os.path.lexists(copy):
            os.unlink(copy)
        view = self._store.user.with_index(copy)
        if os.path.exists(self._store.user_index):
            shutil.copy2(self._store.user_index, copy)
        checksum = checksum_of(copy)
        out = view.run(*LISTING)
        self._ordinary, odd = self._sorted_out(out)
        names = {*self._ordinary.names, *(row.name for row in odd if row.mode != SUBMODULE)}
        state = self._state(view, copy, out, odd)
        submodules = frozenset(row.name for row in odd if row.mode == SUBMODULE)
        return Staged(state, names, submodules, checksum)

    def _sorted_out(self, out: bytes) -> tuple[Entries, list[Row]]:
        """Return the ordinary entries of a listing, and the others."""
        lines = out.split(b"\0")[:-1]
        start, odd = len(b"H 100644 "), []
        end = start + len(self._store.null_oid)
        if not ({line[:start] for line in lines} <= ORDINARY and {line[end : end + 3] for line in lines} <= {b" 0\t"}):
            odd = [_row(line) for line in lines if line[:start] not in ORDINARY or line[end : end + 3] != b" 0\t"]
            lines = [line for line in lines if line[:start] in ORDINARY and line[end : end + 3] == b" 0\t"]
        oids = b"".join([line[start:end] + b"\n" for line in lines])
        return Entries(oids, [line[end + 3 :] for line in lines]), odd

    def _state(self, view: Repository, copy: bytes, out: bytes, odd: list[Row]) -> IndexState:
        intents = intents_of(view, copy)
        digest = hashlib.sha256(out)
        digest.update(b"\0\0" + b"\0".join(intents))
        special = bool(intents) or any(row.tag != b"H" for row in odd)
        staged = {stage: [row for row in odd if row.stage == stage.encode()] for stage in STAGES}
        if any(staged.values()):
            tree = self._tree([row for row in map(_row, out.split(b"\0")[:-1]) if row.stage == b"0"])
        else:
            tree = _write_tree(view)
        return IndexState(
            tree=tree,
            stages={stage: self._tree(some) for stage, some in staged.items() if some},
            raw=_raw(view, copy) if special else None,
            digest=digest.hexdigest(),
        )

    def _tree(self, rows: list[Row]) -> str:
        scratch = os.path.join(self._store.room, b"scratch-index")
        if os.path.lexists(scratch):
            os.unlink(scratch)
        view = self._store.user.with_index(scratch)
        lines = b"".join(b"%b %b 0\t%b\0" % (row.mode, row.oid, row.name) for row in rows)
        view.run("update-index", "-z", "--index-info", stdin=lines)
        return _write_tree(view)


def checksum_of(path: bytes) -> str:
    """Return what is equal for equal index files, an empty text when there is none."""
    try:
        with open(path, "rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(max(size - TRAILER, 0))
            end = stream.read()
            if any(end[-len(NO_HASH) :]):  # git's own hash over all the rest
                return hashlib.sha256(b"%d " % size + end).hexdigest()
            stream.seek(0)
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except FileNotFoundError:
        return ""


def _row(line: bytes) -> Row:
    facts, name = line.split(b"\t", 1)
    tag, mode, oid, stage = facts.split(b" ")
    return Row(tag, mode, oid, stage, name)


def intents_of(view: Repository, copy: bytes) -> list[bytes]:
    """Return the paths of entries that only announce a file. Version 2 of the index cannot hold any."""
    try:
        with open(copy, "rb") as stream:
            version = int.from_bytes(stream.read(8)[4:], "big")
    except FileNotFoundError:
        return []
    if version == 2:
        return []
    return [name for name, flags in _DEBUG.findall(view.run("ls-files", "-z", "--debug")) if _intends(flags)]


def _intends(flags: bytes) -> bool:
    return bool(int(flags, 16) & INTENT_TO_ADD)


def _write_tree(view: Repository) -> str:
    return view.line("write-tree", "--missing-ok")


def _raw(view: Repository, copy: bytes) -> str:
    """Store the index's bytes, made independent of shared index files and of a monitor's token."""
    view.run("update-index", "--no-split-index", "--no-fsmonitor", "--force-write-index")
    return view.line("hash-object", "-w", "--no-filters", "--", copy)
