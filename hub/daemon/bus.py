"""The bus: what was committed, in order, to everyone who reads; and live notices to those who want them.

A subscriber is a cursor. Recent events are in one shared ring, older ones in the database, so a slow reader costs
nobody memory and nobody else time; only its own socket is waited for.
"""

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from hub.protocol.events import LIVE, Data, Event, Live, MessageDelta

RING = 4096
"""Events kept in memory."""

Listener = Callable[[Event], None]


class Waker:
    """A reader's alarm clock: set whenever there may be something new. `offer` takes live notices, if wanted."""

    def __init__(self, offer: "Callable[[Notice], None] | None" = None) -> None:
        self.event = asyncio.Event()
        self.offer = offer


class Notice(msgspec.Struct, frozen=True):
    """A live notice on its way to readers."""

    type: str
    session_id: str
    run_id: str | None
    data: Data

    def followed_by(self, later: "Notice") -> "Notice | None":
        """Return both as one, None when they are not pieces of one text that stand side by side."""
        one, two = self.data, later.data
        if not isinstance(one, MessageDelta) or not isinstance(two, MessageDelta):
            return None
        if one.message_id != two.message_id or one.offset + len(one.text) != two.offset:
            return None
        joined = MessageDelta(message_id=one.message_id, offset=one.offset, text=one.text + two.text)
        return Notice(self.type, self.session_id, self.run_id, joined)

    def encoded(self) -> Live:
        """Return it as it is sent."""
        return Live(self.type, self.session_id, self.run_id, msgspec.Raw(msgspec.json.encode(self.data)))


class OpenAnswer(msgspec.Struct):
    """An answer that is streaming: what a reader who comes now has missed of it."""

    session_id: str
    run_id: str
    message_id: str
    text: str


class Bus:
    """In-memory side of the event log. All calls are made on the event loop."""

    def __init__(self, last_seq: int = 0) -> None:
        self.last_seq = last_seq
        self._ring: deque[Event] = deque(maxlen=RING)
        self._wakers: set[Waker] = set()
        self._listeners: list[Listener] = []
        self._open: dict[str, OpenAnswer] = {}

    def publish(self, events: Sequence[Event]) -> None:
        """Take over a commit's events. Listeners run at once, must be quick and must not raise."""
        for event in events:
            self._ring.append(event)
            self.last_seq = event.seq
            if event.type in ("message.added", "message.discarded", "run.cancelled", "run.failed"):
                self._close_answers(event)
            for listener in self._listeners:
                listener(event)
        for waker in self._wakers:
            waker.event.set()

    def listen(self, listener: Listener) -> None:
        """Call a function with every event from now on."""
        self._listeners.append(listener)

    def attach(self, waker: Waker) -> None:
        """Wake a reader from now on."""
        self._wakers.add(waker)

    def detach(self, waker: Waker) -> None:
        """Stop waking a reader."""
        self._wakers.discard(waker)

    def recent(self, after: int, limit: int) -> list[Event] | None:
        """Return events after a seq from memory; None when the database must be asked for them."""
        if not self._ring or self._ring[0].seq > after + 1:
            return None
        start = after + 1 - self._ring[0].seq
        return list(itertools.islice(self._ring, start, start + limit))

    def live(self, type: str, data: Data, session_id: str, run_id: str | None) -> None:
        """Show a notice to those who watch now."""
        if LIVE.get(type) is not data.__class__:
            raise ValueError(f"live notice {type!r} does not carry {data.__class__.__name__}")
        notice = Notice(type, session_id, run_id, data)
        for waker in self._wakers:
            if waker.offer is not None:
                waker.offer(notice)

    def stream(self, session_id: str, run_id: str, message_id: str, text: str) -> int:
        """Note that an answer grew; return the offset at which the new text stands."""
        answer = self._open.setdefault(session_id, OpenAnswer(session_id, run_id, message_id, ""))
        if answer.message_id != message_id:
            answer = self._open[session_id] = OpenAnswer(session_id, run_id, message_id, "")
        offset = len(answer.text)
        answer.text += text
        return offset

    def open_answer(self, session_id: str) -> OpenAnswer | None:
        """Return the answer that is streaming in a session."""
        return self._open.get(session_id)

    def _close_answers(self, event: Event) -> None:
        if event.session_id is not None:
            self._open.pop(event.session_id, None)
