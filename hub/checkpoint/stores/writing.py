"""Checkpoints written: objects, then the ref, then the proof that every object is there.

Invariant: a ref is left only to a complete checkpoint: its objects were found in the store after the ref had been
written, so that no clean-up of git can have taken one. What an earlier checkpoint has is there as long as its ref is,
and that is verified when the new one's is there: names are never used twice. Not promised: that an object's content is
sound; `verify` looks into that.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping

import msgspec

from hub.checkpoint.capture.private import PrivateIndex
from hub.checkpoint.capture.snapshot import Snapshot
from hub.checkpoint.files import write_plainly
from hub.checkpoint.joined.parts import joined_digest
from hub.checkpoint.repository import IDENTITY, GitFailed
from hub.checkpoint.stores.ledger import Again, Ledgers
from hub.checkpoint.stores.meta import Meta, Part, State, encode
from hub.checkpoint.stores.objects import Object, commit_of, made, tree_of
from hub.checkpoint.stores.records import NO_PARTS, PREFIX, Found, Records, checkpoint_of, describe, now
from hub.checkpoint.stores.ref_files import RefFiles
from hub.checkpoint.stores.side import Store
from hub.checkpoint.values import Checkpoint, CheckpointError
from hub.errors import ConflictError, NotFoundError

MESSAGE = "turnback checkpoint"
WHO = f"{IDENTITY} <{IDENTITY}@localhost>"


class Hole(CheckpointError):
    """An object of a new checkpoint is missing or cannot be written: somebody prunes the store at the same time."""

    default_code = "checkpoint_incomplete"


class Writer:
    """Writes the checkpoints of one worktree. Its lock is held by the caller."""

    def __init__(self, store: Store, records: Records) -> None:
        self._store = store
        self._records = records
        self._index = PrivateIndex(store)
        self._ref_files = RefFiles(store.common_dir, store.room)
        self._ledgers = Ledgers(store.common_dir)
        self._latest_path = os.path.join(store.room, b"latest")
        self._last: Found | None = None
        self._recent: list[str] = []

    def latest(self) -> Found | None:
        """Return the checkpoint that was written last in this worktree, None when it is gone."""
        try:
            with open(self._latest_path, "rb") as stream:
                ref = stream.read().decode()
            if self._last is None or self._last.ref != ref or self._records.loose(ref) != self._last.commit:
                self._last = self._records.find(ref)
        except (FileNotFoundError, UnicodeDecodeError, NotFoundError, CheckpointError):
            return None
        return self._last

    def write(
        self,
        ref: str,
        snapshot: Snapshot,
        labels: Mapping[str, str],
        latest: Found | None,
        parts: Mapping[str, Part] = NO_PARTS,
    ) -> Checkpoint:
        """Make a snapshot a checkpoint; an unchanged state gets the commit of `latest`. Raises Hole, ConflictError."""
        if latest is not None:
            self._check_recent()
        if latest is not None and latest.meta.digest == joined_digest(snapshot.digest, parts):
            return self._write_again(ref, snapshot, labels, latest, parts)
        meta = describe(snapshot, labels, parts)
        objects = self._objects(meta)
        self._store_objects(objects)
        commit = objects[-1].oid
        since = self._create(ref, commit, latest)
        with self._proven_or_gone(ref, commit):
            self._prove(commit, snapshot, [one.oid for one in objects], since)
        self._store.incoming.release()
        return self._noted(Found(ref, commit, meta))

    def _check_recent(self) -> None:
        """Find what the checkpoint before has brought. Raises Hole: git had begun to prune before its ref was there."""
        recent, self._recent = self._recent, []
        if recent and self._store.reader.missing(recent):
            raise Hole("Objects of the checkpoint before were pruned when it had just been taken.")
        self._recent = recent

    def _write_again(
        self, ref: str, snapshot: Snapshot, labels: Mapping[str, str], latest: Found, parts: Mapping[str, Part]
    ) -> Checkpoint:
        self._store.incoming.settle()  # what was pruned and read anew
        if self._create(ref, latest.commit, latest) is None:
            with self._proven_or_gone(ref, latest.commit):
                self._prove_all(latest.commit, snapshot.state.head)
        self._store.incoming.release()
        at = now()
        again = msgspec.structs.replace(latest.meta, labels=dict(labels), created_at=at, bytes=0, parts=dict(parts))
        self._ledgers.again.append([Again(ref, at)], durably=False)
        return self._noted(Found(ref, latest.commit, again), unchanged_since=latest.ref)

    def _noted(self, found: Found, unchanged_since: str | None = None) -> Checkpoint:
        """Remember which checkpoint was written last; without that the next one is only slower."""
        write_plainly(self._latest_path, found.ref.encode())
        self._last = found
        return checkpoint_of(found, unchanged_since=unchanged_since)

    def _objects(self, meta: Meta) -> list[Object]:
        """Return the objects that a checkpoint has for itself; the last one is the commit."""
        state, algorithm = meta.state, self._store.algorithm
        blob = made("blob", encode(meta), algorithm)
        rows = [("40000", "worktree", state.worktree), ("40000", "index", state.index.tree)]
        rows += [("40000", f"c{stage}", tree) for stage, tree in state.index.stages.items()]
        rows += [("100644", "index.raw", state.index.raw)] if state.index.raw else []
        tree = tree_of([*rows, ("100644", "meta.json", blob.oid)], algorithm)
        parents = [state.head] if state.head else []
        return [blob, tree, commit_of(tree.oid, parents, WHO, int(time.time()), MESSAGE, algorithm)]

    def _store_objects(self, objects: list[Object]) -> None:
        """Bring the new objects into the store, the capture's and these."""
        self._store.incoming.put(objects)
        self._store.incoming.settle()

    def _create(self, ref: str, commit: str, latest: Found | None) -> Found | None:
        """Write the ref; return the earlier checkpoint if its ref stood as it was when that happened."""
        if self._store.has_ref_files() and self._ref_files.create(ref, commit):
            return latest if latest is not None and self._records.stands(latest) else None
        return self._create_by_git(ref, commit, latest)

    def _create_by_git(self, ref: str, commit: str, latest: Found | None) -> Found | None:
        line = f"create {PREFIX}{ref} {commit}\n"
        if latest is not None:
            try:
                self._update(f"verify {PREFIX}{latest.ref} {latest.commit}\n{line}")
            except GitFailed:
                latest = None
            else:
                return latest
        try:
            self._update(line)
        except GitFailed as failure:
            if self._records.commit(ref) is not None:
                raise ConflictError(f"There is a checkpoint {ref} already.", code="ref_exists") from failure
            raise CheckpointError(f"The checkpoint's ref could not be written: {failure}") from failure
        return None

    def _update(self, lines: str) -> None:
        self._store.user.run("update-ref", "--no-deref", "--stdin", stdin=lines.encode())

    @contextlib.contextmanager
    def _proven_or_gone(self, ref: str, commit: str) -> Iterator[None]:
        """Delete the ref if its objects cannot be proven, whatever the reason: a ref stands for a whole checkpoint."""
        try:
            yield
        except BaseException:
            git = self._store.user.with_index(self._store.user_index)
            git.deadline = None
            git.run("update-ref", "--no-deref", "-d", PREFIX + ref, commit)
            raise

    def _prove(self, commit: str, snapshot: Snapshot, own: list[str], since: Found | None) -> None:
        """Find every object of a checkpoint that the earlier one does not have. Raises Hole."""
        if since is not None and snapshot.state.index.stages == since.state.index.stages:
            try:
                fresh = [*own, *self._fresh(snapshot, since.state)]
            except GitFailed:  # the earlier one is damaged: nothing can be told from it
                return self._prove_all(commit, snapshot.state.head)
            self._recent = fresh
            elsewhere = self._store.reader.lacking(fresh)
            if len(self._store.user.sizes(elsewhere)) == len(elsewhere):
                return None
        return self._prove_all(commit, snapshot.state.head, since.commit if since else None)

    def _fresh(self, snapshot: Snapshot, since: State) -> list[str]:
        """Return the objects that a state has and an earlier one may lack."""
        state, tree = snapshot.state, snapshot.tree
        written = tree.written
        if tree.base != since.worktree:
            written = self._index.difference(since.worktree, state.worktree)
        fresh = [*written.objects, *self._index.difference(since.index.tree, state.index.tree).objects]
        return fresh + [
            oid for oid in (state.index.raw, state.head) if oid and oid not in (since.index.raw, since.head)
        ]

    def _prove_all(self, commit: str, *known: str | None) -> None:
        """Find every object of a checkpoint that the known commits do not have. Raises Hole."""
        without = [f"^{oid}" for oid in known if oid]
        try:
            self._store.user.run("rev-list", "--objects", "--quiet", "--missing=allow-promisor", commit, *without, "--")
        except GitFailed as failure:
            raise Hole(f"The checkpoint lacks an object: {failure}") from failure
