"""Checkpoints: create, list, show, diff; and the group of all commands on checkpoints."""

from typing import Annotated, Any

import typer

from cli import checkpoint_tables as tables
from cli import keeping, output, progress, restoring
from cli.context import Link, with_link
from cli.targets import EVERY_KIND, Checkpoint, Place, Session, Workspace, checkpoint_id, target

app = typer.Typer(help="Save a workspace, compare, and turn it back.", rich_markup_mode=None, add_completion=False)


@app.command()
def create(
    context: typer.Context,
    workspace: Workspace = None,
    session: Session = None,
    note: Annotated[str, typer.Option("--note", help="Words to remember it by.")] = "",
) -> None:
    """Save the workspace as it is now."""
    place = Place(workspace, session)

    async def save(link: Link) -> Any:
        where = await place.params(link)
        watch = where.get("session_id")
        return await progress.call(context, link, "checkpoint.create", watch=watch, note=note, **where)

    output.show(context, with_link(context, save), tables.checkpoint)


@app.command("list")
def list_(
    context: typer.Context,
    workspace: Workspace = None,
    session: Session = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also undo points, steps, and what was saved after runs.")
    ] = False,
) -> None:
    """List checkpoints, newest first."""
    place = Place(workspace, session)

    async def listed(link: Link) -> Any:
        kinds = {"kinds": EVERY_KIND} if every else {}
        return await link.call("checkpoint.list", **await place.params(link), **kinds)

    output.show(context, with_link(context, listed), tables.checkpoints)


@app.command()
def show(context: typer.Context, checkpoint: Checkpoint, workspace: Workspace = None, session: Session = None) -> None:
    """Tell about one checkpoint."""
    place = Place(workspace, session)
    output.show(context, with_link(context, lambda link: target(link, checkpoint, place)), tables.checkpoint)


@app.command()
def diff(
    context: typer.Context,
    checkpoint: Checkpoint,
    other: Annotated[str | None, typer.Argument(help="Another checkpoint [the workspace as it is now].")] = None,
    patch: Annotated[bool, typer.Option("--patch", "-p", help="Also the changed lines.")] = False,
    workspace: Workspace = None,
    session: Session = None,
) -> None:
    """Compare a checkpoint with the workspace as it is now, or with another checkpoint."""
    place = Place(workspace, session)

    async def compared(link: Link) -> Any:
        first = await checkpoint_id(link, checkpoint, place)
        second = await checkpoint_id(link, other, place) if other else None
        params: dict[str, Any] = {"checkpoint_id": first, "other_id": second, "patch": patch}
        return await progress.call(context, link, "checkpoint.diff", **params)

    output.show(context, with_link(context, compared), tables.diff)


app.command()(restoring.restore)
app.command()(restoring.undo)
app.command()(restoring.redo)
app.command()(keeping.keep)
app.command()(keeping.prune)
app.command()(keeping.purge)
app.command()(keeping.verify)
app.command()(keeping.export)
