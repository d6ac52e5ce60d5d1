"""run.*: runs in progress and over."""

from hub.daemon.calls import Caller, Handlers
from hub.daemon.services import Services
from hub.errors import NotFoundError, UsageError
from hub.protocol.params import RunCancel, RunChange, RunList, RunRef
from hub.protocol.views import Ack, RunView
from hub.store import runs, sessions
from hub.store.database import Transaction


def register(handlers: Handlers, services: Services) -> None:
    """Serve the run methods."""

    async def get(params: RunRef, caller: Caller) -> RunView:
        return await services.database.read(lambda conn: runs.view(conn, params.run_id))

    async def listing(params: RunList, caller: Caller) -> list[RunView]:
        return await services.database.read(lambda conn: runs.listing(conn, params.session_id, params.limit))

    handlers.asynchronous("run.get", get)
    handlers.asynchronous("run.list", listing)
    handlers.transactional("run.cancel", _cancel)
    handlers.transactional("run.resume", _resume)


def _cancel(tx: Transaction, params: RunCancel, caller: Caller) -> Ack:
    """Store the wish; whoever drives the run stops it, and says so when it has."""
    row = runs.ask_cancel(tx, _meant(tx, params), caller.actor)
    return Ack(id=row.id, state="cancelling")


def _meant(tx: Transaction, params: RunCancel) -> str:
    if (params.run_id is None) == (params.session_id is None):
        raise UsageError("Give either run_id or session_id.")
    if params.run_id is not None:
        return params.run_id
    session_id = params.session_id or ""
    sessions.row(tx.conn, session_id)
    active = sessions.active_run(tx.conn, session_id)
    if active is None:
        raise NotFoundError(f"No run is in progress in session {session_id}.", code="no_active_run")
    return str(active.id)


def _resume(tx: Transaction, params: RunChange, caller: Caller) -> Ack:
    runs.resume(tx, params.run_id, caller.actor)
    return Ack(id=params.run_id, state="queued")
