"""checkpoint.keep, prune, purge, verify, export: looking after saved states."""

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from hub.checkpoint.keeping.retention import Limits, Pruned
from hub.checkpoint.keeping.verify import Verified
from hub.daemon import pruning
from hub.daemon.calls import Caller, Handlers, Seal
from hub.daemon.handlers import places
from hub.daemon.services import Services
from hub.daemon.worktrees import series_of
from hub.errors import UsageError
from hub.protocol.params import CheckpointExport, CheckpointKeep, CheckpointPrune, CheckpointPurge, CheckpointVerify
from hub.protocol.views import CheckpointView, ExportedView, FindingView, PrunedItemView, PrunedView, VerifiedView
from hub.store import checkpoints, sessions
from hub.store.database import Transaction

T = TypeVar("T")


class KeepingHandlers:
    """Serves the methods by which checkpoints are protected, deleted, proven and carried away."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, handlers: Handlers) -> None:
        """Enter the table."""
        handlers.sealed("checkpoint.keep", self.keep)
        handlers.sealed("checkpoint.prune", self.prune)
        handlers.sealed("checkpoint.purge", self.purge)
        handlers.sealed("checkpoint.verify", self.verify)
        handlers.sealed("checkpoint.export", self.export)

    async def keep(self, params: CheckpointKeep, caller: Caller, seal: Seal) -> CheckpointView:
        row = await self._services.database.read(lambda conn: checkpoints.row(conn, params.checkpoint_id))
        await self._services.worktrees.work(row.worktree, lambda engine: engine.keep(row.ref, params.keep))

        def store(tx: Transaction) -> CheckpointView:
            checkpoints.protect(tx, row.id, params.keep)
            told = checkpoints.view(tx.conn, row.id)
            seal(tx, told)
            return told

        return await self._services.database.write(store)

    async def prune(self, params: CheckpointPrune, caller: Caller, seal: Seal) -> PrunedView:
        worktree = (await places.find(self._services, params.workspace, caller)).worktree
        section = self._services.settings.config.checkpoint
        limits = Limits(
            runs=params.runs or section.keep_runs,
            days=section.keep_days if params.days is None else params.days,
            bytes=section.keep_bytes if params.max_bytes is None else params.max_bytes,
        )
        pruned = await pruning.prune(self._services, worktree, limits, dry_run=params.dry_run)
        return await self._settle(worktree, pruned, seal)

    async def purge(self, params: CheckpointPurge, caller: Caller, seal: Seal) -> PrunedView:
        if (params.session_id is None) == (params.workspace is None):
            raise UsageError("Give either session_id or workspace.")
        session_id = params.session_id
        if session_id is not None:
            worktree = (await self._services.database.read(lambda conn: sessions.row(conn, session_id))).worktree
        else:
            worktree = (await places.find(self._services, params.workspace or "", caller)).worktree
        series = series_of(session_id, worktree)
        pruned = await self._services.worktrees.work(
            worktree, lambda engine: engine.purge(series, dry_run=params.dry_run)
        )
        return await self._settle(worktree, pruned, seal)

    async def _settle(self, worktree: str, pruned: Pruned, seal: Seal) -> PrunedView:
        def tell(tx: Transaction, ids: dict[str, str]) -> PrunedView:
            told = _pruned(pruned, ids)
            seal(tx, told)
            return told

        return await pruning.note_gone(self._services, worktree, tell)

    async def verify(self, params: CheckpointVerify, caller: Caller, seal: Seal) -> VerifiedView:
        worktree = (await places.find(self._services, params.workspace, caller)).worktree
        found = await self._services.worktrees.work(
            worktree, lambda engine: engine.verify(repair=params.repair, deep=params.deep)
        )
        return await self._sealed(seal, _verified(found))

    async def export(self, params: CheckpointExport, caller: Caller, seal: Seal) -> ExportedView:
        rows = await self._services.database.read(
            lambda conn: [checkpoints.row(conn, wanted) for wanted in params.checkpoint_ids]
        )
        worktree, refs = _of_one_worktree([(row.worktree, row.ref) for row in rows])
        file = Path(params.path)
        if not file.is_absolute():
            raise UsageError(f"{params.path!r} is not an absolute path.")
        done = await self._services.worktrees.work(
            worktree, lambda engine: engine.export(refs, file, overwrite=params.overwrite)
        )
        told = ExportedView(path=done.file, refs=list(done.refs), bytes=done.bytes, commands=list(done.commands))
        return await self._sealed(seal, told)

    async def _sealed(self, seal: Seal, told: T) -> T:
        await self._services.database.write(lambda tx: seal(tx, told))
        return told


def _of_one_worktree(rows: Sequence[tuple[str, str]]) -> tuple[str, list[str]]:
    worktrees = {worktree for worktree, _ in rows}
    if len(worktrees) != 1:
        raise UsageError("These checkpoints are of different worktrees.", code="other_workspace")
    return worktrees.pop(), [ref for _, ref in rows]


def _pruned(pruned: Pruned, ids: dict[str, str]) -> PrunedView:
    items = [
        PrunedItemView(checkpoint_id=ids.get(gone.ref), ref=gone.ref, why=gone.why, bytes=gone.bytes)
        for gone in pruned.pruned
    ]
    return PrunedView(
        pruned=items,
        kept=pruned.kept,
        bytes_before=pruned.bytes_before,
        bytes_pruned=pruned.bytes_pruned,
        dry_run=pruned.dry_run,
    )


def _verified(found: Verified) -> VerifiedView:
    findings = [
        FindingView(kind=row.kind, name=row.name, text=row.text, repaired=row.repaired) for row in found.findings
    ]
    return VerifiedView(
        checkpoints=found.checkpoints,
        complete=found.complete,
        deep=found.deep,
        sound=found.is_sound,
        findings=findings,
    )
