"""Small lists beside the refs: which checkpoints were pruned, and when a state was seen again unchanged.

They lie in the folder that all worktrees of a repository share, one JSON object a line, and have locks of their own
that are held for an instant. Invariant: a line is appended whole or, after a power cut, ignored. Not promised: that a
list outlives the repository's git directory; the refs alone decide which checkpoints there are.
"""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import msgspec

from hub.checkpoint.files import sync_directory, write_durably
from hub.checkpoint.stores.side import FOLDER


class Gone(msgspec.Struct, frozen=True):
    """A checkpoint that was pruned or purged: its name, why, and when (UTC, ISO 8601)."""

    ref: str
    why: str
    at: str


class Again(msgspec.Struct, frozen=True):
    """A checkpoint whose commit is an earlier one's, because nothing had changed, and when it was taken."""

    ref: str
    at: str


Row = TypeVar("Row", bound=msgspec.Struct)


class Ledger(Generic[Row]):
    """One list."""

    def __init__(self, path: bytes, kind: type[Row]) -> None:
        self._path = path
        self._decode = msgspec.json.Decoder(kind).decode

    def append(self, rows: Iterable[Row], *, durably: bool) -> None:
        """Add rows at the end; `durably`: they are on disk when this returns."""
        lines = _lines(rows)
        with self._locked(), open(self._path, "ab+") as stream:
            stream.write(lines if _ends_whole(stream.fileno()) else b"\n" + lines)
            stream.flush()
            if durably:
                os.fsync(stream.fileno())
                sync_directory(os.path.dirname(self._path))

    def rows(self) -> list[Row]:
        """Return all rows, the oldest first; a line that was cut short is left out."""
        try:
            with open(self._path, "rb") as stream:
                lines = stream.read().splitlines()
        except FileNotFoundError:
            return []
        return list(self._decoded(lines))

    def retain(self, wanted: Callable[[list[Row]], list[Row]]) -> None:
        """Keep only those rows that the function returns of all there are."""
        with self._locked():
            write_durably(self._path, _lines(wanted(self.rows())))

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        return _alone(self._path + b".lock")

    def _decoded(self, lines: Iterable[bytes]) -> Iterator[Row]:
        for line in lines:
            with contextlib.suppress(msgspec.DecodeError):  # cut short by a power cut
                yield self._decode(line)


class Ledgers:
    """The lists of one repository."""

    def __init__(self, common_dir: bytes) -> None:
        folder = os.path.join(common_dir, FOLDER)
        self.gone = Ledger(os.path.join(folder, b"pruned"), Gone)
        self.again = Ledger(os.path.join(folder, b"unchanged"), Again)
        self._prune_lock = os.path.join(folder, b"prune.lock")

    def alone(self) -> contextlib.AbstractContextManager[None]:
        """Wait until nobody else prunes this repository, and keep others from it."""
        return _alone(self._prune_lock)


@contextlib.contextmanager
def _alone(path: bytes) -> Iterator[None]:
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _lines(rows: Iterable[msgspec.Struct]) -> bytes:
    return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)


def _ends_whole(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    return size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
