"""How far a long capture is, shown to those who watch its session: from its second half second on, four times a second.

The capture's thread only leaves its last word here; the event loop looks at it now and then.
"""

import asyncio
from collections.abc import Callable
from types import TracebackType

from hub.daemon.bus import Bus
from hub.protocol.events import CheckpointProgress

FIRST_S = 0.5
EVERY_S = 0.25

Heard = Callable[[str, int, int], None]
"""Takes phase, done and total (0: not known)."""


class Progress:
    """Shows while it is entered, if there is a session to show it to."""

    def __init__(self, bus: Bus, session_id: str | None, run_id: str | None) -> None:
        self._bus = bus
        self._session_id = session_id
        self._run_id = run_id
        self._last: CheckpointProgress | None = None
        self._shown: CheckpointProgress | None = None
        self._timer: asyncio.TimerHandle | None = None

    def heard(self, phase: str, done: int, total: int) -> None:
        """Leave word; called in any thread."""
        self._last = CheckpointProgress(step=phase, done=done, total=total)

    def __enter__(self) -> "Progress":
        if self._session_id is not None:
            self._timer = asyncio.get_running_loop().call_later(FIRST_S, self._look)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EVERY_S, self._look)
        if self._last is not None and self._last != self._shown and self._session_id is not None:
            self._shown = self._last
            self._bus.live("checkpoint.progress", self._last, self._session_id, self._run_id)
