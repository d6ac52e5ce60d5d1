"""read_files: text files, or ranges of lines of them.

Each file is answered by itself: one that cannot be read does not fail the others. Relative paths are taken from the
workspace. Reading outside it is not refused here: the call's subject names where each path leads, and policy decides.
Not promised: showing binary files or images, or bytes that are not UTF-8 (they appear as U+FFFD, and that is said).
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from hub.agent.model import ToolSpec
from hub.agent.tools.arguments import as_list, described, line_number, only_given, opened
from hub.agent.tools.base import Effect, Subject, ToolContext, ToolFailure, ToolOutput
from hub.agent.tools.paths import checked_path, locate_existing
from hub.agent.tools.regular import open_regular
from hub.agent.tools.threads import in_thread
from hub.agent.tools.truncate import cut_line, shortened

NAME = "read_files"
MAX_FILES = 50  # in one call
MAX_LINES = 2_000  # shown of one file
MAX_LINE = 2_000  # characters shown of one line
WINDOW = 48_000  # characters shown of one file
CALL_LIMIT = 4 * WINDOW  # characters shown in one call
COUNT_LIMIT = 50_000  # lines counted to say how long a file is
MAX_FILE = 100_000_000  # bytes
SNIFF = 8_192  # bytes looked at for a NUL before a file counts as text
BOM = b"\xef\xbb\xbf"
PATH_KEYS = ("path", "file_path", "filePath")
LIST_KEYS = ("files", "file_paths", "paths")

SPEC = ToolSpec(
    NAME,
    f"Read text files of the workspace, with line numbers. At most {MAX_LINES} lines and about {WINDOW} characters of "
    "a file are shown at once; the note at the end says how to read on. Name several files in one call.",
    {
        "type": "object",
        "properties": {
            "files": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_FILES,
                "items": {
                    "type": "object",
                    "properties": {
                        "path": {"type": "string", "minLength": 1, "description": "Relative to the workspace."},
                        "start_line": {
                            "type": ["integer", "null"],
                            "minimum": 1,
                            "description": "First line to read, from 1; null or absent: from the top.",
                        },
                        "end_line": {
                            "type": ["integer", "null"],
                            "minimum": 1,
                            "description": "Last line to read, included; null or absent: to the end.",
                        },
                    },
                    "required": ["path"],
                    "additionalProperties": False,
                },
            }
        },
        "required": ["files"],
        "additionalProperties": False,
    },
)


class ReadFiles:
    """The tool."""

    spec = SPEC
    effect: Effect = "read"

    def normalise(self, arguments: Any) -> dict[str, Any]:
        entries = _folded([_entry(item) for item in _items(opened(arguments))])
        if not entries:
            raise ToolFailure('read_files needs at least one file, such as {"files": [{"path": "README.md"}]}.')
        if len(entries) > MAX_FILES:
            raise ToolFailure(f"read_files takes at most {MAX_FILES} files in one call, not {len(entries)}.")
        return {"files": entries}

    def subject(self, arguments: dict[str, Any], root: Path) -> Subject:
        names = [entry["path"] for entry in arguments["files"]]
        places = dict.fromkeys(locate_existing(root, name).named for name in names)
        return Subject(f"read {shortened(', '.join(names), 200)}", paths=tuple(places))

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        left, ok, parts = CALL_LIMIT, True, []
        for entry in arguments["files"]:
            try:
                part = await in_thread(_answer, context.root, entry, min(WINDOW, left))
            except ToolFailure as failure:
                part, ok = f"{entry['path']}: {failure}", False
            left -= len(part)
            parts.append(part)
        return ToolOutput(ok, "\n\n".join(parts))


class Window(msgspec.Struct, frozen=True):
    """The lines shown of a file: `first` and `last` count from 1 (last < first: none). `total` is how many there are,
    `more` that there are even more; `lossy` that some bytes were not UTF-8."""

    lines: tuple[str, ...]
    first: int
    last: int
    total: int
    more: bool
    lossy: bool


def _items(value: Any) -> list[Any]:
    """Return the entries of any accepted form."""
    if isinstance(value, dict) and not any(key in value for key in PATH_KEYS):
        return as_list(opened(only_given(value, LIST_KEYS, NAME)))
    return as_list(value)


def _entry(item: Any) -> dict[str, Any]:
    """Return one entry in canonical form; its path may be missing."""
    if isinstance(item, str):
        return {"path": checked_path(item)}
    if not isinstance(item, dict):
        raise ToolFailure(f"A file must be a path or an object with a path, not {described(item)}.")
    entry: dict[str, Any] = {}
    path = only_given(item, PATH_KEYS, NAME)
    if path is not None:
        entry["path"] = checked_path(path)
    for key in ("start_line", "end_line"):
        number = line_number(item.get(key), key)
        if number is not None:
            entry[key] = number
    return entry


def _folded(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the entries, each that is only a range folded into the one before it."""
    folded: list[dict[str, Any]] = []
    for entry in entries:
        if "path" in entry:
            folded.append(entry)
        elif not entry:
            raise ToolFailure("A file of read_files has no path.")
        elif not folded or folded[-1].keys() & entry.keys():
            raise ToolFailure("A range of lines stands without the path that it belongs to.")
        else:
            folded[-1] = folded[-1] | entry
    return folded


def _answer(root: Path, entry: dict[str, Any], room: int) -> str:
    """Return what is shown of one file. Raises ToolFailure."""
    if room <= MAX_LINE:
        raise ToolFailure(f"not read: one call shows at most {CALL_LIMIT} characters. Read it in another call.")
    first, last = entry.get("start_line", 1), entry.get("end_line")
    if last is not None and last < first:
        raise ToolFailure(f"start_line {first} is after end_line {last}.")
    location = locate_existing(root, entry["path"])
    with open_regular(location, MAX_FILE) as file:
        _check_text(file)
        window = _window(file, first, last, room)
    if window.total < first and (first > 1 or window.more):
        raise ToolFailure(f"start_line {first} is past the end: the file has {_count(window)} lines.")
    return "\n".join([f"{location.shown}:", *_numbered(window), *_notes(window, last)])


def _check_text(file: BinaryIO) -> None:
    head = file.read(SNIFF)
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise ToolFailure("the file is UTF-16 text, which is not shown; convert it with a command such as iconv.")
    if b"\0" in head:
        raise ToolFailure("the file is binary (it holds NUL bytes), so it is not shown.")
    file.seek(len(BOM) if head.startswith(BOM) else 0)


def _window(file: BinaryIO, first: int, last: int | None, room: int) -> Window:
    """Read the lines to show, and count on within COUNT_LIMIT."""
    shown: list[str] = []
    used, total, full, lossy = 0, 0, False, False
    for total, raw in enumerate(file, start=1):
        if total < first:
            continue
        full = full or len(shown) >= MAX_LINES or (last is not None and total > last)
        if full and total >= max(COUNT_LIMIT, first):
            return Window(tuple(shown), first, first + len(shown) - 1, total, True, lossy)
        if full:
            continue
        line, unclean = _line(raw)
        cost = len(line) + len(str(total)) + 4
        if used + cost > room and shown:
            full = True
            continue
        shown.append(line)
        used, lossy = used + cost, lossy or unclean
    return Window(tuple(shown), first, first + len(shown) - 1, total, False, lossy)


def _line(raw: bytes) -> tuple[str, bool]:
    """Return a line's text without its ending, cut, and whether some of its bytes were not UTF-8."""
    raw = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return cut_line(raw.decode("utf-8"), MAX_LINE), False
    except UnicodeDecodeError:
        return cut_line(raw.decode("utf-8", "replace"), MAX_LINE), True


def _numbered(window: Window) -> Iterator[str]:
    width = len(str(window.last))
    for number, line in enumerate(window.lines, start=window.first):
        yield f"{number:>{width}} | {line}"


def _notes(window: Window, asked_last: int | None) -> Iterator[str]:
    if not window.total:
        yield "[the file is empty]"
        return
    whole = window.first == 1 and window.last == window.total and not window.more
    if not whole:
        yield f"[lines {window.first}-{window.last} of {_count(window)}{_advice(window, asked_last)}]"
    if window.lossy:
        yield "[the file is not UTF-8: bytes that could not be read are shown as \ufffd]"


def _advice(window: Window, asked_last: int | None) -> str:
    end = window.total if asked_last is None else min(asked_last, window.total)
    return f"; read on with start_line {window.last + 1}" if window.last < end else ""


def _count(window: Window) -> str:
    return f"{window.total}+" if window.more else str(window.total)
