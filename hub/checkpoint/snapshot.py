"""A snapshot: the whole present state of a worktree as a value, its bytes already in the object store.

Invariant: nothing of the user's is written: not the worktree, index, HEAD, stash, reflog or configuration. A snapshot
is not yet a checkpoint: no ref protects it.
"""

import logging
import os
from collections import Counter
from collections.abc import Collection, Mapping

import msgspec

from hub.checkpoint.files import write_durably
from hub.checkpoint.meta import IndexState, Missed, Permissions, Root, State, digest_of, text
from hub.checkpoint.operations import head_of, operation_of
from hub.checkpoint.repository import GitFailed
from hub.checkpoint.side import Store
from hub.checkpoint.staging import IndexReader, Staged
from hub.checkpoint.values import CheckpointError
from hub.checkpoint.walk import Walked, implied_folders
from hub.checkpoint.worktree import Progress, Tree, TreeTaker

log = logging.getLogger(__name__)

USUAL = {"100644": 0o644, "100755": 0o755, "40000": 0o755}


class Snapshot(msgspec.Struct, frozen=True):
    """The present state, its digest, and what only lives in memory: the user's index and the tree as they were read."""

    state: State
    digest: str
    staged: Staged
    tree: Tree
    captured: frozenset[bytes]

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

    def take(self, progress: Progress, forced: Collection[bytes] = ()) -> Snapshot:
        """Return the present state; `forced` paths are captured whatever the rules say. Raises CheckpointError."""
        try:
            return self._take(progress, forced)
        except (GitFailed, OSError) as first:
            log.info("a capture met a file in motion and begins again", extra={"reason": str(first)})
        try:
            return self._take(progress, forced)
        except GitFailed as failure:
            raise CheckpointError(f"The state could not be captured: {failure}") from failure

    def index(self) -> Staged:
        """Return the user's index alone."""
        return self._indexes.read()

    def forget_index(self) -> None:
        """Drop the private index, so that every file is read anew."""
        if os.path.lexists(self._store.index):
            os.unlink(self._store.index)

    def _take(self, progress: Progress, forced: Collection[bytes]) -> Snapshot:
        staged = self._indexes.read()
        tree = TreeTaker(self._store, staged, forced, progress).take()
        state = self._state(staged.state, tree)
        return Snapshot(state, digest_of(state), staged, tree, frozenset(tree.names))

    def _state(self, index: IndexState, tree: Tree) -> State:
        head, branch = head_of(self._store.user, self._store.git_dir)
        implied = implied_folders(list(tree.names))
        return State(
            worktree=tree.oid,
            index=index,
            head=head,
            branch=branch,
            operation=operation_of(self._store.git_dir),
            ignored=tuple(text(name) for name in tree.ignored),
            folders=tuple(sorted(text(name) for name in tree.walked.folders if name not in implied)),
            permissions=self._permissions(tree),
            uncaptured=tuple(Missed(path=text(name), why=why) for name, why in sorted(tree.missed.items())),
            root=root_of(self._store),
            files=len(tree.names),
        )

    def _permissions(self, tree: Tree) -> Permissions:
        hidden = [name for name in tree.names if name not in tree.walked.files]
        found = tree.walked.files | _of_hidden(self._store.top, hidden)
        captured = {name: found[name] for name in tree.names if name in found}
        usual = self._usual(captured, tree.walked)
        odd = {name: bits for name, bits in captured.items() if bits != usual[_kind(bits)]}
        return Permissions(
            usual=usual,
            files={text(name): bits for name, bits in odd.items()},
            folders={text(name): bits for name, bits in tree.walked.folders.items() if bits != usual["40000"]},
        )

    def _usual(self, files: Mapping[bytes, int], walked: Walked) -> dict[str, int]:
        """Return the usual permission bits; what the first capture found most often holds for all later ones."""
        path = os.path.join(self._store.room, b"usual")
        if not os.path.exists(path):
            write_durably(path, msgspec.json.encode(_most_common(files, walked)))
        with open(path, "rb") as stream:
            return msgspec.json.decode(stream.read(), type=dict[str, int])


def root_of(store: Store) -> Root:
    """Return which worktree this is."""
    status = os.stat(store.top)
    return Root(id=store.identity(), path=text(store.top), inode=status.st_ino, device=status.st_dev)


def _kind(bits: int) -> str:
    return "100755" if bits & 0o100 else "100644"


def _most_common(files: Mapping[bytes, int], walked: Walked) -> dict[str, int]:
    counts = {kind: Counter[int]() for kind in USUAL}
    for bits in files.values():
        counts[_kind(bits)][bits] += 1
    counts["40000"].update(walked.folders.values())
    return {kind: max(counts[kind], key=counts[kind].__getitem__, default=bits) for kind, bits in USUAL.items()}


def _of_hidden(top: bytes, names: list[bytes]) -> dict[bytes, int]:
    """Return the permission bits of captured files that lie where the walk does not go; links have none."""
    found = {}
    for name in names:
        path = os.path.join(top, name)
        if os.path.isfile(path) and not os.path.islink(path):
            found[name] = os.lstat(path).st_mode & 0o7777
    return found
