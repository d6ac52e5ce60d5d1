"""Admission: how many runs execute at once, and one writer per worktree. Waiting runs hold neither.

Cooperative and in memory: it is rebuilt from nothing at every start, since only executing runs are in it.
"""

import asyncio
from collections.abc import Callable


class Admission:
    """Slots and writer locks. `on_free` is called whenever somebody leaves."""

    def __init__(self, max_parallel: int) -> None:
        self.on_free: Callable[[], None] = lambda: None
        self._max = max_parallel
        self._holders: dict[str, str] = {}
        self._reserved: dict[str, str] = {}
        self._returning: list[tuple[str, str, asyncio.Future[None]]] = []

    def try_enter(self, worktree: str, who: str) -> bool:
        """Take a slot and the worktree's writer lock if both are free and nobody waits to return to it."""
        if any(place == worktree for place, _, _ in self._returning) or not self._free(worktree):
            return False
        self._holders[worktree] = who
        return True

    async def enter(self, worktree: str, who: str) -> None:
        """Wait for a slot and the lock; those who wait are let in first come, first served."""
        if self.try_enter(worktree, who):
            return
        let_in: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (worktree, who, let_in)
        self._returning.append(entry)
        try:
            await let_in
        except asyncio.CancelledError:
            self._returning = [other for other in self._returning if other is not entry]
            if let_in.done() and not let_in.cancelled():
                self.leave(who)
            raise

    def leave(self, who: str) -> None:
        """Give both back. Does nothing when `who` holds none."""
        held = [worktree for worktree, holder in self._holders.items() if holder == who]
        for worktree in held:
            del self._holders[worktree]
        if held:
            self._let_in()
            self.on_free()

    def reserve(self, worktree: str, who: str) -> bool:
        """Let nobody in from now on, whoever is in may finish. Returns False when somebody else has reserved it."""
        return self._reserved.setdefault(worktree, who) == who

    def release(self, worktree: str, who: str) -> None:
        """End a reservation."""
        if self._reserved.get(worktree) == who:
            del self._reserved[worktree]
            self._let_in()
            self.on_free()

    def holds(self, who: str) -> bool:
        """Return whether somebody executes now."""
        return who in self._holders.values()

    def holder(self, worktree: str) -> str | None:
        """Return who writes in a worktree now."""
        return self._holders.get(worktree)

    def _free(self, worktree: str) -> bool:
        taken = worktree in self._holders or worktree in self._reserved
        return not taken and len(self._holders) < self._max

    def _let_in(self) -> None:
        for entry in list(self._returning):
            worktree, who, let_in = entry
            if let_in.done():
                self._returning.remove(entry)
            elif self._free(worktree):
                self._returning.remove(entry)
                self._holders[worktree] = who
                let_in.set_result(None)
