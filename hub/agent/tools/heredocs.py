"""Joining a here-document that a model sent as separate lines.

Some models send `["cat > f <<EOF", "text", "EOF"]` as three commands where one was meant. Lines are joined only when
the delimiter that ends the document is among them; a here-string (`<<<`) is not a here-document.
"""

import re
from collections.abc import Sequence

OPENING = re.compile(
    r"""(?<!<)<<(?P<dash>-?)[ \t]*(?:'(?P<single>[^'\n]+)'|"(?P<double>[^"\n]+)"|\\?(?P<bare>[\w.-]+))"""
)


def join_heredocs(commands: Sequence[str]) -> list[str]:
    """Return the commands with each split here-document joined by newlines into one command."""
    joined: list[str] = []
    position = 0
    while position < len(commands):
        length = _length(commands[position:])
        joined.append("\n".join(commands[position : position + length]))
        position += length
    return joined


def _length(commands: Sequence[str]) -> int:
    """Return how many commands, from the first on, make one."""
    waiting = _delimiters(commands[0])
    if not waiting or "\n" in commands[0]:
        return 1
    for count, command in enumerate(commands[1:], start=2):
        dash, delimiter = waiting[0]
        if (command.lstrip("\t") if dash else command) == delimiter:
            waiting = waiting[1:]
        if not waiting:
            return count
    return 1


def _delimiters(line: str) -> list[tuple[bool, str]]:
    matches = (match for match in OPENING.finditer(line) if not line.startswith("<<<", match.start()))
    return [(bool(m["dash"]), m["single"] or m["double"] or m["bare"]) for m in matches]
