"""The only module that prints. Results go to stdout, notes and errors to stderr; with --json stdout is JSON alone.

Invariant: a command prints one JSON document, or for streams one JSON object a line, each written whole and flushed.
Text never passes through rich's markup, so what models and repositories say cannot style or hide anything.
"""

import re
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any

import msgspec
import typer
from rich.console import Console, RenderableType
from rich.text import Text

from cli.errors import failure_of
from cli.invocation import invocation

_FILLING = re.compile(r" +$", re.MULTILINE)
PIPE_WIDTH = 4096
"""Columns when the output is not a terminal: tables are not cut for a reader that is a program."""


@lru_cache
def out() -> Console:
    """Return the console of stdout."""
    return _console(stderr=False)


@lru_cache
def err() -> Console:
    """Return the console of stderr."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream: Any = sys.stderr if stderr else sys.stdout
    stream.reconfigure(errors="replace")
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, width=width)


def document(value: Any) -> None:
    """Print one JSON document."""
    _raw(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def line(value: Any) -> None:
    """Print one line of NDJSON."""
    _raw(msgspec.json.encode(value) + b"\n")


def _raw(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def show(context: typer.Context, value: Any, render: Callable[[Any], RenderableType]) -> None:
    """Print a result: as a document with --json, else as `render` draws it."""
    if invocation(context).json:
        document(value)
    else:
        draw(render(value))


def write(pieces: Iterable[Text]) -> None:
    """Print pieces of text one after another, as they are: line ends are theirs, nothing is wrapped."""
    console = out()
    for piece in pieces:
        console.print(piece, end="", soft_wrap=True)
    console.file.flush()


def echo(value: str) -> None:
    """Print what a person types at this terminal, backspaces included."""
    sys.stdout.write(value)
    sys.stdout.flush()


def text(value: str, style: str = "") -> None:
    """Print a line of text to stdout."""
    write([Text(value + "\n", style=style)])


def draw(value: RenderableType) -> None:
    """Print a table or panel to stdout; for a reader that is a program, without the blanks that fill its width.

    What must not be wrapped (a command to copy) is left whole, wider than the screen.
    """
    console = out()
    if console.is_terminal:
        console.print(value, crop=False)
        return
    with console.capture() as captured:
        console.print(value, crop=False)
    console.file.write(_FILLING.sub("", captured.get()))
    console.file.flush()


def note(value: str, style: str = "dim") -> None:
    """Print a line for the person to stderr; it is no part of the result."""
    err().print(Text(value, style=style), soft_wrap=True)


def transient(value: str) -> None:
    """Show a line on stderr in the place of the one before; an empty one takes it away. For terminals only."""
    console = err()
    console.file.write(f"\r\x1b[K{value[: max(1, console.width - 1)]}")
    console.file.flush()


def failed(error: BaseException, *, as_json: bool) -> int:
    """Print an expected error to stderr and return its exit code."""
    failure = failure_of(error)
    if as_json:
        body = {"code": failure.code, "message": failure.message, "hint": failure.hint}
        sys.stderr.write(msgspec.json.encode({"error": body}).decode() + "\n")
        return failure.exit_code
    if failure.usage:
        note(failure.usage)
    err().print(Text.assemble(("error ", "bold red"), failure.message, (f"  [{failure.code}]", "dim")), soft_wrap=True)
    if failure.hint:
        note(failure.hint, style="")
    return failure.exit_code
