"""Tool calls: proposed with their ruling, executed once and only as allowed, settled with exactly one result."""

from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from hub.domain.messages import Message, ToolResultPart
from hub.domain.states import TOOL_CALL
from hub.domain.values import Verdict
from hub.errors import RefusedError
from hub.protocol.events import TEXT_LIMIT, CallEnded, CallProposed, CallStarted
from hub.store import messages
from hub.store.database import Transaction
from hub.store.rows import insert, move, one
from hub.store.runs import Hold, fence
from hub.store.schema import approvals, runs, tool_calls

ARGUMENTS_LIMIT = 8_192
"""Bytes of arguments that an event carries."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """A call with its ruling. `failure` settles it at once, with that text."""

    call_id: str
    message_id: str
    ordinal: int
    name: str
    effect: str
    summary: str
    arguments: dict[str, Any]
    arguments_hash: str
    verdict: Verdict
    source: str
    reason: str
    failure: str | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What a call came to."""

    state: str
    text: str
    display: str | None = None
    paths: tuple[str, ...] = ()


def propose(tx: Transaction, hold: Hold, batch_id: str, proposal: Proposal) -> None:
    """Store a call and its ruling."""
    insert(
        tx,
        tool_calls,
        id=proposal.call_id,
        session_id=hold.session_id,
        run_id=hold.run_id,
        message_id=proposal.message_id,
        ordinal=proposal.ordinal,
        batch_id=batch_id,
        state=TOOL_CALL.initial,
        name=proposal.name,
        effect=proposal.effect,
        summary=proposal.summary,
        arguments=proposal.arguments,
        arguments_hash=proposal.arguments_hash,
        verdict=proposal.verdict,
        source=proposal.source,
        reason=proposal.reason,
        paths=[],
        created_at=tx.now,
    )
    data = CallProposed(
        call_id=proposal.call_id,
        name=proposal.name,
        summary=proposal.summary,
        arguments=small(proposal.arguments),
        verdict=proposal.verdict,
        source=proposal.source,
        reason=proposal.reason,
    )
    tx.emit("tool_call.proposed", data, session_id=hold.session_id, run_id=hold.run_id)


def small(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments when an event can carry them, else None."""
    return arguments if len(msgspec.json.encode(arguments)) <= ARGUMENTS_LIMIT else None


def known(conn: sa.Connection, message_id: str) -> dict[str, Any]:
    """Return the rows of an answer's calls by id."""
    query = sa.select(tool_calls).where(tool_calls.c.message_id == message_id)
    return {row.id: row for row in conn.execute(query.order_by(tool_calls.c.ordinal))}


def row(conn: sa.Connection, call_id: str) -> Any:
    """Return the row. Raises NotFoundError."""
    return one(conn, tool_calls, "tool call", call_id)


def begin(tx: Transaction, hold: Hold, call_id: str, executed_hash: str) -> None:
    """Let a call execute. Raises RefusedError with code not_allowed unless a stored allow names exactly this hash."""
    fence(tx, hold)
    found = row(tx.conn, call_id)
    if found.arguments_hash != executed_hash or not _allowed(tx.conn, found):
        raise RefusedError(f"There is no stored allow for these arguments of {found.name}.", code="not_allowed")
    move(tx, tool_calls, TOOL_CALL, call_id, "executing", executed_hash=executed_hash, started_at=tx.now)
    data = CallStarted(call_id=call_id, name=found.name, summary=found.summary)
    tx.emit("tool_call.started", data, session_id=hold.session_id, run_id=hold.run_id)


def _allowed(conn: sa.Connection, call: Any) -> bool:
    newest = sa.select(approvals).where(approvals.c.call_id == call.id).order_by(approvals.c.id.desc()).limit(1)
    approval = conn.execute(newest).one_or_none()
    if approval is None:
        return bool(call.verdict == "allow")
    return bool(approval.state == "allowed" and approval.arguments_hash == call.arguments_hash)


def settle(tx: Transaction, hold: Hold, call_id: str, result: Result) -> Message:
    """Store what a call came to, and the message that tells the model. Once only."""
    fence(tx, hold)
    return conclude(tx, row(tx.conn, call_id), result)


def conclude(tx: Transaction, found: Any, result: Result) -> Message:
    """The same without a holder: for start-up recovery and for what nobody holds."""
    move(
        tx,
        tool_calls,
        TOOL_CALL,
        found.id,
        result.state,
        ended_at=tx.now,
        result=result.text,
        display=result.display,
        paths=list(result.paths),
    )
    data = CallEnded(
        call_id=found.id,
        name=found.name,
        state=result.state,
        text=result.text[:TEXT_LIMIT],
        display=result.display[:TEXT_LIMIT] if result.display else None,
        paths=list(result.paths),
    )
    tx.emit("tool_call.ended", data, session_id=found.session_id, run_id=found.run_id)
    part = ToolResultPart(found.id, found.name, result.state, result.text)
    return messages.append(tx, found.session_id, found.run_id, "tool", [part])


def executing(conn: sa.Connection) -> list[Any]:
    """Return the rows of calls whose end nobody has seen, in the order they began."""
    query = sa.select(tool_calls).where(tool_calls.c.state == "executing").order_by(tool_calls.c.started_at)
    return list(conn.execute(query).all())


def unsettled(conn: sa.Connection, run_id: str) -> list[Any]:
    """Return the rows of a run's calls that have no result yet, in call order."""
    query = sa.select(tool_calls).where(tool_calls.c.run_id == run_id, tool_calls.c.state.in_(TOOL_CALL.live))
    return list(conn.execute(query.order_by(tool_calls.c.created_at, tool_calls.c.ordinal)).all())


def wrote(conn: sa.Connection, run_id: str) -> bool:
    """Return whether a call that may write has begun in this run."""
    query = sa.select(sa.func.count()).where(
        tool_calls.c.run_id == run_id,
        tool_calls.c.effect.in_(("workspace", "external")),
        tool_calls.c.started_at.is_not(None),
    )
    return conn.execute(query).scalar_one() > 0


def paths_of(conn: sa.Connection, run_id: str) -> tuple[str, ...]:
    """Return the files that a run's tools say they changed, sorted; what commands changed is not among them."""
    rows = conn.execute(sa.select(tool_calls.c.paths).where(tool_calls.c.run_id == run_id)).scalars()
    return tuple(sorted({path for paths in rows for path in paths}))


def effects_since(conn: sa.Connection, worktree: str, since: datetime) -> list[Any]:
    """Return the rows of calls that reached outside a worktree since a moment, whoever's run it was, in order."""
    query = (
        sa.select(tool_calls)
        .join(runs, runs.c.id == tool_calls.c.run_id)
        .where(runs.c.worktree == worktree, tool_calls.c.effect == "external", tool_calls.c.started_at >= since)
        .order_by(tool_calls.c.started_at)
    )
    return list(conn.execute(query).all())
