"""Workspaces: register directories by name."""

from pathlib import Path
from typing import Annotated

import typer

from cli import output, tables
from cli.context import call

app = typer.Typer(help="Register directories by name.", rich_markup_mode=None, add_completion=False)

Name = Annotated[str, typer.Argument(help="Letters, digits, dot, dash and underscore.")]


@app.command()
def add(
    context: typer.Context, name: Name, directory: Annotated[Path, typer.Argument(help="The directory to call so.")]
) -> None:
    """Register a directory by name."""
    path = str(directory.expanduser().absolute())
    output.show(context, call(context, "workspace.add", name=name, path=path), tables.workspace)


@app.command("list")
def list_(context: typer.Context) -> None:
    """List registered workspaces."""
    output.show(context, call(context, "workspace.list"), tables.workspaces)


@app.command()
def remove(context: typer.Context, name: Name) -> None:
    """Forget a name; no file is touched."""
    output.show(context, call(context, "workspace.remove", name=name), tables.acknowledged("Forgotten:"))
