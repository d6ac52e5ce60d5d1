"""Checkpoints: create, list, show, diff, restore, undo; by session, or by workspace without any session."""

from typing import Annotated, Any

import typer

from cli import output, prompting, tables
from cli.context import FULL_ID, Link, pick, session_id, with_link, workspace_of
from cli.invocation import invocation
from hub.domain.values import RestoreOnly
from hub.errors import NotFoundError, RefusedError

app = typer.Typer(help="Save a workspace, compare, and turn it back.", rich_markup_mode=None, add_completion=False)

PAGE = 1000
EVERY_KIND = ("before", "after", "manual", "undo", "step")
TARGET_KINDS = ("before", "manual")
"""What `restore` without an id goes back to: the newest that is not an undo point."""

Workspace = Annotated[str | None, typer.Option("-w", "--workspace", help="Directory (relative: ./DIR) or name [here].")]
Session = Annotated[str | None, typer.Option("--session", help="A session, in place of a workspace.")]
Checkpoint = Annotated[str, typer.Argument(help="Id of the checkpoint, or a unique part at its start or end.")]
Only = Annotated[RestoreOnly | None, typer.Option("--only", help="One part of it [both].")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, change nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")]


@app.command()
def create(
    context: typer.Context,
    workspace: Workspace = None,
    session: Session = None,
    note: Annotated[str, typer.Option("--note", help="Words to remember it by.")] = "",
) -> None:
    """Save the workspace as it is now."""

    async def save(link: Link) -> Any:
        return await link.call("checkpoint.create", note=note, **await _where(link, workspace, session))

    output.show(context, with_link(context, save), tables.checkpoint)


@app.command("list")
def list_(
    context: typer.Context,
    workspace: Workspace = None,
    session: Session = None,
    every: Annotated[bool, typer.Option("--all", help="Also steps and what was saved after runs.")] = False,
) -> None:
    """List checkpoints, newest first."""

    async def listed(link: Link) -> Any:
        kinds = {"kinds": EVERY_KIND} if every else {}
        return await link.call("checkpoint.list", **await _where(link, workspace, session), **kinds)

    output.show(context, with_link(context, listed), tables.checkpoints)


@app.command()
def show(context: typer.Context, checkpoint: Checkpoint, workspace: Workspace = None, session: Session = None) -> None:
    """Tell about one checkpoint."""

    async def told(link: Link) -> Any:
        return await link.call("checkpoint.show", checkpoint_id=await _id(link, checkpoint, workspace, session))

    output.show(context, with_link(context, told), tables.checkpoint)


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

    async def compared(link: Link) -> Any:
        first = await _id(link, checkpoint, workspace, session)
        second = await _id(link, other, workspace, session) if other else None
        return await link.call("checkpoint.diff", checkpoint_id=first, other_id=second, patch=patch)

    output.show(context, with_link(context, compared), tables.diff)


@app.command()
def restore(
    context: typer.Context,
    checkpoint: Annotated[str | None, typer.Argument(help="Id, or part of it [the newest before a run].")] = None,
    workspace: Workspace = None,
    session: Session = None,
    only: Only = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    interrupt: Annotated[bool, typer.Option("--interrupt", help="Cancel a run that is in the way first.")] = False,
) -> None:
    """Bring files, conversation or both back. What is there now is saved first, and `undo` brings it back."""

    async def restored(link: Link) -> Any:
        params = {
            "checkpoint_id": await _target(link, checkpoint, workspace, session),
            "session_id": await session_id(link, session) if session else None,
            "only": only,
        }
        if not (dry_run or yes) and _asks(context):
            if not interrupt:
                output.draw(tables.restore(await link.call("checkpoint.restore", dry_run=True, **params)))
            await _confirm("Cancel what runs here, and turn back?" if interrupt else "Turn back?")
        return await link.call("checkpoint.restore", dry_run=dry_run, interrupt=interrupt, **params)

    output.show(context, with_link(context, restored), tables.restore)


@app.command()
def undo(
    context: typer.Context,
    workspace: Workspace = None,
    session: Session = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> None:
    """Undo the newest restore."""

    async def undone(link: Link) -> Any:
        where = await _where(link, workspace, session)
        if not (dry_run or yes) and _asks(context):
            output.draw(tables.undone(await link.call("checkpoint.undo", dry_run=True, **where)))
            await _confirm("Undo the restore?")
        return await link.call("checkpoint.undo", dry_run=dry_run, **where)

    output.show(context, with_link(context, undone), tables.undone)


def _asks(context: typer.Context) -> bool:
    return not invocation(context).json and prompting.interactive()


async def _confirm(question: str) -> None:
    if not await prompting.confirm(question):
        raise RefusedError("Nothing was changed.", code="declined")


async def _where(link: Link, workspace: str | None, session: str | None) -> dict[str, str]:
    if session:
        return {"session_id": await session_id(link, session)}
    return {"workspace": workspace_of(workspace)}


async def _id(link: Link, given: str, workspace: str | None, session: str | None) -> str:
    if FULL_ID.fullmatch(given):
        return given
    where = await _where(link, workspace, session)
    found = await link.call("checkpoint.list", limit=PAGE, kinds=EVERY_KIND, **where)
    return pick(given, [view.id for view in found], "checkpoint")


async def _target(link: Link, given: str | None, workspace: str | None, session: str | None) -> str:
    if given:
        return await _id(link, given, workspace, session)
    where = await _where(link, workspace, session)
    found = await link.call("checkpoint.list", limit=1, kinds=TARGET_KINDS, **where)
    if not found:
        raise NotFoundError(
            "There is no checkpoint to go back to here.",
            code="unknown_checkpoint",
            hint="See `hubctl checkpoint list`.",
        )
    return str(found[0].id)
