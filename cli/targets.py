"""What a command on checkpoints is about: a place, a checkpoint named by a part of its id, paths inside a worktree.

Invariant: a path that is named leads into the worktree that is meant, or is refused; it is never taken for another.
"""

import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cli.context import FULL_ID, Link, pick, session_id, workspace_of
from hub.errors import NotFoundError, RefusedError, UsageError
from hub.protocol.views import CheckpointView

PAGE = 1000
EVERY_KIND = ("before", "after", "left", "back", "manual", "undo", "step", "preimage")
TARGET_KINDS = ("before", "manual")
"""What `restore` without an id goes back to: the newest that is not an undo point."""

Workspace = Annotated[str | None, typer.Option("-w", "--workspace", help="Directory (relative: ./DIR) or name [here].")]
Session = Annotated[str | None, typer.Option("--session", help="A session, in place of a workspace.")]
Checkpoint = Annotated[str, typer.Argument(help="Id of the checkpoint, or a unique part at its start or end.")]


@dataclass(frozen=True)
class Place:
    """`-w` and `--session` as they were given; neither means here. Raises UsageError for both."""

    workspace: str | None
    session: str | None

    def __post_init__(self) -> None:
        if self.workspace is not None and self.session is not None:
            raise UsageError("Give either -w or --session: a session has its workspace.")

    async def params(self, link: Link) -> dict[str, str]:
        """Return the parameter that names the place in a call."""
        if self.session is not None:
            return {"session_id": await session_id(link, self.session)}
        return {"workspace": workspace_of(self.workspace)}

    async def directory(self, link: Link) -> str:
        """Return the workspace, for calls that know no session."""
        if self.session is None:
            return workspace_of(self.workspace)
        return str((await link.call("session.get", session_id=await session_id(link, self.session))).workspace)

    def options(self, worktree: str | None = None) -> str:
        """Return what names this place again on a command line typed in the same directory, or in no worktree."""
        if self.session is not None:
            return f" --session {shlex.quote(self.session)}"
        if self.workspace is not None:
            return f" -w {shlex.quote(self.workspace)}"
        return "" if worktree is None or is_here(worktree) else f" -w {shlex.quote(worktree)}"


async def checkpoint_id(link: Link, given: str, place: Place) -> str:
    """Return the id of the checkpoint meant by a whole id, or by a unique part of one in the place."""
    whole = FULL_ID.fullmatch(given) and place.workspace is None
    return given if whole else (await checkpoint(link, given, place)).id


async def checkpoint(link: Link, given: str, place: Place) -> CheckpointView:
    """Return the checkpoint meant by a whole id, or by a unique part of one in the place.

    Raises RefusedError code other_workspace for one of another workspace than `-w` says.
    """
    if FULL_ID.fullmatch(given):
        whole: CheckpointView = await link.call("checkpoint.show", checkpoint_id=given)
        await _check_place(link, whole, place)
        return whole
    found = await link.call("checkpoint.list", limit=PAGE, kinds=EVERY_KIND, **await place.params(link))
    by_id: dict[str, CheckpointView] = {view.id: view for view in found}
    return by_id[pick(given, list(by_id), "checkpoint")]


async def _check_place(link: Link, view: CheckpointView, place: Place) -> None:
    if place.workspace is None:
        return
    said = workspace_of(place.workspace)
    if not said.startswith("/"):
        named = {known.name: known.path for known in await link.call("workspace.list")}
        said = named.get(said, said)
    if not _inside(str(Path(said).resolve()), view.workspace):
        raise RefusedError(
            f"Checkpoint {view.id} is of {view.workspace}, not of {said}.",
            code="other_workspace",
            hint="Leave -w out to use it where it belongs.",
        )


async def target(link: Link, given: str | None, place: Place) -> CheckpointView:
    """Return the checkpoint to go back to: the one that is named, else the newest of the place but undo points."""
    if given:
        return await checkpoint(link, given, place)
    found = await link.call("checkpoint.list", limit=PAGE, kinds=TARGET_KINDS, **await place.params(link))
    newest: CheckpointView | None = next((view for view in found if view.pruned_at is None), None)
    if newest is None:
        raise NotFoundError(
            "There is no checkpoint to go back to here.",
            code="unknown_checkpoint",
            hint="See `hubctl checkpoint list`.",
        )
    return newest


def in_worktree(given: Sequence[str], worktree: str) -> tuple[str, ...] | None:
    """Return paths, relative to the current directory, as paths relative to the worktree; None when none is given.

    Raises UsageError with code path_outside.
    """
    return tuple(_relative(path, worktree) for path in given) or None


def _relative(given: str, worktree: str) -> str:
    absolute = Path(os.path.normpath(Path.cwd() / Path(given).expanduser()))
    resolved = absolute.parent.resolve() / absolute.name  # the last part may be a symlink that is meant itself
    path = next((path for path in map(str, (absolute, resolved)) if given and _inside(path, worktree)), None)
    if path is None:
        raise UsageError(
            f"{given!r} is not inside the worktree {worktree}.",
            code="path_outside",
            hint="Paths are taken relative to the current directory.",
        )
    return _sendable(os.path.relpath(path, worktree))


def is_here(worktree: str) -> bool:
    """Return whether the current directory lies in the worktree."""
    return _inside(str(Path.cwd()), worktree)


def _inside(path: str, worktree: str) -> bool:
    return path == worktree or path.startswith(worktree.rstrip("/") + "/")


def _sendable(path: str) -> str:
    try:
        path.encode()
    except UnicodeEncodeError:
        text = "This name is not UTF-8 and cannot be given on the command line; name the folder that it is in."
        raise UsageError(text, code="path_not_utf8") from None
    return path
