"""What the model of a session must be told before it goes on, because a restore changed what it believes.

Stored in the restore's own transaction, told with the next model request, and withdrawn when the restore is undone
before anybody was told. Invariant: a notice becomes exactly one message.
"""

import sqlalchemy as sa

from hub.domain.messages import Message, TextPart
from hub.ids import new_id
from hub.store import messages
from hub.store.database import Transaction
from hub.store.rows import change, insert
from hub.store.schema import notices

_UNTOLD = (
    sa.select(notices)
    .where(notices.c.session_id == sa.bindparam("session_id"), notices.c.message_id.is_(None))
    .order_by(notices.c.id)
)


def add(tx: Transaction, session_id: str, restore_id: str, text: str) -> None:
    """Store a notice for the next model request of a session."""
    insert(
        tx,
        notices,
        id=new_id("notice"),
        session_id=session_id,
        restore_id=restore_id,
        text=text,
        created_at=tx.now,
    )


def are_waiting(conn: sa.Connection, session_id: str) -> bool:
    """Return whether the model is owed a notice."""
    return conn.execute(_UNTOLD, {"session_id": session_id}).first() is not None


def take(tx: Transaction, session_id: str, run_id: str) -> list[Message]:
    """Make messages of the notices that wait, in order."""
    taken = []
    for row in tx.conn.execute(_UNTOLD, {"session_id": session_id}).all():
        message = messages.append(tx, session_id, run_id, "user", [TextPart(row.text)])
        change(tx, notices, row.id, message_id=message.id)
        taken.append(message)
    return taken


def withdraw(tx: Transaction, restore_id: str) -> None:
    """Forget what nobody was told yet of a restore that is undone."""
    tx.conn.execute(sa.delete(notices).where(notices.c.restore_id == restore_id, notices.c.message_id.is_(None)))
