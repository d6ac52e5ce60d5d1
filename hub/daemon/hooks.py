"""The user's hooks: commands that save beside a checkpoint, and bring back, what files don't cover.

A hook runs in the worktree with the environment of tools. For each checkpoint it has a folder of its own under the
hub's home, which lives as long as the checkpoint does. Invariant: like every process a hook is recorded before it runs,
and when `run` returns nothing of it lives. Not promised: that what a hook saved is worth anything.
"""

import asyncio
import contextlib
import logging
import os
import shutil
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec

from hub.agent.tools.base import ToolFailure
from hub.agent.tools.process import Ended, Launch, Runner
from hub.agent.tools.run_commands import shell
from hub.daemon.children import RUN_VARIABLE
from hub.daemon.services import Services
from hub.daemon.worktrees import Request
from hub.errors import ExitCode, TurnbackError
from hub.ids import new_id

log = logging.getLogger(__name__)

CHECKPOINT_VARIABLE = "TURNBACK_CHECKPOINT_ID"
SESSION_VARIABLE = "TURNBACK_SESSION_ID"
FOLDER_VARIABLE = "TURNBACK_HOOK_DIR"
OUTPUT_NAME = "output.txt"
OUTPUT_BYTES = 1 << 20
"""Of a hook's output at most this much is kept."""

HookName = Literal["checkpoint_before", "restore_after"]


class HookFailed(TurnbackError):
    """A hook could not be run, took too long, or ended with another code than 0."""

    exit_code = ExitCode.FAILED
    default_code = "hook_failed"


class Occasion(msgspec.Struct, frozen=True, kw_only=True):
    """What a hook is run for."""

    worktree: str
    checkpoint_id: str
    session_id: str | None
    run_id: str | None = None


async def before_capture(
    services: Services, request: Request, stop: asyncio.Event | None = None
) -> tuple[Request, HookFailed | None]:
    """Run the hook before a capture, if there is one; return the request with what is to be noted, and its failure."""
    if services.settings.config.hooks.checkpoint_before is None:
        return request, None
    named = msgspec.structs.replace(request, checkpoint_id=request.checkpoint_id or new_id("checkpoint"))
    bond = request.bond
    occasion = Occasion(
        worktree=request.worktree,
        checkpoint_id=named.checkpoint_id,
        session_id=bond.session_id,
        run_id=bond.run_id,
    )
    try:
        await run(services, "checkpoint_before", occasion, stop)
    except HookFailed as failure:
        note = f"{request.note}; {failure.message}" if request.note else failure.message
        return msgspec.structs.replace(named, note=note), failure
    return named, None


async def run(services: Services, name: HookName, occasion: Occasion, stop: asyncio.Event | None = None) -> None:
    """Run a hook to its end, if there is one; setting `stop` ends it early. Raises HookFailed."""
    section = services.settings.config.hooks
    command: str | None = getattr(section, name)
    if command is None:
        return
    folder = services.settings.hooks / occasion.checkpoint_id
    try:
        output = await asyncio.to_thread(_opened, folder)
    except OSError as error:
        raise HookFailed(f"The hook {name} could not be run: {error}") from error
    with output:
        launch = Launch((shell(), "-c", command), Path(occasion.worktree), _environment(services, occasion, folder))
        watch = services.children.watch(occasion.run_id or "", "", kind="hook")
        try:
            ended = await Runner().run(launch, watch, _Output(output).take, section.timeout_s, stop)
        except ToolFailure as failure:
            raise HookFailed(f"The hook {name} could not be run: {failure}") from failure
    if ended.how != "exited" or ended.exit_code != 0:
        raise HookFailed(f"The hook {name} {_told(ended, section.timeout_s)}; its output is in {folder / OUTPUT_NAME}.")


def _told(ended: Ended, timeout_s: float) -> str:
    if ended.how == "timeout":
        return f"took more than {timeout_s:g} s and was ended"
    return "was ended with its run" if ended.how == "stopped" else f"ended with code {ended.exit_code}"


def _environment(services: Services, occasion: Occasion, folder: Path) -> dict[str, str]:
    own = {
        CHECKPOINT_VARIABLE: occasion.checkpoint_id,
        SESSION_VARIABLE: occasion.session_id or "",
        FOLDER_VARIABLE: str(folder),
    }
    run_mark = {RUN_VARIABLE: occasion.run_id} if occasion.run_id is not None else {}
    return {**services.tool_environment, **own, **run_mark}


def _opened(folder: Path) -> BinaryIO:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder / OUTPUT_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    return os.fdopen(descriptor, "ab")


class _Output:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = OUTPUT_BYTES

    def take(self, stream: str, data: bytes) -> None:
        self._file.write(data[: self._left])
        self._left -= min(self._left, len(data))


@contextlib.contextmanager
def forgotten_if_refused(services: Services, checkpoint_id: str) -> Iterator[None]:
    """Delete what the hook saved for a checkpoint that does not come to be, because what is done meanwhile fails."""
    try:
        yield
    except TurnbackError:
        forget(services.settings.hooks, [checkpoint_id])
        raise


def forget(folder: Path, checkpoint_ids: Collection[str]) -> None:
    """Delete what hooks saved for checkpoints that are gone; what cannot be deleted is tried again the next time."""
    saved = list(folder.iterdir()) if folder.is_dir() else []
    for place in saved:
        if place.name in checkpoint_ids:
            try:
                shutil.rmtree(place)
            except OSError as error:
                log.warning("what a hook saved was not deleted", extra={"path": str(place), "reason": str(error)})
