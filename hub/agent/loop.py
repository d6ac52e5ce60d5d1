"""The agent loop: ask the model, carry out its calls in order, until it has nothing more to call.

Stateless: everything it knows is in the transcript it is given, so it can begin anywhere: before a model call, or in
the middle of an answer whose calls are only partly settled. It decides nothing about permission and stores nothing; it
hands each step to its ports and goes on only when that step is committed.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from hub.agent.model import Model, ModelError, ModelRequest
from hub.agent.retry import Answer
from hub.agent.tools.base import Tool, ToolContext, ToolFailure, ToolOutput
from hub.domain.messages import Message, ToolCallPart, open_calls

log = logging.getLogger(__name__)


class Go(msgspec.Struct, frozen=True):
    """The call may execute, with exactly these arguments."""

    arguments: dict[str, object]


class Settled(msgspec.Struct, frozen=True):
    """The call is not executed: denied, skipped, failed before it began, or answered by a person."""

    state: str
    text: str


class Gate(Protocol):
    """Who says what may execute."""

    async def prepare(self, message: Message) -> None:
        """Rule on every call of an answer, and put every question at once. Repeating it changes nothing."""

    async def settle(self, call: ToolCallPart) -> Go | Settled:
        """Wait until this call is decided. When it returns Go, the call is stored as executing."""


class Steps(Protocol):
    """Who commits each step. Each method but `concluded` returns when its step is durable."""

    async def before_model(self) -> Sequence[Message]:
        """Check for the run's end (raises to end it), take the steers that wait, and return them as messages."""

    async def ask(self, model: Model, request: ModelRequest) -> Answer:
        """Get one answer, showing it while it streams. Raises ModelError."""

    async def answered(self, answer: Answer) -> Message:
        """Store an answer with calls and return it as a message with call ids."""

    async def concluded(self, answer: Answer) -> None:
        """Keep the answer that ends the run; it is durable at the latest together with the run's end."""

    async def settled(self, call: ToolCallPart, state: str, output: ToolOutput) -> Message:
        """Store what a call came to and return it as a message."""

    def context(self, call: ToolCallPart) -> ToolContext:
        """Return what the call may use."""


class Frame(msgspec.Struct, frozen=True):
    """What stays the same for the whole run."""

    model: Model
    system: str
    tools: Mapping[str, Tool]


async def run(frame: Frame, transcript: Sequence[Message], run_id: str, gate: Gate, steps: Steps) -> str:
    """Carry a run to its end and return its last text. Raises ModelError, and whatever the ports raise."""
    messages = list(transcript)
    while True:
        if not open_calls(messages):
            if _finished(frame, messages, run_id):
                return _last_text(messages)
            messages.extend(await steps.before_model())
            answer = await _next_answer(frame, messages, run_id, steps)
            if not answer.calls:
                await steps.concluded(answer)
                return answer.text
            messages.append(await steps.answered(answer))
        owed = open_calls(messages)
        if owed:
            await gate.prepare(next(message for message in reversed(messages) if message.role == "assistant"))
        for call in owed:
            messages.append(await _carry_out(frame, call, gate, steps))


async def _next_answer(frame: Frame, messages: Sequence[Message], run_id: str, steps: Steps) -> Answer:
    turn = sum(1 for message in messages if message.role == "assistant" and message.run_id == run_id)
    specs = [tool.spec for tool in frame.tools.values()]
    answer = await steps.ask(frame.model, ModelRequest(frame.system, tuple(messages), specs, turn))
    if answer.finish == "length" and not answer.calls:
        raise ModelError("incomplete", "The answer was cut off at the model's output limit.")
    return answer


def _finished(frame: Frame, messages: Sequence[Message], run_id: str) -> bool:
    """Return whether the run has said its last word: an answer without calls, or a call that ends it."""
    since = max((index for index, message in enumerate(messages) if message.role == "assistant"), default=None)
    if since is None or messages[since].run_id != run_id or messages[-1].role == "user":
        return False
    if not messages[since].calls:
        return True
    finishing = {name for name, tool in frame.tools.items() if tool.effect == "finish"}
    results = [result for message in messages[since:] for result in message.results]
    return any(result.ok and result.name in finishing for result in results)


def _last_text(messages: Sequence[Message]) -> str:
    last = messages[-1]
    return last.text or "".join(result.text for result in last.results)


async def _carry_out(frame: Frame, call: ToolCallPart, gate: Gate, steps: Steps) -> Message:
    decided = await gate.settle(call)
    if isinstance(decided, Settled):
        return await steps.settled(call, decided.state, ToolOutput(decided.state == "completed", decided.text))
    output = await execute(frame.tools[call.name], decided.arguments, steps.context(call))
    return await steps.settled(call, "completed" if output.ok else "failed", output)


async def execute(tool: Tool, arguments: dict[str, object], context: ToolContext) -> ToolOutput:
    """Run a tool; whatever goes wrong in it becomes a result that the model can read."""
    try:
        return await tool.execute(arguments, context)
    except ToolFailure as failure:
        return ToolOutput(False, str(failure))
    except Exception as error:
        log.exception("a tool raised", extra={"call_id": context.call_id, "tool": tool.spec.name})
        return ToolOutput(False, f"The tool failed unexpectedly: {type(error).__name__}: {error}")
