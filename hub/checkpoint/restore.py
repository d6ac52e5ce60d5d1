"""Carries a plan out: staged contents, a durable journal, then single renames; or rolls all of it back.

Invariant: at every instant the journal and the inodes say how to get to the old state or to the new one. Nothing is
renamed before its new content and the journal are durable. Not promised: extended attributes beyond those of a file
that is replaced, hard links, and modification times of what is written.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

from hub.checkpoint import index_file
from hub.checkpoint.files import PERMISSIONS, directory, sync_directory
from hub.checkpoint.journal import IndexOperation, Journal, Operation, Transaction, slots_for
from hub.checkpoint.meta import State
from hub.checkpoint.moves import PRIVATE, Ground, Moved, do, moved_aside, undo, untouched
from hub.checkpoint.renames import exists
from hub.checkpoint.side import Store
from hub.checkpoint.staged_files import stage_file, stage_link
from hub.checkpoint.values import CheckpointError, Folder, Kept, Plan, Step
from hub.errors import ConflictError, RefusedError

Hook = Callable[[str], None]


class Restorer:
    """Applies plans in one worktree. The worktree's lock is held. `hook` is told the name of each step before it."""

    def __init__(self, store: Store, hook: Hook) -> None:
        self._store = store
        self._hook = hook

    def apply(self, plan: Plan, now: State, target: State, index_checksum: str) -> None:
        """Bring worktree and index to the target. Raises ConflictError files_moved; all is then as it was before."""
        transaction = Transaction(os.path.join(self._store.transactions, plan.txid.encode()))
        slots = slots_for(plan.txid, self._store.top, self._store.transactions)
        journal = self._stage(plan, now, target, transaction, slots, index_checksum)
        transaction.begin(journal)
        self._hook("begun")
        try:
            self._run(journal, transaction, slots)
        except (Moved, ConflictError, OSError) as error:
            self.roll_back(transaction)
            raise _conflict(error) from error
        transaction.mark_applied()
        self._hook("applied")

    def _stage(
        self, plan: Plan, now: State, target: State, transaction: Transaction, slots: bytes, index_checksum: str
    ) -> Journal:
        """Write all that is needed beside the worktree. What fails here has touched nothing."""
        os.mkdir(transaction.folder, PRIVATE)
        try:
            return self._staged(plan, now, target, transaction, slots, index_checksum)
        except BaseException:
            transaction.clean(slots)
            raise

    def _staged(
        self, plan: Plan, now: State, target: State, transaction: Transaction, slots: bytes, index_checksum: str
    ) -> Journal:
        self._hook("staging")
        self._make_folder(slots)
        self._check_file_system(plan)
        inodes = self._stage_files(slots, [*plan.writes, *plan.creations])
        index = None
        if plan.restores_index:
            inode = index_file.build(self._store, transaction, now.index, target.index)
            index = IndexOperation(inode=inode, old_checksum=index_checksum)
        sync_directory(slots)
        return Journal(
            txid=plan.txid,
            target_ref=plan.target.ref,
            undo_ref=plan.undo.ref,
            operations=list(operations(plan, inodes)),
            index=index,
        )

    def _make_folder(self, path: bytes) -> None:
        """Make a folder of ours; one in the worktree hides itself from git."""
        os.mkdir(path, PRIVATE)
        if os.path.dirname(path) == self._store.top:
            with open(os.path.join(path, b".gitignore"), "wb") as stream:
                stream.write(b"*\n")

    def _check_file_system(self, plan: Plan) -> None:
        """Raise RefusedError other_filesystem for a path on another mount: nothing can be renamed to there."""
        device = os.stat(self._store.top).st_dev
        folders = {os.path.dirname(step.name) for step in (*plan.writes, *plan.creations, *plan.deletions)}
        for folder in sorted(folders):
            path = os.path.join(self._store.top, folder)
            if os.path.isdir(path) and not os.path.islink(path) and os.lstat(path).st_dev != device:
                raise RefusedError(
                    f"{os.fsdecode(folder)} is on another file system than the worktree.", code="other_filesystem"
                )

    def _stage_files(self, slots: bytes, steps: Sequence[Step]) -> dict[bytes, int]:
        """Write the new contents into the slots; return each one's inode by path."""
        inodes = {}
        objects = self._store.side.objects([step.new_oid or "" for step in steps])
        with directory(self._store.top) as root, directory(slots) as folder:
            for number, (step, (oid, _, chunks)) in enumerate(zip(steps, objects, strict=True)):
                place = folder, slot_name(number)
                if oid != step.new_oid:
                    raise CheckpointError(f"{step.path} is missing in the checkpoint.", code="checkpoint_incomplete")
                if stat.S_ISLNK(step.new_mode or 0):
                    inodes[step.name] = stage_link(place, b"".join(chunks))
                else:
                    inodes[step.name] = stage_file(place, chunks, (step.new_mode or 0) & PERMISSIONS, root, step.name)
        return inodes

    def _run(self, journal: Journal, transaction: Transaction, slots: bytes) -> None:
        with self._ground(slots) as ground:
            for number, operation in enumerate(journal.operations):
                self._hook(f"{operation.kind}:{number}")
                do(ground, operation)
        if journal.index is not None:
            self._hook("index")
            index_file.install(self._store, transaction, journal.index)
            self._hook("index_done")
        self._sync(journal)

    def _sync(self, journal: Journal) -> None:
        """Make the renames durable: a commit point must not be older than what it stands for."""
        folders = {os.path.dirname(operation.name) for operation in journal.operations}
        paths = [os.path.join(self._store.top, folder) for folder in folders]
        for path in paths:
            if os.path.isdir(path):
                sync_directory(path)
        if journal.index is not None:
            sync_directory(self._store.git_dir)

    @contextmanager
    def _ground(self, slots: bytes) -> Iterator[Ground]:
        with directory(self._store.top) as root, directory(slots) as folder:
            yield Ground(root, folder, self._store.algorithm)

    def roll_back(self, transaction: Transaction) -> tuple[Kept, ...]:
        """Bring everything back to before; return what had to be put aside. May be repeated and killed."""
        journal = transaction.read()
        transaction.unmark()
        slots = slots_for(journal.txid, self._store.top, self._store.transactions)
        rescued: list[Kept] = []
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
        self._hook("back:clean")
        transaction.clean(slots)
        return tuple(rescued)

    def finish(self, transaction: Transaction) -> tuple[Kept, ...]:
        """Pass the commit point and clean up; return what was put aside. May be repeated and killed."""
        journal = transaction.read()
        slots = slots_for(journal.txid, self._store.top, self._store.transactions)
        self._hook("finishing")
        transaction.commit()
        self._hook("committed")
        rescued = self._rescue(journal, slots) if os.path.isdir(slots) else ()
        self._hook("cleaning")
        transaction.clean(slots)
        return rescued

    def _rescue(self, journal: Journal, slots: bytes) -> tuple[Kept, ...]:
        """Put aside what stood in the way, and old files into which somebody went on writing."""
        with self._ground(slots) as ground:
            wanted = [o for o in journal.operations if o.kind == "displace" or not untouched(ground, o)]
            return tuple(self._put_aside(ground, journal.txid, o) for o in wanted if exists(ground.slot(o.slot)))

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
        if os.stat(self._store.rescue).st_dev == os.stat(self._store.top).st_dev:
            return os.path.join(self._store.rescue, txid.encode())
        return os.path.join(self._store.top, b".turnback-rescue-" + txid.encode())


def slot_name(number: int) -> bytes:
    """Return the name of the slot of the staged content with this number."""
    return b"s%d" % number


def operations(plan: Plan, inodes: dict[bytes, int]) -> Iterator[Operation]:
    """Yield the operations of a plan in the order in which they are carried out."""
    for number, step in enumerate(plan.deletions):
        yield _step("delete", step, b"d%d" % number, 0)
    for folder in plan.removed_dirs:
        yield Operation(kind="rmdir", name=folder.name, old_mode=folder.old_mode or 0)
    for number, folder in enumerate(plan.displaced):
        yield Operation(kind="displace", name=folder.name, slot=b"k%d" % number)
    for folder in plan.made_dirs:
        yield Operation(kind="mkdir", name=folder.name)
    for number, step in enumerate((*plan.writes, *plan.creations)):
        yield _step("write" if number < len(plan.writes) else "create", step, slot_name(number), inodes[step.name])
    for folder in reversed(plan.made_dirs):
        yield _bits(folder, PRIVATE)
    for folder in plan.changed_dirs:
        yield _bits(folder, folder.old_mode or 0)


def _bits(folder: Folder, old_mode: int) -> Operation:
    return Operation(kind="chmod", name=folder.name, old_mode=old_mode, new_mode=folder.new_mode or 0)


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


def _conflict(error: Exception) -> Exception:
    if isinstance(error, ConflictError):
        return error
    if isinstance(error, Moved):
        return ConflictError(
            f"Nothing was restored: {error}.", code="files_moved", hint="Plan the restore again.", retryable=True
        )
    return CheckpointError(f"Nothing was restored, everything is as before: {error}", code="restore_failed")
