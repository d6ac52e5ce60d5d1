"""Restores: files by the engine, conversation by the store, joined into one transaction.

Order: intent stored → engine applies (old state captured before the first write) → one database transaction moves the
conversation and is the commit point → engine cleans up. Killed anywhere, start-up asks the store which side it was on.
"""

import asyncio
from typing import Any

import msgspec

from hub.checkpoint.values import Plan
from hub.clock import iso
from hub.daemon.services import Services
from hub.daemon.worktrees import Request, describe, series_of
from hub.errors import ConflictError, RefusedError
from hub.ids import new_id
from hub.protocol.params import CheckpointRestore, CheckpointUndo
from hub.protocol.views import EffectView, KeptView, RestoreView
from hub.store import calls, checkpoints, messages, runs
from hub.store.checkpoints import Bond, Captured, Intent
from hub.store.database import Connection, Transaction

POLL_S = 0.05


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A restore as it was asked for, with what the store knows of it."""

    checkpoint: Any
    session_id: str | None
    only: str | None
    dry_run: bool
    interrupt: bool
    direction: str
    undoes: str | None
    head_id: str | None

    @property
    def files(self) -> bool:
        return self.only in (None, "files")

    @property
    def conversation(self) -> bool:
        return self.session_id is not None and self.only in (None, "conversation")


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has to say about a restore: what goes back with it and what does not."""

    messages: int
    runs: list[str]
    effects: list[EffectView]


class Restores:
    """The one door to bring things back: `hubctl`, chat and dashboard all come here."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def restore(self, params: CheckpointRestore, actor: str) -> RestoreView:
        """Restore a checkpoint. Raises NotFoundError, RefusedError run_active, ConflictError when files moved."""
        wanted = await self._services.database.read(lambda conn: _wanted(conn, params))
        return await self._carry_out(wanted, actor)

    async def undo(self, params: CheckpointUndo, actor: str, worktree: str | None) -> RestoreView:
        """Undo the newest restore of a session or worktree. Raises NotFoundError nothing_to_undo."""
        wanted = await self._services.database.read(lambda conn: _undo_wanted(conn, params, worktree))
        return await self._carry_out(wanted, actor)

    async def _carry_out(self, wanted: Wanted, actor: str) -> RestoreView:
        told = await self._services.database.read(lambda conn: _tell(conn, wanted))
        if wanted.dry_run:
            return await self._preview(wanted, told)
        worktree = wanted.checkpoint.worktree
        await self._clear_the_way(wanted, actor)
        token = new_id("restore")
        if not self._services.admission.try_enter(worktree, token):
            raise RefusedError("Another run or restore works in this worktree.", code="workspace_busy", retryable=True)
        try:
            return await self._apply(wanted, told)
        finally:
            self._services.admission.leave(token)

    async def _preview(self, wanted: Wanted, told: Told) -> RestoreView:
        if not wanted.files:
            return _view(wanted, told, None)
        ref = wanted.checkpoint.ref
        plan = await self._services.worktrees.work(wanted.checkpoint.worktree, lambda engine: engine.preview(ref))
        return _view(wanted, told, plan)

    async def _clear_the_way(self, wanted: Wanted, actor: str) -> None:
        """Make sure that no run is in progress in the worktree; with `interrupt`, cancel it and see it end."""
        worktree = wanted.checkpoint.worktree
        active = await self._services.database.read(lambda conn: runs.active_in(conn, worktree))
        if active and not wanted.interrupt:
            raise RefusedError(
                f"Run {active[0].id} is {active[0].state} in this worktree.",
                code="run_active",
                hint="Wait for it, cancel it with `hubctl cancel`, or use --interrupt.",
            )
        for row in active:
            await self._services.database.write(lambda tx, id=row.id: runs.ask_cancel(tx, id, actor))  # type: ignore[misc]
        while await self._services.database.read(lambda conn: runs.active_in(conn, worktree)):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    async def _apply(self, wanted: Wanted, told: Told) -> RestoreView:
        if not wanted.files:
            return await self._conversation_only(wanted, told)
        worktree = wanted.checkpoint.worktree
        request, undo_id = await self._undo_request(wanted), new_id("checkpoint")
        plan = await self._services.worktrees.plan(wanted.checkpoint.ref, undo_id, request)
        captured = describe(undo_id, request, plan.undo)
        restore_id = await self._services.database.write(lambda tx: self._begin(tx, wanted, plan, captured))
        try:
            await self._services.worktrees.work(worktree, lambda engine: engine.apply(plan))
        except BaseException:
            await self._services.database.write(lambda tx: checkpoints.roll_back_restore(tx, restore_id))
            raise
        await self._commit(wanted, restore_id, plan)
        await self._services.worktrees.work(worktree, lambda engine: engine.finish(plan.txid))
        await self._services.database.write(lambda tx: checkpoints.settle_restore(tx, restore_id))
        return _view(wanted, told, plan, undo_id)

    async def _commit(self, wanted: Wanted, restore_id: str, plan: Plan) -> None:
        try:
            await self._services.database.write(lambda tx: _commit(tx, wanted, restore_id))
        except Exception:
            worktree = wanted.checkpoint.worktree
            await self._services.worktrees.work(worktree, lambda engine: engine.abort(plan.txid))
            raise

    async def _conversation_only(self, wanted: Wanted, told: Told) -> RestoreView:
        await self._services.database.write(lambda tx: _move_only(tx, wanted))
        return _view(wanted, told, None)

    def _begin(self, tx: Transaction, wanted: Wanted, plan: Plan, captured: Captured) -> str:
        if runs.active_in(tx.conn, wanted.checkpoint.worktree):
            raise ConflictError("A run began in this worktree meanwhile; nothing was changed.", code="run_active")
        checkpoints.add(tx, captured)
        return checkpoints.begin_restore(tx, _intent(tx.conn, wanted, captured.id, plan))

    async def _undo_request(self, wanted: Wanted) -> Request:
        session_id, worktree = wanted.session_id, wanted.checkpoint.worktree
        head, taken = await self._services.database.read(
            lambda conn: (
                messages.head(conn, session_id) if session_id else None,
                checkpoints.refs_in(conn, worktree),
            )
        )
        series = series_of(session_id, worktree)
        number = 1 + sum(1 for ref in taken if ref.startswith(f"{series}/") and ref.endswith("u"))
        return Request(
            worktree=worktree,
            kind="undo",
            bond=Bond(session_id=session_id, message_id=head),
            series=series,
            number=number,
            letter="u",
            note=f"before restoring {wanted.checkpoint.id}",
        )


def _wanted(conn: Connection, params: CheckpointRestore) -> Wanted:
    row = checkpoints.row(conn, params.checkpoint_id)
    session_id = params.session_id or row.session_id
    if params.session_id is not None and row.session_id is not None and params.session_id != row.session_id:
        raise RefusedError(
            f"Checkpoint {row.id} belongs to session {row.session_id}, not to {params.session_id}.",
            code="other_session",
            hint="Leave --session out to restore it where it belongs.",
        )
    if row.session_id is None and params.only == "conversation":
        raise RefusedError("This checkpoint has no conversation; restore its files.", code="no_conversation")
    return Wanted(
        checkpoint=row,
        session_id=session_id if row.session_id is not None else None,
        only=params.only,
        dry_run=params.dry_run,
        interrupt=params.interrupt,
        direction="restore",
        undoes=None,
        head_id=row.message_id,
    )


def _undo_wanted(conn: Connection, params: CheckpointUndo, worktree: str | None) -> Wanted:
    newest = checkpoints.newest_restore(conn, session_id=params.session_id, worktree=worktree)
    return Wanted(
        checkpoint=checkpoints.row(conn, newest.undo_id or newest.checkpoint_id),
        session_id=newest.session_id,
        only=newest.only,
        dry_run=params.dry_run,
        interrupt=False,
        direction="undo",
        undoes=newest.id,
        head_id=newest.previous_head,
    )


def _tell(conn: Connection, wanted: Wanted) -> Told:
    """Return what goes back with the conversation, and what was done since that no restore undoes."""
    if wanted.session_id is None:
        return Told(messages=0, runs=[], effects=[])
    count, gone = messages.beyond(conn, wanted.session_id, wanted.head_id)
    since = wanted.checkpoint.run_count
    later = checkpoints.runs_since(conn, wanted.session_id, since) if since is not None else gone
    effects = [
        EffectView(run_id=row.run_id, call_id=row.id, summary=row.summary, at=iso(row.started_at))
        for row in calls.effects_of(conn, later if wanted.direction == "restore" else [])
    ]
    moved = wanted.conversation
    return Told(messages=count if moved else 0, runs=gone if moved else [], effects=effects)


def _intent(conn: Connection, wanted: Wanted, undo_id: str | None, plan: Plan | None) -> Intent:
    counts = {"restored": 0, "created": 0, "deleted": 0}
    if plan is not None:
        counts = {"restored": len(plan.writes), "created": len(plan.creations), "deleted": len(plan.deletions)}
    return Intent(
        session_id=wanted.session_id,
        worktree=wanted.checkpoint.worktree,
        checkpoint_id=wanted.checkpoint.id,
        undo_id=undo_id,
        only=wanted.only,
        direction=wanted.direction,
        previous_head=messages.head(conn, wanted.session_id) if wanted.session_id else None,
        txid=plan.txid if plan is not None else None,
        summary=counts,
    )


def _commit(tx: Transaction, wanted: Wanted, restore_id: str) -> None:
    moved = 0
    if wanted.conversation and wanted.session_id is not None:
        moved = messages.move_head(tx, wanted.session_id, wanted.head_id)
    checkpoints.commit_restore(tx, restore_id, moved, wanted.undoes)


def _move_only(tx: Transaction, wanted: Wanted) -> None:
    _commit(tx, wanted, checkpoints.begin_restore(tx, _intent(tx.conn, wanted, None, None)))


def _view(wanted: Wanted, told: Told, plan: Plan | None, undo_id: str | None = None) -> RestoreView:
    return RestoreView(
        dry_run=wanted.dry_run,
        checkpoint=wanted.checkpoint.id,
        undo=undo_id,
        restored=[write.path for write in plan.writes] if plan else [],
        created=[creation.path for creation in plan.creations] if plan else [],
        deleted=[deletion.path for deletion in plan.deletions] if plan else [],
        kept=[KeptView(path=kept.path, reason=kept.reason) for kept in plan.kept] if plan else [],
        conflicts=[],
        index_changes=list(plan.index_changes) if plan else [],
        head_moved=False,
        notes=list(plan.notes) if plan else [],
        effects=told.effects,
        messages=told.messages,
        runs=told.runs,
        prompts_cancelled=[],
        approvals_cancelled=[],
    )
