"""Children: every process the hub starts is stored before it executes anything, and survivors are ended at start."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence, Set

import psutil

from hub.store import registry
from hub.store.database import Database
from hub.store.registry import Child

RUN_VARIABLE = "TURNBACK_RUN"
"""The run that a command belongs to, in its environment."""
TERM_S = 3.0
"""Seconds between TERM and KILL."""
POLL_S = 0.05


class Children:
    """The record of child processes of this boot."""

    def __init__(self, database: Database, boot_id: str) -> None:
        self._database = database
        self._boot_id = boot_id
        self._started: dict[int, float] = {}
        self._with_commands: set[str] = set()

    def watch(self, run_id: str, call_id: str, *, kind: str = "command") -> "CallWatch":
        """Return the watch for the commands of one call, or for another kind of child."""
        return CallWatch(self, run_id, call_id, kind)

    async def started(self, child: Child) -> None:
        """Store a child; it may execute when this returns."""
        self._started[child.pid] = child.start_time
        if child.run_id is not None:
            self._with_commands.add(child.run_id)
        await self._database.write(lambda tx: registry.child_started(tx, child))

    async def ended(self, pid: int) -> None:
        """Note that a child is gone."""
        start_time = self._started.pop(pid, None)
        if start_time is not None:
            await self._database.write(lambda tx: registry.child_ended(tx, pid, start_time))

    async def end_run(self, run_id: str) -> None:
        """End whatever of a run's commands still lives: what they left in the background, and what left their group."""
        if run_id in self._with_commands:
            await end_processes(await asyncio.to_thread(of_runs, {run_id}))
            self._with_commands.discard(run_id)

    def describe(self, pid: int, start_time: float, group: int, kind: str, run_id: str, call_id: str) -> Child:
        """Return the record of a child of this boot."""
        return Child(
            pid=pid,
            start_time=start_time,
            process_group=group,
            kind=kind,
            run_id=run_id or None,
            call_id=call_id or None,
            boot_id=self._boot_id,
        )


class CallWatch:
    """Implements ChildWatch."""

    def __init__(self, children: Children, run_id: str, call_id: str, kind: str) -> None:
        self._kind = kind
        self._children = children
        self._run_id = run_id
        self._call_id = call_id

    async def started(self, pid: int, start_time: float, group: int) -> None:
        child = self._children.describe(pid, start_time, group, self._kind, self._run_id, self._call_id)
        await self._children.started(child)

    async def ended(self, pid: int) -> None:
        await self._children.ended(pid)


async def end_survivors(database: Database) -> int:
    """End what an earlier boot left behind (TERM, 3 s, KILL); return how many processes there were.

    They are found by their group, and by the run's id in their environment, for some leave their group on purpose.
    """
    recorded = await database.read(registry.children_alive)
    groups = [child.process_group for child in recorded if _group_is_ours(child)]
    marked = of_runs({child.run_id for child in recorded if child.run_id})
    found = {process.pid for group in groups for process in _members(group)} | {process.pid for process in marked}
    await end_groups(groups)
    await end_processes(marked)
    for child in recorded:
        gone: Child = child
        await database.write(lambda tx, gone=gone: registry.child_ended(tx, gone.pid, gone.start_time))  # type: ignore[misc]
    return len(found)


def of_runs(run_ids: Set[str]) -> list[psutil.Process]:
    """Return the living processes that carry one of these runs in their environment. Reads every process's."""
    found = []
    for process in psutil.process_iter() if run_ids else ():
        try:
            if process.environ().get(RUN_VARIABLE) in run_ids:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


async def end_processes(processes: Sequence[psutil.Process]) -> None:
    """End processes (TERM, 3 s, KILL) and wait until they are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, TERM_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    await asyncio.to_thread(psutil.wait_procs, alive, TERM_S)


async def end_groups(groups: Sequence[int]) -> None:
    """End process groups and wait until nothing of them lives."""
    for group in groups:
        _signal(group, signal.SIGTERM)
    for _ in range(round(TERM_S / POLL_S)):
        if not any(_members(group) for group in groups):
            return
        await asyncio.sleep(POLL_S)
    for group in groups:
        _signal(group, signal.SIGKILL)
    while any(_members(group) for group in groups):  # noqa: ASYNC110 - the kernel has no event for a group's end
        await asyncio.sleep(POLL_S)


def _group_is_ours(child: Child) -> bool:
    """Return whether the recorded process still lives, or members of its group do that began after it."""
    try:
        if abs(psutil.Process(child.pid).create_time() - child.start_time) < 1.0:
            return True
    except psutil.NoSuchProcess:
        return any(member.create_time() >= child.start_time - 1.0 for member in _members(child.process_group))
    return False


def _members(group: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def _signal(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return
