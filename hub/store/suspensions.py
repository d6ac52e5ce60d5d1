"""What hangs on runs that a restore puts aside: their open questions, grants, the prompts that wait behind them.

It is suspended in the restore's transaction and no longer proceeds; an undo brings back what is still suspended then.
Invariant: nothing is deleted, and what somebody else has ended meanwhile stays ended.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import sqlalchemy as sa

from hub.clock import iso
from hub.domain.states import APPROVAL, PROMPT, QUESTION, Machine
from hub.protocol.events import (
    TEXT_LIMIT,
    ApprovalDecided,
    ApprovalOpened,
    GrantChanged,
    PromptQueued,
    PromptRemoved,
    QuestionClosed,
    QuestionOpened,
)
from hub.protocol.views import HangingView
from hub.store import prompts as prompt_store
from hub.store import runs as run_store
from hub.store.calls import small
from hub.store.database import Transaction
from hub.store.rows import change, insert, move, one
from hub.store.schema import approvals, grants, prompts, questions, runs, suspensions


def found(conn: sa.Connection, session_id: str, run_ids: Collection[str]) -> list[HangingView]:
    """Return what hangs on runs that would be put aside, in the order in which it is suspended."""
    if not run_ids:
        return []
    mine = list(run_ids)
    asked = sa.select(approvals).where(approvals.c.run_id.in_(mine), approvals.c.state == "open")
    open_questions = sa.select(questions).where(questions.c.run_id.in_(mine), questions.c.state == "open")
    granted = (
        sa.select(grants)
        .join(approvals, approvals.c.id == grants.c.approval_id)
        .where(approvals.c.run_id.in_(mine), grants.c.scope == "session", grants.c.revoked_at.is_(None))
    )
    queued = sa.select(prompts).where(prompts.c.session_id == session_id, prompts.c.state == "pending")
    waiting = sa.select(runs).where(runs.c.id.in_(mine), runs.c.state == "waiting")
    return [
        *(_hanging("approval", row.id, row.summary) for row in conn.execute(asked)),
        *(_hanging("question", row.id, row.question) for row in conn.execute(open_questions)),
        *(_hanging("grant", row.id, f"{row.tool} {row.target}") for row in conn.execute(granted)),
        *(_hanging("prompt", row.id, row.text) for row in conn.execute(queued.order_by(prompts.c.position))),
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
    query = sa.select(suspensions).where(suspensions.c.restore_id == restore_id)
    listed = [HangingView(kind=row.kind, id=row.item_id, text=row.told) for row in conn.execute(query)]
    order = list(_SUSPEND)
    return sorted(
        (item for item in listed if _is_suspended(conn, item)),
        key=lambda item: (-order.index(item.kind), item.id),
    )


def _is_suspended(conn: sa.Connection, item: HangingView) -> bool:
    table = {"approval": approvals, "question": questions, "grant": grants, "prompt": prompts, "run": runs}[item.kind]
    row = one(conn, table, item.kind, item.id)
    if item.kind == "grant":
        return row.revoked_at is not None
    return bool(row.state == ("interrupted" if item.kind == "run" else "suspended"))


def bring_back(tx: Transaction, hanging: Sequence[HangingView], by: str) -> None:
    """Let suspended things proceed again; questions whose time is over meanwhile expire."""
    for item in hanging:
        _BRING_BACK[item.kind](tx, item.id, by)


def _suspend_approval(tx: Transaction, id: str, restore_id: str) -> None:
    row = _moved(tx, approvals, APPROVAL, "approval", id, "suspended")
    data = ApprovalDecided(
        approval_id=id,
        call_id=row.call_id,
        state="suspended",
        decision=None,
        decided_by=None,
        message=f"put aside by restore {restore_id}",
    )
    tx.emit("approval.decided", data, session_id=row.session_id, run_id=row.run_id)


def _resume_approval(tx: Transaction, id: str, by: str) -> None:
    row = _moved(tx, approvals, APPROVAL, "approval", id, "open")
    data = ApprovalOpened(
        approval_id=id,
        call_id=row.call_id,
        batch_id=row.batch_id,
        tool=row.tool,
        summary=row.summary,
        arguments=small(row.arguments),
        cwd=row.cwd,
        reason=row.reason,
        preview=row.preview,
        expires_at=iso(row.expires_at),
    )
    tx.emit("approval.opened", data, session_id=row.session_id, run_id=row.run_id)


def _suspend_question(tx: Transaction, id: str, restore_id: str) -> None:
    row = _moved(tx, questions, QUESTION, "question", id, "suspended")
    data = QuestionClosed(question_id=id, call_id=row.call_id, state="suspended", answer=None, answered_by=None)
    tx.emit("question.closed", data, session_id=row.session_id, run_id=row.run_id)


def _resume_question(tx: Transaction, id: str, by: str) -> None:
    row = _moved(tx, questions, QUESTION, "question", id, "open")
    data = QuestionOpened(
        question_id=id,
        call_id=row.call_id,
        question=row.question,
        options=row.options,
        expires_at=iso(row.expires_at),
    )
    tx.emit("question.opened", data, session_id=row.session_id, run_id=row.run_id)


def _suspend_prompt(tx: Transaction, id: str, restore_id: str) -> None:
    row = _moved(tx, prompts, PROMPT, "prompt", id, "suspended")
    data = PromptRemoved(prompt_id=id, reason=f"put aside by restore {restore_id}")
    tx.emit("prompt.removed", data, session_id=row.session_id)


def _resume_prompt(tx: Transaction, id: str, by: str) -> None:
    row = _moved(tx, prompts, PROMPT, "prompt", id, "pending")
    place = prompt_store.view(tx.conn, id).position
    data = PromptQueued(prompt_id=id, mode=row.mode, position=place, author=row.author, text=row.text[:TEXT_LIMIT])
    tx.emit("prompt.queued", data, session_id=row.session_id)


def _suspend_grant(tx: Transaction, id: str, restore_id: str) -> None:
    _set_grant(tx, id, "grant.revoked", revoked_at=tx.now)


def _resume_grant(tx: Transaction, id: str, by: str) -> None:
    _set_grant(tx, id, "grant.added", revoked_at=None)


def _set_grant(tx: Transaction, id: str, event: str, **values: Any) -> None:
    change(tx, grants, id, **values)
    row = one(tx.conn, grants, "grant", id)
    data = GrantChanged(grant_id=id, tool=row.tool, target=row.target, scope=row.scope)
    tx.emit(event, data, session_id=row.session_id)


def _moved(tx: Transaction, table: sa.Table, machine: Machine, what: str, id: str, state: str) -> Any:
    move(tx, table, machine, id, state)
    return one(tx.conn, table, what, id)


_Act = Callable[[Transaction, str, str], None]
_SUSPEND: dict[str, _Act] = {
    "approval": _suspend_approval,
    "question": _suspend_question,
    "grant": _suspend_grant,
    "prompt": _suspend_prompt,
    "run": run_store.put_aside,
}
_BRING_BACK: dict[str, _Act] = {
    "approval": _resume_approval,
    "question": _resume_question,
    "grant": _resume_grant,
    "prompt": _resume_prompt,
    "run": run_store.resume,
}
