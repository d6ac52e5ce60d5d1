"""The unified diff of one changed span, for people and for the model.

Invariant: an uncut diff can be applied again (`patch -p1`, `git apply`) and gives the new bytes, as long as both sides
are UTF-8. Only the lines around the span are compared, so the cost doesn't grow with the file.
"""

import difflib
import json
from collections.abc import Iterator, Sequence

from hub.agent.tools.edits import Change

CONTEXT = 3  # unchanged lines around a change
MAX_LINES = 200
MOST_TO_COMPARE = 400  # lines on either side above which a span is shown as removed and added, not compared
NO_NEWLINE = "\\ No newline at end of file"


def unified(shown: str, change: Change, *, created: bool = False) -> str:
    """Return the change as a unified diff with `a/` and `b/` names, empty when nothing differs."""
    start = _line_start(change.old, change.start, CONTEXT)
    old_end = _line_end(change.old, change.old_end, CONTEXT)
    new_end = old_end + len(change.new) - len(change.old)
    first = change.old.count(b"\n", 0, start) + 1
    old, new = _lines(change.old[start:old_end]), _lines(change.new[start:new_end])
    body = [line for hunk in _hunks(old, new, first) for line in hunk]
    if not body:
        return ""
    source = "/dev/null" if created else _name("a/" + shown)
    return "\n".join([f"--- {source}", f"+++ {_name('b/' + shown)}", *body]) + "\n"


def cut_diff(diff: str, limit: int = MAX_LINES) -> str:
    """Return the diff in at most about `limit` lines, its middle left out."""
    lines = diff.split("\n")
    if len(lines) <= limit:
        return diff
    half = limit // 2
    return "\n".join([*lines[:half], f"[... {len(lines) - 2 * half} lines of the diff left out ...]", *lines[-half:]])


def _name(path: str) -> str:
    """Return a path as diffs write it: quoted when it holds what could be taken for another line, and followed by a
    tab when it holds a space."""
    if not path.isprintable() or '"' in path or "\\" in path:
        return json.dumps(path, ensure_ascii=False)
    return path + "\t" if " " in path else path


def _hunks(old: Sequence[str], new: Sequence[str], first: int) -> Iterator[list[str]]:
    for group in _groups(old, new):
        old_start, old_stop, new_start, new_stop = group[0][1], group[-1][2], group[0][3], group[-1][4]
        hunk = [f"@@ -{_span(old_start, old_stop, first)} +{_span(new_start, new_stop, first)} @@"]
        for tag, a, b, c, d in group:
            if tag == "equal":
                hunk += _marked(" ", old[a:b])
            else:
                hunk += _marked("-", old[a:b]) + _marked("+", new[c:d])
        yield hunk


def _groups(old: Sequence[str], new: Sequence[str]) -> Iterator[list[tuple[str, int, int, int, int]]]:
    if max(len(old), len(new)) <= MOST_TO_COMPARE:
        yield from difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(CONTEXT)
    else:
        yield [("replace", 0, len(old), 0, len(new))]


def _span(start: int, stop: int, first: int) -> str:
    """Return a range as unified diffs write it; an empty one names the line before it."""
    length = stop - start
    at = start + first - (0 if length else 1)
    return str(at) if length == 1 else f"{at},{length}"


def _marked(mark: str, lines: Sequence[str]) -> list[str]:
    marked: list[str] = []
    for line in lines:
        marked.append(mark + line.removesuffix("\n"))
        if not line.endswith("\n"):
            marked.append(NO_NEWLINE)
    return marked


def _lines(data: bytes) -> list[str]:
    lines = data.decode("utf-8", "replace").split("\n")
    last = lines.pop()
    return [f"{line}\n" for line in lines] + ([last] if last else [])


def _line_start(data: bytes, offset: int, before: int) -> int:
    """Return where the line starts that is `before` lines above the one at the offset."""
    start = data.rfind(b"\n", 0, offset) + 1
    for _ in range(before):
        start = data.rfind(b"\n", 0, max(0, start - 1)) + 1
    return start


def _line_end(data: bytes, offset: int, after: int) -> int:
    """Return where the line ends that is `after` lines below the one at the offset."""
    end = offset
    for _ in range(after + 1):
        found = data.find(b"\n", end)
        if found < 0:
            return len(data)
        end = found + 1
    return end
