"""The dispatcher: turns prompts into runs, one per session and one writer per worktree, and drives those runs.

It keeps no queue of its own: whenever something changes it looks at the store, so nothing can be forgotten. Events wake
it; what it must not miss is in the rows. It only remembers which rows there are, so as not to look when there are none.
"""

import asyncio
import logging
from typing import Any

import msgspec

from hub.daemon.driver import Driver
from hub.daemon.services import Services, Tasks
from hub.daemon.starting import Opening, Place, Starter
from hub.domain.states import IllegalMove
from hub.ids import new_id
from hub.protocol.events import Event, PromptQueued, PromptRemoved, PromptTaken
from hub.protocol.params import RunOptions
from hub.store import endings, prompts, runs
from hub.store.database import Transaction
from hub.store.runs import Ending, Hold

log = logging.getLogger(__name__)

WAKES = {"prompt.moved", "run.queued"}
"""Events after which something may be next, beside prompts; a run's end wakes by itself, when its place is free."""
POKES = {"approval.decided", "question.closed", "prompt.queued", "restore.committed"}
POLL_S = 0.05
CANCEL_TEXT = "The run was cancelled by {}."


class Dispatcher:
    """Starts runs and keeps their drivers. One per hub."""

    def __init__(self, services: Services, tasks: Tasks, starter: Starter) -> None:
        self.draining = False
        self._services = services
        self._tasks = tasks
        self._starter = starter
        self._queued: set[str] = set()
        self._left = True
        self._looking = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._drivers: dict[str, Driver] = {}
        self._driving: dict[str, asyncio.Task[None]] = {}
        services.bus.listen(self._on_event)
        services.admission.on_free = self._wake.set

    @property
    def state(self) -> str:
        """ready, draining, or failed when the loop has ended without being told to."""
        if self._task is not None and self._task.done():
            return "failed"
        return "draining" if self.draining else "ready"

    def start(self) -> None:
        """Begin to dispatch."""
        self._wake.set()
        self._task = self._tasks.start(self._loop(), "dispatcher")

    def drain(self) -> None:
        """Admit no new run."""
        self.draining = True

    async def drained(self) -> None:
        """Wait until no run executes; waiting ones may stay, for they survive a restart."""
        while any(self._services.admission.holds(run_id) for run_id in self._drivers):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)

    def cancel(self, run_id: str, by: str) -> None:
        """Stop a run that this process drives. Does nothing for others."""
        if run_id in self._drivers:
            self._drivers[run_id].cancel("cancelled", CANCEL_TEXT.format(by))

    def offer(self, place: Place) -> Opening | None:
        """Hold a place for a run that is about to be made; None when it, or the dispatcher itself, is busy.

        Whoever takes the offer calls `take_back` when the transaction that may have made the run is over.
        """
        if self.draining or self._task is None or self._looking or self._wake.is_set():
            return None
        run_id = new_id("run")
        return Opening(run_id, place) if self._services.admission.try_enter(place.worktree, run_id) else None

    def take_back(self, opening: Opening) -> None:
        """Free the place again, unless the run was made."""
        if opening.run_id not in self._drivers:
            self._services.admission.leave(opening.run_id)

    async def let_go(self, run_id: str) -> None:
        """Stop driving a run and leave it in the store as it is; return when nothing of it lives here any more."""
        task = self._driving.get(run_id)
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    def _on_event(self, event: Event) -> None:
        if event.type in WAKES:
            self._left = True
            self._wake.set()
        elif event.type == "prompt.queued":
            self._queued.add(msgspec.json.decode(event.data, type=PromptQueued).prompt_id)
            self._wake.set()
        elif event.type == "prompt.taken":
            self._queued.discard(msgspec.json.decode(event.data, type=PromptTaken).prompt_id)
        elif event.type == "prompt.removed":
            self._queued.discard(msgspec.json.decode(event.data, type=PromptRemoved).prompt_id)
            self._wake.set()
        elif event.type == "run.started" and event.run_id is not None and event.session_id is not None:
            self._drive(Hold(event.run_id, event.session_id, self._services.identity.boot_id, 1))
        if event.type in POKES:
            for driver in self._drivers.values():
                if driver.hold.session_id == event.session_id:
                    driver.poke()
        if event.type == "run.cancelling" and event.run_id is not None:
            by = msgspec.json.decode(event.data)["by"]
            self.cancel(event.run_id, by)
            self._tasks.start(self._cancel_idle(event.run_id, by), f"cancel-{event.run_id}")

    async def _cancel_idle(self, run_id: str, by: str) -> None:
        """End a run that was asked to end and that nobody drives: queued, or interrupted."""
        if run_id in self._drivers:
            return
        text = CANCEL_TEXT.format(by)
        ending = Ending(state="cancelled", stop_reason="cancelled", error=text)
        try:
            await self._services.database.write(lambda tx: self._settle_and_end(tx, run_id, ending, text))
        except IllegalMove:
            log.debug("the run had ended before it was cancelled", extra={"run_id": run_id})
        self._wake.set()

    async def _loop(self) -> None:
        self._queued.update(await self._services.database.read(prompts.pending_ids))
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # what happens together is looked at once
            self._wake.clear()
            if not self.draining and (self._queued or self._left):
                self._looking = True
                await self._look()
                self._looking = False

    async def _look(self) -> None:
        """Start what can be started now: runs that were begun before, then the next prompt of each idle session."""
        self._left = False
        queued, waiting = await self._services.database.read(
            lambda conn: (runs.queued(conn), prompts.next_in_line(conn))
        )
        for row in queued:
            if row.id in self._drivers:
                continue
            if self._services.admission.try_enter(row.worktree, row.id):
                await self._take_up(row, "taken up")
            else:
                self._left = True
        for prompt in waiting:
            opening = Opening(new_id("run"), Place(prompt.workspace, prompt.worktree))
            if self._services.admission.try_enter(prompt.worktree, opening.run_id):
                await self._start(prompt, opening)

    async def take_up_waiting(self, row: Any) -> None:
        """Drive a waiting run again after a restart; it holds neither slot nor lock until it is answered."""
        await self._take_up(row, "restart")

    async def _take_up(self, row: Any, reason: str) -> None:
        boot_id = self._services.identity.boot_id
        try:
            hold = await self._services.database.write(lambda tx: runs.reclaim(tx, row.id, boot_id, reason))
        except IllegalMove:
            self._services.admission.leave(row.id)
            return
        self._drive(hold)

    async def _start(self, prompt: Any, opening: Opening) -> None:
        try:
            options = msgspec.convert(prompt.options, RunOptions)
            before = await self._starter.model_before(prompt.session_id, options)
            await self._services.database.write(
                lambda tx: self._starter.make(tx, opening, prompts.pending(tx.conn, prompt.id), before)
            )
        except IllegalMove:
            log.debug("a prompt was taken or removed before it began", extra={"prompt": prompt.id})
        except Exception:
            log.exception("a prompt could not be started", extra={"prompt": prompt.id})
        finally:
            self.take_back(opening)

    def _drive(self, hold: Hold) -> None:
        driver = self._drivers[hold.run_id] = Driver(self._services, hold)
        task = self._driving[hold.run_id] = self._tasks.start(driver.drive(), f"run-{hold.run_id}")
        task.add_done_callback(lambda task: self._gone(hold.run_id, task))

    def _gone(self, run_id: str, task: asyncio.Task[None]) -> None:
        self._drivers.pop(run_id, None)
        self._driving.pop(run_id, None)
        self._wake.set()
        if not task.cancelled() and task.exception() is not None:
            self._tasks.start(self._fail(run_id), f"fail-{run_id}")

    async def _fail(self, run_id: str) -> None:
        """End a run whose driver broke, so that its session is not blocked for ever."""
        text = f"An internal error ended this run; the hub's log tells more (run {run_id})."
        ending = Ending(state="failed", stop_reason="internal", error=text)
        await self._services.database.write(lambda tx: self._settle_and_end(tx, run_id, ending, text))
        self._wake.set()

    def _settle_and_end(self, tx: Transaction, run_id: str, ending: Ending, text: str) -> None:
        endings.close_calls(tx, run_id, text)
        runs.end(tx, run_id, ending)
