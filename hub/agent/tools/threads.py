"""Work that must not be abandoned half way: carried to its end although the waiting task is cancelled.

Invariant: when `to_the_end` or `in_thread` returns or raises, the work is over; a cancellation is raised after it.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Await the work as a task of its own. Raises CancelledError only after it is over, however often cancelled."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        task.exception()
        raise cancelled
    return task.result()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run blocking work in a worker thread and wait for it, cancelled or not. The work must be bounded."""
    return await to_the_end(asyncio.to_thread(function, *args, **kwargs))
