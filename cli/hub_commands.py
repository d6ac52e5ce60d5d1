"""The hub itself: start it, and tell how it is."""

import os
import sys
from typing import Annotated

import typer

from cli import output, starting, tables
from cli.context import call, home_of
from hub import settings


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
    output.show(context, call(context, "hub.status", start=False), tables.status)
