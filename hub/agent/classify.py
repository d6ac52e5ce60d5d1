"""What a failed model call means, decided from what the server said: its status, its body, its words.

The server's own status and body count for more than what a library made of them. Wording decides only where statuses
do not: providers report a full context window, an empty account and a passing rate limit with the same numbers.
Nothing here knows a library: `Facts` holds what its caller found out.
"""

import json
import re
from collections.abc import Iterator, Mapping

import msgspec

from hub.agent.model import ErrorKind

DEPTH_LIMIT = 8
MESSAGE_LIMIT = 2_000  # characters of a message

_OVERFLOW = re.compile(
    r"context[ _-]?(length|window|size|limit)|maximum context|max(imum)? (input|prompt) (length|tokens)"
    r"|(input|prompt|request|message)s? (is |are |length |size )?(too (long|large|big)|exceeds)"
    r"|too many (input |prompt )?tokens|reduce the length|exceeds? the (available|model'?s?) (context|maximum)"
    r"|input token count .* exceeds",
    re.IGNORECASE,
)
_RATE = re.compile(r"rate[ _-]?limit|per[ _-](minute|day|hour|second)|\b[TR]P[MD]\b|too many requests", re.IGNORECASE)
_QUOTA = re.compile(
    r"insufficient[ _-]?(quota|funds|credit|balance)|exceeded your current quota|credit balance"
    r"|billing[ _-](hard[ _-])?limit|payment required|out of credits?|quota exhausted|check your plan",
    re.IGNORECASE,
)
_PASSING = re.compile(r"overloaded|unavailable|timed? ?out|try again|(server|internal)[ _]error", re.IGNORECASE)
_AUTH = re.compile(r"(invalid|incorrect|missing|expired) (api|access)[ _-]?(key|token)|unauthori[sz]ed", re.IGNORECASE)

_BY_STATUS: Mapping[int, ErrorKind] = {
    401: "auth",
    402: "quota",
    403: "auth",
    408: "retry",
    409: "retry",
    425: "retry",
    429: "retry",
    501: "invalid",
    505: "invalid",
}
_TEXT_KEYS = ("message", "error", "detail", "msg", "error_message", "errors")


class Facts(msgspec.Struct, frozen=True):
    """What is known of a failure. `status` is the server's own, None when there was no answer or it came with 200;
    `began` says that parts of the answer had come; `told` is the library's text, used where the server said nothing."""

    told: str
    status: int | None = None
    body: object = None
    retry_after: str | None = None
    began: bool = False
    connection: bool = False


class Fault(msgspec.Struct, frozen=True):
    """A classified failure."""

    kind: ErrorKind
    message: str
    retry_after_s: float | None = None


def classify(facts: Facts) -> Fault:
    """Return what a failure is, and the text that says so."""
    words = " ".join([*strings_in(facts.body), facts.told])
    kind = _kind(facts, words)
    if facts.began and kind in ("retry", "unknown"):
        kind = "incomplete"
    message = message_in(facts.body) or message_in(_unwrapped(facts.told)) or "The model gave no reason."
    return Fault(kind, message[:MESSAGE_LIMIT], seconds(facts.retry_after) if kind == "retry" else None)


def _kind(facts: Facts, words: str) -> ErrorKind:
    status = facts.status or _status_in(facts.body)
    if facts.connection:
        return "retry"
    if status == 413:
        return "overflow"
    if (status is None or 400 <= status < 500) and _QUOTA.search(words):
        return "quota"
    if status in (None, 400, 422) and _OVERFLOW.search(words) and not _RATE.search(words):
        return "overflow"
    if status is None:
        return _by_words(words)
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status == 400 and _AUTH.search(words):
        return "auth"
    return "invalid" if 400 <= status < 500 else "retry" if status >= 500 else "unknown"


def _by_words(words: str) -> ErrorKind:
    if _RATE.search(words) or _PASSING.search(words):
        return "retry"
    return "auth" if _AUTH.search(words) else "unknown"


def _status_in(body: object) -> int | None:
    """Return the status that a body tells in place of the answer's own: an error in a stream that began with 200."""
    codes = (body.get(key) for key in ("status", "code", "status_code")) if isinstance(body, Mapping) else ()
    return next((code for code in codes if isinstance(code, int) and 400 <= code < 600), None)


def strings_in(body: object) -> Iterator[str]:
    """Yield every text in a body, those in JSON texts too, as deep as the limit."""
    yield from _strings(body, DEPTH_LIMIT)


def _strings(value: object, depth: int) -> Iterator[str]:
    if depth == 0:
        return
    if isinstance(value, str):
        inner = _parsed(value)
        if inner is None:
            yield value
        else:
            yield from _strings(inner, depth - 1)
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item, depth - 1)
    elif isinstance(value, list):
        for item in value:
            yield from _strings(item, depth - 1)


def message_in(body: object, depth: int = DEPTH_LIMIT) -> str:
    """Return the text that a body means for people, empty when it has none."""
    if depth == 0:
        return ""
    if isinstance(body, str):
        inner = _parsed(body)
        return message_in(inner, depth - 1) if inner is not None else _tidied(body)
    if isinstance(body, Mapping):
        found = (message_in(body[key], depth - 1) for key in _TEXT_KEYS if body.get(key))
        return next((text for text in found if text), "")
    if isinstance(body, list):
        return next((text for item in body if (text := message_in(item, depth - 1))), "")
    return ""


def _parsed(text: str) -> object | None:
    """Return the object or list that a text is, None when it is neither."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        return json.loads(text)  # type: ignore[no-any-return]
    except (ValueError, RecursionError):
        return None


def _tidied(text: str) -> str:
    """Return a text without markup, on one line."""
    if "<html" in text.lower() or "<!doctype" in text.lower():
        text = re.sub(r"<[^>]*>", " ", text)
    return re.sub(r"\s+", " ", text).strip()


def _unwrapped(told: str) -> str:
    """Return a library's text without what it put around the server's words."""
    told = re.sub(r"^(?:litellm\.\w+: |\w*(?:Error|Exception): |\w*(?:Error|Exception) - )+", "", told.strip())
    quoted = re.fullmatch(r"b(['\"])(.*)\1", told, re.DOTALL)
    return quoted[2].replace("\\'", "'").replace("\\\\", "\\") if quoted else told


def seconds(retry_after: str | None) -> float | None:
    """Return a Retry-After of seconds, None for a date or anything else: the back-off serves as well."""
    try:
        value = float(retry_after or "")
    except ValueError:
        return None
    return value if 0 <= value < 1e6 else None
