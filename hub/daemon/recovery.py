"""Start-up recovery: what an earlier boot left behind is brought into a defined state before anything new begins.

Order: survivors are ended, so that no orphan writes beside the next run; restores go forward or back; calls whose end
nobody saw become unknown, and the model is told; then runs are freed to be taken up. Nothing is executed again.
"""

import logging
from typing import Any

import msgspec

from hub.daemon.children import end_survivors
from hub.daemon.services import Services
from hub.daemon.settling import settle
from hub.domain.runs import Found, after_restart
from hub.errors import TurnbackError
from hub.protocol.events import HubStarted
from hub.store import calls, checkpoints, endings, runs
from hub.store.calls import Result
from hub.store.database import Transaction
from hub.store.runs import Ending

log = logging.getLogger(__name__)

UNKNOWN_TEXT = (
    "The hub was stopped while this call was executing, so its outcome is unknown. It was not executed again. "
    "Look at the state of things before you repeat it."
)
CRASH_TEXT = "The hub stopped three times while this run was executing, so it was not taken up again."


class Recovered(msgspec.Struct, kw_only=True):
    """What start-up found."""

    runs_reclaimed: int = 0
    calls_unknown: int = 0
    children_ended: int = 0
    restores_forward: int = 0
    restores_back: int = 0


async def recover(services: Services) -> Recovered:
    """Bring everything into a defined state and say so in the log."""
    found = Recovered()
    found.children_ended = await end_survivors(services.database)
    await _finish_restores(services, found)
    await services.database.write(lambda tx: _calls_and_runs(tx, found))
    boot_id = services.identity.boot_id
    started = HubStarted(boot_id=boot_id, **msgspec.structs.asdict(found))
    await services.database.write(lambda tx: tx.emit("hub.started", started))
    return found


async def _finish_restores(services: Services, found: Recovered) -> None:
    for row in await services.database.read(checkpoints.unsettled_restores):
        try:
            counts = await settle(services.database, services.worktrees, row)
        except TurnbackError as error:
            log.error("a restore could not be settled", extra={"restore": row.id, "reason": error.message})
            continue
        if counts:
            found.restores_forward += 1
        else:
            found.restores_back += 1


def _calls_and_runs(tx: Transaction, found: Recovered) -> None:
    found.calls_unknown = found.runs_reclaimed = 0
    for call in calls.executing(tx.conn):
        calls.conclude(tx, call, Result(state="unknown", text=UNKNOWN_TEXT))
        found.calls_unknown += 1
    for run in runs.unfinished(tx.conn):
        _settle_run(tx, run, found)


def _settle_run(tx: Transaction, run: Any, found: Recovered) -> None:
    asked = run.cancel_by is not None
    fate = after_restart(Found(state=run.state, crashes=run.crashes, cancel_asked=asked))
    if fate == "requeue" and run.state == "running":
        endings.free(tx, run, crashed=True)
        found.runs_reclaimed += 1
    elif fate == "cancel":
        endings.close_calls(tx, run.id, f"The run was cancelled by {run.cancel_by}.")
        text = f"The run was cancelled by {run.cancel_by}."
        runs.end(tx, run.id, Ending(state="cancelled", stop_reason="cancelled", error=text))
    elif fate == "fail":
        endings.close_calls(tx, run.id, CRASH_TEXT)
        runs.end(tx, run.id, Ending(state="failed", stop_reason="crash_loop", error=CRASH_TEXT))
