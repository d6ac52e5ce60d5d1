"""Worktrees: one checkpoint engine and one thread for each, so that git never holds up the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import importlib
import itertools
import os
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from hub.checkpoint.values import Checkpoint, CheckpointError, Mark, Plan
from hub.clock import Clock
from hub.daemon.bus import Bus
from hub.daemon.included import included
from hub.daemon.progress import Heard, Progress
from hub.domain.values import Reach
from hub.errors import ConflictError, RefusedError, UsageError
from hub.ids import new_id
from hub.protocol.views import UncapturedView
from hub.store.checkpoints import BEFORE_KINDS, WITHIN_KINDS, Bond, Captured

if TYPE_CHECKING:
    from hub.checkpoint.units import Units

T = TypeVar("T")

OPEN_LIMIT = 64
"""Engines kept open; the one unused for longest is closed first."""
NAME_TRIES = 50
WARM_AFTER_S = 1.0
PREVIEWED = "preview/0u"
"""The undo point that a preview speaks of and never makes."""
UNSETTLED = ("restore_in_progress", "restore_unfinished")
NUMBERED = ("s", "p")
"""Letters that count on in their run when a name is taken; with others the next run's number is tried."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A capture to take: which worktree, bound to what, named how. `series` and `letter` make the ref's name.

    `forced` are paths of the worktree that are captured even if git ignores them, beside what is configured. Without
    `checkpoint_id` a fresh one is made.
    """

    worktree: str
    kind: str
    bond: Bond
    series: str
    number: int
    letter: str
    note: str = ""
    budget_s: float = 30.0
    forced: tuple[str, ...] = ()
    checkpoint_id: str = ""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """How far a restore goes, in the engine's words. `history` are rows of captures with ref, kind and session."""

    paths: Sequence[bytes] | None
    reach: Reach | None
    owner: str | None
    history: Sequence[Any]
    head: bool

    def words(self) -> dict[str, Any]:
        """Return the engine's parameters."""
        marks = [
            Mark(ref=row.ref, kind="before" if row.kind in _OPENING else "after", owner=row.session_id or "")
            for row in self.history
        ]
        paths = None if self.paths is None else [os.fsdecode(path) for path in self.paths]
        return {"paths": paths, "reach": self.reach, "owner": self.owner, "history": marks, "head": self.head}

    def kept_ref(self, undo_ref: str) -> str | None:
        """Return the ref that keeps the commits which come off the branch; it goes with the undo point's."""
        return f"{undo_ref[:-1]}o" if self.head else None


_OPENING = (*BEFORE_KINDS, *WITHIN_KINDS)


class Stores(msgspec.Struct, frozen=True, kw_only=True):
    """Where checkpoints lie: `folder` holds shadow stores, `owner` is told to whom waits for a lock."""

    folder: Path
    owner: str
    always_shadow: bool


class Worktrees:
    """Captures and restores, by worktree. Work on one worktree is done in order; different ones run side by side.

    `include` are patterns of ignored files that every capture takes. `heal` ends what was left of restores.
    """

    def __init__(self, stores: Stores, bus: Bus, clock: Clock, include: Sequence[str] = ()) -> None:
        self._stores = stores
        self._bus = bus
        self._clock = clock
        self._include = include
        self.heal: Callable[[str], Awaitable[None]] = _no_healer
        self._busy: Counter[str] = Counter()
        self._restoring: set[str] = set()
        self._took: dict[str, float] = {}
        self._threads: OrderedDict[str, ThreadPoolExecutor] = OrderedDict()
        self._engines: dict[str, Units] = {}

    async def warm(self) -> None:
        """Load the engine when the hub has been ready for a moment, so that the first run need not wait for that."""
        await asyncio.sleep(WARM_AFTER_S)
        await asyncio.to_thread(importlib.import_module, "hub.checkpoint.units")

    async def locate(self, directory: str) -> str:
        """Return the worktree that a directory lies in. Raises UsageError: not_a_directory, not_a_repository …"""
        path = Path(directory)
        if not path.is_absolute():
            raise UsageError(f"{directory!r} is not an absolute path.", code="not_a_directory")
        engine = await asyncio.to_thread(self._open, path)
        root = str(engine.root)
        self._engines.setdefault(root, engine)
        return root

    async def work(self, worktree: str, function: Callable[[Units], T]) -> T:
        """Run a function on the worktree's engine, in its thread. Raises what it raises.

        Where a restore was left that nobody carries out any more, that is settled first.
        """
        try:
            return await self._work(worktree, function)
        except RefusedError as refused:
            if refused.code not in UNSETTLED or worktree in self._restoring:
                raise
        await self.heal(worktree)
        return await self._work(worktree, function)

    async def recover(self, worktree: str, is_committed: Callable[[str], bool]) -> None:
        """Have the engine end every restore that was left; see `Engine.recover`."""
        await self._work(worktree, lambda engine: engine.recover(is_committed))

    @contextlib.contextmanager
    def restoring(self, worktree: str) -> Iterator[None]:
        """Say that a restore is carried out meanwhile: its engine is needed, and nobody else settles it."""
        self._restoring.add(worktree)
        try:
            yield
        finally:
            self._restoring.discard(worktree)

    async def _work(self, worktree: str, function: Callable[[Units], T]) -> T:
        loop = asyncio.get_running_loop()
        self._busy[worktree] += 1
        job = loop.run_in_executor(self._thread(worktree), functools.partial(self._with_engine, worktree, function))
        job.add_done_callback(lambda _: self._done(worktree))
        return await asyncio.shield(job)

    def _done(self, worktree: str) -> None:
        self._busy[worktree] -= 1
        if not self._busy[worktree]:
            del self._busy[worktree]

    def _with_engine(self, worktree: str, function: Callable[[Units], T]) -> T:
        engine = self._engines.get(worktree)
        if engine is None or not engine.root.is_dir():
            engine = self._engines[worktree] = self._open(Path(worktree))
        try:
            return function(engine)
        except OSError as error:
            text = f"The checkpoint store of {worktree} cannot be used: {error}"
            raise CheckpointError(text, code="store_unusable") from error

    def _open(self, directory: Path) -> Units:
        """Return the engine of a worktree; a folder without git has its checkpoints among ours."""
        stores = self._stores
        from hub.checkpoint.units import Units

        return Units.open([directory], owner=stores.owner, shadow=stores.folder, always_shadow=stores.always_shadow)

    def _thread(self, worktree: str) -> ThreadPoolExecutor:
        if worktree not in self._threads:
            self._threads[worktree] = ThreadPoolExecutor(1, thread_name_prefix="worktree")
        self._threads.move_to_end(worktree)
        for unused in list(self._unused()):
            self._threads.pop(unused).shutdown(wait=False)
            self._engines.pop(unused, None)
            self._took.pop(unused, None)
        return self._threads[worktree]

    def _unused(self) -> Iterator[str]:
        """Give as many of those at rest as there are too many open, the one unused for longest first."""
        at_rest = (name for name in self._threads if not self._busy[name] and name not in self._restoring)
        return itertools.islice(at_rest, max(0, len(self._threads) - OPEN_LIMIT))

    def took_s(self, worktree: str) -> float:
        """Return the seconds that the last capture of a worktree took, 0 when none is remembered."""
        return self._took.get(worktree, 0.0)

    async def capture(self, request: Request) -> Captured:
        """Take a checkpoint and return what is to be stored of it. Raises CheckpointError; then there is none.

        One that is bound to a session and takes long is shown to those who watch it.
        """
        checkpoint_id = request.checkpoint_id or new_id("checkpoint")
        labels = _labels(checkpoint_id, request)
        with Progress(self._bus, request.bond.session_id, request.bond.run_id) as progress:
            taken = await self.work(
                request.worktree, lambda engine: self._capture(engine, request, labels, progress.heard)
            )
        return describe(checkpoint_id, request, taken)

    def _capture(self, engine: Units, request: Request, labels: Mapping[str, str], heard: Heard) -> Checkpoint:
        began = self._clock.monotonic()
        include = [*included(engine.root, self._include), *request.forced]
        taken = _first_free(
            request,
            lambda name: engine.capture(
                name, labels=labels, budget_s=request.budget_s, include=include, progress=heard
            ),
        )
        self._took[request.worktree] = self._clock.monotonic() - began
        return taken

    async def plan(self, target_ref: str, undo_id: str, request: Request, asked: Asked) -> Plan:
        """Save the present state as `request` says, and plan the way from it to a checkpoint."""
        labels = _labels(undo_id, request)

        def make(engine: Units) -> Plan:
            return _first_free(
                request,
                lambda name: engine.plan(
                    target_ref, undo_ref=name, labels=labels, kept_head_ref=asked.kept_ref(name), **asked.words()
                ),
            )

        return await self.work(request.worktree, make)

    async def preview(self, worktree: str, target_ref: str, asked: Asked) -> Plan:
        """Return the same plan without saving anything; it cannot be applied."""
        kept = asked.kept_ref(PREVIEWED)
        return await self.work(worktree, lambda engine: engine.preview(target_ref, kept_head_ref=kept, **asked.words()))

    def close(self) -> None:
        """Let the threads go; captures in flight end by themselves."""
        for thread in self._threads.values():
            thread.shutdown(wait=False, cancel_futures=True)


async def _no_healer(worktree: str) -> None:
    """Nothing is known of restores here."""


def describe(checkpoint_id: str, request: Request, taken: Checkpoint) -> Captured:
    """Return the row of a capture."""
    return Captured(
        id=checkpoint_id,
        session_id=request.bond.session_id,
        run_id=request.bond.run_id,
        run_count=request.bond.run_count,
        worktree=request.worktree,
        kind=request.kind,
        ref=taken.ref,
        commit_oid=taken.commit,
        files=taken.files,
        uncaptured=[UncapturedView(path=missed.path, why=missed.why) for missed in taken.uncaptured],
        head=taken.head,
        branch=taken.branch,
        note=request.note,
        message_id=request.bond.message_id,
    )


def _labels(checkpoint_id: str, request: Request) -> Mapping[str, str]:
    bond = {name: str(value) for name, value in msgspec.structs.asdict(request.bond).items() if value is not None}
    return {"checkpoint_id": checkpoint_id, "kind": request.kind, "note": request.note, **bond}


def _first_free(request: Request, attempt: Callable[[str], T]) -> T:
    """Try the names in order until one is free: another hub may have taken some in the same repository."""
    for name in ref_names(request):
        try:
            return attempt(name)
        except ConflictError as error:
            if error.code != "ref_exists":
                raise
    raise ConflictError(f"No free name for a checkpoint in {request.series}.", code="ref_exists")


def ref_names(request: Request) -> list[str]:
    """Return the names to try, in order: `<series>/<n><letter>`, then the next numbers.

    A letter that counts in its run, such as s3, goes on counting; the first p has no number.
    """
    last = request.number + NAME_TRIES
    if request.letter[:1] not in NUMBERED:
        return [f"{request.series}/{number}{request.letter}" for number in range(request.number, last)]
    stem, first = f"{request.series}/{request.number}{request.letter[0]}", int(request.letter[1:] or 1)
    return [f"{stem}{count}" if count > 1 or stem[-1] == "s" else stem for count in range(first, first + NAME_TRIES)]


def series_of(session_id: str | None, worktree: str) -> str:
    """Return the first part of a ref's name: the end of the session's id, or a digest of the worktree's path."""
    if session_id is not None:
        return session_id[-12:]
    return f"ws-{hashlib.sha256(worktree.encode()).hexdigest()[:8]}"
