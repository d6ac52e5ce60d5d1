"""The journal of a restore: what is going to happen, on disk before it happens, so that a new process can end it.

A transaction is a folder `txn/<id>/`: `plan.json` means begun, `applied` that every operation is done, `done.json`
that it counts; a folder without any of them never touched a file. Invariant: each is durable before the next step.
Which operations were carried out is not logged: it is seen by the inodes that stand at the paths.
"""

import contextlib
import os
import shutil
from typing import Literal

import msgspec

from hub.checkpoint.files import directory, sync_directory, write_durably
from hub.checkpoint.restoring.volumes import volume_of
from hub.checkpoint.values import CheckpointError

PRIVATE = 0o700
PLAN, APPLIED, DONE = b"plan.json", b"applied", b"done.json"
Kind = Literal["delete", "rmdir", "displace", "clear", "mkdir", "write", "create", "chmod", "bits"]


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One change of one name. `slot` is the name in the folder of slots; `inode` is that of the staged content.

    Modes are `st_mode` of files, permission bits of directories.
    """

    kind: Kind
    name: bytes
    slot: bytes = b""
    inode: int = 0
    old_mode: int = 0
    old_oid: str = ""
    new_mode: int = 0
    new_oid: str = ""


class IndexOperation(msgspec.Struct, frozen=True, kw_only=True):
    """The change of the index: the inode of the new file, the SHA-256 of the old one (empty when there was none)."""

    inode: int
    old_checksum: str


class HeadOperation(msgspec.Struct, frozen=True, kw_only=True):
    """The move of a branch (`HEAD` when detached): from one commit to another. `kept_ref` keeps the old one."""

    ref: str
    old: str
    new: str
    kept_ref: str | None


class Journal(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `plan.json`. `joint` is the path of the joint journal of a restore of several units, or empty."""

    txid: str
    target_ref: str
    undo_ref: str
    operations: list[Operation]
    index: IndexOperation | None
    head: HeadOperation | None = None
    joint: bytes = b""


class Transaction:
    """One transaction's folder."""

    def __init__(self, folder: bytes) -> None:
        self.folder = folder
        self.txid = os.fsdecode(os.path.basename(folder))

    def path(self, name: bytes) -> bytes:
        return os.path.join(self.folder, name)

    def has(self, name: bytes) -> bool:
        return os.path.exists(self.path(name))

    def begin(self, journal: Journal) -> None:
        """Make the plan durable: from here on recovery rolls back."""
        write_durably(self.path(PLAN), msgspec.json.encode(journal))
        sync_directory(os.path.dirname(self.folder))

    def read(self) -> Journal:
        """Return the journal, before or after the commit point. Raises CheckpointError journal_unreadable."""
        name = DONE if self.has(DONE) else PLAN
        with open(self.path(name), "rb") as stream:
            content = stream.read()
        try:
            return msgspec.json.decode(content, type=Journal)
        except msgspec.DecodeError as error:
            path = os.fsdecode(self.path(name))
            raise CheckpointError(f"The journal {path} cannot be read: {error}", code="journal_unreadable") from error

    def mark_applied(self) -> None:
        """Note that every operation is done: from here on only the caller knows whether it counts."""
        write_durably(self.path(APPLIED), b"")

    def commit(self) -> None:
        """Pass the commit point: from here on recovery goes forward."""
        if self.has(PLAN):
            os.rename(self.path(PLAN), self.path(DONE))
        sync_directory(self.folder)

    @property
    def is_undecided(self) -> bool:
        """Whether every operation is done and only the caller knows whether they count."""
        return self.has(APPLIED) and not self.has(DONE)

    def unmark(self) -> None:
        """Take the note back, so that any process may roll back."""
        if self.has(APPLIED):
            os.unlink(self.path(APPLIED))

    def clean(self, slots: bytes) -> None:
        """Delete the transaction. What is still in its slots is in a checkpoint, or was put aside before."""
        self.unmark()
        if self.has(PLAN):  # rolled back: without a plan nobody rolls back again while the slots vanish
            os.unlink(self.path(PLAN))
            sync_directory(self.folder)
        if os.path.isdir(slots):
            _remove_empty(slots)
            shutil.rmtree(slots)
        shutil.rmtree(self.folder)


def _remove_empty(slots: bytes) -> None:
    """Remove the empty directories among the slots: some cannot be looked into, and need not be."""
    with directory(slots) as folder:
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                os.rmdir(name, dir_fd=folder)


def slots_for(txid: str, top: bytes, transactions: bytes) -> bytes:
    """Return where a transaction's slots are: on the worktree's file system."""
    inside = os.path.join(transactions, os.fsencode(txid), b"slots")
    beside = os.path.join(top, b".turnback-" + os.fsencode(txid))
    for place in (inside, beside):
        if os.path.isdir(place):  # decided when the restore began; mounts may have changed since
            return place
    return inside if volume_of(top) == volume_of(transactions) else beside


def rescue_for(txid: str, top: bytes, rescue: bytes) -> bytes:
    """Return where a transaction puts aside what must not be lost: on the worktree's file system, too."""
    if volume_of(rescue) == volume_of(top):
        return os.path.join(rescue, os.fsencode(txid))
    return os.path.join(top, b".turnback-rescue-" + os.fsencode(txid))


def made_slot(number: int) -> bytes:
    """Return the name of the slot of the directory with this number among those that are made."""
    return b"n%d" % number


def displaced_slot(number: int) -> bytes:
    """Return the name of the slot of the folder with this number among those that stand in the way."""
    return b"k%d" % number


def transactions(folder: bytes) -> list[Transaction]:
    """Return the transactions that are on disk, in order of id."""
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    return [Transaction(os.path.join(folder, name)) for name in names]
