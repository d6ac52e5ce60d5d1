"""The worktree as a tree of raw bytes: our private index is brought up to date, and a tree is written from it.

Invariant: the private index holds exactly the files that are tracked by the user or not ignored, plus those that the
caller forces in; the tree depends on the present state only, never on what was captured before. Files whose bytes
cannot be had are named and left out. Not promised: one instant for the whole tree; a path that changes while it is
read is read once more, then named.
"""

import os
import stat
from collections.abc import Callable, Collection, Iterable

import msgspec

from hub.checkpoint.files import directory, git_mode, look, unreadable
from hub.checkpoint.side import Store
from hub.checkpoint.staging import Staged
from hub.checkpoint.values import CheckpointError
from hub.checkpoint.walk import Walked, walk

ROUNDS = 4
FILE_BYTES = 50 << 20
"""An untracked file above this is named, not captured."""
TOTAL_BYTES = 2 << 30
"""Untracked files above this sum in one capture are named, not captured."""
SPARE_BYTES = 64 << 20
"""Disk space that a capture leaves free, beside twice what it writes."""

STATUS = (
    *("status", "--porcelain", "-z", "--untracked-files=all", "--ignored=matching"),
    *("--no-renames", "--ignore-submodules=all"),
)
LISTED = ("ls-files", "-z")
LISTED_IGNORED = (*LISTED, "-c", "-i", "--exclude-standard")

Progress = Callable[[str, int, int], None]


class Tree(msgspec.Struct, frozen=True):
    """The captured worktree. `missed` maps paths to the reason; `forced_in` are captured though git ignores them."""

    oid: str
    names: tuple[bytes, ...]
    ignored: tuple[bytes, ...]
    missed: dict[bytes, str]
    forced_in: frozenset[bytes]
    walked: Walked
    bytes: int


class Status(msgspec.Struct, frozen=True):
    """What git says of the worktree against the private index."""

    changed: tuple[bytes, ...]
    untracked: tuple[bytes, ...]
    nested: tuple[bytes, ...]
    ignored: tuple[bytes, ...]


class Edits(msgspec.Struct):
    """What is to be done to the private index, and what is left out.

    `shifts_ignored`: what git calls ignored may be another set afterwards, so it must be asked again.
    """

    additions: dict[bytes, os.stat_result] = msgspec.field(default_factory=dict)
    removals: set[bytes] = msgspec.field(default_factory=set)
    missed: dict[bytes, str] = msgspec.field(default_factory=dict)
    untracked_bytes: int = 0
    shifts_ignored: bool = False


class TreeTaker:
    """Takes the tree of one worktree. `forced` paths are captured whatever the rules say."""

    def __init__(self, store: Store, staged: Staged, forced: Collection[bytes], progress: Progress) -> None:
        self._store = store
        self._staged = staged
        self._forced = frozenset(forced)
        self._progress = progress
        self._bytes = 0
        self._missed: dict[bytes, str] = {}

    def take(self) -> Tree:
        """Return the tree. Raises CheckpointError: checkpoint_failed, over_budget, disk_full."""
        for _ in range(ROUNDS):
            status, names, forced_in = self._look()
            edits = self._edits(status, frozenset(names), forced_in)
            if not (edits.additions or edits.removals):
                break
            self._carry_out(edits)
            if not edits.shifts_ignored:
                names = _names(self._store.side.run(*LISTED))
                forced_in = frozenset(_names(self._store.side.run(*LISTED_IGNORED)))
                break
        oid = self._store.side.line("write-tree", "--missing-ok")
        walked = walk(self._store.top, {name.rstrip(b"/") for name in (*status.ignored, *status.nested)})
        self._note_missed(status, walked)
        return Tree(
            oid, tuple(names), status.ignored, self._missed, forced_in - self._staged.names, walked, self._bytes
        )

    def _look(self) -> tuple[Status, list[bytes], frozenset[bytes]]:
        """Return git's status, what the private index lists, and what of that git ignores."""
        self._progress("status", 0, 0)
        side = self._store.side
        calls = [side.start(*words) for words in (STATUS, LISTED, LISTED_IGNORED)]  # three at once: each walks alone
        try:
            status, names, forced_in = [call.finish(side.time_left()) for call in calls]
        except BaseException:
            for call in calls:
                call.kill()
            raise
        return self._status(status), _names(names), frozenset(_names(forced_in))

    def _status(self, out: bytes) -> Status:
        rows = [(row[:2], row[3:]) for row in out.split(b"\0")[:-1] if row[:2] != b"A "]
        untracked = [name for code, name in rows if code == b"??"]
        return Status(
            tuple(name for code, name in rows if code not in (b"??", b"!!")),
            tuple(name for name in untracked if not name.endswith(b"/")),
            tuple(name for name in untracked if name.endswith(b"/")),
            tuple(sorted(name for code, name in rows if code == b"!!" and not self._is_empty(name))),
        )

    def _is_empty(self, name: bytes) -> bool:
        """Return whether an ignored path is a directory without anything that could be lost."""
        if not name.endswith(b"/"):
            return False
        try:
            return not os.listdir(os.path.join(self._store.top, name))
        except (FileNotFoundError, PermissionError):
            return False

    def _edits(self, status: Status, names: frozenset[bytes], although_ignored: frozenset[bytes]) -> Edits:
        """Return what brings the private index up to date, and name what stays out of it."""
        unwanted = although_ignored - self._staged.names - self._forced
        hidden = (self._staged.names | self._forced) - names - frozenset(status.untracked)
        edits = Edits(removals=set(unwanted))
        with directory(self._store.top) as root:
            self._consider(root, edits, (*status.changed, *status.untracked, *sorted(hidden)))
        edits.removals &= names
        edits.shifts_ignored = bool(unwanted) or not hidden.isdisjoint(edits.additions)
        self._missed |= edits.missed
        return edits

    def _consider(self, root: int, edits: Edits, names: Iterable[bytes]) -> None:
        for name in names:
            if name not in edits.removals:
                self._consider_one(root, edits, name)

    def _consider_one(self, root: int, edits: Edits, name: bytes) -> None:
        try:
            status = look(root, name)
            reason = self._reason_against(root, edits, name, status) if status else None
        except PermissionError:
            status, reason = None, "unreadable"
        if reason is not None:
            edits.missed[name] = reason
        if status is None or reason is not None or not git_mode(status.st_mode):
            edits.removals.add(name)
        else:
            edits.additions[name] = status

    def _reason_against(self, root: int, edits: Edits, name: bytes, status: os.stat_result) -> str | None:
        if not stat.S_ISREG(status.st_mode):
            return None
        if unreadable(root, name):
            return "unreadable"
        if name in self._staged.names or name in self._forced:
            return None
        if status.st_size > FILE_BYTES:
            return "too_large"
        if edits.untracked_bytes + status.st_size > TOTAL_BYTES:
            return "over_budget"
        edits.untracked_bytes += status.st_size
        return None

    def _carry_out(self, edits: Edits) -> None:
        if edits.removals:
            lines = b"".join(b"0 %b\t%b\0" % (self._store.null_oid.encode(), name) for name in sorted(edits.removals))
            self._store.side.run("update-index", "-z", "--index-info", stdin=lines)
        if edits.additions:
            self._check_disk(sum(status.st_size for status in edits.additions.values()))
            self._add(sorted(edits.additions))
            self._read_again(edits.additions)

    def _check_disk(self, fresh: int) -> None:
        disk = os.statvfs(self._store.room)
        if disk.f_bavail * disk.f_frsize < 2 * fresh + SPARE_BYTES:
            raise CheckpointError("There is too little disk space for a checkpoint.", code="disk_full")
        self._bytes += fresh

    def _add(self, names: list[bytes]) -> None:
        self._progress("files", 0, len(names))
        lines = b"".join(name + b"\0" for name in names)
        self._store.side.run("update-index", "-z", "--add", "--remove", "--replace", "--stdin", stdin=lines)
        self._progress("files", len(names), len(names))

    def _read_again(self, before: dict[bytes, os.stat_result]) -> None:
        """Read what changed meanwhile once more; name what changes still."""
        moved = self._moved(before)
        if moved:
            self._add(sorted(moved))
            for name in self._moved(moved):
                self._missed[name] = "changing"

    def _moved(self, before: dict[bytes, os.stat_result]) -> dict[bytes, os.stat_result]:
        moved = {}
        with directory(self._store.top) as root:
            for name, old in before.items():
                new = look(root, name)
                if new is not None and _traits(new) != _traits(old):
                    moved[name] = new
        return moved

    def _note_missed(self, status: Status, walked: Walked) -> None:
        for name in status.nested:
            kind = "submodule" if name.rstrip(b"/") in self._staged.submodules else "nested_repository"
            self._missed[name] = kind
        self._missed |= dict.fromkeys(walked.special, "special_file")
        self._missed |= {name + b"/": "unreadable" for name in walked.closed}


def _traits(status: os.stat_result) -> tuple[int, int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode


def _names(out: bytes) -> list[bytes]:
    return out.split(b"\0")[:-1]
