"""The engine of one worktree: capture, compare, plan, apply, finish or abort, recover.

Invariant: every call holds the worktree's lock while it works and first settles what a killed process left: a restore
that never reached its last operation is rolled back, one that passed its commit point is cleaned up. From `apply` to
`finish` or `abort` the lock stays held. Not promised: more than one thread in one engine at a time.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from hub.checkpoint.capture.snapshot import Snapshot, Snapshots
from hub.checkpoint.capture.worktree import Progress
from hub.checkpoint.failures import check_there, told
from hub.checkpoint.folder_lock import FolderLock
from hub.checkpoint.joined.parts import Parts, Seen, joined_digest, no_parts, not_seen
from hub.checkpoint.keeping.calls import Keeping
from hub.checkpoint.restoring.elsewhere import linked_worktree
from hub.checkpoint.restoring.journal import DONE, PLAN, Transaction
from hub.checkpoint.restoring.plans import Plans, Wish
from hub.checkpoint.restoring.restore import Restorer, applied
from hub.checkpoint.restoring.settling import Settler
from hub.checkpoint.stores import trees
from hub.checkpoint.stores.meta import Part, State
from hub.checkpoint.stores.records import Broken, Found, Records, checkpoint_of, describe, told_broken
from hub.checkpoint.stores.shadow import store_for
from hub.checkpoint.stores.side import Store
from hub.checkpoint.stores.writing import Hole, Writer
from hub.checkpoint.values import Applied, Change, Checkpoint, Kept, Mark, OnConflict, Plan, Reach, Recovered
from hub.errors import ConflictError, NotFoundError, UsageError

LOCK_WAIT_S = 5.0
BUDGET_S = 30.0
FIRST_BUDGET_S = 120.0
"""For a capture that reads every file, because there was none before."""


class Engine(Keeping):
    """Checkpoints of one worktree. Synchronous; errors are TurnbackError with a stable code."""

    def __init__(self, store: Store, lock_wait_s: float, owner: str) -> None:
        self.root = Path(os.fsdecode(store.top))
        self.hook: Callable[[str], None] = _no_hook
        self._store = store
        self._owner = owner
        self._wait_s = lock_wait_s
        self._lock: FolderLock | None = None
        self._records = Records(store)
        self._writer = Writer(store, self._records)
        self._snapshots = Snapshots(store)
        self._plans = Plans(store, self._snapshots, self._records)
        self._restorer = Restorer(store, lambda step: self.hook(step))
        self._settler = Settler(store, self._restorer)
        self._open: str | None = None

    @classmethod
    def open(
        cls,
        directory: Path,
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        owner: str = "turnback",
        shadow: Path | None = None,
        always_shadow: bool = False,
    ) -> "Engine":
        """Return the engine of the worktree around a directory. `owner` is told to whom waits for the lock.

        `shadow` is the directory of shadow stores (`<home>/checkpoints`): a folder without git then has its checkpoints
        there, as has every folder with `always_shadow`. Raises UsageError: not_a_directory, not_a_repository,
        protected_directory, foreign_owner, git_missing.
        """
        with told():
            return cls(store_for(directory, shadow, always=always_shadow), lock_wait_s, owner)

    def capture(
        self,
        ref: str,
        *,
        labels: Mapping[str, str],
        budget_s: float = BUDGET_S,
        progress: Progress | None = None,
        include: Sequence[str] = (),
        parts: Parts = no_parts,
    ) -> Checkpoint:
        """Take a checkpoint under `refs/turnback/<ref>`. `progress` is told phase, done, total (0: not known).

        `include` names files, relative to `root`, that are captured even if git ignores them or they are large. `parts`
        captures what belongs to the whole; see `Units`.
        Raises UsageError bad_ref, ConflictError ref_exists, RefusedError workspace_busy, restore_in_progress or
        restore_unfinished, CheckpointError over_budget, disk_full, store_unwritable, checkpoint_failed. A capture that
        fails leaves no ref. The first one of a worktree has at least 120 s.
        """
        with self._working(budget_s):
            self._records.check_free(ref)
            forced = [os.fsencode(path) for path in include]

            def take() -> Snapshot:
                self.hook("capturing")
                return self._snapshots.take(progress or _no_progress, forced)

            snapshot = take()
            return self._record(ref, snapshot, labels, take, self._with(parts, snapshot, {}))

    def list(self, prefix: str = "") -> list[Checkpoint]:
        """Return the checkpoints of the repository whose refs begin with `prefix`, in order of ref."""
        with told():
            return [
                told_broken(found) if isinstance(found, Broken) else checkpoint_of(found)
                for found in self._records.all(prefix)
            ]

    def get(self, ref: str) -> Checkpoint:
        """Return a checkpoint. Raises NotFoundError checkpoint_not_found, CheckpointError checkpoint_incomplete."""
        with told():
            return checkpoint_of(self._records.find(ref))

    def diff(self, old_ref: str, new_ref: str | None, *, parts: Seen = not_seen) -> Sequence[Change]:
        """Return what differs from one checkpoint to another, or to the worktree as it is now. Raises as `get`."""
        with self._compared(old_ref, new_ref, parts) as (old, new):
            return trees.changes(self._store.reader, old, new)

    def patch(
        self,
        old_ref: str,
        new_ref: str | None,
        paths: Sequence[str] = (),
        *,
        parts: Seen = not_seen,
        prefix: str = "",
    ) -> str:
        """Return the same as a unified diff for people, `prefix` before each path. Raises as `get`."""
        with self._compared(old_ref, new_ref, parts) as (old, new):
            return trees.patch(self._store.side, old.worktree, new.worktree, paths, prefix)

    @contextlib.contextmanager
    def _compared(self, old_ref: str, new_ref: str | None, parts: Seen) -> Iterator[tuple[State, State]]:
        """Give two states: of two checkpoints, or of one and the worktree now, which is locked meanwhile."""
        with told() if new_ref is not None else self._working(FIRST_BUDGET_S):
            old = self._records.find(old_ref)
            if new_ref is not None:
                new = self._records.find(new_ref)
                parts(old.meta.parts, new.meta.parts, ())
                yield old.state, new.state
            else:
                now = self._snapshots.take_beside(_no_progress, old.state)
                parts(old.meta.parts, None, now.nested)
                yield old.state, now.state

    def plan(
        self,
        target_ref: str,
        *,
        undo_ref: str,
        labels: Mapping[str, str],
        paths: Sequence[str] | None = None,
        reach: Reach | None = None,
        owner: str | None = None,
        history: Sequence[Mark] = (),
        head: bool = False,
        kept_head_ref: str | None = None,
        parts: Parts = no_parts,
        elsewhere: bool = False,
    ) -> Plan:
        """Capture the present state under `undo_ref` and return the way from it to the target; carry nothing out.

        `paths`, relative to `root`, narrow it to these and what lies below; the index then stays. `reach` session takes
        back only what `owner` alone has changed since, by the `history` of captures in order of time; None chooses tree
        unless others have changed files as well. `head` moves the branch, too; `kept_head_ref` keeps what comes off it.
        `elsewhere`: the target may be of another worktree of this repository.
        Raises as `capture` and `get`, UsageError invalid_params, and RefusedError: other_worktree, operation_changed
        (another merge or rebase than recorded), head_unknown, other_branch, head_not_ancestor, head_needs_tree.
        """
        wish = Wish(paths=paths, reach=reach, owner=owner, history=history, head=head, kept_head_ref=kept_head_ref)
        with self._working(FIRST_BUDGET_S):
            for ref in (undo_ref, kept_head_ref):
                if ref is not None:
                    self._records.check_free(ref)
            target = self._plans.target(target_ref, elsewhere=elsewhere)
            now, draft = self._plans.draft(target, wish)
            held = self._with(parts, now, target.meta.parts)
            undo = self._record(undo_ref, now, labels, lambda: self._plans.draft(target, wish)[0], held)
            if undo.tree_digest != joined_digest(now.digest, held):
                raise ConflictError("The worktree changes too fast to plan a restore.", code="files_moved")
            return self._plans.plan(target, undo, now, draft, wish)

    def open_elsewhere(self, ref: str, directory: Path) -> Path:
        """Make a linked worktree with a checkpoint's files and index, and return its top level.

        Raises as `get`, ConflictError file_exists, RefusedError not_a_directory, head_unknown, no_repository.
        """
        with told():
            return linked_worktree(self._store, self._records.find(ref), directory, lambda made: self._fill(made, ref))

    def _fill(self, directory: Path, ref: str) -> None:
        engine = Engine.open(directory, owner=self._owner)
        empty = f"elsewhere/{secrets.token_hex(8)}"
        plan = engine.plan(ref, undo_ref=empty, labels={}, elsewhere=True)
        engine.apply(plan)
        engine.finish(plan.txid)
        engine.forget([empty])

    def preview(
        self,
        target_ref: str,
        *,
        paths: Sequence[str] | None = None,
        reach: Reach | None = None,
        owner: str | None = None,
        history: Sequence[Mark] = (),
        head: bool = False,
        kept_head_ref: str | None = None,
        parts: Parts = no_parts,
    ) -> Plan:
        """Return the same plan without keeping a checkpoint; it cannot be applied. Raises as `plan`."""
        wish = Wish(paths=paths, reach=reach, owner=owner, history=history, head=head, kept_head_ref=kept_head_ref)
        with self._working(FIRST_BUDGET_S):
            target = self._plans.target(target_ref)
            now, draft = self._plans.draft(target, wish)
            held = self._with(parts, now, target.meta.parts)
            undo = checkpoint_of(Found("", "", describe(now, {}, held)))
            return self._plans.plan(target, undo, now, draft, wish)

    def apply(self, plan: Plan, *, on_conflict: OnConflict = "abort") -> Applied:
        """Carry a plan out; the lock stays held until `finish` or `abort`.

        `on_conflict`: what becomes of a path that changed since the plan was made. `abort` takes everything back and
        raises; `keep-mine` leaves it; `take-checkpoint` restores it and puts the newer content aside.
        Raises FilesMoved, ConflictError index_moved, index_locked, head_moved, CheckpointError restore_failed or
        checkpoint_incomplete, RefusedError other_filesystem: everything is then as before; CheckpointError
        rollback_failed: the next call takes it back.
        """
        if not plan.undo.ref:
            raise UsageError("A preview cannot be applied: plan the restore first.", code="plan_is_preview")
        with self._working(None):
            work = self._plans.index_work(plan, on_conflict)
            outcome = self._restorer.apply(plan, work, on_conflict)
            self._taken().acquire(self._owner)
            self._open = plan.txid
        return applied(plan, work, outcome)

    def finish(self, txid: str) -> tuple[Kept, ...]:
        """Make an applied restore final; return what was put aside. Raises NotFoundError restore_not_found.

        Once it is final, what cannot be cleaned up is left to the next call and no error. Before that it may be called
        again, as `abort` may.
        """
        with self._ending(txid) as transaction:
            return self._restorer.finish(transaction)

    def abort(self, txid: str) -> tuple[Kept, ...]:
        """Roll an applied restore back; return what had to be put aside. Raises NotFoundError restore_not_found,
        ConflictError restore_final when it is final already.
        """
        with self._ending(txid) as transaction:
            if transaction.has(DONE):
                raise ConflictError(f"Restore {txid} is final already.", code="restore_final")
            return self._restorer.roll_back(transaction)

    def recover(self, is_committed: Callable[[str], bool]) -> Sequence[Recovered]:
        """End every restore that was left unfinished, and say how. `is_committed` tells whether an applied one counts.

        Raises RefusedError workspace_busy.
        """
        with self._locked(), self._let_go():
            self._store.prepare()
            return self._settler.recover(is_committed)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with told():
            check_there(self._store.top, self._store.git_dir)
            os.makedirs(self._store.room, mode=0o700, exist_ok=True)
            lock = self._taken()
            with lock.held(self._owner):
                for view in self._store.views():
                    view.inherit = lock.descriptors
                try:
                    yield
                finally:
                    for view in self._store.views():
                        view.inherit, view.deadline = [], None

    def _taken(self) -> FolderLock:
        if self._lock is None:
            self._lock = FolderLock(os.path.join(self._store.room, b"lock"), self._store.top, self._wait_s)
        return self._lock

    @contextlib.contextmanager
    def _working(self, budget_s: float | None) -> Iterator[None]:
        """Hold the lock, settle what was left, give git this much time (None: its own patience)."""
        with self._locked():
            self._store.prepare()
            self._settler.settle(self._open)
            if budget_s is not None:
                first = not os.path.exists(self._store.index)
                give_up = time.monotonic() + (max(budget_s, FIRST_BUDGET_S) if first else budget_s)
                for view in self._store.views():
                    view.deadline = give_up
            yield

    @contextlib.contextmanager
    def _ending(self, txid: str) -> Iterator[Transaction]:
        with self._locked(), self._let_go():
            transaction = self._transaction(txid)
            if "/" in txid or not (transaction.has(PLAN) or transaction.has(DONE)):
                raise NotFoundError(f"There is no restore {txid} in progress.", code="restore_not_found")
            yield transaction

    @contextlib.contextmanager
    def _let_go(self) -> Iterator[None]:
        """In the end, give back the lock of an applied restore, unless it still waits for its caller's word."""
        try:
            yield
        finally:
            if self._open is not None and not self._transaction(self._open).is_undecided:
                self._open = None
                self._taken().release()

    def _transaction(self, txid: str) -> Transaction:
        return Transaction(os.path.join(self._store.transactions, os.fsencode(txid)))

    def ignored(self, paths: Sequence[str]) -> Sequence[str]:
        """Return which of these files, relative to `root`, git ignores and no capture has by itself."""
        with self._working(BUDGET_S):
            return [os.fsdecode(name) for name in self._snapshots.ignored([os.fsencode(path) for path in paths])]

    def settle(self) -> None:
        """End what a killed process left, as every call does. Raises RefusedError as `capture`."""
        with self._working(None):
            return

    def hold(self) -> contextlib.AbstractContextManager[None]:
        """Hold the worktree's lock. Raises RefusedError workspace_busy."""
        return self._locked()

    @property
    def room(self) -> bytes:
        """The folder in which the engine keeps what is its own: in the git directory, or in the shadow store."""
        return self._store.room

    def identity(self) -> str:
        """Return the id of the store, which stays when the folder moves together with it; empty before it is used."""
        return self._store.identity() if os.path.isdir(self._store.room) else ""

    def _with(self, parts: Parts, snapshot: Snapshot, target: Mapping[str, Part]) -> Mapping[str, Part]:
        """Have the parts captured; the time that they take is given to this engine as well."""
        began = time.monotonic()
        found = parts(snapshot.nested, target)
        for view in self._store.views():
            if view.deadline is not None:
                view.deadline += time.monotonic() - began
        return found

    def _record(
        self,
        ref: str,
        snapshot: Snapshot,
        labels: Mapping[str, str],
        again: Callable[[], Snapshot],
        parts: Mapping[str, Part],
    ) -> Checkpoint:
        """Write a checkpoint; when an object was pruned meanwhile, read every file anew and write once more."""
        self.hook("captured")
        try:
            written = self._writer.write(ref, snapshot, labels, self._writer.latest(), parts)
        except Hole:
            self._snapshots.forget_index()
            written = self._writer.write(ref, again(), labels, None, parts)
        self.hook("written")
        return written


def _no_hook(step: str) -> None:
    """Nobody wants to know."""


def _no_progress(phase: str, done: int, total: int) -> None:
    """Nobody wants to know."""
