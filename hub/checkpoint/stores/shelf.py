"""The packs of ours that stay in the store: which there are, and how they are kept few.

Each capture of more than a few objects leaves one pack, for two files cost less than many. A list in our room tells
which are ours; those of about one size are put together when they are `TOGETHER`. Invariant: an object is at no instant
in no pack: the new one is durable in its place before an old one goes. Not promised: that a pack is still there, git
may have put it together with others; that two packs do not hold the same object.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Sequence

import msgspec

from hub.checkpoint.files import sync_directory, write_plainly
from hub.checkpoint.stores.packs import Entry, Pack, write_entries

log = logging.getLogger(__name__)

TOGETHER = 16
"""So many packs of about one size become one. Git itself finds 50 too many (gc.autoPackLimit)."""
SMALL, LARGE = 256 << 10, 4 << 20
"""Bytes of a pack: below, between and above these are the three sizes; those above stay as they are."""
LIST = b"packs"
FOLDER = b"pack"
KEEP = b".keep"
HELD = b"held by turnback until a ref is written\n"
"""What a pack's `.keep` of ours says; another one is the user's."""
ENDINGS = (b".idx", b".pack", b".rev")
BUSY = (b"gc.pid", os.path.join(b"objects", FOLDER, b"multi-pack-index"))
"""Where one of these is, below the common directory, git puts packs together itself, or refers to them."""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A pack of ours, by the name of its files; `gone`: it is superseded, and may be half deleted."""

    name: str
    gone: bool = False


class Shelf:
    """The packs of one worktree in the store `objects`. The worktree's lock is held when they change."""

    def __init__(self, room: bytes, objects: bytes, algorithm: str) -> None:
        self._list = os.path.join(room, LIST)
        self._common = os.path.dirname(objects)
        self._folder = os.path.join(objects, FOLDER)
        self._algorithm = algorithm
        self._width = 32 if algorithm == "sha256" else 20
        self._seen: tuple[int, int, int] | None = None
        self._rows: list[Row] = []
        self._packs: dict[str, Pack] = {}

    def packs(self) -> list[Pack]:
        """Return those that are there, the newest first."""
        self._recall()
        for row in self._rows:
            if not row.gone and row.name not in self._packs:
                with contextlib.suppress(OSError, ValueError):
                    self._packs[row.name] = Pack(self._base(row.name), self._width)
        return list(reversed(self._packs.values()))

    def add(self, names: Sequence[str]) -> None:
        """Note packs that are about to be put into the store."""
        if names:
            self._recall()
            self._keep([*(row for row in self._rows if row.name not in names), *map(Row, dict.fromkeys(names))])

    def hold(self, names: Sequence[str]) -> None:
        """Have git leave packs alone that come into the store before anything refers to them."""
        for name in names:
            os.makedirs(self._folder, exist_ok=True)
            write_plainly(self._base(name) + KEEP, HELD)

    def let_go(self) -> None:
        """Take that back, also for packs that a killed process held."""
        self._recall()
        for row in self._rows:
            path = self._base(row.name) + KEEP
            with contextlib.suppress(OSError):
                if self._says(path) == HELD:
                    os.unlink(path)

    @staticmethod
    def _says(path: bytes) -> bytes:
        with open(path, "rb") as stream:
            return stream.read(len(HELD) + 1)

    def sweep(self) -> None:
        """End what a killed process has begun to delete; forget what is not there any more.

        What cannot be deleted now stays on the list for the next time: nothing depends on it.
        """
        self._recall()
        there = [row for row in self._rows if (self._is_left(row.name) if row.gone else self._is_there(row.name))]
        if there != self._rows:
            self._keep(there)

    def put_together(self, place: bytes, settle: Callable[[Sequence[bytes]], None]) -> None:
        """Make one pack of many; `place` is a folder to write it in, `settle` moves files durably from there."""
        if len(self._rows) < TOGETHER or any(os.path.lexists(os.path.join(self._common, name)) for name in BUSY):
            return
        self.sweep()
        self.packs()
        packs = {name: pack for name, pack in self._packs.items() if not self._is_kept(name)}
        for low, high in ((0, SMALL), (SMALL, LARGE)):
            some = {name: pack for name, pack in packs.items() if low <= pack.bytes < high}
            if len(some) >= TOGETHER:
                self._join(some, place, settle)

    def _join(self, packs: dict[str, Pack], place: bytes, settle: Callable[[Sequence[bytes]], None]) -> None:
        entries: dict[bytes, Entry] = {}
        for pack in packs.values():
            entries |= {entry.oid: entry for entry in pack.entries()}
        os.makedirs(place, exist_ok=True)
        paths = write_entries(place, list(entries.values()), self._algorithm)
        name = name_of(paths[0])
        self.add([name])
        settle(paths)
        sync_directory(self._folder)
        old = packs.keys() - {name}
        self._keep([Row(row.name, row.name in old) for row in self._rows])
        self.sweep()

    def _is_kept(self, name: str) -> bool:
        """Return whether the user has told git to leave a pack as it is."""
        return os.path.lexists(self._base(name) + KEEP)

    def _is_there(self, name: str) -> bool:
        return os.path.exists(self._base(name) + b".idx")

    def _is_left(self, name: str) -> bool:
        """Delete the files of a pack, the index first: git looks at nothing without it. Return whether one stays."""
        try:
            for ending in ENDINGS:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._base(name) + ending)
        except OSError as failure:
            log.info("a superseded pack stays", extra={"pack": name, "reason": str(failure)})
            return True
        return False

    def _base(self, name: str) -> bytes:
        return os.path.join(self._folder, name.encode())

    def _recall(self) -> None:
        """Read the list, unless it is as it was."""
        seen = self._look()
        if seen == self._seen:
            return
        self._rows = []
        with contextlib.suppress(OSError, msgspec.DecodeError), open(self._list, "rb") as stream:
            self._rows = msgspec.json.decode(stream.read(), type=list[Row])
        self._learnt(seen)

    def _keep(self, rows: list[Row]) -> None:
        write_plainly(self._list, msgspec.json.encode(rows))
        self._rows = rows
        self._learnt(self._look())

    def _learnt(self, seen: tuple[int, int, int] | None) -> None:
        names = {row.name for row in self._rows if not row.gone}
        self._packs = {name: pack for name, pack in self._packs.items() if name in names}
        self._seen = seen

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = os.stat(self._list)
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns, status.st_size


def name_of(path: bytes) -> str:
    """Return the name of a pack by one of its files."""
    return os.path.splitext(os.path.basename(path))[0].decode()
