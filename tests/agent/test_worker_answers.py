"""What comes out of the real worker for all that a server may do: one row for each way, one worker for all rows.

Each row is asked once, without retries, so that what a single request comes to is seen.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hub.agent.model import CallDelta, ErrorKind, Finish, ModelError, ModelPart, ModelRequest, Notice, UsageReport
from hub.agent.remote import LitellmModel, ModelSettings, WorkerProcess
from hub.agent.retry import Answer, Draft, ask
from hub.domain.messages import Message, TextPart, ToolCallPart, user_message
from hub.settings import Secret
from tests.agent.given import TOOL, request
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
    StubServer,
    call,
    calls,
    delta,
    error,
    refusal,
    stream,
    text,
    usage_chunk,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

KEY = Secret("sk-loopback-0123456789")
TOLD = UsageReport(12, 5, None, None)
ONE, TWO = '{"x":1}', '{"y":2}'
BOTH = [("a", ONE), ("b", TWO)]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[WorkerProcess]:
    process = WorkerProcess({"PATH": "/usr/bin:/bin"}, [KEY], cwd=tmp_path_factory.mktemp("worker"))
    process.start()
    yield process
    await process.close()


def model(worker: WorkerProcess, stub: StubServer, name: str = "openai/stub", **limits: float) -> LitellmModel:
    settings = ModelSettings(name=name, api_base=stub.api_base, api_key=KEY, **limits)  # type: ignore[arg-type]
    return LitellmModel(worker, settings)


async def once(asked: LitellmModel, question: ModelRequest | None = None) -> tuple[Answer, list[ModelPart]]:
    """Return one attempt's answer and its parts. Raises ModelError."""
    draft, parts = Draft(), []
    async for part in asked.stream(question or request()):
        draft.add(part)
        parts.append(part)
    return draft.answer(draft.usage, 1), parts


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


@pytest.mark.parametrize(("reply", "expected"), WORDS.values(), ids=list(WORDS))
async def test_words(worker: WorkerProcess, reply: Reply, expected: Answer) -> None:
    async with StubServer([reply]) as stub:
        answer, parts = await once(model(worker, stub))
    assert answer == expected
    assert [part for part in parts if isinstance(part, Finish)] == parts[-1:]


@pytest.mark.parametrize(("reply", "expected"), CALLS.values(), ids=list(CALLS))
async def test_calls(worker: WorkerProcess, reply: Reply, expected: list[tuple[str, str]]) -> None:
    async with StubServer([reply]) as stub:
        answer, parts = await once(model(worker, stub))
    assert (answer.calls, answer.finish) == (expected, "tool_calls")
    assert [part.name for part in parts if isinstance(part, CallDelta) and part.name] == [name for name, _ in expected]


async def test_a_call_that_was_cut_is_known_by_the_end(worker: WorkerProcess) -> None:
    async with StubServer([stream(call('{"x', "a", "i", 0), finish="length")]) as stub:
        answer, _ = await once(model(worker, stub))
    assert (answer.calls, answer.finish) == ([("a", '{"x')], "length")


@pytest.mark.parametrize(("reply", "kind", "words"), FAILURES.values(), ids=list(FAILURES))
async def test_failures(worker: WorkerProcess, reply: Reply, kind: ErrorKind, words: str) -> None:
    async with StubServer([reply]) as stub:
        with pytest.raises(ModelError, match=words) as caught:
            await once(model(worker, stub))
        assert len(stub.exchanges) == 1
    assert caught.value.kind == kind
    assert KEY.reveal() not in caught.value.message
    assert caught.value.retry_after_s == (7 if "retry-after" in reply.headers else None)


async def test_nobody_listens(worker: WorkerProcess) -> None:
    async with StubServer([text("x")]) as stub:
        gone = model(worker, stub)
    with pytest.raises(ModelError, match="Connection error") as caught:
        await once(gone)
    assert caught.value.kind == "retry"


SLOW: dict[str, tuple[tuple[Step, ...], tuple[Step, ...], ErrorKind, str]] = {
    "no headers": ((Hold(),), (), "retry", "sent nothing for 0.4 s"),
    "no first chunk": ((), (Hold(),), "retry", "sent nothing for 0.4 s"),
    "no next chunk": ((), (SOME, Hold()), "incomplete", "stopped sending for 0.3 s"),
    "no end": ((), (SOME, *[Sleep(0.1), delta(content="more")] * 40), "incomplete", "not complete after 1 s"),
    "no first word": ((), (delta(role="assistant", content=""), Hold()), "retry", "sent nothing for 0.4 s"),
}


@pytest.mark.parametrize(("before", "steps", "kind", "words"), SLOW.values(), ids=list(SLOW))
async def test_deadlines(
    worker: WorkerProcess, before: tuple[Step, ...], steps: tuple[Step, ...], kind: ErrorKind, words: str
) -> None:
    async with StubServer([Reply(before=before, steps=steps)]) as stub:
        with pytest.raises(ModelError, match=words) as caught:
            await once(model(worker, stub, first_token_s=0.4, chunk_s=0.3, total_s=1.0))
        assert caught.value.kind == kind
        async with asyncio.timeout(10):
            await stub.exchanges[0].abandoned.wait()


async def test_what_is_sent(worker: WorkerProcess) -> None:
    async with StubServer([text("x")]) as stub:
        await once(model(worker, stub, "openai/some/model"), request("ä"))
        sent = stub.exchanges[0]
    assert sent.path == "/v1/chat/completions"
    assert sent.headers["authorization"] == f"Bearer {KEY.reveal()}"
    assert sent.body == {
        "model": "some/model",
        "messages": [{"role": "system", "content": "You are a test."}, {"role": "user", "content": "ä"}],
        "tools": [{"type": "function", "function": {"name": TOOL.name, "description": TOOL.description,
                                                    "parameters": TOOL.parameters}}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }  # fmt: skip


async def test_a_later_request_begins_with_the_bytes_of_an_earlier_one(worker: WorkerProcess) -> None:
    first = [user_message("one"), Message("assistant", (TextPart("hm"), ToolCallPart("c1", "a", {"x": ["ä", 1]})))]
    second = [*first, user_message("two")]
    async with StubServer([text("x")]) as stub:
        for messages in (first, second):
            await once(model(worker, stub), ModelRequest("sys", messages, [], 0))
        bodies = [exchange.raw for exchange in stub.exchanges]
    common = bodies[0][: bodies[0].index(b"]", bodies[0].rindex(b'"role"'))]
    assert b"unknown" in common
    assert bodies[1].startswith(common)


async def test_no_key_and_no_tools(worker: WorkerProcess) -> None:
    async with StubServer([text("x")]) as stub:
        keyless = LitellmModel(worker, ModelSettings(name="openai/stub", api_base=stub.api_base))
        answer, _ = await once(keyless, ModelRequest("", [user_message("hi")], [], 0))
        sent = stub.exchanges[0]
    assert answer.text == "x"
    assert KEY.reveal() not in sent.headers["authorization"]
    assert "tools" not in sent.body


@pytest.mark.parametrize(("name", "kind"), [("nonsense", "invalid"), ("nobody/nothing", "invalid")])
async def test_a_name_that_no_provider_has(worker: WorkerProcess, name: str, kind: str) -> None:
    with pytest.raises(ModelError, match=r"(?i)provider") as caught:
        await once(LitellmModel(worker, ModelSettings(name=name)))
    assert caught.value.kind == kind


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


STARTED = ("message_start", {"message": {"id": "m", "type": "message", "role": "assistant", "content": [],
           "model": "claude", "stop_reason": None, "usage": {"input_tokens": 100, "cache_read_input_tokens": 40,
           "cache_creation_input_tokens": 10, "output_tokens": 1}}})  # fmt: skip
CLAUDE = "anthropic/claude-sonnet-4-5"


async def claude(worker: WorkerProcess, stub: StubServer) -> tuple[Answer, list[ModelPart]]:
    base = stub.api_base.removesuffix("/v1")
    return await once(LitellmModel(worker, ModelSettings(name=CLAUDE, api_base=base, api_key=KEY)))


async def test_another_provider(worker: WorkerProcess) -> None:
    reply = anthropic(
        STARTED,
        *block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "hm"}),
        *block(1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "I look."}),
        *block(
            2,
            {"type": "tool_use", "id": "t1", "name": "a", "input": {}},
            *({"type": "input_json_delta", "partial_json": piece} for piece in ("", '{"x"', ":1}")),
        ),
        *block(3, {"type": "tool_use", "id": "t2", "name": "b", "input": {}}),
        ("message_delta", {"delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 30}}),
        ("message_stop", {}),
    )
    async with StubServer([reply]) as stub:
        answer, _ = await claude(worker, stub)
        sent = stub.exchanges[0]
    usage = UsageReport(150, 30, 40, None)
    assert answer == Answer("I look.", "hm", [("a", ONE), ("b", "")], "tool_calls", usage, 1)
    assert (sent.path, sent.headers["x-api-key"]) == ("/v1/messages", KEY.reveal())
    marked = {"cache_control": {"type": "ephemeral"}}
    assert marked.items() <= sent.body["system"][0].items()
    assert marked.items() <= sent.body["messages"][-1]["content"][-1].items()


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
TOO_LONG = {"type": "error", "error": {"type": "invalid_request_error", "message": "prompt is too long: 9 tokens > 8"}}
HALF = (STARTED, *block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "half"}))


@pytest.mark.parametrize(
    ("reply", "kind", "words"),
    [
        (error(529, OVERLOADED), "retry", "^Overloaded$"),
        (error(400, TOO_LONG), "overflow", "^prompt is too long"),
        (error(429, OVERLOADED, retry_after="3"), "retry", "Overloaded"),
        (anthropic(*HALF), "incomplete", "finish_reason"),
        (anthropic(*HALF, ("error", OVERLOADED)), "incomplete", "Overloaded"),
    ],
    ids=["529", "400 context", "429", "an end without a reason", "an error in the stream"],
)
async def test_failures_of_another_provider(worker: WorkerProcess, reply: Reply, kind: ErrorKind, words: str) -> None:
    async with StubServer([reply]) as stub:
        with pytest.raises(ModelError, match=words) as caught:
            await claude(worker, stub)
    assert caught.value.kind == kind
    assert caught.value.retry_after_s == (3 if reply.status == 429 else None)


async def test_many_at_once_are_kept_apart(worker: WorkerProcess) -> None:
    async def one(number: int) -> str:
        words = f"answer {number} " * 5
        async with StubServer([text(words, pieces=10, gap_s=0.01)]) as stub:
            answer, _ = await once(model(worker, stub))
        return answer.text

    answers = await asyncio.gather(*map(one, range(8)))
    assert answers == [f"answer {number} " * 5 for number in range(8)]


async def test_quick_pieces_come_together(worker: WorkerProcess) -> None:
    async with StubServer([text("x" * 600, pieces=600)]) as stub:
        answer, parts = await once(model(worker, stub))
    assert answer.text == "x" * 600
    assert len(parts) < 300


async def test_a_slow_piece_is_not_held_back(worker: WorkerProcess) -> None:
    async with StubServer([stream(delta(content="a"), delta(content="b"), Hold())]) as stub:
        shown = ""
        parts: Any = model(worker, stub).stream(request())
        async for part in parts:
            shown += getattr(part, "text", "") if not isinstance(part, Notice) else ""
            if shown == "ab":
                break
        await parts.aclose()
        async with asyncio.timeout(10):
            await stub.exchanges[0].abandoned.wait()


async def test_cancelling_closes_the_connection(worker: WorkerProcess) -> None:
    async with StubServer([stream(delta(content="a"), Hold()), Reply(before=(Hold(),))]) as stub:
        for number in (1, 2):
            task = asyncio.create_task(ask(model(worker, stub), request(), lambda part: None))
            exchange = await stub.asked(number)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async with asyncio.timeout(10):
                await exchange.abandoned.wait()
        assert len(stub.exchanges) == 2


async def test_a_retry_through_the_worker(worker: WorkerProcess) -> None:
    log: list[object] = []

    async def note(entry: object) -> None:
        log.append(entry)

    replies = [error(503, refusal("busy")), Reply(steps=(SOME, Cut())), stream(), text("whole")]
    async with StubServer(replies) as stub:
        answer = await ask(model(worker, stub), request(), lambda part: None, on_discard=note, sleep=note)
    assert (answer.text, answer.attempts, answer.usage) == ("whole", 4, UsageReport())
    assert [entry for entry in log if isinstance(entry, float)] == [1.0, 2.0, 0.25]
    assert len(log) == 4


async def test_a_fallback_through_the_worker(worker: WorkerProcess) -> None:
    async with StubServer([error(401, refusal("who are you?"))]) as first, StubServer([text("here")]) as second:
        other = ModelSettings(name="openai/other", api_base=second.api_base)
        settings = ModelSettings(name="openai/one", api_base=first.api_base, api_key=KEY, fallback=other)
        shown: list[ModelPart] = []
        answer = await ask(LitellmModel(worker, settings), request(), shown.append)
    assert (answer.text, answer.attempts) == ("here", 2)
    assert Notice("openai/one failed (auth); asking openai/other") in shown


async def test_what_a_large_request_needs(worker: WorkerProcess) -> None:
    large = "0123456789" * 300_000
    async with StubServer([text("x")]) as stub:
        await once(model(worker, stub), request(large))
        assert stub.exchanges[0].body["messages"][1]["content"] == large


async def test_a_request_beyond_the_limit_is_refused_here(worker: WorkerProcess, monkeypatch: Any) -> None:
    monkeypatch.setattr("hub.agent.remote.LINE_LIMIT", 1000)
    async with StubServer([text("x")]) as stub:
        with pytest.raises(ModelError, match="1000 are the limit") as caught:
            await once(model(worker, stub), request("x" * 2000))
        assert (caught.value.kind, stub.exchanges) == ("overflow", [])


async def test_settings_do_not_show_their_key(tmp_path: Path) -> None:
    settings = ModelSettings(name="openai/x", api_key=KEY)
    assert KEY.reveal() not in repr(settings)
    with pytest.raises(KeyError):
        LitellmModel(WorkerProcess({}, [], cwd=tmp_path), settings)
