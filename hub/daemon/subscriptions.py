"""One reader's subscription: replay from a cursor, then live, without a hole or a repeat."""

from collections.abc import Awaitable, Callable

from hub.daemon.bus import Bus, Notice, Waker
from hub.protocol.envelope import encode_notification
from hub.protocol.events import Event, MessageDelta
from hub.protocol.methods import EventFrame, LiveFrame
from hub.protocol.subscribing import CaughtUp, Gap
from hub.store import eventlog
from hub.store.database import Database

PAGE = 500
PENDING_LIVE = 1_000
"""Live notices that wait for a slow reader; more are dropped, for they are only worth showing now."""

Send = Callable[[bytes], Awaitable[None]]


class Subscription:
    """A cursor into the log. `number` is its name on the connection."""

    def __init__(self, number: int, database: Database, bus: Bus, session_id: str | None, cursor: int) -> None:
        self.number = number
        self._database = database
        self._bus = bus
        self._session_id = session_id
        self._cursor = cursor
        self._waker = Waker()
        self._live: list[Notice] = []
        self._gap: Gap | None = None

    def want_live(self) -> None:
        """Also pass on streamed text and progress."""
        self._waker.offer = self._offer

    def begin_with_gap(self, gap: Gap) -> None:
        """Tell first that the cursor could not be served."""
        self._gap = gap

    async def pump(self, send: Send) -> None:
        """Send until cancelled. `send` waits while the reader is slow."""
        self._bus.attach(self._waker)
        try:
            if self._gap is not None:
                await send(encode_notification("events.gap", self._gap))
            await self._catch_up(send)
            await send(encode_notification("events.caught_up", CaughtUp(subscription=self.number, seq=self._cursor)))
            await self._send_open_answer(send)
            while True:
                await self._waker.event.wait()
                self._waker.event.clear()
                await self._send_live(send)
                await self._catch_up(send)
        finally:
            self._bus.detach(self._waker)

    async def _catch_up(self, send: Send) -> None:
        while self._cursor < self._bus.last_seq:
            until = self._bus.last_seq
            events = self._bus.recent(self._cursor, PAGE)
            if events is None:
                events = await self._page(until)
                self._cursor = events[-1].seq if len(events) == PAGE else until
            else:
                self._cursor = events[-1].seq
            for event in events:
                if self._session_id is None or event.session_id == self._session_id:
                    await send(encode_notification("event", EventFrame(self.number, event)))

    async def _page(self, until: int) -> list[Event]:
        after, session_id = self._cursor, self._session_id
        return await self._database.read(lambda conn: eventlog.page(conn, after, until, PAGE, session_id))

    def _offer(self, notice: Notice) -> None:
        if self._session_id is not None and notice.session_id != self._session_id:
            return
        joined = self._live[-1].followed_by(notice) if self._live else None
        if joined is not None:
            self._live[-1] = joined
        elif len(self._live) < PENDING_LIVE:
            self._live.append(notice)
            self._waker.event.set()

    async def _send_live(self, send: Send) -> None:
        pending, self._live = self._live, []
        for notice in pending:
            await send(encode_notification("live", LiveFrame(self.number, notice.encoded())))

    async def _send_open_answer(self, send: Send) -> None:
        if self._waker.offer is None or self._session_id is None:
            return
        self._live.clear()
        answer = self._bus.open_answer(self._session_id)
        if answer is not None:
            data = MessageDelta(message_id=answer.message_id, offset=0, text=answer.text)
            notice = Notice("message.delta", answer.session_id, answer.run_id, data)
            await send(encode_notification("live", LiveFrame(self.number, notice.encoded())))
