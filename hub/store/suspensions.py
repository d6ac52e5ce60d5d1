"""What hangs on runs that a restore puts aside: their open questions, grants, the prompts that wait behind them.

It is suspended in the restore's transaction and no longer proceeds; an undo brings back what is still suspended then.
Invariant: nothing is deleted, and what somebody else has ended meanwhile stays ended.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

import sqlalchemy as sa

from hub.protocol.events import TEXT_LIMIT
from hub.protocol.views import HangingView
from hub.store import approvals, prompts, questions, runs, schema
from hub.store.database import Transaction
from hub.store.rows import insert, one
from hub.store.schema import suspensions

_TABLES = {
    "approval": schema.approvals,
    "question": schema.questions,
    "grant": schema.grants,
    "prompt": schema.prompts,
    "run": schema.runs,
}


def found(conn: sa.Connection, session_id: str, run_ids: Collection[str]) -> list[HangingView]:
    """Return what hangs on runs that would be put aside, in the order in which it is suspended."""
    if not run_ids:
        return []
    mine = list(run_ids)
    asked = sa.select(schema.approvals).where(schema.approvals.c.run_id.in_(mine), schema.approvals.c.state == "open")
    open_questions = sa.select(schema.questions).where(
        schema.questions.c.run_id.in_(mine), schema.questions.c.state == "open"
    )
    granted = (
        sa.select(schema.grants)
        .join(schema.approvals, schema.approvals.c.id == schema.grants.c.approval_id)
        .where(
            schema.approvals.c.run_id.in_(mine),
            schema.grants.c.scope == "session",
            schema.grants.c.revoked_at.is_(None),
        )
    )
    queued = sa.select(schema.prompts).where(
        schema.prompts.c.session_id == session_id, schema.prompts.c.state == "pending"
    )
    waiting = sa.select(schema.runs).where(schema.runs.c.id.in_(mine), schema.runs.c.state == "waiting")
    return [
        *(_hanging("approval", row.id, row.summary) for row in conn.execute(asked)),
        *(_hanging("question", row.id, row.question) for row in conn.execute(open_questions)),
        *(_hanging("grant", row.id, f"{row.tool} {row.target}") for row in conn.execute(granted)),
        *(_hanging("prompt", row.id, row.text) for row in conn.execute(queued.order_by(schema.prompts.c.position))),
        *(_hanging("run", row.id, f"run {row.run_count}, which waits for an answer") for row in conn.execute(waiting)),
    ]


def _hanging(kind: str, id: str, text: str) -> HangingView:
    return HangingView(kind=kind, id=id, text=text[:TEXT_LIMIT])


def put_aside(tx: Transaction, restore_id: str, hanging: Sequence[HangingView]) -> None:
    """Suspend things, and remember which. Raises IllegalMove when one of them has gone on meanwhile."""
    for item in hanging:
        _SUSPEND[item.kind](tx, item.id, restore_id)
        insert(tx, suspensions, restore_id=restore_id, kind=item.kind, item_id=item.id, told=item.text)


def of(conn: sa.Connection, restore_id: str) -> list[HangingView]:
    """Return what a restore has suspended and an undo would bring back, the last suspended first."""
    since = one(conn, schema.restores, "restore", restore_id).committed_at
    query = sa.select(suspensions).where(suspensions.c.restore_id == restore_id)
    listed = [HangingView(kind=row.kind, id=row.item_id, text=row.told) for row in conn.execute(query)]
    order = list(_SUSPEND)
    return sorted(
        (item for item in listed if _is_suspended(conn, item, since)),
        key=lambda item: (-order.index(item.kind), item.id),
    )


def _is_suspended(conn: sa.Connection, item: HangingView, since: datetime) -> bool:
    """Return whether a thing is as its restore left it; a grant bears the moment of the restore, nobody's own."""
    row = one(conn, _TABLES[item.kind], item.kind, item.id)
    if item.kind == "grant":
        return bool(row.revoked_at == since)
    return bool(row.state == ("interrupted" if item.kind == "run" else "suspended"))


def bring_back(tx: Transaction, hanging: Sequence[HangingView], by: str) -> None:
    """Let suspended things proceed again; questions whose time is over meanwhile expire."""
    for item in hanging:
        _BRING_BACK[item.kind](tx, item.id, by)


def _why(restore_id: str) -> str:
    return f"put aside by restore {restore_id}"


_Act = Callable[[Transaction, str, str], None]
_SUSPEND: dict[str, _Act] = {
    "approval": lambda tx, id, restore_id: approvals.suspend(tx, id, _why(restore_id)),
    "question": lambda tx, id, _: questions.suspend(tx, id),
    "grant": lambda tx, id, _: approvals.set_revoked(tx, id, tx.now),
    "prompt": lambda tx, id, restore_id: prompts.suspend(tx, id, _why(restore_id)),
    "run": runs.put_aside,
}
_BRING_BACK: dict[str, _Act] = {
    "approval": lambda tx, id, _: approvals.reopen(tx, id),
    "question": lambda tx, id, _: questions.reopen(tx, id),
    "grant": lambda tx, id, _: approvals.set_revoked(tx, id, None),
    "prompt": lambda tx, id, _: prompts.requeue(tx, id),
    "run": runs.resume,
}
