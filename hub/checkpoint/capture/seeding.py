"""The private index's beginning: a copy of the user's, so that the first capture need not read every file.

Invariant: an entry stays in the copy only if its object holds the file's raw bytes as they were when git last looked:
nothing with flags, no submodule, nothing that a filter or an encoding may have changed, nothing whose object is missing
or has another size than the file. Equal sizes prove equal bytes where line ends were converted: that only shortens.
Not promised: to see that a filter, configured no longer, once gave another content of equal length.
"""

import io
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

from hub.checkpoint.capture.adding import Seen, look_at
from hub.checkpoint.capture.staging import Staged
from hub.checkpoint.repository import Repository
from hub.checkpoint.stores.side import Store

CONVERTING = ("filter", "working-tree-encoding")
"""Attributes under which equal sizes prove nothing."""
ATTRIBUTES = b".gitattributes"
UNSET = (b"unspecified", b"unset")
_ENTRY = re.compile(rb"[0-7]+ ([0-9a-f]+) 0\t([^\0]*)\0")
"""An entry as `ls-files` prints it: object id and name."""
EXTENSIONS = (b"link", b"FSMN", b"UNTR", b"sdir")
"""Marks of what ties an index to the place where it lies: another file, a monitor, an untracked cache."""


class Seeder:
    """Makes the private index of one worktree from the copy of the user's that was read last."""

    def __init__(self, store: Store, staged: Staged, since_ns: int) -> None:
        self._store = store
        self._staged = staged
        self._since_ns = since_ns
        self._copy = store.index_copy

    def seed(self) -> Seen | None:
        """Make the private index, there is none yet; return what its files are like. None: every file is to be read."""
        state = self._staged.state
        if state.raw is not None or state.stages or not os.path.exists(self._copy):
            return None
        seen, unfit = self._judged()
        seed = self._store.index + b".seed"
        shutil.copy2(self._copy, seed)  # git tells from its time which stat data to distrust
        if unfit or _is_tied(seed):
            self._drop(self._store.user.with_index(seed), unfit)
        os.rename(seed, self._store.index)
        seen.without(unfit)
        return seen

    def _drop(self, view: Repository, unfit: set[bytes]) -> None:
        null = self._store.null_oid.encode()
        lines = b"".join(b"0 %b\t%b\0" % (null, name) for name in sorted(unfit))
        flags = ("--no-split-index", "--no-fsmonitor", "--no-untracked-cache", "--force-write-index")
        view.run("update-index", *flags, "-z", "--index-info", stdin=lines)

    def _judged(self) -> tuple[Seen, set[bytes]]:
        """Return what the files are like, and the entries that may stand for other bytes than the file's."""
        out = self._store.user.with_index(self._copy).run("ls-files", "-z", "--stage")
        oids = b"".join(entry[1] + b"\n" for entry in _ENTRY.finditer(out))
        names = [entry[2] for entry in _ENTRY.finditer(out)]
        del out
        call = self._store.user.start("cat-file", "--batch-check=%(objectsize)", stdin=oids)
        with ThreadPoolExecutor(1) as other:  # git looks objects up while files are looked at here
            answer = other.submit(call.finish, self._store.user.time_left())
            seen = look_at(self._store.top, names, self._since_ns)
            stored = io.BytesIO(answer.result())
        converted = self._converted(names) | self._staged.submodules
        unfit = {name for name, size, line in zip(names, seen.sizes, stored, strict=True) if line != b"%d\n" % size}
        return seen, unfit | converted

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
