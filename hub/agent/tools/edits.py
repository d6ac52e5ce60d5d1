"""What an edit does to a file's bytes. Pure.

Invariant: outside the changed span every byte stays: line endings (also mixed ones), a byte order mark, a missing final
newline, bytes that are not UTF-8. Line breaks are matched as one thing whether the file writes LF or CRLF; inserted
text takes the line ending that the place has. A replaced text is narrowed to the part that differs, so context that
the model repeats keeps its own bytes.
"""

import re
from bisect import bisect_right

import msgspec

from hub.agent.tools.base import ToolFailure

BOM = b"\xef\xbb\xbf"
LINES_TO_NAME = 5  # places named when a text occurs more than once
MATCHES_TO_COUNT = 1_000


class Change(msgspec.Struct, frozen=True):
    """One changed span: `old` are the file's bytes before, `new` after; they differ in [start:old_end], which became
    [start:new_end]."""

    old: bytes
    new: bytes
    start: int
    old_end: int
    new_end: int


class _View:
    """A file's bytes without byte order mark and with every CRLF as LF, and the way back to the real offsets."""

    def __init__(self, data: bytes) -> None:
        self._skip = len(BOM) if data.startswith(BOM) else 0
        body = data[self._skip :]
        # In the view, the break that stood at offset p as the i-th CRLF stands at p - i.
        self._breaks = [match.start() - index for index, match in enumerate(re.finditer(rb"\r\n", body))]
        self.text = body.replace(b"\r\n", b"\n")

    def offset(self, position: int) -> int:
        """Return the offset in the file of a position in the view."""
        return self._skip + position + bisect_right(self._breaks, position - 1)

    def ending_at(self, start: int, end: int) -> bytes:
        """Return the line ending used in the view's span, else the next one, else the one before, else LF."""
        found = self.text.find(b"\n", start, end)
        if found < 0:
            found = self.text.find(b"\n", end)
        if found < 0:
            found = self.text.rfind(b"\n", 0, start)
        at = bisect_right(self._breaks, found) - 1
        return b"\r\n" if at >= 0 and self._breaks[at] == found else b"\n"


def replaced(data: bytes, old_text: str, new_text: str) -> Change:
    """Return the change of the one place where `old_text` stands. Raises ToolFailure when it is not there, stands
    there more than once (overlapping places count), or would stay the same."""
    view, old, new = _View(data), _plain(old_text), _plain(new_text)
    if old == new:
        raise ToolFailure("old_text and new_text are the same, so nothing would change.")
    places = _places(view.text, old)
    if not places:
        raise ToolFailure(_absent(data, view.text, old))
    if len(places) > 1:
        raise ToolFailure(_ambiguous(view.text, places))
    before, after = _shared(old, new)
    start, end = places[0] + before, places[0] + len(old) - after
    return _spliced(data, view, start, end, new[before : len(new) - after], _ending_for(view, places[0], old))


def inserted(data: bytes, line: int, new_text: str) -> Change:
    """Return the change that makes `new_text` stand from line `line` on (counted from 1); one past the last line
    appends. Raises ToolFailure when the file has too few lines, or nothing would be inserted."""
    view, new = _View(data), _plain(new_text)
    if not new:
        raise ToolFailure("new_text is empty, so nothing would be inserted.")
    start = _line_start(view.text, line)
    if start == len(view.text) and view.text and not view.text.endswith(b"\n"):
        new = b"\n" + new
    elif view.text and not new.endswith(b"\n"):
        new += b"\n"
    return _spliced(data, view, start, start, new, view.ending_at(start, start))


def filled(data: bytes, new_text: str) -> Change:
    """Return the change that puts `new_text`, as it is, into an empty or new file."""
    new = data + new_text.encode()
    return Change(data, new, len(data), len(data), len(new))


def line_count(data: bytes) -> int:
    """Return how many lines the bytes have; a last one without a newline counts."""
    return data.count(b"\n") + (not data.endswith(b"\n") and bool(data))


def _plain(text: str) -> bytes:
    return text.removeprefix("\ufeff").encode().replace(b"\r\n", b"\n")


def _spliced(data: bytes, view: _View, start: int, end: int, new: bytes, ending: bytes) -> Change:
    first, last = view.offset(start), view.offset(end)
    piece = new if ending == b"\n" else new.replace(b"\n", ending)
    return Change(data, data[:first] + piece + data[last:], first, last, first + len(piece))


def _ending_for(view: _View, start: int, old: bytes) -> bytes:
    return view.ending_at(start, start + len(old))


def _places(text: bytes, wanted: bytes) -> list[int]:
    places: list[int] = []
    at = text.find(wanted)
    while at >= 0 and len(places) < MATCHES_TO_COUNT:
        places.append(at)
        at = text.find(wanted, at + 1)
    return places


def _shared(old: bytes, new: bytes) -> tuple[int, int]:
    """Return the lengths of the common start and the common end, which don't overlap in either."""
    most = min(len(old), len(new))
    before = next((index for index in range(most) if old[index] != new[index]), most)
    most -= before
    after = next((index for index in range(most) if old[-1 - index] != new[-1 - index]), most)
    return before, after


def _line_start(text: bytes, line: int) -> int:
    """Return where the line starts; the end of the text for the line after the last."""
    lines = line_count(text)
    if line > lines + 1:
        raise ToolFailure(f"insert_line {line} is past the end: the file has {lines} lines, so at most {lines + 1}.")
    if line == lines + 1:
        return len(text)
    start = 0
    for _ in range(line - 1):
        start = text.index(b"\n", start) + 1
    return start


def _absent(data: bytes, text: bytes, old: bytes) -> str:
    message = "old_text is not in the file. Read the file again and copy the text exactly, indentation included."
    stripped = b"\n".join(line.strip() for line in old.strip().split(b"\n"))
    if stripped and stripped in b"\n".join(line.strip() for line in text.split(b"\n")):
        return message + " It is there with other spaces or tabs at the start or end of lines."
    try:
        data.decode()
    except UnicodeDecodeError:
        return message + " The file is not UTF-8: choose a part without characters that were shown as \ufffd."
    return message


def _ambiguous(text: bytes, places: list[int]) -> str:
    lines = ", ".join(str(text.count(b"\n", 0, place) + 1) for place in places[:LINES_TO_NAME])
    count = f"at least {len(places)}" if len(places) >= MATCHES_TO_COUNT else str(len(places))
    more = ", …" if len(places) > LINES_TO_NAME else ""
    return f"old_text is in the file {count} times (at lines {lines}{more}). Add lines around it so that it is unique."
