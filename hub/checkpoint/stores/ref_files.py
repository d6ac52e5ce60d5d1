"""New refs of ours written without git, where refs have files of their own: git takes as long as the rest of a capture.

Invariant: a ref appears whole and durable or not at all, and never in the place of another: its file is linked, not
written, under its name. Where anything speaks against it, git is to be asked, which also says what is wrong. Not
promised: shared repositories and other formats of refs; those are left to git.
"""

import contextlib
import os

PREFIX = b"refs/turnback/"
PACKED = b"packed-refs"
TEMPORARY = b"new-ref"

Identity = tuple[int, int, int, int]


class RefFiles:
    """The refs of ours in one repository. `room` is on the same file system as `common_dir`, or git is asked."""

    def __init__(self, common_dir: bytes, room: bytes) -> None:
        self._common_dir = common_dir
        self._temporary = os.path.join(room, TEMPORARY)
        self._seen: Identity | None = None
        self._packed: frozenset[bytes] = frozenset()

    def create(self, ref: str, commit: str) -> bool:
        """Create `refs/turnback/<ref>`; False if it is not done and git must be asked. The worktree's lock is held."""
        name = PREFIX + ref.encode()
        path = os.path.join(self._common_dir, name)
        if os.path.lexists(path + b".lock") or self._collides(name):
            return False
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._link(path, commit)
        except OSError:  # it exists, an earlier ref is in its way, or the file system has no links
            return False
        return True

    def _link(self, path: bytes, commit: str) -> None:
        self._clear()  # a killed process may have left it, linked to the ref it made
        with open(self._temporary, "xb") as stream:
            stream.write(f"{commit}\n".encode())
            stream.flush()
            os.fsync(stream.fileno())
        try:
            os.link(self._temporary, path)
        finally:
            self._clear()

    def _clear(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._temporary)

    def _collides(self, name: bytes) -> bool:
        """Return whether a packed ref has this name, or one that is a directory of the other."""
        packed = self._packed_names()
        if not packed:
            return False
        parts = name.split(b"/")
        above = {b"/".join(parts[:depth]) for depth in range(1, len(parts) + 1)}
        return not above.isdisjoint(packed) or any(other.startswith(name + b"/") for other in packed)

    def _packed_names(self) -> frozenset[bytes]:
        path = os.path.join(self._common_dir, PACKED)
        try:
            status = os.stat(path)
        except FileNotFoundError:
            return frozenset()
        seen = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        if seen != self._seen:
            with open(path, "rb") as stream:
                rows = (line.rstrip(b"\n").partition(b" ")[2] for line in stream)
                self._packed = frozenset(name for name in rows if name.startswith(PREFIX))
            self._seen = seen
        return self._packed
