"""Checkpoints and restores as the store knows them: the files are git's, the bond to the conversation is here."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from hub.clock import iso
from hub.errors import ConflictError, NotFoundError
from hub.ids import new_id
from hub.protocol.events import CheckpointCreated, CheckpointFailed, RestoreCommitted
from hub.protocol.views import CheckpointView, UncapturedView
from hub.store.database import Transaction
from hub.store.rows import insert, one
from hub.store.schema import checkpoints, prompts, restores, runs

BEFORE_KINDS = ("before", "back")
"""Captures with which a run begins or goes on."""
AFTER_KINDS = ("after", "left")
"""Captures with which a run ends, or stops to wait."""
PROMPT_LENGTH = 200
"""Characters of a prompt by which its checkpoint is known."""
WITHIN_KINDS = ("step", "preimage")
"""Captures in the middle of a run: what differs from one of them to the run's end is the run's."""


class Captured(msgspec.Struct, frozen=True, kw_only=True):
    """A capture that succeeded, as it is stored. `message_id` is the newest message of the conversation then."""

    id: str
    session_id: str | None
    run_id: str | None
    run_count: int | None
    worktree: str
    kind: str
    ref: str
    commit_oid: str
    files: int
    uncaptured: Sequence[UncapturedView]
    head: str | None
    branch: str | None
    note: str
    message_id: str | None


class Bond(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint is bound to. All None for one of a workspace without a session."""

    session_id: str | None = None
    run_id: str | None = None
    run_count: int | None = None
    message_id: str | None = None


def add(tx: Transaction, new: Captured) -> None:
    """Store a checkpoint."""
    insert(tx, checkpoints, created_at=tx.now, **msgspec.structs.asdict(new))
    data = CheckpointCreated(
        checkpoint_id=new.id, kind=new.kind, run_count=new.run_count, files=new.files, uncaptured=len(new.uncaptured)
    )
    tx.emit("checkpoint.created", data, session_id=new.session_id, run_id=new.run_id)


def failed(tx: Transaction, bond: Bond, kind: str, code: str, reason: str) -> None:
    """Say that there is no checkpoint, and why."""
    data = CheckpointFailed(kind=kind, run_count=bond.run_count, code=code, reason=reason)
    tx.emit("checkpoint.failed", data, session_id=bond.session_id, run_id=bond.run_id)


def row(conn: sa.Connection, checkpoint_id: str) -> Any:
    """Return the row. Raises NotFoundError with code unknown_checkpoint."""
    return one(conn, checkpoints, "checkpoint", checkpoint_id)


def view(conn: sa.Connection, checkpoint_id: str) -> CheckpointView:
    """Return what is told of a checkpoint. Raises NotFoundError."""
    found = row(conn, checkpoint_id)
    of_run = [found.run_id] if found.kind == "before" and found.run_id is not None else []
    return _view(found, _prompts(conn, of_run).get(found.run_id or ""))


def listing(
    conn: sa.Connection, *, session_id: str | None, worktree: str | None, kinds: Sequence[str], limit: int
) -> list[CheckpointView]:
    """Return checkpoints, the newest first."""
    query = sa.select(checkpoints).where(checkpoints.c.kind.in_(kinds))
    if session_id is not None:
        query = query.where(checkpoints.c.session_id == session_id)
    if worktree is not None:
        query = query.where(checkpoints.c.worktree == worktree)
    rows = conn.execute(query.order_by(checkpoints.c.created_at.desc(), checkpoints.c.id.desc()).limit(limit)).all()
    prompts_of = _prompts(conn, [row.run_id for row in rows if row.kind == "before" and row.run_id is not None])
    return [_view(row, prompts_of.get(row.run_id) if row.kind == "before" else None) for row in rows]


def _prompts(conn: sa.Connection, run_ids: Sequence[str]) -> dict[str, str]:
    """Return how the prompts of runs begin."""
    words = sa.func.substr(prompts.c.text, 1, PROMPT_LENGTH)
    query = sa.select(runs.c.id, words).join(prompts, runs.c.prompt_id == prompts.c.id).where(runs.c.id.in_(run_ids))
    return {row[0]: row[1] for row in conn.execute(query)}


def taken_in(conn: sa.Connection, session_id: str, run_id: str, kinds: Sequence[str]) -> list[Any]:
    """Return ref and kind of a run's captures of some kinds, in order of time."""
    query = sa.select(checkpoints.c.ref, checkpoints.c.kind, checkpoints.c.id).where(
        checkpoints.c.session_id == session_id, checkpoints.c.run_id == run_id, checkpoints.c.kind.in_(kinds)
    )
    return list(conn.execute(query.order_by(checkpoints.c.created_at, checkpoints.c.id)).all())


def has_left(conn: sa.Connection, session_id: str, run_id: str) -> bool:
    """Return whether a run's last capture of those around what it writes is the one with which it stopped to wait."""
    taken = taken_in(conn, session_id, run_id, (*BEFORE_KINDS, *AFTER_KINDS))
    return bool(taken) and taken[-1].kind == "left"


def refs_in(conn: sa.Connection, worktree: str) -> set[str]:
    """Return the names of the refs that checkpoints of a worktree have."""
    return set(conn.execute(sa.select(checkpoints.c.ref).where(checkpoints.c.worktree == worktree)).scalars())


def _view(found: Any, prompt: str | None) -> CheckpointView:
    return CheckpointView(
        id=found.id,
        session_id=found.session_id,
        run_id=found.run_id,
        run_count=found.run_count,
        workspace=found.worktree,
        kind=found.kind,
        ref=found.ref,
        commit=found.commit_oid,
        files=found.files,
        uncaptured=msgspec.convert(found.uncaptured, list[UncapturedView]),
        head=found.head,
        branch=found.branch,
        note=found.note,
        prompt=prompt,
        protected=found.protected,
        pruned_at=iso(found.pruned_at) if found.pruned_at else None,
        created_at=iso(found.created_at),
    )


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A restore that is about to be applied. `txid` is the engine's, None when no file is touched.

    `scope` is how far it goes: paths (percent-encoded), reach, head.
    """

    session_id: str | None
    worktree: str
    checkpoint_id: str
    undo_id: str | None
    only: str | None
    direction: str
    previous_head: str | None
    txid: str | None
    summary: dict[str, int]
    scope: dict[str, Any]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a restore moved in the store when it was committed."""

    messages: int
    cancelled: int
    resumed: int
    head_moved: bool


def begin_restore(tx: Transaction, intent: Intent) -> str:
    """Store what is about to happen, before the first file is touched; return the restore's id."""
    restore_id = new_id("restore")
    values = msgspec.structs.asdict(intent)
    insert(tx, restores, id=restore_id, state="applying", created_at=tx.now, **values)
    return restore_id


def commit_restore(tx: Transaction, restore_id: str, outcome: Outcome, undoes: str | None) -> None:
    """Pass the commit point. Raises ConflictError when the restore is over already."""
    update = sa.update(restores).where(restores.c.id == restore_id, restores.c.state == "applying")
    if tx.conn.execute(update.values(state="committed", committed_at=tx.now)).rowcount != 1:
        raise ConflictError(f"Restore {restore_id} is over already.", code="illegal_state")
    if undoes is not None:
        tx.conn.execute(sa.update(restores).where(restores.c.id == undoes).values(undone_by=restore_id))
    found = one(tx.conn, restores, "restore", restore_id)
    data = RestoreCommitted(
        restore_id=restore_id,
        checkpoint_id=found.checkpoint_id,
        undo_id=found.undo_id,
        only=found.only,
        direction=found.direction,
        reach=found.scope["reach"],
        **msgspec.structs.asdict(outcome),
        **found.summary,
    )
    tx.emit("restore.committed", data, session_id=found.session_id)


def roll_back_restore(tx: Transaction, restore_id: str) -> None:
    """Note that a restore changed nothing in the end."""
    update = sa.update(restores).where(restores.c.id == restore_id, restores.c.state == "applying")
    tx.conn.execute(update.values(state="rolled_back", committed_at=tx.now, txid=None))


def decide_restore(tx: Transaction, restore_id: str) -> bool:
    """Decide a restore that nobody carries out any more; return whether it counts. Whoever commits it now is refused.

    The engine has still to be told; then `settle_restore`.
    """
    update = sa.update(restores).where(restores.c.id == restore_id, restores.c.state == "applying")
    tx.conn.execute(update.values(state="rolled_back", committed_at=tx.now))
    return bool(one(tx.conn, restores, "restore", restore_id).state == "committed")


def settle_restore(tx: Transaction, restore_id: str) -> None:
    """Note that the engine has cleaned up; start-up need not look at this restore again."""
    tx.conn.execute(sa.update(restores).where(restores.c.id == restore_id).values(txid=None))


def unsettled_restores(conn: sa.Connection) -> list[Any]:
    """Return the rows of restores that the engine may have to finish or take back, oldest first."""
    waiting = sa.or_(restores.c.state == "applying", restores.c.txid.is_not(None))
    return list(conn.execute(sa.select(restores).where(waiting).order_by(restores.c.created_at)).all())


def to_undo(conn: sa.Connection, *, session_id: str | None, worktree: str | None) -> Any:
    """Return the row of the newest restore that is not undone. Raises NotFoundError code nothing_to_undo."""
    found = conn.execute(_newest(("restore", "redo"), session_id, worktree)).one_or_none()
    if found is None:
        raise NotFoundError("There is no restore to undo here.", code="nothing_to_undo")
    return found


def to_redo(conn: sa.Connection, *, session_id: str | None, worktree: str | None) -> Any:
    """Return the row of the newest undo that is not undone itself and that no other restore has followed.

    Raises NotFoundError code nothing_to_redo.
    """
    found = conn.execute(_newest(("undo",), session_id, worktree)).one_or_none()
    later = conn.execute(_newest(("restore",), session_id, worktree)).one_or_none()
    if found is None or (later is not None and later.committed_at > found.committed_at):
        raise NotFoundError("There is no undone restore to repeat here.", code="nothing_to_redo")
    return found


def _newest(directions: Sequence[str], session_id: str | None, worktree: str | None) -> sa.Select[Any]:
    query = sa.select(restores).where(
        restores.c.state == "committed",
        restores.c.direction.in_(directions),
        restores.c.undone_by.is_(None),
    )
    if session_id is not None:
        query = query.where(restores.c.session_id == session_id)
    if worktree is not None:
        query = query.where(restores.c.worktree == worktree)
    return query.order_by(restores.c.committed_at.desc(), restores.c.id.desc()).limit(1)


def history(conn: sa.Connection, worktree: str, since: Any) -> list[Any]:
    """Return ref, kind and session of a worktree's captures around runs, from a checkpoint's row on, in order.

    The checkpoint itself is among them, whatever its kind.
    """
    query = sa.select(checkpoints.c.ref, checkpoints.c.kind, checkpoints.c.session_id, checkpoints.c.id).where(
        checkpoints.c.worktree == worktree,
        checkpoints.c.created_at >= since.created_at,
        sa.or_(checkpoints.c.kind.in_((*BEFORE_KINDS, *AFTER_KINDS)), checkpoints.c.id == since.id),
        checkpoints.c.pruned_at.is_(None),
    )
    return list(conn.execute(query.order_by(checkpoints.c.created_at, checkpoints.c.id)).all())


def protect(tx: Transaction, checkpoint_id: str, on: bool) -> None:
    """Note that a checkpoint is never pruned, or may be."""
    tx.conn.execute(sa.update(checkpoints).where(checkpoints.c.id == checkpoint_id).values(protected=on))


def pruned(tx: Transaction, worktree: str, refs: Sequence[str]) -> None:
    """Note that the files of checkpoints are gone; their rows stay, to say so."""
    gone = sa.update(checkpoints).where(checkpoints.c.worktree == worktree, checkpoints.c.ref.in_(refs))
    tx.conn.execute(gone.where(checkpoints.c.pruned_at.is_(None)).values(pruned_at=tx.now))


def worktrees_since(conn: sa.Connection, since: datetime | None) -> set[str]:
    """Return the worktrees that have checkpoints which are there and were taken since a moment (None: ever)."""
    query = sa.select(checkpoints.c.worktree).where(checkpoints.c.pruned_at.is_(None)).distinct()
    if since is not None:
        query = query.where(checkpoints.c.created_at >= since)
    return set(conn.execute(query).scalars())


def unpruned(conn: sa.Connection, worktree: str) -> list[str]:
    """Return the names of a worktree's refs whose checkpoints are not known to be gone."""
    query = sa.select(checkpoints.c.ref).where(checkpoints.c.worktree == worktree, checkpoints.c.pruned_at.is_(None))
    return list(conn.execute(query).scalars())


def ids_by_ref(conn: sa.Connection, worktree: str) -> dict[str, str]:
    """Return the ids of a worktree's checkpoints by the names of their refs."""
    query = sa.select(checkpoints.c.ref, checkpoints.c.id).where(checkpoints.c.worktree == worktree)
    return {row.ref: row.id for row in conn.execute(query)}
