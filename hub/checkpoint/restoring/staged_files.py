"""New contents written beside the worktree; `sync_files` makes them durable, many at a time.

A file that replaces another takes over its owner (where we may give files away) and its extended attributes.
"""

import contextlib
import errno
import os
from collections.abc import Iterable, Sequence

from hub.checkpoint.files import START, parent, write_back
from hub.checkpoint.restoring.renames import Place

AT_ONCE = 256
"""How many files are open at a time."""
_UNSUPPORTED = (errno.ENOTSUP, errno.EOPNOTSUPP, errno.EPERM, errno.ENODATA)


def stage_link(place: Place, target: bytes) -> int:
    """Make a symbolic link; return its inode."""
    os.symlink(target, place[1], dir_fd=place[0])
    return os.stat(place[1], dir_fd=place[0], follow_symlinks=False).st_ino


def stage_file(place: Place, chunks: Iterable[bytes], bits: int, root: int, name: bytes) -> int:
    """Write a file with these permission bits; return its inode. `name`: what it will replace, if anything."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(place[1], flags, 0o600, dir_fd=place[0]), "wb") as stream:
        stream.writelines(chunks)
        stream.flush()
        _take_over(root, name, stream.fileno())
        os.fchmod(stream.fileno(), bits)
        return os.fstat(stream.fileno()).st_ino


def sync_files(folder: int, names: Sequence[bytes]) -> None:
    """Make the content of files durable: all are begun together, so that the first sync has done most of the work."""
    for start in range(0, len(names), AT_ONCE):
        with contextlib.ExitStack() as opened:
            descriptors = [_opened(opened, folder, name) for name in names[start : start + AT_ONCE]]
            for descriptor in descriptors:
                write_back(descriptor, START)
            for descriptor in descriptors:
                os.fsync(descriptor)


def _opened(opened: contextlib.ExitStack, folder: int, name: bytes) -> int:
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    opened.callback(os.close, descriptor)
    return descriptor


def _take_over(root: int, name: bytes, descriptor: int) -> None:
    try:
        with parent(root, name) as (folder, last):
            old = os.open(last, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return  # nothing there, or nothing that can be read: there is nothing to take over
    try:
        owner = os.fstat(old)
        if os.geteuid() == 0:
            os.fchown(descriptor, owner.st_uid, owner.st_gid)
        _copy_attributes(old, descriptor)
    finally:
        os.close(old)


def _copy_attributes(old: int, new: int) -> None:
    if not hasattr(os, "listxattr"):
        return
    try:
        for attribute in os.listxattr(old):
            os.setxattr(new, attribute, os.getxattr(old, attribute))
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
