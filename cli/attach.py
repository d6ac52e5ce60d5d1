"""Attach to a session: its transcript so far, then everything live; a typed line steers."""

from typing import Annotated

import typer

from cli import output, prompting, render, tables
from cli.context import Link, session_id, with_link
from cli.conversation import Conversation
from cli.inbox import mark_session_seen
from cli.invocation import invocation
from cli.prompting import Inputs
from cli.screens import JsonScreen, TextScreen
from cli.sessions import SessionArgument, transcript
from hub.protocol.events import Event
from hub.protocol.subscribing import Gap

Deltas = Annotated[bool, typer.Option("--deltas", help="With --json: streamed text and progress too.")]


def attach(context: typer.Context, session: SessionArgument, deltas: Deltas = False) -> None:
    """Show a session's transcript so far, then follow it live.

    A typed line steers the run in progress. Approvals are answered with one key. Ctrl-C asks whether to cancel the run
    or to detach. With --json: every event of the session since its beginning, one a line, until the process is ended.
    """
    as_json = invocation(context).json
    with_link(context, lambda link: _watch_json(link, session, deltas) if as_json else _watch(link, session))


async def _watch_json(link: Link, given: str, deltas: bool) -> None:
    id = await session_id(link, given)
    await link.call("session.get", session_id=id)  # an unknown id is an error, not a silent stream
    with Inputs() as inputs:
        talk = Conversation(link, JsonScreen(deltas=deltas), inputs, id, on_ask="watch", steers=False)
        await talk.follow(0, ends_with=_never, after_gap=_go_on)


async def _watch(link: Link, given: str) -> None:
    id = await session_id(link, given)
    found = await link.call("session.get", session_id=id)
    messages, cursor = await transcript(link, id)
    screen = TextScreen(prompts=True)
    output.draw(tables.session(found))
    output.write(render.transcript(messages))
    await mark_session_seen(link, id)
    with Inputs() as inputs:
        reads = prompting.may_read()
        if reads:
            inputs.listen()
        talk = Conversation(link, screen, inputs, id, on_ask="prompt" if reads else "wait", steers=True)
        talk.run_id = found.active_run_id
        await talk.welcome_asks()
        await talk.follow(cursor, ends_with=_never, after_gap=_go_on)


def _never(event: Event) -> bool:
    return False


async def _go_on(gap: Gap) -> None:
    return None
