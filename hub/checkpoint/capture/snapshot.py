"""A snapshot: the whole present state of a worktree as a value, its bytes already in the object store.

Invariant: nothing of the user's is written: not the worktree, index, HEAD, stash, reflog or configuration. A snapshot
is not yet a checkpoint: no ref protects it.
"""

import logging
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Set
from functools import cached_property
from typing import TypeVar

import msgspec

from hub.checkpoint.capture.adding import Progress
from hub.checkpoint.capture.operations import head_of, operation_of
from hub.checkpoint.capture.private import PrivateIndex
from hub.checkpoint.capture.staging import IndexReader, Staged
from hub.checkpoint.capture.worktree import Ground, Tree, TreeTaker
from hub.checkpoint.repository import GitFailed
from hub.checkpoint.stores.meta import IndexState, Missed, Permissions, Root, State, digest_of, text
from hub.checkpoint.stores.side import Store
from hub.checkpoint.stores.trees import differences
from hub.checkpoint.values import CheckpointError

log = logging.getLogger(__name__)

T = TypeVar("T")


class Captured(Set[bytes]):
    """The files of a snapshot by name, read when they are first asked for."""

    def __init__(self, index: PrivateIndex, beside: Mapping[bytes, bool]) -> None:
        self._index = index
        self._beside = beside

    @cached_property
    def _names(self) -> frozenset[bytes]:
        there = {name for name, is_there in self._beside.items() if is_there}
        return frozenset(self._index.names()) - self._beside.keys() | there

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    @classmethod
    def _from_iterable(cls, it: Iterable[T]) -> Set[T]:
        return frozenset(it)


class Snapshot(msgspec.Struct, frozen=True):
    """The present state, its digest, and what only lives in memory: the user's index and the tree as they were read."""

    state: State
    digest: str
    staged: Staged
    tree: Tree
    captured: Captured

    @property
    def nested(self) -> tuple[bytes, ...]:
        """The repositories inside the worktree, submodules too, as the walk found them; those git ignores are not."""
        kinds = ("nested_repository", "submodule")
        return tuple(sorted(name for name, why in self.tree.missed.items() if why in kinds))


class Snapshots:
    """Takes snapshots of one worktree. The worktree's lock is held by the caller."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._indexes = IndexReader(store)
        self._ground = Ground(store)

    def take(self, progress: Progress, forced: Collection[bytes] = ()) -> Snapshot:
        """Return the present state; `forced` paths are captured whatever the rules say. Raises CheckpointError.

        A capture that fails, because files are in motion or the private index is damaged, begins again: with a survey
        of everything, then with a new index.
        """
        for again in (self._ground.distrust, self._ground.forget):
            try:
                return self._take(progress, forced)
            except (GitFailed, OSError) as failure:
                log.info("a capture begins again", extra={"reason": str(failure)})
                again()
        try:
            return self._take(progress, forced)
        except GitFailed as failure:
            raise CheckpointError(f"The state could not be captured: {failure}") from failure

    def index(self) -> Staged:
        """Return the user's index alone."""
        return self._indexes.read()

    def take_beside(self, progress: Progress, earlier: State) -> Snapshot:
        """Return the present state to compare an earlier one with: ignored files that this one has are captured, too.

        Raises as `take`.
        """
        now = self.take(progress)
        changed = differences(self._store.reader, earlier.worktree, now.state.worktree)
        missing = [change.name for change in changed if not change.new_mode and self._is_there(change.name)]
        ignored = self.ignored(missing) if missing else []
        return self.take(progress, ignored) if ignored else now

    def _is_there(self, name: bytes) -> bool:
        path = os.path.join(self._store.top, name)
        return os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path))

    def ignored(self, names: Collection[bytes]) -> list[bytes]:
        """Return which files git's rules keep out of a snapshot, sorted; those that the user tracks are in it."""
        return sorted(self._ground.index.ignored(names) - self.index().names)

    def forget_index(self) -> None:
        """Drop the private index and what is known of the user's, so that everything is read and written anew."""
        self._ground.forget()
        self._indexes.forget()

    def _take(self, progress: Progress, forced: Collection[bytes]) -> Snapshot:
        if not self._store.incoming.prepare():
            self._ground.forget()
        staged = self._indexes.read()
        try:
            tree = TreeTaker(self._ground, staged, self._indexes.ordinary, forced, progress).take()
        finally:
            self._indexes.drop_entries()
        state = self._state(staged.state, tree)
        return Snapshot(state, digest_of(state), staged, tree, Captured(self._ground.index, tree.beside))

    def _missed(self, tree: Tree) -> dict[bytes, str]:
        """Return what is not captured, and why: repositories that git ignores are named, too, unlike other ignored."""
        folders = [name for name in tree.ignored if name.endswith(b"/")]
        hidden = [name for name in folders if os.path.lexists(os.path.join(self._store.top, name, b".git"))]
        return dict.fromkeys(hidden, "nested_repository") | tree.missed

    def _state(self, index: IndexState, tree: Tree) -> State:
        head, branch = head_of(self._store.user, self._store.git_dir, self._store.common_dir)
        return State(
            worktree=tree.oid,
            index=index,
            head=head,
            branch=branch,
            operation=operation_of(self._store.git_dir),
            ignored=tuple(text(name) for name in tree.ignored),
            folders=tuple(sorted(text(name) for name in tree.walked.empty)),
            permissions=_permissions(tree),
            uncaptured=tuple(Missed(path=text(name), why=why) for name, why in sorted(self._missed(tree).items())),
            root=root_of(self._store),
            files=tree.files,
        )


def root_of(store: Store) -> Root:
    """Return which worktree this is."""
    status = os.stat(store.top)
    return Root(id=store.identity(), path=text(store.top), inode=status.st_ino, device=status.st_dev)


def _permissions(tree: Tree) -> Permissions:
    usual = tree.bits.usual
    return Permissions(
        usual=dict(usual),
        files={text(name): bits for name, bits in sorted(tree.bits.odd.items())},
        folders={text(name): bits for name, bits in tree.walked.folders.items() if bits != usual["40000"]},
    )
