"""Workspaces: register directories by name."""

from pathlib import Path
from typing import Annotated

import typer

from cli import output, tables
from cli.context import call
from hub.domain.values import CheckpointMode

app = typer.Typer(help="Register directories by name.", rich_markup_mode=None, add_completion=False)

Name = Annotated[str, typer.Argument(help="Letters, digits, dot, dash and underscore.")]


@app.command()
def add(
    context: typer.Context,
    name: Name,
    directory: Annotated[Path, typer.Argument(help="The directory to call so.")],
    checkpoint: Annotated[
        CheckpointMode | None,
        typer.Option("--checkpoint", help="Whether runs there need a checkpoint [as config.toml says]."),
    ] = None,
) -> None:
    """Register a directory by name, or change what a name means."""
    path = str(directory.expanduser().absolute())
    view = call(context, "workspace.add", name=name, path=path, checkpoint=checkpoint)
    output.show(context, view, tables.workspace)


@app.command("list")
def list_(context: typer.Context) -> None:
    """List registered workspaces."""
    output.show(context, call(context, "workspace.list"), tables.workspaces)


@app.command()
def remove(context: typer.Context, name: Name) -> None:
    """Forget a name; no file is touched."""
    output.show(context, call(context, "workspace.remove", name=name), tables.acknowledged("Forgotten:"))
