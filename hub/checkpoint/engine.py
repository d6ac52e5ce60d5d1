"""The engine of one worktree: capture, compare, plan, apply, finish or abort, recover.

Invariant: every call holds the worktree's lock while it works and first settles what a killed process left: a restore
that never reached its last operation is rolled back, one that passed its commit point is cleaned up. From `apply` to
`finish` or `abort` the lock stays held. Not promised: more than one thread in one engine at a time.
"""

import contextlib
import errno
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from hub.checkpoint import operations, trees
from hub.checkpoint.journal import APPLIED, DONE, PLAN, Transaction, slots_for, transactions
from hub.checkpoint.locks import WorktreeLock
from hub.checkpoint.meta import State
from hub.checkpoint.places import check_place
from hub.checkpoint.planning import Draft, Planner
from hub.checkpoint.records import Found, Hole, Records, checkpoint_of, describe
from hub.checkpoint.repository import GitFailed
from hub.checkpoint.restore import Restorer
from hub.checkpoint.side import Store
from hub.checkpoint.snapshot import Snapshot, Snapshots, root_of
from hub.checkpoint.summary import index_changes, notes
from hub.checkpoint.values import Applied, Change, Checkpoint, CheckpointError, Kept, Plan, Recovered
from hub.checkpoint.worktree import Progress
from hub.errors import ConflictError, NotFoundError, RefusedError, UsageError

log = logging.getLogger(__name__)

LOCK_WAIT_S = 5.0
BUDGET_S = 30.0
FIRST_BUDGET_S = 120.0
"""For a capture that reads every file, because there was none before."""
DRAFTS = 5
"""How often a plan is drawn up anew because a path in its way had to be captured first."""

_CODES = {
    errno.EACCES: "store_unwritable",
    errno.EPERM: "store_unwritable",
    errno.EROFS: "store_unwritable",
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_full",
}


class Engine:
    """Checkpoints of one worktree. Synchronous; errors are TurnbackError with a stable code."""

    def __init__(self, store: Store, lock_wait_s: float, owner: str) -> None:
        self.root = Path(os.fsdecode(store.top))
        self.hook: Callable[[str], None] = _no_hook
        self._store = store
        self._owner = owner
        self._wait_s = lock_wait_s
        self._lock: WorktreeLock | None = None
        self._records = Records(store)
        self._snapshots = Snapshots(store)
        self._restorer = Restorer(store, lambda step: self.hook(step))
        self._open: str | None = None

    @classmethod
    def open(cls, directory: Path, *, lock_wait_s: float = LOCK_WAIT_S, owner: str = "turnback") -> "Engine":
        """Return the engine of the worktree around a directory. `owner` is told to whom waits for the lock.

        Raises UsageError: not_a_directory, not_a_repository, protected_directory, foreign_owner, git_missing.
        """
        store = Store(directory)
        check_place(Path(os.fsdecode(store.top)))
        return cls(store, lock_wait_s, owner)

    def capture(
        self,
        ref: str,
        *,
        labels: Mapping[str, str],
        budget_s: float = BUDGET_S,
        progress: Progress | None = None,
        include: Sequence[str] = (),
    ) -> Checkpoint:
        """Take a checkpoint under `refs/turnback/<ref>`. `progress` is told phase, done, total (0: not known).

        `include` names files, relative to `root`, that are captured even if git ignores them or they are large.
        Raises UsageError bad_ref, ConflictError ref_exists, RefusedError workspace_busy, restore_in_progress or
        restore_unfinished, CheckpointError over_budget, disk_full, store_unwritable, checkpoint_failed. A capture that
        fails leaves no ref. The first one of a worktree has at least 120 s.
        """
        with self._working(budget_s):
            self._records.check_free(ref)
            forced = [os.fsencode(path) for path in include]

            def take() -> Snapshot:
                return self._snapshots.take(progress or _no_progress, forced)

            return self._record(ref, take(), labels, take)

    def list(self, prefix: str = "") -> list[Checkpoint]:
        """Return the checkpoints of the repository whose refs begin with `prefix`, in order of ref."""
        with _told():
            return [checkpoint_of(found) for found in self._records.all(prefix)]

    def get(self, ref: str) -> Checkpoint:
        """Return a checkpoint. Raises NotFoundError checkpoint_not_found, CheckpointError checkpoint_incomplete."""
        with _told():
            return checkpoint_of(self._records.find(ref))

    def diff(self, old_ref: str, new_ref: str | None) -> Sequence[Change]:
        """Return what differs from one checkpoint to another, or to the worktree as it is now. Raises as `get`."""
        with self._compared(old_ref, new_ref) as (old, new):
            return trees.changes(self._store.side, old, new)

    def patch(self, old_ref: str, new_ref: str | None, paths: Sequence[str] = ()) -> str:
        """Return the same as a unified diff for people. Raises as `get`."""
        with self._compared(old_ref, new_ref) as (old, new):
            return trees.patch(self._store.side, old.worktree, new.worktree, paths)

    @contextlib.contextmanager
    def _compared(self, old_ref: str, new_ref: str | None) -> Iterator[tuple[State, State]]:
        """Give two states: of two checkpoints, or of one and the worktree now, which is locked meanwhile."""
        with _told() if new_ref is not None else self._working(FIRST_BUDGET_S):
            old = self._records.find(old_ref).state
            yield old, self._records.find(new_ref).state if new_ref else self._snapshots.take(_no_progress).state

    def plan(
        self, target_ref: str, *, undo_ref: str, labels: Mapping[str, str], paths: Sequence[str] | None = None
    ) -> Plan:
        """Capture the present state under `undo_ref` and return the way from it to the target; carry nothing out.

        `paths`, relative to `root`, narrow it to these and what lies below; the index then stays. Raises as `capture`
        and `get`, and RefusedError other_worktree, operation_changed (another merge or rebase than the recorded one).
        """
        with self._working(FIRST_BUDGET_S):
            self._records.check_free(undo_ref)
            target = self._target(target_ref)
            now, draft = self._draft(target, paths)
            undo = self._record(undo_ref, now, labels, lambda: self._draft(target, paths)[0])
            if undo.tree_digest != now.digest:
                raise ConflictError("The worktree changes too fast to plan a restore.", code="files_moved")
            return self._plan(target, undo, now, draft, paths)

    def preview(self, target_ref: str, *, paths: Sequence[str] | None = None) -> Plan:
        """Return the same plan without keeping a checkpoint; it cannot be applied. Raises as `plan`."""
        with self._working(FIRST_BUDGET_S):
            target = self._target(target_ref)
            now, draft = self._draft(target, paths)
            undo = checkpoint_of(Found("", "", describe(now, {})))
            return self._plan(target, undo, now, draft, paths)

    def apply(self, plan: Plan, *, on_conflict: Literal["abort"] = "abort") -> Applied:
        """Carry a plan out; the lock stays held until `finish` or `abort`.

        Raises ConflictError files_moved, index_moved, index_locked, CheckpointError restore_failed or
        checkpoint_incomplete, RefusedError other_filesystem: everything is then as before.
        """
        if not plan.undo.ref:
            raise UsageError("A preview cannot be applied: plan the restore first.", code="plan_is_preview")
        with self._working(None):
            now, target = self._records.find(plan.undo.ref), self._records.find(plan.target.ref)
            checksum = self._check_unmoved(plan, now, target)
            self._restorer.apply(plan, now.state, target.state, checksum)
            self._taken().acquire(self._owner)
            self._open = plan.txid
        return Applied(
            txid=plan.txid,
            written=len(plan.writes),
            created=len(plan.creations),
            deleted=len(plan.deletions),
            index_restored=plan.restores_index,
            displaced=tuple(folder.path for folder in plan.displaced),
        )

    def finish(self, txid: str) -> tuple[Kept, ...]:
        """Make an applied restore final; return what was put aside. Raises NotFoundError restore_not_found."""
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
        with self._locked():
            self._store.prepare()
            settled = [self._settle_one(transaction, is_committed) for transaction in self._transactions()]
        if self._open is not None:
            self._open = None
            self._taken().release()
        return settled

    def forget(self, refs: Sequence[str]) -> None:
        """Delete checkpoints' refs, all or none. Their objects stay until git cleans up by itself."""
        with _told():
            self._records.forget(refs)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with _told():
            os.makedirs(self._store.room, mode=0o700, exist_ok=True)
            lock = self._taken()
            with lock.held(self._owner):
                for view in self._store.views():
                    view.inherit = [lock.descriptor]
                try:
                    yield
                finally:
                    for view in self._store.views():
                        view.inherit, view.deadline = [], None

    def _taken(self) -> WorktreeLock:
        if self._lock is None:
            self._lock = WorktreeLock(os.path.join(self._store.room, b"lock"), self._wait_s)
        return self._lock

    @contextlib.contextmanager
    def _working(self, budget_s: float | None) -> Iterator[None]:
        """Hold the lock, settle what was left, give git this much time (None: its own patience)."""
        with self._locked():
            self._store.prepare()
            self._settle()
            if budget_s is not None:
                first = not os.path.exists(self._store.index)
                give_up = time.monotonic() + (max(budget_s, FIRST_BUDGET_S) if first else budget_s)
                for view in self._store.views():
                    view.deadline = give_up
            yield

    @contextlib.contextmanager
    def _ending(self, txid: str) -> Iterator[Transaction]:
        with self._locked():
            transaction = Transaction(os.path.join(self._store.transactions, os.fsencode(txid)))
            if "/" in txid or not (transaction.has(PLAN) or transaction.has(DONE)):
                raise NotFoundError(f"There is no restore {txid} in progress.", code="restore_not_found")
            yield transaction
        if self._open == txid:
            self._open = None
            self._taken().release()

    def _transactions(self) -> Sequence[Transaction]:
        return transactions(self._store.transactions)

    def _settle(self) -> None:
        """End what needs nobody's word. Raises RefusedError for a restore that only its caller can decide on."""
        for transaction in self._transactions():
            if transaction.txid == self._open:
                raise RefusedError("A restore is in progress here.", code="restore_in_progress", retryable=True)
            if transaction.has(APPLIED) and not transaction.has(DONE):
                raise RefusedError(
                    f"Restore {transaction.txid} was applied, and the program that began it ended before it was final.",
                    code="restore_unfinished",
                    hint="Start the hub that made it again: it knows whether the restore counts.",
                )
            settled = self._settle_one(transaction, lambda _: False)
            log.warning("an unfinished restore was settled", extra={"txid": settled.txid, "went": settled.direction})

    def _settle_one(self, transaction: Transaction, is_committed: Callable[[str], bool]) -> Recovered:
        if not (transaction.has(PLAN) or transaction.has(DONE)):
            transaction.clean(slots_for(transaction.txid, self._store.top, self._store.transactions))
            return Recovered(txid=transaction.txid, direction="discarded", target_ref="", undo_ref="", rescued=())
        journal = transaction.read()
        forward = transaction.has(DONE) or (transaction.has(APPLIED) and is_committed(transaction.txid))
        rescued = self._restorer.finish(transaction) if forward else self._restorer.roll_back(transaction)
        return Recovered(
            txid=transaction.txid,
            direction="forward" if forward else "back",
            target_ref=journal.target_ref,
            undo_ref=journal.undo_ref,
            rescued=rescued,
        )

    def _record(
        self, ref: str, snapshot: Snapshot, labels: Mapping[str, str], again: Callable[[], Snapshot]
    ) -> Checkpoint:
        """Write a checkpoint; when an object was pruned meanwhile, read every file anew and write once more."""
        try:
            written = self._records.write(ref, snapshot, labels, self._records.latest())
        except Hole:
            self._snapshots.forget_index()
            written = self._records.write(ref, again(), labels, None)
        self._records.note_latest(ref)
        return written

    def _target(self, ref: str) -> Found:
        found = self._records.find(ref)
        here, there = root_of(self._store), found.state.root
        if here.id != there.id and (here.path, here.inode) != (there.path, there.inode):
            raise RefusedError(f"Checkpoint {ref} is of another worktree: {there.path}.", code="other_worktree")
        return found

    def _draft(self, target: Found, paths: Sequence[str] | None) -> tuple[Snapshot, Draft]:
        """Return the present state and the plan for files; what the plan needs captured is captured."""
        forced: set[bytes] = set()
        for _ in range(DRAFTS):
            now = self._snapshots.take(_no_progress, forced)
            draft = Planner(self._store, now, target.state, paths).draft()
            if draft.needed <= forced:
                return now, draft
            forced |= draft.needed
        raise ConflictError("The worktree changes too fast to plan a restore.", code="files_moved", retryable=True)

    def _plan(self, target: Found, undo: Checkpoint, now: Snapshot, draft: Draft, paths: Sequence[str] | None) -> Plan:
        whole = paths is None
        if whole and target.state.operation != now.state.operation:
            raise RefusedError(
                f"The checkpoint was taken with {operations.name_of(target.state.operation)} in progress, now it is "
                f"{operations.name_of(now.state.operation)}: files and index alone would not fit.",
                code="operation_changed",
                hint="End or abort the operation first, or restore single paths.",
            )
        moved = whole and target.state.index.digest != now.state.index.digest
        ahead = operations.distance(self._store.user, target.state.head, now.state.head)
        return Plan(
            txid=secrets.token_hex(8),
            target=checkpoint_of(target),
            undo=undo,
            writes=tuple(draft.writes),
            creations=tuple(draft.creations),
            deletions=tuple(draft.deletions),
            displaced=tuple(draft.displaced),
            made_dirs=tuple(draft.made_dirs),
            removed_dirs=tuple(draft.removed_dirs),
            changed_dirs=tuple(draft.changed_dirs),
            kept=tuple(draft.kept),
            index_changes=index_changes(self._store.side, now.state, target.state) if moved else (),
            restores_index=moved,
            head_distance=ahead,
            notes=notes(now.state, target.state, ahead, whole=whole),
        )

    def _check_unmoved(self, plan: Plan, now: Found, target: Found) -> str:
        """Return the checksum of the index. Raises ConflictError when anything but files is not as it was planned."""
        if (now.commit, target.commit) != (plan.undo.commit, plan.target.commit):
            raise ConflictError("A checkpoint of this plan is not what it was.", code="checkpoint_moved")
        staged = self._snapshots.index()
        if staged.state.digest != now.state.index.digest:
            raise ConflictError("The index has changed since the restore was planned.", code="index_moved")
        head = operations.head_of(self._store.user, self._store.git_dir)
        if (*head, operations.operation_of(self._store.git_dir)) != (
            now.state.head,
            now.state.branch,
            now.state.operation,
        ):
            raise ConflictError("HEAD has moved since the restore was planned.", code="head_moved")
        return staged.checksum


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Tell what git and the system refuse as errors with a code."""
    try:
        yield
    except GitFailed as failure:
        raise CheckpointError(f"Git could not do its part: {failure}", code="git_failed") from failure
    except OSError as error:
        code = _CODES.get(error.errno or 0, "checkpoint_failed")
        raise CheckpointError(f"The system refused: {error}", code=code) from error


def _no_hook(step: str) -> None:
    """Nobody wants to know."""


def _no_progress(phase: str, done: int, total: int) -> None:
    """Nobody wants to know."""
