"""The captures of one run: before it, around each wait, after each batch of calls that may write, and after it.

Invariant: a capture is taken only while the run holds the writer lock, and the next call that may write waits for it:
nothing is written uncaptured. So what differs from `before` or `back` to the next `left` or `after` is the run's own.
Not promised: a step for every batch; one that fails or would take too long is left out.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hub.agent.tools.base import ToolFailure
from hub.daemon import hooks
from hub.daemon.modes import OFF
from hub.daemon.running import Running, RunOver
from hub.daemon.worktrees import Request, series_of
from hub.domain.messages import Message
from hub.errors import TurnbackError
from hub.store import calls, checkpoints, messages, runs
from hub.store.checkpoints import AFTER_KINDS, BEFORE_KINDS, Bond
from hub.store.database import Transaction

if TYPE_CHECKING:
    from hub.checkpoint.units import Units

STEP_LIMIT_S = 0.5
"""With steps = auto, a worktree whose last capture took longer gets none."""
NUMBERED = ("left", "back", "step")
"""Kinds that are counted together in a run."""
LETTERS = {"before": "", "after": "a", "preimage": "p"}
COLUMNS = {"before": "checkpoint_id", "after": "after_checkpoint_id"}
HOLES = ("left", "back", "after")
"""Kinds without which it is not known of each file whether the run changed it."""
NEEDED = ("before", "back")
"""Kinds without which a run whose mode is required does not go on."""

Taking = asyncio.Task[TurnbackError | None]


class Captures:
    """Takes them. One at a time: whoever begins one has waited for that before it."""

    def __init__(self, running: Running) -> None:
        self._run = running
        self._services = running.services
        self._taking: Taking | None = None
        self._lost: TurnbackError | None = None
        self._hook_stop = asyncio.Event()
        self._holed = False
        self._counted: int | None = 0 if running.hold.generation == 1 else None
        self._looked_at: set[str] = set()

    @property
    def pending(self) -> bool:
        """Whether a capture is still being taken."""
        return self._taking is not None and not self._taking.done()

    async def ready(self) -> None:
        """Wait until the last one is taken or has failed. Raises RunOver when one failed that the run needs."""
        if self._taking is None:
            return
        await asyncio.shield(self._taking)
        lost = self._lost
        if lost is not None:
            raise RunOver("no_checkpoint", f"No checkpoint could be taken: {lost.message}") from lost

    async def stop(self) -> None:
        """Wait for a capture in flight, whatever becomes of it; its failure is stored already. A hook is ended."""
        self._hook_stop.set()
        if self._taking is not None:
            await asyncio.gather(self._taking, return_exceptions=True)

    def begin(self) -> None:
        """Start the capture before the run unless it has one, has written, waits, or takes none.

        A resumed run that has written would save the wrong state; a waiting one takes it when it comes back. One that
        was away saves what others have written meanwhile.
        """
        run = self._run
        if run.mode == "off" or run.waiting:
            return
        if run.has_checkpoint and run.was_away:
            self._start("back", run.head_id)
        elif not run.has_checkpoint and not run.may_have_written:
            self._start("before", before_run(run.transcript, run.run_id))

    async def leave(self) -> None:
        """Save what the run has written before it stops to wait and lets others write. Raises as `ready`."""
        await self.ready()
        if self._run.has_checkpoint and self._run.written_since_capture:
            self._start("left", self._run.head_id)
            await self.ready()
        self._run.written_since_capture = False

    def come_back(self) -> None:
        """Start to save what others have written while the run waited."""
        if self._run.has_checkpoint:
            self._start("back", self._run.head_id)
        else:
            self.begin()

    def step(self) -> None:
        """Start to save what the last batch of calls came to, if one of them may have written."""
        run, wanted = self._run, self._services.settings.config.checkpoint.steps
        if not run.written_since_step or not run.has_checkpoint or self.pending:
            return
        run.written_since_step = False
        if wanted == "on" or (wanted == "auto" and self._services.worktrees.took_s(run.spec.worktree) <= STEP_LIMIT_S):
            self._start("step", run.head_id)

    def _start(self, kind: str, message_id: str | None) -> None:
        self._taking = asyncio.create_task(self._take(kind, message_id), name=f"{kind}-{self._run.run_id}")

    async def _take(self, kind: str, message_id: str | None, forced: Sequence[str] = ()) -> TurnbackError | None:
        """Take and store a capture, or store why there is none and return that."""
        bond = self._bond(message_id)
        try:
            request = await self._hooked(await self._request(kind, bond, forced))
            with hooks.forgotten_if_refused(self._services, request.checkpoint_id):
                captured = await self._services.worktrees.capture(request)
        except TurnbackError as failure:
            await self._failed(kind, bond, failure)
            return failure

        def store(tx: Transaction) -> None:
            checkpoints.add(tx, captured)
            if kind in COLUMNS:
                runs.set_checkpoint(tx, self._run.run_id, COLUMNS[kind], captured.id)

        await self._services.database.write(store)
        self._run.has_checkpoint |= kind == "before"
        return None

    async def _hooked(self, request: Request) -> Request:
        """Run the user's hook before the capture before the run. Raises HookFailed when the run needs it."""
        if request.kind != "before":
            return request
        hooked, failure = await hooks.before_capture(self._services, request, self._hook_stop)
        if failure is not None and self._run.mode == "required":
            raise failure
        if failure is not None:
            await self._failed("hook", request.bond, failure)
        return hooked

    async def _failed(self, kind: str, bond: Bond, failure: TurnbackError) -> None:
        code, reason = failure.code, failure.message

        def store(tx: Transaction) -> None:
            checkpoints.failed(tx, bond, kind, code, reason)
            if kind == "before":
                runs.note_no_checkpoint(tx, self._run.run_id, reason)

        await self._services.database.write(store)
        self._holed |= kind in HOLES
        if kind in NEEDED and self._run.mode == "required":
            self._lost = failure

    def _bond(self, message_id: str | None) -> Bond:
        run = self._run
        return Bond(session_id=run.session_id, run_id=run.run_id, run_count=run.run_count, message_id=message_id)

    async def _request(self, kind: str, bond: Bond, forced: Sequence[str]) -> Request:
        section, run = self._services.settings.config.checkpoint, self._run
        return Request(
            worktree=run.spec.worktree,
            kind=kind,
            bond=bond,
            series=series_of(run.session_id, run.spec.worktree),
            number=run.run_count,
            letter=LETTERS[kind] if kind in LETTERS else f"s{await self._count()}",
            budget_s=section.first_budget_s if run.run_count == 1 else section.budget_s,
            forced=tuple(forced),
        )

    async def _count(self) -> int:
        """Return the next number within the run; one that was resumed goes on counting."""
        run = self._run
        if self._counted is None:
            taken = await self._services.database.read(
                lambda conn: checkpoints.taken_in(conn, run.session_id, run.run_id, NUMBERED)
            )
            self._counted = len(taken)
        self._counted += 1
        return self._counted

    async def before_write(self, paths: Sequence[Path]) -> None:
        """Save the bytes of files that a tool is about to write and that no capture has, because git ignores them.

        Once for each file in a run. Raises ToolFailure when one could not be saved and the run needs it.
        """
        await self.ready()
        if self._run.mode == "off":
            return
        fresh = [name for name in self._relative(paths) if name not in self._looked_at]
        if not fresh:
            return
        worktree = self._run.spec.worktree
        ignored = await self._services.worktrees.work(worktree, lambda engine: engine.ignored(fresh))
        failure = await self._take("preimage", self._run.head_id, ignored) if ignored else None
        if failure is not None and self._run.mode == "required":
            raise ToolFailure(f"Nothing was written: {ignored[0]} could not be saved before: {failure.message}")
        self._looked_at.update(fresh)

    def _relative(self, paths: Sequence[Path]) -> list[str]:
        """Return the paths of those files that are in the worktree and exist, relative to it."""
        top = self._run.spec.worktree
        inside = (path for path in paths if path.is_relative_to(top) and os.path.lexists(path))
        return [os.path.relpath(path, top) for path in inside]

    async def finish(self) -> tuple[str, ...]:
        """Save the state that a run leaves, if it has written since it began or came back; return what it changed.

        That is the sum of what differs over the times in which it held the writer lock. Where a capture is missing,
        it is what the tools told of. A run that ends while it waits has left already.
        """
        run = self._run
        if not run.may_have_written:
            return ()
        await self.stop()
        if run.has_checkpoint and run.written_since_capture and not run.waiting:
            await self._take(
                "after", await self._services.database.read(lambda conn: messages.head(conn, run.session_id))
            )
        told = await self._services.database.read(lambda conn: calls.paths_of(conn, run.run_id))
        if not run.has_checkpoint:
            return told
        taken = await self._services.database.read(
            lambda conn: checkpoints.taken_in(conn, run.session_id, run.run_id, (*BEFORE_KINDS, *AFTER_KINDS))
        )
        stretches = stretches_of([(row.kind, row.ref) for row in taken])
        return await self._changed(stretches, told) if stretches else told

    async def _changed(self, stretches: Sequence[tuple[str, str]], told: tuple[str, ...]) -> tuple[str, ...]:
        def look(engine: Units) -> set[str]:
            return {change.path for old, new in stretches for change in engine.diff(old, new)}

        try:
            changed = await self._services.worktrees.work(self._run.spec.worktree, look)
        except TurnbackError as failure:
            await self._failed("after", self._bond(self._run.head_id), failure)
            return told
        return tuple(sorted(changed.union(told if self._holed else ())))

    @property
    def no_checkpoint(self) -> str | None:
        """Why the run has none, when that is not stored yet."""
        return OFF if self._run.mode == "off" and not self._run.has_checkpoint else None


def stretches_of(taken: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return from where to where a run wrote, as pairs of refs, from kind and ref of its captures in order.

    What lies between two captures that begin something, or between two that end it, is not known to be the run's.
    """
    found: list[tuple[str, str]] = []
    begin: str | None = None
    for kind, ref in taken:
        if kind in BEFORE_KINDS:
            begin = ref
        elif begin is not None:
            found.append((begin, ref))
            begin = None
    return found


def before_run(transcript: Sequence[Message], run_id: str) -> str | None:
    """Return the id of the message that a run's first one follows: where the conversation stood before it."""
    earlier = list(itertools.takewhile(lambda message: message.run_id != run_id, transcript))
    return earlier[-1].id if earlier else None
