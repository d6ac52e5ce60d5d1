"""The worktree as a tree of raw bytes: our private index is brought up to date, and a tree is written from it.

Invariant: the private index holds exactly the files that are tracked by the user or not ignored, plus those that the
caller forces in; the tree depends on the present state only, never on what was captured before. Files whose bytes
cannot be had are named and left out. Not promised: one instant for the whole tree; a path that changes while it is
read is read once more, then named.
"""

import os
from collections import Counter
from collections.abc import Callable, Collection

import msgspec

from hub.checkpoint.capture.adding import Adder, Doubt, Limits, Progress, Seen, changed_beside, hidden_changes, look_at
from hub.checkpoint.capture.finding import Either, Finder, Work
from hub.checkpoint.capture.known import UNSETTLED, Bits, Identity, Known, Memory, kind_of, now_ns
from hub.checkpoint.capture.private import PrivateIndex, Written
from hub.checkpoint.capture.seeding import Seed, Seeder, is_attributes
from hub.checkpoint.capture.staging import Entries, Staged
from hub.checkpoint.capture.walk import permission_bits
from hub.checkpoint.files import write_durably
from hub.checkpoint.stores.ahead import Ahead
from hub.checkpoint.stores.side import Store

__all__ = ["Progress", "Tree", "TreeTaker"]

FILE_BYTES = 50 << 20
"""An untracked file above this is named, not captured."""
TOTAL_BYTES = 2 << 30
"""Untracked files above this sum in one capture are named, not captured."""
SPARE_BYTES = 64 << 20
"""Disk space that a capture leaves free, beside twice what it writes."""
USUAL = {"100644": 0o644, "100755": 0o755, "40000": 0o755}


class Walked(msgspec.Struct, frozen=True):
    """Permission bits of the visited directories, and which of them hold no captured file."""

    folders: dict[bytes, int]
    empty: tuple[bytes, ...]


class Tree(msgspec.Struct, frozen=True):
    """The captured worktree. `missed` maps paths to the reason; `forced_in` are captured though git ignores them.

    `written` is what this tree has that `base`, the tree of the capture before, lacks. `beside` are the files of which
    the private index knows another state, and whether they are in the tree.
    """

    oid: str
    files: int
    ignored: tuple[bytes, ...]
    missed: dict[bytes, str]
    forced_in: frozenset[bytes]
    walked: Walked
    bits: Bits
    base: str
    written: Written
    beside: dict[bytes, bool]
    bytes: int


class Ground:
    """What the captures of one worktree share: its private index and the memory of the last capture."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.index = PrivateIndex(store)
        self.memory = Memory(os.path.join(store.room, b"known"), store.index)
        self.staged: Staged | None = None
        self.walked: Walked | None = None
        self.seeds = True

    def forget(self) -> None:
        """Drop memory and private index, so that every file is read anew."""
        self.distrust()
        self.seeds = False
        self.index.drop()

    def distrust(self) -> None:
        """Drop the memory, so that all directories are surveyed and all files are looked at."""
        self.memory.drop()
        self.staged = self.walked = None


class TreeTaker:
    """Takes the tree of one worktree. `forced` paths are captured whatever the rules say; `entries`: of the index."""

    def __init__(
        self,
        ground: Ground,
        staged: Staged,
        entries: Callable[[], Entries],
        forced: Collection[bytes],
        progress: Progress,
    ) -> None:
        self._ground = ground
        self._entries = entries
        self._store = ground.store
        self._index = ground.index
        self._memory = ground.memory
        self._staged = staged
        self._forced = frozenset(forced)
        self._progress = progress
        self._since_ns = now_ns()

    def take(self) -> Tree:
        """Return the tree. Raises CheckpointError: checkpoint_failed, over_budget, disk_full."""
        self._progress("status", 0, 0)
        known = self._memory.recall()
        if not self._memory.is_own:
            self._ground.walked = None
        identity = self._memory.identity()
        taken = self._short_way(known) if known is not None else None
        if taken is None:
            taken = self._long_way(known)
        return self._finish(*taken, identity)

    def _short_way(self, known: Known) -> tuple[Known, Work, Adder] | None:
        """Do what a look at the known directories asks for; None in doubt."""
        if (known.rules_key, known.forced) != (self._store.rules_key, self._forced):
            return None
        work = self._finder(known).what_changed(self._ground.staged)
        if work is None:
            return None
        beside = dict(known.beside)
        try:
            return known, work, self._carry_out(known, work)
        except Doubt:
            known.beside = beside  # git may not have been told of all
            return None

    def _long_way(self, known: Known | None) -> tuple[Known, Work, Adder]:
        """Survey the whole worktree and do what that asks for. Of what was known only that of files is used."""
        if known is not None:
            work = self._survey(known)
            return known, work, self._carry_out(known, work)
        known = Known(bits=Bits(USUAL))
        seed = self._seed()
        work = self._begun(known, seed)
        if seed is not None and any(is_attributes(name) for name in work.candidates - self._staged.names):
            self._index.drop()  # the seed was judged without these
            known, seed = Known(bits=Bits(USUAL)), None
            work = self._survey(known)
        adder = self._carry_out(known, work)
        self._note_all_bits(known, seed.seen if seed else None, work)
        return known, work, adder

    def _seed(self) -> Seed | None:
        """Make the private index from the user's, if that may be."""
        if self._index.is_borrowed:
            self._index.drop()  # what was known besides is lost
        if self._index.exists() or not self._ground.seeds:
            return None
        return Seeder(self._store, self._index, self._staged, self._since_ns).seed(self._entries)

    def _begun(self, known: Known, seed: Seed | None) -> Work:
        """Survey everything; take over what is known of a seed."""
        if seed is None:
            return self._survey(known)
        known.tree, known.files, known.beside = seed.tree, seed.files, dict.fromkeys(seed.unfit, UNSETTLED)
        return self._survey(known, seed.names)

    def _survey(self, known: Known, names: list[bytes] | None = None) -> Work:
        known.rules_key, known.forced = self._store.rules_key, self._forced
        return self._finder(known).everything(names)

    def _finder(self, known: Known) -> Finder:
        return Finder(self._store, self._index, self._staged, self._forced, known)

    def _carry_out(self, known: Known, work: Work) -> Adder:
        limits = Limits(FILE_BYTES, TOTAL_BYTES, SPARE_BYTES)
        adder = Adder(self._store, known, Either(self._staged.names, self._forced), limits, self._progress)
        self._look_at_fresh(known, work)
        adder.carry_out(work, self._since_ns)
        return adder

    def _look_at_fresh(self, known: Known, work: Work) -> None:
        """Have those files read anew of which git says that they are as they were, and a closer look says otherwise."""
        moved = hidden_changes(self._store.top, known.fresh)
        if not work.whole:
            moved |= changed_beside(self._store.top, known.beside)
        work.candidates |= moved
        work.anew |= moved  # git reads a file only if it does not know it or sees that it has changed
        known.fresh = {name: old for name, old in known.fresh.items() if old.changed_ns >= self._since_ns}

    def _note_all_bits(self, known: Known, seen: Seen | None, work: Work) -> None:
        """Note the permission bits of every file; `seen` are those of a seed, before the work was done."""
        top = self._store.top
        if seen is None:
            seen = look_at(top, self._index.names(), self._since_ns)
        else:
            seen.without(work.candidates | work.removals)
            for bits, names in look_at(top, work.candidates - known.left_out(), self._since_ns).groups.items():
                seen.groups[bits] += names
        if not known.tree:
            known.files = self._index.count()
        known.fresh = seen.fresh | known.fresh
        usual = self._usual(seen.groups, known)
        odd = {name: bits for bits, some in seen.groups.items() if bits != usual[kind_of(bits)] for name in some}
        known.bits = Bits(usual, odd)

    def _usual(self, groups: dict[int, list[bytes]], known: Known) -> dict[str, int]:
        """Return the usual permission bits; what the first capture found most often holds for all later ones."""
        path = os.path.join(self._store.room, b"usual")
        if not os.path.exists(path):
            counts = {kind: Counter[int]() for kind in USUAL}
            for bits, names in groups.items():
                counts[kind_of(bits)][bits] += len(names)
            counts["40000"].update(permission_bits(known.survey.folders).values())
            most = {kind: max(counts[kind], key=counts[kind].__getitem__, default=bits) for kind, bits in USUAL.items()}
            write_durably(path, msgspec.json.encode(most))
        with open(path, "rb") as stream:
            return msgspec.json.decode(stream.read(), type=dict[str, int])

    def _finish(self, known: Known, work: Work, adder: Adder, identity: Identity) -> Tree:
        """Write the tree, and keep what is known now."""
        base = known.tree
        moved = self._memory.identity() != identity or adder.handed_over or adder.ahead is not None
        if adder.handed_over:
            self._index.own()
        if adder.tree:
            known.tree = adder.tree
        elif moved or not base:
            known.tree = self._index.write_tree()
        written = self._written(base, known.tree, adder.ahead)
        known.files += written.more
        known.staged = self._staged.state.digest
        known.since_ns = self._since_ns if moved else known.since_ns
        if moved or work.moved or self._ground.walked is None:
            empty = tuple(sorted(known.empty_folders()))
            self._ground.walked = Walked(permission_bits(known.survey.folders), empty)
        self._memory.keep(known)
        self._ground.staged, self._ground.seeds = self._staged, True
        return Tree(
            oid=known.tree,
            files=known.files,
            ignored=tuple(sorted(known.survey.ignored)),
            missed=self._missed(known),
            forced_in=self._forced_in(),
            walked=self._ground.walked,
            bits=known.bits,
            base=base,
            written=written,
            bytes=adder.bytes,
            beside={name: found is not None for name, found in known.beside.items()},
        )

    def _written(self, base: str, tree: str, ahead: Ahead | None) -> Written:
        """Return what a tree has that the one before lacks; git need not be asked if it came to the expected tree."""
        if not base:
            return Written()
        if ahead is not None and ahead.tree == tree:
            return Written(tuple(one.oid for one in ahead.objects), ahead.more)
        return self._index.difference(base, tree)

    def _missed(self, known: Known) -> dict[bytes, str]:
        survey = known.survey
        kinds = {
            name: "submodule" if name in self._staged.submodules else "nested_repository" for name in survey.nested
        }
        missed = known.missed | {name + b"/": kind for name, kind in kinds.items()}
        missed |= dict.fromkeys(survey.special, "special_file")
        return missed | {name + b"/": "unreadable" for name in survey.closed}

    def _forced_in(self) -> frozenset[bytes]:
        """Return what is captured although git ignores it and nobody tracks it."""
        forced = self._forced - self._staged.names
        return self._index.ignored(forced) if forced else frozenset()
