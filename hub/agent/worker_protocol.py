"""What the hub and its model worker say to each other: one JSON document a line, over the worker's stdin and stdout.

The hub sends `begin` once the worker is recorded; the worker says `hello` at its start and `ready` when it can ask.
Each request has a number. Its frames end with exactly one `finish` or `failed`; after `cancel` nobody reads them.
No frame carries a credential: a target names the variable of the worker's environment that holds its key, and what
comes from outside is sent `without` the secrets of that environment.
"""

from collections.abc import Mapping, Sequence

import msgspec

from hub.agent.model import (
    CallDelta,
    ErrorKind,
    Finish,
    ModelPart,
    ModelRequest,
    Notice,
    ReasoningDelta,
    TextDelta,
    UsageReport,
)

REVISION = 1
KEY_PREFIX = "TURNBACK_MODEL_KEY_"
CREDENTIAL_ENDINGS = ("_API_KEY", "_TOKEN", "_SECRET", "_ACCESS_KEY", "_PASSWORD")
SHORTEST_SECRET = 8  # characters; shorter values are not taken out of texts
LINE_LIMIT = 64 * 1024 * 1024  # bytes of one frame


class Target(msgspec.Struct, frozen=True, omit_defaults=True):
    """Whom to ask, and how long to wait: for the first chunk, between chunks, for the whole answer (seconds)."""

    model: str
    api_base: str | None = None
    key_variable: str | None = None
    first_token_s: float = 120.0
    chunk_s: float = 60.0
    total_s: float = 600.0


class Begin(msgspec.Struct, frozen=True, tag="begin"):
    """The worker may start its work."""


class Ask(msgspec.Struct, frozen=True, tag="ask"):
    """Get one answer."""

    id: int
    target: Target
    request: ModelRequest


class Cancel(msgspec.Struct, frozen=True, tag="cancel"):
    """Nobody waits for this answer any more."""

    id: int


class Ping(msgspec.Struct, frozen=True, tag="ping"):
    """Answer with a pong."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The worker is there."""

    revision: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The library is loaded. Requests that came earlier are carried out now."""

    version: str


class Broken(msgspec.Struct, frozen=True, tag="broken"):
    """The library cannot be loaded; every request fails."""

    reason: str


class Pong(msgspec.Struct, frozen=True, tag="pong"):
    """The worker is alive."""


class TextFrame(msgspec.Struct, frozen=True, tag="text"):
    """The answer's next words."""

    id: int
    part: TextDelta


class ReasoningFrame(msgspec.Struct, frozen=True, tag="reasoning"):
    """The next piece of reasoning."""

    id: int
    part: ReasoningDelta


class CallFrame(msgspec.Struct, frozen=True, tag="call"):
    """The next piece of a call."""

    id: int
    part: CallDelta


class UsageFrame(msgspec.Struct, frozen=True, tag="usage"):
    """What the answer took."""

    id: int
    part: UsageReport


class NoticeFrame(msgspec.Struct, frozen=True, tag="notice"):
    """Something to show."""

    id: int
    part: Notice


class FinishFrame(msgspec.Struct, frozen=True, tag="finish"):
    """The answer is complete."""

    id: int
    part: Finish


class Failed(msgspec.Struct, frozen=True, tag="failed", omit_defaults=True):
    """There is no answer, or no more of it."""

    id: int
    kind: ErrorKind
    message: str
    retry_after_s: float | None = None


Order = Begin | Ask | Cancel | Ping
PartFrame = TextFrame | ReasoningFrame | CallFrame | UsageFrame | NoticeFrame | FinishFrame
Report = Hello | Ready | Broken | Pong | PartFrame | Failed

_order_decoder: msgspec.json.Decoder[Order] = msgspec.json.Decoder(Order)
_report_decoder: msgspec.json.Decoder[Report] = msgspec.json.Decoder(Report)


def frame_of(id: int, part: ModelPart) -> PartFrame:
    """Return the frame that carries a part of an answer."""
    match part:
        case TextDelta():
            return TextFrame(id, part)
        case ReasoningDelta():
            return ReasoningFrame(id, part)
        case CallDelta():
            return CallFrame(id, part)
        case UsageReport():
            return UsageFrame(id, part)
        case Notice():
            return NoticeFrame(id, part)
        case Finish():
            return FinishFrame(id, part)


def encode(frame: Order | Report) -> bytes:
    """Return a frame as a line."""
    return msgspec.json.encode(frame) + b"\n"


def decode_order(line: bytes) -> Order:
    """Return what the hub said. Raises msgspec.DecodeError."""
    return _order_decoder.decode(line)


def decode_report(line: bytes) -> Report:
    """Return what the worker said. Raises msgspec.DecodeError."""
    return _report_decoder.decode(line)


def secrets_in(environ: Mapping[str, str]) -> list[str]:
    """Return the credentials in a worker's environment, the longest first."""
    named = (value for name, value in environ.items() if name.upper().startswith(KEY_PREFIX) or _is_credential(name))
    return sorted({value for value in named if len(value) >= SHORTEST_SECRET}, key=len, reverse=True)


def _is_credential(name: str) -> bool:
    return name.upper().endswith(CREDENTIAL_ENDINGS)


def without(secrets: Sequence[str], text: str) -> str:
    """Return a text with stars in place of the secrets."""
    for secret in secrets:
        text = text.replace(secret, "***")
    return text
