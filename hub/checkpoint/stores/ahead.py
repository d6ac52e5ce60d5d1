"""The objects of a small change, made ahead of git: contents of changed files, and the trees that follow from them.

Git writes each new object as a file of its own, which is most of what a small capture costs. It writes none that it
finds: so all are put into one pack before git is asked, and git's own answer is compared with what was expected.
Invariant: nothing here decides what a capture holds; an object that git does not come to by itself is referred to by
nothing. Not promised: that it is tried; large or many files and changes of a path's kind are left to git.
"""

import os
import stat
from collections import defaultdict
from collections.abc import Collection, Mapping

import msgspec

from hub.checkpoint.files import Parents, directory, git_mode
from hub.checkpoint.restoring.renames import Place
from hub.checkpoint.stores.objects import Object, made
from hub.checkpoint.stores.reading import TREE, Entry, Reader

SUBMODULE = b"160000"
FILES = 500
FILE_BYTES = 1 << 18
ALL_BYTES = 8 << 20

Changes = dict[bytes, Entry | None]


class Ahead(msgspec.Struct, frozen=True):
    """What was made ahead: the tree that is expected, its new objects, and how many files it has more than the old."""

    tree: str
    objects: list[Object]
    more: int


class _Elsewise(Exception):
    """A change that is left to git."""


def make_ahead(
    top: bytes, reader: Reader, algorithm: str, base: str, sizes: Mapping[bytes, int], removals: Collection[bytes]
) -> Ahead | None:
    """Return what follows from `base` when files of these sizes have changed and others go; None if it is not tried."""
    names = (*sizes, *removals)
    if not base or not names or len(names) > FILES:
        return None
    if max(sizes.values(), default=0) > FILE_BYTES or sum(sizes.values()) > ALL_BYTES:
        return None
    if any(b"\n" in name for name in names):
        return None
    try:
        blobs = _blobs(top, algorithm, sizes)
        changes: Changes = {name: (mode, one.oid) for name, (mode, one) in blobs.items()}
        changes |= dict.fromkeys(removals)
        return _Builder(reader, algorithm, base, changes, {one.oid: one for _, one in blobs.values()}).build()
    except (_Elsewise, OSError):
        return None  # a file in motion, too: git tells


def _blobs(top: bytes, algorithm: str, sizes: Mapping[bytes, int]) -> dict[bytes, tuple[bytes, Object]]:
    found = {}
    with directory(top) as root, Parents(root) as parents:
        for name in sizes:
            mode, content = _read(parents.of(name))
            if len(content) != sizes[name]:
                raise _Elsewise
            found[name] = b"%o" % mode, made("blob", content, algorithm)
    return found


def _read(place: Place) -> tuple[int, bytes]:
    folder, last = place
    status = os.stat(last, dir_fd=folder, follow_symlinks=False)
    if stat.S_ISLNK(status.st_mode):
        return git_mode(status.st_mode), os.readlink(last, dir_fd=folder)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(last, flags, dir_fd=folder), "rb", buffering=0) as stream:
        return git_mode(status.st_mode), stream.read(FILE_BYTES + 1)


class _Builder:
    """Builds the trees above changed files from those of an earlier tree."""

    def __init__(self, reader: Reader, algorithm: str, base: str, changes: Changes, blobs: dict[str, Object]) -> None:
        self._algorithm = algorithm
        self._base = base
        self._blobs = blobs
        self._direct: dict[bytes, Changes] = defaultdict(dict)
        for name, entry in changes.items():
            folder, _, last = name.rpartition(b"/")
            self._direct[folder][last] = entry
        self._inner: dict[bytes, set[bytes]] = defaultdict(set)
        for folder in list(self._direct):
            while folder:
                above, _, last = folder.rpartition(b"/")
                self._inner[above].add(last)
                folder = above
        self._reader = reader
        self._old = reader.folders(base, self._direct.keys() | self._inner.keys())
        self._made: list[Object] = []
        self._more = 0

    def build(self) -> Ahead:
        """Return what was made. Raises _Elsewise."""
        return Ahead(self._tree(b"") or made("tree", b"", self._algorithm).oid, self._made, self._more)

    def _tree(self, folder: bytes) -> str | None:
        """Return the new tree of a directory, None when nothing is in it any more."""
        old = self._old.get(folder, {})
        entries = dict(old)
        for last, entry in self._direct.get(folder, {}).items():
            self._put(entries, last, entry)
        for last in self._inner.get(folder, ()):
            if last in entries and entries[last][0] != TREE:
                raise _Elsewise
            inner = self._tree(folder + b"/" + last if folder else last)
            entries.pop(last, None)
            if inner is not None:
                entries[last] = TREE, inner
        if not entries:
            return None
        one = made("tree", _content(entries), self._algorithm)
        if entries != old:
            self._made.append(one)
            self._reader.remember(one.oid, one.content)
        return one.oid

    def _put(self, entries: dict[bytes, Entry], last: bytes, entry: Entry | None) -> None:
        before = entries.pop(last, None)
        if before is not None and before[0] == TREE:
            raise _Elsewise
        self._more += (entry is not None) - (before is not None and before[0] != SUBMODULE)
        if entry is not None:
            entries[last] = entry
            if entry != before:
                self._made.append(self._blobs[entry[1]])


def _content(entries: Mapping[bytes, Entry]) -> bytes:
    ordered = sorted(entries.items(), key=lambda row: row[0] + b"/" if row[1][0] == TREE else row[0])
    return b"".join(b"%b %b\0%b" % (mode, name, bytes.fromhex(oid)) for name, (mode, oid) in ordered)
