"""The group `session`: what changes a session itself, without a prompt."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cli import output, progress, tables
from cli.context import Link, session_id, with_link
from cli.sessions import SessionArgument
from cli.targets import Place, checkpoint_id

app = typer.Typer(help="Fork, rename or archive a session.", rich_markup_mode=None, add_completion=False)


@app.command()
def fork(
    context: typer.Context,
    session: SessionArgument,
    at: Annotated[str, typer.Option("--at", help="Checkpoint of the session: the conversation as it stood there.")],
    worktree: Annotated[
        Path | None, typer.Option("--worktree", help="Work in a new linked worktree here, with the files of then.")
    ] = None,
    title: Annotated[str, typer.Option("--title", help="Title of the new session.")] = "",
) -> None:
    """Begin a new session with the conversation of another, as it stood at a checkpoint."""
    directory = None if worktree is None else str(worktree.expanduser().absolute())

    async def forked(link: Link) -> Any:
        id = await session_id(link, session)
        where = await checkpoint_id(link, at, Place(None, id))
        params = {"session_id": id, "checkpoint_id": where, "worktree": directory, "title": title}
        return await progress.call(context, link, "session.fork", **params)

    output.show(context, with_link(context, forked), tables.forked)


@app.command()
def rename(
    context: typer.Context, session: SessionArgument, title: Annotated[str, typer.Argument(help="The new title.")]
) -> None:
    """Give a session another title."""

    async def renamed(link: Link) -> Any:
        return await link.call("session.update", session_id=await session_id(link, session), title=title)

    output.show(context, with_link(context, renamed), tables.session)


@app.command()
def archive(context: typer.Context, session: SessionArgument) -> None:
    """Put a session aside; nothing of it is lost."""

    async def archived(link: Link) -> Any:
        return await link.call("session.archive", session_id=await session_id(link, session))

    output.show(context, with_link(context, archived), tables.session)
