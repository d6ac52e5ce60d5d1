"""Finds out what of a worktree may have changed since the last capture, or surveys all of it.

Invariant: both ways come to the same: the private index ends with exactly the files that are tracked by the user or not
ignored, and those that the caller forces in. The short way is taken only where nothing speaks against it: ignore rules
and nested repositories as they were, no path whose being ignored matters now. In doubt everything is surveyed.
"""

import time
from collections.abc import Collection

import msgspec

from hub.checkpoint.capture.known import Known, distrust
from hub.checkpoint.capture.private import PrivateIndex
from hub.checkpoint.capture.staging import Staged
from hub.checkpoint.capture.walk import (
    Survey,
    Surveyor,
    ancestors,
    is_repository,
    moved_folders,
    note_ignored_folder,
    parent_of,
    traits_at,
)
from hub.checkpoint.files import directory, git_mode, look
from hub.checkpoint.stores.reading import TREE
from hub.checkpoint.stores.side import Store

NO_FILE = (TREE, "")
"""Stands for a name that has no file."""


class Work(msgspec.Struct, kw_only=True):
    """What is to be looked at because it may have changed, and what is to leave the private index.

    `anew` are candidates that are read whatever they are like. `moved`: directories, ignored paths or the like are not
    what they were. `whole`: everything was surveyed, and `present` files are in the index as they are on disk.
    """

    candidates: set[bytes]
    removals: set[bytes]
    anew: set[bytes] = msgspec.field(default_factory=set)
    moved: bool
    whole: bool
    present: int = 0


class Either:
    """The names of two sets."""

    def __init__(self, one: Collection[bytes], two: Collection[bytes]) -> None:
        self._one, self._two = one, two

    def __contains__(self, name: object) -> bool:
        return name in self._one or name in self._two


class Finder:
    """Finds what a capture must look at. `known` is brought up to date on the way."""

    def __init__(self, store: Store, index: PrivateIndex, staged: Staged, forced: frozenset[bytes], known: Known):
        self._store = store
        self._top = store.top
        self._index = index
        self._staged = staged
        self._forced = forced
        self._known = known
        self._tracked = Either(staged.names, forced) if forced else staged.names
        self._looked_ns = time.time_ns()

    def what_changed(self, before: Staged | None) -> Work | None:
        """Return what may have changed, None in doubt. `before`: the user's index as `known` was made for it."""
        comparing = self._index.start_comparing()
        try:
            moved = self._look_again(before)
        except BaseException:
            comparing.kill()
            raise
        if moved is None:
            comparing.kill()
            return None
        candidates, has_moved = moved
        candidates |= self._known.missed.keys()
        candidates |= (
            set(self._index.compared(comparing)) - self._known.beside.keys()
        )  # of these it knows an earlier state
        return Work(candidates=candidates, removals=set(), moved=has_moved, whole=False)

    def _look_again(self, before: Staged | None) -> tuple[set[bytes], bool] | None:
        """Bring the survey up to date; return new files of changed directories, and if there are any; None in doubt."""
        if self._rules_moved() or self._staging_matters(before) or self._hidden_moved():
            return None
        survey = self._known.survey
        hollow = self._look_at_ignored()
        changed, gone = moved_folders(self._top, survey.folders)
        if not (changed or gone):
            return set(), hollow
        files: dict[bytes, list[bytes]] = {}
        seen: dict[bytes, int] = {}

        def visit(folder: bytes, names: list[bytes]) -> None:
            seen[folder] = len(names)
            files[folder] = names

        fresh = self._surveyor(self._known.opened()).survey(changed, survey.folders.keys() - gone, visit)
        gone |= set(changed) - fresh.folders.keys()
        if self._is_doubtful(fresh, gone, set(changed)):
            return None
        distrust(fresh, self._looked_ns)
        self._known.forget(gone | fresh.folders.keys())
        self._known.learn(fresh, seen)
        return self._unknown(files), True

    def _unknown(self, files: dict[bytes, list[bytes]]) -> set[bytes]:
        """Return which files are not in the private index; of those that are, git says whether they differ."""
        asked = [folder for folder in files if b"\n" not in folder]
        old = self._store.reader.folders(self._known.tree, asked) if asked else {}
        return {
            name
            for folder, names in files.items()
            for name in names
            if old.get(folder, {}).get(name.rpartition(b"/")[2], NO_FILE)[0] == TREE
        }

    def _rules_moved(self) -> bool:
        survey = self._known.survey
        if any(traits_at(self._top, name) != traits for name, traits in survey.rules.items()):
            return True
        return not all(is_repository(self._top, name) for name in survey.nested)

    def _staging_matters(self, before: Staged | None) -> bool:
        """Return whether the user's index tracks other paths, and git's rules ignore one of them."""
        if self._known.staged == self._staged.state.digest:
            return False
        if before is None or before.state.digest != self._known.staged or before.submodules != self._staged.submodules:
            return True
        moved = set(before.names ^ self._staged.names)
        return bool(moved) and (not self._known.hidden.isdisjoint(moved) or bool(self._index.ignored(moved)))

    def _hidden_moved(self) -> bool:
        """Return whether a path that is captured where nobody looks has come or gone."""
        known = self._known
        return self._existing(known.hidden | known.absent) != known.hidden

    def _is_doubtful(self, fresh: Survey, gone: set[bytes], changed: set[bytes]) -> bool:
        survey = self._known.survey
        rules = {name for name in survey.rules if parent_of(name) in fresh.folders}
        closed = fresh.closed - survey.closed
        lost = {name for name in gone if name in survey.closed or traits_at(self._top, name) is not None}
        return bool(fresh.rules.keys() != rules or closed or lost or fresh.nested & changed)

    def _look_at_ignored(self) -> bool:
        """Find out anew which ignored directories are empty; return whether that has moved."""
        survey = self._known.survey
        moved = [name for name, old in survey.ignored.items() if name[-1:] == b"/" and self._traits(name) != old]
        before = set(survey.hollow)
        for name in (*moved, *before):
            note_ignored_folder(self._top, survey, name)
        return survey.hollow != before

    def _traits(self, name: bytes) -> tuple[int, int, int, int] | None:
        return traits_at(self._top, name[:-1])

    def _surveyor(self, opened: Collection[bytes]) -> Surveyor:
        return Surveyor(self._top, self._index.ignored, self._tracked, opened)

    def everything(self, names: list[bytes] | None = None) -> Work:
        """Survey the whole worktree; `known` begins anew but for what it knows of single files.

        `names` are the files of the private index, if the caller has them.
        """
        comparing = self._index.start_comparing()
        try:
            names = self._index.names() if names is None else names
            count = len(names)
            work = self._survey_all(names)
            beside = self._known.beside
            work.anew = {name for name in names if name in beside} - work.removals if beside else set()
            del names
        except BaseException:
            comparing.kill()
            raise
        different = set(self._index.compared(comparing)) - work.removals | work.anew
        work.present = count - len(work.removals) - len(different)
        work.candidates |= different
        return work

    def _survey_all(self, names: list[bytes]) -> Work:
        """Return the work apart from files that changed in place."""
        opened: set[bytes] = set()
        hidden: set[bytes] = set()
        while True:
            left = set(names)
            outside = (self._forced | self._staged.names) - left
            untracked = self._survey_into(left, opened)
            unseen = {name for name in left if name in self._tracked} | (outside - untracked)
            hidden |= self._existing(unseen)
            wanted = {folder for name in hidden for folder in ancestors(name)} - opened
            if all(folder + b"/" not in self._known.survey.ignored for folder in wanted):
                break
            opened |= wanted
        self._known.hidden, self._known.absent = hidden, self._unvisited(unseen - hidden)
        return Work(candidates=untracked | hidden, removals=left - hidden, moved=True, whole=True)

    def _survey_into(self, left: set[bytes], opened: set[bytes]) -> set[bytes]:
        """Survey all directories; take what is seen out of `left`, return what was not in it."""
        untracked: set[bytes] = set()
        seen: dict[bytes, int] = {}

        def visit(folder: bytes, names: list[bytes]) -> None:
            seen[folder] = len(names)
            untracked.update(set(names) - left)
            left.difference_update(names)

        fresh = self._surveyor(opened).survey([b""], (), visit)
        distrust(fresh, self._looked_ns)
        self._known.survey, self._known.seen = fresh, seen
        return untracked

    def _unvisited(self, names: set[bytes]) -> set[bytes]:
        """Return which names lie below what no survey visits."""
        survey = self._known.survey
        closed = {
            *(name.rstrip(b"/") for name in survey.ignored.keys() | survey.hollow),
            *survey.nested,
            *survey.closed,
        }
        return {name for name in names if not closed.isdisjoint(ancestors(name))}

    def _existing(self, names: set[bytes]) -> set[bytes]:
        """Return which of some paths, none of them seen, are files or links."""
        with directory(self._top) as root:
            return {name for name in names if self._exists(root, name)}

    def _exists(self, root: int, name: bytes) -> bool:
        try:
            status = look(root, name)
        except PermissionError:
            return False
        return status is not None and git_mode(status.st_mode) != 0
