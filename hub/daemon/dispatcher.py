"""The dispatcher: turns prompts into runs, one per session and one writer per worktree, and drives those runs.

It keeps no queue of its own: whenever something changes it looks at the store, so nothing can be forgotten. Events wake
it; what it must not miss is in the rows.
"""

import asyncio
import logging
from typing import Any

import msgspec

from hub.agent.system import digest, system_prompt
from hub.daemon.driver import Driver
from hub.daemon.services import Services, Tasks
from hub.domain.runs import RunLimits, RunSpec
from hub.domain.states import IllegalMove
from hub.protocol.events import Event
from hub.protocol.params import RunOptions
from hub.store import endings, prompts, runs, sessions
from hub.store.database import Transaction
from hub.store.runs import Ending, Hold

log = logging.getLogger(__name__)

WAKES = {"prompt.queued", "prompt.moved", "prompt.removed"}
"""Events after which a prompt may be next; the end of a run wakes by itself, when its place is free."""
POKES = {"approval.decided", "question.closed", "prompt.queued"}
POLL_S = 0.05
CANCEL_TEXT = "The run was cancelled by {}."


class Dispatcher:
    """Starts runs and keeps their drivers. One per hub."""

    def __init__(self, services: Services, tasks: Tasks) -> None:
        self.draining = False
        self._services = services
        self._tasks = tasks
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._drivers: dict[str, Driver] = {}
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

    def _on_event(self, event: Event) -> None:
        if event.type in WAKES:
            self._wake.set()
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
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # what happens together is looked at once
            self._wake.clear()
            if not self.draining:
                await self._look()

    async def _look(self) -> None:
        """Start what can be started now: runs that were begun before, then the next prompt of each idle session."""
        queued, waiting = await self._services.database.read(
            lambda conn: (runs.queued(conn), prompts.next_in_line(conn))
        )
        for row in queued:
            if row.id not in self._drivers and self._services.admission.try_enter(row.worktree, row.id):
                await self._take_up(row, "taken up")
        for prompt in waiting:
            if self._services.admission.try_enter(prompt.worktree, prompt.id):
                await self._start(prompt)

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

    async def _start(self, prompt: Any) -> None:
        try:
            spec = self._spec(prompt, await self._model_before(prompt))
            hold = await self._services.database.write(lambda tx: self._make(tx, prompt, spec))
        except IllegalMove:
            self._services.admission.leave(prompt.id)
            return
        except Exception:
            log.exception("a prompt could not be started", extra={"prompt": prompt.id})
            self._services.admission.leave(prompt.id)
            return
        self._services.admission.rename(prompt.id, hold.run_id)
        self._drive(hold)

    def _make(self, tx: Transaction, prompt: Any, spec: RunSpec) -> Hold:
        current = prompts.row(tx.conn, prompt.id)
        if not sessions.row(tx.conn, prompt.session_id).title:
            sessions.rename(tx, prompt.session_id, sessions.title_from(current.text))
        return runs.start(tx, current, spec, self._services.identity.boot_id)

    async def _model_before(self, prompt: Any) -> str | None:
        if prompt.options.get("model"):
            return None
        return await self._services.database.read(lambda conn: prompts.last_model(conn, prompt.session_id))

    def _spec(self, prompt: Any, before: str | None) -> RunSpec:
        options = msgspec.convert(prompt.options, RunOptions)
        return RunSpec(
            model=self._services.models.choose(options.model, before),
            agent_mode=options.agent_mode,
            preset=options.preset,
            auto_approve=options.auto_approve,
            limits=self._limits(options),
            workspace=prompt.workspace,
            worktree=prompt.worktree,
            system_digest=digest(system_prompt(prompt.workspace, options.agent_mode)),
            author=prompt.author,
            address=prompt.address,
        )

    def _limits(self, options: RunOptions) -> RunLimits:
        ours, wanted = self._services.settings.config.runs, options.limits
        return RunLimits(
            max_turns=min(wanted.max_turns or ours.max_turns, ours.max_turns),
            max_tool_calls=min(wanted.max_tool_calls or ours.max_tool_calls, ours.max_tool_calls),
            max_wall_s=min(wanted.max_wall_s or ours.max_wall_s, ours.max_wall_s),
            max_cost=_lower(wanted.max_cost, ours.max_cost),
        )

    def _drive(self, hold: Hold) -> None:
        driver = self._drivers[hold.run_id] = Driver(self._services, hold)
        task = self._tasks.start(driver.drive(), f"run-{hold.run_id}")
        task.add_done_callback(lambda task: self._gone(hold.run_id, task))

    def _gone(self, run_id: str, task: asyncio.Task[None]) -> None:
        self._drivers.pop(run_id, None)
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


def _lower(one: float | None, other: float | None) -> float | None:
    given = [bound for bound in (one, other) if bound is not None]
    return min(given) if given else None
