"""What a transcript is made of: messages of typed parts.

Invariant: every tool call of an assistant message has exactly one result, in a `tool` message right after it and in
call order. `open_calls` says which results are still owed; `repaired` fills what a crash left open, for the model only.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

Role = Literal["user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, tag="text", tag_field="type"):
    """Words, as written or streamed."""

    text: str


class ToolCallPart(msgspec.Struct, frozen=True, tag="tool_call", tag_field="type", omit_defaults=True):
    """A call that the model proposed. `id` is the hub's own (`call_…`).

    `arguments` is {} when `problem` says why the model's text could not be read (`raw` then holds that text).
    """

    id: str
    name: str
    arguments: dict[str, Any]
    problem: str | None = None
    raw: str | None = None


class ToolResultPart(msgspec.Struct, frozen=True, tag="tool_result", tag_field="type", omit_defaults=True):
    """What a call came to. `state` is the call's final state; `text` is what the model reads."""

    call_id: str
    name: str
    state: str
    text: str

    @property
    def ok(self) -> bool:
        return self.state == "completed"


Part = TextPart | ToolCallPart | ToolResultPart


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a transcript. `id` is empty for messages made for one request only."""

    role: Role
    parts: tuple[Part, ...]
    id: str = ""
    run_id: str = ""

    @property
    def text(self) -> str:
        return "".join(part.text for part in self.parts if isinstance(part, TextPart))

    @property
    def calls(self) -> tuple[ToolCallPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolCallPart))

    @property
    def results(self) -> tuple[ToolResultPart, ...]:
        return tuple(part for part in self.parts if isinstance(part, ToolResultPart))


def user_message(text: str, *, id: str = "", run_id: str = "") -> Message:
    """Return a user message of one text part."""
    return Message("user", (TextPart(text),), id, run_id)


def open_calls(messages: Sequence[Message]) -> tuple[ToolCallPart, ...]:
    """Return the calls of the last answer that have no result yet, in call order.

    What a person said after an answer closes it: calls that a run left open when it ended are nobody's to carry out.
    """
    answered: set[str] = set()
    for message in reversed(messages):
        if message.role == "user":
            return ()
        if message.role == "assistant":
            return tuple(call for call in message.calls if call.id not in answered)
        answered.update(result.call_id for result in message.results)
    return ()


def repaired(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with exactly one result for each call, right after it and in call order.

    Missing results say that the outcome is unknown; results without a call are left out, and of several results for one
    call the last one counts.
    """
    pending = list(messages)
    by_call = {result.call_id: result for message in pending for result in reversed(message.results)}
    kept: list[Message] = []
    for message in pending:
        if message.role == "tool":
            continue
        kept.append(message)
        kept.extend(_result_message(call, by_call.get(call.id)) for call in message.calls)
    return kept


def _result_message(call: ToolCallPart, result: ToolResultPart | None) -> Message:
    lost = ToolResultPart(
        call.id, call.name, "unknown", "The run was interrupted; whether this call took effect is unknown."
    )
    return Message("tool", (result or lost,))
