"""editor: create a file, replace one exact text, or insert lines.

Invariant: a file is replaced as a whole or not at all, keeps its mode, and keeps every byte outside the changed span;
it is not replaced if it changed since it was read. Only files inside the workspace and outside `.git` are written, a
symlink's target counting as the file.
Not promised: keeping hard links together, or extended attributes.
"""

import contextlib
import os
import secrets
import stat
from pathlib import Path
from typing import Any

import msgspec

from hub.agent.model import ToolSpec
from hub.agent.tools.arguments import as_object, line_number, text_of
from hub.agent.tools.base import Effect, Subject, ToolContext, ToolFailure, ToolOutput
from hub.agent.tools.diffs import cut_diff, unified
from hub.agent.tools.edits import Change, filled, inserted, replaced
from hub.agent.tools.paths import Location, checked_path, in_git_directory, locate
from hub.agent.tools.regular import open_regular
from hub.agent.tools.threads import in_thread

NAME = "editor"
MAX_OLD_TEXT = 6_000  # characters; a longer text is better named by a part of it
MAX_NEW_TEXT = 48_000  # characters
MAX_FILE = 20_000_000  # bytes

SPEC = ToolSpec(
    NAME,
    "Change one file of the workspace. With old_text: replace it by new_text; old_text must stand in the file exactly "
    "once, indentation included. With insert_line: insert new_text so that it starts at that line (1 is the top, one "
    "past the last line appends). With neither: create the file, and its folders, with new_text. Line endings of the "
    "file are kept.",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string", "minLength": 1, "description": "Path, relative to the workspace."},
            "old_text": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_OLD_TEXT,
                "description": "The text to replace, exactly as it is in the file, without line numbers.",
            },
            "new_text": {"type": "string", "maxLength": MAX_NEW_TEXT, "description": "The text to put there."},
            "insert_line": {"type": "integer", "minimum": 1, "description": "Line before which to insert new_text."},
        },
        "required": ["path", "new_text"],
        "additionalProperties": False,
    },
)


class Plan(msgspec.Struct, frozen=True):
    """An edit that can be made. `before` is the file as it was read: device, inode, size and change times in
    nanoseconds; None for a new file."""

    location: Location
    change: Change
    before: tuple[int, ...] | None
    mode: int | None

    @property
    def diff(self) -> str:
        return unified(self.location.shown, self.change, created=self.before is None)


class Editor:
    """The tool."""

    spec = SPEC
    effect: Effect = "workspace"

    def normalise(self, arguments: Any) -> dict[str, Any]:
        given = as_object(arguments, NAME)
        old, new = given.get("old_text"), text_of(given.get("new_text"), "new_text")
        line = line_number(given.get("insert_line"), "insert_line")
        canonical: dict[str, Any] = {"path": checked_path(given.get("path")), "new_text": new}
        _check_length("new_text", new, MAX_NEW_TEXT, "Write the file in several calls, the rest with insert_line.")
        if old not in (None, ""):
            canonical["old_text"] = text_of(old, "old_text")
            _check_length("old_text", canonical["old_text"], MAX_OLD_TEXT, "Name a shorter part that is unique.")
        if line is not None:
            canonical["insert_line"] = line
        if "old_text" in canonical and line is not None:
            raise ToolFailure("Give old_text to replace or insert_line to insert, not both.")
        return canonical

    def subject(self, arguments: dict[str, Any], root: Path) -> Subject:
        location = locate(root, arguments["path"])
        try:
            preview = cut_diff(plan(arguments, root).diff)
        except ToolFailure:
            preview = None  # the call will fail with that reason when it is executed; nothing is there to preview
        return Subject(f"edit {location.shown}", paths=(location.named,), preview=preview)

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        planned = await in_thread(plan, arguments, context.root)
        await context.before_write([planned.location.path])
        await in_thread(write, planned)
        diff = cut_diff(planned.diff)
        done = "Created" if planned.before is None else "Edited"
        shown = planned.location.shown
        return ToolOutput(True, f"{done} {shown}\n{diff}", display=diff, paths=(shown,))


def plan(arguments: dict[str, Any], root: Path) -> Plan:
    """Return what the call would change, reading the file. Raises ToolFailure."""
    location = _writable_place(locate(root, arguments["path"]))
    new, old, line = arguments["new_text"], arguments.get("old_text"), arguments.get("insert_line")
    if not os.path.lexists(location.path):
        if arguments["path"].endswith("/"):
            raise ToolFailure(f"{arguments['path']} names a folder; give the path of a file.")
        if old is not None or line is not None:
            raise ToolFailure(f"{location.shown} does not exist. To create it, give path and new_text only.")
        return Plan(location, filled(b"", new), None, None)
    data, status = _read(location)
    if old is not None:
        change = replaced(data, old, new)
    elif line is not None:
        change = inserted(data, line, new)
    elif data:
        raise ToolFailure(f"{location.shown} exists and is not empty: give old_text or insert_line.")
    else:
        change = filled(data, new)
    return Plan(location, change, _identity(status), stat.S_IMODE(status.st_mode))


def write(planned: Plan) -> None:
    """Put the new content in place of the old at once. Raises ToolFailure if the file is not as it was planned on."""
    path = planned.location.path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _replace(path, path.parent / f".turnback-{secrets.token_hex(8)}", planned)
        _sync_directory(path.parent)
    except OSError as error:
        raise ToolFailure(f"{planned.location.shown} cannot be written: {error.strerror}.") from error


def _replace(path: Path, temporary: Path, planned: Plan) -> None:
    try:
        _write_new(temporary, planned)
        _check_unchanged(planned)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _writable_place(location: Location) -> Location:
    if not location.inside:
        raise ToolFailure(f"{location.shown} is outside the workspace, where the editor does not write.")
    if in_git_directory(location):
        raise ToolFailure(f"{location.shown} belongs to git itself; use git commands to change it.")
    return location


def _read(location: Location) -> tuple[bytes, os.stat_result]:
    with open_regular(location, MAX_FILE) as file:
        status = os.fstat(file.fileno())
        data = file.read()
    if b"\0" in data:
        raise ToolFailure(f"{location.shown} is not text (it holds NUL bytes), so it cannot be edited.")
    if not os.access(location.path, os.W_OK):
        raise ToolFailure(f"{location.shown} is read-only.")
    return data, status


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _check_unchanged(planned: Plan) -> None:
    path = planned.location.path
    now = _identity(os.lstat(path)) if os.path.lexists(path) else None
    if now != planned.before or Path(os.path.realpath(path)) != path:
        raise ToolFailure(f"{planned.location.shown} was changed by something else meanwhile. Read it again.")


def _write_new(temporary: Path, planned: Plan) -> None:
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    with open(descriptor, "wb") as file:
        file.write(planned.change.new)
        file.flush()
        if planned.mode is not None:
            _keep_owner(descriptor, planned.location.path)
            os.fchmod(descriptor, planned.mode)
        os.fsync(descriptor)


def _keep_owner(descriptor: int, path: Path) -> None:
    was, status = path.stat(), os.fstat(descriptor)
    if (was.st_uid, was.st_gid) != (status.st_uid, status.st_gid):
        with contextlib.suppress(PermissionError):  # only root may give a file away; the mode is what is promised
            os.fchown(descriptor, was.st_uid, was.st_gid)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _check_length(name: str, text: str, limit: int, advice: str) -> None:
    if len(text) > limit:
        raise ToolFailure(f"{name} has {len(text)} characters, more than {limit}. {advice}")
