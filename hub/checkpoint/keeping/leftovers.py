"""What killed processes left of ours, what restores put aside, and whose locks are in the way.

Invariant: only what is proven to be ours and of no use is removed: under the worktree's lock nobody else of ours is at
work, so temporary and lock files of our room are stale; what lies where other worktrees work, too, only after ten
minutes; slots only when they hold nothing. What a restore put aside is named and never removed.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator

from hub.checkpoint.keeping.verify import Finding, Kind
from hub.checkpoint.restoring.journal import DONE, PLAN, Transaction, transactions
from hub.checkpoint.restoring.settling import Settler
from hub.checkpoint.stores.side import FOLDER, Store
from hub.checkpoint.values import CheckpointError, show

STALE_S = 600.0
"""Age from which a file that others of ours may be writing is left over."""
_SLOTS = re.compile(rb"\.turnback-[0-9a-f]{16}")
_RESCUE = re.compile(rb"\.turnback-rescue-[0-9a-f]{16}")
_OURS = frozenset({b".gitignore"})
"""What a folder of slots holds beside the user's bytes."""


class Leftovers:
    """Looks through one worktree, whose lock is held. `in_progress` is the restore that its engine has applied."""

    def __init__(self, store: Store, settler: Settler, in_progress: str | None) -> None:
        self._store = store
        self._settler = settler
        self._in_progress = in_progress

    def look(self, *, repair: bool) -> list[Finding]:
        """Return what there is; with `repair`, what can be removed has been."""
        found = [self._transaction(row, repair=repair) for row in transactions(self._store.transactions)]
        found += self._slots(repair=repair)
        found += self._files(repair=repair)
        found += self._locks_of_others()
        return found + list(self._rescued())

    def _transaction(self, transaction: Transaction, *, repair: bool) -> Finding:
        name = os.fsdecode(transaction.folder)
        if transaction.txid == self._in_progress:
            return Finding(kind="unfinished_restore", name=name, text="It is applied and waits to be made final.")
        if not (transaction.has(PLAN) or transaction.has(DONE)):
            return self._settled(transaction, "transaction", "It was prepared and never touched a file.", repair=repair)
        try:
            transaction.read()
        except CheckpointError as error:
            return Finding(kind="journal", name=name, text=f"{error.message} Nothing is done about it without you.")
        if self._settler.waits(transaction):
            text = "It was applied; only the hub that made it knows whether it counts. Start that hub again."
            return Finding(kind="unfinished_restore", name=name, text=text)
        if transaction.has(DONE):
            return self._settled(transaction, "transaction", "It is final; its slots are left over.", repair=repair)
        return self._settled(transaction, "unfinished_restore", "It was begun, and is rolled back.", repair=repair)

    def _settled(self, transaction: Transaction, kind: Kind, text: str, *, repair: bool) -> Finding:
        if repair:
            rescued = self._settler.settle_one(transaction, lambda _: False).rescued
            text += "".join(f" {row.path}: {row.reason}" for row in rescued)
        return Finding(kind=kind, name=os.fsdecode(transaction.folder), text=text, repaired=repair)

    def _slots(self, *, repair: bool) -> Iterator[Finding]:
        """Find folders of slots in the worktree without a transaction: somebody removed our room."""
        known = {b".turnback-" + os.fsencode(row.txid) for row in transactions(self._store.transactions)}
        for name in sorted(os.listdir(self._store.top)):
            path = os.path.join(self._store.top, name)
            if not _SLOTS.fullmatch(name) or name in known or os.path.islink(path) or not os.path.isdir(path):
                continue
            if set(os.listdir(path)) <= _OURS:
                yield _removed(path, "slots", "An empty folder of a restore.", shutil.rmtree, repair=repair)
            else:
                text = "A restore's folder without its journal; look through what it holds, then remove it."
                yield Finding(kind="rescued", name=show(path), text=text)

    def _files(self, *, repair: bool) -> Iterator[Finding]:
        for path in self._stale():
            kind: Kind = "lock_file" if path.endswith(b".lock") else "temporary_file"
            yield _removed(path, kind, "A killed process left it.", os.unlink, repair=repair)

    def _stale(self) -> Iterator[bytes]:
        room, common = self._store.room, self._store.common_dir
        yield from _ending(room, (b".tmp",))
        yield from _below(self._store.side_dir, (b".tmp", b".lock"))
        yield from (path for path in (self._store.index + b".lock",) if os.path.exists(path))
        shared = os.path.join(common, FOLDER)
        if shared != room:
            yield from filter(_is_old, _ending(shared, (b".tmp",)))
        yield from filter(_is_old, _below(os.path.join(common, b"refs", b"turnback"), (b".lock",)))

    def _locks_of_others(self) -> Iterator[Finding]:
        texts = {
            self._store.user_index + b".lock": "The index is locked: a git command is at work, or one was killed. "
            "Restores that change the index wait for it; if no git runs, remove the file.",
            os.path.join(self._store.common_dir, b"packed-refs.lock"): "Refs are locked: a git command is at work, or "
            "one was killed. Checkpoints cannot be deleted meanwhile; if no git runs, remove the file.",
        }
        for path, text in texts.items():
            if os.path.lexists(path):
                yield Finding(kind="index_lock", name=show(path), text=text)

    def _rescued(self) -> Iterator[Finding]:
        folders = [os.path.join(self._store.rescue, name) for name in _names(self._store.rescue)]
        folders += [os.path.join(self._store.top, name) for name in _names(self._store.top) if _RESCUE.fullmatch(name)]
        for folder in folders:
            names = ", ".join(show(name) for name in _names(folder) if name not in _OURS)
            text = f"A restore put this aside for you: {names}. Remove it when you do not need it."
            yield Finding(kind="rescued", name=show(folder), text=text)


def _removed(path: bytes, kind: Kind, text: str, remove: Callable[[bytes], None], *, repair: bool) -> Finding:
    if repair:
        remove(path)
    return Finding(kind=kind, name=show(path), text=text, repaired=repair)


def _names(folder: bytes) -> list[bytes]:
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


def _ending(folder: bytes, endings: tuple[bytes, ...]) -> Iterator[bytes]:
    return (os.path.join(folder, name) for name in _names(folder) if name.endswith(endings))


def _below(folder: bytes, endings: tuple[bytes, ...]) -> Iterator[bytes]:
    for path, _, _ in os.walk(folder):
        yield from _ending(path, endings)


def _is_old(path: bytes) -> bool:
    try:
        return time.time() - os.lstat(path).st_mtime > STALE_S
    except FileNotFoundError:
        return False
