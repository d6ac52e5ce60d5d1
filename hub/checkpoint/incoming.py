"""Where a capture's new objects lie until they are durable: then they move into the user's object store, all at once.

Making many small files durable one by one costs more than all the rest of a capture; here their contents go to the disk
together, followed by one sync. Invariant: nothing is moved into the user's store that is not on the disk yet. What a
machine that stopped has left here is dropped, for it may be torn. Not promised: durability of anything here before
`settle`; git of our side sees these objects as if they were in the store.
"""

import ctypes
import errno
import os
import shutil
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from hub.checkpoint.files import write_plainly
from hub.checkpoint.objects import Object

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BOOT = b"boot"
COMPRESSION = 1
AT_ONCE = 512
"""How many files are open at a time."""
START, COMPLETE = 2, 7
"""Of `sync_file_range`: begin to write, and wait until it is done."""

_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)


class Incoming:
    """The place for new objects of one worktree, and the store they go to. Its lock is held by the caller.

    `shared` are permission bits that our own objects must have besides those that the umask leaves.
    """

    def __init__(self, place: bytes, store: bytes) -> None:
        self._place = place
        self._store = store
        self.shared = 0

    def prepare(self) -> bool:
        """Make the place; return False if objects of an earlier boot had to be dropped, which may be missing now."""
        boot = BOOT_ID.read_bytes() if BOOT_ID.exists() else b""
        os.makedirs(self._place, mode=0o700, exist_ok=True)
        mark = os.path.join(self._place, BOOT)
        try:
            with open(mark, "rb") as stream:
                known = stream.read()
        except FileNotFoundError:
            known = None
        if known == boot != b"":
            return True
        torn = bool(self._fans())
        for fan in self._fans():
            shutil.rmtree(os.path.join(self._place, fan))
        write_plainly(mark, boot)
        return not torn

    def put(self, objects: Iterable[Object]) -> None:
        """Add objects that we made ourselves."""
        for one in objects:
            name = os.path.join(self._place, one.oid[:2].encode(), one.oid[2:].encode())
            if not os.path.exists(name):
                os.makedirs(os.path.dirname(name), mode=0o777, exist_ok=True)
                head = f"{one.kind} {len(one.content)}\0".encode()
                self._write(name, zlib.compress(head + one.content, COMPRESSION))

    def _write(self, path: bytes, content: bytes) -> None:
        temporary = path + b".tmp"
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o444), "wb") as stream:
            stream.write(content)
            if self.shared:
                os.fchmod(stream.fileno(), os.fstat(stream.fileno()).st_mode & 0o777 | self.shared)
        os.rename(temporary, path)

    def settle(self) -> None:
        """Make all objects here durable and move them into the store."""
        names = [os.path.join(fan, name) for fan in self._fans() for name in self._names(fan)]
        for start in range(0, len(names), AT_ONCE):
            _flush([os.path.join(self._place, name) for name in names[start : start + AT_ONCE]])
        for name in names:
            self._move(name)

    def _fans(self) -> list[bytes]:
        return [name for name in os.listdir(self._place) if len(name) == 2]

    def _names(self, fan: bytes) -> list[bytes]:
        return [
            name
            for name in os.listdir(os.path.join(self._place, fan))
            if not name.startswith(b"tmp_") and b"." not in name
        ]

    def _move(self, name: bytes) -> None:
        source, target = os.path.join(self._place, name), os.path.join(self._store, name)
        folder = os.path.dirname(target)
        if not os.path.isdir(folder):
            os.mkdir(folder)
            shutil.copymode(self._store, folder)  # who shares the store shares its directories
        try:
            os.rename(source, target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            _carry_over(source, target)


def _carry_over(source: bytes, target: bytes) -> None:
    """Move a file to another file system, durably."""
    temporary = target + b".tmp"
    shutil.copy2(source, temporary)
    with open(temporary, "rb") as stream:
        os.fsync(stream.fileno())
    os.rename(temporary, target)
    os.unlink(source)


def _flush(paths: Sequence[bytes]) -> None:
    """Bring files to the disk: contents together, then one sync that also covers their names."""
    descriptors = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in paths]
    try:
        if _RANGE is None:
            for descriptor in descriptors:
                os.fsync(descriptor)
            return
        for step in (START, COMPLETE):
            for descriptor in descriptors:
                _RANGE(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(step))
        os.fsync(descriptors[-1])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
