"""Carries out what a capture found to do: looks at each candidate, and reads it or names why not.

Few files are read here, beside the private index, which git then need not write; many, or those in motion, are read
into it by git. Invariant: a path whose bytes cannot be had, or are too many, is named and left out. Permission bits are
known for every file that is captured. Not promised: one instant; a file that changes while it is read is read once
more, then named.
"""

import os
import stat
import time
from array import array
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import NamedTuple

import msgspec

from hub.checkpoint.capture.finding import Work
from hub.checkpoint.capture.known import CHANGING, UNSETTLED, Known, Look, hides, settled
from hub.checkpoint.capture.private import PrivateIndex
from hub.checkpoint.files import PERMISSIONS, Parents, directory, git_mode, look_closely, look_in
from hub.checkpoint.stores.ahead import Ahead, make_ahead
from hub.checkpoint.stores.side import Store
from hub.checkpoint.values import CheckpointError

MISSING = -1
BESIDE = 200
"""So many files are kept beside the private index; git is told of them all when there are more."""
AT_ONCE = 10_000
"""About as many files are looked at, then read, at a time."""

Progress = Callable[[str, int, int], None]


class Doubt(Exception):
    """What was found in the short way does not suffice."""


class Limits(NamedTuple):
    """How many bytes an untracked file may have, all of them together, and how many must stay free on the disk."""

    file: int
    total: int
    spare: int


class Adder:
    """Reads what has changed. No limit holds for names that `exempt` has.

    `bytes` counts what was read from files that changed after `since_ns`; `ahead` is what was made without git, and
    `tree` the tree that comes of it, empty if git is to be asked; `handed_over`: the private index has been told of
    what was kept beside it.
    """

    def __init__(
        self, store: Store, known: Known, exempt: Container[bytes], limits: Limits, progress: Progress
    ) -> None:
        self._store = store
        self._index = PrivateIndex(store)
        self._known = known
        self._exempt = exempt
        self._limits = limits
        self._progress = progress
        self._out: set[bytes] = set()
        self._untracked_bytes = 0
        self._gone: frozenset[bytes] | None = None
        self.ahead: Ahead | None = None
        self.handed_over = False
        self._tree = ""
        self.bytes = 0

    @property
    def tree(self) -> str:
        return self.ahead.tree if self.ahead is not None else self._tree

    def carry_out(self, work: Work, since_ns: int) -> None:
        """Do the work. Raises Doubt where files that did not change would count for a limit, CheckpointError."""
        self._out, self._known.missed = self._known.left_out(), {}
        if self._carried_out_beside(work):
            done = work.present + len(work.candidates)
            if work.whole or work.candidates:
                self._progress("files", done, done)
            return
        self._known.missed, self._untracked_bytes, self.bytes, self.ahead = {}, 0, 0, None
        self._hand_over(work)
        self._remove(work.removals)
        names = sorted(work.candidates)
        self._gone = frozenset(work.removals) if len(names) <= AT_ONCE else None
        for start in range(0, len(names), AT_ONCE):
            self._progress("files", work.present + start, work.present + len(names))
            self._take_in(names[start : start + AT_ONCE], work.anew, since_ns)
            if self._untracked_bytes > self._limits.total and not work.whole:
                raise Doubt
        if names:
            self._progress("files", work.present + len(names), work.present + len(names))

    def _carried_out_beside(self, work: Work) -> bool:
        """Read the candidates beside the private index; False if that is left to git."""
        known = self._known
        if len(known.beside.keys() | work.candidates | work.removals) > BESIDE:
            return False
        additions, removals = self._considered(sorted(work.candidates))
        removals |= work.removals
        if work.whole:  # those that are captured still are among the candidates
            removals |= known.beside.keys() - work.candidates
        if not additions and not removals:
            self._tree = known.tree
            return bool(known.tree)
        ahead = self._made_ahead(additions, removals)
        if ahead is None:
            return False
        self._check_disk(additions)
        self.ahead, looked_ns = ahead, time.time_ns()
        if self._moved(additions) or self.ahead is None:
            return False
        self._store.incoming.put_for_git(ahead.objects, self._store.algorithm)
        self._forget(removals)
        for name, found in additions.items():
            self._note_bits(name, found)
            known.fresh.pop(name, None)
        known.beside |= {name: settled(found, looked_ns) for name, found in additions.items()}
        known.beside |= dict.fromkeys(removals)
        return True

    def _hand_over(self, work: Work) -> None:
        """Have git told of what was kept beside the private index."""
        beside, self._known.beside = self._known.beside, {}
        self.handed_over = bool(beside)
        if work.whole:
            work.removals |= beside.keys() - work.candidates
        else:
            work.candidates |= beside.keys()
            work.anew |= beside.keys()  # to git they may look like what it knows
            work.removals |= {name for name, found in beside.items() if found is None}

    def _considered(self, names: list[bytes]) -> tuple[dict[bytes, Look], set[bytes]]:
        """Return the files that are captured, and the names of those that are no longer."""
        additions: dict[bytes, Look] = {}
        removals: set[bytes] = set()
        with directory(self._store.top) as root, Parents(root) as parents:
            for name in names:
                found = self._consider(parents, name)
                if found is not None:
                    additions[name] = found
                elif name not in self._out:
                    removals.add(name)
        return additions, removals

    def _take_in(self, names: list[bytes], anew: set[bytes], since_ns: int) -> None:
        additions, removals = self._considered(names)
        self._make_ahead(additions, removals)
        if not additions:
            self._remove(removals)
        else:
            self._check_disk(additions)
            without = sorted(removals | (anew & additions.keys()))
            self._index.add(additions, self._store.incoming.begin, without=without)
            self._forget(removals)
            looked_ns = time.time_ns()
            self._note(self._read_again(additions), since_ns, looked_ns)

    def _make_ahead(self, additions: Mapping[bytes, Look], removals: set[bytes]) -> None:
        """Make the objects of a small change before git does, all in one place."""
        if self._gone is None:
            return
        self.ahead = self._made_ahead(additions, removals | self._gone)
        if self.ahead is not None:
            self._store.incoming.put_for_git(self.ahead.objects, self._store.algorithm)

    def _made_ahead(self, additions: Mapping[bytes, Look], removals: set[bytes]) -> Ahead | None:
        sizes = {name: found.size for name, found in additions.items()}
        reader, algorithm = self._store.reader, self._store.algorithm
        return make_ahead(self._store.top, reader, algorithm, self._known.tree, sizes, removals - sizes.keys())

    def _consider(self, parents: Parents, name: bytes) -> Look | None:
        """Return what the file is like, None when it is not to be captured: it is then named, if it exists."""
        try:
            status, readable = look_closely(parents, name)
            reason = self._reason_against(name, status, readable=readable) if status else None
        except PermissionError:
            status, reason = None, "unreadable"
        if reason is not None:
            self._known.missed[name] = reason
        if status is None or reason is not None or not git_mode(status.st_mode):
            return None
        return _looked(status)

    def _reason_against(self, name: bytes, status: os.stat_result, *, readable: bool) -> str | None:
        if not stat.S_ISREG(status.st_mode):
            return None
        if not readable:
            return "unreadable"
        if name in self._exempt:
            return None
        if status.st_size > self._limits.file:
            return "too_large"
        if self._untracked_bytes + status.st_size > self._limits.total:
            return "over_budget"
        self._untracked_bytes += status.st_size
        return None

    def _remove(self, names: set[bytes]) -> None:
        if names:
            self._index.remove(sorted(names))
            self._forget(names)

    def _forget(self, names: set[bytes]) -> None:
        for name in names:
            self._known.bits.odd.pop(name, None)
            self._known.fresh.pop(name, None)

    def _check_disk(self, additions: Mapping[bytes, Look]) -> None:
        fresh = sum(one.size for one in additions.values() if one.changed_ns >= self._known.since_ns)
        disk = os.statvfs(self._store.room)
        if disk.f_bavail * disk.f_frsize < 2 * fresh + self._limits.spare:
            raise CheckpointError("There is too little disk space for a checkpoint.", code="disk_full")
        self.bytes += fresh

    def _read_again(self, before: dict[bytes, Look]) -> dict[bytes, Look]:
        """Read what changed meanwhile once more, name what changes still; return how all are now."""
        moved = self._moved(before)
        if moved:
            self.ahead = None
            self._index.add(sorted(moved))
            self._known.missed |= dict.fromkeys(self._moved(moved), CHANGING)
        return before | moved

    def _moved(self, before: dict[bytes, Look]) -> dict[bytes, Look]:
        """Return how those files are that are not what they were; of one that has gone git knows best what follows."""
        moved = {}
        with directory(self._store.top) as root, Parents(root) as parents:
            for name, old in before.items():
                status = look_in(parents, name)
                if status is None:
                    self.ahead = None
                elif _traits(_looked(status)) != _traits(old):
                    moved[name] = _looked(status)
        return moved

    def _note(self, added: dict[bytes, Look], since_ns: int, looked_ns: int) -> None:
        """Note the permission bits of what is in the index now, and what may change again without a trace."""
        for name, found in added.items():
            self._note_bits(name, found)
            if found.changed_ns >= since_ns:
                self._known.fresh[name] = settled(found, looked_ns)
            else:
                self._known.fresh.pop(name, None)

    def _note_bits(self, name: bytes, found: Look) -> None:
        if stat.S_ISREG(found.mode):
            self._known.bits.note(name, found.mode & PERMISSIONS)
        else:
            self._known.bits.odd.pop(name, None)


class Seen(msgspec.Struct):
    """What many files are like: those of each set of permission bits, the size of each in order (MISSING where there is
    none), and those that changed so late that a later change might not show.
    """

    groups: dict[int, list[bytes]] = msgspec.field(default_factory=lambda: defaultdict(list))
    sizes: "array[int]" = msgspec.field(default_factory=lambda: array("q"))
    fresh: dict[bytes, Look] = msgspec.field(default_factory=dict)

    def without(self, names: Collection[bytes]) -> None:
        """Forget some files."""
        for bits, some in self.groups.items():
            self.groups[bits] = [name for name in some if name not in names]


def look_at(top: bytes, names: Iterable[bytes], since_ns: int) -> Seen:
    """Return what files are like; regular ones alone have permission bits."""
    seen = Seen()
    looked_ns = time.time_ns()
    prefix = os.path.join(top, b"")
    lstat, groups, note_size = os.lstat, seen.groups, seen.sizes.append
    for name in names:
        try:
            status = lstat(prefix + name)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            note_size(MISSING)
            continue
        mode = status.st_mode
        note_size(status.st_size)
        if stat.S_IFMT(mode) == stat.S_IFREG:
            groups[mode & PERMISSIONS].append(name)
            if status.st_ctime_ns >= since_ns:
                seen.fresh[name] = settled(_looked(status), looked_ns)
    return seen


def hidden_changes(top: bytes, fresh: dict[bytes, Look]) -> set[bytes]:
    """Return which files have changed since they were looked at without git seeing it."""
    return {name for name, found in looks(top, fresh) if hides(fresh[name], found)}


def changed_beside(top: bytes, beside: Mapping[bytes, Look | None]) -> set[bytes]:
    """Return which files are not what they were, or may not be. What was not captured (None) is found otherwise."""
    there = {name: old for name, old in beside.items() if old is not None}
    now = dict(looks(top, there))
    return {name for name, old in there.items() if old == UNSETTLED or now.get(name) != old}


def looks(top: bytes, names: Iterable[bytes]) -> Iterator[tuple[bytes, Look]]:
    """Yield what files are like, without those that are missing."""
    prefix = os.path.join(top, b"")
    for name in names:
        try:
            status = os.lstat(prefix + name)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            continue
        yield name, _looked(status)


def _looked(status: os.stat_result) -> Look:
    return Look(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_mode)


def _traits(found: Look) -> tuple[int, int, int, int]:
    return found.inode, found.size, found.modified_ns, found.mode
