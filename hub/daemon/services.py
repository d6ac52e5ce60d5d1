"""What the rooms of the daemon share: one value, made once by the composition root."""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec

from hub.agent.tools.base import Tool
from hub.clock import Clock
from hub.daemon.admission import Admission
from hub.daemon.bus import Bus
from hub.daemon.children import Children
from hub.daemon.models import Models
from hub.daemon.modes import Modes
from hub.daemon.transcripts import Transcripts
from hub.daemon.worktrees import Worktrees
from hub.settings import Settings
from hub.store.database import Database

log = logging.getLogger(__name__)


class Identity(msgspec.Struct, frozen=True):
    """The ids of this hub (for life), of this process, and of the event log."""

    hub_id: str
    boot_id: str
    log_id: str


class Services(msgspec.Struct, frozen=True):
    """The shared parts. None of them knows a session; all are used on the event loop."""

    settings: Settings
    clock: Clock
    identity: Identity
    database: Database
    bus: Bus
    worktrees: Worktrees
    modes: Modes
    admission: Admission
    transcripts: Transcripts
    models: Models
    children: Children
    tools: Mapping[str, Tool]
    tool_environment: Mapping[str, str]


class Tasks:
    """Supervised tasks: each is held until it ends, and one that fails unexpectedly is logged, never lost."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Run a coroutine in the background."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel what still runs and wait for it."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a background task failed", exc_info=error, extra={"task": task.get_name()})
