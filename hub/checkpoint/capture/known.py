"""What the last capture knew of a worktree, kept beside the private index so that the next one looks only where needed.

Invariant: it is used only with the very private index that it was written for, and only for what a look at the disk
confirms: a directory, a file of ignore rules, a nested repository that is not as it was is surveyed anew. What changed
so shortly before it was looked at that a later change might not show is not believed at all.
Not promised: that it survives; without it every directory is surveyed.
"""

import os
import time
from collections import Counter
from typing import NamedTuple

import msgspec

from hub.checkpoint.capture.walk import Survey, Traits, ancestors, parent_of
from hub.checkpoint.files import write_plainly

FORMAT = 3
FRESH_NS = 2_000_000_000
"""A change younger than this when it was looked at might hide another: some file systems tell times as coarsely."""

TICK_NS = 20_000_000
"""A change younger than this when it was looked at may have the very times of another."""

CHANGING = "changing"
"""Why a path is named that is captured all the same."""

Identity = tuple[int, int, int, int]
NOTHING: Identity = (0, 0, 0, 0)


class Look(NamedTuple):
    """What a file was like when it was looked at."""

    inode: int
    size: int
    modified_ns: int
    changed_ns: int
    mode: int


UNSETTLED = Look(0, 0, 0, 0, 0)
"""Stands for a file that is to be read again whatever it is like."""


class Bits(msgspec.Struct):
    """Permission bits of captured files: the usual ones by git's mode, and the files that have others."""

    usual: dict[str, int]
    odd: dict[bytes, int] = msgspec.field(default_factory=dict)

    def note(self, name: bytes, bits: int) -> None:
        """Note what a captured file has."""
        if bits == self.usual[kind_of(bits)]:
            self.odd.pop(name, None)
        else:
            self.odd[name] = bits


class Known(msgspec.Struct, kw_only=True):
    """What is known of a worktree.

    `rules_key` stands for the ignore rules outside the worktree, `staged` for the user's index, `forced` are paths that
    the caller had captured. `seen` counts files and links by directory, those apart that git ignores and nobody tracks;
    `hidden` are tracked or forced paths where no survey looks, `absent` such paths that do not exist. `missed` maps
    files that are left out to the reason. `fresh` files changed shortly before they were looked at: git, which compares
    times by the second, may not see that they change again. `beside` are files that were read without git, as they were
    then (None: not captured): `tree` is what the private index would come to if it knew of them. What changed before
    `since_ns` is part of it.
    """

    format: int = FORMAT
    index: Identity = NOTHING
    rules_key: str = ""
    staged: str = ""
    forced: frozenset[bytes] = frozenset()
    tree: str = ""
    files: int = 0
    survey: Survey = msgspec.field(default_factory=Survey)
    seen: dict[bytes, int] = msgspec.field(default_factory=dict)
    hidden: set[bytes] = msgspec.field(default_factory=set)
    absent: set[bytes] = msgspec.field(default_factory=set)
    missed: dict[bytes, str] = msgspec.field(default_factory=dict)
    fresh: dict[bytes, Look] = msgspec.field(default_factory=dict)
    beside: dict[bytes, Look | None] = msgspec.field(default_factory=dict)
    since_ns: int = 0
    bits: Bits

    def opened(self) -> set[bytes]:
        """Return the directories that are visited even if git ignores them."""
        return {folder for name in self.hidden for folder in ancestors(name)}

    def forget(self, folders: set[bytes]) -> None:
        """Forget what lies directly in some directories."""
        survey = self.survey
        for table in (survey.ignored, survey.rules):
            for name in [name for name in table if parent_of(name) in folders]:
                del table[name]
        for names in (survey.special, survey.hollow, survey.closed, survey.nested):
            names -= {name for name in names if parent_of(name) in folders}
        survey.closed -= folders
        for folder in folders:
            survey.folders.pop(folder, None)
            self.seen.pop(folder, None)

    def learn(self, found: Survey, seen: dict[bytes, int]) -> None:
        """Take over what a survey of some directories has found."""
        survey = self.survey
        survey.folders |= found.folders
        survey.ignored |= found.ignored
        survey.rules |= found.rules
        survey.hollow |= found.hollow
        survey.special |= found.special
        survey.closed |= found.closed
        survey.nested |= found.nested
        self.seen |= seen

    def left_out(self) -> set[bytes]:
        """Return the files that are not captured; those that were changing are, as they were read."""
        return {name for name, why in self.missed.items() if why != CHANGING}

    def empty_folders(self) -> set[bytes]:
        """Return the directories without a captured file in or below them."""
        missed = Counter(map(parent_of, self.left_out()))
        empty = set(self.survey.folders)
        for name, count in self.seen.items():
            folder = name
            while count > missed[name] and folder in empty:
                empty.remove(folder)
                folder = folder.rpartition(b"/")[0]
        return empty - {b""}


def kind_of(bits: int) -> str:
    """Return git's mode of a file with these permission bits."""
    return "100755" if bits & 0o100 else "100644"


def hides(old: Look, new: Look) -> bool:
    """Return whether git, which compares times by the second, takes a file that has changed for the one it knew."""
    if old in (new, UNSETTLED):
        return old != new
    return _by_the_second(old) == _by_the_second(new)


def _by_the_second(look: Look) -> tuple[int, ...]:
    return look.inode, look.size, look.modified_ns // 1_000_000_000, look.changed_ns // 1_000_000_000


def settled(found: Look, looked_ns: int) -> Look:
    """Return what a file was like at an instant, UNSETTLED when a later change might look the same."""
    return UNSETTLED if found.changed_ns > looked_ns - TICK_NS else found


def distrust(found: Survey, looked_ns: int) -> None:
    """Strike the traits of what changed so shortly before it was looked at that a later change might not show."""
    for table in (found.folders, found.rules, found.ignored):
        for name in [name for name, traits in table.items() if _is_young(traits, looked_ns)]:
            table[name] = (0, 0, 0, table[name][3])


def _is_young(traits: Traits, looked_ns: int) -> bool:
    times = traits[1:3]
    coarse = not any(time % 1_000_000_000 for time in times)
    return max(times) >= looked_ns - (FRESH_NS if coarse else TICK_NS)


class Memory:
    """Where the knowledge of one worktree is kept: here, and in a file for the next process.

    `is_own`: what was recalled last is what was kept here last; otherwise another process may have been at work since.
    """

    def __init__(self, path: bytes, index: bytes) -> None:
        self._path = path
        self._index = index
        self._known: Known | None = None
        self._content = b""
        self.is_own = False

    def recall(self) -> Known | None:
        """Return what is known, None when it was written for another private index.

        It is given away: until `keep` is told how it has become, only the file has what was known before.
        """
        index = self.identity()
        known, self._known = self._known, None
        self.is_own = known is not None and known.index == index
        if not self.is_own:
            known = self._load()
        return known if known is not None and known.index == index != NOTHING else None

    def keep(self, known: Known) -> None:
        """Keep it for the index as it is now; the file is written only when it would become another."""
        known.index = self.identity()
        content = msgspec.msgpack.encode(known)
        if content != self._content:
            write_plainly(self._path, content)
        self._known, self._content = known, content

    def drop(self) -> None:
        """Forget all."""
        self._known, self._content = None, b""
        if os.path.lexists(self._path):
            os.unlink(self._path)

    def identity(self) -> Identity:
        """Return what tells one state of the private index from another."""
        try:
            status = os.stat(self._index)
        except FileNotFoundError:
            return NOTHING
        return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

    def _load(self) -> Known | None:
        try:
            with open(self._path, "rb") as stream:
                self._content = stream.read()
            known = msgspec.msgpack.decode(self._content, type=Known)
        except (FileNotFoundError, msgspec.DecodeError):
            self._content = b""
            return None
        return known if known.format == FORMAT else None


def now_ns() -> int:
    """Return the instant before which a change shows."""
    return time.time_ns() - FRESH_NS
