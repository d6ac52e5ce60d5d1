"""A request in the form of OpenAI's chat completions, which the model library translates further.

Pure and stable: each message becomes the same bytes in every request, so that a later request of a conversation begins
with the bytes of an earlier one and the provider's prefix cache is kept. Calls are sent with exactly one result each.
"""

import json
import re
from collections.abc import Sequence
from typing import Any

from hub.agent.model import ModelRequest, ToolSpec
from hub.domain.messages import Message, ToolCallPart, repaired

NAME_LIMIT = 64
"""Longest name of a function that providers accept."""


def chat_messages(system: str, messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return a conversation, the system prompt first. Blank messages are left out: some providers refuse them."""
    rows = [{"role": "system", "content": system}] if system.strip() else []
    for message in repaired(messages):
        if message.role == "tool":
            rows.extend(_results(message))
        elif message.text.strip() or message.calls:
            rows.append(_spoken(message))
    return rows


def chat_tools(tools: Sequence[ToolSpec]) -> list[dict[str, Any]]:
    """Return the tools that a model may call."""
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in tools
    ]


def chat_body(request: ModelRequest) -> dict[str, Any]:
    """Return the part of a request's body that says what is asked."""
    body: dict[str, Any] = {"messages": chat_messages(request.system, request.messages)}
    if request.tools:
        body["tools"] = chat_tools(request.tools)
    return body


def _spoken(message: Message) -> dict[str, Any]:
    if not message.calls:
        return {"role": message.role, "content": message.text}
    words = message.text if message.text.strip() else None
    return {"role": message.role, "content": words, "tool_calls": [_call(call) for call in message.calls]}


def _call(call: ToolCallPart) -> dict[str, Any]:
    arguments = json.dumps(call.arguments, ensure_ascii=False, separators=(",", ":"))
    return {"id": call.id, "type": "function", "function": {"name": _wire_name(call.name), "arguments": arguments}}


def _results(message: Message) -> list[dict[str, Any]]:
    return [{"role": "tool", "tool_call_id": result.call_id, "content": result.text} for result in message.results]


def _wire_name(name: str) -> str:
    """Return a name that providers accept; what a model made up may be none."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:NAME_LIMIT] or "unnamed"
