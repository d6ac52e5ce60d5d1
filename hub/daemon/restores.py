"""Restores: files by the engine, conversation by the store, joined into one transaction.

Order: intent stored → engine applies (old state captured before the first write) → one database transaction moves the
conversation and is the commit point → engine cleans up. Killed anywhere, start-up asks the store which side it was on.
"""

import asyncio
from typing import Any

import msgspec

from hub.checkpoint.values import Plan
from hub.clock import iso
from hub.daemon.calls import Seal
from hub.daemon.services import Services
from hub.daemon.worktrees import Request, describe, series_of
from hub.domain.states import IllegalMove
from hub.errors import ConflictError, RefusedError
from hub.ids import new_id
from hub.protocol.params import CheckpointRestore, CheckpointUndo
from hub.protocol.views import EffectView, KeptView, RestoreView
from hub.store import calls, checkpoints, messages, runs
from hub.store.checkpoints import Bond, Captured, Intent
from hub.store.database import Connection, Transaction

POLL_S = 0.05
INTERRUPT_S = 30.0
"""Seconds that a restore waits for interrupted runs to end."""


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

    async def restore(self, params: CheckpointRestore, actor: str, seal: Seal) -> RestoreView:
        """Restore a checkpoint. Raises NotFoundError, RefusedError run_active, ConflictError when files moved."""
        wanted = await self._services.database.read(lambda conn: _wanted(conn, params))
        return await self._carry_out(wanted, actor, seal)

    async def undo(self, params: CheckpointUndo, actor: str, worktree: str | None, seal: Seal) -> RestoreView:
        """Undo the newest restore of a session or worktree. Raises NotFoundError nothing_to_undo."""
        wanted = await self._services.database.read(lambda conn: _undo_wanted(conn, params, worktree))
        return await self._carry_out(wanted, actor, seal)

    async def _carry_out(self, wanted: Wanted, actor: str, seal: Seal) -> RestoreView:
        if wanted.dry_run:
            return await self._preview(wanted)
        worktree, token = wanted.checkpoint.worktree, new_id("restore")
        if not self._services.admission.reserve(worktree, token):
            raise RefusedError("Another restore works in this worktree.", code="workspace_busy", retryable=True)
        try:
            await self._clear_the_way(wanted, actor)
            told = await self._services.database.read(lambda conn: _tell(conn, wanted))
            return await self._apply(wanted, told, seal)
        finally:
            self._services.admission.release(worktree, token)

    async def _preview(self, wanted: Wanted) -> RestoreView:
        told = await self._services.database.read(lambda conn: _tell(conn, wanted))
        if not wanted.files:
            return _view(wanted, told, None)
        ref = wanted.checkpoint.ref
        plan = await self._services.worktrees.work(wanted.checkpoint.worktree, lambda engine: engine.preview(ref))
        return _view(wanted, told, plan)

    async def _clear_the_way(self, wanted: Wanted, actor: str) -> None:
        """Make sure that no run is in progress in the worktree; with `interrupt`, cancel it and see it end.

        The worktree is reserved, so none begins meanwhile.
        """
        worktree = wanted.checkpoint.worktree
        active = await self._services.database.read(lambda conn: runs.active_in(conn, worktree))
        if active and not wanted.interrupt:
            raise RefusedError(
                f"Run {active[0].id} is {active[0].state} in this worktree.",
                code="run_active",
                hint="Wait for it, cancel it with `hubctl cancel`, or use --interrupt.",
            )
        for row in active:
            await self._services.database.write(lambda tx, id=row.id: _ask_cancel(tx, id, actor))  # type: ignore[misc]
        try:
            async with asyncio.timeout(INTERRUPT_S):
                while await self._in_the_way(worktree):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            text = f"A run did not end within {INTERRUPT_S:g} s; nothing was restored."
            raise RefusedError(text, code="run_active", retryable=True) from None

    async def _in_the_way(self, worktree: str) -> bool:
        active = await self._services.database.read(lambda conn: runs.active_in(conn, worktree))
        return bool(active) or self._services.admission.holder(worktree) is not None

    async def _apply(self, wanted: Wanted, told: Told, seal: Seal) -> RestoreView:
        if not wanted.files:
            view = _view(wanted, told, None)
            await self._services.database.write(lambda tx: _move_only(tx, wanted, view, seal))
            return view
        worktree = wanted.checkpoint.worktree
        request, undo_id = await self._undo_request(wanted), new_id("checkpoint")
        plan = await self._services.worktrees.plan(wanted.checkpoint.ref, undo_id, request)
        captured, view = describe(undo_id, request, plan.undo), _view(wanted, told, plan, undo_id)
        restore_id = await self._services.database.write(lambda tx: self._begin(tx, wanted, plan, captured))
        try:
            await self._services.worktrees.work(worktree, lambda engine: engine.apply(plan))
        except Exception:
            await self._services.database.write(lambda tx: checkpoints.roll_back_restore(tx, restore_id))
            raise
        try:
            await self._services.database.write(lambda tx: _commit(tx, wanted, restore_id, view, seal))
        except Exception:
            await self._services.worktrees.work(worktree, lambda engine: engine.abort(plan.txid))
            raise
        await self._services.worktrees.work(worktree, lambda engine: engine.finish(plan.txid))
        await self._services.database.write(lambda tx: checkpoints.settle_restore(tx, restore_id))
        return view

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
    effects = []
    if wanted.files and wanted.direction == "restore":
        effects = calls.effects_since(conn, wanted.checkpoint.worktree, wanted.checkpoint.created_at)
    told = [
        EffectView(run_id=row.run_id, call_id=row.id, summary=row.summary, at=iso(row.started_at)) for row in effects
    ]
    if not wanted.conversation or wanted.session_id is None:
        return Told(messages=0, runs=[], effects=told)
    count, gone = messages.beyond(conn, wanted.session_id, wanted.head_id)
    return Told(messages=count, runs=gone, effects=told)


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


def _commit(tx: Transaction, wanted: Wanted, restore_id: str, view: RestoreView, seal: Seal) -> None:
    """The commit point: conversation, restore and answer move together."""
    moved = 0
    if wanted.conversation and wanted.session_id is not None:
        moved = messages.move_head(tx, wanted.session_id, wanted.head_id)
    checkpoints.commit_restore(tx, restore_id, moved, wanted.undoes)
    seal(tx, view)


def _move_only(tx: Transaction, wanted: Wanted, view: RestoreView, seal: Seal) -> None:
    _commit(tx, wanted, checkpoints.begin_restore(tx, _intent(tx.conn, wanted, None, None)), view, seal)


def _ask_cancel(tx: Transaction, run_id: str, actor: str) -> None:
    try:
        runs.ask_cancel(tx, run_id, actor)
    except IllegalMove:
        return  # it ended by itself meanwhile


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
