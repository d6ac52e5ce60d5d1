"""Questions of an agent to a person; like approvals, but the answer is words and allows nothing."""

from datetime import datetime
from typing import Any

import sqlalchemy as sa

from hub.clock import iso
from hub.domain.states import QUESTION, TOOL_CALL
from hub.errors import ConflictError
from hub.ids import new_id
from hub.protocol.events import QuestionClosed, QuestionOpened
from hub.protocol.views import QuestionView
from hub.store.database import Transaction
from hub.store.rows import insert, move, move_and_read, one
from hub.store.schema import questions, tool_calls


def open_for(tx: Transaction, call_id: str, question: str, options: list[str], expires_at: datetime) -> str:
    """Store an open question for a proposed call and return its id."""
    call = one(tx.conn, tool_calls, "tool call", call_id)
    question_id = new_id("question")
    insert(
        tx,
        questions,
        id=question_id,
        session_id=call.session_id,
        run_id=call.run_id,
        call_id=call_id,
        state=QUESTION.initial,
        question=question,
        options=options,
        created_at=tx.now,
        expires_at=expires_at,
    )
    move(tx, tool_calls, TOOL_CALL, call_id, "waiting")
    _announce(tx, one(tx.conn, questions, "question", question_id))
    return question_id


def _announce(tx: Transaction, found: Any) -> None:
    data = QuestionOpened(
        question_id=found.id,
        call_id=found.call_id,
        question=found.question,
        options=found.options,
        expires_at=iso(found.expires_at),
    )
    tx.emit("question.opened", data, session_id=found.session_id, run_id=found.run_id)


def suspend(tx: Transaction, question_id: str) -> None:
    """Put an open question aside. Raises IllegalMove."""
    _close(tx, one(tx.conn, questions, "question", question_id), "suspended", None, None)


def reopen(tx: Transaction, question_id: str) -> None:
    """Ask a question again that was put aside. Raises IllegalMove."""
    _announce(tx, move_and_read(tx, questions, QUESTION, question_id, QUESTION.initial, answered_at=None))


def answer(tx: Transaction, question_id: str, text: str, actor: str) -> QuestionView:
    """Answer an open question. Raises ConflictError with code already_decided."""
    found = one(tx.conn, questions, "question", question_id)
    if found.state != "open":
        raise ConflictError(f"This question is {found.state} already.", code="already_decided")
    _close(tx, found, "answered", text, actor)
    return _view(one(tx.conn, questions, "question", question_id))


def close_open(tx: Transaction, call_id: str, state: str, text: str | None, actor: str | None) -> None:
    """Close the open question of a call, if there is one: answered by a steer, cancelled, expired."""
    query = sa.select(questions).where(questions.c.call_id == call_id, questions.c.state.in_(("open", "suspended")))
    for found in tx.conn.execute(query).all():
        _close(tx, found, state, text, actor)


def _close(tx: Transaction, found: Any, state: str, text: str | None, actor: str | None) -> None:
    move(tx, questions, QUESTION, found.id, state, answer=text, answered_by=actor, answered_at=tx.now)
    data = QuestionClosed(question_id=found.id, call_id=found.call_id, state=state, answer=text, answered_by=actor)
    tx.emit("question.closed", data, session_id=found.session_id, run_id=found.run_id)


def due(conn: sa.Connection, now: datetime) -> int:
    """Return how many open questions are past their time."""
    query = sa.select(sa.func.count()).where(questions.c.state == "open", questions.c.expires_at <= now)
    return conn.execute(query).scalar_one()


def expire_due(tx: Transaction) -> int:
    """Close every question whose time is over; return how many."""
    query = sa.select(questions).where(questions.c.state == "open", questions.c.expires_at <= tx.now)
    due = tx.conn.execute(query).all()
    for found in due:
        _close(tx, found, "expired", None, None)
    return len(due)


def of_call(conn: sa.Connection, call_id: str) -> Any:
    """Return the row of a call's question, None when there is none."""
    query = sa.select(questions).where(questions.c.call_id == call_id).order_by(questions.c.id.desc()).limit(1)
    return conn.execute(query).one_or_none()


def listing(conn: sa.Connection, session_id: str | None, *, open_only: bool, limit: int) -> list[QuestionView]:
    """Return questions, oldest first."""
    query = sa.select(questions).order_by(questions.c.created_at, questions.c.id).limit(limit)
    if session_id is not None:
        query = query.where(questions.c.session_id == session_id)
    if open_only:
        query = query.where(questions.c.state == "open")
    return [_view(row) for row in conn.execute(query)]


def _view(row: Any) -> QuestionView:
    return QuestionView(
        id=row.id,
        session_id=row.session_id,
        run_id=row.run_id,
        call_id=row.call_id,
        state=row.state,
        question=row.question,
        options=row.options,
        created_at=iso(row.created_at),
        expires_at=iso(row.expires_at),
        answer=row.answer,
        answered_by=row.answered_by,
    )
