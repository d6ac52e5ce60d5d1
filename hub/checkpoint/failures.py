"""What git and the system refuse, told as errors with a code.

Invariant: nothing is swallowed: every failure goes on as a CheckpointError that says what happened and what to do.
"""

import contextlib
import errno
import os
import re
from collections.abc import Iterator

from hub.checkpoint.repository import GitFailed
from hub.checkpoint.values import CheckpointError

_CODES = {
    errno.EACCES: "store_unwritable",
    errno.EPERM: "store_unwritable",
    errno.EROFS: "store_unwritable",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
}
_SAID = {
    "No space left on device": "disk_full",
    "Out of diskspace": "disk_full",
    "Disk quota exceeded": "disk_full",
    "Read-only file system": "store_unwritable",
    "Permission denied": "store_unwritable",
    "insufficient permission for adding an object": "store_unwritable",
    "not a git repository": "worktree_gone",
}
"""What git prints, in the C locale, when the system refused."""

_UNWRITTEN = re.compile(r"(?:couldn't write|write error|unable to (?:write|create))[^/\n]*(/[^'\n]+)")
"""What git prints without saying why the system refused, and the path."""

FULL_BYTES = 1 << 20
"""A file system with less free space than this is taken for full."""

_HINTS = {
    "disk_full": "Free some space on that file system and try again.",
    "store_unwritable": "The repository's git directory must be writable for the user the hub runs as.",
    "worktree_gone": "The checkpoints lie in the repository's git directory: bring it back to where it was.",
}


def check_there(*folders: bytes) -> None:
    """Raise CheckpointError worktree_gone when one of the folders that make a worktree is missing."""
    for folder in folders:
        if not os.path.isdir(folder):
            raise _error(f"{os.fsdecode(folder)} is gone; nothing can be captured or restored there.", "worktree_gone")


@contextlib.contextmanager
def told() -> Iterator[None]:
    """Tell GitFailed and OSError as CheckpointError; one whose cause is a full disk or a closed store says so."""
    try:
        yield
    except GitFailed as failure:
        raise _error(f"Git could not do its part: {failure}", _said(failure.stderr) or "git_failed") from failure
    except OSError as error:
        raise _error(f"The system refused: {error}", _CODES.get(error.errno or 0, "checkpoint_failed")) from error
    except CheckpointError as error:
        code = _code_of_cause(error)
        if code is None or error.code == code:
            raise
        raise _error(error.message, code) from error


def _error(message: str, code: str) -> CheckpointError:
    return CheckpointError(message, code=code, hint=_HINTS.get(code), retryable=code == "disk_full")


def _code_of_cause(error: BaseException) -> str | None:
    """Return disk_full or store_unwritable when that is what lies at the bottom of an error, else None."""
    cause = error.__cause__
    while cause is not None:
        if isinstance(cause, GitFailed) and (code := _said(cause.stderr)):
            return code
        if isinstance(cause, OSError) and cause.errno in _CODES:
            return _CODES[cause.errno]
        cause = cause.__cause__
    return None


def _said(stderr: str) -> str | None:
    known = (code for words, code in _SAID.items() if words in stderr)
    guessed = (code for path in _UNWRITTEN.findall(stderr) if (code := _obstacle(path)))
    return next(known, None) or next(guessed, None)


def _obstacle(path: str) -> str | None:
    """Return what keeps a path from being written, as far as can be seen: no space, or no right to."""
    folder = os.path.dirname(path)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    disk = os.statvfs(folder)
    if disk.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK):
        return "store_unwritable"
    return "disk_full" if disk.f_bavail * disk.f_frsize < FULL_BYTES else None
