"""The hub itself: start, stop, restart, status."""

import asyncio
import os
import sys
from typing import Annotated, Any

import psutil
import typer

from cli import output, starting, tables
from cli.context import Link, call, home_of, with_link
from hub import settings
from hub.client import find_hub
from hub.errors import TurnbackError, UnavailableError

STOP_GRACE_S = 15.0
"""Seconds a hub may take beyond its own deadline before we say that it has not stopped."""

Deadline = Annotated[float, typer.Option("--deadline", metavar="SECONDS", help="How long runs may go on meanwhile.")]


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


def stop(context: typer.Context, deadline: Deadline = 10.0) -> None:
    """Stop the hub; runs that are not done go on after the next start."""
    stopped = with_link(context, lambda link: end_hub(link, deadline), start=False)
    words = f"The hub has stopped (pid {stopped})." if stopped else "No hub runs."
    output.show(context, {"stopped": stopped is not None, "pid": stopped}, lambda _: words)


def restart(context: typer.Context, deadline: Deadline = 10.0) -> None:
    """Stop the hub and start it again."""
    with_link(context, lambda link: end_hub(link, deadline), start=False)
    output.show(context, call(context, "hub.status"), tables.status)


def status(context: typer.Context) -> None:
    """Tell how the hub is."""
    output.show(context, call(context, "hub.status", start=False), tables.status)


async def end_hub(link: Link, deadline_s: float) -> int | None:
    """Stop the hub and wait until its process is gone; return its pid, None when none ran.

    Raises TurnbackError code stop_timeout when it is still there; nothing is forced.
    """
    try:
        pid = find_hub(link.home).pid
        process = psutil.Process(pid)
        await link.call("hub.shutdown", deadline_s=deadline_s)
    except (UnavailableError, psutil.NoSuchProcess) as error:
        if getattr(error, "code", "no_hub") != "no_hub":
            raise
        return None
    await link.close()
    await _gone(process, deadline_s + STOP_GRACE_S)
    return pid


async def _gone(process: psutil.Process, patience_s: float) -> Any:
    try:
        await asyncio.to_thread(process.wait, patience_s)
    except psutil.TimeoutExpired:
        raise TurnbackError(
            f"The hub (pid {process.pid}) has not stopped within {patience_s:g} s.",
            code="stop_timeout",
            hint="A second `hubctl stop` makes it leave at once; see `hubctl logs`.",
        ) from None
