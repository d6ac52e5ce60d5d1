"""The event log: numbering inside a transaction, reading by cursor, trimming.

Invariant: seq grows by one with every event and never goes back; prev_seq is the session's event before it.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec
import sqlalchemy as sa

from hub.clock import iso
from hub.protocol.events import Data, Event
from hub.store.schema import events, meta

CACHED_SESSIONS = 10_000
TRIMMED = "trimmed_seq"
"""Key under which `meta` keeps how far the log was trimmed."""


class EventNumbers:
    """Hands out seq and prev_seq. Used by the writer's thread alone, but for `committed`, which anyone may read."""

    def __init__(self) -> None:
        self.committed = 0
        self._next = 1
        self._last_of: dict[str, int] = {}
        self._tentative: dict[str, int] = {}

    def load(self, conn: sa.Connection) -> None:
        """Begin after the newest event of the log."""
        newest = conn.execute(sa.select(sa.func.max(events.c.seq))).scalar()
        self.committed = max(newest or 0, trimmed_seq(conn))
        self._next = self.committed + 1

    def make(
        self, conn: sa.Connection, now: datetime, type: str, data: Data, session_id: str | None, run_id: str | None
    ) -> Event:
        """Return the event with its numbers; they count only after `confirm`."""
        previous = 0
        if session_id is not None:
            previous = self._previous(conn, session_id)
            self._tentative[session_id] = self._next
        event = Event(self._next, previous, session_id, run_id, type, iso(now), msgspec.Raw(msgspec.json.encode(data)))
        self._next += 1
        return event

    def store(self, conn: sa.Connection, made: Sequence[Event]) -> None:
        """Insert the events of a group in one statement."""
        if made:
            conn.exec_driver_sql(
                "INSERT INTO events (seq, prev_seq, session_id, run_id, type, at, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
                [_row(event) for event in made],
            )

    def confirm(self) -> None:
        """The group is committed."""
        if len(self._last_of) > CACHED_SESSIONS:
            self._last_of.clear()
        self._last_of.update(self._tentative)
        self._tentative.clear()
        self.committed = self._next - 1

    def forget(self) -> None:
        """The group was rolled back."""
        self._tentative.clear()
        self._next = self.committed + 1

    def _previous(self, conn: sa.Connection, session_id: str) -> int:
        for known in (self._tentative, self._last_of):
            if session_id in known:
                return known[session_id]
        newest = conn.execute(sa.select(sa.func.max(events.c.seq)).where(events.c.session_id == session_id)).scalar()
        return newest or 0


def _row(event: Event) -> tuple[int, int, str | None, str | None, str, int, str]:
    at = round(datetime.fromisoformat(event.at).timestamp() * 1000)
    return (event.seq, event.prev_seq, event.session_id, event.run_id, event.type, at, bytes(event.data).decode())


def page(conn: sa.Connection, after: int, until: int, limit: int, session_id: str | None = None) -> list[Event]:
    """Return at most `limit` events with after < seq <= until, in order."""
    query = sa.select(events).where(events.c.seq > after, events.c.seq <= until).order_by(events.c.seq).limit(limit)
    if session_id is not None:
        query = query.where(events.c.session_id == session_id)
    return [
        Event(row.seq, row.prev_seq, row.session_id, row.run_id, row.type, iso(row.at), msgspec.Raw(row.data.encode()))
        for row in conn.execute(query)
    ]


def trimmed_seq(conn: sa.Connection) -> int:
    """Return the seq up to which events may be missing; everything after it is kept."""
    found = conn.execute(sa.select(meta.c.value).where(meta.c.key == TRIMMED)).scalar()
    return int(found or 0)


def last_seq_of(conn: sa.Connection, session_id: str) -> int:
    """Return the seq of the session's newest event, 0 when there is none."""
    return conn.execute(sa.select(sa.func.max(events.c.seq)).where(events.c.session_id == session_id)).scalar() or 0


def trim(conn: sa.Connection, *, max_rows: int, oldest: datetime) -> int:
    """Delete events beyond the caps, sparing each session's newest; return how many went."""
    newest = conn.execute(sa.select(sa.func.max(events.c.seq))).scalar() or 0
    beyond = sa.or_(events.c.seq <= newest - max_rows, events.c.at < oldest)
    floor = conn.execute(sa.select(sa.func.max(events.c.seq)).where(beyond, events.c.seq < newest)).scalar()
    if floor is None:
        return 0
    spared = sa.select(sa.func.max(events.c.seq)).where(events.c.session_id.is_not(None)).group_by(events.c.session_id)
    result = conn.execute(sa.delete(events).where(events.c.seq <= floor, events.c.seq.not_in(spared)))
    conn.exec_driver_sql("INSERT OR REPLACE INTO meta (key, value) VALUES (?, ?)", (TRIMMED, str(floor)))
    return result.rowcount
