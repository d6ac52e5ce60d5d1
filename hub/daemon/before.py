"""The checkpoint before a run: begun beside the first model request, awaited by the first call that may write."""

import asyncio
import itertools
from collections.abc import Sequence

from hub.daemon.running import Running, RunOver
from hub.daemon.worktrees import Request, series_of
from hub.domain.messages import Message
from hub.errors import TurnbackError
from hub.store import calls, checkpoints, messages, runs
from hub.store.checkpoints import Bond
from hub.store.database import Transaction


class BeforeCheckpoint:
    """Takes it once per run. A resumed run that has written already takes none: it would save the wrong state."""

    def __init__(self, running: Running) -> None:
        self._run = running
        self._capture: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Start the capture unless the run has one, has written, or checkpoints are off."""
        run = self._run
        if self._mode == "off" or run.has_checkpoint or run.may_have_written:
            return
        bond = Bond(
            session_id=run.session_id,
            run_id=run.run_id,
            run_count=run.run_count,
            message_id=before_run(run.transcript, run.run_id),
        )
        self._capture = asyncio.create_task(self._take(bond, run.run_count), name=f"capture-{run.run_id}")

    @property
    def _mode(self) -> str:
        """The configured mode; a run that asks nobody does not begin without a way back."""
        mode = self._run.services.settings.config.checkpoint.mode
        return "required" if mode == "best_effort" and self._run.spec.preset == "yolo" else mode

    @property
    def pending(self) -> bool:
        """Whether a capture is still being taken."""
        return self._capture is not None and not self._capture.done()

    async def ready(self) -> None:
        """Wait until it is taken or has failed. Raises RunOver when it failed and is required."""
        if self._capture is None:
            return
        try:
            await asyncio.shield(self._capture)
        except TurnbackError as error:
            if self._mode == "required":
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
            await asyncio.gather(self._capture, return_exceptions=True)


def before_run(transcript: Sequence[Message], run_id: str) -> str | None:
    """Return the id of the message that a run's first one follows: where the conversation stood before it."""
    earlier = list(itertools.takewhile(lambda message: message.run_id != run_id, transcript))
    return earlier[-1].id if earlier else None


async def take_after(running: Running) -> tuple[str, ...]:
    """Save the state that a run leaves, if it may have written; return the paths that differ from before.

    Without a checkpoint from before there is nothing to compare with: then the paths are those the tools told of.
    """
    if not running.may_have_written:
        return ()
    services, run_id = running.services, running.run_id
    row, head = await services.database.read(
        lambda conn: (runs.row(conn, run_id), messages.head(conn, running.session_id))
    )
    if row.checkpoint_id is None:
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
        return await _capture_after(running, request, row.checkpoint_id)
    except TurnbackError as error:
        code, reason = error.code, error.message
        await services.database.write(lambda tx: checkpoints.failed(tx, bond, "after", code, reason))
        return await services.database.read(lambda conn: calls.paths_of(conn, run_id))


async def _capture_after(running: Running, request: Request, before_id: str) -> tuple[str, ...]:
    services = running.services
    captured = await services.worktrees.capture(request)

    def store(tx: Transaction) -> str:
        checkpoints.add(tx, captured)
        runs.set_checkpoint(tx, running.run_id, "after_checkpoint_id", captured.id)
        return str(checkpoints.row(tx.conn, before_id).ref)

    before_ref = await services.database.write(store)
    changes = await services.worktrees.work(running.spec.worktree, lambda engine: engine.diff(before_ref, captured.ref))
    return tuple(change.path for change in changes)
