"""The hub itself: start it, and tell how it is."""

import os
import sys
from typing import Annotated, Any

import typer

from cli import output, starting, tables
from cli.context import Link, call, home_of, with_link
from cli.invocation import invocation
from hub import settings

PAGE = 1000


def start(
    context: typer.Context,
    foreground: Annotated[bool, typer.Option("--foreground", help="Stay: this process becomes the hub.")] = False,
) -> None:
    """Start the hub."""
    if foreground:
        _become_hub(context)
    output.show(context, call(context, "hub.status"), tables.status)


def _become_hub(context: typer.Context) -> None:
    home = home_of(context)
    starting.prepare(home)
    settings.load(home)
    command = starting.command(home)
    sys.stdout.flush()
    os.execv(command[0], command)


def status(context: typer.Context) -> None:
    """Tell how the hub is."""

    async def told(link: Link) -> tuple[Any, int]:
        found = await link.call("hub.status")
        return found, 0 if invocation(context).json else len(await link.call("question.list", limit=PAGE))

    found, questions = with_link(context, told, start=False)
    output.show(context, found, lambda view: tables.status(view, questions))
