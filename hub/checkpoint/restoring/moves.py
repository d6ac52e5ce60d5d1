"""The single operations of a restore, and their way back.

Invariant: a name is only ever moved or swapped, and what came out is compared with what was captured before anything
else happens: a file that somebody saves meanwhile is never written over. What came out otherwise is given back, or
stays in the operation's slot when the target is wanted all the same. Going back works from the inodes that stand at
the names, may be repeated, and leaves alone what somebody has changed since; the old content is then put aside.
"""

import errno
import os
import stat
from collections.abc import Callable

import msgspec

from hub.checkpoint.files import Found, examine, git_mode, parent
from hub.checkpoint.restoring.journal import Operation, made_slot
from hub.checkpoint.restoring.renames import ASIDE, Overtaken, Place, exists, move_in, swap
from hub.checkpoint.values import Kept, show

PERMISSIONS = 0o7777
WRITABLE = 0o300
"""The bits without which its owner cannot change what a directory holds."""
_BLOCKED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EEXIST)


class Moved(Exception):
    """A path is not as it was captured: somebody changed it. `path` is shown to people."""

    def __init__(self, name: bytes, what: str) -> None:
        super().__init__(f"{show(name)} {what}")
        self.path = show(name)


class Ground(msgspec.Struct, frozen=True):
    """Where operations happen: the worktree and the folder of slots, both open, and the hash that git uses."""

    root: int
    slots: int
    algorithm: str

    def slot(self, name: bytes) -> Place:
        return self.slots, name


def do(ground: Ground, op: Operation, *, take: bool = False) -> bool:
    """Carry out an operation. Raises Moved when the path is not as it was captured; it is then left as it was.

    With `take` it is carried out all the same where that is possible: False then, and what stood there is in the slot.
    """
    try:
        with parent(ground.root, op.name) as place:
            return _DO[op.kind](ground, op, place, take)
    except OSError as error:
        if error.errno not in _BLOCKED:
            raise
        if take and op.kind in ("delete", "displace", "rmdir"):
            return False  # gone already
        raise Moved(op.name, f"has changed: {error.strerror}") from error


def undo(ground: Ground, op: Operation) -> bool:
    """Take an operation back, if it was carried out. False: somebody was here since, the old content is in the slot."""
    try:
        with parent(ground.root, op.name) as place:
            return _UNDO[op.kind](ground, op, place)
    except OSError as error:
        if error.errno in _BLOCKED:
            return not _holds_old(ground, op)
        raise


def _holds_old(ground: Ground, op: Operation) -> bool:
    """Return whether the slot has what stood at the path before."""
    held = _inode(ground.slot(op.slot)) if op.slot else None
    return held is not None and held != op.inode


def untouched(ground: Ground, op: Operation) -> bool:
    """Return whether the slot holds nothing that a checkpoint does not have: nobody went on writing into it."""
    if not _holds_old(ground, op):
        return True
    if op.kind == "rmdir":
        return _is_empty(ground.slot(op.slot))
    found = examine(ground.slot(op.slot), ground.algorithm)
    return found is None or (op.kind in ("delete", "write") and _is_old(found, op))


def as_captured(ground: Ground, op: Operation) -> bool:
    """Return whether a path is still as it was when the plan was made, as far as the operation minds it."""
    try:
        with parent(ground.root, op.name) as place:
            if op.kind in ("delete", "write"):
                found = examine(place, ground.algorithm)
                return found is not None and _is_old(found, op)
            return op.kind != "create" or not exists(place) or _is_folder(place)
    except OSError as error:
        if error.errno not in _BLOCKED:
            raise
        return op.kind not in ("delete", "write")


def _is_old(found: Found, op: Operation) -> bool:
    return _is(found, op.old_mode, op.old_oid)


def _is_ours(found: Found | None, op: Operation) -> bool:
    """Return whether what stands at a path is the staged content, and nobody has edited it."""
    return found is not None and found.inode == op.inode and _is(found, op.new_mode, op.new_oid)


def _inode(place: Place) -> int | None:
    try:
        return os.stat(place[1], dir_fd=place[0], follow_symlinks=False).st_ino
    except FileNotFoundError:
        return None


def _is(found: Found, mode: int, oid: str) -> bool:
    if (found.mode, found.oid) != (git_mode(mode), oid):
        return False
    return stat.S_ISLNK(mode) or found.permissions == mode & PERMISSIONS


def _delete(ground: Ground, op: Operation, place: Place, take: bool) -> bool:
    slot = ground.slot(op.slot)
    move_in(place, slot)
    found = examine(slot, ground.algorithm)
    if found is not None and _is_old(found, op):
        return True
    if not take:
        move_in(slot, place)
        raise Moved(op.name, "has changed since it was captured")
    return False


def _write(ground: Ground, op: Operation, place: Place, take: bool) -> bool:
    slot = ground.slot(op.slot)
    if take and not exists(place):
        move_in(slot, place)
        return False
    _swap(ground, op, place)
    found = examine(slot, ground.algorithm)
    if found is not None and _is_old(found, op):
        return True
    if not take:
        _give_back(slot, place, op)
        raise Moved(op.name, "has changed since it was captured")
    return False


def _swap(ground: Ground, op: Operation, place: Place) -> None:
    try:
        swap(ground.slot(op.slot), place)
    except Overtaken as error:
        _settle(ground, op, place)
        raise Moved(op.name, "has changed since it was captured") from error


def _give_back(slot: Place, place: Place, op: Operation) -> None:
    """Swap again. If even now something newer came out, the newest goes to the path and the older stays in the slot."""
    swap(slot, place)
    if _inode(slot) != op.inode:
        swap(slot, place)


def _create(ground: Ground, op: Operation, place: Place, take: bool) -> bool:
    if take and exists(place):
        _swap(ground, op, place)
        return False
    move_in(ground.slot(op.slot), place)
    return True


def _displace(ground: Ground, op: Operation, place: Place, take: bool) -> bool:
    move_in(place, ground.slot(op.slot))
    return True


def _clear(ground: Ground, op: Operation, place: Place, take: bool) -> bool:
    """See to it that a directory is there, in which something will be put: if there is none, the staged one goes in."""
    if not exists(place):
        move_in(ground.slot(op.slot), place)
        return False
    if _is_folder(place):
        return True
    _swap(ground, op, place)
    return False


def _remove_folder(ground: Ground, op: Operation, place: Place, take: bool) -> bool:
    """Move an empty directory into its slot; one that has got a new entry meanwhile stays."""
    if not _is_empty(place):
        return True
    slot = ground.slot(op.slot)
    _move_folder(place, slot)
    if not (_is_folder(slot) and _is_empty(slot)):
        move_in(slot, place)
    return True


def _move_folder(old: Place, new: Place) -> None:
    """Move a directory, also one that its own bits keep its owner from moving elsewhere."""
    try:
        move_in(old, new)
    except PermissionError:
        bits = os.stat(old[1], dir_fd=old[0], follow_symlinks=False).st_mode & PERMISSIONS
        _change_bits(old, bits, bits | WRITABLE)
        move_in(old, new)
        _change_bits(new, bits | WRITABLE, bits)


def _is_empty(place: Place) -> bool:
    """Return whether a directory has no entry; one that cannot be read may have some. Raises NotADirectoryError."""
    try:
        descriptor = os.open(place[1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place[0])
    except PermissionError:
        return False
    try:
        return not os.listdir(descriptor)
    finally:
        os.close(descriptor)


def _make_folder(ground: Ground, op: Operation, place: Place, take: bool) -> bool:
    if exists(place) and _is_folder(place):
        return True
    moved = take and exists(place)
    if moved:
        move_in(place, ground.slot(op.slot))
    move_in(ground.slot(made_slot(int(op.slot[1:]))), place)
    return not moved


def _is_folder(place: Place) -> bool:
    return stat.S_ISDIR(os.stat(place[1], dir_fd=place[0], follow_symlinks=False).st_mode)


def _set_bits(ground: Ground, op: Operation, place: Place, take: bool) -> bool:
    if op.inode in (0, _inode(place)):  # a directory that somebody else made keeps its bits
        _change_bits(place, op.old_mode, op.new_mode)
    return True


def _change_bits(place: Place, old: int | None, new: int) -> None:
    """Give a directory other permission bits, if it has the old ones; None: whatever it has."""
    descriptor = os.open(place[1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place[0])
    try:
        if old in (None, os.fstat(descriptor).st_mode & PERMISSIONS):
            os.fchmod(descriptor, new)
    finally:
        os.close(descriptor)


def _undelete(ground: Ground, op: Operation, place: Place) -> bool:
    slot = ground.slot(op.slot)
    if not exists(slot):
        return True
    move_in(slot, place)
    return True


def _unwrite(ground: Ground, op: Operation, place: Place) -> bool:
    slot = ground.slot(op.slot)
    _settle(ground, op, place)
    held, found = _inode(slot), examine(place, ground.algorithm)
    if held is None and _is_ours(found, op):
        move_in(place, slot)  # nothing stood there when it was written
    if held in (None, op.inode):
        return True
    if found is None:
        move_in(slot, place)
        return True
    if not _is_ours(found, op):
        return False
    swap(slot, place)
    return True


def _settle(ground: Ground, op: Operation, place: Place) -> None:
    """End a swap that the portable way left in the middle: either carried out or not."""
    slot, aside = ground.slot(op.slot), ground.slot(op.slot + ASIDE)
    if not exists(aside):
        return
    found = examine(place, ground.algorithm)
    if found is None:
        move_in(aside, place)
        return
    if exists(slot):
        _drop(slot)  # our own content: linked to the path, or not wanted any more
    os.rename(aside[1], slot[1], src_dir_fd=aside[0], dst_dir_fd=slot[0])


def _drop(place: Place) -> None:
    if _is_folder(place):
        os.rmdir(place[1], dir_fd=place[0])
    else:
        os.unlink(place[1], dir_fd=place[0])


def _uncreate(ground: Ground, op: Operation, place: Place) -> bool:
    slot = ground.slot(op.slot)
    _settle(ground, op, place)
    held, found = _inode(slot), examine(place, ground.algorithm)
    stood = held not in (None, op.inode)  # something else was there, and was taken out
    if not _is_ours(found, op):
        if stood and found is None:
            move_in(slot, place)
        return found is None or not stood
    if stood:
        swap(slot, place)
        return True
    if held is not None:
        os.unlink(slot[1], dir_fd=slot[0])  # the portable way links before it unlinks
    move_in(place, slot)
    return True


def _unmake_folder(ground: Ground, op: Operation, place: Place) -> bool:
    try:
        if _inode(place) == op.inode:  # not one that somebody else made
            os.rmdir(place[1], dir_fd=place[0])
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.ENOTDIR):
            raise
    if exists(ground.slot(op.slot)):
        move_in(ground.slot(op.slot), place)
    return True


def _unclear(ground: Ground, op: Operation, place: Place) -> bool:
    slot = ground.slot(op.slot)
    _settle(ground, op, place)
    held = _inode(slot)
    if held == op.inode or (held is None and _inode(place) != op.inode):
        return True
    try:
        os.rmdir(place[1], dir_fd=place[0])
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.ENOENT):
            raise
    if held is None or exists(place):
        return held is None
    move_in(slot, place)
    return True


def _unremove_folder(ground: Ground, op: Operation, place: Place) -> bool:
    slot = ground.slot(op.slot)
    if exists(slot):
        if exists(place):
            return _is_empty(slot)
        _move_folder(slot, place)
    found = os.stat(place[1], dir_fd=place[0], follow_symlinks=False) if exists(place) else None
    if found is not None and found.st_mode == stat.S_IFDIR | op.old_mode | WRITABLE:
        _change_bits(place, None, op.old_mode)  # a move may have ended before its bits were given back
    return True


def _unset_bits(ground: Ground, op: Operation, place: Place) -> bool:
    _change_bits(place, op.new_mode, op.old_mode)
    return True


def _unset_made_bits(ground: Ground, op: Operation, place: Place) -> bool:
    """Make a folder that we made writable again, so that it can be emptied; one that somebody else made stays as is."""
    if op.new_mode & WRITABLE != WRITABLE and op.inode == _inode(place):
        _change_bits(place, op.new_mode, op.old_mode)
    return True


_DO: dict[str, Callable[[Ground, Operation, Place, bool], bool]] = {
    "delete": _delete,
    "rmdir": _remove_folder,
    "displace": _displace,
    "clear": _clear,
    "mkdir": _make_folder,
    "write": _write,
    "create": _create,
    "chmod": _set_bits,
    "bits": _set_bits,
}
_UNDO: dict[str, Callable[[Ground, Operation, Place], bool]] = {
    "delete": _undelete,
    "rmdir": _unremove_folder,
    "displace": _undelete,
    "clear": _unclear,
    "mkdir": _unmake_folder,
    "write": _unwrite,
    "create": _uncreate,
    "chmod": _unset_bits,
    "bits": _unset_made_bits,
}


def moved_aside(op: Operation, path: str) -> Kept:
    """Return what is told of bytes that were put aside."""
    return Kept(path=show(op.name), reason=f"moved to {path}")
