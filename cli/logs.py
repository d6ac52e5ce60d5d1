"""The hub's log, read from its files: it must be readable when no hub answers."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer
from rich.text import Text

from cli import output
from cli.context import home_of
from cli.invocation import invocation
from cli.text import clean_line, visible
from hub.errors import NotFoundError

LOG_NAME = "hub.log"
TAIL_BYTES = 1 << 20
POLL_S = 0.2
LEVEL_STYLES = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red", "DEBUG": "dim"}
PLAIN_FIELDS = ("at", "level", "text")


def logs(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="How many to begin with.")] = 50,
) -> None:
    """Show the hub's log."""
    path = home_of(context) / "logs" / LOG_NAME
    if not path.exists() and not follow:
        raise NotFoundError(f"There is no log at {path}.", code="no_log", hint="No hub has run in this home yet.")
    for line in read(path, lines, follow=follow):
        _print(line, as_json=invocation(context).json)


def read(path: Path, count: int, *, follow: bool) -> Iterator[str]:
    """Yield the last lines, then with `follow` new ones for ever, through rotations of the file."""
    file: BinaryIO | None = path.open("rb") if path.exists() else None
    if file is not None:
        yield from tail(file, count)
    while follow:
        if file is not None:
            yield from whole_lines(file)
        if path.exists() and (file is None or _other_file(path, file)):
            file = _reopened(path, file)
            continue
        time.sleep(POLL_S)


def tail(file: BinaryIO, count: int) -> list[str]:
    """Return the last lines and leave the file at their end."""
    size = file.seek(0, 2)
    file.seek(max(0, size - TAIL_BYTES))
    found = [*whole_lines(file)]
    return found[len(found) - min(count, len(found)) :]


def whole_lines(file: BinaryIO) -> Iterator[str]:
    """Yield the lines from here on that are complete; a line that is being written is left for later."""
    while True:
        start = file.tell()
        line = file.readline()
        if not line.endswith(b"\n"):
            file.seek(start)
            return
        yield line.decode("utf-8", "replace").rstrip("\n")


def _other_file(path: Path, file: BinaryIO) -> bool:
    return path.stat().st_ino != os.fstat(file.fileno()).st_ino or path.stat().st_size < file.tell()


def _reopened(path: Path, old: BinaryIO | None) -> BinaryIO:
    if old is not None:
        old.close()
    return path.open("rb")


def _print(line: str, *, as_json: bool) -> None:
    record = parsed(line)
    if as_json:
        output.line(record)
    else:
        output.write([drawn(record)])


def parsed(line: str) -> dict[str, Any]:
    """Return a log line as a record; a line that is no JSON object becomes the text of one."""
    try:
        record = json.loads(line)
    except ValueError:
        record = None
    return record if isinstance(record, dict) else {"text": line}


def drawn(record: dict[str, Any]) -> Text:
    """Return a record as one line for people."""
    level = str(record.get("level", "")).upper()
    at = str(record.get("at", ""))
    rest = " ".join(f"{name}={value}" for name, value in record.items() if name not in PLAIN_FIELDS)
    return Text.assemble(
        (f"{clean_line(at)} " if at else "", "dim"),
        (f"{level:<8}" if level else "", LEVEL_STYLES.get(level, "")),
        clean_line(visible(str(record.get("text", "")))),
        (f"  {clean_line(visible(rest))}" if rest else "", "dim"),
        "\n",
    )
