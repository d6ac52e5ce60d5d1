"""Files reached through open directories: no symlink on the way is followed, no path is too long.

Invariant: what is read, hashed or renamed lies inside the worktree, whatever others make of its directories meanwhile.
"""

import contextlib
import ctypes
import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from hub.checkpoint.restoring.renames import Place

CHUNK = 1 << 20
PERMISSIONS = 0o7777
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
_DIRECTORY = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
REGULAR, EXECUTABLE, LINK, SUBMODULE = 0o100644, 0o100755, 0o120000, 0o160000
"""Git's modes."""
START, COMPLETE = 2, 7
"""Of `sync_file_range` (Linux): begin to write, and wait until it is done."""
_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)
CAN_WRITE_BACK = _RANGE is not None


class Found(NamedTuple):
    """What stands at a path: git's mode (0 for what git does not keep), permission bits, object id, inode."""

    mode: int
    permissions: int
    oid: str
    inode: int


@contextlib.contextmanager
def directory(path: bytes) -> Iterator[int]:
    """Open a directory by its path."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def parent(root: int, name: bytes) -> Iterator[Place]:
    """Open the directory that holds `name`, component by component. Raises NotADirectoryError at a symlink."""
    *folders, last = name.split(b"/")
    descriptor = os.open(b".", _PATH_ONLY | _DIRECTORY, dir_fd=root)
    try:
        for folder in folders:
            inner = os.open(folder, _PATH_ONLY | _DIRECTORY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, last
    finally:
        os.close(descriptor)


class Parents(contextlib.AbstractContextManager["Parents"]):
    """The directories that hold names, as `parent` opens them, for one name after the other.

    The last one stays open: names in order cost little.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._folder = b""
        self._descriptor: int | None = None

    def of(self, name: bytes) -> Place:
        """Return the open directory of a name, and its last part. Raises as `parent`."""
        folder, _, last = name.rpartition(b"/")
        if self._descriptor is None or folder != self._folder:
            self.close()
            with parent(self._root, name) as (descriptor, _):
                self._descriptor = os.dup(descriptor)
            self._folder = folder
        return self._descriptor, last

    def close(self) -> None:
        """Let the directory go."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __exit__(self, *_: object) -> None:
        self.close()


def look(root: int, name: bytes) -> os.stat_result | None:
    """Return `lstat` of a path, None when it is missing or lies behind something that is no directory."""
    with Parents(root) as parents:
        return look_in(parents, name)


def look_in(parents: Parents, name: bytes) -> os.stat_result | None:
    """Return what `look` does."""
    try:
        descriptor, last = parents.of(name)
        return os.stat(last, dir_fd=descriptor, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise


def git_mode(mode: int) -> int:
    """Return git's mode for an `st_mode`; 0 for a directory or a special file."""
    if stat.S_ISLNK(mode):
        return LINK
    if stat.S_ISREG(mode):
        return EXECUTABLE if mode & 0o100 else REGULAR
    return 0


def examine(place: Place, algorithm: str) -> Found | None:
    """Return what stands at a place, hashed as git does; None when it is missing. Nothing special is opened."""
    try:
        status = os.stat(place[1], dir_fd=place[0], follow_symlinks=False)
    except FileNotFoundError:
        return None
    mode = git_mode(status.st_mode)
    oid = ""
    if mode == LINK:
        oid = blob_id(os.readlink(place[1], dir_fd=place[0]), algorithm)
    elif mode:
        oid = _hash_file(place, algorithm)
    return Found(mode, status.st_mode & PERMISSIONS, oid, status.st_ino)


def blob_id(content: bytes, algorithm: str) -> str:
    """Return git's object id of a blob."""
    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def _hash_file(place: Place, algorithm: str) -> str:
    descriptor = os.open(place[1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=place[0])
    with open(descriptor, "rb", buffering=0) as stream:
        size = os.fstat(descriptor).st_size
        digest = hashlib.new(algorithm, b"blob %d\0" % size, usedforsecurity=False)
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def look_closely(parents: Parents, name: bytes) -> tuple[os.stat_result | None, bool]:
    """Return what `look` does, and whether we may read it."""
    try:
        descriptor, last = parents.of(name)
        status = os.stat(last, dir_fd=descriptor, follow_symlinks=False)
        links = stat.S_ISLNK(status.st_mode)  # a link is read whatever it points to
        return status, links or os.access(last, os.R_OK, dir_fd=descriptor, effective_ids=True)
    except (FileNotFoundError, NotADirectoryError):
        return None, True
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None, True
        raise


def sync_directory(path: bytes) -> None:
    """Make the names in a directory durable."""
    with directory(path) as descriptor:
        os.fsync(descriptor)


def write_durably(path: bytes, content: bytes) -> None:
    """Replace a file so that after a power cut it is the old one or the new one, whole."""
    temporary = path + b".tmp"
    with open(temporary, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    os.rename(temporary, path)
    sync_directory(os.path.dirname(path))


def write_plainly(path: bytes, content: bytes) -> None:
    """Replace a file at once, not durably: for what can be done without."""
    temporary = path + b".tmp"
    with open(temporary, "wb") as stream:
        stream.write(content)
    os.rename(temporary, path)


def write_back(descriptor: int, step: int) -> None:
    """Have a file's content written, where the system can do that apart from making it durable."""
    if _RANGE is not None:
        _RANGE(descriptor, ctypes.c_int64(0), ctypes.c_int64(0), ctypes.c_uint(step))
