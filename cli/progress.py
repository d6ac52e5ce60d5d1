"""That a long call goes on, and how far it is: one line on stderr while it lasts, on a terminal only.

Not promised: more than the time it takes. The hub tells of a capture's steps only where somebody watches its session,
and without a receipt.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import msgspec
import typer

from cli import output
from cli.context import Link
from cli.invocation import invocation
from cli.text import clean_line
from hub.errors import UnavailableError
from hub.protocol.events import CheckpointProgress, Live
from hub.subscription import Subscription

FIRST_S = 1.0
"""Seconds that a call may take before anything is shown."""
EVERY_S = 0.25
TYPE = "checkpoint.progress"
STEPS = {"status": "looking for what has changed", "files": "saving files"}
"""Words for the steps that are known; another step is called what the hub calls it."""


async def call(context: typer.Context, link: Link, method: str, /, *, watch: str | None = None, **params: Any) -> Any:
    """Make a call and show that it goes on. `watch` is the session whose captures are told of meanwhile."""
    async with _shown(context, link, watch):
        return await link.call(method, **params)


@asynccontextmanager
async def _shown(context: typer.Context, link: Link, watch: str | None) -> AsyncIterator[None]:
    if invocation(context).json or not output.err().is_terminal:
        yield
        return
    async with AsyncExitStack() as stack:
        line = _Line()
        shows = [asyncio.create_task(line.tick())]
        stack.push_async_callback(_end, shows, line)
        if watch is not None:
            stream = (await link.client()).subscribe(session_id=watch, live=True)
            shows.append(asyncio.create_task(_listen(await stack.enter_async_context(stream), line)))
        yield


async def _end(shows: Sequence[asyncio.Task[None]], line: "_Line") -> None:
    for task in shows:
        task.cancel()
    await asyncio.wait(shows)
    line.clear()


class _Line:
    """The line, and when the call began."""

    def __init__(self) -> None:
        self._words = "working …"
        self._shown = False
        self._began = asyncio.get_running_loop().time()

    def say(self, words: str) -> None:
        """Show what is being done."""
        self._words, self._shown = words, True
        output.transient(f"{self._words}  {asyncio.get_running_loop().time() - self._began:.0f} s")

    async def tick(self) -> None:
        """Show the time, after a while, again and again."""
        await asyncio.sleep(FIRST_S)
        while True:
            self.say(self._words)
            await asyncio.sleep(EVERY_S)

    def clear(self) -> None:
        """Take the line away, if there is one."""
        if self._shown:
            output.transient("")


async def _listen(stream: Subscription, line: _Line) -> None:
    with suppress(UnavailableError):  # a connection that is lost is the call's to tell
        async for item in stream:
            if isinstance(item, Live) and item.type == TYPE:
                line.say(words(msgspec.json.decode(item.data, type=CheckpointProgress)))


def words(data: CheckpointProgress) -> str:
    """Return such as `saving files: 1,200 of 5,000`."""
    step = STEPS.get(data.step, clean_line(data.step))
    if data.total <= 0:
        return f"{step} …" if data.done <= 0 else f"{step}: {data.done:,} …"
    return f"{step}: {data.done:,} of {data.total:,}"
