"""One lock for each worktree, held between sessions, processes and hubs by `flock` on a file in the git directory.

Invariant: while it is held, nobody else captures or restores there. The kernel frees it when the last process that
inherited its descriptor ends. Not promised: anything against programs other than this one.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator

import msgspec

from hub.errors import RefusedError

POLL_S = 0.02
SIGNING_POLLS = 10
"""How often it is looked who holds the lock, when that is not written down yet."""
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Holder(msgspec.Struct, frozen=True):
    """Who took the lock last."""

    pid: int
    owner: str


class WorktreeLock:
    """The lock of one worktree. Within one instance it may be entered again while it is held."""

    def __init__(self, path: bytes, wait_s: float) -> None:
        self._path = path
        self._wait_s = wait_s
        self._depth = 0
        self._descriptor = -1

    @property
    def descriptor(self) -> int:
        """The open descriptor that children inherit; only while the lock is held."""
        return self._descriptor

    @contextlib.contextmanager
    def held(self, owner: str) -> Iterator[None]:
        """Hold the lock. Raises RefusedError workspace_busy, naming the holder, when it does not get free in time."""
        self.acquire(owner)
        try:
            yield
        finally:
            self.release()

    def acquire(self, owner: str) -> None:
        """Take the lock once more. Raises RefusedError workspace_busy."""
        if self._depth == 0:
            self._take(owner)
        self._depth += 1

    def release(self) -> None:
        """Give it back; the last release frees it."""
        self._depth -= 1
        if self._depth == 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _take(self, owner: str) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        give_up = time.monotonic() + self._wait_s
        while not _try(descriptor):
            if time.monotonic() >= give_up:
                holder = _holder(descriptor)
                os.close(descriptor)
                raise RefusedError(
                    f"This worktree is in use by {holder}.", code="workspace_busy", retryable=True, retry_after_s=1.0
                )
            time.sleep(POLL_S)
        self._descriptor = descriptor
        _sign(descriptor, owner)


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _sign(descriptor: int, owner: str) -> None:
    """Write down who holds the lock. It is held without that, too: on a full disk nobody is named."""
    os.ftruncate(descriptor, 0)
    try:
        os.pwrite(descriptor, msgspec.json.encode(Holder(os.getpid(), owner)), 0)
    except OSError as error:
        if error.errno not in _FULL:
            raise


def _holder(descriptor: int) -> str:
    for _ in range(SIGNING_POLLS):
        try:
            holder = msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
        except msgspec.DecodeError:
            time.sleep(POLL_S)
        else:
            return f"process {holder.pid} ({holder.owner})"
    return "another process"
