"""checkpoint.*: saved states of workspaces, and the way back to them."""

from hub.daemon import hooks
from hub.daemon.calls import Caller, Handlers, Seal
from hub.daemon.dispatcher import Dispatcher
from hub.daemon.handlers import places
from hub.daemon.restores import Restores
from hub.daemon.services import Services
from hub.daemon.worktrees import Request, series_of
from hub.errors import UsageError
from hub.protocol.params import (
    CheckpointCreate,
    CheckpointDiff,
    CheckpointList,
    CheckpointRef,
    CheckpointRestore,
    CheckpointUndo,
)
from hub.protocol.views import ChangeView, CheckpointView, DiffView, RestoreView
from hub.store import checkpoints, messages, sessions
from hub.store.checkpoints import Bond
from hub.store.database import Transaction


class CheckpointHandlers:
    """Serves the checkpoint methods."""

    def __init__(self, services: Services, dispatcher: Dispatcher) -> None:
        self._services = services
        self._restores = Restores(services, dispatcher)

    def register(self, handlers: Handlers) -> None:
        """Enter the table."""
        handlers.sealed("checkpoint.create", self.create)
        handlers.asynchronous("checkpoint.list", self.listing)
        handlers.asynchronous("checkpoint.show", self.show)
        handlers.asynchronous("checkpoint.diff", self.diff)
        handlers.sealed("checkpoint.restore", self.restore)
        handlers.sealed("checkpoint.undo", self.undo)
        handlers.sealed("checkpoint.redo", self.redo)

    async def create(self, params: CheckpointCreate, caller: Caller, seal: Seal) -> CheckpointView:
        worktree, bond = await self._bond(params.session_id, params.workspace, caller)
        series = series_of(params.session_id, worktree)
        taken = await self._services.database.read(lambda conn: checkpoints.refs_in(conn, worktree))
        manual = sum(1 for ref in taken if ref.startswith(f"{series}/") and ref.endswith("m"))
        request = Request(
            worktree=worktree,
            kind="manual",
            bond=bond,
            series=series,
            number=manual + 1,
            letter="m",
            note=params.note,
            budget_s=self._services.settings.config.checkpoint.first_budget_s,
        )
        request, _ = await hooks.before_capture(self._services, request)
        with hooks.forgotten_if_refused(self._services, request.checkpoint_id):
            captured = await self._services.worktrees.capture(request)

        def store(tx: Transaction) -> CheckpointView:
            checkpoints.add(tx, captured)
            made = checkpoints.view(tx.conn, captured.id)
            seal(tx, made)
            return made

        return await self._services.database.write(store)

    async def _bond(self, session_id: str | None, workspace: str | None, caller: Caller) -> tuple[str, Bond]:
        if (session_id is None) == (workspace is None):
            raise UsageError("Give either session_id or workspace.")
        if session_id is None:
            return (await places.find(self._services, workspace or "", caller)).worktree, Bond()
        row, head = await self._services.database.read(
            lambda conn: (sessions.row(conn, session_id), messages.head(conn, session_id))
        )
        return row.worktree, Bond(session_id=session_id, run_count=row.run_count + 1, message_id=head)

    async def listing(self, params: CheckpointList, caller: Caller) -> list[CheckpointView]:
        worktree = None
        if params.workspace is not None:
            worktree = (await places.find(self._services, params.workspace, caller)).worktree
        return await self._services.database.read(
            lambda conn: checkpoints.listing(
                conn, session_id=params.session_id, worktree=worktree, kinds=params.kinds, limit=params.limit
            )
        )

    async def show(self, params: CheckpointRef, caller: Caller) -> CheckpointView:
        return await self._services.database.read(lambda conn: checkpoints.view(conn, params.checkpoint_id))

    async def diff(self, params: CheckpointDiff, caller: Caller) -> DiffView:
        row, other = await self._services.database.read(
            lambda conn: (
                checkpoints.row(conn, params.checkpoint_id),
                checkpoints.row(conn, params.other_id) if params.other_id else None,
            )
        )
        if other is not None and other.worktree != row.worktree:
            raise UsageError("These checkpoints are of different worktrees.", code="other_workspace")
        new_ref = other.ref if other is not None else None
        changes = await self._services.worktrees.work(row.worktree, lambda engine: engine.diff(row.ref, new_ref))
        patch = None
        if params.patch:
            patch = await self._services.worktrees.work(row.worktree, lambda engine: engine.patch(row.ref, new_ref))
        shown = [
            ChangeView(path=change.path, kind=change.kind, added=change.added, removed=change.removed)
            for change in changes
        ]
        return DiffView(changes=shown, patch=patch)

    async def restore(self, params: CheckpointRestore, caller: Caller, seal: Seal) -> RestoreView:
        return await self._restores.restore(params, caller.actor, seal)

    async def undo(self, params: CheckpointUndo, caller: Caller, seal: Seal) -> RestoreView:
        return await self._restores.undo(params, caller.actor, await self._worktree(params, caller), seal)

    async def redo(self, params: CheckpointUndo, caller: Caller, seal: Seal) -> RestoreView:
        return await self._restores.redo(params, caller.actor, await self._worktree(params, caller), seal)

    async def _worktree(self, params: CheckpointUndo, caller: Caller) -> str | None:
        """Return whose restores are meant when no session is named."""
        if params.session_id is not None and params.workspace is None:
            return None
        worktree, _ = await self._bond(params.session_id, params.workspace, caller)
        return worktree
