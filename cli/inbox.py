"""The inbox: results that nobody followed, each shown until somebody has seen it."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from cli import output, tables
from cli.context import Link, with_link
from hub.errors import ConflictError

ADDRESS = "terminal:"
RECEIPT = "shown by hubctl"


def inbox(
    context: typer.Context,
    every: Annotated[bool, typer.Option("--all", help="Also those that were shown before.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave them in the inbox.")] = False,
) -> None:
    """Show the results that nobody has seen yet."""

    async def shown(link: Link) -> None:
        found = await link.call("delivery.list", address=ADDRESS, state="all" if every else "pending")
        output.show(context, found, tables.deliveries)
        if not keep:
            await mark_seen(link, found)

    with_link(context, shown)


async def mark_seen(link: Link, deliveries: Sequence[Any]) -> None:
    """Say of each pending delivery that a person was shown it; one that another client was quicker with is left."""
    for delivery in deliveries:
        if delivery.state != "pending":
            continue
        try:
            await link.call("delivery.receipt", delivery_id=delivery.id, receipt=RECEIPT)
        except ConflictError:
            continue


async def mark_run_seen(link: Link, run_id: str) -> None:
    """Say that a run's result was shown, because somebody followed it to its end."""
    await mark_seen(link, [delivery for delivery in await _pending(link) if delivery.run_id == run_id])


async def mark_session_seen(link: Link, session_id: str) -> None:
    """Say that a session's results were shown, because somebody was shown its transcript."""
    await mark_seen(link, [delivery for delivery in await _pending(link) if delivery.session_id == session_id])


async def _pending(link: Link) -> list[Any]:
    found: list[Any] = await link.call("delivery.list", address=ADDRESS, state="pending")
    return found
