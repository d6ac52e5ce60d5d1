"""Keeping checkpoints in order: keep, prune, purge, verify, export. Their files are the repository's, the hub acts.

Invariant: what cannot be taken back (purge) is shown first and needs a yes, of a person or by `--yes`.
"""

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from cli import checkpoint_tables as tables
from cli import output, progress, prompting
from cli.context import Link, with_link
from cli.invocation import invocation
from cli.targets import Checkpoint, Place, Session, Workspace, checkpoint_id
from cli.text import plural
from hub.errors import ConflictError, ExitCode, RefusedError, UsageError

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would go, delete nothing.")]


def keep(
    context: typer.Context,
    checkpoint: Checkpoint,
    workspace: Workspace = None,
    session: Session = None,
    off: Annotated[bool, typer.Option("--off", help="End its protection.")] = False,
) -> None:
    """Protect a checkpoint from being pruned."""
    place = Place(workspace, session)

    async def protected(link: Link) -> Any:
        id = await checkpoint_id(link, checkpoint, place)
        return await link.call("checkpoint.keep", checkpoint_id=id, keep=not off)

    output.show(context, with_link(context, protected), tables.kept)


def prune(
    context: typer.Context,
    workspace: Workspace = None,
    session: Session = None,
    runs: Annotated[int | None, typer.Option("--runs", min=1, help="Keep so many runs of a session.")] = None,
    days: Annotated[float | None, typer.Option("--days", min=0, help="Keep what is younger.")] = None,
    max_size: Annotated[str | None, typer.Option("--max-size", help="Keep within it, such as 2G.")] = None,
    dry_run: DryRun = False,
) -> None:
    """Delete old checkpoints of a workspace, by these limits or those of config.toml; protected ones stay."""
    place = Place(workspace, session)
    max_bytes = None if max_size is None else bytes_of(max_size)

    async def pruned(link: Link) -> Any:
        directory = await place.directory(link)
        limits: dict[str, Any] = {"runs": runs, "days": days, "max_bytes": max_bytes}
        return await progress.call(context, link, "checkpoint.prune", workspace=directory, dry_run=dry_run, **limits)

    output.show(context, with_link(context, pruned), tables.pruned)


def purge(
    context: typer.Context,
    workspace: Workspace = None,
    session: Session = None,
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask first.")] = False,
) -> None:
    """Delete all checkpoints of a session, or those of a workspace that belong to none; this cannot be taken back."""
    place = Place(workspace, session)
    asks = not (dry_run or yes)
    if asks and (invocation(context).json or not prompting.interactive()):
        raise UsageError(
            "Purged checkpoints cannot be brought back; nobody can be asked here.",
            code="needs_yes",
            hint="Look with --dry-run, then say --yes.",
        )

    async def purged(link: Link) -> Any:
        where = await place.params(link)
        if asks:
            planned = await progress.call(context, link, "checkpoint.purge", dry_run=True, **where)
            output.draw(tables.pruned(planned))
            if not planned.pruned:
                return planned
            await _agree(plural(len(planned.pruned), "checkpoint"))
        return await progress.call(context, link, "checkpoint.purge", dry_run=dry_run, **where)

    output.show(context, with_link(context, purged), tables.pruned)


async def _agree(what: str) -> None:
    if not await prompting.confirm(f"Delete {what} for good, protected ones too?"):
        raise RefusedError("Nothing was deleted.", code="declined")


def verify(
    context: typer.Context,
    workspace: Workspace = None,
    session: Session = None,
    repair: Annotated[bool, typer.Option("--repair", help="Remove leftovers that are proven to be of no use.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read the content of every object.")] = False,
) -> None:
    """Prove that a workspace's checkpoints are whole; exit code 1 when one is not."""
    place = Place(workspace, session)

    async def verified(link: Link) -> Any:
        directory = await place.directory(link)
        return await progress.call(context, link, "checkpoint.verify", workspace=directory, repair=repair, deep=deep)

    found = with_link(context, verified)
    output.show(context, found, tables.verified)
    raise typer.Exit(ExitCode.OK if found.sound else ExitCode.FAILED)


def export(
    context: typer.Context,
    checkpoints: Annotated[list[str], typer.Argument(metavar="CHECKPOINT...", help="Ids, or unique parts of them.")],
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    workspace: Workspace = None,
    session: Session = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write checkpoints into a file (a git bundle) that plain git reads."""
    place = Place(workspace, session)
    path = file.expanduser()
    path = path.parent.resolve() / path.name

    async def exported(link: Link) -> Any:
        ids = [await checkpoint_id(link, given, place) for given in checkpoints]
        try:
            return await progress.call(
                context, link, "checkpoint.export", checkpoint_ids=ids, path=str(path), overwrite=force
            )
        except ConflictError as error:
            raise _with_force(error) from error

    output.show(context, with_link(context, exported), tables.exported)


def _with_force(error: ConflictError) -> ConflictError:
    """Return the error with a hint that can be typed, where the file is in the way."""
    if error.code != "file_exists":
        return error
    return ConflictError(error.message, code=error.code, hint="Name another file, or say --force.")


def bytes_of(text: str) -> int:
    """Return such as `2G`, `500 MB` or `1024` in bytes; units are powers of 1024. Raises UsageError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--max-size {text!r}: expected a number and K, M, G or T, such as 2G.")
    return int(float(found[1]) * UNITS[found[2].upper()])
