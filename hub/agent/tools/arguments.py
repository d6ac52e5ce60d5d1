"""Reading what models send: the looser forms of arguments, turned into the advertised one.

Invariant: every function here is pure, and leaves a value that is already canonical as it is.
"""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

from hub.agent.tools.base import ToolFailure
from hub.agent.tools.paths import is_unicode

MAX_LINE_NUMBER = 1_000_000_000


def opened(value: Any) -> Any:
    """Return the list or object that a text holds as JSON, or the value itself."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        decoded = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return decoded if isinstance(decoded, list | dict) else value


def as_object(arguments: Any, tool: str) -> dict[str, Any]:
    """Return the arguments if they are an object (or JSON text of one). Raises ToolFailure."""
    value = opened(arguments)
    if isinstance(value, dict):
        return value
    raise ToolFailure(f"{tool} takes an object, not {described(value)}.")


def only_given(arguments: Mapping[str, Any], keys: Iterable[str], tool: str) -> Any:
    """Return the value of the one key of `keys` that holds something, else None. Raises ToolFailure when several do."""
    given = [key for key in keys if arguments.get(key) not in (None, "", [], {})]
    if len(given) > 1:
        raise ToolFailure(f"{tool}: give either {' or '.join(given)}, not both.")
    return arguments[given[0]] if given else None


def as_list(value: Any) -> list[Any]:
    """Return a list as it is, nothing as an empty list, and anything else as a list of one."""
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def text_of(value: Any, name: str) -> str:
    """Return the value if it is a text that can be stored. Raises ToolFailure."""
    if not isinstance(value, str):
        raise ToolFailure(f"{name} must be a text, not {described(value)}.")
    if not is_unicode(value):
        raise ToolFailure(f"{name} holds half of a surrogate pair, which is not a character.")
    return value


def line_number(value: Any, name: str) -> int | None:
    """Return a line number counted from 1, or None for none. Digits in a text count. Raises ToolFailure."""
    if value is None:
        return None
    number = _integer(value)
    if number is None or not 1 <= number <= MAX_LINE_NUMBER:
        raise ToolFailure(f"{name} must be a whole number from 1 on, not {value!r}.")
    return number


def seconds(value: Any, name: str) -> int | float | None:
    """Return a positive duration in seconds, or None for none. A number in a text counts. Raises ToolFailure."""
    if value is None:
        return None
    number = _number(value)
    if number is None or not math.isfinite(number) or number <= 0:
        raise ToolFailure(f"{name} must be a number of seconds above 0, not {value!r}.")
    return int(number) if number == int(number) else number


def described(value: Any) -> str:
    """Return the JSON name of the value's kind, for messages."""
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a text", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def _integer(value: Any) -> int | None:
    number = _number(value)
    if number is None or not math.isfinite(number) or number != int(number):
        return None
    return int(number)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None
