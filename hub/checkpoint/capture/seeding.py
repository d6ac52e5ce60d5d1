"""The private index's beginning: a copy of the user's, so that the first capture need not read every file.

Invariant: an entry is believed only if its object holds the file's raw bytes as they were when git last looked: nothing
with flags, no submodule, nothing that a filter or an encoding may have changed, nothing whose object is missing or has
another size than the file. Equal sizes prove equal bytes where line ends were converted: that only shortens. All others
are read; until git was told so, the index is marked as borrowed. Not promised: to see that a filter, configured no
longer, once gave another content of equal length.
"""

import io
import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from hub.checkpoint.capture.adding import Seen, look_at
from hub.checkpoint.capture.private import PrivateIndex
from hub.checkpoint.capture.staging import Entries, Staged
from hub.checkpoint.stores.side import Store

CONVERTING = ("filter", "working-tree-encoding")
"""Attributes under which equal sizes prove nothing."""
ATTRIBUTES = b".gitattributes"
UNSET = (b"unspecified", b"unset")
EXTENSIONS = (b"link", b"FSMN", b"UNTR", b"sdir")
"""Marks of what ties an index to the place where it lies: another file, a monitor, an untracked cache."""


class Seed(msgspec.Struct, frozen=True):
    """What the private index has at first: its entries, what they are like on disk, and the tree that it comes to.

    `files` are those that are no submodules, `unfit` those that are to be read whatever git says of them.
    """

    names: list[bytes]
    files: int
    seen: Seen
    tree: str
    unfit: set[bytes]


class Seeder:
    """Makes the private index of one worktree from the copy of the user's that was read last."""

    def __init__(self, store: Store, index: PrivateIndex, staged: Staged, since_ns: int) -> None:
        self._store = store
        self._index = index
        self._staged = staged
        self._since_ns = since_ns

    def seed(self, entries: Callable[[], Entries]) -> Seed | None:
        """Make the private index, there is none yet. None: every file is to be read. `entries`: see `IndexReader`."""
        state = self._staged.state
        if state.raw is not None or state.stages or not os.path.exists(self._store.index_copy):
            return None
        seed = self._judged(entries())
        place = self._store.index + b".seed"
        shutil.copy2(self._store.index_copy, place)  # git tells from its time which stat data to distrust
        if _is_tied(place):
            flags = ("--no-split-index", "--no-fsmonitor", "--no-untracked-cache", "--force-write-index")
            self._store.user.with_index(place).run("update-index", *flags)
        self._index.borrow(place, mark=bool(seed.unfit))
        return seed

    def _judged(self, entries: Entries) -> Seed:
        """Return what the files are like, and which entries may stand for other bytes than the file's."""
        names = entries.names
        call = self._store.user.start("cat-file", "--batch-check=%(objectsize)", stdin=entries.oids)
        with ThreadPoolExecutor(1) as other:  # git looks objects up while files are looked at here
            answer = other.submit(call.finish, self._store.user.time_left())
            seen = look_at(self._store.top, names, self._since_ns)
            stored = io.BytesIO(answer.result())
        unfit = self._converted(names)
        unfit |= {name for name, size, line in zip(names, seen.sizes, stored, strict=True) if line != b"%d\n" % size}
        return Seed([*names, *self._staged.submodules], len(names), seen, self._staged.state.tree, unfit)

    def _converted(self, names: list[bytes]) -> set[bytes]:
        """Return the files with attributes under which git may store other bytes of equal length."""
        if not (self._store.has_attributes() or any(name.endswith(ATTRIBUTES) for name in names)):
            return set()
        lines = b"".join(name + b"\0" for name in names)
        view = self._store.user.with_environment({"GIT_ATTR_NOSYSTEM": "0"})
        fields = view.run("check-attr", "-z", "--stdin", *CONVERTING, stdin=lines).split(b"\0")[:-1]
        return {name for name, value in zip(fields[::3], fields[2::3], strict=True) if value not in UNSET}


def is_attributes(name: bytes) -> bool:
    """Return whether a file says what git is to do with others."""
    return name.rpartition(b"/")[2] == ATTRIBUTES


def _is_tied(index: bytes) -> bool:
    with open(index, "rb") as stream:
        content = stream.read()
    return any(mark in content for mark in EXTENSIONS)
