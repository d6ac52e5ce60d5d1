"""Approvals and the grants that come of them. The first answer wins, in one guarded UPDATE."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from hub.clock import iso
from hub.domain.states import APPROVAL, TOOL_CALL
from hub.domain.values import Decision
from hub.errors import ConflictError, RefusedError
from hub.ids import new_id
from hub.protocol.events import ApprovalDecided, ApprovalOpened, GrantChanged
from hub.protocol.views import ApprovalView, GrantView
from hub.store.calls import small
from hub.store.database import Transaction
from hub.store.rows import change, insert, move, move_and_read, one
from hub.store.schema import approvals, grants, tool_calls

GRANT_DAYS = 90
"""Days after which an `allow_always` ends."""


class NewApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A question. `targets` is what `allow_always` would remember, `fingerprint` what must still match."""

    call_id: str
    batch_id: str
    targets: tuple[str, ...]
    cwd: str
    reason: str
    preview: str | None
    fingerprint: dict[str, str]
    expires_at: datetime


def open_for(tx: Transaction, new: NewApproval) -> str:
    """Store an open question about a proposed call and return its id."""
    call = one(tx.conn, tool_calls, "tool call", new.call_id)
    approval_id = new_id("approval")
    insert(
        tx,
        approvals,
        id=approval_id,
        session_id=call.session_id,
        run_id=call.run_id,
        state=APPROVAL.initial,
        tool=call.name,
        summary=call.summary,
        arguments=call.arguments,
        arguments_hash=call.arguments_hash,
        created_at=tx.now,
        **msgspec.structs.asdict(new),
    )
    if call.state != "waiting":
        move(tx, tool_calls, TOOL_CALL, call.id, "waiting")
    _announce(tx, one(tx.conn, approvals, "approval", approval_id))
    return approval_id


def _announce(tx: Transaction, found: Any) -> None:
    data = ApprovalOpened(
        approval_id=found.id,
        call_id=found.call_id,
        batch_id=found.batch_id,
        tool=found.tool,
        summary=found.summary,
        arguments=small(found.arguments),
        cwd=found.cwd,
        reason=found.reason,
        preview=found.preview,
        expires_at=iso(found.expires_at),
    )
    tx.emit("approval.opened", data, session_id=found.session_id, run_id=found.run_id)


def answer(tx: Transaction, approval_id: str, decision: Decision, actor: str, message: str) -> ApprovalView:
    """Decide an open question. Raises ConflictError code already_decided, RefusedError code approval_expired."""
    found = one(tx.conn, approvals, "approval", approval_id)
    if found.state == "expired" or (found.state == "open" and found.expires_at <= tx.now):
        raise RefusedError(f"This question expired at {iso(found.expires_at)}; nothing ran.", code="approval_expired")
    if found.state != "open":
        who = f"{found.state} by {found.decided_by}" if found.decided_by else found.state
        raise ConflictError(f"This question is closed already: {who}.", code="already_decided")
    _close(tx, found, "rejected" if decision == "reject" else "allowed", decision, actor, message or None)
    if decision in ("allow_session", "allow_always"):
        _remember(tx, found, decision, actor)
    return view(tx.conn, approval_id)


def close_open(tx: Transaction, call_id: str, state: str, actor: str | None, message: str | None) -> None:
    """Close the open question of a call, if there is one: rejected by a steer, cancelled with its run, expired."""
    query = sa.select(approvals).where(approvals.c.call_id == call_id, approvals.c.state.in_(("open", "suspended")))
    for found in tx.conn.execute(query).all():
        _close(tx, found, state, "reject" if state == "rejected" else None, actor, message)


def suspend(tx: Transaction, approval_id: str, reason: str) -> None:
    """Put an open question aside. Raises IllegalMove."""
    _close(tx, one(tx.conn, approvals, "approval", approval_id), "suspended", None, None, reason)


def reopen(tx: Transaction, approval_id: str) -> None:
    """Ask a question again that was put aside. Raises IllegalMove."""
    values = {"decided_at": None, "message": None}
    _announce(tx, move_and_read(tx, approvals, APPROVAL, approval_id, APPROVAL.initial, **values))


def _close(
    tx: Transaction, found: Any, state: str, decision: str | None, actor: str | None, message: str | None
) -> None:
    move(
        tx,
        approvals,
        APPROVAL,
        found.id,
        state,
        decision=decision,
        decided_by=actor,
        decided_at=tx.now,
        message=message,
    )
    data = ApprovalDecided(
        approval_id=found.id,
        call_id=found.call_id,
        state=state,
        decision=decision,
        decided_by=actor,
        message=message,
    )
    tx.emit("approval.decided", data, session_id=found.session_id, run_id=found.run_id)


def _remember(tx: Transaction, found: Any, decision: Decision, actor: str) -> None:
    session_only = decision == "allow_session"
    for target in found.targets:
        grant_id = new_id("grant")
        insert(
            tx,
            grants,
            id=grant_id,
            actor=actor,
            tool=found.tool,
            target=target,
            scope="session" if session_only else "always",
            session_id=found.session_id if session_only else None,
            workspace=found.cwd,
            approval_id=found.id,
            created_at=tx.now,
            expires_at=None if session_only else tx.now + timedelta(days=GRANT_DAYS),
        )
        scope = "session" if session_only else "always"
        data = GrantChanged(grant_id=grant_id, tool=found.tool, target=target, scope=scope)
        tx.emit("grant.added", data, session_id=found.session_id)


def due(conn: sa.Connection, now: datetime) -> int:
    """Return how many open questions are past their time."""
    query = sa.select(sa.func.count()).where(approvals.c.state == "open", approvals.c.expires_at <= now)
    return conn.execute(query).scalar_one()


def expire_due(tx: Transaction) -> int:
    """Close every question whose time is over; return how many."""
    query = sa.select(approvals).where(approvals.c.state == "open", approvals.c.expires_at <= tx.now)
    due = tx.conn.execute(query).all()
    for found in due:
        _close(tx, found, "expired", None, None, None)
    return len(due)


def newest_of(conn: sa.Connection, call_id: str) -> Any:
    """Return the row of a call's newest question, None when there never was one."""
    query = sa.select(approvals).where(approvals.c.call_id == call_id).order_by(approvals.c.id.desc()).limit(1)
    return conn.execute(query).one_or_none()


def view(conn: sa.Connection, approval_id: str) -> ApprovalView:
    """Return what is told of a question. Raises NotFoundError."""
    return _view(one(conn, approvals, "approval", approval_id))


def listing(conn: sa.Connection, session_id: str | None, *, open_only: bool, limit: int) -> list[ApprovalView]:
    """Return questions, oldest first."""
    query = sa.select(approvals).order_by(approvals.c.created_at, approvals.c.id).limit(limit)
    if session_id is not None:
        query = query.where(approvals.c.session_id == session_id)
    if open_only:
        query = query.where(approvals.c.state == "open")
    return [_view(row) for row in conn.execute(query)]


def open_count(conn: sa.Connection) -> int:
    """Return how many questions are open."""
    return conn.execute(
        sa.select(sa.func.count()).select_from(approvals).where(approvals.c.state == "open")
    ).scalar_one()


def _view(row: Any) -> ApprovalView:
    return ApprovalView(
        id=row.id,
        session_id=row.session_id,
        run_id=row.run_id,
        call_id=row.call_id,
        batch_id=row.batch_id,
        state=row.state,
        tool=row.tool,
        summary=row.summary,
        arguments=row.arguments,
        arguments_hash=row.arguments_hash,
        cwd=row.cwd,
        reason=row.reason,
        preview=row.preview,
        created_at=iso(row.created_at),
        expires_at=iso(row.expires_at),
        decision=row.decision,
        decided_by=row.decided_by,
        decided_at=iso(row.decided_at) if row.decided_at else None,
        message=row.message,
    )


def granted(conn: sa.Connection, *, session_id: str, workspace: str, now: datetime) -> frozenset[tuple[str, str]]:
    """Return the (tool, target) pairs that are remembered as allowed for a session in a directory."""
    query = sa.select(grants.c.tool, grants.c.target).where(
        grants.c.workspace == workspace,
        grants.c.revoked_at.is_(None),
        sa.or_(grants.c.session_id.is_(None), grants.c.session_id == session_id),
        sa.or_(grants.c.expires_at.is_(None), grants.c.expires_at > now),
    )
    return frozenset((row.tool, row.target) for row in conn.execute(query))


def grant_listing(conn: sa.Connection, session_id: str | None) -> list[GrantView]:
    """Return remembered allows that are not revoked, newest first; with a session, those that apply to it."""
    query = sa.select(grants).where(grants.c.revoked_at.is_(None)).order_by(grants.c.id.desc())
    if session_id is not None:
        query = query.where(sa.or_(grants.c.session_id.is_(None), grants.c.session_id == session_id))
    return [_grant_view(row) for row in conn.execute(query)]


def revoke(tx: Transaction, grant_id: str) -> GrantView:
    """End a remembered allow. Raises NotFoundError."""
    return _grant_view(set_revoked(tx, grant_id, tx.now))


def set_revoked(tx: Transaction, grant_id: str, at: datetime | None) -> Any:
    """End a remembered allow, or let it hold again (None); return its row. Raises NotFoundError."""
    change(tx, grants, grant_id, revoked_at=at)
    row = one(tx.conn, grants, "grant", grant_id)
    data = GrantChanged(grant_id=grant_id, tool=row.tool, target=row.target, scope=row.scope)
    tx.emit("grant.added" if at is None else "grant.revoked", data, session_id=row.session_id)
    return row


def _grant_view(row: Any) -> GrantView:
    return GrantView(
        id=row.id,
        actor=row.actor,
        tool=row.tool,
        target=row.target,
        scope=row.scope,
        session_id=row.session_id,
        workspace=row.workspace,
        created_at=iso(row.created_at),
        expires_at=iso(row.expires_at) if row.expires_at else None,
        revoked_at=iso(row.revoked_at) if row.revoked_at else None,
    )
