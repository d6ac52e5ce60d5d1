"""Restores: files by the engine, conversation by the store, joined into one transaction.

Order: the worktree is reserved and nothing executes in it → intent stored → engine applies (old state captured before
the first write) → one database transaction moves the conversation and what hangs on it, and is the commit point →
engine cleans up. Killed anywhere, start-up asks the store which side it was on.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from hub.checkpoint.values import Applied, Plan
from hub.clock import iso
from hub.daemon import hooks, wishes
from hub.daemon.calls import Seal
from hub.daemon.dispatcher import Dispatcher
from hub.daemon.hooks import HookFailed, Occasion
from hub.daemon.restore_views import Told, notice, nowhere, unknown, view
from hub.daemon.services import Services
from hub.daemon.wishes import Wish
from hub.daemon.worktrees import Asked, Request, describe, series_of
from hub.domain.states import IllegalMove
from hub.errors import ConflictError, NotFoundError, RefusedError
from hub.ids import new_id
from hub.protocol.params import CheckpointRestore, CheckpointUndo
from hub.protocol.views import EffectView, RestoreView
from hub.store import calls, checkpoints, messages, notices, runs, suspensions
from hub.store.checkpoints import Bond, Captured, Intent, Outcome
from hub.store.database import Connection, Transaction

POLL_S = 0.05
INTERRUPT_S = 30.0
"""Seconds that a restore waits for interrupted runs to end."""


class Restores:
    """The one door to bring things back: `hubctl`, chat and dashboard all come here."""

    def __init__(self, services: Services, dispatcher: Dispatcher) -> None:
        self._services = services
        self._dispatcher = dispatcher

    async def restore(self, params: CheckpointRestore, actor: str, seal: Seal) -> RestoreView:
        """Restore a checkpoint. Raises NotFoundError, RefusedError run_active, ConflictError when files moved."""
        wish = await self._services.database.read(lambda conn: wishes.of_restore(conn, params))
        return await self._carry_out(wish, actor, seal)

    async def undo(self, params: CheckpointUndo, actor: str, worktree: str | None, seal: Seal) -> RestoreView:
        """Undo the newest restore of a session or worktree. Raises NotFoundError nothing_to_undo."""
        wish = await self._services.database.read(lambda conn: wishes.of_undo(conn, params, worktree))
        return await self._carry_out(wish, actor, seal)

    async def redo(self, params: CheckpointUndo, actor: str, worktree: str | None, seal: Seal) -> RestoreView:
        """Repeat the restore that was undone last. Raises NotFoundError nothing_to_redo."""
        wish = await self._services.database.read(lambda conn: wishes.of_redo(conn, params, worktree))
        return await self._carry_out(wish, actor, seal)

    async def _carry_out(self, wish: Wish, actor: str, seal: Seal) -> RestoreView:
        if wish.dry_run:
            return await self._preview(wish)
        worktree, token = wish.checkpoint.worktree, new_id("restore")
        if not self._services.admission.reserve(worktree, token):
            raise RefusedError("Another restore works in this worktree.", code="workspace_busy", retryable=True)
        try:
            await self._clear_the_way(wish, actor)
            return await self._with_waiting_runs_let_go(wish, actor, seal)
        finally:
            self._services.admission.release(worktree, token)

    async def _preview(self, wish: Wish) -> RestoreView:
        told, asked = await self._services.database.read(lambda conn: (_tell(conn, wish), _asked(conn, wish)))
        if not wish.files:
            return view(wish, told, None)
        plan = await self._services.worktrees.preview(wish.checkpoint.worktree, wish.checkpoint.ref, asked)
        return view(wish, told, plan, notes=await self._unknown_paths(wish, plan))

    async def _unknown_paths(self, wish: Wish, plan: Plan) -> Sequence[str]:
        """Return a note on named paths that are nowhere. Raises NotFoundError no_such_path when all are."""
        if wish.direction != "restore" or not wish.scope.paths:
            return ()
        paths = [path.rstrip(b"/") for path in wish.scope.paths]
        absent = await asyncio.to_thread(_absent, wish.checkpoint.worktree, paths)
        told = [nowhere(path) for path in unknown(absent, plan)]
        if len(told) == len(paths):
            raise NotFoundError(" ".join(told), code="no_such_path", hint="Paths are meant from the current directory.")
        return told

    async def _clear_the_way(self, wish: Wish, actor: str) -> None:
        """Make sure that no run executes in the worktree; with `interrupt`, cancel it and see it end.

        The worktree is reserved, so none begins or goes on meanwhile. Runs that wait for an answer are not in the way.
        """
        worktree = wish.checkpoint.worktree
        executing = await self._services.database.read(lambda conn: runs.executing_in(conn, worktree))
        if executing and not wish.interrupt:
            raise RefusedError(
                f"Run {executing[0].id} is {executing[0].state} in this worktree.",
                code="run_active",
                hint="Wait for it, cancel it with `hubctl cancel`, or use --interrupt.",
            )
        for row in executing:
            await self._services.database.write(lambda tx, id=row.id: _ask_cancel(tx, id, actor))  # type: ignore[misc]
        try:
            async with asyncio.timeout(INTERRUPT_S):
                while await self._in_the_way(worktree):  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            text = f"A run did not end within {INTERRUPT_S:g} s; nothing was restored."
            raise RefusedError(text, code="run_active", retryable=True) from None

    async def _in_the_way(self, worktree: str) -> bool:
        executing = await self._services.database.read(lambda conn: runs.executing_in(conn, worktree))
        return bool(executing) or self._services.admission.holder(worktree) is not None

    async def _with_waiting_runs_let_go(self, wish: Wish, actor: str, seal: Seal) -> RestoreView:
        """Restore while nobody drives the waiting runs that go back with it; if that fails they wait on as before."""
        waiting = await self._services.database.read(lambda conn: _waiting(conn, wish))
        for row in waiting:
            await self._dispatcher.let_go(row.id)
        try:
            return await self._apply(wish, actor, seal)
        except BaseException:
            for row in waiting:
                await self._dispatcher.take_up_waiting(row)
            raise

    async def _apply(self, wish: Wish, actor: str, seal: Seal) -> RestoreView:
        if not wish.files:
            return await self._services.database.write(lambda tx: _move_only(tx, wish, actor, seal))
        worktree, ref = wish.checkpoint.worktree, wish.checkpoint.ref
        undo_id = new_id("checkpoint")
        request, unsaved = await hooks.before_capture(self._services, await self._undo_request(wish, undo_id))
        asked = await self._services.database.read(lambda conn: _asked(conn, wish))
        with hooks.forgotten_if_refused(self._services, undo_id):
            plan = await self._services.worktrees.plan(ref, undo_id, request, asked)
            notes = await self._checked_paths(wish, plan)
            if await self._is_idle(wish, plan):
                return await self._changed_nothing(wish, plan, undo_id, notes, seal)
            captured = describe(undo_id, request, plan.undo)
            restore_id = await self._services.database.write(lambda tx: self._begin(tx, wish, plan, captured))
        notes = [*notes, *([unsaved.message] if unsaved is not None else [])]

        def commit(tx: Transaction, applied: Applied) -> RestoreView:
            return _commit(tx, wish, restore_id, plan, applied, undo_id, actor, seal, notes)

        with self._services.worktrees.restoring(worktree):
            done = await self._carried_out(wish, plan, restore_id, commit)
        return await self._hooked(wish, done, seal)

    async def _checked_paths(self, wish: Wish, plan: Plan) -> Sequence[str]:
        """Return what `_unknown_paths` does; when it raises, the plan's undo point goes."""
        try:
            return await self._unknown_paths(wish, plan)
        except NotFoundError:
            await self._forget(wish, plan)
            raise

    async def _is_idle(self, wish: Wish, plan: Plan) -> bool:
        """Return whether a restore has nothing to do. An undo always has: what it takes back counts as undone."""
        if wish.direction != "restore" or not plan.is_empty:
            return False
        told = await self._services.database.read(lambda conn: _tell(conn, wish))
        return not (told.messages or told.cancelled)

    async def _changed_nothing(
        self, wish: Wish, plan: Plan, undo_id: str, notes: Sequence[str], seal: Seal
    ) -> RestoreView:
        """Answer a restore that has nothing to do: it leaves no undo point, the newest restore stays the newest."""
        await self._forget(wish, plan)
        hooks.forget(self._services.settings.hooks, [undo_id])

        def answer(tx: Transaction) -> RestoreView:
            done = view(wish, _tell(tx.conn, wish), plan, notes=notes)
            seal(tx, done)
            return done

        return await self._services.database.write(answer)

    async def _forget(self, wish: Wish, plan: Plan) -> None:
        await self._services.worktrees.work(wish.checkpoint.worktree, lambda engine: engine.forget([plan.undo.ref]))

    async def _hooked(self, wish: Wish, done: RestoreView, seal: Seal) -> RestoreView:
        """Run the user's hook after a restore; if it fails that is told, and the restore stands."""
        row = wish.checkpoint
        occasion = Occasion(worktree=row.worktree, checkpoint_id=row.id, session_id=wish.session_id)
        try:
            await hooks.run(self._services, "restore_after", occasion)
        except HookFailed as failure:
            told = msgspec.structs.replace(done, notes=[*done.notes, failure.message])
            await self._services.database.write(lambda tx: seal(tx, told))
            return told
        return done

    async def _carried_out(
        self, wish: Wish, plan: Plan, restore_id: str, commit: Callable[[Transaction, Applied], RestoreView]
    ) -> RestoreView:
        worktree = wish.checkpoint.worktree
        try:
            applied = await self._services.worktrees.work(
                worktree, lambda engine: engine.apply(plan, on_conflict=wish.on_conflict)
            )
        except Exception:
            await self._services.database.write(lambda tx: checkpoints.roll_back_restore(tx, restore_id))
            raise
        try:
            done = await self._services.database.write(lambda tx: commit(tx, applied))
        except Exception:
            await self._services.worktrees.work(worktree, lambda engine: engine.abort(plan.txid))
            raise
        await self._services.worktrees.work(worktree, lambda engine: engine.finish(plan.txid))
        await self._services.database.write(lambda tx: checkpoints.settle_restore(tx, restore_id))
        return done

    def _begin(self, tx: Transaction, wish: Wish, plan: Plan, captured: Captured) -> str:
        if runs.executing_in(tx.conn, wish.checkpoint.worktree):
            raise ConflictError("A run began in this worktree meanwhile; nothing was changed.", code="run_active")
        checkpoints.add(tx, captured)
        return checkpoints.begin_restore(tx, _intent(tx.conn, wish, captured.id, plan))

    async def _undo_request(self, wish: Wish, undo_id: str) -> Request:
        session_id, worktree = wish.session_id, wish.checkpoint.worktree
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
            note=f"before restoring {wish.checkpoint.id}",
            checkpoint_id=undo_id,
        )


def _absent(worktree: str, paths: Sequence[bytes]) -> list[bytes]:
    """Return which paths are not on disk."""
    return [path for path in paths if not os.path.lexists(Path(worktree, os.fsdecode(path)))]


def _tell(conn: Connection, wish: Wish) -> Told:
    """Return what goes back with the conversation, and what was done since that no restore undoes."""
    effects = []
    if wish.files and wish.direction == "restore":
        effects = calls.effects_since(conn, wish.checkpoint.worktree, wish.checkpoint.created_at)
    told = [
        EffectView(run_id=row.run_id, call_id=row.id, summary=row.summary, at=iso(row.started_at)) for row in effects
    ]
    count, gone = _superseded(conn, wish)
    return Told(
        messages=count,
        runs=gone,
        effects=told,
        cancelled=suspensions.found(conn, wish.session_id, gone) if wish.session_id else [],
        resumed=suspensions.of(conn, wish.undoes.id) if wish.undoes is not None else [],
    )


def _superseded(conn: Connection, wish: Wish) -> tuple[int, list[str]]:
    """Return how many messages and which runs are put aside."""
    if not wish.conversation or wish.session_id is None:
        return 0, []
    return messages.beyond(conn, wish.session_id, wish.head_id)


def _waiting(conn: Connection, wish: Wish) -> list[Any]:
    """Return the rows of the runs that wait for an answer and go back with the conversation."""
    _, gone = _superseded(conn, wish)
    active = runs.active_in(conn, wish.checkpoint.worktree)
    return [row for row in active if row.state == "waiting" and row.id in gone]


def _asked(conn: Connection, wish: Wish) -> Asked:
    """Return what the engine is asked for; authors are told where a session's own changes are to be known."""
    scope, mine, history = wish.scope, wish.mine, wish.mine.history or ()
    if mine.owner is not None and mine.history is None:
        history = checkpoints.history(conn, wish.checkpoint.worktree, wish.checkpoint)
    return Asked(paths=scope.paths, reach=scope.reach, owner=mine.owner, history=history, head=scope.head)


def _intent(conn: Connection, wish: Wish, undo_id: str | None, plan: Plan | None) -> Intent:
    counts = {"restored": 0, "created": 0, "deleted": 0}
    scope = wish.scope.stored("tree", ())
    if plan is not None:
        counts = {"restored": len(plan.writes), "created": len(plan.creations), "deleted": len(plan.deletions)}
        touched = [step.name for step in (*plan.writes, *plan.creations, *plan.deletions)]
        scope = wish.scope.stored(plan.reach, touched)
    return Intent(
        session_id=wish.session_id,
        worktree=wish.checkpoint.worktree,
        checkpoint_id=wish.checkpoint.id,
        undo_id=undo_id,
        only=wish.only,
        direction=wish.direction,
        previous_head=messages.head(conn, wish.session_id) if wish.session_id else None,
        txid=plan.txid if plan is not None else None,
        summary=counts,
        scope=scope,
    )


def _commit(
    tx: Transaction,
    wish: Wish,
    restore_id: str,
    plan: Plan | None,
    applied: Applied | None,
    undo_id: str | None,
    actor: str,
    seal: Seal,
    notes: Sequence[str] = (),
) -> RestoreView:
    """The commit point: conversation, what hangs on it, restore and answer move together."""
    told = _tell(tx.conn, wish)
    done = view(wish, told, plan, applied, undo_id)
    done = msgspec.structs.replace(done, notes=[*done.notes, *notes])
    suspensions.put_aside(tx, restore_id, told.cancelled)
    moved = 0
    if wish.conversation and wish.session_id is not None:
        moved = messages.move_head(tx, wish.session_id, wish.head_id)
    if wish.undoes is not None:
        notices.withdraw(tx, wish.undoes.id)
        suspensions.bring_back(tx, told.resumed, actor)
    text = notice(wish, done)
    if text is not None and wish.session_id is not None:
        notices.add(tx, wish.session_id, restore_id, text)
    outcome = Outcome(
        messages=moved, cancelled=len(told.cancelled), resumed=len(told.resumed), head_moved=done.head_moved
    )
    checkpoints.commit_restore(tx, restore_id, outcome, wish.undoes.id if wish.undoes is not None else None)
    seal(tx, done)
    return done


def _move_only(tx: Transaction, wish: Wish, actor: str, seal: Seal) -> RestoreView:
    restore_id = checkpoints.begin_restore(tx, _intent(tx.conn, wish, None, None))
    return _commit(tx, wish, restore_id, None, None, None, actor, seal)


def _ask_cancel(tx: Transaction, run_id: str, actor: str) -> None:
    try:
        runs.ask_cancel(tx, run_id, actor)
    except IllegalMove:
        return  # it ended by itself meanwhile
