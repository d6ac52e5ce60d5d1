"""Where a reader of events stands: what to ask for after a lost connection, what is new, and what is missing.

Invariant: nothing at or below the newest event that was handed on is handed on again, and none before its session's
previous event was handed on or its loss was told. In a stream of all sessions only holes that are newer than all that
was seen can be noticed: an older one lies hidden between the other sessions' events. No I/O, no clock.
"""

from typing import Any

from hub.errors import TurnbackError, UnavailableError
from hub.protocol.events import Event, Live
from hub.protocol.subscribing import CaughtUp, Gap, Subscribed

Item = Event | Live | CaughtUp | Gap

BACKOFF_S = (0.1, 2.0)
"""Shortest and longest pause between attempts to come back."""


class MissingEvents(UnavailableError):
    """The hub skipped events; asking again from the cursor brings them."""

    default_code = "events_missing"


class Cursor:
    """A reader's place in one log. `after_seq` None begins with what happens once it has subscribed."""

    def __init__(self, after_seq: int | None, session_id: str | None = None) -> None:
        self._session_id = session_id
        self._log_id: str | None = None
        self._seen = after_seq
        self._ask_after = after_seq
        self._asked_again = -1

    def params(self, *, live: bool) -> dict[str, Any]:
        """Return the parameters of events.subscribe that continue from here."""
        params: dict[str, Any] = {"session_id": self._session_id, "live": live, "after_seq": self._ask_after}
        if self._ask_after is not None:
            params["log_id"] = self._log_id
        return {name: value for name, value in params.items() if value is not None}

    def subscribed(self, ack: Subscribed) -> None:
        """Take the hub's answer. Another log is believed only when its gap arrives, for the cursor is the old one's."""
        if self._log_id is None:
            self._log_id = ack.log_id
        if self._seen is None:
            self._seen = self._ask_after = ack.last_seq

    def take(self, item: Item) -> tuple[Item, ...]:
        """Return what to hand on, nothing for a repeat. Raises MissingEvents for a hole; found again, it is a gap."""
        if isinstance(item, Event):
            return self._take_event(item)
        if isinstance(item, CaughtUp):
            self._ask_after = max(self._ask_after or 0, item.seq)
        elif isinstance(item, Gap):
            self._log_id = item.log_id
            self._seen = self._ask_after = item.seq
            self._asked_again = -1
        return (item,)

    def _take_event(self, event: Event) -> tuple[Item, ...]:
        seen = self._seen or 0
        if event.seq <= seen:
            return ()
        hole = self._hole_before(event, seen) if event.prev_seq > seen else ()
        self._seen = event.seq
        self._ask_after = max(self._ask_after or 0, event.seq)
        return (*hole, event)

    def _hole_before(self, event: Event, seen: int) -> tuple[Item, ...]:
        if self._asked_again != seen:
            self._asked_again = self._ask_after = seen
            raise MissingEvents(f"Events between {seen} and {event.seq} did not arrive.", retryable=True)
        reason = f"the log no longer has the events between {seen} and {event.seq}"
        return (Gap(subscription=0, log_id=self._log_id or "", reason=reason, seq=event.prev_seq),)


class Retry:
    """How long to wait before the next attempt to come back, and when to give up."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self.reset()

    def reset(self) -> None:
        """Begin anew: something has arrived."""
        self._attempts = 0
        self._give_up_at: float | None = None

    def pause_after(self, error: TurnbackError, now: float, luck: float) -> float | None:
        """Return seconds to wait, None when another attempt would not help or patience is at its end.

        `now` is in seconds of any steady clock; `luck`, from 0 to 1, spreads the clients of one hub.
        """
        if not (error.retryable or isinstance(error, UnavailableError)):
            return None
        if self._give_up_at is None:
            self._give_up_at = now + self._patience_s
        if now >= self._give_up_at:
            return None
        shortest, longest = BACKOFF_S
        pause_s = min(longest, shortest * 2.0 ** min(self._attempts, 16)) * (0.5 + luck / 2)
        self._attempts += 1
        return min(max(pause_s, error.retry_after_s or 0.0), self._give_up_at - now)
