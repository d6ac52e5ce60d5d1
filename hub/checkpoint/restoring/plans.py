"""Plans of restores: what was asked for and what there is, made into one value; and whether a plan still holds.

Invariant: whatever a plan replaces or deletes is part of the state that its undo checkpoint holds. Nothing in the
worktree is written here. Not promised: that a plan still holds later; carrying it out finds that out.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from hub.checkpoint.capture import operations
from hub.checkpoint.capture.snapshot import Snapshot, Snapshots, root_of
from hub.checkpoint.repository import GitFailed
from hub.checkpoint.restoring.authors import Author, choose_reach, is_only
from hub.checkpoint.restoring.branches import plan_move
from hub.checkpoint.restoring.history import authors_since
from hub.checkpoint.restoring.index_file import IndexWork
from hub.checkpoint.restoring.journal import displaced_slot, rescue_for
from hub.checkpoint.restoring.planning import ASIDE, Draft, Planner, Scope, not_captured_then
from hub.checkpoint.restoring.summary import Unsaved, notes, plan_index, with_sizes
from hub.checkpoint.stores.meta import State
from hub.checkpoint.stores.records import Found, Records, checkpoint_of
from hub.checkpoint.stores.side import Store
from hub.checkpoint.stores.trees import Difference, compare
from hub.checkpoint.values import (
    INCOMPLETE,
    Checkpoint,
    CheckpointError,
    HeadMove,
    Kept,
    Mark,
    OnConflict,
    Plan,
    Reach,
)
from hub.errors import ConflictError, RefusedError, UsageError

DRAFTS = 5
"""How often a plan is drawn up anew because a path in its way had to be captured first."""


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """How a restore was asked for. `paths` narrow it to these and what lies below.

    `history` are the captures of the worktree in order of time; with `head` the branch moves, too, and `kept_head_ref`
    is the ref that keeps what comes off it.
    """

    paths: Sequence[str] | None = None
    reach: Reach | None = None
    owner: str | None = None
    history: Sequence[Mark] = ()
    head: bool = False
    kept_head_ref: str | None = None

    def check(self) -> None:
        """Raise UsageError invalid_params for what does not go together."""
        if self.reach == "session" and self.owner is None:
            raise UsageError("A restore with reach session needs to know whose changes it takes back.")
        if self.head and (self.paths is not None or self.reach == "session"):
            raise UsageError("The branch moves only together with the whole tree: leave --paths or --reach out.")

    @property
    def names(self) -> tuple[bytes, ...] | None:
        """The wanted paths as bytes."""
        return None if self.paths is None else tuple(os.fsencode(path).rstrip(b"/") for path in self.paths)


class Plans:
    """Draws up the plans of one worktree. Its lock is held by the caller."""

    def __init__(self, store: Store, snapshots: Snapshots, records: Records) -> None:
        self._store = store
        self._snapshots = snapshots
        self._records = records
        self._last: tuple[str, State, State] | None = None  # id, present state and target of the last plan

    def target(self, ref: str, *, elsewhere: bool = False) -> Found:
        """Return the checkpoint to go to. Raises as `Records.find`, RefusedError other_worktree unless `elsewhere`."""
        found = self._records.find(ref)
        if elsewhere:
            return found
        here, there = root_of(self._store), found.state.root
        if here.id != there.id and (here.path, here.inode) != (there.path, there.inode):
            raise RefusedError(f"Checkpoint {ref} is of another worktree: {there.path}.", code="other_worktree")
        return found

    def draft(self, target: Found, wish: Wish) -> tuple[Snapshot, Draft]:
        """Return the present state and the plan for files; what the plan needs captured is captured.

        Raises UsageError for a wish that contradicts itself, CheckpointError checkpoint_incomplete, RefusedError
        operation_changed, head_needs_tree, and as `plan_move`.
        """
        wish.check()
        forced, lost = set[bytes](), ""
        for _ in range(DRAFTS):
            now = self._snapshots.take(_no_progress, forced)
            if wish.paths is None:
                _check_operation(now.state, target.state)
            try:
                with _whole(target):
                    draft = self._drawn_up(target, now, wish)
            except Unsaved as unsaved:
                self._snapshots.forget_index()  # so that every file is read, and written into the store, anew
                lost = str(unsaved)
                continue
            if draft.needed <= forced:
                return now, draft
            forced |= draft.needed
        if lost:
            raise CheckpointError(
                f"Nothing was restored: the present content of {lost} does not stay in the repository's store.",
                code="checkpoint_incomplete",
                hint="Another program prunes the repository; try again when it has ended.",
                retryable=True,
            )
        raise ConflictError("The worktree changes too fast to plan a restore.", code="files_moved", retryable=True)

    def _drawn_up(self, target: Found, now: Snapshot, wish: Wish) -> Draft:
        reader = self._store.reader
        found = compare(reader, now.state, target.state)
        draft = Planner(self._store, now, target.state, self._scope(target, now, wish, found)).draft(found)
        lists = with_sizes(reader, draft.writes, draft.creations, draft.deletions)
        draft.writes, draft.creations, draft.deletions = lists
        if wish.head:
            draft.head = plan_move(self._store.user, now.state, target.state, wish.kept_head_ref)
        names = frozenset[bytes]() if wish.paths is not None else None if draft.reach == "tree" else draft.names
        draft.index = plan_index(reader, now.state.index, target.state.index, names)
        return draft

    def _scope(self, target: Found, now: Snapshot, wish: Wish, found: Sequence[Difference]) -> Scope:
        scope = Scope(paths=wish.names, owner=wish.owner)
        authors = self._authors(target, now, wish, [d for d in found if scope.covers(d.name)])
        stays = not_captured_then(target.state)
        counting = [author for name, author in authors.items() if not stays(name)]
        reach = choose_reach(wish.reach, wish.owner, counting)
        if wish.head and reach == "session":
            raise RefusedError(
                "Others have changed files since: the branch moves only together with the whole tree.",
                code="head_needs_tree",
                hint="With --reach tree their changes are taken back as well; what is there now is saved first.",
            )
        mine = frozenset(name for name, author in authors.items() if is_only(author, wish.owner))
        return Scope(paths=scope.paths, reach=reach, owner=wish.owner, mine=mine, authors=authors)

    def _authors(
        self, target: Found, now: Snapshot, wish: Wish, wanted: Sequence[Difference]
    ) -> Mapping[bytes, Author]:
        if wish.owner is None and not wish.history:
            return {}
        bits = any((d.old_mode, d.old_oid) == (d.new_mode, d.new_oid) for d in wanted)
        names = {d.name for d in wanted}
        return authors_since(self._store, target, now.state, wish.history, names, bits=bits)

    def plan(self, target: Found, undo: Checkpoint, now: Snapshot, draft: Draft, wish: Wish) -> Plan:
        """Return the whole plan."""
        ahead = self._ahead(now.state, target.state, draft.head)
        told = notes(now.state, target.state, ahead, draft, whole=wish.paths is None)
        txid = secrets.token_hex(8)
        self._last = txid, now.state, target.state
        return Plan(
            txid=txid,
            target=checkpoint_of(target),
            undo=undo,
            writes=tuple(draft.writes),
            creations=tuple(draft.creations),
            deletions=tuple(draft.deletions),
            displaced=tuple(draft.displaced),
            made_dirs=tuple(draft.made_dirs),
            removed_dirs=tuple(draft.removed_dirs),
            changed_dirs=tuple(draft.changed_dirs),
            kept=tuple(draft.kept) if not undo.ref else self._with_places(draft, txid),
            index_changes=draft.index.changes,
            restores_index=draft.index.restores,
            head_distance=ahead,
            notes=tuple(told),
            reach=draft.reach,
            index_names=draft.index.names,
            head=draft.head,
        )

    def _with_places(self, draft: Draft, txid: str) -> tuple[Kept, ...]:
        """Return what is kept; of what is moved aside the plan tells where to."""
        folder = rescue_for(txid, self._store.top, self._store.rescue)
        places = {one.path: os.path.join(folder, displaced_slot(n)) for n, one in enumerate(draft.displaced)}
        return tuple(
            msgspec.structs.replace(row, reason=f"{ASIDE}, to {os.fsdecode(places[row.path])}")
            if row.path in places and row.reason == ASIDE
            else row
            for row in draft.kept
        )

    def _ahead(self, now: State, target: State, head: HeadMove | None) -> int:
        if head is not None:
            return 0 if head.forward else head.commits
        return operations.distance(self._store.user, target.head, now.head)

    def index_work(self, plan: Plan, on_conflict: OnConflict) -> IndexWork | None:
        """Return what is to be done to the index, None when it stays; only files may have moved since the plan.

        Raises ConflictError: checkpoint_moved, head_moved, and index_moved unless the caller keeps what moved.
        """
        now, target = self._states(plan)
        self._check_head(now)
        staged = self._snapshots.index()
        moved = staged.state.digest != now.index.digest
        if moved and on_conflict != "keep-mine":
            raise ConflictError("The index has changed since the restore was planned.", code="index_moved")
        if moved or not plan.restores_index:
            return None
        return IndexWork(now=now.index, target=target.index, names=plan.index_names, checksum=staged.checksum)

    def _states(self, plan: Plan) -> tuple[State, State]:
        """Return the state that a plan starts from and its target's: remembered, if their refs are as they were."""
        both = (plan.undo, plan.target)
        if self._last and self._last[0] == plan.txid and all(self._records.loose(c.ref) == c.commit for c in both):
            return self._last[1:]
        now, target = (self._records.find(checkpoint.ref) for checkpoint in both)
        if (now.commit, target.commit) != (plan.undo.commit, plan.target.commit):
            raise ConflictError("A checkpoint of this plan is not what it was.", code="checkpoint_moved")
        return now.state, target.state

    def _check_head(self, state: State) -> None:
        head = operations.head_of(self._store.user, self._store.git_dir, self._store.common_dir)
        operation = operations.operation_of(self._store.git_dir)
        if (*head, operation) != (state.head, state.branch, state.operation):
            raise ConflictError("HEAD has moved since the restore was planned.", code="head_moved")


def _check_operation(now: State, target: State) -> None:
    if target.operation != now.operation:
        raise RefusedError(
            f"The checkpoint was taken with {operations.name_of(target.operation)} in progress, now it is "
            f"{operations.name_of(now.operation)}: files and index alone would not fit.",
            code="operation_changed",
            hint="End or abort the operation first, or restore single paths.",
        )


@contextlib.contextmanager
def _whole(target: Found) -> Iterator[None]:
    """Tell a git that cannot read the target as CheckpointError checkpoint_incomplete."""
    try:
        yield
    except GitFailed as failure:
        raise CheckpointError(
            f"Checkpoint {target.ref} is incomplete, nothing was touched: {failure}",
            code="checkpoint_incomplete",
            hint=INCOMPLETE,
        ) from failure


def _no_progress(phase: str, done: int, total: int) -> None:
    """Nobody wants to know."""
