"""Drives one run from where its transcript stands to its end, whatever that end is.

A run ends exactly once, in one transaction, when nothing of it lives any more. When the hub stops, the run is left as
it is, for the next start to take up.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

import msgspec

from hub.agent import loop
from hub.agent.model import ModelError
from hub.agent.system import system_prompt
from hub.agent.tools.registry import tool_names
from hub.daemon.captures import Captures
from hub.daemon.gate import RunGate
from hub.daemon.running import Conclusion, Running, RunOver
from hub.daemon.services import Services
from hub.daemon.steps import LIMIT_TEXTS, RunSteps, words_wait
from hub.domain.messages import Message, TextPart
from hub.domain.runs import RunSpec, StopReason
from hub.domain.values import CheckpointMode
from hub.errors import ConflictError, TurnbackError
from hub.store import calls, checkpoints, endings, messages, runs
from hub.store.database import Connection, Transaction
from hub.store.runs import Ending, Hold

log = logging.getLogger(__name__)


class _Found(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has of a run when it is loaded: its row, the conversation, whether it may have written …"""

    row: Any
    spec: RunSpec
    transcript: list[Message]
    wrote: bool
    away: bool
    steered: bool
    mode: CheckpointMode


class Driver:
    """One run of this process. `drive` is its whole life; `poke` and `cancel` are called from outside."""

    def __init__(self, services: Services, hold: Hold) -> None:
        self.hold = hold
        self._services = services
        self._running: Running | None = None
        self._captures: Captures | None = None
        self._task: asyncio.Task[None] | None = None
        self._stop: tuple[StopReason, str] | None = None
        self._ending = False
        self._steered = False

    def poke(self) -> None:
        """Something that the run may wait for has changed, or a steer has come."""
        self._steered = True
        if self._running is not None:
            self._running.steered = True
            self._running.wake.set()

    def cancel(self, reason: StopReason, text: str) -> None:
        """End the run at its next await; commands and the model call are stopped. Later calls change nothing."""
        if self._stop is None and not self._ending:
            self._stop = (reason, text)
            if self._task is not None:
                self._task.cancel()

    async def drive(self) -> None:
        """Carry the run to its end. Raises CancelledError, and leaves the run as it is, when the hub stops."""
        self._task = asyncio.current_task()
        try:
            ending = await self._life()
            await self._services.database.write(lambda tx: self._end(tx, ending))
        except ConflictError as error:
            if error.code != "lease_lost":
                raise
            log.warning("the run has passed on to another holder", extra={"run_id": self.hold.run_id})
        finally:
            self._services.admission.leave(self.hold.run_id)

    def _end(self, tx: Transaction, ending: Ending) -> None:
        if self._running is not None and self._running.conclusion is not None:
            self._running.conclusion(tx)
        else:
            runs.fence(tx, self.hold)
        runs.end(tx, self.hold.run_id, ending)

    async def _life(self) -> Ending:
        try:
            if self._stop is not None:
                raise asyncio.CancelledError
            return await self._to_the_end()
        except asyncio.CancelledError:
            if self._stop is None:
                raise
            if self._task is not None:
                self._task.uncancel()
            return await self._stopped(*self._stop)

    async def _to_the_end(self) -> Ending:
        running = self._running = await self._load()
        captures = self._captures = Captures(running)
        try:
            captures.begin()
            running.time.on_limit = lambda: self.cancel("limit_time", LIMIT_TEXTS["limit_time"])
            if not running.waiting:
                running.time.run()
            text = await self._loop(running, captures)
            await captures.ready()
            return await self._finish(running, "completed", "completed", text=text)
        except ModelError as error:
            return await self._finish(running, "failed", "model_error", error=f"{error.kind}: {error.message}")
        except RunOver as over:
            return await self._finish(running, "failed", over.stop_reason, error=over.text)
        except TurnbackError as error:
            if error.code == "lease_lost":
                raise
            return await self._finish(running, "failed", "internal", error=error.message)
        except Exception:
            log.exception("a run failed unexpectedly", extra={"run_id": self.hold.run_id})
            error_text = f"An internal error ended this run; the hub's log tells more (run {self.hold.run_id})."
            return await self._finish(running, "failed", "internal", error=error_text)
        finally:
            running.time.stop()
            await captures.stop()

    async def _load(self) -> Running:
        known = self._services.transcripts.get(self.hold.session_id)
        found = await self._services.database.read(lambda conn: self._look(conn, known))
        row, spec = found.row, found.spec
        names = tool_names(spec.agent_mode, spec.preset)
        running = Running(self._services, self.hold, spec, {name: self._services.tools[name] for name in names})
        running.waiting = row.state == "waiting"
        running.usage, running.cost = runs.usage_of(row), row.cost
        running.turns, running.tool_calls = row.turns, row.tool_calls
        running.next_message_id = row.open_message_id
        running.time.resume_from(row.active_s)
        running.transcript, running.may_have_written = found.transcript, found.wrote
        running.was_away = found.away
        running.written_since_step = found.wrote
        running.written_since_capture = found.wrote and not running.waiting and not found.away
        running.head_id = found.transcript[-1].id if found.transcript else None
        running.run_count, running.has_checkpoint = row.run_count, row.checkpoint_id is not None
        running.mode = found.mode
        running.steered = found.steered or self._steered
        return running

    async def _loop(self, running: Running, captures: Captures) -> str:
        spec = running.spec
        if not running.root.is_dir():
            raise RunOver("workspace_gone", f"The workspace {running.root} is not there any more.")
        try:
            model = self._services.models.open(spec.model)
        except TurnbackError as error:
            raise RunOver("model_error", error.message) from error
        frame = loop.Frame(model, system_prompt(running.root, spec.agent_mode), running.tools)
        gate, steps = RunGate(running, captures), RunSteps(running, captures)
        try:
            return await loop.run(frame, running.transcript, running.run_id, gate, steps)
        finally:
            self._services.transcripts.put(running.session_id, running.transcript)

    def _look(self, conn: Connection, known: Sequence[Message]) -> "_Found":
        row = runs.row(conn, self.hold.run_id)
        spec = runs.spec_of(row)
        wrote = row.turns > 0 and calls.wrote(conn, self.hold.run_id)
        resumed = self.hold.generation > 1 and row.state != "waiting"
        return _Found(
            row=row,
            spec=spec,
            transcript=messages.transcript(conn, self.hold.session_id, known),
            wrote=wrote,
            away=resumed and (not wrote or checkpoints.has_left(conn, self.hold.session_id, self.hold.run_id)),
            steered=words_wait(conn, self.hold.session_id),
            mode=self._services.modes.of_run(conn, spec),
        )

    async def _finish(
        self, running: Running, state: str, stop_reason: StopReason, *, text: str = "", error: str | None = None
    ) -> Ending:
        self._ending = state == "completed"
        captures = self._captures or Captures(running)
        changed = await captures.finish()
        if state != "completed":
            await self._settle_rest(error or state)
        return Ending(
            state=state,
            stop_reason=stop_reason,
            error=error,
            text=text,
            files_changed=changed,
            no_checkpoint=captures.no_checkpoint,
        )

    async def _stopped(self, reason: StopReason, text: str) -> Ending:
        """The run was cancelled from outside, by a person or by its time limit."""
        state = "cancelled" if reason == "cancelled" else "failed"
        await self._services.children.end_run(self.hold.run_id)
        await self._settle_rest(text)
        if self._running is None:
            return Ending(state=state, stop_reason=reason, error=text)
        return await self._finish(self._running, state, reason, error=text)

    async def _settle_rest(self, text: str) -> None:
        """Give every open call its one result, close its question, and keep the last answer or what streamed of it."""
        running = self._running
        conclusion = partial = None
        if running is not None:
            conclusion, running.conclusion = running.conclusion, None
            partial, running.partial = (running.next_message_id, running.partial), ""
        await self._services.database.write(lambda tx: self._settle(tx, text, conclusion, partial))

    def _settle(
        self, tx: Transaction, text: str, conclusion: Conclusion | None, partial: tuple[str, str] | None
    ) -> None:
        if conclusion is not None:
            conclusion(tx)
        elif partial is not None and partial[1] and not calls.unsettled(tx.conn, self.hold.run_id):
            part = TextPart(partial[1] + "\n\n[interrupted]")
            messages.append(tx, self.hold.session_id, self.hold.run_id, "assistant", [part], id=partial[0])
        endings.close_calls(tx, self.hold.run_id, text)
