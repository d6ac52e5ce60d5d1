"""The composition root: makes every part once, in order, and takes them down in the opposite order.

Start: lock the home, open the database, recover, listen, publish. Nobody finds the hub before it can serve.
Stop: admit nothing new, let runs finish until the deadline, leave the rest for the next start, withdraw the record.
"""

import asyncio
import functools
import logging
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack

from hub import __version__
from hub.agent.tools.base import Tool
from hub.agent.tools.env import scrubbed_environment
from hub.agent.tools.registry import default_tools
from hub.clock import Clock, SystemClock, iso
from hub.daemon import discovery, housekeeping, logs, recovery, server, settling
from hub.daemon.admission import Admission
from hub.daemon.bus import Bus
from hub.daemon.calls import Handlers
from hub.daemon.children import Children
from hub.daemon.dispatcher import Dispatcher
from hub.daemon.handlers import approvals, deliveries, runs, sessions, workspaces
from hub.daemon.handlers.checkpoints import CheckpointHandlers
from hub.daemon.handlers.forks import ForkHandlers
from hub.daemon.handlers.hub import HubHandlers
from hub.daemon.handlers.keeping import KeepingHandlers
from hub.daemon.handlers.prompts import PromptHandlers
from hub.daemon.models import Models
from hub.daemon.modes import Modes
from hub.daemon.services import Identity, Services, Tasks
from hub.daemon.starting import Starter
from hub.daemon.transcripts import Transcripts
from hub.daemon.worktrees import Stores, Worktrees
from hub.errors import UnavailableError
from hub.ids import new_id
from hub.protocol.discovery import DiscoveryRecord
from hub.protocol.methods import PROTOCOL_MIN, PROTOCOL_VERSION
from hub.settings import Settings
from hub.store import endings, registry
from hub.store import runs as run_store
from hub.store.database import Database, Transaction
from hub.store.registry import TokenGrant

log = logging.getLogger(__name__)

OWNER = TokenGrant("owner", "discovery", ("read", "prompt", "approve", "operate", "admin"))
"""What the token of the discovery record grants: everything, to whoever can read the owner's files."""


class App:
    """One hub. `start` returns when it is ready, `run` when it has been told to stop, `stop` when it is down."""

    def __init__(self, settings: Settings, clock: Clock | None = None) -> None:
        self.settings = settings
        self.port = 0
        self._clock = clock or SystemClock()
        self._stack = AsyncExitStack()
        self._stopping = asyncio.Event()
        self._force = asyncio.Event()
        self._deadline_s = 10.0
        self._ready = False

    @property
    def url(self) -> str:
        return f"ws://127.0.0.1:{self.port}/rpc"

    async def start(self) -> None:
        """Bring the hub up. Raises TurnbackError; then nothing is left running."""
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise

    async def _start(self) -> None:
        home = self.settings.home
        self._stack.callback(discovery.HomeLock.take(home).release)
        logs.set_up(self.settings.logs, self.settings.config.hub.log_level)
        token = discovery.load_token(home)
        database = await Database.open(self.settings.database, self._clock)
        self._stack.push_async_callback(database.close)
        digest = discovery.token_digest(token)
        identity = await database.write(lambda tx: _identify(tx, digest))
        self._stack.push_async_callback(_free_runs, database, identity.boot_id)
        self.services = self._make_services(database, identity)
        hub = server.Hub(database, self.services.bus, identity, self._handlers())
        hub.tokens = await database.read(registry.live_tokens)
        hub.ready = self.state
        await recovery.recover(self.services)
        self.services.models.warm()
        await self._take_up_waiting()
        listener = await self._listen(hub)
        self._stack.push_async_callback(listener.close)
        self._publish(identity, token)
        self._stack.callback(discovery.withdraw, home, identity.boot_id)
        self.dispatcher.start()
        self.tasks.start(self.services.worktrees.warm(), "warm")
        self.tasks.start(housekeeping.keep_house(self.services), "housekeeping")
        self._ready = True
        log.info("ready", extra={"url": self.url, "boot_id": identity.boot_id, "version": __version__})

    def _make_services(self, database: Database, identity: Identity) -> Services:
        bus = Bus(database.last_seq)
        database.on_commit = bus.publish
        self.tasks = Tasks()
        children = Children(database, identity.boot_id)
        section = self.settings.config.checkpoint
        stores = Stores(
            folder=self.settings.checkpoints,
            owner=f"the hub of {self.settings.home}",
            always_shadow=section.store == "shadow",
        )
        worktrees = Worktrees(stores, bus, self._clock, section.include)
        worktrees.heal = functools.partial(settling.heal, database, worktrees)
        self._stack.callback(worktrees.close)
        tools = default_tools()
        self._stack.push_async_callback(_close_tools, tools)
        models = Models(self.settings, children)
        self._stack.push_async_callback(models.close)
        self._stack.push_async_callback(self.tasks.stop)
        services = Services(
            settings=self.settings,
            clock=self._clock,
            identity=identity,
            database=database,
            bus=bus,
            worktrees=worktrees,
            modes=Modes(bus, section.mode),
            admission=Admission(self.settings.config.runs.max_parallel),
            transcripts=Transcripts(),
            models=models,
            children=children,
            tools=tools,
            tool_environment=scrubbed_environment(self.settings.environ, self.settings.secret_names),
        )
        self.starter = Starter(services)
        self.dispatcher = Dispatcher(services, self.tasks, self.starter)
        return services

    def _handlers(self) -> Handlers:
        handlers = Handlers(self.services.database)
        for room in (approvals, deliveries, runs, sessions, workspaces):
            room.register(handlers, self.services)
        PromptHandlers(self.services, self.starter, self.dispatcher).register(handlers)
        CheckpointHandlers(self.services, self.dispatcher).register(handlers)
        KeepingHandlers(self.services).register(handlers)
        ForkHandlers(self.services).register(handlers)
        hub = HubHandlers(
            self.services, url=lambda: self.url, state=self.state, drain=self.dispatcher.drain, stop=self.ask_stop
        )
        hub.register(handlers)
        handlers.complete()
        return handlers

    async def _take_up_waiting(self) -> None:
        for row in await self.services.database.read(run_store.unfinished):
            if row.state == "waiting":
                await self.dispatcher.take_up_waiting(row)

    async def _listen(self, hub: server.Hub) -> server.Listener:
        """Listen on the configured port or refuse; else on the one chosen before, or on a new one, which is kept."""
        configured, chosen = self.settings.port, discovery.load_port(self.settings.home)
        for port in [configured] if configured else [chosen or 0, 0]:
            try:
                listener = await server.listen(hub, port)
            except OSError as error:
                log.warning("the port cannot be used", extra={"port": port, "reason": str(error)})
                continue
            self.port = listener.port
            if not configured and self.port != chosen:
                discovery.store_port(self.settings.home, self.port)
            return listener
        raise UnavailableError(
            f"Port {configured} is in use by another program.",
            code="port_in_use",
            hint="Set another in config.toml ([hub] port), or leave it out and the hub chooses one.",
        )

    def _publish(self, identity: Identity, token: str) -> None:
        discovery.publish(
            self.settings.home,
            DiscoveryRecord(
                pid=os.getpid(),
                url=self.url,
                token=token,
                version=__version__,
                hub_id=identity.hub_id,
                boot_id=identity.boot_id,
                started_at=iso(self._clock.now()),
                protocol_min=PROTOCOL_MIN,
                protocol_max=PROTOCOL_VERSION,
            ),
        )

    def state(self) -> dict[str, str]:
        """Return the state of each part: ready, idle, off, or what is wrong."""
        return {
            "hub": "ready" if self._ready else "starting",
            "store": "ready",
            "dispatcher": self.dispatcher.state,
            "model": self.services.models.state,
        }

    def ask_stop(self, deadline_s: float | None = None) -> None:
        """Ask for the end. A second time: at once, leaving what runs to the next start."""
        self._deadline_s = 0.0 if self._stopping.is_set() else self._deadline_s if deadline_s is None else deadline_s
        if self._stopping.is_set():
            self._force.set()
        self._stopping.set()

    async def run(self) -> None:
        """Wait until the end is asked for, then drain and stop."""
        await self._stopping.wait()
        self.dispatcher.drain()
        drained = asyncio.create_task(self.dispatcher.drained())
        forced = asyncio.create_task(self._force.wait())
        await asyncio.wait([drained, forced], timeout=self._deadline_s, return_when=asyncio.FIRST_COMPLETED)
        drained.cancel()
        forced.cancel()
        await self.stop()

    async def stop(self) -> None:
        """Take everything down; runs that are not over stay in the store as they are."""
        self._ready = False
        await self._stack.aclose()
        log.info("stopped")


def _identify(tx: Transaction, token_digest: str) -> Identity:
    registry.set_token(tx, token_digest, OWNER)
    return Identity(registry.identity(tx, "hub_id", "hub"), new_id("boot"), registry.identity(tx, "log_id", "log"))


async def _close_tools(tools: Mapping[str, Tool]) -> None:
    """Let tools that follow something let go of it."""
    for tool in tools.values():
        close = getattr(tool, "close", None)
        if close is not None:
            await close()


async def _free_runs(database: Database, boot_id: str) -> None:
    """Leave the runs that are not over to the next start; a stop that was asked for is no crash."""
    await database.write(lambda tx: endings.free_all(tx, boot_id))
