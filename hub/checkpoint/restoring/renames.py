"""Two renames that the standard library lacks: swap two names, and rename only where nothing is.

Both are single steps of the kernel where it knows them (renameat2 on Linux, renameatx_np on macOS). Where it or the
file system does not, links and plain renames lead to the same outcome. Not promised then: one instant (for a moment
nothing stands at the path, and a name may have both; who is killed there leaves what `ASIDE` recognises). What is
moved and cannot be linked, such as a directory, may replace an empty directory made in that very moment.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Callable

ASIDE = b".aside"
"""Ending of the third name that the portable swap uses, beside the slot."""

_FLAGS = {"linux": ("renameat2", 1, 2), "darwin": ("renameatx_np", 4, 2)}
_MISSING = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)
_NO_LINKS = (errno.EPERM, errno.EACCES, errno.ENOSYS, errno.EOPNOTSUPP)

Place = tuple[int, bytes]
"""An open directory and a name in it."""


def _native() -> tuple[Callable[..., int], int, int] | None:
    name, exclusive, swap = _FLAGS.get(sys.platform, ("", 0, 0))
    function = getattr(ctypes.CDLL(None, use_errno=True), name, None) if name else None
    return (function, exclusive, swap) if function is not None else None


NATIVE = _native()


def move_in(source: Place, target: Place) -> None:
    """Rename where nothing has the target's name. Raises FileExistsError when something has."""
    if not _call(source, target, exclusive=True):
        _portable_move(source, target)


def swap(slot: Place, path: Place) -> None:
    """Exchange what two names stand for. Raises FileNotFoundError when one is missing, FileExistsError when a new
    file took the path in the middle of the portable way (the slot is then as before).
    """
    if not _call(slot, path, exclusive=False):
        _portable_swap(slot, path)


def _call(source: Place, target: Place, *, exclusive: bool) -> bool:
    """Return whether the kernel did it; False when it does not know how. Raises OSError when it refuses."""
    if NATIVE is None:
        return False
    function, exclusive_flag, swap_flag = NATIVE
    flag = exclusive_flag if exclusive else swap_flag
    if function(source[0], source[1], target[0], target[1], ctypes.c_uint(flag)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _MISSING:
        return False
    raise OSError(code, os.strerror(code), os.fsdecode(target[1]))


def _portable_move(source: Place, target: Place) -> None:
    try:
        os.link(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0], follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        if exists(target):  # a directory cannot be linked, and replaces nothing but an empty one
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), os.fsdecode(target[1])) from None
        os.rename(source[1], target[1], src_dir_fd=source[0], dst_dir_fd=target[0])
    else:
        os.unlink(source[1], dir_fd=source[0])


def _portable_swap(slot: Place, path: Place) -> None:
    aside = (slot[0], slot[1] + ASIDE)
    os.rename(path[1], aside[1], src_dir_fd=path[0], dst_dir_fd=aside[0])
    try:
        _portable_move(slot, path)
    except FileExistsError:
        raise Overtaken(aside[1]) from None
    os.rename(aside[1], slot[1], src_dir_fd=aside[0], dst_dir_fd=slot[0])


class Overtaken(FileExistsError):
    """A new file took the path while the old one was aside: the old one is still there, under `args[0]`."""


def exists(place: Place) -> bool:
    """Return whether anything, even a dangling link, has this name."""
    try:
        os.stat(place[1], dir_fd=place[0], follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True
