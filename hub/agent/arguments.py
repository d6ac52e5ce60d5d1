"""The arguments of a call as a model wrote them, read as JSON, or said to be unreadable.

Repaired is only what cannot change the meaning: single quotes, and brackets left open behind a complete value. A text
that stops inside a string, a word or a number is never completed: half a command must not run.
"""

import json
import re
from typing import Any, NoReturn

CUT = "The arguments were cut off at the output limit; this call was not carried out. Send it again, shorter."
_CLOSERS = {"{": "}", "[": "]"}


def parse_arguments(raw: str, *, cut: bool = False) -> dict[str, Any] | str:
    """Return the arguments, or what is wrong with them in words for the model. Blank text means none.

    `cut` says that the answer ended at the output limit: then only what is complete as it stands is read.
    """
    if not raw.strip():
        return CUT if cut else {}
    value, problem = _loaded(raw)
    if problem and not cut:
        value, problem = _loaded(repaired_json(raw) or raw)
    if problem:
        return CUT if cut else f"The arguments are not valid JSON: {problem}. Send the call again with a JSON object."
    if isinstance(value, str):
        value = _loaded(value)[0]
    if not isinstance(value, dict):
        return "The arguments must be one JSON object, such as {}. Send the call again."
    return value


def _loaded(text: str) -> tuple[Any, str]:
    """Return the value of a JSON text and an empty text, or None and the problem."""
    try:
        value = json.loads(text, strict=False, parse_constant=_refused)
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return None, "half of a surrogate pair stands alone"
    except (ValueError, RecursionError) as error:
        return None, str(error)
    return value, ""


def _refused(word: str) -> NoReturn:
    raise ValueError(f"{word} is not a JSON number")


def repaired_json(raw: str) -> str | None:
    """Return the text with double quotes and closed brackets, None when it cannot be mended without a guess."""
    out: list[str] = []
    open_brackets: list[str] = []
    at = 0
    while at < len(raw):
        character = raw[at]
        if character in "\"'":
            end = _end_of_string(raw, at)
            if end is None:
                return None
            out.append(_double_quoted(raw[at:end]))
            at = end
            continue
        if character in _CLOSERS:
            open_brackets.append(_CLOSERS[character])
        elif character in "}]" and (not open_brackets or open_brackets.pop() != character):
            return None
        out.append(character)
        at += 1
    if open_brackets and not _ends_whole("".join(out)):
        return None
    return "".join(out) + "".join(reversed(open_brackets))


def _end_of_string(raw: str, start: int) -> int | None:
    """Return the place behind a string that begins at `start`, None when it does not end."""
    at = start + 1
    while at < len(raw):
        if raw[at] == "\\":
            at += 2
        elif raw[at] == raw[start]:
            return at + 1
        else:
            at += 1
    return None


def _double_quoted(string: str) -> str:
    if string[0] == '"':
        return string
    inner = re.sub(r"\\(.)", lambda found: "'" if found[1] == "'" else found[0], string[1:-1], flags=re.DOTALL)
    return '"' + re.sub(r'(\\.)|"', lambda found: found[1] or '\\"', inner, flags=re.DOTALL) + '"'


def _ends_whole(text: str) -> bool:
    """Say whether a text ends behind a value that cannot go on: a number or a word might."""
    return text.rstrip().endswith(('"', "}", "]"))
