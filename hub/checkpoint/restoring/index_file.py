"""The user's index brought to a captured state, through git's own lock.

Invariant: the index is replaced as a whole, only while it is still the captured one and nobody else holds its lock.
Not promised: stat data; git reads the files that changed once more at its next call.
"""

import contextlib
import os
import shutil
import time

import msgspec

from hub.checkpoint.capture.staging import checksum_of, intents_of
from hub.checkpoint.restoring.journal import IndexOperation, Transaction
from hub.checkpoint.stores.meta import IndexState
from hub.checkpoint.stores.side import Store
from hub.checkpoint.stores.trees import differences
from hub.errors import ConflictError

NEW, OLD = b"index.new", b"index.old"
LOCK_TRIES, LOCK_POLL_S = 20, 0.05
RACY_NS = 1_000_000_000
"""A modification time before any file's: git then trusts none of the index's stat data."""


class IndexWork(msgspec.Struct, frozen=True, kw_only=True):
    """How the index gets from its present state to the target's: as a whole, or in the entries of some paths only.

    `checksum` is the SHA-256 of the present file.
    """

    now: IndexState
    target: IndexState
    names: tuple[bytes, ...] | None
    checksum: str


def build(store: Store, transaction: Transaction, work: IndexWork) -> IndexOperation:
    """Write the new index into the transaction's folder. Raises CheckpointError checkpoint_incomplete."""
    path = transaction.path(NEW)
    if work.names is not None:
        _replace_entries(store, path, work, frozenset(work.names))
    elif work.target.raw is not None:
        _write_raw(store, path, work.target.raw)
    else:
        _read_tree(store, path, work.target, keep_stat=work.now.raw is None and os.path.exists(store.user_index))
    with open(path, "rb+") as stream:
        os.fsync(stream.fileno())
        inode = os.fstat(stream.fileno()).st_ino
    return IndexOperation(inode=inode, old_checksum=work.checksum)


def _replace_entries(store: Store, path: bytes, work: IndexWork, names: frozenset[bytes]) -> None:
    found = [d for d in differences(store.reader, work.now.tree, work.target.tree) if d.name in names]
    gone = [b"0 %b\t%b\0" % (store.null_oid.encode(), d.name) for d in found]
    back = [b"%o %b\t%b\0" % (d.new_mode, d.new_oid.encode(), d.name) for d in found if d.new_mode]
    if os.path.exists(store.user_index):
        shutil.copy2(store.user_index, path)
    store.user.with_index(path).run("update-index", "-z", "--index-info", stdin=b"".join(gone + back))


def _write_raw(store: Store, path: bytes, blob: str) -> None:
    with contextlib.closing(store.side.objects([blob])) as objects, open(path, "wb") as stream:
        for _, _, chunks in objects:
            stream.writelines(chunks)
    os.utime(path, ns=(RACY_NS, RACY_NS))


def _read_tree(store: Store, path: bytes, target: IndexState, *, keep_stat: bool) -> None:
    view = store.user.with_index(path)
    if keep_stat:
        shutil.copy2(store.user_index, path)  # git tells from its time which stat data to distrust
        view.run("read-tree", "--reset", target.tree)
    else:
        view.run("read-tree", target.tree)


def install(store: Store, transaction: Transaction, operation: IndexOperation) -> None:
    """Put the new index in its place. Raises ConflictError: index_locked, index_moved."""
    lock = store.user_index + b".lock"
    _take_lock(transaction.path(NEW), lock)
    try:
        if checksum_of(store.user_index) != operation.old_checksum:
            raise ConflictError("The index has changed since it was captured.", code="index_moved")
        if operation.old_checksum and not os.path.exists(transaction.path(OLD)):
            os.link(store.user_index, transaction.path(OLD))
    except BaseException:
        os.unlink(lock)
        raise
    os.rename(lock, store.user_index)


def _take_lock(source: bytes, lock: bytes) -> None:
    for _ in range(LOCK_TRIES):
        try:
            return os.link(source, lock)
        except FileExistsError:
            time.sleep(LOCK_POLL_S)
    raise ConflictError(
        "The index is locked by another git command.",
        code="index_locked",
        hint="Wait for it; if no git runs, the file index.lock is left over from one that was killed: remove it.",
    )


def put_back(store: Store, transaction: Transaction, operation: IndexOperation) -> bool:
    """Bring the old index back if the new one is in place; False when somebody has written another since."""
    lock = store.user_index + b".lock"
    if _inode(lock) in (operation.inode, _inode(transaction.path(OLD)) or operation.inode):
        os.unlink(lock)  # ours: taken on the way there or, by a process that was killed, on the way back
    if checksum_of(store.user_index) == operation.old_checksum:
        return True
    if not _is_new(store, transaction, operation):
        return _same_entries(store, transaction.path(OLD))
    if not operation.old_checksum:
        os.unlink(store.user_index)
        return True
    _take_lock(transaction.path(OLD), lock)
    if not _is_new(store, transaction, operation):
        os.unlink(lock)
        return False
    os.rename(lock, store.user_index)
    return True


def _is_new(store: Store, transaction: Transaction, operation: IndexOperation) -> bool:
    """Return whether the new index is in place: the file itself, or one that git has written anew with its entries."""
    return _inode(store.user_index) == operation.inode or _same_entries(store, transaction.path(NEW))


def _same_entries(store: Store, path: bytes) -> bool:
    """Return whether the user's index and another one differ in stat data at most."""
    return _entries(store, store.user_index) == _entries(store, path)


def _entries(store: Store, path: bytes) -> tuple[bytes, list[bytes]]:
    view = store.user.with_index(path)
    return view.run("ls-files", "-z", "--stage", "-v"), intents_of(view, path)


def _inode(path: bytes) -> int | None:
    try:
        return os.lstat(path).st_ino
    except FileNotFoundError:
        return None
