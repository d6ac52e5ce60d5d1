"""The search that stands in for ripgrep: a program of its own, so that a pattern that runs away can be ended.

Run as `python -I -S scan.py ORDER` in the folder to search; ORDER is JSON: `pattern`, `excluded` (names of folders),
`depth`, `max_size` (bytes). Prints what `rg --null --line-number --column` prints of a hit, `./PATH NUL LINE:COLUMN:`,
files in the order of their names, columns counted in bytes from 1. Files with a NUL byte are passed over.
It uses the standard library only and imports nothing of this package.
"""

import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any


def hits(data: bytes, pattern: "re.Pattern[str]") -> Iterator[tuple[int, int]]:
    """Yield line and column (bytes, from 1) of the first match in each line that has one."""
    lines = data.split(b"\n")
    unended = lines.pop()
    for number, raw in enumerate(lines, start=1):
        column = first_column(raw, pattern)
        if column:
            yield number, column
    column = first_column(unended, pattern) if unended else 0
    if 0 < column <= len(unended):  # like ripgrep, which finds nothing at the very end of a file without a newline
        yield len(lines) + 1, column


def first_column(raw: bytes, pattern: "re.Pattern[str]") -> int:
    """Return the column where the first match begins, 0 for none."""
    line = raw.decode("utf-8", "surrogateescape")
    match = pattern.search(line)
    return len(line[: match.start()].encode("utf-8", "surrogateescape")) + 1 if match is not None else 0


def files(folder: bytes, excluded: frozenset[bytes], depth: int, max_size: int) -> Iterator[bytes]:
    """Yield the regular files below the folder; links are neither followed nor yielded."""
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError:
        return  # a folder that cannot be read has no hits, as with ripgrep
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            if depth > 1 and entry.name not in excluded:
                yield from files(entry.path, excluded, depth - 1, max_size)
        elif entry.is_file(follow_symlinks=False) and fits(entry, max_size):
            yield entry.path


def fits(entry: "os.DirEntry[bytes]", max_size: int) -> bool:
    """Say whether the file is there and not too large."""
    try:
        return entry.stat(follow_symlinks=False).st_size <= max_size
    except FileNotFoundError:
        return False


def content(path: bytes) -> bytes:
    """Return the file's bytes, or none when it holds a NUL or cannot be read."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            data = file.read()
    except OSError:
        return b""
    return b"" if b"\0" in data else data


def main(order: dict[str, Any]) -> None:
    pattern = re.compile(order["pattern"])
    excluded = frozenset(os.fsencode(name) for name in order["excluded"])
    out = sys.stdout.buffer
    for path in files(b".", excluded, order["depth"], order["max_size"]):
        for line, column in hits(content(path), pattern):
            out.write(b"%s\0%d:%d:\n" % (path, line, column))
        out.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
