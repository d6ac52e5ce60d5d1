"""All that a server may do, as replies of the scripted one, and what each must come to."""

import json
from typing import Any

from hub.agent.model import ErrorKind, UsageReport
from hub.agent.retry import Answer
from hub.settings import Secret
from tests.stub_openai import (
    DONE,
    USAGE,
    Chunk,
    Cut,
    Hold,
    Raw,
    Reply,
    Reset,
    Sleep,
    Step,
    call,
    calls,
    delta,
    error,
    refusal,
    stream,
    text,
    usage_chunk,
)

KEY = Secret("sk-loopback-0123456789")
TOLD = UsageReport(12, 5, None, None)
ONE, TWO = '{"x":1}', '{"y":2}'
BOTH = [("a", ONE), ("b", TWO)]


def chunk_of(json_text: str) -> Raw:
    """Return a chunk whose content is this JSON text, escapes and all."""
    return Raw('data: {"id":"1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,'
               f'"delta":{{"content":{json_text}}},"finish_reason":null}}]}}\n\n')  # fmt: skip


WORDS: dict[str, tuple[Reply, Answer]] = {
    "one piece": (text("hello"), Answer("hello", "", [], "stop", TOLD, 1)),
    "many pieces": (text("hello there", pieces=11), Answer("hello there", "", [], "stop", TOLD, 1)),
    "the same piece very often": (
        stream(*[delta(content="----")] * 300),
        Answer("----" * 300, "", [], "stop", TOLD, 1),
    ),
    "an unknown end": (stream(delta(content="x"), finish="eos"), Answer("x", "", [], "stop", TOLD, 1)),
    "a filtered end": (stream(delta(content="x"), finish="content_filter"), Answer("x", "", [], "other", TOLD, 1)),
    "cut at the limit": (stream(delta(content="x"), finish="length"), Answer("x", "", [], "length", TOLD, 1)),
    "reasoning in either field": (
        stream(delta(reasoning="h"), delta(reasoning_content="m"), delta(content="<think>a</think>b")),
        Answer("<think>a</think>b", "hm", [], "stop", TOLD, 1),
    ),
    "nothing": (stream(), Answer("", "", [], "stop", TOLD, 1)),
    "no usage": (text("x", usage=None), Answer("x", "", [], "stop", UsageReport(), 1)),
    "usage of nothing": (
        text("x", usage={"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}),
        Answer("x", "", [], "stop", UsageReport(), 1),
    ),
    "usage on the last chunk with a choice": (
        Reply(steps=(delta(content="x"), Chunk({**delta("stop").data, "usage": USAGE}), DONE)),
        Answer("x", "", [], "stop", TOLD, 1),
    ),
    "usage on every chunk": (
        Reply(steps=(
            Chunk({**delta(content="x").data, "usage": {**USAGE, "completion_tokens": 1}}),
            Chunk({**delta("stop").data, "usage": USAGE}), DONE,
        )),
        Answer("x", "", [], "stop", TOLD, 1),
    ),
    "cached tokens and a price": (
        text("x", usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 8}, "cost": 0.25}),
        Answer("x", "", [], "stop", UsageReport(12, 5, 8, 0.25), 1),
    ),
    "an end without the end mark": (
        Reply(steps=(delta(content="x"), delta("stop"), usage_chunk())),
        Answer("x", "", [], "stop", TOLD, 1),
    ),
    "a character cut in two": (
        Reply(steps=(chunk_of('"a\\ud83d"'), chunk_of('"\\ude00b"'), delta("stop"), usage_chunk(), DONE)),
        Answer("a😀b", "", [], "stop", TOLD, 1),
    ),
    "half a character": (
        Reply(steps=(chunk_of('"a\\ud83d"'), delta("stop"), usage_chunk(), DONE)),
        Answer("a\ufffd", "", [], "stop", TOLD, 1),
    ),
    "comments between events": (
        stream(Raw(": ping\n\n"), delta(content="x"), Raw(": ping\n\n")),
        Answer("x", "", [], "stop", TOLD, 1),
    ),
}  # fmt: skip

CALLS: dict[str, tuple[Reply, list[tuple[str, str]]]] = {
    "as OpenAI sends them": (calls(("a", {"x": 1}), ("b", {"y": 2})), [("a", '{"x": 1}'), ("b", '{"y": 2}')]),
    "whole": (stream(call(ONE, "a", "i", 0), call(TWO, "b", "j", 1), finish="tool_calls"), BOTH),
    "interleaved": (
        stream(
            *(call("", "a", "i", 0), call("", "b", "j", 1), call(ONE[:3], index=0), call(TWO[:2], index=1)),
            *(call(ONE[3:], index=0), call(TWO[2:], index=1)),
            finish="tool_calls",
        ),
        BOTH,
    ),
    "without index": (stream(call(ONE, "a", "i"), call(TWO, "b", "j"), finish="tool_calls"), BOTH),
    "without index, in pieces": (
        stream(call("", "a", "i"), call(ONE), call("", "b", "j"), call(TWO), finish="tool_calls"),
        BOTH,
    ),
    "one index for both": (stream(call(ONE, "a", "i", 0), call(TWO, "b", "j", 0), finish="tool_calls"), BOTH),
    "without id": (stream(call(ONE, "a", None, 0), call(TWO, "b", None, 1), finish="tool_calls"), BOTH),
    "without id and index": (stream(call(ONE, "a"), call(TWO, "b"), finish="tool_calls"), BOTH),
    "both in one chunk": (
        stream(
            delta(tool_calls=[{"index": n, "id": f"i{n}", "function": {"name": name, "arguments": raw}}
                              for n, (name, raw) in enumerate(BOTH)]),
            finish="tool_calls",
        ),
        BOTH,
    ),
    "ended with stop": (stream(call(ONE, "a", "i", 0), call(TWO, "b", "j", 1), finish="stop"), BOTH),
    "arguments as an object": (stream(call({"x": 1}, "a", "i", 0), finish="tool_calls"), [("a", '{"x": 1}')]),
    "no arguments": (stream(call("", "a", "i", 0), finish="tool_calls"), [("a", "")]),
    "broken arguments": (stream(call("{x", "a", "i", 0), finish="tool_calls"), [("a", "{x")]),
    "the old single call": (
        stream(delta(function_call={"name": "a", "arguments": ONE}), finish="function_call"),
        [("a", ONE)],
    ),
}  # fmt: skip

CONTEXT = "This model's maximum context length is 8192 tokens."
BOOM = Raw('data: {"error":{"message":"boom","type":"server_error","code":500}}\n\n')
OVER = Raw(f"data: {json.dumps(refusal(CONTEXT, 'context_length_exceeded'))}\n\n")
BAD = Raw('data: {"choices": [{"del\n\n')
SOME = delta(content="some")

FAILURES: dict[str, tuple[Reply, ErrorKind, str]] = {
    "400 context": (error(400, refusal(CONTEXT, "context_length_exceeded")), "overflow", "8192"),
    "400 context of llama.cpp": (
        error(400, {"error": {"code": 400, "message": "the request exceeds the available context size", "type": "x"}}),
        "overflow",
        "available context",
    ),
    "400 context of Ollama": (
        error(400, {"error": "input length exceeds maximum context length"}),
        "overflow",
        "input",
    ),
    "413": (error(413, refusal("Request too large")), "overflow", "too large"),
    "context in the stream": (stream(SOME, OVER, finish=None), "overflow", "8192"),
    "400 of Ollama": (error(400, {"error": "this model does not support tools"}), "invalid", "does not support tools"),
    "400 with detail": (error(400, {"detail": "no such thing"}), "invalid", "no such thing"),
    "401": (error(401, refusal("Incorrect API key provided: sk-loopback-0123456789")), "auth", r"\*\*\*"),
    "402": (error(402, refusal("pay")), "quota", "pay"),
    "403": (error(403, refusal("not yours")), "auth", "not yours"),
    "404": (error(404, refusal("no such model", "model_not_found")), "invalid", "no such model"),
    "408": (error(408, refusal("slow")), "retry", "slow"),
    "409": (error(409, refusal("conflict")), "retry", "conflict"),
    "422": (error(422, refusal("field required")), "invalid", "field required"),
    "429": (error(429, refusal("slow down", "rate_limit_exceeded"), retry_after="7"), "retry", "slow down"),
    "429 quota": (error(429, refusal("You exceeded your current quota", "insufficient_quota")), "quota", "quota"),
    "429 tokens a minute": (
        error(429, refusal("Request too large for tokens per min (TPM)", "rate_limit_exceeded")),
        "retry",
        "TPM",
    ),
    "500": (error(500, refusal("oops")), "retry", "oops"),
    "500 without a text": (error(500, ""), "retry", "."),
    "500 in HTML": (error(500, "<html><h1>Bad gateway</h1></html>"), "retry", "^Bad gateway"),
    "501": (error(501, refusal("never")), "invalid", "never"),
    "502": (error(502, refusal("gateway")), "retry", "gateway"),
    "503": (error(503, refusal("overloaded")), "retry", "overloaded"),
    "529": (error(529, refusal("overloaded")), "retry", "overloaded"),
    "closed before the headers": (Reply(before=(Cut(),)), "retry", "Connection error.*127.0.0.1"),
    "reset before the headers": (Reply(before=(Reset(),)), "retry", "Connection error"),
    "an error first in the stream": (Reply(steps=(BOOM,)), "retry", "boom"),
    "an error in the stream": (stream(SOME, BOOM, finish=None), "incomplete", "boom"),
    "broken JSON in the stream": (stream(SOME, BAD, finish=None), "incomplete", "."),
    "reset in the stream": (Reply(steps=(SOME, Reset())), "incomplete", "."),
    "cut in the stream": (Reply(steps=(SOME, Cut())), "incomplete", "."),
    "an end without a reason": (Reply(steps=(SOME,)), "incomplete", "finish_reason"),
    "an end mark without a reason": (Reply(steps=(SOME, DONE)), "incomplete", "finish_reason"),
    "cut in a call": (Reply(steps=(call('{"x', "a", "i", 0), Cut())), "incomplete", "."),
}

SLOW: dict[str, tuple[tuple[Step, ...], tuple[Step, ...], ErrorKind, str]] = {
    "no headers": ((Hold(),), (), "retry", "sent nothing for 0.4 s"),
    "no first chunk": ((), (Hold(),), "retry", "sent nothing for 0.4 s"),
    "no next chunk": ((), (SOME, Hold()), "incomplete", "stopped sending for 0.3 s"),
    "no end": ((), (SOME, *(Sleep(0.1), delta(content="more")) * 40), "incomplete", "not complete after 1 s"),
    "no first word": ((), (delta(role="assistant", content=""), Hold()), "retry", "sent nothing for 0.4 s"),
}


def anthropic(*events: tuple[str, dict[str, Any]]) -> Reply:
    """Return a stream in the form of Anthropic's messages."""
    return Reply(
        steps=tuple(Raw(f"event: {type}\ndata: {json.dumps({'type': type} | data)}\n\n") for type, data in events)
    )


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of one block of content."""
    pieces = [("content_block_delta", {"index": index, "delta": piece}) for piece in deltas]
    return [
        ("content_block_start", {"index": index, "content_block": start}),
        *pieces,
        ("content_block_stop", {"index": index}),
    ]


INPUT = {"input_tokens": 100, "cache_read_input_tokens": 40, "cache_creation_input_tokens": 10, "output_tokens": 1}
OPENED: dict[str, Any] = {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "claude"}
STARTED: tuple[str, dict[str, Any]] = ("message_start", {"message": OPENED | {"stop_reason": None, "usage": INPUT}})
CLAUDE = "anthropic/claude-sonnet-4-5"


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
TOO_LONG = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}}
HALF = (STARTED, *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "half"}))
