"""What comes out of the real worker for all that a server may do: one row for each way, one worker for all rows.

Each row is asked once, without retries, so that what a single request comes to is seen.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hub.agent.model import CallDelta, ErrorKind, Finish, ModelError, ModelPart, ModelRequest, Notice, UsageReport
from hub.agent.remote import LitellmModel, ModelSettings, WorkerProcess
from hub.agent.retry import Answer, Draft, ask
from hub.domain.messages import Message, TextPart, ToolCallPart, user_message
from tests.agent.given import TOOL, request
from tests.agent.replies import (
    CALLS,
    CLAUDE,
    FAILURES,
    HALF,
    KEY,
    ONE,
    OVERLOADED,
    SLOW,
    SOME,
    STARTED,
    TOO_LONG,
    WORDS,
    anthropic,
    block,
)
from tests.stub_openai import (
    Cut,
    Hold,
    Reply,
    Step,
    StubServer,
    call,
    delta,
    error,
    refusal,
    stream,
    text,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


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
        assert shown == "ab"
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
