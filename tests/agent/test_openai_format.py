"""A conversation in the form of chat completions: what is sent for what, and that earlier bytes never change."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hub.agent.openai_format import chat_body, chat_messages
from hub.domain.messages import Message, TextPart, ToolCallPart, ToolResultPart, user_message
from tests.agent.given import request


def call(id: str, name: str = "read_files", **arguments: Any) -> ToolCallPart:
    return ToolCallPart(id, name, arguments)


def result(id: str, text: str, state: str = "completed") -> Message:
    return Message("tool", (ToolResultPart(id, "read_files", state, text),))


def test_a_conversation() -> None:
    messages = [
        user_message("read it"),
        Message("assistant", (TextPart("I "), TextPart("look."), call("c1", paths=["ä"]), call("c2"))),
        result("c1", "content"),
        result("c2", "no", "failed"),
        Message("assistant", (TextPart("done"),)),
    ]
    assert chat_messages("sys", messages) == [
        {"role": "system", "content": "sys"},
        {"role": "user", "content": "read it"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read_files", "arguments": '{"paths":["ä"]}'}},
                {"id": "c2", "type": "function", "function": {"name": "read_files", "arguments": "{}"}},
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "content"},
        {"role": "tool", "tool_call_id": "c2", "content": "no"},
        {"role": "assistant", "content": "done"},
    ]


def test_a_call_that_a_crash_left_open_gets_a_result() -> None:
    rows = chat_messages("", [user_message("x"), Message("assistant", (call("c1"),)), user_message("on")])
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "user"]
    assert (rows[1]["content"], "unknown" in rows[2]["content"]) == (None, True)


def test_names_that_a_model_made_up_are_ones_that_providers_accept() -> None:
    calls = (call("c1", ""), call("c2", "do this!"), call("c3", "x" * 80))
    names = [entry["function"]["name"] for entry in chat_messages("", [Message("assistant", calls)])[0]["tool_calls"]]
    assert names == ["unnamed", "do_this_", "x" * 64]


def test_tools_are_sent_when_there_are_any() -> None:
    asked = request("hi")
    body = chat_body(asked)
    assert body["tools"][0]["function"] == {
        "name": "read_files",
        "description": "Read files.",
        "parameters": asked.tools[0].parameters,
    }
    bare = type(asked)("", [user_message("hi")], [], 0)
    assert chat_body(bare) == {"messages": [{"role": "user", "content": "hi"}]}


words = st.text(st.characters(codec="utf-8"), max_size=8)
arguments = st.dictionaries(words, words | st.integers() | st.lists(words, max_size=2), max_size=2)


@st.composite
def turns(draw: st.DrawFn) -> list[Message]:
    """A transcript that a run may leave: answers, each with all its results, between users' messages."""
    messages: list[Message] = []
    for turn in range(draw(st.integers(1, 5))):
        messages.extend(user_message(text) for text in draw(st.lists(words, min_size=turn == 0, max_size=2)))
        ids = [f"call_{turn}_{number}" for number in range(draw(st.integers(0, 3)))]
        calls = [ToolCallPart(id, draw(words), draw(arguments)) for id in ids]
        messages.append(Message("assistant", (TextPart(draw(words)), *calls)))
        results = [Message("tool", (ToolResultPart(id, "t", "completed", draw(words)),)) for id in ids]
        messages.extend(draw(st.permutations(results)))
    return messages


@settings(deadline=None)
@given(turns(), st.data())
def test_a_later_request_begins_with_the_bytes_of_an_earlier_one(messages: list[Message], data: st.DataObject) -> None:
    whole = [at for at in range(1, len(messages) + 1) if at == len(messages) or messages[at].role != "tool"]
    earlier = messages[: data.draw(st.sampled_from(whole))]
    first, second = json.dumps(chat_messages("sys", earlier)), json.dumps(chat_messages("sys", messages))
    assert second.startswith(first.removesuffix("]"))


@settings(deadline=None)
@given(turns(), st.data())
def test_every_call_is_sent_with_one_result_right_after_it(messages: list[Message], data: st.DataObject) -> None:
    kept = data.draw(st.lists(st.sampled_from(messages), unique_by=id, max_size=len(messages)))
    rows = chat_messages("", [message for message in messages if message in kept])
    at = 0
    while at < len(rows):
        assert rows[at]["role"] != "tool"
        ids = [entry["id"] for entry in rows[at].get("tool_calls", ())]
        assert [row.get("tool_call_id") for row in rows[at + 1 : at + 1 + len(ids)]] == ids
        at += 1 + len(ids)
