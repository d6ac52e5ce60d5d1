"""Transcripts: which results are owed, and what is repaired for the model after a crash."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from hub.domain.messages import (
    Message,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    open_calls,
    repaired,
    user_message,
)


def call(number: int) -> ToolCallPart:
    return ToolCallPart(f"call_{number}", "editor", {"n": number})


def result(number: int, text: str = "done") -> Message:
    return Message("tool", (ToolResultPart(f"call_{number}", "editor", "completed", text),))


def assistant(*numbers: int) -> Message:
    return Message("assistant", (TextPart("I will."), *(call(number) for number in numbers)), id=f"msg_{numbers}")


@st.composite
def whole(draw: Any) -> list[Message]:
    """A transcript that keeps the invariant; call ids are unique in it."""
    messages: list[Message] = []
    number = 0
    for size in draw(st.lists(st.none() | st.integers(0, 3), max_size=8)):
        if size is None:
            messages.append(user_message(f"prompt {len(messages)}", id=f"msg_{len(messages)}"))
            continue
        numbers = range(number, number + size)
        number += size
        messages.append(assistant(*numbers))
        messages.extend(result(one, f"text {one}") for one in numbers)
    return messages


@st.composite
def damaged(draw: Any) -> list[Message]:
    """A transcript whose results are lost, moved, repeated, or belong to no call."""
    messages: list[Message] = []
    for message in draw(whole()):
        copies = draw(st.sampled_from([1, 1, 0, 2])) if message.role == "tool" else 1
        messages.extend([message] * copies)
    results = [message for message in messages if message.role == "tool"]
    for stray in [*draw(st.lists(st.sampled_from(results), max_size=2) if results else st.just([])), result(999)]:
        messages.insert(draw(st.integers(0, len(messages))), stray)
    return messages


def conversation(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.role != "tool"]


@given(whole())
def test_a_whole_transcript_is_left_as_it_is(messages: list[Message]) -> None:
    assert repaired(messages) == messages
    assert open_calls(messages) == ()


@given(damaged())
def test_repair_gives_each_call_one_result_right_after_it(messages: list[Message]) -> None:
    mended = repaired(messages)
    expected = []
    for message in conversation(messages):
        expected.append(("message", message.id))
        expected.extend(("result", one.id) for one in message.calls)
    shape = [
        ("result", message.results[0].call_id) if message.role == "tool" else ("message", message.id)
        for message in mended
    ]
    assert shape == expected
    assert all(len(message.results) == 1 for message in mended if message.role == "tool")


@given(damaged())
def test_repair_keeps_what_was_said_and_every_result_there_is(messages: list[Message]) -> None:
    mended = repaired(messages)
    there = {one.call_id: one for message in messages for one in message.results}
    assert conversation(mended) == conversation(messages)
    for message in mended:
        for one in message.results:
            assert one == there.get(one.call_id, one)
            assert (one.state == "unknown") == (one.call_id not in there)
            assert one.state != "unknown" or "unknown" in one.text


@given(damaged())
def test_repairing_twice_changes_nothing_more(messages: list[Message]) -> None:
    mended = repaired(messages)
    assert repaired(mended) == mended
    assert open_calls(mended) == ()


@given(whole(), st.integers(0, 60))
def test_a_transcript_cut_anywhere_owes_exactly_what_is_missing(messages: list[Message], cut: int) -> None:
    begun = messages[:cut]
    owed = {one.id for message in begun for one in message.calls}
    owed -= {one.call_id for message in begun for one in message.results}
    assert [one.id for one in open_calls(begun)] == sorted(owed, key=lambda id: int(id.removeprefix("call_")))


def test_open_calls_come_in_call_order_whatever_order_results_come_in() -> None:
    messages = [user_message("go"), assistant(0, 1, 2), result(1)]
    assert open_calls(messages) == (call(0), call(2))
    assert open_calls([*messages, result(2)]) == (call(0),)


def test_calls_of_an_earlier_answer_are_not_owed_now() -> None:
    assert open_calls([assistant(0), user_message("go on"), assistant()]) == ()
    assert open_calls([]) == ()
    assert open_calls([user_message("go")]) == ()


def test_a_result_of_several_parts_is_split_in_call_order() -> None:
    both = Message("tool", (*result(1).parts, *result(0).parts))
    assert repaired([assistant(0, 1), both]) == [assistant(0, 1), result(0), result(1)]


@given(whole())
def test_messages_survive_json(messages: list[Message]) -> None:
    assert msgspec.json.decode(msgspec.json.encode(messages), type=list[Message]) == messages


def test_views_of_a_message() -> None:
    message = Message("assistant", (TextPart("one "), call(0), TextPart("two")))
    assert (message.text, message.calls, message.results) == ("one two", (call(0),), ())
    assert [part.ok for part in result(0).results] == [True]
    assert not ToolResultPart("call_0", "editor", "failed", "").ok


def test_calls_that_an_ended_run_left_open_are_not_owed_to_the_next_one() -> None:
    left = Message("assistant", (ToolCallPart("call_1", "editor", {}),), "m2", "run_1")
    assert [call.id for call in open_calls([user_message("do it"), left])] == ["call_1"]
    assert open_calls([user_message("do it"), left, user_message("something else")]) == ()
    assert [message.role for message in repaired([left, user_message("go on")])] == ["assistant", "tool", "user"]
