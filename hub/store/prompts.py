"""The queue of a session: durable prompts in order, until each is taken or removed."""

from typing import Any

import msgspec
import sqlalchemy as sa

from hub.clock import iso
from hub.domain.runs import effective_mode, position_between
from hub.domain.states import PROMPT, IllegalMove
from hub.domain.values import PromptMode
from hub.errors import RefusedError
from hub.ids import new_id
from hub.protocol.events import TEXT_LIMIT, PromptChanged, PromptQueued, PromptRemoved, PromptTaken
from hub.protocol.params import RunOptions
from hub.protocol.views import PromptAccepted, PromptView
from hub.store import sessions
from hub.store.database import Transaction
from hub.store.rows import insert, move, move_and_read, one
from hub.store.schema import prompts, runs
from hub.store.schema import sessions as session_table

LOOK_BACK = 100
"""Prompts among which the session's model is looked for."""


_OF_SESSION = prompts.c.session_id == sa.bindparam("session_id")
_PENDING = sa.select(prompts).where(_OF_SESSION, prompts.c.state == "pending").order_by(prompts.c.position)
_NEWEST_OPTIONS = sa.select(prompts.c.options).where(_OF_SESSION).order_by(prompts.c.id.desc()).limit(LOOK_BACK)
_BUSY = sa.exists().where(runs.c.session_id == prompts.c.session_id, runs.c.state.in_(sessions.ACTIVE))
_IN_LINE = (
    sa.select(prompts, session_table.c.workspace, session_table.c.worktree)
    .join(session_table, session_table.c.id == prompts.c.session_id)
    .where(prompts.c.state == "pending", sa.not_(_BUSY))
    .order_by(prompts.c.position)
)


class NewPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt as it comes in. `may_approve`: its author may also answer approvals."""

    session_id: str
    text: str
    mode: PromptMode
    author: str
    may_approve: bool
    address: str
    options: RunOptions


class Pending(msgspec.Struct, frozen=True, kw_only=True):
    """A prompt that waits, as far as the run needs it that will be made of it."""

    id: str
    session_id: str
    text: str
    author: str
    address: str
    options: RunOptions


def submit(tx: Transaction, new: NewPrompt, *, queue_limit: int) -> tuple[PromptAccepted, Pending, Any]:
    """Store a prompt at its place; return the answer, the prompt, and the session's run that is not over, or None.

    Raises RefusedError with code queue_full (retryable) or session_archived.
    """
    sessions.usable(tx.conn, new.session_id)
    active = sessions.active_run(tx.conn, new.session_id)
    mode = effective_mode(new.mode, run_active=active is not None)
    waiting = _pending(tx.conn, new.session_id)
    if len(waiting) >= queue_limit:
        raise RefusedError(
            f"{len(waiting)} prompts wait in this session already.",
            code="queue_full",
            retryable=True,
            retry_after_s=5.0,
        )
    place = 1 if mode == "interrupt" else len(waiting) + 1
    prompt_id = _insert(tx, new, mode, position_between([row.position for row in waiting], place))
    _announce(tx, new.session_id, prompt_id, mode, place, new.author, new.text)
    run_id = active.id if active is not None and mode == "steer" else None
    accepted = PromptAccepted(prompt_id=prompt_id, session_id=new.session_id, mode=mode, position=place, run_id=run_id)
    pending = Pending(
        id=prompt_id,
        session_id=new.session_id,
        text=new.text,
        author=new.author,
        address=new.address,
        options=new.options,
    )
    return accepted, pending, active


def _announce(
    tx: Transaction, session_id: str, prompt_id: str, mode: PromptMode, place: int, author: str, text: str
) -> None:
    data = PromptQueued(prompt_id=prompt_id, mode=mode, position=place, author=author, text=text[:TEXT_LIMIT])
    tx.emit("prompt.queued", data, session_id=session_id)


def suspend(tx: Transaction, prompt_id: str, reason: str) -> None:
    """Put a pending prompt aside. Raises IllegalMove."""
    row = move_and_read(tx, prompts, PROMPT, prompt_id, "suspended")
    tx.emit("prompt.removed", PromptRemoved(prompt_id=prompt_id, reason=reason), session_id=row.session_id)


def requeue(tx: Transaction, prompt_id: str) -> None:
    """Let a prompt wait again, at its old place, that was put aside. Raises IllegalMove."""
    move(tx, prompts, PROMPT, prompt_id, "pending")
    told = view(tx.conn, prompt_id)
    _announce(tx, told.session_id, prompt_id, told.mode, told.position, told.author, told.text)


def _insert(tx: Transaction, new: NewPrompt, mode: PromptMode, position: float) -> str:
    prompt_id = new_id("prompt")
    insert(
        tx,
        prompts,
        id=prompt_id,
        session_id=new.session_id,
        state=PROMPT.initial,
        mode=mode,
        position=position,
        text=new.text,
        author=new.author,
        author_may_approve=new.may_approve,
        address=new.address,
        options=new.options,
        created_at=tx.now,
    )
    return prompt_id


def _pending(conn: sa.Connection, session_id: str) -> list[Any]:
    return list(conn.execute(_PENDING, {"session_id": session_id}).all())


def steers(conn: sa.Connection, session_id: str) -> list[Any]:
    """Return the rows of the steers that wait, in order."""
    return [row for row in _pending(conn, session_id) if row.mode == "steer"]


def row(conn: sa.Connection, prompt_id: str) -> Any:
    """Return the row. Raises NotFoundError with code unknown_prompt."""
    return one(conn, prompts, "prompt", prompt_id)


def pending(conn: sa.Connection, prompt_id: str) -> Pending:
    """Return a prompt that waits. Raises NotFoundError unknown_prompt, IllegalMove when it was taken or removed."""
    found = _must_be_pending(conn, prompt_id)
    return Pending(
        id=found.id,
        session_id=found.session_id,
        text=found.text,
        author=found.author,
        address=found.address,
        options=msgspec.convert(found.options, RunOptions),
    )


def listing(conn: sa.Connection, session_id: str) -> list[PromptView]:
    """Return the pending prompts, the next first. Raises NotFoundError."""
    sessions.row(conn, session_id)
    return [_view(row, place) for place, row in enumerate(_pending(conn, session_id), 1)]


def view(conn: sa.Connection, prompt_id: str) -> PromptView:
    """Return what is told of a prompt. Raises NotFoundError."""
    row = one(conn, prompts, "prompt", prompt_id)
    places = [waiting.id for waiting in _pending(conn, row.session_id)]
    return _view(row, places.index(row.id) + 1 if row.id in places else 0)


def _view(row: Any, place: int) -> PromptView:
    return PromptView(
        id=row.id,
        session_id=row.session_id,
        mode=row.mode,
        state=row.state,
        position=place,
        text=row.text,
        author=row.author,
        address=row.address,
        created_at=iso(row.created_at),
        run_id=row.run_id,
    )


def edit(tx: Transaction, prompt_id: str, text: str) -> PromptView:
    """Change the text of a pending prompt. Raises IllegalMove when it was taken or removed."""
    _must_be_pending(tx.conn, prompt_id)
    tx.conn.execute(sa.update(prompts).where(prompts.c.id == prompt_id).values(text=text))
    return _changed(tx, "prompt.edited", prompt_id)


def reorder(tx: Transaction, prompt_id: str, place: int) -> PromptView:
    """Move a pending prompt to a place from 1."""
    row = _must_be_pending(tx.conn, prompt_id)
    others = [waiting.position for waiting in _pending(tx.conn, row.session_id) if waiting.id != prompt_id]
    position = position_between(others, place)
    tx.conn.execute(sa.update(prompts).where(prompts.c.id == prompt_id).values(position=position))
    return _changed(tx, "prompt.moved", prompt_id)


def remove(tx: Transaction, prompt_id: str, reason: str) -> None:
    """Take a pending prompt back. Raises IllegalMove when it was taken."""
    row = _must_be_pending(tx.conn, prompt_id)
    move(tx, prompts, PROMPT, prompt_id, "removed")
    tx.emit("prompt.removed", PromptRemoved(prompt_id=prompt_id, reason=reason), session_id=row.session_id)


def _must_be_pending(conn: sa.Connection, prompt_id: str) -> Any:
    row = one(conn, prompts, "prompt", prompt_id)
    if row.state != "pending":
        raise IllegalMove(f"Prompt {prompt_id} is {row.state} already.", hint=f"It belongs to run {row.run_id}.")
    return row


def _changed(tx: Transaction, event: str, prompt_id: str) -> PromptView:
    changed = view(tx.conn, prompt_id)
    data = PromptChanged(
        prompt_id=prompt_id, mode=changed.mode, position=changed.position, text=changed.text[:TEXT_LIMIT]
    )
    tx.emit(event, data, session_id=changed.session_id)
    return changed


def take(tx: Transaction, prompt_id: str, session_id: str, run_id: str, *, as_steer: bool) -> None:
    """Give a pending prompt to a run. Raises IllegalMove when somebody was first."""
    move(tx, prompts, PROMPT, prompt_id, "taken", run_id=run_id, taken_at=tx.now)
    data = PromptTaken(prompt_id=prompt_id, as_steer=as_steer)
    tx.emit("prompt.taken", data, session_id=session_id, run_id=run_id)


def turn_into_follow_ups(tx: Transaction, session_id: str) -> None:
    """Make prompts of the steers and interrupts that came too late for the run, in order; each sender is told."""
    for row in _pending(tx.conn, session_id):
        if row.mode != "follow_up":
            tx.conn.execute(sa.update(prompts).where(prompts.c.id == row.id).values(mode="follow_up"))
            _changed(tx, "prompt.moved", row.id)


def last_model(conn: sa.Connection, session_id: str) -> str | None:
    """Return the model that the session's newest prompts name: what it goes on with unless told otherwise."""
    newest = conn.execute(_NEWEST_OPTIONS, {"session_id": session_id}).scalars()
    named = (options.get("model") for options in newest)
    return next((model for model in named if model), None)


def pending_ids(conn: sa.Connection) -> list[str]:
    """Return the ids of all pending prompts."""
    return list(conn.execute(sa.select(prompts.c.id).where(prompts.c.state == "pending")).scalars())


def next_in_line(conn: sa.Connection) -> list[Any]:
    """Return, oldest first, the next prompt of each session without a run in progress, with its places."""
    firsts: dict[str, Any] = {}
    for row in conn.execute(_IN_LINE):
        firsts.setdefault(row.session_id, row)
    return sorted(firsts.values(), key=lambda row: row.created_at)
