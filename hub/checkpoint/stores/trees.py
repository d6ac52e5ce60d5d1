"""Two captured trees compared: which paths differ, by how much, and as text."""

import os
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hub.checkpoint.files import EXECUTABLE, LINK, REGULAR
from hub.checkpoint.repository import Repository
from hub.checkpoint.stores.meta import Permissions, State, text
from hub.checkpoint.stores.reading import TREE, Entry, Reader
from hub.checkpoint.values import INCOMPLETE, Change, ChangeKind, CheckpointError, show

_PLAIN = ("-r", "-z", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color")
_TYPE_BITS = 0o170000
WALKED = 400
"""More directories than this are compared by git."""
NOTHING: Entry = (b"0", "")
"""Stands for a name that has no entry."""


class Difference(msgspec.Struct, frozen=True):
    """One path of two trees. Modes are git's, 0 where the path is missing; ids of missing ones are empty."""

    name: bytes
    old_mode: int
    old_oid: str
    new_mode: int
    new_oid: str


def differences(reader: Reader, old: str, new: str) -> list[Difference]:
    """Return what differs between two trees, in order of name."""
    if old == new:
        return []
    try:
        return sorted(_Walk(reader).between(old, new), key=lambda difference: difference.name)
    except LookupError:
        fields = reader.git.run("diff-tree", "--raw", *_PLAIN, old, new).split(b"\0")[:-1]
    return [_difference(facts, name) for facts, name in zip(fields[::2], fields[1::2], strict=True)]


class _Walk:
    """Two trees compared here, as long as few directories differ and all can be read."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._left = WALKED

    def between(self, old: str, new: str, prefix: bytes = b"") -> Iterator[Difference]:
        """Yield what differs; an empty id stands for no directory. Raises LookupError."""
        olds, news = self._entries(old), self._entries(new)
        for name in {name for name, _ in olds.items() ^ news.items()}:
            before, after = olds.get(name, NOTHING), news.get(name, NOTHING)
            if TREE in (before[0], after[0]):
                inner = [oid if mode == TREE else "" for mode, oid in (before, after)]
                yield from self.between(inner[0], inner[1], prefix + name + b"/")
            files = [NOTHING if entry[0] == TREE else entry for entry in (before, after)]
            if files != [NOTHING, NOTHING]:
                (old_mode, old_oid), (new_mode, new_oid) = files
                yield Difference(prefix + name, int(old_mode, 8), old_oid, int(new_mode, 8), new_oid)

    def _entries(self, oid: str) -> Mapping[bytes, Entry]:
        self._left -= 1
        found = self._reader.tree(oid) if oid and self._left >= 0 else None
        if oid and found is None:
            raise LookupError(oid)
        return found or {}


def _difference(facts: bytes, name: bytes) -> Difference:
    old_mode, new_mode, old_oid, new_oid, _ = facts.decode().lstrip(":").split(" ")
    modes = int(old_mode, 8), int(new_mode, 8)
    return Difference(name, modes[0], old_oid if modes[0] else "", modes[1], new_oid if modes[1] else "")


def differences_of(side: Repository, pairs: Sequence[tuple[str, str]]) -> list[list[Difference]]:
    """Return, for each pair of trees, what differs; all pairs in one git call.

    Raises CheckpointError checkpoint_incomplete for a tree that is missing; git passes over the pair then.
    """
    wanted = [pair for pair in pairs if pair[0] != pair[1]]
    if not wanted:
        return [[] for _ in pairs]
    lines = "".join(f"{old} {new}\n" for old, new in wanted).encode()
    blocks = _blocks(side.run("diff-tree", "--stdin", "--raw", *_PLAIN, stdin=lines))
    if len(blocks) != len(wanted):
        text = "The checkpoint is incomplete: a tree is missing."
        raise CheckpointError(text, code="checkpoint_incomplete", hint=INCOMPLETE)
    found = iter(blocks)
    return [next(found) if old != new else [] for old, new in pairs]


def _blocks(out: bytes) -> list[list[Difference]]:
    """Return what stands below each line that repeats a pair; entries begin with a colon, such lines never do."""
    found: list[list[Difference]] = []
    at = 0
    while at < len(out):
        if out[at : at + 1] != b":":
            found.append([])
            at = out.index(b"\n", at) + 1
            continue
        middle = out.index(b"\0", at)
        end = out.index(b"\0", middle + 1)
        found[-1].append(_difference(out[at:middle], out[middle + 1 : end]))
        at = end + 1
    return found


def compare(reader: Reader, old: State, new: State) -> list[Difference]:
    """Return every file of two states that differs, in content, kind or permission bits alone."""
    found = differences(reader, old.worktree, new.worktree)
    equal = same_content(reader.git, old, new, found)
    return found + [Difference(name, mode, oid, mode, oid) for name, mode, oid in equal]


def names_in(side: Repository, tree: str) -> list[bytes]:
    """Return every file of a tree."""
    return side.run("ls-tree", "-r", "-z", "--name-only", "--full-tree", tree).split(b"\0")[:-1]


def full_mode(permissions: Permissions, name: bytes, mode: int) -> int | None:
    """Return `st_mode` of a captured path, None where it is missing. `mode` is git's."""
    if mode not in (REGULAR, EXECUTABLE, LINK):
        return None
    if mode == LINK:
        return LINK | 0o777
    return mode & _TYPE_BITS | permissions.files.get(text(name), permissions.usual[f"{mode:o}"])


def odd_names(old: Permissions, new: Permissions) -> set[str]:
    """Return the files whose permission bits may differ where their content does not."""
    return {name for name in old.files.keys() | new.files.keys() if old.files.get(name) != new.files.get(name)}


def same_content(
    side: Repository, old: State, new: State, differing: Sequence[Difference]
) -> list[tuple[bytes, int, str]]:
    """Return name, git's mode and id of files with equal content but other permission bits."""
    if old.permissions.usual == new.permissions.usual:
        wanted = {os.fsencode(name) for name in odd_names(old.permissions, new.permissions)}
    else:
        wanted = set(names_in(side, new.worktree))
    wanted -= {difference.name for difference in differing}
    return [
        (name, mode, oid)
        for name, (mode, oid) in entries(side, new.worktree, wanted).items()
        if full_mode(old.permissions, name, mode) != full_mode(new.permissions, name, mode)
    ]


def entries(side: Repository, tree: str, wanted: set[bytes]) -> dict[bytes, tuple[int, str]]:
    """Return git's mode and id of those of the wanted files that a tree has."""
    if not wanted:
        return {}
    found = {}
    for line in side.run("ls-tree", "-r", "-z", "--full-tree", tree).split(b"\0")[:-1]:
        facts, name = line.split(b"\t", 1)
        if name in wanted:
            mode, _, oid = facts.decode().split(" ")
            found[name] = int(mode, 8), oid
    return found


def changes(reader: Reader, old: State, new: State) -> list[Change]:
    """Return what differs between two captured states, in order of path."""
    found = differences(reader, old.worktree, new.worktree)
    sizes = reader.sizes(oid for d in found for oid in (d.old_oid, d.new_oid) if oid)
    lines = _line_counts(reader.git, old.worktree, new.worktree)
    rows = [_change(d, old.permissions, new.permissions, sizes, lines) for d in found]
    equal = same_content(reader.git, old, new, found)
    equal_sizes = reader.sizes(oid for _, _, oid in equal)
    rows += [
        _change(Difference(name, mode, oid, mode, oid), old.permissions, new.permissions, equal_sizes, {})
        for name, mode, oid in equal
    ]
    return sorted(rows, key=lambda change: change.path)


def _change(
    d: Difference,
    old: Permissions,
    new: Permissions,
    sizes: Mapping[str, int],
    lines: Mapping[bytes, tuple[int | None, int | None]],
) -> Change:
    added, removed = lines.get(d.name, (0, 0))
    return Change(
        path=show(d.name),
        kind=_kind(d),
        old_mode=full_mode(old, d.name, d.old_mode),
        new_mode=full_mode(new, d.name, d.new_mode),
        old_size=sizes.get(d.old_oid),
        new_size=sizes.get(d.new_oid),
        added=added,
        removed=removed,
    )


def _kind(d: Difference) -> ChangeKind:
    if not d.old_mode:
        return "created"
    if not d.new_mode:
        return "deleted"
    if d.old_mode & _TYPE_BITS != d.new_mode & _TYPE_BITS:
        return "type"
    return "modified" if d.old_oid != d.new_oid else "mode"


def _line_counts(side: Repository, old: str, new: str) -> dict[bytes, tuple[int | None, int | None]]:
    counts: dict[bytes, tuple[int | None, int | None]] = {}
    if old == new:
        return counts
    for line in side.run("diff-tree", "--numstat", *_PLAIN, old, new).split(b"\0")[:-1]:
        added, removed, name = line.split(b"\t", 2)
        counts[name] = (None, None) if added == b"-" else (int(added), int(removed))
    return counts


def patch(side: Repository, old: str, new: str, paths: Sequence[str], prefix: str = "") -> str:
    """Return a unified diff for people, `prefix` before each path; bytes that are no UTF-8 are replaced."""
    names = [os.fsencode(path.rstrip("/")) for path in paths]
    sides = (f"--src-prefix=a/{prefix}", f"--dst-prefix=b/{prefix}")
    out = side.run("diff-tree", "-p", "-r", *sides, *_PLAIN[2:], old, new, "--", *names)
    return out.decode("utf-8", "replace")
