"""Restores that were applied and whose maker is gone: the store says whether they count, the engine does the rest.

At start-up for all, and at the next use of a worktree that refuses because of one.
"""

from typing import Any

from hub.daemon.worktrees import Worktrees
from hub.store import checkpoints
from hub.store.database import Database


async def settle(database: Database, worktrees: Worktrees, row: Any) -> bool:
    """End a restore that nobody carries out any more; return whether it counts. Raises as the engine does.

    Decided first and by a transaction, so that a commit which is still under way comes before it or is refused.
    """
    counts = await database.write(lambda tx: checkpoints.decide_restore(tx, row.id))

    def is_committed(txid: str) -> bool:
        return counts and bool(txid == row.txid)

    if row.txid is not None:
        await worktrees.recover(row.worktree, is_committed)
    await database.write(lambda tx: checkpoints.settle_restore(tx, row.id))
    return counts


async def heal(database: Database, worktrees: Worktrees, worktree: str) -> None:
    """End what was left of restores in a worktree."""
    for row in await database.read(checkpoints.unsettled_restores):
        if row.worktree == worktree:
            await settle(database, worktrees, row)
