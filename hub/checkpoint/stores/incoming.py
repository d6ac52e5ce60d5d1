"""Where a capture's new objects lie until they are durable: then they move into the user's object store, all at once.

Making many small files durable one by one costs more than all the rest of a capture; here their contents go to the disk
together, followed by one sync. Invariant: nothing is moved into the user's store that is not on the disk yet. What a
machine that stopped has left here is dropped, for it may be torn. Not promised: durability of anything here before
`settle`; git of our side sees these objects as if they were in the store.
"""

import contextlib
import errno
import logging
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hub.checkpoint.files import CAN_WRITE_BACK, COMPLETE, START, write_back, write_plainly
from hub.checkpoint.stores.objects import Object
from hub.checkpoint.stores.packs import STORED, squeezed, write_pack
from hub.checkpoint.stores.reading import Reader
from hub.checkpoint.stores.shelf import Shelf, name_of

log = logging.getLogger(__name__)

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
BOOT, PACKS, SETTLING = b"boot", b"pack", b"settling"
UNFINISHED = re.compile(rb"tmp_obj_([0-9a-f]{38}|[0-9a-f]{62})")
FAN = 2
"""So many letters of an object's id name the directory it lies in."""
MANY = 2000
"""So many objects of ours may wait for `settle`."""
PACKED = 16
"""From this many on, the objects of a small change stay in one pack: two files cost less than many."""
COMPRESSION = 1
TRIES = 4
"""So often objects are moved into the store while git tidies it."""
READ_ONLY = 0o444
AT_ONCE = 512
"""How many files are open at a time."""


class Incoming:
    """The place for new objects of one worktree, and the store they go to. Its lock is held by the caller.

    `shared` are permission bits that our own objects must have besides those that the umask leaves.
    """

    def __init__(self, place: bytes, store: bytes, reader: Reader, shelf: Shelf) -> None:
        self._place = place
        self._store = store
        self._reader = reader
        self._shelf = shelf
        self.shared = 0
        self._ours: list[Object] = []
        self._packs: list[bytes] = []
        self._kept: list[bytes] = []
        self._begun: dict[str, tuple[bytes, bytes]] = {}

    def prepare(self) -> bool:
        """Make the place; return False if objects of an earlier boot had to be dropped, which may be missing now."""
        boot = BOOT_ID.read_bytes() if BOOT_ID.exists() else b""
        os.makedirs(self._place, mode=0o700, exist_ok=True)
        self._begun.clear()
        self._reader.pending.clear()
        self._shelf.sweep()
        self._shelf.let_go()
        if os.path.exists(os.path.join(self._place, SETTLING)):
            self._sweep()
        mark = os.path.join(self._place, BOOT)
        try:
            with open(mark, "rb") as stream:
                known = stream.read()
        except FileNotFoundError:
            known = None
        if known == boot != b"":
            return True
        torn = [*self._fans(), *(name for name in os.listdir(self._place) if name == PACKS)]
        for name in torn:
            shutil.rmtree(os.path.join(self._place, name))
        write_plainly(mark, boot)
        return not torn

    def put(self, objects: Iterable[Object]) -> None:
        """Add objects that we made ourselves; git sees them after `settle`."""
        self._ours += objects

    def put_for_git(self, objects: Sequence[Object], algorithm: str) -> None:
        """Add objects so that git of our side sees them at once; from `PACKED` on their pack is what stays."""
        if len(self._ours) > MANY:
            self.settle()
        lacking = self._reader.lacking(one.oid for one in objects)
        fresh = [one for one in objects if one.oid in lacking]
        if not fresh:
            return
        self._reader.pending |= {one.oid: one for one in fresh}
        folder = os.path.join(self._place, PACKS)
        os.makedirs(folder, exist_ok=True)
        if len(fresh) < PACKED:
            self._packs += write_pack(folder, fresh, algorithm, STORED)
            self._ours += fresh
        else:
            paths = write_pack(folder, fresh, algorithm, COMPRESSION)
            self._kept.append(paths[0])
            for path in paths:
                os.chmod(path, READ_ONLY | self.shared)

    def begin(self) -> None:
        """Begin to write our own objects into the store, under names that git passes over; `settle` ends it."""
        lacking = self._reader.lacking(one.oid for one in self._ours if one.oid not in self._begun)
        fresh = {one.oid: one for one in self._ours if one.oid in lacking}
        if fresh:
            write_plainly(os.path.join(self._place, SETTLING), b"")
            self._begun |= {oid: self._written(one) for oid, one in fresh.items()}

    def settle(self) -> None:
        """Make all objects here durable and move them into the store; git leaves packs alone until `release`.

        Git may tidy the store at the same time, and takes folders and unfinished files of ours away.
        """
        for left in reversed(range(TRIES)):
            try:
                self._settle()
                break
            except FileNotFoundError:
                if not left:
                    raise
                self._begun = {}

    def release(self) -> None:
        """Let git do with our packs what it likes: a ref has been written that needs their objects."""
        self._shelf.let_go()
        try:
            self._shelf.put_together(os.path.join(self._place, PACKS), self._settle_packs)
        except (OSError, ValueError) as failure:  # nothing of a checkpoint depends on it
            log.info("packs stay apart", extra={"reason": str(failure)})

    def _settle(self) -> None:
        self.begin()
        own = set(self._packs)
        packs = [(source, target) for source, target in self._whole_packs() if source not in own]
        self._shelf.add([name_of(path) for path in self._kept])
        self._shelf.hold([name_of(path) for path in self._kept])
        _move_durably([*self._loose(), *self._begun.values(), *packs])
        for path in own:
            if os.path.exists(path):
                os.unlink(path)
        self._ours, self._packs, self._kept, self._begun = [], [], [], {}
        self._reader.pending.clear()
        if os.path.exists(os.path.join(self._place, SETTLING)):
            os.unlink(os.path.join(self._place, SETTLING))

    def _settle_packs(self, paths: Sequence[bytes]) -> None:
        for path in paths:
            os.chmod(path, READ_ONLY | self.shared)
        _move_durably([(path, os.path.join(self._store, PACKS, os.path.basename(path))) for path in paths])

    def _sweep(self) -> None:
        """Remove what a killed process has not finished to write into the store."""
        for fan in (b"%02x" % number for number in range(256)):
            folder = os.path.join(self._store, fan)
            for name in os.listdir(folder) if os.path.isdir(folder) else ():
                if UNFINISHED.fullmatch(name):
                    os.unlink(os.path.join(folder, name))
        os.unlink(os.path.join(self._place, SETTLING))

    def _fans(self) -> list[bytes]:
        return [name for name in os.listdir(self._place) if len(name) == FAN]

    def _loose(self) -> Iterator[tuple[bytes, bytes]]:
        for fan in self._fans():
            yield from self._in(fan)

    def _whole_packs(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield packs, each followed by its index; remove those without one."""
        for source, target in self._in(PACKS):
            if os.path.exists(os.path.splitext(source)[0] + b".idx"):
                yield source, target
            else:
                os.unlink(source)

    def _in(self, folder: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield the files of a folder, each with its place in the store; of packs the index comes last."""
        source, target = os.path.join(self._place, folder), os.path.join(self._store, folder)
        names = [name for name in os.listdir(source) if not name.startswith(b"tmp_")] if os.path.isdir(source) else []
        if names and not os.path.isdir(target):
            self._make_folder(target)
        for name in sorted(names, reverse=True):
            yield os.path.join(source, name), os.path.join(target, name)

    def _written(self, one: Object) -> tuple[bytes, bytes]:
        """Write an object into the store under a name that git passes over; return that and its true name."""
        fan = os.path.join(self._store, one.oid[:FAN].encode())
        name = one.oid[FAN:].encode()
        temporary = os.path.join(fan, b"tmp_obj_" + name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            descriptor = os.open(temporary, flags, 0o444)
        except FileNotFoundError:
            self._make_folder(fan)
            descriptor = os.open(temporary, flags, 0o444)
        with open(descriptor, "wb") as stream:
            head = f"{one.kind} {len(one.content)}\0".encode()
            stream.write(squeezed(head + one.content, COMPRESSION))
            if self.shared:
                os.fchmod(descriptor, os.fstat(descriptor).st_mode & 0o777 | self.shared)
            stream.flush()
            write_back(descriptor, START)
        return temporary, os.path.join(fan, name)

    def _make_folder(self, path: bytes) -> None:
        with contextlib.suppress(FileExistsError):  # git may make it at the same moment
            os.mkdir(path)
            shutil.copymode(self._store, path)  # who shares the store shares its directories


def _move_durably(moves: Sequence[tuple[bytes, bytes]]) -> None:
    """Bring files to the disk, then move them, in this order."""
    for start in range(0, len(moves), AT_ONCE):
        _flush([source for source, _ in moves[start : start + AT_ONCE]])
    for source, target in moves:
        _move(source, target)


def _move(source: bytes, target: bytes) -> None:
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
        if not CAN_WRITE_BACK:
            for descriptor in descriptors:
                os.fsync(descriptor)
            return
        for step in (START, COMPLETE):
            for descriptor in descriptors:
                write_back(descriptor, step)
        os.fsync(descriptors[-1])
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
