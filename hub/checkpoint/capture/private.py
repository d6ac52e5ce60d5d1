"""The private index: which files it has, which of them may have changed, and how it is brought up to date.

Invariant: git alone reads and writes it; file contents go into the object store raw. Not promised: one instant for all
files; who adds a file looks at it before and afterwards.
"""

import os
from collections.abc import Callable, Collection, Iterable

import msgspec

from hub.checkpoint.files import write_durably
from hub.checkpoint.repository import Call, Repository
from hub.checkpoint.stores.side import Store

MANY = 2_000
"""From this many files on, their contents are written as one pack: a third of the time, a fraction of the space."""
AS_PACK = ("-c", "core.bigFileThreshold=1")
WORDS_BYTES = 50_000
"""So many bytes of names stand on a command line."""
DIFFERENT = ("diff-files", "-z", "--name-only", "--ignore-submodules")


def _nothing() -> None:
    """Nothing is to be done."""


class Written(msgspec.Struct, frozen=True):
    """What a tree has that another one lacks: its new objects, and how many files it has more."""

    objects: tuple[str, ...] = ()
    more: int = 0


class PrivateIndex:
    """The private index of one worktree. Its lock is held by the caller."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._side = store.side
        self._mark = store.index + b".borrowed"

    def exists(self) -> bool:
        """Return whether there is one."""
        return os.path.exists(self._store.index)

    def drop(self) -> None:
        """Remove it, with the parts that are shared by its versions."""
        side_dir = self._store.side_dir
        shared = [name for name in os.listdir(side_dir) if name.startswith(b"sharedindex.")]
        for path in (self._store.index, self._mark, *(os.path.join(side_dir, name) for name in shared)):
            if os.path.lexists(path):
                os.unlink(path)

    def borrow(self, path: bytes, *, mark: bool) -> None:
        """Take a copy of the user's index for it; marked, entries of it are believed only beside what is known."""
        if mark:
            write_durably(self._mark, b"")
        os.rename(path, self._store.index)

    @property
    def is_borrowed(self) -> bool:
        """Whether it has entries of the user's that may stand for other bytes than the file's."""
        return os.path.exists(self._mark)

    def own(self) -> None:
        """Note that every entry can be believed."""
        if self.is_borrowed:
            os.unlink(self._mark)

    def names(self) -> list[bytes]:
        """Return every file that it has, in git's order."""
        return self._side.run("ls-files", "-z").split(b"\0")[:-1] if self.exists() else []

    def count(self) -> int:
        """Return how many files it has."""
        return self._side.run("ls-files", "-z").count(b"\0") if self.exists() else 0

    def start_comparing(self) -> Call:
        """Start to ask which of its files may differ on disk; `compared` takes the answer."""
        return self._side.start(*DIFFERENT)

    def compared(self, call: Call) -> list[bytes]:
        """Return the files that may differ: content, mode, permission bits or only a time."""
        return call.finish(self._side.time_left()).split(b"\0")[:-1]

    def ignored(self, names: Collection[bytes]) -> frozenset[bytes]:
        """Return which names git's rules ignore, whatever is tracked."""
        lines = b"".join(b"./%b\0" % name for name in names)  # a name that begins so has no pathspec magic
        out = self._rules().run("check-ignore", "-z", "--stdin", "--no-index", stdin=lines, allow=(0, 1))
        return frozenset(name[2:] for name in out.split(b"\0")[:-1])

    def _rules(self) -> Repository:
        """Return a view in which names are not taken as literal pathspecs: check-ignore does not know those."""
        return self._side.with_environment({"GIT_LITERAL_PATHSPECS": "0"})

    def add(
        self,
        names: Collection[bytes],
        meanwhile: Callable[[], None] = _nothing,
        *,
        without: Collection[bytes] = (),
    ) -> None:
        """Read files that changed into the store and note them; files that are as they were cost a look.

        What is in `without` is taken out first; those names that are added are then read whatever they are like.
        """
        if sum(map(len, without)) > WORDS_BYTES:
            self.remove(without)
            without = ()
        gone = [b"./" + name for name in without]  # no name is an option
        before: tuple[str | bytes, ...] = ("--force-remove", *gone, "--no-force-remove") if gone else ()
        lines = b"".join(name + b"\0" for name in names)
        how = AS_PACK if len(names) >= MANY else ()
        call = self._side.start(
            *how, "update-index", *before, "-z", "--add", "--remove", "--replace", "--stdin", stdin=lines
        )
        try:
            meanwhile()
            call.finish(self._side.time_left())
        except BaseException:
            call.kill()
            raise

    def remove(self, names: Iterable[bytes]) -> None:
        """Take files out of it; those that it does not have are no error."""
        null = self._store.null_oid.encode()
        lines = b"".join(b"0 %b\t%b\0" % (null, name) for name in names)
        self._side.run("update-index", "-z", "--index-info", stdin=lines)

    def write_tree(self) -> str:
        """Return the tree of all its files."""
        return self._side.line("write-tree", "--missing-ok")

    def difference(self, old: str, new: str) -> Written:
        """Return what one tree has that an older one lacks."""
        if old == new:
            return Written()
        return written(self._side.run("diff-tree", "-r", "-t", "-z", "--no-renames", old, new))


def written(out: bytes) -> Written:
    """Return what a raw comparison of two trees, trees themselves included, says."""
    rows = [row.decode().split(" ") for row in out.split(b"\0")[:-1:2]]
    more = sum((_is_file(row[1]) - _is_file(row[0].removeprefix(":"))) for row in rows)
    return Written(tuple(row[3] for row in rows if int(row[1], 8)), more)


def _is_file(mode: str) -> bool:
    return mode[:2] in ("10", "12")
