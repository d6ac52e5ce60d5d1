"""How far a long call is: one line on stderr while it lasts, on a terminal only.

Not promised: that there is anything to see. The hub tells nothing of what is done quickly, and tells what it tells
without a receipt.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import msgspec
import typer

from cli import output
from cli.context import Link
from cli.invocation import invocation
from cli.text import clean_line
from hub.errors import UnavailableError
from hub.protocol.events import CheckpointProgress, Live
from hub.subscription import Subscription

TYPE = "checkpoint.progress"
STEPS = {"status": "looking for what has changed", "files": "saving files"}
"""Words for the steps that are known; another step is called what the hub calls it."""


@asynccontextmanager
async def shown(context: typer.Context, link: Link, session: str | None) -> AsyncIterator[None]:
    """Show progress of the session's captures, or of those of no session, until the context is left."""
    if invocation(context).json or not output.err().is_terminal:
        yield
        return
    async with (await link.client()).subscribe(session_id=session, live=True) as stream:
        drawing = asyncio.create_task(_draw(stream, session))
        try:
            yield
        finally:
            drawing.cancel()
            with suppress(asyncio.CancelledError):
                await drawing
            output.transient("")


async def _draw(stream: Subscription, session: str | None) -> None:
    with suppress(UnavailableError):  # a connection that is lost is the call's to tell
        async for item in stream:
            if isinstance(item, Live) and item.type == TYPE and item.session_id == session:
                output.transient(words(msgspec.json.decode(item.data, type=CheckpointProgress)))


def words(data: CheckpointProgress) -> str:
    """Return such as `saving files: 1,200 of 5,000`."""
    step = STEPS.get(data.step, clean_line(data.step))
    if data.total <= 0:
        return f"{step} …" if data.done <= 0 else f"{step}: {data.done:,} …"
    return f"{step}: {data.done:,} of {data.total:,}"
