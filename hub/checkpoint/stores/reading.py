"""Objects read without git where that is quick: those with a file of their own, and those in packs, ours or git's.

Starting git costs more than a small capture may take, and most of what is asked for we have written ourselves.
Invariant: an object is returned only if its id is that of its content; what cannot be read here is left to git, which
also says what is wrong. Not promised: that an object is still there a moment later. Trees are remembered: of one of
them only the content is certain, not that the store still has it.
"""

import hashlib
import os
import re
import zlib
from collections import OrderedDict
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence

from hub.checkpoint.repository import Repository
from hub.checkpoint.stores.git_packs import GitPacks
from hub.checkpoint.stores.objects import Object, path_of
from hub.checkpoint.stores.packs import Pack
from hub.checkpoint.stores.shelf import Shelf

MOST = 1 << 20
"""Larger objects are left to git."""
DIRECT = 500
ALL_BYTES = 8 << 20
"""More objects at a time are left to git, and what comes after so many bytes."""
REMEMBERED = 1 << 20
"""So many bytes of trees are remembered; as entries they take some times as many."""
TREE = b"40000"
_ENTRIES = {width: re.compile(rb"([0-7]+) ([^\0]+)\0(.{%d})" % width, re.DOTALL) for width in (20, 32)}

Entry = tuple[bytes, str]
"""Git's mode as it stands in a tree, and the object's id."""
Entries = Mapping[bytes, Entry]


class Reader:
    """Reads the objects of one worktree. `places` are the store and where new objects wait for it.

    `pending` are objects of ours that are not in their place yet.
    """

    def __init__(self, git: Repository, places: Sequence[bytes], shelf: Shelf, algorithm: str) -> None:
        self.git = git
        self._places = places
        self._shelf = shelf
        self._others = GitPacks(os.path.join(places[0], b"pack"), algorithm)
        self._algorithm = algorithm
        self._trees: OrderedDict[str, tuple[int, Entries]] = OrderedDict()
        self._remembered = 0
        self.pending: dict[str, Object] = {}

    def object(self, oid: str) -> Object | None:
        """Return an object, None when it is not to be had here."""
        found = self.pending.get(oid) or self._loose(oid)
        return found or self._packed(oid, self._shelf.packs()) or self._packed(oid, self._others.packs())

    def lacking(self, oids: Iterable[str]) -> set[str]:
        """Return which objects the store has neither in files of their own nor in packs of ours; git may know them."""
        packs = [pack for pack in self._shelf.packs() if pack.is_there]
        left = {oid for oid in oids if not os.path.exists(path_of(self._places[0], oid))}
        return {oid for oid in left if not any(bytes.fromhex(oid) in pack for pack in packs)}

    def missing(self, oids: Iterable[str]) -> set[str]:
        """Return which objects the store does not have at all."""
        packs = [pack for pack in self._others.packs() if pack.is_there]
        left = {oid for oid in self.lacking(oids) if not any(bytes.fromhex(oid) in pack for pack in packs)}
        return left - self.git.sizes(left).keys()

    def sizes(self, oids: Iterable[str]) -> dict[str, int]:
        """Return the size of each blob that exists."""
        wanted = set(oids)
        found = {oid: len(one.content) for oid, one in self._direct(list(wanted)).items()}
        return found | self.git.sizes(wanted - found.keys())

    def objects(self, oids: Sequence[str]) -> Generator[tuple[str, int, Iterator[bytes]], None, None]:
        """Yield what `Repository.objects` does, for ids; see there."""
        found = self._direct(oids)
        left = self.git.objects([oid for oid in oids if oid not in found])
        try:
            for oid in oids:
                one = found.get(oid)
                yield next(left) if one is None else (oid, len(one.content), iter([one.content]))
        finally:
            left.close()

    def _direct(self, oids: Sequence[str]) -> dict[str, Object]:
        found: dict[str, Object] = {}
        room = ALL_BYTES
        for oid in oids if len(oids) <= DIRECT else ():
            one = self.object(oid) if room > 0 else None
            if one is not None:
                found[oid] = one
                room -= len(one.content)
        return found

    def remember(self, oid: str, content: bytes) -> Entries:
        """Remember a tree by its content; return its entries."""
        self._remembered += len(content) - self._trees.pop(oid, (0, {}))[0]
        entries = entries_of(content, len(oid) // 2)
        self._trees[oid] = len(content), entries
        while self._remembered > REMEMBERED:
            self._remembered -= self._trees.popitem(last=False)[1][0]
        return entries

    def tree(self, oid: str) -> Entries | None:
        """Return the entries of a tree, None when it is not to be had here."""
        if oid in self._trees:
            self._trees.move_to_end(oid)
            return self._trees[oid][1]
        one = self.object(oid)
        return self.remember(oid, one.content) if one is not None and one.kind == "tree" else None

    def folders(self, base: str, names: Collection[bytes]) -> dict[bytes, Entries]:
        """Return the entries of those of the directories that a tree has; their names have no line ends."""
        found: dict[bytes, Entries] = {}
        left: list[bytes] = []
        for name in names:
            try:
                entries = self._folder(base, name)
            except LookupError:
                left.append(name)
            else:
                if entries is not None:
                    found[name] = entries
        return found | (self._asked(base, sorted(left)) if left else {})

    def _folder(self, base: str, name: bytes) -> Entries | None:
        """Return the entries of a directory, None when there is none. Raises LookupError where git is to be asked."""
        oid = base
        for part in name.split(b"/") if name else ():
            mode, oid = self._known(oid).get(part, (b"", ""))
            if mode != TREE:
                return None
        return self._known(oid)

    def _known(self, oid: str) -> Entries:
        entries = self.tree(oid)
        if entries is None:
            raise LookupError(oid)
        return entries

    def _asked(self, base: str, names: Sequence[bytes]) -> dict[bytes, Entries]:
        """Ask git for the directories of a tree."""
        lines = b"".join(b"%b:%b\n" % (base.encode(), name) for name in names)
        out = self.git.run("cat-file", "--batch", stdin=lines)
        found: dict[bytes, Entries] = {}
        start = 0
        for name in names:
            end = out.index(b"\n", start)
            words = out[start:end].split(b" ")
            start = end + 1
            if words[-1] == b"missing":
                continue
            size = int(words[2])
            if words[1] == b"tree":
                content = out[start : start + size]
                found[name] = self.remember(words[0].decode(), content)
            start += size + 1
        return found

    def _loose(self, oid: str) -> Object | None:
        for place in self._places:
            try:
                with open(path_of(place, oid), "rb", buffering=0) as stream:
                    content = stream.read(MOST)
            except OSError:
                continue
            return self._checked(oid, content)
        return None

    def _checked(self, oid: str, packed: bytes) -> Object | None:
        """Return the object that a file holds, None when it is too large or damaged."""
        unpacking = zlib.decompressobj()
        try:
            content = unpacking.decompress(packed, MOST)
        except zlib.error:
            return None
        if not unpacking.eof or self._digest(content) != oid:
            return None
        head, _, rest = content.partition(b"\0")
        return Object(head.partition(b" ")[0].decode(), rest, oid)

    def _packed(self, oid: str, packs: Iterable[Pack]) -> Object | None:
        for pack in packs:
            try:
                found = pack.read(bytes.fromhex(oid), MOST)
            except (OSError, ValueError, IndexError, zlib.error):
                continue
            if found is not None and self._digest(f"{found[0]} {len(found[1])}\0".encode() + found[1]) == oid:
                return Object(*found, oid)
        return None

    def _digest(self, content: bytes) -> str:
        return hashlib.new(self._algorithm, content, usedforsecurity=False).hexdigest()


def entries_of(content: bytes, width: int) -> dict[bytes, Entry]:
    """Return the entries of a tree's content; `width` are the bytes of an id."""
    return {entry[2]: (entry[1], entry[3].hex()) for entry in _ENTRIES[width].finditer(content)}
