"""What the model library's objects say, read without importing it: failures, chunks and usage become plain values.

The library hides the server's own status and body behind its exceptions, and invents usage that no server sent. Here
the chain of exceptions is searched for what the server said, and only usage on the chunks of a stream counts.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hub.agent.classify import Facts
from hub.agent.deltas import Piece
from hub.agent.model import FinishReason, UsageReport

CONNECTION_ERRORS = frozenset({"APIConnectionError", "APITimeoutError", "ConnectError", "ReadError", "Timeout"})
FINISHES: Mapping[str, FinishReason] = {
    "stop": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
}
LOCAL_PROVIDERS = frozenset({"ollama", "ollama_chat", "lm_studio", "llamafile"})
"""For these a price of 0 is a price; for all others it only means that nobody wrote one down."""


def facts_of(error: BaseException, *, began: bool) -> Facts:
    """Return what is known of a failure."""
    chain = list(_chain(error))
    spoken = [link for link in chain if _of(link, "body") not in (None, "")]
    status = next((code for link in reversed(spoken) if (code := _status(link))), None)
    if not spoken:
        status = next((code for link in chain if (code := _status(link))), None)
    connection = not spoken and any(type(link).__name__ in CONNECTION_ERRORS for link in chain)
    return Facts(
        told=str(_of(chain[0], "message") or chain[0]),
        status=status,
        body=_of(spoken[-1], "body") if spoken else None,
        retry_after=next((value for link in chain if (value := _retry_after(link))), None),
        began=began,
        connection=connection and status not in (401, 403, 404),
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__


def _of(link: object, name: str) -> Any:
    return getattr(link, name, None)


def _status(link: BaseException) -> int | None:
    status = _of(link, "status_code")
    return status if isinstance(status, int) and 300 <= status < 600 else None


def _retry_after(link: BaseException) -> str | None:
    headers = _of(_of(link, "response"), "headers") or {}
    return headers.get("retry-after") if hasattr(headers, "get") else None


def call_pieces(delta: object) -> Iterator[Piece]:
    """Yield the pieces of calls in a delta, those of the old single function call too."""
    for entry in _of(delta, "tool_calls") or ():
        function = _of(entry, "function")
        arguments = _of(function, "arguments") or ""
        yield Piece(_of(entry, "index"), _of(entry, "id") or None, _of(function, "name") or None, str(arguments))
    single = _of(delta, "function_call")
    if single is not None:
        yield Piece(0, None, _of(single, "name") or None, str(_of(single, "arguments") or ""))


def usage_in(chunks: Iterable[object]) -> UsageReport | None:
    """Return the usage that the server sent on the chunks of a stream, None when it sent none.

    Later numbers replace earlier ones. A prompt of no tokens is a server that does not count: unknown.
    """
    usages = [usage for chunk in chunks if (usage := _of(chunk, "usage")) is not None]
    input_tokens = _last(_of(usage, "prompt_tokens") for usage in usages)
    output_tokens = _last(_of(usage, "completion_tokens") for usage in usages)
    if not input_tokens:
        return None
    cached = _last(_of(_of(usage, "prompt_tokens_details"), "cached_tokens") for usage in usages)
    return UsageReport(int(input_tokens), _whole(output_tokens), _whole(cached), _last(map(billed, usages)))


def cache_writes_in(chunks: Iterable[object]) -> int:
    """Return how many of the input tokens were written to the provider's cache, which may cost more."""
    return int(_last(_of(_of(chunk, "usage"), "cache_creation_input_tokens") for chunk in chunks) or 0)


def billed(usage: object) -> float | None:
    """Return the price that the server itself put on an answer."""
    cost = _of(usage, "cost")
    cost = cost.get("total_cost") if isinstance(cost, Mapping) else cost
    return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None


def _last(values: Iterable[float | int | None]) -> Any:
    """Return the last number that is not 0, else 0 if there was one, else None."""
    found = None
    for value in values:
        if value or (value is not None and found is None):
            found = value
    return found


def _whole(value: float | int | None) -> int | None:
    return None if value is None else int(value)
