"""A stream of events as one subscription of a connection sees it: a bounded buffer between its reader and a consumer.

Invariant: items leave in the order in which they came; an end, with or without an error, comes after all of them.
One consumer at a time.
"""

import asyncio
import copy
from collections import deque
from typing import Self

from hub.errors import TurnbackError, UnavailableError
from hub.protocol.cursor import Item
from hub.protocol.subscribing import Subscribed

BUFFER_ITEMS = 512
"""Items a subscription holds before its connection is read no further."""
OVERRUN_ITEMS = 65_536
"""Items a subscription holds while a call is waited for (its answer lies behind them); then the subscription ends."""


class Subscription:
    """A stream of events. Iterating raises UnavailableError (connection_lost, slow_reader) after the last item held."""

    ack: Subscribed

    def __init__(self, moved: asyncio.Event) -> None:
        self._items: deque[Item] = deque()
        self._arrived = asyncio.Event()
        self._moved = moved
        self._over = False
        self._error: TurnbackError | None = None

    @property
    def full(self) -> bool:
        """Whether the connection should be read no further for now."""
        return len(self._items) >= BUFFER_ITEMS and not self._over

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Item:
        while not self._items:
            if self._error is not None:
                raise copy.copy(self._error)
            if self._over:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        self._moved.set()
        return self._items.popleft()

    def put(self, item: Item) -> None:
        """Add an item; the stream ends when it holds too many. For the connection's reader."""
        if self._over:
            return
        self._items.append(item)
        self._arrived.set()
        if len(self._items) >= OVERRUN_ITEMS:
            self.finish(
                UnavailableError("This reader is too slow; resume from its cursor.", code="slow_reader", retryable=True)
            )

    def finish(self, error: TurnbackError | None) -> None:
        """End the stream behind what it holds, with this error. The first end counts."""
        if not self._over:
            self._over, self._error = True, error
        self._arrived.set()
