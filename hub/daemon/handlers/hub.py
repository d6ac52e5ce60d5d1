"""hub.*: the daemon itself."""

import os
from collections.abc import Callable

from hub import __version__
from hub.clock import iso
from hub.daemon.calls import Caller, Handlers
from hub.daemon.services import Services
from hub.protocol.events import HubDraining
from hub.protocol.params import Nothing, Shutdown
from hub.protocol.views import Ack, Status
from hub.store import approvals, sessions
from hub.store.database import Transaction


class HubHandlers:
    """Serves the hub methods. `stop` asks the process to drain and end; `state` tells how its parts are."""

    def __init__(
        self,
        services: Services,
        *,
        url: Callable[[], str],
        state: Callable[[], dict[str, str]],
        drain: Callable[[], None],
        stop: Callable[[float], None],
    ) -> None:
        self._services = services
        self._url = url
        self._state = state
        self._drain = drain
        self._stop = stop
        self._started_at = iso(services.clock.now())
        self._draining = False

    def register(self, handlers: Handlers) -> None:
        """Enter the table."""
        handlers.asynchronous("hub.status", self.status)
        handlers.asynchronous("hub.drain", self.drain)
        handlers.asynchronous("hub.shutdown", self.shutdown)

    async def status(self, params: Nothing, caller: Caller) -> Status:
        parts = self._state()
        (open_sessions, active_runs), open_approvals = await self._services.database.read(
            lambda conn: (sessions.counts(conn), approvals.open_count(conn))
        )
        identity = self._services.identity
        return Status(
            pid=os.getpid(),
            url=self._url(),
            version=__version__,
            ready=all(state in ("ready", "idle", "off") for state in parts.values()),
            draining=self._draining,
            hub_id=identity.hub_id,
            boot_id=identity.boot_id,
            home=str(self._services.settings.home),
            started_at=self._started_at,
            default_model=self._services.settings.config.model.name,
            sessions=open_sessions,
            runs_active=active_runs,
            approvals_open=open_approvals,
            components=parts,
        )

    async def drain(self, params: Shutdown, caller: Caller) -> Ack:
        await self._begin_drain(params.deadline_s)
        return Ack(id=self._services.identity.boot_id, state="draining")

    async def shutdown(self, params: Shutdown, caller: Caller) -> Ack:
        await self._begin_drain(params.deadline_s)
        self._stop(params.deadline_s)
        return Ack(id=self._services.identity.boot_id, state="stopping")

    async def _begin_drain(self, deadline_s: float) -> None:
        self._draining = True
        self._drain()

        def announce(tx: Transaction) -> None:
            tx.emit("hub.draining", HubDraining(deadline_s=deadline_s))

        await self._services.database.write(announce)
