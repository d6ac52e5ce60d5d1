"""The checkpoint before a run: begun beside the first model request, awaited by the first call that may write."""

import asyncio

from hub.daemon.running import Running, RunOver
from hub.daemon.worktrees import Request, series_of
from hub.errors import TurnbackError
from hub.store import calls, checkpoints, messages, runs
from hub.store.checkpoints import Bond
from hub.store.database import Transaction


class BeforeCheckpoint:
    """Takes it once per run. A resumed run that has written already takes none: it would save the wrong state."""

    def __init__(self, running: Running) -> None:
        self._run = running
        self._capture: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start the capture unless the run has one, has written, or checkpoints are off."""
        if self._run.services.settings.config.checkpoint.mode == "off":
            return
        run_id, session_id = self._run.run_id, self._run.session_id
        row, wrote = await self._run.services.database.read(
            lambda conn: (runs.row(conn, run_id), calls.wrote(conn, run_id))
        )
        if row.checkpoint_id is None and not wrote:
            message_id = await self._run.services.database.read(
                lambda conn: messages.head_before(conn, session_id, run_id)
            )
            bond = Bond(session_id=session_id, run_id=run_id, run_count=row.run_count, message_id=message_id)
            self._capture = asyncio.create_task(self._take(bond, row.run_count), name=f"capture-{run_id}")

    async def ready(self) -> None:
        """Wait until it is taken or has failed. Raises RunOver when it failed and is required."""
        if self._capture is None:
            return
        try:
            await asyncio.shield(self._capture)
        except TurnbackError as error:
            if self._run.services.settings.config.checkpoint.mode == "required":
                raise RunOver("no_checkpoint", f"No checkpoint could be taken: {error.message}") from error

    async def _take(self, bond: Bond, number: int) -> None:
        services = self._run.services
        section = services.settings.config.checkpoint
        request = Request(
            worktree=self._run.spec.worktree,
            kind="before",
            bond=bond,
            series=series_of(bond.session_id, self._run.spec.worktree),
            number=number,
            letter="",
            budget_s=section.first_budget_s if number == 1 else section.budget_s,
        )
        try:
            captured = await services.worktrees.capture(request)
        except TurnbackError as error:
            code, reason = error.code, error.message
            await services.database.write(lambda tx: checkpoints.failed(tx, bond, "before", code, reason))
            raise

        def store(tx: Transaction) -> None:
            checkpoints.add(tx, captured)
            runs.set_checkpoint(tx, self._run.run_id, "checkpoint_id", captured.id)

        await services.database.write(store)

    async def stop(self) -> None:
        """Wait for a capture in flight, whatever becomes of it; its failure is stored already."""
        if self._capture is not None:
            await asyncio.wait([self._capture])


async def take_after(running: Running) -> tuple[str, ...]:
    """Save the state that a run leaves, if it may have written; return the paths that differ from before.

    Without a checkpoint from before there is nothing to compare with: then the paths are those the tools told of.
    """
    services, run_id = running.services, running.run_id
    row, wrote, head = await services.database.read(
        lambda conn: (runs.row(conn, run_id), calls.wrote(conn, run_id), messages.head(conn, running.session_id))
    )
    if not wrote or row.checkpoint_id is None:
        return await services.database.read(lambda conn: calls.paths_of(conn, run_id))
    bond = Bond(session_id=running.session_id, run_id=run_id, run_count=row.run_count, message_id=head)
    request = Request(
        worktree=running.spec.worktree,
        kind="after",
        bond=bond,
        series=series_of(running.session_id, running.spec.worktree),
        number=row.run_count,
        letter="a",
        budget_s=services.settings.config.checkpoint.budget_s,
    )
    try:
        captured = await services.worktrees.capture(request)
    except TurnbackError as error:
        code, reason = error.code, error.message
        await services.database.write(lambda tx: checkpoints.failed(tx, bond, "after", code, reason))
        return await services.database.read(lambda conn: calls.paths_of(conn, run_id))

    def store(tx: Transaction) -> str:
        checkpoints.add(tx, captured)
        runs.set_checkpoint(tx, run_id, "after_checkpoint_id", captured.id)
        return str(checkpoints.row(tx.conn, row.checkpoint_id).ref)

    before_ref = await services.database.write(store)
    changes = await services.worktrees.work(running.spec.worktree, lambda engine: engine.diff(before_ref, captured.ref))
    return tuple(change.path for change in changes)
