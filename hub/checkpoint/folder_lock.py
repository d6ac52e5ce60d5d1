"""The lock of a worktree wherever its checkpoints lie: the lock file of its store, and then the folder itself.

Two hubs may keep the checkpoints of one folder in different stores, so the folder's own inode is locked as well, by
`flock`, which writes nothing. Invariant: both are held, or none. Not promised: the second one on file systems that
cannot lock a directory (some network ones); there each store has its own lock only.
"""

import errno
import fcntl
import os
import time

from hub.checkpoint.locks import POLL_S, WorktreeLock
from hub.errors import RefusedError

LOCKS = "/proc/locks"
_CANNOT = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EBADF)
NONE = -1
GRACE_S = 0.2
"""How long at least the folder is waited for: a holder that is killed lets the file go first."""


class FolderLock(WorktreeLock):
    """The lock of one worktree, whose store's lock file is `path`. May be entered again while it is held."""

    def __init__(self, path: bytes, top: bytes, wait_s: float) -> None:
        super().__init__(path, wait_s)
        self._top = top
        self._patience_s = wait_s
        self._folder = NONE

    @property
    def descriptors(self) -> list[int]:
        """The open descriptors that children inherit; only while the lock is held."""
        return [self.descriptor, *([self._folder] if self._folder != NONE else [])]

    def acquire(self, owner: str) -> None:
        """Take the lock once more. Raises RefusedError workspace_busy."""
        super().acquire(owner)
        if self._folder == NONE:
            try:
                self._folder = _hold(self._top, max(self._patience_s, GRACE_S))
            except BaseException:
                super().release()
                raise

    def release(self) -> None:
        """Give it back; the last release frees it, the folder first: who gets the file next finds the folder free."""
        if self._depth == 1 and self._folder != NONE:
            os.close(self._folder)
            self._folder = NONE
        super().release()


def _hold(top: bytes, wait_s: float) -> int:
    """Lock a folder; return the descriptor that holds it, NONE where a folder cannot be locked."""
    descriptor = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _try(descriptor, time.monotonic() + wait_s):
            return descriptor
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return NONE


def _try(descriptor: int, give_up: float) -> bool:
    """Return whether a folder was locked, False where that cannot be. Raises RefusedError workspace_busy."""
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                raise _busy(descriptor) from None
        except OSError as error:
            if error.errno in _CANNOT:
                return False
            raise
        else:
            return True
        time.sleep(POLL_S)


def _busy(descriptor: int) -> RefusedError:
    return RefusedError(
        f"This worktree is in use by {_holder(os.fstat(descriptor).st_ino)}, which keeps its checkpoints elsewhere.",
        code="workspace_busy",
        retryable=True,
        retry_after_s=1.0,
    )


def _holder(inode: int) -> str:
    """Return who has locked an inode, as far as the system tells."""
    try:
        with open(LOCKS, encoding="ascii") as stream:
            rows = [line.split() for line in stream]
    except FileNotFoundError:
        return "another process"
    found = [row[4] for row in rows if len(row) > 5 and row[1] == "FLOCK" and row[5].endswith(f":{inode}")]
    return f"process {found[0]}" if found else "another process"
