"""Decides how a restore goes: from the present state and the target to a `Draft`. Reads the disk, writes nothing.

Invariant: what the plan replaces or deletes is in the present capture. A path that is absent in the target goes only
if it is captured now, not ignored, and was not there uncaptured at the target's time; all else is kept and named.
What cannot be decided that way yet, because it is not captured, is asked for in `Draft.needed`. The effort grows with
what differs, not with the worktree.
"""

import os
import stat
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set

import msgspec

from hub.checkpoint.capture.snapshot import Snapshot
from hub.checkpoint.capture.walk import ancestors, implied_folders
from hub.checkpoint.files import PERMISSIONS, directory, look
from hub.checkpoint.restoring.authors import NOBODY_KNOWN, Author, why_kept
from hub.checkpoint.stores.meta import State, raw, text
from hub.checkpoint.stores.side import Store
from hub.checkpoint.stores.trees import Difference, full_mode
from hub.checkpoint.values import Folder, HeadMove, Kept, Reach, Step, show

KEPT_MISSED = {
    "too_large": "larger than a checkpoint takes",
    "over_budget": "beyond what one checkpoint takes",
    "unreadable": "it cannot be read",
    "special_file": "not a regular file",
    "nested_repository": "a repository of its own",
    "submodule": "a submodule, a repository of its own",
    "changing": "it was changing while it was read",
}
IGNORED = "git ignores it"
UNCAPTURED_THEN = "it was there at the checkpoint, but is not part of it"
ASIDE = "it stands in the way and is moved aside whole"
IN_THE_WAY = "what others changed stands in its way"


def not_captured_then(target: State) -> Callable[[bytes], bool]:
    """Return what tells whether a state's lists of ignored and uncaptured paths cover a path: it is left as it is."""
    listed = {raw(name) for name in target.ignored} | {raw(missed.path) for missed in target.uncaptured}

    def covers(name: bytes) -> bool:
        if name in listed or name + b"/" in listed:
            return True
        return any(folder + b"/" in listed for folder in ancestors(name))

    return covers


class IndexPlan(msgspec.Struct, frozen=True):
    """What becomes of the index: which entries go back; `names` is None when it goes back as a whole."""

    restores: bool
    changes: tuple[str, ...] = ()
    names: tuple[bytes, ...] | None = None
    note: str | None = None


class Draft(msgspec.Struct):
    """A plan in the making. `needed` are paths that must be captured before the plan can hold."""

    reach: Reach
    writes: list[Step] = msgspec.field(default_factory=list)
    creations: list[Step] = msgspec.field(default_factory=list)
    deletions: list[Step] = msgspec.field(default_factory=list)
    displaced: list[Folder] = msgspec.field(default_factory=list)
    made_dirs: list[Folder] = msgspec.field(default_factory=list)
    removed_dirs: list[Folder] = msgspec.field(default_factory=list)
    changed_dirs: list[Folder] = msgspec.field(default_factory=list)
    kept: list[Kept] = msgspec.field(default_factory=list)
    needed: set[bytes] = msgspec.field(default_factory=set)
    index: IndexPlan = IndexPlan(restores=False)
    head: HeadMove | None = None

    @property
    def names(self) -> frozenset[bytes]:
        """The files that the plan writes, creates or deletes."""
        return frozenset(step.name for step in (*self.writes, *self.creations, *self.deletions))


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How far a plan goes. `paths` narrow it to these and what lies below; `mine` are the files of reach `session`.

    `authors` has who changed each differing file, as far as a history was given; `owner` is for whom the plan is made.
    """

    paths: tuple[bytes, ...] | None = None
    reach: Reach = "tree"
    owner: str | None = None
    mine: frozenset[bytes] = frozenset()
    authors: Mapping[bytes, Author] = {}

    def covers(self, name: bytes) -> bool:
        """Return whether a path is among the wanted ones."""
        return self.paths is None or any(
            path in (b"", b".", name) or name.startswith(path + b"/") for path in self.paths
        )

    def author(self, name: bytes) -> Author:
        """Return who changed a path."""
        return self.authors.get(name, NOBODY_KNOWN)


class Planner:
    """Plans the way from one present state to one target."""

    def __init__(self, store: Store, now: Snapshot, target: State, scope: Scope) -> None:
        self._store = store
        self._now = now
        self._target = target
        self._scope = scope
        self._was_there = not_captured_then(target)
        self._here: Mapping[bytes, int] = now.tree.walked.folders
        self._fresh: set[bytes] = set()
        self._draft = Draft(scope.reach)

    def draft(self, found: Sequence[Difference]) -> Draft:
        """Return the plan for the files that differ, and for directories."""
        folders = {raw(name) for name in self._target.folders}
        created = [d.name for d in found if not d.old_mode]
        self._fresh = folders | {above for name in (*created, *folders) for above in ancestors(name)}
        with directory(self._store.top) as root:
            self._files(root, self._wanted(root, found))
            self._make_folders(root)
            self._remove_folders(root)
        if self._scope.reach == "tree":
            self._change_folders({d.name for d in found if not d.new_mode})
        self._name_what_stays()
        return self._draft

    def _wanted(self, root: int, found: Iterable[Difference]) -> list[Difference]:
        """Return the differences that the plan takes on; the others are named with who made them."""
        covered = [d for d in found if self._scope.covers(d.name)]
        if self._scope.reach == "tree":
            return covered
        wanted = []
        for d in covered:
            author = self._scope.author(d.name)
            if not d.old_mode:
                self._ask_for(root, d.name)
            if d.name not in self._scope.mine:
                self._keep(d.name, why_kept(author, self._scope.owner), author.last)
            elif not d.old_mode and self._is_blocked(root, d.name):
                self._keep(d.name, IN_THE_WAY, author.last)
            else:
                wanted.append(d)
        return wanted

    def _ask_for(self, root: int, name: bytes) -> None:
        """Have a file captured that is there although the present capture lacks it: its content tells whose it is."""
        status = look(root, name)
        if status is not None and (stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)):
            self._draft.needed.add(name)

    def _is_blocked(self, root: int, name: bytes) -> bool:
        """Return whether captured files of others lie above a path, or below a directory that stands there."""
        if any(above in self._now.captured and above not in self._scope.mine for above in ancestors(name)):
            return True
        status = look(root, name)
        if status is None or not stat.S_ISDIR(status.st_mode):
            return False
        below = (os.path.join(folder, file) for folder, _, files in os.walk(self._path(name)) for file in files)
        names = (os.path.relpath(path, self._store.top) for path in below)
        return any(name in self._now.captured and name not in self._scope.mine for name in names)

    def _path(self, name: bytes) -> bytes:
        return os.path.join(self._store.top, name)

    def _files(self, root: int, found: Iterable[Difference]) -> None:
        for d in found:
            if not d.new_mode:
                self._delete(d)
            elif d.old_mode:
                self._draft.writes.append(self._step(d))
            else:
                self._create(root, d)

    def _delete(self, d: Difference) -> None:
        if d.name not in self._fresh:
            if d.name in self._now.tree.forced_in:
                return self._keep(d.name, IGNORED)
            if self._was_there(d.name):
                return self._keep(d.name, UNCAPTURED_THEN)
        return self._draft.deletions.append(self._step(d))

    def _create(self, root: int, d: Difference) -> None:
        """Plan a creation; what stands at the path or above it uncaptured is asked for, or moved aside."""
        for name in (*ancestors(d.name), d.name):
            status = look(root, name)
            if status is None:
                break
            if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
                if name not in self._now.captured:
                    self._draft.needed.add(name)
            elif not stat.S_ISDIR(status.st_mode):
                self._displace(name, status)
        self._draft.creations.append(self._step(d))

    def _displace(self, name: bytes, status: os.stat_result) -> None:
        folder = _folder(name, status.st_mode & PERMISSIONS, None)
        if folder not in self._draft.displaced:
            self._draft.displaced.append(folder)

    def _step(self, d: Difference) -> Step:
        return Step(
            path=show(d.name),
            name=d.name,
            old_mode=full_mode(self._now.state.permissions, d.name, d.old_mode),
            old_oid=d.old_oid or None,
            new_mode=full_mode(self._target.permissions, d.name, d.new_mode),
            new_oid=d.new_oid or None,
            author=self._scope.author(d.name).last,
        )

    def _make_folders(self, root: int) -> None:
        needed = {folder for step in self._draft.creations for folder in ancestors(step.name)}
        if self._scope.reach == "tree":
            needed |= {folder for folder in self._fresh if self._scope.covers(folder)}
        for name in sorted(needed - self._here.keys()):
            status = look(root, name)
            if status is None or not stat.S_ISDIR(status.st_mode):
                self._draft.made_dirs.append(_folder(name, None, self._bits(name)))
                self._clear_for_folder(name, status)

    def _clear_for_folder(self, name: bytes, status: os.stat_result | None) -> None:
        if status is None or name in self._now.captured:
            return
        if stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            self._draft.needed.add(name)
        else:
            self._displace(name, status)

    def _bits(self, name: bytes) -> int:
        permissions = self._target.permissions
        return permissions.folders.get(text(name), permissions.usual["40000"])

    def _remove_folders(self, root: int) -> None:
        """Remove directories that the target lacks, if nothing stays in them; move aside those in a file's way."""
        gone = {step.name for step in self._draft.deletions} | {folder.name for folder in self._draft.displaced}
        emptied = {folder for step in self._draft.deletions for folder in ancestors(step.name)}
        if self._scope.reach == "tree":
            emptied |= {raw(name) for name in self._now.state.folders}
        candidates = (emptied - self._fresh) & self._here.keys()
        for name in sorted(candidates, key=lambda name: (-name.count(b"/"), name)):
            if not self._scope.covers(name) or self._was_there(name):
                continue
            if all(entry in gone for entry in _entries(self._store.top, name)):
                gone.add(name)
                self._draft.removed_dirs.append(_folder(name, self._here[name], None))
        for step in self._draft.creations:
            status = look(root, step.name)
            if status is not None and stat.S_ISDIR(status.st_mode) and step.name not in gone:
                self._displace(step.name, status)

    def _change_folders(self, deleted: Set[bytes]) -> None:
        """Give directories that both sides have the target's permission bits."""
        odd = [name for name in self._with_other_bits() if self._scope.covers(name) and not self._was_there(name)]
        if not odd:
            return
        kept = self._fresh | implied_folders(sorted(self._now.captured - deleted))
        for name in sorted(kept.intersection(odd)):
            self._draft.changed_dirs.append(_folder(name, self._here[name], self._bits(name)))

    def _with_other_bits(self) -> list[bytes]:
        """Return the directories here whose permission bits are not what the target has, or would have."""
        now, then = self._now.state.permissions, self._target.permissions
        if now.usual["40000"] != then.usual["40000"]:
            names: Collection[bytes] = self._here.keys()
        else:
            names = {raw(name) for name in now.folders.keys() | then.folders.keys()} & self._here.keys()
        return [name for name in names if self._here[name] != self._bits(name)]

    def _keep(self, name: bytes, reason: str, author: str | None = None) -> None:
        self._draft.kept.append(Kept(path=show(name), reason=reason, author=author))

    def _name_what_stays(self) -> None:
        """Name what has appeared since the target and is left alone."""
        aside = {folder.name for folder in self._draft.displaced}
        for name in self._now.tree.ignored:
            if self._stays(name, aside):
                self._keep(name, IGNORED)
        for name, why in sorted(self._now.tree.missed.items()):
            if self._stays(name, aside):
                self._keep(name, KEPT_MISSED[why])
        for folder in self._draft.displaced:
            self._keep(folder.name, ASIDE)

    def _stays(self, name: bytes, aside: Set[bytes]) -> bool:
        """Return whether what is not captured stays where it is, and is to be named."""
        bare = name.rstrip(b"/")
        moved = not aside.isdisjoint((bare, *ancestors(bare)))
        return self._scope.covers(name) and not moved and not self._was_there(bare)


def _folder(name: bytes, old: int | None, new: int | None) -> Folder:
    return Folder(path=show(name), name=name, old_mode=old, new_mode=new)


def _entries(top: bytes, folder: bytes) -> list[bytes]:
    try:
        return [folder + b"/" + entry for entry in os.listdir(os.path.join(top, folder))]
    except FileNotFoundError:
        return []
