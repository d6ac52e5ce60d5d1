"""Housekeeping: what must happen now and then. Questions expire, old answers to keys go, the event log is trimmed,
checkpoints are pruned.
"""

import asyncio
from datetime import timedelta

from hub.daemon.pruning import Pruner
from hub.daemon.services import Services
from hub.store import approvals, eventlog, questions, registry
from hub.store.database import Transaction

EXPIRY_EVERY_S = 5.0
TRIM_EVERY = 720
"""Rounds of expiry between two trims: an hour."""
PRUNE_FIRST = 12
"""Rounds before the first look for what is to be pruned: a minute, so as not to hold up a start."""


async def keep_house(services: Services) -> None:
    """Do it until cancelled."""
    rounds, pruner = 0, Pruner(services)
    while True:
        await expire(services)
        if rounds % TRIM_EVERY == PRUNE_FIRST:
            await pruner.look()
        await pruner.work()
        if rounds % TRIM_EVERY == 0:
            await trim(services)
        rounds += 1
        await asyncio.sleep(EXPIRY_EVERY_S)


async def expire(services: Services) -> int:
    """Close approvals and questions whose time is over; a look without a write lock comes first."""
    now = services.clock.now()
    due = await services.database.read(lambda conn: approvals.due(conn, now) + questions.due(conn, now))
    if not due:
        return 0
    return await services.database.write(lambda tx: approvals.expire_due(tx) + questions.expire_due(tx))


async def trim(services: Services) -> None:
    """Keep the event log and the stored answers within their bounds."""
    section = services.settings.config.events

    def work(tx: Transaction) -> None:
        oldest = tx.now - timedelta(days=section.max_age_days)
        eventlog.trim(tx.conn, max_rows=section.max_rows, oldest=oldest)
        registry.forget_answers(tx)

    await services.database.write(work)
