"""The private index's beginning: a copy of the user's, so that the first capture need not read every file.

Invariant: an entry stays in the copy only if its object holds the file's raw bytes as they were when git last looked:
nothing with flags, no submodule, nothing that a filter or an encoding may have changed, nothing whose object is missing
or has another size than the file. Equal sizes prove equal bytes where line ends were converted: that only shortens.
Not promised: to see that a filter, configured no longer, once gave another content of equal length.
"""

import os
import shutil
from array import array

from hub.checkpoint.repository import Repository
from hub.checkpoint.side import Store
from hub.checkpoint.staging import Staged

CONVERTING = ("filter", "working-tree-encoding")
"""Attributes under which equal sizes prove nothing."""
UNSET = (b"unspecified", b"unset")
EXTENSIONS = (b"link", b"FSMN", b"UNTR", b"sdir")
"""Marks of what ties an index to the place where it lies: another file, a monitor, an untracked cache."""
MISSING = -1


class Seeder:
    """Makes the private index of one worktree from the copy of the user's that was read last."""

    def __init__(self, store: Store, staged: Staged) -> None:
        self._store = store
        self._staged = staged
        self._copy = store.index_copy

    def seed(self) -> None:
        """Make the private index; there is none yet. It may stay missing: then every file is read."""
        state = self._staged.state
        if state.raw is not None or state.stages or not os.path.exists(self._copy):
            return
        unfit = self._unfit()
        seed = self._store.index + b".seed"
        shutil.copy2(self._copy, seed)  # git tells from its time which stat data to distrust
        if unfit or _is_tied(seed):
            self._drop(self._store.user.with_index(seed), unfit)
        os.rename(seed, self._store.index)

    def _drop(self, view: Repository, unfit: list[bytes]) -> None:
        null = self._store.null_oid.encode()
        lines = b"".join(b"0 %b\t%b\0" % (null, name) for name in unfit)
        flags = ("--no-split-index", "--no-fsmonitor", "--no-untracked-cache", "--force-write-index")
        view.run("update-index", *flags, "-z", "--index-info", stdin=lines)

    def _unfit(self) -> list[bytes]:
        """Return the entries that may stand for other bytes than the file's."""
        rows = self._store.user.with_index(self._copy).run("ls-files", "-z", "--stage").split(b"\0")[:-1]
        sizes = self._sizes(rows)
        names = [row.split(b"\t", 1)[1] for row in rows]
        del rows
        converted = self._converted(names)
        prefix = os.path.join(self._store.top, b"")
        return [
            name
            for name, size in zip(names, sizes, strict=True)
            if size == MISSING or name in converted or name in self._staged.submodules or _size(prefix + name) != size
        ]

    def _sizes(self, rows: list[bytes]) -> "array[int]":
        """Return the size of each entry's object in the order of the entries."""
        oids = b"\n".join(row.split(b" ", 2)[1] for row in rows)
        out = self._store.user.run("cat-file", "--batch-check=%(objectsize)", stdin=oids + b"\n" if oids else b"")
        return array("q", (int(line) if line.isdigit() else MISSING for line in out.splitlines()))

    def _converted(self, names: list[bytes]) -> set[bytes]:
        """Return the files with attributes under which git may store other bytes of equal length."""
        lines = b"".join(name + b"\0" for name in names)
        view = self._store.user.with_environment({"GIT_ATTR_NOSYSTEM": "0"})
        fields = view.run("check-attr", "-z", "--stdin", *CONVERTING, stdin=lines).split(b"\0")[:-1]
        return {name for name, value in zip(fields[::3], fields[2::3], strict=True) if value not in UNSET}


def _is_tied(index: bytes) -> bool:
    with open(index, "rb") as stream:
        content = stream.read()
    return any(mark in content for mark in EXTENSIONS)


def _size(path: bytes) -> int:
    """Return a file's size; a missing one may be what it wants, for git sees that it is missing."""
    try:
        return os.lstat(path).st_size
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return MISSING
