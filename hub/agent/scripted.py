"""A model that answers from a file: for tests and the demonstration, and labelled as such by its name.

A scenario is YAML: `turns`, a list, of which each answer of a run takes the next. Each turn may have
`text`; `tool_calls`, each with `name` and `arguments` (a mapping, or text that is sent as it stands); `reasoning`;
`finish` (stop, tool_calls, length, other); `usage`; `chunks` (into how many pieces the text is cut); `delay_s`
(seconds that the answer takes, spread over its pieces); `fail` (a kind of error, or `kind`, `message`, `times`,
`retry_after_s`: fails the first `times` attempts, every one by default).
A file that says anything else is refused. Usage that is not given is unknown. It never looks at what it is asked.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import yaml

from hub.agent.model import (
    CallDelta,
    ErrorKind,
    Finish,
    FinishReason,
    ModelError,
    ModelPart,
    ModelRequest,
    ReasoningDelta,
    TextDelta,
    UsageReport,
)
from hub.errors import UsageError

SIZE_LIMIT = 16 * 1024 * 1024  # bytes of a scenario file
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the one in C is ten times as fast, and may be absent

Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class _Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ScriptedCall(_Entry, frozen=True, kw_only=True):
    """A call that the model makes."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    arguments: dict[str, Any] | str = {}


class Failure(_Entry, frozen=True, kw_only=True):
    """How a turn fails. `times` is how many attempts fail before one succeeds, None: all."""

    kind: ErrorKind
    message: str = "The scenario says so."
    times: Count | None = None
    retry_after_s: Seconds | None = None


class ScriptedUsage(_Entry, frozen=True, kw_only=True):
    """What a turn is said to take."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    cost: float | None = None


class Turn(_Entry, frozen=True, kw_only=True):
    """One answer."""

    text: str = ""
    reasoning: str = ""
    tool_calls: list[ScriptedCall] = []
    finish: FinishReason | None = None
    usage: ScriptedUsage | None = None
    chunks: Count = 1
    delay_s: Seconds = 0.0
    fail: ErrorKind | Failure | None = None


class Scenario(_Entry, frozen=True, kw_only=True):
    """The whole file."""

    turns: list[Turn]


class ScriptedModel:
    """Implements Model. Turn n of a run is turn n of the scenario; it remembers only how often turns have failed."""

    def __init__(self, scenario: Scenario, name: str) -> None:
        self.name = name
        self._turns = scenario.turns
        self._failed: dict[int, int] = {}

    @classmethod
    def load(cls, path: Path) -> "ScriptedModel":
        """Return the model of a file. Raises UsageError with code scenario_invalid."""
        return cls(load_scenario(path), f"scripted:{path.name}")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        """Yield the turn's parts. Raises ModelError as the turn says, kind invalid behind the last turn."""
        if request.turn >= len(self._turns):
            told = (
                f"{self.name} has {len(self._turns)} turns and was asked for one more. Add a turn without tool calls."
            )
            raise ModelError("invalid", told)
        turn = self._turns[request.turn]
        parts = list(pieces(turn))
        self._fail_if_said(request.turn, turn)
        for part in parts:
            if turn.delay_s:
                await asyncio.sleep(turn.delay_s / len(parts))
            yield part
        if turn.usage is not None:
            yield UsageReport(**msgspec.structs.asdict(turn.usage))
        yield Finish(turn.finish or ("tool_calls" if turn.tool_calls else "stop"))

    def _fail_if_said(self, number: int, turn: Turn) -> None:
        failure = Failure(kind=turn.fail) if isinstance(turn.fail, str) else turn.fail
        failed = self._failed.get(number, 0)
        if failure is None or (failure.times is not None and failed >= failure.times):
            return
        self._failed[number] = failed + 1
        raise ModelError(failure.kind, failure.message, retry_after_s=failure.retry_after_s)


def pieces(turn: Turn) -> Iterator[ModelPart]:
    """Yield what a turn says and calls, its text cut into `chunks` pieces of about one length."""
    if turn.reasoning:
        yield ReasoningDelta(turn.reasoning)
    count = min(turn.chunks, len(turn.text))
    for number in range(count):
        yield TextDelta(turn.text[number * len(turn.text) // count : (number + 1) * len(turn.text) // count])
    for index, call in enumerate(turn.tool_calls):
        raw = call.arguments if isinstance(call.arguments, str) else msgspec.json.encode(call.arguments).decode()
        yield CallDelta(index, call.name, raw)


def load_scenario(path: Path) -> Scenario:
    """Return the scenario in a file. Raises UsageError with code scenario_invalid, naming file and line."""
    try:
        with path.open("rb") as file:
            data = file.read(SIZE_LIMIT + 1)
        text = data.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise _invalid(path, None, f"cannot be read: {error}") from None
    if len(data) > SIZE_LIMIT:
        raise _invalid(path, None, f"is larger than {SIZE_LIMIT} bytes")
    return parse_scenario(text, path)


def parse_scenario(text: str, path: Path) -> Scenario:
    """Return the scenario in a text; `path` is for the message. Raises UsageError with code scenario_invalid."""
    try:
        scenario = msgspec.convert(yaml.load(text, _Loader), Scenario)
        msgspec.json.encode(scenario)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        line = min(mark.line + 1, max(1, len(text.splitlines()))) if mark else None
        raise _invalid(path, line, f"not YAML: {problem}") from None
    except msgspec.ValidationError as error:
        raise _invalid(path, line_of(text, str(error)), str(error)) from None
    except (TypeError, UnicodeEncodeError, RecursionError) as error:
        raise _invalid(path, None, f"holds something that JSON cannot: {error}") from None
    return scenario


def line_of(text: str, problem: str) -> int | None:
    """Return the line (from 1) of the place that a validation text names, such as `$.turns[1].text`."""
    named = re.search(r"`\$([^`]*)`", problem)
    unknown = re.search(r"unknown field `([^`]*)`", problem)
    steps = re.findall(r"\[(\d+)\]|\.(\w+)", named[1] if named else "") + ([("", unknown[1])] if unknown else [])
    node, line = yaml.compose(text, _Loader), 1
    for position, key in steps:
        child = _child(node, int(position) if position else key)
        if child is None:
            break
        node, line = child
    return line


def _child(node: Any, step: int | str) -> tuple[Any, int] | None:
    """Return the node below and the line where it begins; for a key, the line of the key."""
    if isinstance(step, int) and isinstance(node, yaml.SequenceNode) and step < len(node.value):
        return node.value[step], node.value[step].start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        found = (pair for pair in node.value if pair[0].value == step)
        return next(((value, key.start_mark.line + 1) for key, value in found), None)
    return None


def _invalid(path: Path, line: int | None, problem: str) -> UsageError:
    where = f"{path}:{line}" if line else str(path)
    hint = "A scenario is `turns: [{text, tool_calls: [{name, arguments}], delay_s, fail}]`."
    return UsageError(f"{where}: {problem}", code="scenario_invalid", hint=hint)
