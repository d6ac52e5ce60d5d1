"""One answer from a model, with bounded retries.

An answer is asked for again when it is empty, or when it failed in a way that passes. Once parts of it were shown it
is asked for again only if the caller can say that they do not count (`on_discard`). What each attempt took is summed:
the sum is unknown as soon as one attempt that produced something does not tell. A model may name another one
(`fallback`) that is asked when it has failed for good. Nothing here stores anything; cancelling passes through.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, runtime_checkable

import msgspec

from hub.agent.arguments import parse_arguments
from hub.agent.model import (
    CallDelta,
    Finish,
    FinishReason,
    Model,
    ModelError,
    ModelPart,
    ModelRequest,
    Notice,
    ReasoningDelta,
    TextDelta,
    UsageReport,
)

__all__ = ["Answer", "Draft", "HasFallback", "ask", "parse_arguments"]

RETRY_WAITS_S = (1.0, 2.0, 4.0)
EMPTY_ATTEMPTS = 3
EMPTY_WAIT_S = 0.25
LONGEST_WAIT_S = 120.0
"""A server that wants a longer wait than this is not waited for; its wish stands in the error."""
PASSING = frozenset({"retry", "incomplete"})
FOR_FALLBACK = frozenset({"retry", "incomplete", "auth", "quota", "unknown"})

NOTHING = UsageReport(0, 0, 0, 0.0)
UNKNOWN = UsageReport()

Show = Callable[[ModelPart], None]
Discard = Callable[[str], Awaitable[None]]
Sleep = Callable[[float], Awaitable[None]]


class Answer(msgspec.Struct, frozen=True):
    """A whole answer. `calls` are (name, raw JSON text) in order; `usage` is the sum over all attempts."""

    text: str
    reasoning: str
    calls: list[tuple[str, str]]
    finish: FinishReason
    usage: UsageReport
    attempts: int


@runtime_checkable
class HasFallback(Protocol):
    """A model that names another one, to be asked when it has failed for good."""

    @property
    def fallback(self) -> Model | None: ...


class Draft:
    """An answer that is being streamed; `add` takes its parts in order."""

    def __init__(self) -> None:
        self.finish: FinishReason | None = None
        self.began = False
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._names: dict[int, str] = {}
        self._arguments: dict[int, list[str]] = {}
        self._usage: UsageReport | None = None

    def add(self, part: ModelPart) -> None:
        """Take the next part."""
        match part:
            case TextDelta(text):
                self._text.append(text)
            case ReasoningDelta(text):
                self._reasoning.append(text)
            case CallDelta(index, name, arguments):
                self._names[index] = self._names.get(index) or name
                self._arguments.setdefault(index, []).append(arguments)
            case UsageReport():
                self._usage = part if self._usage is None else total(self._usage, part)
            case Finish(reason):
                self.finish = reason
        self.began = self.began or isinstance(part, TextDelta | ReasoningDelta | CallDelta)

    @property
    def empty(self) -> bool:
        """Whether there is neither a word nor a call in it; what was cut off at the output limit is not empty."""
        return not self._names and self.finish != "length" and not any(piece.strip() for piece in self._text)

    @property
    def usage(self) -> UsageReport:
        """What this attempt took: what it told, nothing if it failed before it began, else unknown."""
        if self._usage is not None:
            return self._usage
        return UNKNOWN if self.began or self.finish is not None else NOTHING

    def answer(self, usage: UsageReport, attempts: int) -> Answer:
        """Return the finished answer."""
        calls = [(name, "".join(self._arguments[index])) for index, name in sorted(self._names.items())]
        finish = self.finish or "other"
        return Answer("".join(self._text), "".join(self._reasoning), calls, finish, usage, attempts)


def total(first: UsageReport, second: UsageReport) -> UsageReport:
    """Return the sum of two usages; unknown and anything is unknown."""
    return UsageReport(
        _plus(first.input_tokens, second.input_tokens),
        _plus(first.output_tokens, second.output_tokens),
        _plus(first.cached_tokens, second.cached_tokens),
        None if first.cost is None or second.cost is None else first.cost + second.cost,
    )


def _plus(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


async def ask(
    model: Model,
    request: ModelRequest,
    on_part: Show,
    *,
    on_discard: Discard | None = None,
    sleep: Sleep = asyncio.sleep,
) -> Answer:
    """Return one answer. `on_part` sees every part as it comes, of attempts that fail too; before another attempt
    `on_discard` is awaited with the reason if parts were shown. Raises ModelError when no attempt is left."""
    asking = _Asking(request, on_part, on_discard, sleep)
    try:
        return await asking.ask(model)
    except ModelError as error:
        fallback = model.fallback if isinstance(model, HasFallback) else None
        if fallback is None or error.kind not in FOR_FALLBACK or not asking.may_discard:
            raise
        await asking.discard(f"{model.name}: {error.message}")
        on_part(Notice(f"{model.name} failed ({error.kind}); asking {fallback.name}"))
    return await asking.ask(fallback)


class _Asking:
    """The attempts at one answer, over all models that are asked."""

    def __init__(self, request: ModelRequest, on_part: Show, on_discard: Discard | None, sleep: Sleep) -> None:
        self._request = request
        self._on_part = on_part
        self._on_discard = on_discard
        self._sleep = sleep
        self._usage = NOTHING
        self._attempts = 0
        self._draft = Draft()

    @property
    def may_discard(self) -> bool:
        return self._on_discard is not None or not self._draft.began

    async def discard(self, reason: str) -> None:
        """Say that what was shown does not count."""
        if self._draft.began and self._on_discard is not None:
            await self._on_discard(reason)
        self._draft = Draft()

    async def ask(self, model: Model) -> Answer:
        """Return an answer of this model. Raises ModelError when its attempts are used up."""
        failures = empties = 0
        while True:
            error = await self._attempt(model)
            if error is None and not self._draft.empty:
                return self._draft.answer(self._usage, self._attempts)
            if error is None:
                empties += 1
                error, wait = _emptiness(empties)
            else:
                wait = _wait(error, failures)
                failures += 1
            if wait is None or not self.may_discard:
                raise _told(error, failures + empties)
            await self._again(model, error, wait)

    async def _attempt(self, model: Model) -> ModelError | None:
        """Stream once into a new draft; return how it failed."""
        self._draft = draft = Draft()
        self._attempts += 1
        try:
            await self._stream(model.stream(self._request), draft)
        except ModelError as error:
            return error
        finally:
            self._usage = total(self._usage, draft.usage)
        if draft.finish is None:
            return ModelError("incomplete", "The answer ended before it was finished.")
        return None

    async def _stream(self, parts: AsyncIterator[ModelPart], draft: Draft) -> None:
        try:
            async for part in parts:
                draft.add(part)
                self._on_part(part)
                if draft.finish is not None:
                    return
        finally:
            close = getattr(parts, "aclose", None)
            if close is not None:
                await close()

    async def _again(self, model: Model, error: ModelError, wait: float) -> None:
        await self.discard(error.message)
        if wait >= RETRY_WAITS_S[0]:
            self._on_part(Notice(f"{model.name}: {error.message} Asking again in {wait:g} s."))
        await self._sleep(wait)


def _wait(error: ModelError, failures: int) -> float | None:
    """Return the seconds to wait before another attempt, None when there is to be none."""
    if error.kind not in PASSING or failures >= len(RETRY_WAITS_S):
        return None
    wait = max(RETRY_WAITS_S[failures], error.retry_after_s or 0.0)
    return wait if wait <= LONGEST_WAIT_S else None


def _emptiness(empties: int) -> tuple[ModelError, float | None]:
    """Return how to name an empty answer, and the wait before another attempt."""
    wait = EMPTY_WAIT_S if empties < EMPTY_ATTEMPTS else None
    return ModelError("incomplete", "The model answered with nothing."), wait


def _told(error: ModelError, attempts: int) -> ModelError:
    """Return the error with the number of attempts, when there were several."""
    if attempts < 2:
        return error
    text = f"{error.message} (asked {attempts} times)"
    return ModelError(error.kind, text, retry_after_s=error.retry_after_s)
