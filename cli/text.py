"""Text that others wrote, made safe to show: models, tools, repositories and file names all reach the terminal here.

Invariant: what `clean` and `clean_line` return holds no control character but newline and tab, so nothing in it can
move the cursor, recolour the screen, set a title, answer a terminal query or reverse the reading direction.
`visible` promises the same and hides nothing.
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from hub.clock import parse_iso

_SEQUENCE = re.compile(
    r"\x1b(?:\[[0-?]*[ -/]*[@-~]"  # CSI
    r"|[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)?"  # OSC, DCS, SOS, PM, APC
    r"|[ -/]*[0-~])"  # two-character and charset sequences
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 but tab and newline, DEL, C1
    "\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069"  # marks and overrides of reading direction
    "\u2028\u2029\ufeff\ufff9-\ufffb\ud800-\udfff]"  # line separators, BOM, annotations, lone surrogates
)
_SPACE = re.compile(r"\s+")

UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))
SIZES = ("KiB", "MiB", "GiB", "TiB")


def clean(text: str) -> str:
    """Return the text without escape sequences and control characters; newlines and tabs stay."""
    plain = _SEQUENCE.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return _CONTROL.sub("", plain)


def clean_line(text: str, limit: int = 0) -> str:
    """Return the text as one line; `limit` characters at most when it is not 0."""
    line = _SPACE.sub(" ", clean(text)).strip()
    return line if not limit or len(line) <= limit else line[: limit - 1] + "…"


def visible(text: str) -> str:
    """Return the text with everything unprintable but newline and tab written as an escape: nothing is left out.

    For what a person decides about: the arguments of a call, and names that must stay distinct.
    """
    return "".join(c if c in "\n\t" or c.isprintable() else ascii(c)[1:-1] for c in text)


def clean_path(path: str) -> str:
    """Return a file name as one line in which nothing is left out."""
    return visible(path).replace("\n", "\\n").replace("\t", "\\t")


def head(text: str, lines: int) -> tuple[str, int]:
    """Return the first lines of the text, and how many more there are."""
    every = text.split("\n")
    return "\n".join(every[:lines]), max(0, len(every) - lines)


def plural(count: int, noun: str) -> str:
    """Return such as `1 file` or `3 files`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: int) -> str:
    """Return a number of bytes for people, such as `340 B` or `1.2 MiB`."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, len(SIZES))
    return f"{count / 1024**power:.1f} {SIZES[power - 1]}"


def ago(at: str | None, now: datetime | None = None) -> str:
    """Return how long ago an ISO 8601 instant was, in its largest unit; `in 2 h` when it is still to come."""
    if not at:
        return "-"
    seconds = ((now or datetime.now(UTC)) - parse_iso(at)).total_seconds()
    for size, unit in UNITS:
        if abs(seconds) >= size:
            count = int(abs(seconds) // size)
            return f"{count} {unit} ago" if seconds > 0 else f"in {count} {unit}"
    return "just now" if seconds >= 0 else "in a moment"


def model_label(model: str) -> str:
    """Return a model's name for people; a scripted model is called what it is."""
    if model.startswith("scripted:"):
        return f"scripted model (no AI): {clean_line(model.removeprefix('scripted:').rsplit('/', 1)[-1])}"
    return clean_line(model)


def arguments_text(arguments: Mapping[str, Any], indent: str = "") -> str:
    """Return a call's arguments whole, one per line, texts of several lines as they are."""
    return "\n".join(f"{indent}{clean_path(name)}: {_value_text(value, indent)}" for name, value in arguments.items())


def _value_text(value: Any, indent: str) -> str:
    if isinstance(value, str):
        text = visible(value)
        return text if "\n" not in text else "\n" + "\n".join(f"{indent}  {line}" for line in text.split("\n"))
    if isinstance(value, list) and value:
        return "".join(f"\n{indent}  - {_value_text(item, indent + '  ')}" for item in value)
    if isinstance(value, Mapping) and value:
        return "\n" + arguments_text(value, indent + "  ")
    return visible(json.dumps(value, ensure_ascii=False))
