"""The processes that came from one child: its session, its process group, and whatever descends from them.

Invariant: `end` returns only when none of those it knows is alive, or says which are. A process is known by pid and
start time, so a pid that was given to another process is left alone.
Not promised: finding a process that left the session and whose parent ended before anybody looked.
"""

import asyncio
import os
import signal

import psutil

TERM_GRACE_S = 3.0
KILL_GRACE_S = 5.0
POLL_FIRST_S = 0.01
POLL_LAST_S = 0.1


class Family:
    """What is alive of the session and group whose id is `group`: the pid of its leader, which must still live."""

    def __init__(self, group: int) -> None:
        self.group = group
        self._known: dict[int, psutil.Process] = {}
        self._learn(group)
        self._leader = self._known.get(group)

    def alive(self) -> tuple[psutil.Process, ...]:
        """Look again at the session and the group, and return what is known and lives (zombies don't)."""
        if not self._is_taken():
            for pid in psutil.pids():
                if pid not in self._known and self._is_member(pid):
                    self._learn(pid)
        self._known = {pid: process for pid, process in self._known.items() if _lives(process)}
        return tuple(self._known.values())

    def alive_with_descendants(self) -> tuple[psutil.Process, ...]:
        """Like `alive`, with those that left the session while their parent is still known. Reads every process."""
        self.alive()
        parents = {process.pid: process.info["ppid"] or 0 for process in psutil.process_iter(["ppid"])}
        for pid in parents:
            if pid not in self._known and self._descends(pid, parents):
                self._learn(pid)
        return self.alive()

    def _is_taken(self) -> bool:
        """Say whether the id of the session has gone to a process that has nothing to do with it."""
        gone = self._leader is None or not self._leader.is_running()
        return gone and psutil.pid_exists(self.group)

    def _descends(self, pid: int, parents: dict[int, int]) -> bool:
        seen: set[int] = set()
        while pid > 1 and pid not in seen:
            if pid in self._known:
                return True
            seen.add(pid)
            pid = parents.get(pid, 0)
        return False

    def _is_member(self, pid: int) -> bool:
        try:
            return self.group in (os.getsid(pid), os.getpgid(pid))
        except (ProcessLookupError, PermissionError):
            return False

    def _learn(self, pid: int) -> None:
        try:
            self._known[pid] = psutil.Process(pid)
        except psutil.NoSuchProcess:
            return

    async def end(self) -> tuple[int, ...]:
        """End them all: TERM, then KILL after TERM_GRACE_S. Return the pids that outlived even that."""
        if await self._signalled(signal.SIGTERM, TERM_GRACE_S, repeat=False):
            await self._signalled(signal.SIGKILL, KILL_GRACE_S, repeat=True)
        return tuple(process.pid for process in self.alive())

    async def _signalled(self, number: signal.Signals, grace_s: float, *, repeat: bool) -> bool:
        """Send the signal, again to newcomers and with `repeat` to all, and say whether any lives after the grace."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + grace_s, POLL_FIRST_S
        told: set[int] = set()
        while living := self.alive_with_descendants():
            for process in living:
                if repeat or process.pid not in told:
                    _send(process, number)
                    told.add(process.pid)
            if loop.time() >= until:
                return True
            await asyncio.sleep(pause)
            pause = min(2 * pause, POLL_LAST_S)
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    """Signal a process, and wake it if it is stopped. One that ended meanwhile, or is another user's, is passed over:
    `alive` tells them apart."""
    try:
        process.send_signal(number)
        if number != signal.SIGKILL:
            process.send_signal(signal.SIGCONT)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return
