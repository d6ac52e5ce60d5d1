"""The joint journal of a restore of several units: which they are, and whether their restores count together.

It is one file in the room of the first unit: `joint/<id>.json` while nobody has decided, `<id>.done` from the commit
point on, `<id>.void` once all is to be rolled back; no file means that it is over. Each unit's own journal names it.
Invariant: the first unit is changed only after the file is durable, the file is decided only once, and it vanishes only
after the last unit has been settled accordingly: so each unit finds out, alone, which way it goes. Not promised: that
a crashed restore can be ended after one of the folders was moved.
"""

import os
from typing import Literal

import msgspec

from hub.checkpoint.files import sync_directory, write_durably
from hub.checkpoint.restoring.journal import Transaction
from hub.checkpoint.values import CheckpointError

FOLDER = b"joint"
OPEN, DONE, VOID = b".json", b".done", b".void"
Fate = Literal["open", "done", "void"]
_FATES: dict[Fate, bytes] = {"open": OPEN, "done": DONE, "void": VOID}


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """One unit: its path relative to the whole (empty for the first), where it stands, its room, its shadow stores."""

    key: bytes
    top: bytes
    room: bytes
    stores: bytes | None

    def transaction(self, txid: str) -> Transaction:
        """Return the unit's own part of a restore, which may not exist."""
        return Transaction(os.path.join(self.room, b"txn", os.fsencode(txid)))


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says."""

    target_ref: str
    undo_ref: str
    members: list[Member]


class Joint:
    """One joint journal, by the room of the first unit and the restore's id."""

    def __init__(self, room: bytes, txid: str) -> None:
        self.txid = txid
        self.path = os.path.join(room, FOLDER, os.fsencode(txid))

    def begin(self, content: Content) -> None:
        """Make it durable, undecided."""
        os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
        write_durably(self.path + OPEN, msgspec.json.encode(content))

    @property
    def fate(self) -> Fate | None:
        """What was decided; None when the file is gone, so that whatever is left of it never counted."""
        return next((fate for fate, ending in _FATES.items() if os.path.exists(self.path + ending)), None)

    def read(self) -> Content:
        """Return what the file says. Raises CheckpointError journal_unreadable."""
        ending = _FATES[self.fate or "open"]
        try:
            with open(self.path + ending, "rb") as stream:
                return msgspec.json.decode(stream.read(), type=Content)
        except msgspec.DecodeError as error:
            path = os.fsdecode(self.path + ending)
            raise CheckpointError(f"The journal {path} cannot be read: {error}", code="journal_unreadable") from error

    def decide(self, fate: Literal["done", "void"]) -> None:
        """Pass the commit point, or give all up. What was decided before stays."""
        if os.path.exists(self.path + OPEN):
            os.rename(self.path + OPEN, self.path + _FATES[fate])
        sync_directory(os.path.dirname(self.path))

    def end(self) -> None:
        """Delete it: every unit has been settled."""
        for ending in _FATES.values():
            if os.path.exists(self.path + ending):
                os.unlink(self.path + ending)
        sync_directory(os.path.dirname(self.path))


def joints(room: bytes) -> list[Joint]:
    """Return the joint journals in a room, in order of id."""
    try:
        names = os.listdir(os.path.join(room, FOLDER))
    except FileNotFoundError:
        return []
    found = {os.fsdecode(os.path.splitext(name)[0]) for name in names if os.path.splitext(name)[1] in _FATES.values()}
    return [Joint(room, txid) for txid in sorted(found)]


def fate_of(path: bytes) -> Fate | None:
    """Return what the joint journal at a path, as a unit's own journal names it, decided; None when it is over.

    Raises CheckpointError joint_unreachable when the room in which it lay is not there: then nobody knows.
    """
    room = os.path.dirname(os.path.dirname(path))
    if not os.path.isdir(room):
        raise CheckpointError(
            f"A restore of several repositories was begun together with {os.fsdecode(room)}, which is not there.",
            code="joint_unreachable",
            hint="Bring that folder back, and then restart the hub that made the restore.",
            retryable=True,
        )
    return Joint(room, os.fsdecode(os.path.basename(path))).fate
