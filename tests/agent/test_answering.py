"""What an answer costs, and what the library's objects are taken to say."""

import json
import subprocess
import sys
from types import SimpleNamespace as Thing

import pytest

from hub.agent.answering import is_loopback
from hub.agent.litellm_facts import cache_writes_in, facts_of, usage_in
from hub.agent.model import UsageReport

PRICES = """
import json, os
os.environ.update(LITELLM_LOCAL_MODEL_COST_MAP="True", LITELLM_MODE="PRODUCTION")
from hub.agent.answering import priced
from hub.agent.model import UsageReport
from hub.agent.worker import load
from hub.agent.worker_protocol import Target
library = load()
def cost(model, api_base=None, told=None, writes=0):
    return priced(library, Target(model, api_base), UsageReport(1000, 50, 800, told), writes).cost
print(json.dumps({
    "known": cost("openai/gpt-4o"),
    "cache": cost("anthropic/claude-sonnet-4-5"),
    "written": cost("anthropic/claude-sonnet-4-5", writes=100),
    "unknown": cost("openai/whatever"),
    "nonsense": cost("whatever"),
    "nobody wrote it down": cost("openrouter/anthropic/claude-sonnet-4.5"),
    "here": cost("openai/gpt-4o", "http://127.0.0.1:9/v1"),
    "local": cost("ollama/llama3"),
    "told": cost("openai/whatever", told=0.25),
    "told nothing": cost("openai/whatever", told=0.0),
}))
"""


def test_prices() -> None:
    run = subprocess.run([sys.executable, "-c", PRICES], capture_output=True, text=True, check=True)
    costs = json.loads(run.stdout)
    million = 1_000_000
    assert costs["known"] == pytest.approx((200 * 2.5 + 800 * 1.25 + 50 * 10) / million, rel=1e-9)
    assert costs["cache"] == pytest.approx((200 * 3 + 800 * 0.3 + 50 * 15) / million, rel=1e-9)
    assert costs["written"] == pytest.approx((100 * 3 + 800 * 0.3 + 100 * 3.75 + 50 * 15) / million, rel=1e-9)
    assert (costs["told"], costs["told nothing"], costs["local"]) == (0.25, 0.0, 0.0)
    unknown = {"unknown", "nonsense", "nobody wrote it down", "here"}
    assert {name for name, cost in costs.items() if cost is None} == unknown


@pytest.mark.parametrize(
    ("address", "here"),
    [
        *(("http://127.0.0.1:9/v1", True), ("http://127.8.9.1/v1", True), ("http://[::1]:80", True)),
        *(("http://localhost:9", True), ("http://a.localhost", True), ("https://api.example.com/v1", False)),
        *(("http://10.0.0.1", False), ("http://localhost.example.com", False), (None, False)),
    ],
)
def test_what_is_on_this_machine(address: str | None, here: bool) -> None:
    assert is_loopback(address) == here


def chunk(**usage: object) -> Thing:
    return Thing(usage=Thing(**usage) if usage else None)


@pytest.mark.parametrize(
    ("chunks", "usage"),
    [
        ([], None),
        ([chunk(), Thing()], None),
        ([chunk(prompt_tokens=0, completion_tokens=0)], None),
        ([chunk(prompt_tokens=3, completion_tokens=0)], UsageReport(3, 0, None, None)),
        ([chunk(prompt_tokens=3)], UsageReport(3, None, None, None)),
        ([chunk(prompt_tokens=3, completion_tokens=1), chunk(prompt_tokens=0, completion_tokens=5)], UsageReport(3, 5)),
        ([chunk(prompt_tokens=3, completion_tokens=1, cost={"total_cost": 0.5})], UsageReport(3, 1, None, 0.5)),
        ([chunk(prompt_tokens=3, completion_tokens=1, cost=True)], UsageReport(3, 1, None, None)),
        ([chunk(prompt_tokens=3, completion_tokens=1, cost=0)], UsageReport(3, 1, None, 0.0)),
        (
            [chunk(prompt_tokens=3, completion_tokens=1, prompt_tokens_details=Thing(cached_tokens=2)), chunk()],
            UsageReport(3, 1, 2, None),
        ),
    ],
)
def test_usage_is_what_the_server_sent(chunks: list[object], usage: UsageReport | None) -> None:
    assert usage_in(chunks) == usage


def test_tokens_written_to_the_cache() -> None:
    assert cache_writes_in([chunk(prompt_tokens=1), chunk(cache_creation_input_tokens=7), chunk()]) == 7
    assert cache_writes_in([]) == 0


class Told(Exception):
    """An exception as libraries make them, with what the server said as attributes."""

    def __init__(self, text: str, **attributes: object) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)


def caught(outer: Exception, inner: Exception) -> Exception:
    """Return the outer one, raised while the inner one was handled."""
    try:
        try:
            raise inner
        except type(inner):
            raise outer from None
    except type(outer) as error:
        return error


def test_the_servers_own_words_count_for_more_than_the_librarys() -> None:
    headers = {"retry-after": "9"}
    inner = Told("inner", status_code=413, body={"message": "too large"}, response=Thing(headers=headers))
    facts = facts_of(caught(Told("outer", status_code=429), inner), began=True)
    assert (facts.status, facts.body, facts.retry_after, facts.told) == (413, {"message": "too large"}, "9", "outer")
    assert facts.began


def test_an_exception_that_leads_back_to_itself() -> None:
    error = Told("round", status_code=500)
    error.__context__ = other = Told("and round")
    other.__context__ = error
    assert facts_of(error, began=False).status == 500
