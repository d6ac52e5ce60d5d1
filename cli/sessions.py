"""Sessions: list, show, send, cancel, queue."""

from typing import Annotated, Any

import typer

from cli import output, render, tables
from cli.context import Link, call, session_id, with_link
from cli.invocation import invocation
from hub.domain.values import PromptMode
from hub.errors import UsageError

SessionArgument = Annotated[str, typer.Argument(help="Id of the session, or a unique part at its start or end.")]
PAGE = 1000
INBOX = "terminal:"
"""The address of results that nobody follows: `hubctl inbox` shows them."""


def sessions(
    context: typer.Context,
    archived: Annotated[bool, typer.Option("--archived", help="Also those that were put aside.")] = False,
) -> None:
    """List sessions, newest first."""
    output.show(context, call(context, "session.list", archived=archived), tables.sessions)


def show(
    context: typer.Context,
    session: SessionArgument,
    superseded: Annotated[bool, typer.Option("--superseded", help="Also what a restore has put aside.")] = False,
) -> None:
    """Show a session: its messages and its runs."""
    found = with_link(context, lambda link: _whole(link, session, superseded))
    if invocation(context).json:
        return output.document(found)
    output.draw(tables.session(found["session"]))
    output.write(render.transcript(found["messages"]))
    return output.draw(tables.runs(found["runs"]))


async def _whole(link: Link, given: str, superseded: bool) -> dict[str, Any]:
    id = await session_id(link, given)
    return {
        "session": await link.call("session.get", session_id=id),
        "messages": await all_messages(link, id, superseded=superseded),
        "runs": await link.call("run.list", session_id=id, limit=PAGE),
    }


async def all_messages(link: Link, id: str, *, superseded: bool = False) -> list[Any]:
    """Return the whole transcript, oldest first."""
    return (await transcript(link, id, superseded=superseded))[0]


async def transcript(link: Link, id: str, *, superseded: bool = False) -> tuple[list[Any], int]:
    """Return the whole transcript, oldest first, and the cursor from which events continue it."""
    page = await link.call("session.messages", session_id=id, limit=PAGE, superseded=superseded)
    messages = list(page.messages)
    while page.next_after is not None:
        page = await link.call(
            "session.messages", session_id=id, limit=PAGE, superseded=superseded, after=page.next_after
        )
        messages += page.messages
    return messages, page.last_seq


def send(
    context: typer.Context,
    session: SessionArgument,
    text: Annotated[str, typer.Argument(help="What to say.")],
    steer: Annotated[bool, typer.Option("--steer", help="Into the run in progress (default).")] = False,
    follow_up: Annotated[bool, typer.Option("--follow-up", help="A run of its own, afterwards.")] = False,
    interrupt: Annotated[bool, typer.Option("--interrupt", help="Cancel the run in progress, then run this.")] = False,
) -> None:
    """Send a session a prompt or a steer, without waiting."""
    mode = mode_of(steer=steer, follow_up=follow_up, interrupt=interrupt)

    async def submit(link: Link) -> Any:
        id = await session_id(link, session)
        return await link.call("prompt.submit", session_id=id, text=text, mode=mode, address=INBOX)

    output.show(context, with_link(context, submit), tables.accepted)


def mode_of(*, steer: bool, follow_up: bool, interrupt: bool) -> PromptMode:
    """Return the mode that the options name. Raises UsageError when they name several."""
    if steer + follow_up + interrupt > 1:
        raise UsageError("--steer, --follow-up and --interrupt exclude each other.")
    return "follow_up" if follow_up else "interrupt" if interrupt else "steer"


def cancel(context: typer.Context, session: SessionArgument) -> None:
    """Stop a session's run."""

    async def stop(link: Link) -> Any:
        return await link.call("run.cancel", session_id=await session_id(link, session))

    output.show(context, with_link(context, stop), tables.acknowledged("Cancelling"))


def queue(context: typer.Context, session: SessionArgument) -> None:
    """List the prompts that wait in a session, next first."""

    async def pending(link: Link) -> Any:
        return await link.call("prompt.list", session_id=await session_id(link, session))

    output.show(context, with_link(context, pending), tables.prompts)
