"""Sessions and the views of them."""

from typing import Any

import sqlalchemy as sa

from hub.clock import iso
from hub.domain.runs import session_state
from hub.errors import RefusedError
from hub.ids import new_id
from hub.protocol.events import SessionChanged
from hub.protocol.views import SessionView
from hub.store.database import Transaction
from hub.store.rows import insert, missing, one
from hub.store.schema import events, prompts, runs, sessions

TITLE_LENGTH = 60
ACTIVE = ("queued", "running", "waiting")
_ACTIVE_RUN = sa.select(runs.c.id, runs.c.state).where(
    runs.c.session_id == sa.bindparam("session_id"), runs.c.state.in_(ACTIVE)
)

_MINE = (runs.c.session_id == sessions.c.id, runs.c.state.in_(ACTIVE))
_WAITING = sa.select(sa.func.count()).where(prompts.c.session_id == sessions.c.id, prompts.c.state == "pending")
_NEWEST = sa.select(sa.func.coalesce(sa.func.max(events.c.seq), 0)).where(events.c.session_id == sessions.c.id)
_TOLD = sa.select(
    sessions,
    sa.select(runs.c.id).where(*_MINE).scalar_subquery().label("active_id"),
    sa.select(runs.c.state).where(*_MINE).scalar_subquery().label("active_state"),
    _WAITING.scalar_subquery().label("pending"),
    _NEWEST.scalar_subquery().label("last_seq"),
)
"""A session with what its view adds to it, in one statement however many there are."""


def create(tx: Transaction, workspace: str, worktree: str, title: str, forked_from: str | None = None) -> str:
    """Insert a session bound to a workspace and return its id."""
    session_id = new_id("session")
    insert(
        tx,
        sessions,
        id=session_id,
        workspace=workspace,
        worktree=worktree,
        title=title,
        forked_from=forked_from,
        created_at=tx.now,
        updated_at=tx.now,
    )
    tx.emit("session.created", SessionChanged(title=title, workspace=workspace), session_id=session_id)
    return session_id


def title_from(text: str) -> str:
    """Return a title made of the first line of a prompt."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return line if len(line) <= TITLE_LENGTH else line[: TITLE_LENGTH - 1] + "…"


def row(conn: sa.Connection, session_id: str) -> Any:
    """Return the row. Raises NotFoundError with code unknown_session."""
    return one(conn, sessions, "session", session_id)


def usable(conn: sa.Connection, session_id: str) -> Any:
    """Return the row of a session that takes prompts. Raises NotFoundError, or RefusedError when it is archived."""
    found = row(conn, session_id)
    if found.archived_at is not None:
        raise RefusedError(f"Session {session_id} is archived; start a new one.", code="session_archived")
    return found


def active_run(conn: sa.Connection, session_id: str) -> Any:
    """Return id, state and mode of the session's run that is not over, None when there is none."""
    return conn.execute(_ACTIVE_RUN, {"session_id": session_id}).one_or_none()


def view(conn: sa.Connection, session_id: str) -> SessionView:
    """Return what is told of a session. Raises NotFoundError."""
    found = conn.execute(_TOLD.where(sessions.c.id == session_id)).one_or_none()
    if found is None:
        raise missing("session", session_id)
    return _view(found)


def listing(conn: sa.Connection, *, archived: bool, limit: int) -> list[SessionView]:
    """Return sessions, the most recently used first."""
    query = _TOLD.order_by(sessions.c.updated_at.desc(), sessions.c.id.desc()).limit(limit)
    if not archived:
        query = query.where(sessions.c.archived_at.is_(None))
    return [_view(found) for found in conn.execute(query)]


def _view(found: Any) -> SessionView:
    archived = found.archived_at is not None
    return SessionView(
        id=found.id,
        workspace=found.workspace,
        title=found.title,
        state=session_state(archived=archived, run_state=found.active_state, pending=found.pending),
        run_count=found.run_count,
        active_run_id=found.active_id,
        pending_prompts=found.pending,
        last_seq=found.last_seq,
        forked_from=found.forked_from,
        created_at=iso(found.created_at),
        updated_at=iso(found.updated_at),
    )


def rename(tx: Transaction, session_id: str, title: str) -> SessionView:
    """Give a session another title."""
    found = row(tx.conn, session_id)
    tx.conn.execute(sa.update(sessions).where(sessions.c.id == session_id).values(title=title, updated_at=tx.now))
    tx.emit("session.updated", SessionChanged(title=title, workspace=found.workspace), session_id=session_id)
    return view(tx.conn, session_id)


def archive(tx: Transaction, session_id: str) -> SessionView:
    """Put a session aside. Raises RefusedError while a run of it is not over, or prompts wait."""
    found = row(tx.conn, session_id)
    if active_run(tx.conn, session_id) is not None:
        raise RefusedError("A run of this session is not over; cancel it first.", code="run_active")
    if view(tx.conn, session_id).pending_prompts:
        raise RefusedError("Prompts wait in this session; remove them first.", code="prompts_pending")
    tx.conn.execute(sa.update(sessions).where(sessions.c.id == session_id).values(archived_at=tx.now))
    tx.emit("session.archived", SessionChanged(title=found.title, workspace=found.workspace), session_id=session_id)
    return view(tx.conn, session_id)


def live_in(conn: sa.Connection, worktree: str) -> list[str]:
    """Return the ids of the sessions of a worktree that are not archived."""
    query = sa.select(sessions.c.id).where(sessions.c.worktree == worktree, sessions.c.archived_at.is_(None))
    return list(conn.execute(query).scalars())


def counts(conn: sa.Connection) -> tuple[int, int]:
    """Return how many sessions are not archived, and how many runs are not over."""
    open_sessions = sa.select(sa.func.count()).select_from(sessions).where(sessions.c.archived_at.is_(None))
    active_runs = sa.select(sa.func.count()).select_from(runs).where(runs.c.state.in_(ACTIVE))
    return conn.execute(open_sessions).scalar_one(), conn.execute(active_runs).scalar_one()
