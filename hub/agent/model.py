"""The Model protocol: one method that streams typed parts. The loop knows nothing else of a model.

A stream yields TextDelta, ReasoningDelta, CallDelta and UsageReport in any number, then exactly one Finish, or raises
ModelError. A stream that ends without Finish is incomplete and counts as ModelError(kind="incomplete").
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal, Protocol

import msgspec

from hub.domain.messages import Message

ErrorKind = Literal["retry", "overflow", "auth", "quota", "invalid", "incomplete", "cancelled", "unknown"]
FinishReason = Literal["stop", "tool_calls", "length", "other"]


class ToolSpec(msgspec.Struct, frozen=True):
    """What the model is told of a tool. `parameters` is a JSON Schema whose top level is an object."""

    name: str
    description: str
    parameters: dict[str, Any]


class ModelRequest(msgspec.Struct, frozen=True):
    """One question to a model. `turn` is the number of assistant messages that the run already has (from 0)."""

    system: str
    messages: Sequence[Message]
    tools: Sequence[ToolSpec]
    turn: int


class TextDelta(msgspec.Struct, frozen=True):
    """The next piece of the answer's text."""

    text: str


class ReasoningDelta(msgspec.Struct, frozen=True):
    """The next piece of the model's reasoning; never part of the answer."""

    text: str


class CallDelta(msgspec.Struct, frozen=True):
    """A piece of a tool call. `index` numbers the calls of this answer from 0; the stream's maker has already
    told calls apart, so every piece of one call has the same index. `arguments` is JSON text, to be joined."""

    index: int
    name: str = ""
    arguments: str = ""


class UsageReport(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens and price as the provider told them. None is unknown, which is not 0. Cost is in US dollars."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None


class Finish(msgspec.Struct, frozen=True):
    """The end of an answer."""

    reason: FinishReason


class Notice(msgspec.Struct, frozen=True):
    """Something to show while waiting, such as "model is loading"; not part of the answer."""

    text: str


ModelPart = TextDelta | ReasoningDelta | CallDelta | UsageReport | Finish | Notice


class ModelError(Exception):
    """A model call that failed, classified. `kind` decides what is done; `retry_after_s` is the server's own wish."""

    def __init__(self, kind: ErrorKind, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.retry_after_s = retry_after_s


class Model(Protocol):
    """A model that can be asked. `name` is what people see. Cancelling the task that iterates ends the request."""

    @property
    def name(self) -> str: ...

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]: ...
