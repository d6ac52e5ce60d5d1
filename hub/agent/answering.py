"""One answer of one model through litellm: the request in its form, its chunks as parts, our deadlines, the price.

The library is handed in, so that only the worker imports it. Every stream is closed, whatever ends it.
Not promised: a price. Where neither the server nor litellm's catalogue knows one it is None, which is not 0.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from hub.agent.deltas import CallSplitter, Mender
from hub.agent.litellm_facts import FINISHES, LOCAL_PROVIDERS, cache_writes_in, call_pieces, usage_in
from hub.agent.model import CallDelta, Finish, ModelError, ModelPart, ReasoningDelta, TextDelta, UsageReport
from hub.agent.openai_format import chat_body
from hub.agent.worker_protocol import Ask, Target

CLOSE_S = 1.0  # time that closing one stream may take
TIMEOUT_MARGIN_S = 30.0  # litellm's own timeout stands that far behind ours
ANSWER_LIMIT = 16 * 1024 * 1024  # characters after which an answer is taken for one that never ends
CACHE_MARKED = "anthropic/"  # whose cache keeps only what a request marks: the system prompt, all up to its end
CACHE_POINTS = [{"location": "message", "role": "system"}, {"location": "message", "index": -1}]
NO_KEY = "none"  # what a server that wants no key is sent, as litellm's client insists on one


async def answer(library: Any, ask: Ask, key: str | None) -> AsyncGenerator[ModelPart]:
    """Yield the parts of one answer, the last one Finish. Raises ModelError and whatever litellm raises."""
    target, reader = ask.target, ChunkReader()
    patience = Patience(target)
    async with patience.with_model(reader):
        stream = await library.acompletion(**request_of(ask, key))
    try:
        while True:
            async with patience.with_model(reader):
                chunk = await anext(stream, None)
            if chunk is None:
                break
            for part in reader.read(chunk):
                yield part
    finally:
        await _closed(stream)
    for part in reader.end():
        yield part
    chunks = getattr(stream, "chunks", ())
    usage = usage_in(chunks)
    if usage is not None:
        yield priced(library, target, usage, cache_writes_in(chunks))
    yield reader.finish()


def request_of(ask: Ask, key: str | None) -> dict[str, Any]:
    """Return the arguments of litellm's call. Its own timeout stands behind ours, its retries are off."""
    target = ask.target
    marked = {"cache_control_injection_points": CACHE_POINTS} if target.model.startswith(CACHE_MARKED) else {}
    return (
        chat_body(ask.request)
        | marked
        | {
            "model": target.model,
            "api_base": target.api_base,
            "api_key": key or (NO_KEY if target.api_base else None),
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_retries": 0,
            "timeout": target.total_s + TIMEOUT_MARGIN_S,
        }
    )


class ChunkReader:
    """Turns the chunks of one stream into parts."""

    def __init__(self) -> None:
        self.began = False
        self._calls = CallSplitter()
        self._words = Mender()
        self._thoughts = Mender()
        self._reason: str | None = None
        self._size = 0

    def read(self, chunk: Any) -> list[ModelPart]:
        """Return what a chunk says. Raises ModelError kind incomplete when the answer is too long."""
        parts: list[ModelPart] = []
        for choice in chunk.choices[:1]:
            self._reason = choice.finish_reason or self._reason
            delta = choice.delta
            if thought := self._thoughts.feed(getattr(delta, "reasoning_content", None) or ""):
                parts.append(ReasoningDelta(thought))
            if words := self._words.feed(delta.content or ""):
                parts.append(TextDelta(words))
            parts += [part for piece in call_pieces(delta) if (part := self._calls.feed(piece)) is not None]
        self.began = self.began or bool(parts)
        self._size += sum(map(_size, parts))
        if self._size > ANSWER_LIMIT:
            raise ModelError("incomplete", f"The answer has more than {ANSWER_LIMIT} characters.")
        return parts

    def end(self) -> Sequence[ModelPart]:
        """Return what was held back."""
        words, thought = self._words.end(), self._thoughts.end()
        return ([ReasoningDelta(thought)] if thought else []) + ([TextDelta(words)] if words else [])

    def finish(self) -> Finish:
        """Return how the answer ended. Raises ModelError kind incomplete when it did not."""
        if self._reason is None:
            raise ModelError("incomplete", "The model's answer ended before it was finished.")
        reason = FINISHES.get(self._reason, "other")
        return Finish("tool_calls" if reason == "stop" and self._calls.count else reason)


def _size(part: ModelPart) -> int:
    match part:
        case TextDelta(text) | ReasoningDelta(text):
            return len(text)
        case CallDelta():
            return len(part.arguments)
    return 0


class Patience:
    """How long one answer is waited for: to its first word, from piece to piece, in all."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._now = asyncio.get_running_loop().time
        self._asked_at = self._now()

    @contextlib.asynccontextmanager
    async def with_model(self, reader: ChunkReader) -> AsyncIterator[None]:
        """Give the body as long as the answer may take from here. Raises ModelError."""
        target, gone = self._target, self._now() - self._asked_at
        left = target.chunk_s if reader.began else target.first_token_s - gone
        left_in_all = target.total_s - gone
        try:
            async with asyncio.timeout(max(0.0, min(left, left_in_all))):
                yield
        except TimeoutError:
            if left_in_all <= left:
                told = f"The answer was not complete after {target.total_s:g} s."
            elif reader.began:
                told = f"The model stopped sending for {target.chunk_s:g} s."
            else:
                told = f"The model sent nothing for {target.first_token_s:g} s."
            raise ModelError("incomplete" if reader.began else "retry", told) from None


async def _closed(stream: Any) -> None:
    """Close a stream, so that the server sees that nobody reads on. A server that hinders it is left."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await stream.aclose()


def priced(library: Any, target: Target, usage: UsageReport, cache_writes: int = 0) -> UsageReport:
    """Return the usage with its price, the server's own first. A price of nobody knows what is None."""
    if usage.cost is not None:
        return usage
    provider = target.model.partition("/")[0]
    if provider not in LOCAL_PROVIDERS and is_loopback(target.api_base):
        return usage
    cost = _catalogue_price(library, target.model, usage, cache_writes)
    if not cost and provider not in LOCAL_PROVIDERS:
        cost = None
    return UsageReport(usage.input_tokens, usage.output_tokens, usage.cached_tokens, cost)


def is_loopback(address: str | None) -> bool:
    """Say whether an address is on this machine: what answers there has no price in a catalogue."""
    host = urlsplit(address or "").hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _catalogue_price(library: Any, model: str, usage: UsageReport, cache_writes: int) -> float | None:
    prompt, completion = usage.input_tokens or 0, usage.output_tokens or 0
    counted = library.Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        cache_read_input_tokens=usage.cached_tokens or 0,
        cache_creation_input_tokens=cache_writes,
    )
    unknown = (library.exceptions.ModelNotMappedError, library.BadRequestError, ValueError, KeyError, TypeError)
    try:
        price = library.cost_per_token(model, prompt, completion, usage_object=counted)
    except unknown:
        return None
    return float(sum(price))
