"""Pruning and purging: what goes from the repository is noted in the store, and what hooks saved for it goes, too.

On request, and by itself: once an hour in each worktree that has had captures since, while nobody writes there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from hub.checkpoint.keeping.retention import Limits, Pruned
from hub.daemon.hooks import forget
from hub.daemon.services import Services
from hub.daemon.worktrees import series_of
from hub.errors import TurnbackError
from hub.store import checkpoints, sessions
from hub.store.database import Transaction

if TYPE_CHECKING:
    from hub.checkpoint.units import Units

log = logging.getLogger(__name__)

T = TypeVar("T")


async def prune(services: Services, worktree: str, limits: Limits, *, dry_run: bool) -> Pruned:
    """Delete the checkpoints of a worktree that are over the limits. Raises as the engine does."""
    live = await services.database.read(lambda conn: sessions.live_in(conn, worktree))
    series = {series_of(session_id, worktree) for session_id in live}
    return await services.worktrees.work(worktree, lambda engine: engine.prune(limits, live=series, dry_run=dry_run))


async def note_gone(services: Services, worktree: str, tell: Callable[[Transaction, dict[str, str]], T]) -> T:
    """Note which checkpoints were pruned, also those of an earlier time that nobody noted.

    What is merely not found is not noted: the repository may have been moved away, and come back.
    `tell` is called in the same transaction with ids by ref; its value is returned.
    """
    known = await services.database.read(lambda conn: checkpoints.unpruned(conn, worktree))
    gone = await services.worktrees.work(worktree, lambda engine: _pruned_among(engine, known))

    def store(tx: Transaction) -> tuple[T, set[str]]:
        ids = checkpoints.ids_by_ref(tx.conn, worktree)
        checkpoints.pruned(tx, worktree, gone)
        return tell(tx, ids), {ids[ref] for ref in gone}

    told, forgotten = await services.database.write(store)
    await asyncio.to_thread(forget, services.settings.hooks, forgotten)
    return told


def _pruned_among(engine: Units, refs: Sequence[str]) -> list[str]:
    there = {found.ref for found in engine.list()}
    return [ref for ref in refs if ref not in there and _was_pruned(engine, ref)]


def _was_pruned(engine: Units, ref: str) -> bool:
    try:
        engine.get(ref)
    except TurnbackError as error:
        return error.code == "checkpoint_pruned"
    return False


class Pruner:
    """Prunes by itself, by what is configured."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._due: set[str] = set()
        self._seen: datetime | None = None

    async def look(self) -> None:
        """Note the worktrees that have had captures since the last look; at the first, all that have any."""
        since, self._seen = self._seen, self._services.clock.now()
        self._due |= await self._services.database.read(lambda conn: checkpoints.worktrees_since(conn, since))

    async def work(self) -> None:
        """Prune the worktrees that are due and in which nobody writes. One that cannot be is tried after a later look.

        Like a run it holds the writer lock meanwhile, so that a run or a restore waits for it.
        """
        admission = self._services.admission
        for worktree in sorted(self._due):
            who = f"pruning {worktree}"
            if not admission.try_enter(worktree, who):
                continue
            self._due.discard(worktree)
            try:
                await self._prune(worktree)
            except TurnbackError as error:
                log.warning("a worktree was not pruned", extra={"worktree": worktree, "reason": error.message})
            finally:
                admission.leave(who)

    async def _prune(self, worktree: str) -> None:
        section = self._services.settings.config.checkpoint
        limits = Limits(runs=section.keep_runs, days=section.keep_days, bytes=section.keep_bytes)
        pruned = await prune(self._services, worktree, limits, dry_run=False)
        await note_gone(self._services, worktree, lambda tx, ids: None)
        if pruned.pruned:
            log.info("pruned", extra={"worktree": worktree, "checkpoints": len(pruned.pruned)})
