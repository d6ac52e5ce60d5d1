"""Places that a search found, and the lines at them.

Invariant: memory stays bounded whatever the search prints; at most one file's surplus is read before it is stopped.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import BinaryIO

import msgspec

from hub.agent.tools.base import ToolFailure
from hub.agent.tools.paths import placed
from hub.agent.tools.regular import open_regular
from hub.agent.tools.truncate import cut_line

CONTEXT = 2  # lines before and after a hit
MAX_LINE = 400  # characters shown of a line
MAX_FILE = 64 * 1024 * 1024  # bytes; a file that has grown beyond is not shown
MAX_PENDING = 1_000_000  # bytes of output without the end of a record
MAX_COMPLAINT = 2_000  # bytes kept of stderr
PLACE = re.compile(rb"(\d+):(\d+):")
BINARY = b": WARNING: stopped searching binary file"


class Hit(msgspec.Struct, frozen=True):
    """A matching line. `path` is relative to the searched folder; `line` counts from 1, `column` bytes from 1."""

    path: str
    line: int
    column: int


class Collector:
    """Reads records `./PATH NUL LINE:COLUMN:…` as they come. Calls `enough` when more than `limit` are complete."""

    def __init__(self, limit: int, enough: Callable[[], None]) -> None:
        self.hits: list[Hit] = []
        self._limit = limit
        self._enough = enough
        self._file: list[Hit] = []
        self._pending = b"\n"
        self._complaint = b""

    @property
    def complaint(self) -> str:
        """The beginning of what the program said on stderr."""
        return self._complaint.decode("utf-8", "replace").strip()

    def feed(self, stream: str, data: bytes) -> None:
        if stream == "stderr":
            self._complaint = (self._complaint + data)[:MAX_COMPLAINT]
            return
        output, at = self._pending + data, 0
        while (newline := output.find(b"\n", nul := output.find(b"\0", at))) > nul >= 0:
            self._take(output[at:nul], output[nul + 1 : newline])
            at = newline
        self._pending = output[at:]
        if len(self._pending) > MAX_PENDING:
            self._enough()
            self._pending = b"\n"

    def finish(self) -> None:
        """Take what is complete, the last file included."""
        self._forget_binary(self._pending)
        self._close_file()

    def _take(self, name: bytes, place: bytes) -> None:
        self._forget_binary(name)
        match = PLACE.match(place)
        if match is None:
            return
        hit = Hit(os.fsdecode(name.rpartition(b"\n./")[2]), int(match[1]), int(match[2]))
        if self._file and self._file[0].path != hit.path:
            self._close_file()
        if len(self._file) <= self._limit:
            self._file.append(hit)

    def _forget_binary(self, text: bytes) -> None:
        """Drop the current file's hits if ripgrep said that it turned out to be binary."""
        if self._file and b"\n./" + os.fsencode(self._file[0].path) + BINARY in text:
            self._file = []

    def _close_file(self) -> None:
        self.hits += self._file
        self._file = []
        if len(self.hits) > self._limit:
            self._enough()


def rendered(root: Path, hits: Sequence[Hit]) -> str:
    """Return the hits' lines with the lines around them, file by file. Reads the files."""
    files = (list(group) for _, group in groupby(hits, key=lambda hit: hit.path))
    return "\n\n".join(_file(root, found) for found in files)


def _file(root: Path, hits: Sequence[Hit]) -> str:
    # The path as the search gave it: resolving it would follow a link that has been put there since.
    location = placed(root, root / hits[0].path)
    try:
        with open_regular(location, MAX_FILE) as file:
            return "\n".join([location.shown, *_blocks(file, hits)])
    except ToolFailure as failure:
        return f"{location.shown}\n[{failure}]"


def _blocks(file: BinaryIO, hits: Sequence[Hit]) -> Iterator[str]:
    columns = {hit.line: hit.column for hit in hits}
    wanted = {near for line in columns for near in range(line - CONTEXT, line + CONTEXT + 1)}
    width = len(str(max(columns) + CONTEXT))
    last = 0
    for number, raw in enumerate(file, start=1):
        if number > max(wanted):
            return
        if number not in wanted:
            continue
        if last and number > last + 1:
            yield "--"
        last = number
        yield f"{number:>{width}}{':' if number in columns else '-'} {_shown(raw, columns.get(number, 1))}"


def _shown(raw: bytes, column: int) -> str:
    around = len(raw[: column - 1].decode("utf-8", "replace"))
    return cut_line(raw.rstrip(b"\r\n").decode("utf-8", "replace"), MAX_LINE, around)
