"""Decides how a restore goes: from the present state and the target to a `Plan`. Reads the disk, writes nothing.

Invariant: what the plan replaces or deletes is in the present capture. A path that is absent in the target goes only
if it is captured now, not ignored, and was not there uncaptured at the target's time; all else is kept and named.
What cannot be decided that way yet, because it is not captured, is asked for in `Draft.needed`.
"""

import os
import stat
from collections.abc import Iterable, Sequence

import msgspec

from hub.checkpoint.files import PERMISSIONS, directory, look
from hub.checkpoint.meta import State, raw, text
from hub.checkpoint.side import Store
from hub.checkpoint.snapshot import Snapshot
from hub.checkpoint.trees import Difference, differences, full_mode, names_in, same_content
from hub.checkpoint.values import Folder, Kept, Step, show
from hub.checkpoint.walk import ancestors, implied_folders

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


class Draft(msgspec.Struct):
    """A plan in the making. `needed` are paths that must be captured before the plan can hold."""

    writes: list[Step] = msgspec.field(default_factory=list)
    creations: list[Step] = msgspec.field(default_factory=list)
    deletions: list[Step] = msgspec.field(default_factory=list)
    displaced: list[Folder] = msgspec.field(default_factory=list)
    made_dirs: list[Folder] = msgspec.field(default_factory=list)
    removed_dirs: list[Folder] = msgspec.field(default_factory=list)
    changed_dirs: list[Folder] = msgspec.field(default_factory=list)
    kept: list[Kept] = msgspec.field(default_factory=list)
    needed: set[bytes] = msgspec.field(default_factory=set)


class Planner:
    """Plans the way from one present state to one target. `paths` narrow it to these and what lies below."""

    def __init__(self, store: Store, now: Snapshot, target: State, paths: Sequence[str] | None) -> None:
        self._store = store
        self._now = now
        self._target = target
        self._paths = None if paths is None else [os.fsencode(path).rstrip(b"/") for path in paths]
        self._listed = {raw(name) for name in target.ignored} | {raw(missed.path) for missed in target.uncaptured}
        self._names: set[bytes] = set()
        self._folders: set[bytes] = set()
        self._draft = Draft()

    def draft(self) -> Draft:
        """Return the plan so far as files are concerned."""
        found = differences(self._store.side, self._now.state.worktree, self._target.worktree)
        self._names = set(names_in(self._store.side, self._target.worktree))
        self._folders = implied_folders(sorted(self._names)) | {raw(name) for name in self._target.folders}
        with directory(self._store.top) as root:
            self._files(root, [d for d in found if self._covers(d.name)])
            self._permissions(found)
            self._make_folders(root)
            self._remove_folders(root)
            self._change_folders()
        self._name_what_stays()
        return self._draft

    def _covers(self, name: bytes) -> bool:
        return self._paths is None or any(
            path in (b"", b".", name) or name.startswith(path + b"/") for path in self._paths
        )

    def _files(self, root: int, found: Iterable[Difference]) -> None:
        for d in found:
            if not d.new_mode:
                self._delete(d)
            elif d.old_mode:
                self._draft.writes.append(self._step(d))
            else:
                self._create(root, d)

    def _delete(self, d: Difference) -> None:
        if d.name not in self._folders:
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
                if name not in self._captured:
                    self._draft.needed.add(name)
            elif not stat.S_ISDIR(status.st_mode):
                self._displace(name, status)
        self._draft.creations.append(self._step(d))

    @property
    def _captured(self) -> frozenset[bytes]:
        return self._now.captured

    def _displace(self, name: bytes, status: os.stat_result) -> None:
        folder = _folder(name, status.st_mode & PERMISSIONS, None)
        if folder not in self._draft.displaced:
            self._draft.displaced.append(folder)

    def _permissions(self, found: Sequence[Difference]) -> None:
        for name, mode, oid in same_content(self._store.side, self._now.state, self._target, found):
            if self._covers(name):
                self._draft.writes.append(self._step(Difference(name, mode, oid, mode, oid)))

    def _step(self, d: Difference) -> Step:
        return Step(
            path=show(d.name),
            name=d.name,
            old_mode=full_mode(self._now.state.permissions, d.name, d.old_mode),
            old_oid=d.old_oid or None,
            new_mode=full_mode(self._target.permissions, d.name, d.new_mode),
            new_oid=d.new_oid or None,
        )

    def _make_folders(self, root: int) -> None:
        needed = {folder for step in self._draft.creations for folder in ancestors(step.name)}
        needed |= {folder for folder in self._folders if self._covers(folder)}
        for name in sorted(needed - self._now.tree.walked.folders.keys()):
            status = look(root, name)
            if status is None or not stat.S_ISDIR(status.st_mode):
                self._draft.made_dirs.append(_folder(name, None, self._bits(name)))
                self._clear_for_folder(name, status)

    def _clear_for_folder(self, name: bytes, status: os.stat_result | None) -> None:
        if status is None or name in self._captured:
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
        here = self._now.tree.walked.folders
        for name in sorted(here.keys() - self._folders, key=lambda name: (-name.count(b"/"), name)):
            if not self._covers(name) or self._was_there(name):
                continue
            if all(entry in gone for entry in _entries(self._store.top, name)):
                gone.add(name)
                self._draft.removed_dirs.append(_folder(name, here[name], None))
        for step in self._draft.creations:
            status = look(root, step.name)
            if status is not None and stat.S_ISDIR(status.st_mode) and step.name not in gone:
                self._displace(step.name, status)

    def _change_folders(self) -> None:
        here = self._now.tree.walked.folders
        made = {folder.name for folder in self._draft.made_dirs}
        for name in sorted((self._folders & here.keys()) - made):
            if self._covers(name) and not self._was_there(name) and here[name] != self._bits(name):
                self._draft.changed_dirs.append(_folder(name, here[name], self._bits(name)))

    def _was_there(self, name: bytes) -> bool:
        """Return whether the target's lists of ignored and uncaptured paths cover a path."""
        if name in self._listed or name + b"/" in self._listed:
            return True
        return any(folder + b"/" in self._listed for folder in ancestors(name))

    def _keep(self, name: bytes, reason: str) -> None:
        self._draft.kept.append(Kept(path=show(name), reason=reason))

    def _name_what_stays(self) -> None:
        """Name what has appeared since the target and is left alone."""
        for name in self._now.tree.ignored:
            if self._covers(name) and not self._was_there(name.rstrip(b"/")):
                self._keep(name, IGNORED)
        for name, why in sorted(self._now.tree.missed.items()):
            if self._covers(name) and not self._was_there(name.rstrip(b"/")):
                self._keep(name, KEPT_MISSED[why])
        for folder in self._draft.displaced:
            self._keep(folder.name, "it stands in the way and is moved aside whole")


def _folder(name: bytes, old: int | None, new: int | None) -> Folder:
    return Folder(path=show(name), name=name, old_mode=old, new_mode=new)


def _entries(top: bytes, folder: bytes) -> list[bytes]:
    try:
        return [folder + b"/" + entry for entry in os.listdir(os.path.join(top, folder))]
    except FileNotFoundError:
        return []
