"""Carries a plan out: staged contents, a durable journal, then single renames; or rolls all of it back.

Invariant: at every instant the journal and the inodes say how to get to the old state or to the new one. Nothing is
renamed before its new content and the journal are durable. Once the commit point is passed, or everything is back,
what fails in cleaning up changes nothing: it is logged, and done at the next call. Not promised: extended attributes
beyond those of a file that is replaced, hard links, and modification times of what is written.
"""

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import msgspec

from hub.checkpoint.files import directory, sync_directory
from hub.checkpoint.repository import GitFailed
from hub.checkpoint.restoring import branches, contents, index_file
from hub.checkpoint.restoring.index_file import IndexWork
from hub.checkpoint.restoring.journal import (
    PRIVATE,
    HeadOperation,
    IndexOperation,
    Journal,
    Operation,
    Transaction,
    displaced_slot,
    rescue_for,
    slots_for,
)
from hub.checkpoint.restoring.moves import Ground, Moved, as_captured, do, moved_aside, undo, untouched
from hub.checkpoint.restoring.renames import exists
from hub.checkpoint.stores.side import Store
from hub.checkpoint.values import (
    Applied,
    CheckpointError,
    Conflict,
    FilesMoved,
    Kept,
    OnConflict,
    Plan,
    Step,
    show,
)
from hub.errors import ConflictError

log = logging.getLogger(__name__)

Hook = Callable[[str], None]
MINE = "changed since the restore was planned: left as it is"
BACK = "removed since the restore was planned: the checkpoint's content is there again"
TAKEN = "changed since the restore was planned: the checkpoint's content was taken, the newer one is put aside"


class Outcome(msgspec.Struct):
    """What came of carrying a plan out: operations not done, what had changed, whether the index is the target's."""

    skipped: list[Operation] = msgspec.field(default_factory=list)
    conflicts: list[Conflict] = msgspec.field(default_factory=list)
    index_restored: bool = False

    def add(self, name: str, reason: str, rescue: str | None = None) -> None:
        """Note a path that had changed, once."""
        if name not in {conflict.path for conflict in self.conflicts}:
            self.conflicts.append(Conflict(path=name, reason=reason, rescue=rescue))


class Restorer:
    """Applies plans in one worktree. The worktree's lock is held. `hook` is told the name of each step before it."""

    def __init__(self, store: Store, hook: Hook) -> None:
        self._store = store
        self._hook = hook

    def apply(self, plan: Plan, index: IndexWork | None, on_conflict: OnConflict) -> Outcome:
        """Bring worktree, index and branch to the target. Raises FilesMoved and others; all is then as it was before.

        `index`: how the index gets there, None when it stays.
        """
        transaction = Transaction(os.path.join(self._store.transactions, plan.txid.encode()))
        slots = slots_for(plan.txid, self._store.top, self._store.transactions)
        journal = self._stage(plan, index, on_conflict, transaction, slots)
        try:
            self._hook("begun")
            outcome = self._run(journal, transaction, slots, on_conflict)
            transaction.mark_applied()
        except (Moved, ConflictError, OSError, GitFailed) as error:
            raise self._taken_back(error, journal, transaction, slots) from error
        self._hook("applied")
        return outcome

    def _stage(
        self, plan: Plan, index: IndexWork | None, on_conflict: OnConflict, transaction: Transaction, slots: bytes
    ) -> Journal:
        """Write all that is needed beside the worktree, and the journal. What fails here has touched nothing."""
        os.mkdir(transaction.folder, PRIVATE)
        try:
            self._hook("staging")
            self._make_folder(slots)
            files = [step.name for step in (*plan.writes, *plan.creations, *plan.deletions)]
            folders = [folder.name for folder in (*plan.made_dirs, *plan.removed_dirs)]
            contents.check_file_system(self._store.top, [*files, *folders])
            inodes = contents.stage(self._store, slots, [*plan.writes, *plan.creations])
            inodes |= contents.stage_made(slots, plan)
            cleared = contents.stage_folders(slots, plan) if on_conflict == "take-checkpoint" else []
            entry = index_file.build(self._store, transaction, index) if index else None
            sync_directory(slots)
            journal = _journal(plan, list(operations(plan, inodes, cleared)), entry)
            transaction.begin(journal)
        except BaseException:
            transaction.clean(slots)
            raise
        return journal

    def _make_folder(self, path: bytes) -> None:
        """Make a folder of ours; one in the worktree hides itself from git."""
        os.mkdir(path, PRIVATE)
        if os.path.dirname(path) == self._store.top:
            with open(os.path.join(path, b".gitignore"), "wb") as stream:
                stream.write(b"*\n")

    def _run(self, journal: Journal, transaction: Transaction, slots: bytes, on_conflict: OnConflict) -> Outcome:
        outcome = Outcome()
        with self._ground(slots) as ground:
            for number, operation in enumerate(journal.operations):
                self._hook(f"{operation.kind}:{number}")
                self._do(ground, operation, journal.txid, on_conflict, outcome)
        if journal.index is not None:
            self._hook("index")
            self._install(transaction, journal.index, on_conflict, outcome)
            self._hook("index_done")
        if journal.head is not None:
            self._hook("head")
            branches.move(self._store, journal.head, f"restore of {journal.target_ref}")
            self._hook("head_done")
        self._sync(journal)
        return outcome

    def _do(self, ground: Ground, operation: Operation, txid: str, on_conflict: OnConflict, outcome: Outcome) -> None:
        """Carry out an operation; when its path has changed, do as the caller wants. Raises Moved."""
        try:
            if do(ground, operation, take=on_conflict == "take-checkpoint"):
                return
        except Moved as moved:
            if on_conflict != "keep-mine":
                raise
            outcome.skipped.append(operation)
            outcome.add(moved.path, MINE)
            return
        if operation.slot and exists(ground.slot(operation.slot)) and not untouched(ground, operation):
            rescue = os.fsdecode(os.path.join(self._rescue_folder(txid), operation.slot))
            outcome.add(show(operation.name), TAKEN, rescue)
        elif operation.kind == "write":
            outcome.add(show(operation.name), BACK)

    def _install(
        self, transaction: Transaction, entry: IndexOperation, on_conflict: OnConflict, outcome: Outcome
    ) -> None:
        try:
            index_file.install(self._store, transaction, entry)
        except ConflictError as error:
            if on_conflict != "keep-mine" or error.code != "index_moved":
                raise
            outcome.add("index", MINE)
        else:
            outcome.index_restored = True

    def _sync(self, journal: Journal) -> None:
        """Make the renames durable: a commit point must not be older than what it stands for."""
        folders = {os.path.dirname(operation.name) for operation in journal.operations}
        paths = [os.path.join(self._store.top, folder) for folder in folders]
        if journal.index is not None:
            paths.append(self._store.git_dir)
        for path in paths:
            if os.path.isdir(path):
                sync_directory(path)

    @contextmanager
    def _ground(self, slots: bytes) -> Iterator[Ground]:
        with directory(self._store.top) as root, directory(slots) as folder:
            yield Ground(root, folder, self._store.algorithm)

    def _taken_back(self, error: Exception, journal: Journal, transaction: Transaction, slots: bytes) -> Exception:
        """Roll back after a failure; return what is told. Raises CheckpointError rollback_failed."""
        try:
            self._back(journal, transaction, slots)
        except (OSError, GitFailed) as failure:
            raise CheckpointError(
                f"The restore failed ({error}), and could not be taken back yet ({failure}): the next call on this "
                "worktree takes it back; until then some files are as in the checkpoint.",
                code="rollback_failed",
                retryable=True,
            ) from failure
        if isinstance(error, Moved):
            error = FilesMoved(self._all_moved(journal, slots, error.path))
        self._tidy(transaction, slots)
        if isinstance(error, ConflictError):
            return error
        return CheckpointError(f"Nothing was restored, everything is as before: {error}", code="restore_failed")

    def _all_moved(self, journal: Journal, slots: bytes, first: str) -> list[str]:
        with self._ground(slots) as ground:
            moved = {show(o.name) for o in journal.operations if not as_captured(ground, o)}
        return sorted(moved | {first})

    def roll_back(self, transaction: Transaction) -> tuple[Kept, ...]:
        """Bring everything back to before; return what had to be put aside. May be repeated and killed."""
        journal = transaction.read()
        slots = slots_for(journal.txid, self._store.top, self._store.transactions)
        rescued = self._back(journal, transaction, slots)
        self._tidy(transaction, slots, "back:clean")
        return tuple(rescued)

    def _back(self, journal: Journal, transaction: Transaction, slots: bytes) -> list[Kept]:
        transaction.unmark()
        rescued: list[Kept] = []
        if journal.head is not None:
            self._hook("back:head")
            if not branches.move_back(self._store, journal.head, f"rollback of {journal.target_ref}"):
                rescued.append(Kept(path="HEAD", reason="the branch has been moved since: left where it is"))
        if journal.index is not None:
            self._hook("back:index")
            if not index_file.put_back(self._store, transaction, journal.index):
                rescued.append(Kept(path="index", reason="another git command has written it since: left as it is"))
        with self._ground(slots) as ground:
            for number, operation in reversed(list(enumerate(journal.operations))):
                self._hook(f"back:{operation.kind}:{number}")
                if not undo(ground, operation):
                    rescued.append(self._put_aside(ground, journal.txid, operation))
        self._sync(journal)
        return rescued

    def finish(self, transaction: Transaction) -> tuple[Kept, ...]:
        """Pass the commit point and clean up; return what was put aside. May be repeated and killed."""
        journal = transaction.read()
        slots = slots_for(journal.txid, self._store.top, self._store.transactions)
        self._hook("finishing")
        transaction.commit()
        rescued: list[Kept] = []
        try:
            self._hook("committed")
            if os.path.isdir(slots):
                rescued.extend(self._rescue(journal, slots))
        except (OSError, GitFailed, CheckpointError) as error:  # git is asked what the store has
            _log_leftover(transaction, error)
            return tuple(rescued)
        self._tidy(transaction, slots, "cleaning")
        return tuple(rescued)

    def discard(self, transaction: Transaction) -> None:
        """Clean up after a restore that never began."""
        self._tidy(transaction, slots_for(transaction.txid, self._store.top, self._store.transactions))

    def _tidy(self, transaction: Transaction, slots: bytes, step: str = "cleaning") -> None:
        """Delete what is not needed any more; what cannot be deleted now is left to the next call."""
        try:
            self._hook(step)
            transaction.clean(slots)
        except OSError as error:
            _log_leftover(transaction, error)

    def _rescue(self, journal: Journal, slots: bytes) -> Iterator[Kept]:
        """Put aside what stood in the way, old files into which somebody went on writing, and what no store has."""
        lost = self._store.reader.missing({operation.old_oid for operation in journal.operations if operation.old_oid})
        with self._ground(slots) as ground:
            for operation in journal.operations:
                there = operation.slot and exists(ground.slot(operation.slot))
                if there and (operation.old_oid in lost or not untouched(ground, operation)):
                    yield self._put_aside(ground, journal.txid, operation)

    def _put_aside(self, ground: Ground, txid: str, operation: Operation) -> Kept:
        """Move a slot's content to where nothing is cleaned up."""
        folder = self._rescue_folder(txid)
        if not os.path.isdir(folder):
            self._make_folder(folder)
        with directory(folder) as target:
            if exists(ground.slot(operation.slot)):
                os.rename(operation.slot, operation.slot, src_dir_fd=ground.slots, dst_dir_fd=target)
        return moved_aside(operation, os.fsdecode(os.path.join(folder, operation.slot)))

    def _rescue_folder(self, txid: str) -> bytes:
        return rescue_for(txid, self._store.top, self._store.rescue)


def applied(plan: Plan, index: IndexWork | None, outcome: Outcome) -> Applied:
    """Return what is told of a restore that was carried out."""
    skipped = Counter(operation.kind for operation in outcome.skipped)
    if plan.restores_index and index is None:
        outcome.add("index", MINE)
    return Applied(
        txid=plan.txid,
        written=len(plan.writes) - skipped["write"],
        created=len(plan.creations) - skipped["create"],
        deleted=len(plan.deletions) - skipped["delete"],
        index_restored=outcome.index_restored,
        displaced=tuple(folder.path for folder in plan.displaced),
        conflicts=tuple(outcome.conflicts),
        head_moved=plan.head is not None,
    )


def _journal(plan: Plan, steps: list[Operation], index: IndexOperation | None) -> Journal:
    head = None
    if plan.head is not None:
        move = plan.head
        head = HeadOperation(ref=move.ref, old=move.old, new=move.new, kept_ref=move.kept_ref)
    return Journal(
        txid=plan.txid,
        target_ref=plan.target.ref,
        undo_ref=plan.undo.ref,
        operations=steps,
        index=index,
        head=head,
        joint=plan.joint,
    )


def operations(plan: Plan, inodes: dict[bytes, int], cleared: Sequence[Operation] = ()) -> Iterator[Operation]:
    """Yield the operations of a plan in the order in which they are carried out.

    `inodes` are those of the staged contents; `cleared` see to the directories that should be there already.
    """
    for number, step in enumerate(plan.deletions):
        yield _step("delete", step, b"d%d" % number, 0)
    for number, folder in enumerate(plan.removed_dirs):
        yield Operation(kind="rmdir", name=folder.name, slot=b"r%d" % number, old_mode=folder.old_mode or 0)
    for number, folder in enumerate(plan.displaced):
        yield Operation(kind="displace", name=folder.name, slot=displaced_slot(number))
    yield from cleared
    for number, folder in enumerate(plan.made_dirs):
        yield Operation(kind="mkdir", name=folder.name, slot=b"m%d" % number, inode=inodes[folder.name])
    for number, step in enumerate((*plan.writes, *plan.creations)):
        kind: Literal["write", "create"] = "write" if number < len(plan.writes) else "create"
        yield _step(kind, step, contents.slot_name(number), inodes[step.name])
    for folder in reversed(plan.made_dirs):
        inode = inodes[folder.name]
        yield Operation(kind="bits", name=folder.name, inode=inode, old_mode=PRIVATE, new_mode=folder.new_mode or 0)
    for folder in plan.changed_dirs:
        yield Operation(kind="chmod", name=folder.name, old_mode=folder.old_mode or 0, new_mode=folder.new_mode or 0)


def _step(kind: Literal["delete", "write", "create"], step: Step, slot: bytes, inode: int) -> Operation:
    return Operation(
        kind=kind,
        name=step.name,
        slot=slot,
        inode=inode,
        old_mode=step.old_mode or 0,
        old_oid=step.old_oid or "",
        new_mode=step.new_mode or 0,
        new_oid=step.new_oid or "",
    )


def _log_leftover(transaction: Transaction, error: Exception) -> None:
    log.warning(
        "a restore has ended, and what it left could not be cleaned up yet",
        extra={"txid": transaction.txid, "error": str(error)},
    )
