"""Plans of restores: what was asked for and what there is, made into one value; and whether a plan still holds.

Invariant: whatever a plan replaces or deletes is part of the state that its undo checkpoint holds. Nothing in the
worktree is written here.
"""

import secrets
from collections.abc import Sequence

import msgspec

from hub.checkpoint import operations
from hub.checkpoint.index_file import IndexWork
from hub.checkpoint.meta import State
from hub.checkpoint.planning import Draft, Planner
from hub.checkpoint.records import Found, Records, checkpoint_of
from hub.checkpoint.side import Store
from hub.checkpoint.snapshot import Snapshot, Snapshots, root_of
from hub.checkpoint.summary import index_changes, notes
from hub.checkpoint.values import Checkpoint, OnConflict, Plan
from hub.errors import ConflictError, RefusedError

DRAFTS = 5
"""How often a plan is drawn up anew because a path in its way had to be captured first."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """How a restore was asked for. `paths` narrow it to these and what lies below."""

    paths: Sequence[str] | None = None


class Plans:
    """Draws up the plans of one worktree. Its lock is held by the caller."""

    def __init__(self, store: Store, snapshots: Snapshots, records: Records) -> None:
        self._store = store
        self._snapshots = snapshots
        self._records = records

    def target(self, ref: str) -> Found:
        """Return the checkpoint to go to. Raises as `Records.find`, RefusedError other_worktree."""
        found = self._records.find(ref)
        here, there = root_of(self._store), found.state.root
        if here.id != there.id and (here.path, here.inode) != (there.path, there.inode):
            raise RefusedError(f"Checkpoint {ref} is of another worktree: {there.path}.", code="other_worktree")
        return found

    def draft(self, target: Found, wish: Wish) -> tuple[Snapshot, Draft]:
        """Return the present state and the plan for files; what the plan needs captured is captured."""
        forced: set[bytes] = set()
        for _ in range(DRAFTS):
            now = self._snapshots.take(_no_progress, forced)
            draft = Planner(self._store, now, target.state, wish.paths).draft()
            if draft.needed <= forced:
                return now, draft
            forced |= draft.needed
        raise ConflictError("The worktree changes too fast to plan a restore.", code="files_moved", retryable=True)

    def plan(self, target: Found, undo: Checkpoint, now: Snapshot, draft: Draft, wish: Wish) -> Plan:
        """Return the whole plan. Raises RefusedError operation_changed."""
        whole = wish.paths is None
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

    def index_work(self, plan: Plan, on_conflict: OnConflict) -> IndexWork | None:
        """Return what is to be done to the index, None when it stays; only files may have moved since the plan.

        Raises ConflictError: checkpoint_moved, head_moved, and index_moved unless the caller keeps what moved.
        """
        now, target = self._records.find(plan.undo.ref), self._records.find(plan.target.ref)
        if (now.commit, target.commit) != (plan.undo.commit, plan.target.commit):
            raise ConflictError("A checkpoint of this plan is not what it was.", code="checkpoint_moved")
        self._check_head(now.state)
        staged = self._snapshots.index()
        moved = staged.state.digest != now.state.index.digest
        if moved and on_conflict != "keep-mine":
            raise ConflictError("The index has changed since the restore was planned.", code="index_moved")
        if moved or not plan.restores_index:
            return None
        return IndexWork(
            now=now.state.index, target=target.state.index, names=plan.index_names, checksum=staged.checksum
        )

    def _check_head(self, state: State) -> None:
        head = operations.head_of(self._store.user, self._store.git_dir)
        operation = operations.operation_of(self._store.git_dir)
        if (*head, operation) != (state.head, state.branch, state.operation):
            raise ConflictError("HEAD has moved since the restore was planned.", code="head_moved")


def _no_progress(phase: str, done: int, total: int) -> None:
    """Nobody wants to know."""
