"""Runs: made and claimed in one transaction, written only by their holder, ended once.

The fence: every write of a holder names its boot id and generation; when the run has passed on, it changes nothing.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import sqlalchemy as sa

from hub.clock import iso
from hub.domain.messages import TextPart
from hub.domain.runs import RunSpec, RunUsage, spec_from
from hub.domain.states import RUN
from hub.errors import ConflictError
from hub.ids import new_id
from hub.protocol.events import RunCancelling, RunContinued, RunEnded, RunQueued, RunStarted, RunWaiting
from hub.protocol.views import RunView, Usage
from hub.store import deliveries, messages, prompts, sessions
from hub.store.database import Transaction
from hub.store.prompts import Pending
from hub.store.rows import change, insert, move, move_and_read, one
from hub.store.schema import runs
from hub.store.schema import sessions as session_table

_NEXT_COUNT = (
    sa.update(session_table)
    .where(session_table.c.id == sa.bindparam("row_id"))
    .values(run_count=session_table.c.run_count + 1)
    .returning(session_table.c.run_count, session_table.c.title)
)
_COUNT_ANSWER = (
    sa.update(runs)
    .where(runs.c.id == sa.bindparam("run_id"))
    .values(
        turns=runs.c.turns + 1,
        crashes=0,
        tool_calls=runs.c.tool_calls + sa.bindparam("calls"),
    )
)
_QUEUED = sa.select(runs).where(runs.c.state == "queued").order_by(runs.c.created_at)


class Hold(msgspec.Struct, frozen=True):
    """The right to write a run: who holds it and in which generation."""

    run_id: str
    session_id: str
    holder: str
    generation: int


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended. `no_checkpoint` is given when nothing was noted of that before."""

    state: str
    stop_reason: str
    error: str | None = None
    text: str = ""
    files_changed: tuple[str, ...] = ()
    no_checkpoint: str | None = None


def start(tx: Transaction, run_id: str, prompt: Pending, spec: RunSpec, holder: str) -> None:
    """Make a run of a pending prompt, held in generation 1. Raises IllegalMove when the prompt is not pending."""
    count, title = tx.conn.execute(_NEXT_COUNT, {"row_id": prompt.session_id}).one()
    if not title:
        sessions.rename(tx, prompt.session_id, sessions.title_from(prompt.text))
    insert(
        tx,
        runs,
        id=run_id,
        session_id=prompt.session_id,
        prompt_id=prompt.id,
        worktree=spec.worktree,
        run_count=count,
        state=RUN.check(RUN.initial, "running"),
        holder=holder,
        generation=1,
        spec=spec,
        open_message_id=new_id("message"),
        usage=RunUsage(),
        cost=0.0,
        files_changed=[],
        created_at=tx.now,
        started_at=tx.now,
    )
    prompts.take(tx, prompt.id, prompt.session_id, run_id, as_steer=False)
    tx.emit(
        "run.started",
        RunStarted(
            run_count=count, prompt_id=prompt.id, model=spec.model, agent_mode=spec.agent_mode, preset=spec.preset
        ),
        session_id=prompt.session_id,
        run_id=run_id,
    )
    messages.append(tx, prompt.session_id, run_id, "user", [TextPart(prompt.text)])


def fence(tx: Transaction, hold: Hold) -> Any:
    """Return the row of a run that is still held. Raises ConflictError with code lease_lost."""
    row = one(tx.conn, runs, "run", hold.run_id)
    if row.holder != hold.holder or row.generation != hold.generation or row.state not in ("running", "waiting"):
        raise ConflictError(f"Run {hold.run_id} has passed on; this holder may write nothing.", code="lease_lost")
    return row


def spec_of(row: Any) -> RunSpec:
    """Return the frozen spec of a row."""
    return spec_from(row.spec)


def usage_of(row: Any) -> RunUsage:
    """Return the tokens that a row has counted so far."""
    return msgspec.convert(row.usage, RunUsage)


def row(conn: sa.Connection, run_id: str) -> Any:
    """Return the row. Raises NotFoundError with code unknown_run."""
    return one(conn, runs, "run", run_id)


def count_answer(
    tx: Transaction,
    hold: Hold,
    *,
    usage: RunUsage,
    cost: float | None,
    calls: int,
    active_s: float,
    next_message_id: str,
) -> None:
    """Store the sums after an answer, and the id that the next answer will have."""
    values = {"usage": usage, "cost": cost, "active_s": active_s, "open_message_id": next_message_id}
    tx.conn.execute(_COUNT_ANSWER, {"run_id": hold.run_id, "calls": calls, **values})


def wait(tx: Transaction, hold: Hold, approvals: Sequence[str], questions: Sequence[str], active_s: float) -> None:
    """The run needs answers."""
    fence(tx, hold)
    move(tx, runs, RUN, hold.run_id, "waiting", active_s=active_s)
    data = RunWaiting(approvals=list(approvals), questions=list(questions))
    tx.emit("run.waiting", data, session_id=hold.session_id, run_id=hold.run_id)


def go_on(tx: Transaction, hold: Hold, reason: str) -> None:
    """The answers are there."""
    fence(tx, hold)
    move(tx, runs, RUN, hold.run_id, "running")
    _continued(tx, hold, reason)


def requeue(tx: Transaction, run_id: str, *, crashed: bool) -> None:
    """Free a run whose holder is gone."""
    crashes = row(tx.conn, run_id).crashes + (1 if crashed else 0)
    move(tx, runs, RUN, run_id, "queued", holder=None, crashes=crashes, open_message_id=new_id("message"))


def reclaim(tx: Transaction, run_id: str, holder: str, reason: str) -> Hold:
    """Claim a queued run, or take over a waiting one. Raises IllegalMove when it is neither."""
    found = row(tx.conn, run_id)
    hold = Hold(run_id, found.session_id, holder, found.generation + 1)
    if found.state == "waiting":
        tx.conn.execute(sa.update(runs).where(runs.c.id == run_id).values(holder=holder, generation=hold.generation))
        return hold
    move(tx, runs, RUN, run_id, "running", holder=holder, generation=hold.generation)
    _continued(tx, hold, reason)
    return hold


def _continued(tx: Transaction, hold: Hold, reason: str) -> None:
    data = RunContinued(reason=reason, generation=hold.generation)
    tx.emit("run.continued", data, session_id=hold.session_id, run_id=hold.run_id)


def resume(tx: Transaction, run_id: str, by: str) -> None:
    """Queue an interrupted run again. Raises IllegalMove when it is not interrupted, ConflictError run_active."""
    found = row(tx.conn, run_id)
    if sessions.active_run(tx.conn, found.session_id) is not None:
        raise ConflictError("Another run of this session is in progress.", code="run_active")
    move(tx, runs, RUN, run_id, "queued", ended_at=None, stop_reason=None, error=None, crashes=0)
    tx.emit("run.queued", RunQueued(by=by), session_id=found.session_id, run_id=run_id)


def ask_cancel(tx: Transaction, run_id: str, by: str) -> Any:
    """Note that somebody asked for the end; return the row as it is now."""
    found = row(tx.conn, run_id)
    RUN.check(found.state, "cancelled")
    if found.cancel_by is None:
        tx.conn.execute(sa.update(runs).where(runs.c.id == run_id).values(cancel_by=by))
        tx.emit("run.cancelling", RunCancelling(by=by), session_id=found.session_id, run_id=run_id)
    return row(tx.conn, run_id)


def end(tx: Transaction, run_id: str, ending: Ending) -> None:
    """End a run: state, result, the delivery that is owed; late steers become follow-ups. Once only."""
    values = {
        "stop_reason": ending.stop_reason,
        "error": ending.error,
        "ended_at": tx.now,
        "files_changed": list(ending.files_changed),
    }
    if ending.no_checkpoint is not None:
        values["no_checkpoint"] = ending.no_checkpoint
    found = move_and_read(tx, runs, RUN, run_id, ending.state, **values)
    _say_ended(tx, found, ending)
    prompts.turn_into_follow_ups(tx, found.session_id)
    deliveries.owe(tx, found.session_id, run_id, spec_of(found).address, ending.text or ending.error or ending.state)


def put_aside(tx: Transaction, run_id: str, restore_id: str) -> None:
    """Interrupt a waiting run that a restore supersedes; nobody is owed a result. Raises IllegalMove."""
    text = f"Put aside by restore {restore_id}; undoing that takes the run up again."
    ending = Ending(state="interrupted", stop_reason="superseded", error=text)
    values = {"stop_reason": ending.stop_reason, "error": text, "ended_at": tx.now, "holder": None}
    _say_ended(tx, move_and_read(tx, runs, RUN, run_id, ending.state, **values), ending)


def _say_ended(tx: Transaction, found: Any, ending: Ending) -> None:
    data = RunEnded(
        stop_reason=ending.stop_reason,
        error=ending.error,
        text=ending.text,
        usage=_usage(usage_of(found)),
        cost=found.cost,
        files_changed=list(ending.files_changed),
        turns=found.turns,
        tool_calls=found.tool_calls,
        checkpoint_id=found.checkpoint_id,
        no_checkpoint=found.no_checkpoint,
    )
    tx.emit(f"run.{ending.state}", data, session_id=found.session_id, run_id=found.id)


def set_checkpoint(tx: Transaction, run_id: str, column: str, checkpoint_id: str) -> None:
    """Bind a checkpoint to a run as `checkpoint_id` (before) or `after_checkpoint_id`."""
    tx.conn.execute(sa.update(runs).where(runs.c.id == run_id).values({column: checkpoint_id}))


def note_no_checkpoint(tx: Transaction, run_id: str, reason: str) -> None:
    """Note why nothing can bring back the files of before a run."""
    change(tx, runs, run_id, no_checkpoint=reason)


def unfinished(conn: sa.Connection) -> list[Any]:
    """Return the rows of runs that are not over, oldest first."""
    query = sa.select(runs).where(runs.c.state.in_(sessions.ACTIVE)).order_by(runs.c.created_at)
    return list(conn.execute(query).all())


def queued(conn: sa.Connection) -> list[Any]:
    """Return the rows of runs that wait to be claimed, oldest first."""
    return list(conn.execute(_QUEUED).all())


def active_in(conn: sa.Connection, worktree: str) -> list[Any]:
    """Return the rows of runs in a worktree that are not over."""
    query = sa.select(runs).where(runs.c.worktree == worktree, runs.c.state.in_(sessions.ACTIVE))
    return list(conn.execute(query).all())


def executing_in(conn: sa.Connection, worktree: str) -> list[Any]:
    """Return the rows of runs in a worktree that execute, or are about to."""
    return [row for row in active_in(conn, worktree) if row.state != "waiting"]


def view(conn: sa.Connection, run_id: str) -> RunView:
    """Return what is told of a run. Raises NotFoundError."""
    return _view(row(conn, run_id))


def listing(conn: sa.Connection, session_id: str | None, limit: int) -> list[RunView]:
    """Return runs, the newest first."""
    query = sa.select(runs).order_by(runs.c.created_at.desc(), runs.c.id.desc()).limit(limit)
    if session_id is not None:
        sessions.row(conn, session_id)
        query = query.where(runs.c.session_id == session_id)
    return [_view(found) for found in conn.execute(query)]


def _usage(usage: RunUsage) -> Usage:
    return Usage(input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cached_tokens=usage.cached_tokens)


def _view(found: Any) -> RunView:
    spec = spec_of(found)
    return RunView(
        id=found.id,
        session_id=found.session_id,
        run_count=found.run_count,
        state=found.state,
        stop_reason=found.stop_reason,
        error=found.error,
        model=spec.model,
        agent_mode=spec.agent_mode,
        preset=spec.preset,
        prompt_id=found.prompt_id,
        turns=found.turns,
        tool_calls=found.tool_calls,
        usage=_usage(usage_of(found)),
        cost=found.cost,
        files_changed=found.files_changed,
        checkpoint_id=found.checkpoint_id,
        no_checkpoint=found.no_checkpoint,
        superseded=found.superseded,
        created_at=iso(found.created_at),
        started_at=iso(found.started_at) if found.started_at else None,
        ended_at=iso(found.ended_at) if found.ended_at else None,
    )
