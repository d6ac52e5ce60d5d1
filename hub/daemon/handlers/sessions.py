"""session.*: conversations."""

from hub.daemon.calls import Caller, Handlers
from hub.daemon.handlers import places
from hub.daemon.services import Services
from hub.daemon.starting import Place
from hub.protocol.params import (
    SessionChange,
    SessionCreate,
    SessionList,
    SessionMessages,
    SessionRef,
    SessionUpdate,
)
from hub.protocol.views import SessionView, Transcript
from hub.store import messages, sessions
from hub.store.database import Transaction


def register(handlers: Handlers, services: Services) -> None:
    """Serve the session methods."""

    async def locate(params: SessionCreate, caller: Caller) -> Place:
        return await places.find(services, params.workspace, caller)

    async def listing(params: SessionList, caller: Caller) -> list[SessionView]:
        return await services.database.read(
            lambda conn: sessions.listing(conn, archived=params.archived, limit=params.limit)
        )

    async def get(params: SessionRef, caller: Caller) -> SessionView:
        return await services.database.read(lambda conn: sessions.view(conn, params.session_id))

    async def transcript(params: SessionMessages, caller: Caller) -> Transcript:
        return await services.database.read(
            lambda conn: messages.told(
                conn, params.session_id, params.after, params.limit, superseded=params.superseded
            )
        )

    handlers.prepared("session.create", locate, _create)
    handlers.asynchronous("session.list", listing)
    handlers.asynchronous("session.get", get)
    handlers.asynchronous("session.messages", transcript)
    handlers.transactional("session.update", _update)
    handlers.transactional("session.archive", _archive)


def _create(tx: Transaction, params: SessionCreate, caller: Caller, place: Place) -> SessionView:
    return sessions.view(tx.conn, sessions.create(tx, place.workspace, place.worktree, params.title))


def _update(tx: Transaction, params: SessionUpdate, caller: Caller) -> SessionView:
    return sessions.rename(tx, params.session_id, params.title)


def _archive(tx: Transaction, params: SessionChange, caller: Caller) -> SessionView:
    return sessions.archive(tx, params.session_id)
