"""Transcripts: messages in order, each with the one before it, so that a conversation can stand at any earlier point.

The active messages of a session are the chain from its head back to the start. A restore moves the head; messages off
the chain stay, inactive, and come back when the head does.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from hub.domain.messages import Message, Part
from hub.ids import new_id
from hub.protocol.events import TEXT_LIMIT, MessageAdded
from hub.protocol.views import Transcript
from hub.store.database import Transaction
from hub.store.eventlog import last_seq_of
from hub.store.rows import one
from hub.store.schema import messages, runs, sessions

_APPEND = sa.insert(messages).from_select(
    ["id", "session_id", "run_id", "position", "parent_id", "role", "parts", "created_at"],
    sa.select(
        sa.bindparam("message_id"),
        sessions.c.id,
        sa.bindparam("run"),
        sessions.c.message_count + 1,
        sessions.c.head_message_id,
        sa.bindparam("author"),
        sa.bindparam("content", type_=messages.c.parts.type),
        sa.bindparam("at", type_=messages.c.created_at.type),
    ).where(sessions.c.id == sa.bindparam("session")),
)
_NEW_HEAD = (
    sa.update(sessions)
    .where(sessions.c.id == sa.bindparam("session_id"))
    .values(
        message_count=sessions.c.message_count + 1,
        head_message_id=sa.bindparam("message_id"),
        updated_at=sa.bindparam("at"),
    )
    .returning(sessions.c.message_count)
)
_TRANSCRIPT = (
    sa.select(messages)
    .where(
        messages.c.session_id == sa.bindparam("session_id"),
        messages.c.active,
        messages.c.position > sa.bindparam("after"),
    )
    .order_by(messages.c.position)
)
_STANDING = sa.select(messages.c.position, messages.c.active).where(messages.c.id == sa.bindparam("id"))


def append(
    tx: Transaction, session_id: str, run_id: str | None, role: str, parts: Sequence[Part], *, id: str = ""
) -> Message:
    """Add a message at the session's head and return it."""
    message_id = id or new_id("message")
    values = {"session": session_id, "message_id": message_id, "run": run_id, "author": role, "at": tx.now}
    tx.conn.execute(_APPEND, {**values, "content": list(parts)})
    place = tx.conn.execute(_NEW_HEAD, {"session_id": session_id, "message_id": message_id, "at": tx.now}).scalar_one()
    message = Message(role, tuple(parts), message_id, run_id or "")  # type: ignore[arg-type]
    _announce(tx, message, session_id, run_id, place)
    return message


def _announce(tx: Transaction, message: Message, session_id: str, run_id: str | None, position: int) -> None:
    text = message.text
    data = MessageAdded(
        message_id=message.id,
        position=position,
        role=message.role,
        text=text[:TEXT_LIMIT],
        cut=len(text) > TEXT_LIMIT,
    )
    if message.role != "tool":
        tx.emit("message.added", data, session_id=session_id, run_id=run_id)


def transcript(conn: sa.Connection, session_id: str, known: Sequence[Message] = ()) -> list[Message]:
    """Return the active messages, oldest first. `known` is an earlier answer: while it stands it is not read again."""
    if known:
        last = conn.execute(_STANDING, {"id": known[-1].id}).one_or_none()
        if last is not None and last.active:
            rows = conn.execute(_TRANSCRIPT, {"session_id": session_id, "after": last.position})
            return [*known, *(_message(row) for row in rows)]
    return [_message(row) for row in conn.execute(_TRANSCRIPT, {"session_id": session_id, "after": 0})]


def page(
    conn: sa.Connection, session_id: str, after: int, limit: int, *, superseded: bool
) -> tuple[list[Message], int | None]:
    """Return messages after a position, and the cursor of the next page (None at the end)."""
    query = sa.select(messages).where(messages.c.session_id == session_id, messages.c.position > after)
    if not superseded:
        query = query.where(messages.c.active)
    rows = conn.execute(query.order_by(messages.c.position).limit(limit + 1)).all()
    following = rows[limit - 1].position if len(rows) > limit else None
    return [_message(row) for row in rows[:limit]], following


def told(conn: sa.Connection, session_id: str, after: int, limit: int, *, superseded: bool) -> Transcript:
    """Return a page of a session's transcript with the cursor of its events. Raises NotFoundError."""
    one(conn, sessions, "session", session_id)
    found, following = page(conn, session_id, after, limit, superseded=superseded)
    return Transcript(messages=found, next_after=following, last_seq=last_seq_of(conn, session_id))


def head(conn: sa.Connection, session_id: str) -> str | None:
    """Return the id of the newest active message, None in an empty conversation."""
    return conn.execute(sa.select(sessions.c.head_message_id).where(sessions.c.id == session_id)).scalar()


def beyond(conn: sa.Connection, session_id: str, head_id: str | None) -> tuple[int, list[str]]:
    """Return how many active messages, and which runs, would be put aside if the head moved to `head_id`."""
    kept = _chain(conn, session_id, head_id)
    query = sa.select(messages.c.id, messages.c.run_id).where(messages.c.session_id == session_id, messages.c.active)
    gone = [row for row in conn.execute(query.order_by(messages.c.position)) if row.id not in kept]
    return len(gone), list(dict.fromkeys(row.run_id for row in gone if row.run_id))


def copy_chain(tx: Transaction, session_id: str, head_id: str | None, into: str) -> None:
    """Begin a new session with the conversation as it stood at `head_id`; each message keeps its run."""
    kept = _chain(tx.conn, session_id, head_id)
    query = sa.select(messages).where(messages.c.session_id == session_id).order_by(messages.c.position)
    for row in [row for row in tx.conn.execute(query) if row.id in kept]:
        append(tx, into, row.run_id, row.role, _message(row).parts)


def move_head(tx: Transaction, session_id: str, head_id: str | None) -> int:
    """Make `head_id` the newest message of the conversation; return how many messages changed their standing."""
    kept = _chain(tx.conn, session_id, head_id)
    query = sa.select(messages.c.id, messages.c.active).where(messages.c.session_id == session_id)
    changed = [
        {"b_id": row.id, "b_active": row.id in kept} for row in tx.conn.execute(query) if row.active != (row.id in kept)
    ]
    if changed:
        standing = sa.update(messages).where(messages.c.id == sa.bindparam("b_id"))
        tx.conn.execute(standing.values(active=sa.bindparam("b_active")), changed)
    tx.conn.execute(sa.update(sessions).where(sessions.c.id == session_id).values(head_message_id=head_id))
    _mark_runs(tx, session_id)
    return len(changed)


def _mark_runs(tx: Transaction, session_id: str) -> None:
    alive = sa.exists().where(messages.c.run_id == runs.c.id, messages.c.active)
    tx.conn.execute(sa.update(runs).where(runs.c.session_id == session_id).values(superseded=sa.not_(alive)))


def _chain(conn: sa.Connection, session_id: str, head_id: str | None) -> set[str]:
    query = sa.select(messages.c.id, messages.c.parent_id).where(messages.c.session_id == session_id)
    parents = {row.id: row.parent_id for row in conn.execute(query)}
    kept: set[str] = set()
    while head_id is not None:
        kept.add(head_id)
        head_id = parents[head_id]
    return kept


def _message(row: Any) -> Message:
    parts = tuple(msgspec.convert(row.parts, list[Part]))
    return Message(row.role, parts, row.id, row.run_id or "")
