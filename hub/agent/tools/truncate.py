"""Cutting long text so that both ends stay.

Invariant: a text within the limit is returned as it is; a cut one says so on its first line and at the cut, so that
cutting it once more can remove one of the two notices, never both.
"""

import msgspec

NOTICE_ROOM = 160  # characters kept for the two notices


class Cut(msgspec.Struct, frozen=True):
    """A text that fits. `cut` says whether anything was left out."""

    text: str
    cut: bool


def cut_middle(text: str, limit: int) -> Cut:
    """Return the text in at most `limit` characters (at least NOTICE_ROOM), first and last part kept."""
    if len(text) <= limit:
        return Cut(text, False)
    half = max(0, limit - NOTICE_ROOM) // 2
    tail = text[len(text) - half :]
    return Cut(joined(text[:half], tail, len(text) - 2 * half, len(text)), True)


def joined(head: str, tail: str, left_out: int, total: int, unit: str = "characters") -> str:
    """Return head and tail with both notices. `left_out` and `total` count in `unit`."""
    first = f"[cut: {left_out} of {total} {unit} are left out in the middle]"
    return f"{first}\n{head}\n[... {left_out} {unit} left out ...]\n{tail}"


def cut_line(line: str, limit: int, around: int = 0) -> str:
    """Return one line in about `limit` characters, the part at character `around` kept, with its full length said."""
    if len(line) <= limit:
        return line
    start = max(0, min(around - limit // 2, len(line) - limit))
    before = "… " if start else ""
    return f"{before}{line[start : start + limit]} … [line of {len(line)} characters, cut]"


def shortened(text: str, limit: int) -> str:
    """Return the first line of a text for a summary, cut at `limit` characters."""
    first, _, rest = text.strip().partition("\n")
    if len(first) <= limit and not rest:
        return first
    return f"{first[:limit]} … [{len(text)} characters]"
