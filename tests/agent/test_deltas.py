"""Streams made orderly: calls told apart however a server numbers them, characters whole, neighbours joined."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.agent.deltas import Batch, CallSplitter, Mender, ObjectScanner, Piece, mended
from hub.agent.model import CallDelta, Finish, ModelPart, ReasoningDelta, TextDelta

ONE, TWO = '{"x":1}', '{"y":[{"z":"}"}]}'
CASES = {
    "by index": [Piece(0, "i", "a"), Piece(0, None, None, ONE), Piece(1, "j", "b"), Piece(1, None, None, TWO)],
    "interleaved": [
        *(Piece(0, "i", "a"), Piece(1, "j", "b"), Piece(0, None, None, ONE[:3])),
        *(Piece(1, None, None, TWO[:4]), Piece(0, None, None, ONE[3:]), Piece(1, None, None, TWO[4:])),
    ],
    "same index, other id": [Piece(0, "i", "a", ONE), Piece(0, "j", "b", TWO)],
    "same index, other id, then pieces": [
        *(Piece(0, "i", "a"), Piece(0, None, None, ONE), Piece(0, "j", "b"), Piece(0, None, None, TWO)),
    ],
    "no index": [Piece(None, "i", "a", ONE), Piece(None, "j", "b", TWO)],
    "no index, pieces": [Piece(None, "i", "a"), Piece(None, None, None, ONE), Piece(None, "j", "b", TWO)],
    "no id": [Piece(0, None, "a", ONE), Piece(1, None, "b", TWO)],
    "no id, same index": [Piece(0, None, "a", ONE), Piece(0, None, "b", TWO)],
    "neither": [Piece(None, None, "a", ONE), Piece(None, None, "b", TWO)],
    "id and name repeated": [
        *(Piece(0, "i", "a", ONE[:2]), Piece(0, "i", "a", ONE[2:]), Piece(0, "i", "a"), Piece(1, "j", "b", TWO)),
    ],
    "one id for both": [Piece(0, "i", "a", ONE), Piece(0, "i", "b", TWO)],
    "id comes late": [Piece(0, None, "a"), Piece(0, "i", None, ONE), Piece(1, None, "b", TWO)],
    "trailing blanks": [Piece(0, "i", "a", ONE), Piece(0, None, None, " \n"), Piece(0, "j", "b", TWO), Piece(0)],
}


def joined(pieces: list[Piece]) -> list[tuple[str, str]]:
    splitter, calls = CallSplitter(), dict[int, tuple[str, str]]()
    for piece in pieces:
        part = splitter.feed(piece)
        if part is not None:
            name, arguments = calls.get(part.index, ("", ""))
            calls[part.index] = (name or part.name, arguments + part.arguments)
    assert splitter.count == len(calls)
    return [calls[index] for index in range(len(calls))]


@pytest.mark.parametrize("pieces", CASES.values(), ids=list(CASES))
def test_calls_are_told_apart(pieces: list[Piece]) -> None:
    assert [(name, arguments.strip()) for name, arguments in joined(pieces)] == [("a", ONE), ("b", TWO)]


def test_two_calls_of_one_tool_without_numbers_are_two() -> None:
    pieces = [Piece(0, None, "a", ONE), Piece(0, None, "a", TWO)]
    assert joined(pieces) == [("a", ONE), ("a", TWO)]


def test_a_call_without_arguments_then_another() -> None:
    assert joined([Piece(0, None, "a"), Piece(0, None, "b")]) == [("a", ""), ("b", "")]


def test_a_piece_that_says_nothing_is_no_call() -> None:
    assert joined([Piece(), Piece(0, None, None, " ")]) == []


def test_a_character_cut_in_two_within_arguments() -> None:
    assert joined([Piece(0, "i", "a", '{"x":"\ud83d'), Piece(0, None, None, '\ude00"}')]) == [("a", '{"x":"😀"}')]


@settings(deadline=None)
@given(st.lists(st.text(), max_size=4), st.data())
def test_one_call_in_any_pieces_stays_one(words: list[str], data: st.DataObject) -> None:
    raw = json.dumps({"words": words}, ensure_ascii=False)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=5)))
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert joined([Piece(0, "i", "a"), *(Piece(0, None, None, piece) for piece in pieces)]) == [("a", mended(raw))]


@settings(deadline=None)
@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_an_object_is_complete_at_its_end_and_not_before(value: object) -> None:
    raw, scanner = json.dumps({"value": value}), ObjectScanner()
    scanner.feed(raw[:-1])
    assert not scanner.complete
    scanner.feed(raw[-1])
    assert scanner.complete


@settings(deadline=None)
@given(st.text(st.characters()), st.data())
def test_mended_pieces_are_the_mended_text(text: str, data: st.DataObject) -> None:
    units = text.encode("utf-16-le", "surrogatepass")
    halves = "".join(chr(int.from_bytes(units[at : at + 2], "little")) for at in range(0, len(units), 2))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(halves)), max_size=5)))
    mender = Mender()
    out = [mender.feed(halves[start:end]) for start, end in zip([0, *cuts], [*cuts, len(halves)], strict=True)]
    whole = "".join(out) + mender.end()
    assert whole == mended(text)
    assert whole.encode().decode() == whole


def test_neighbours_of_one_kind_are_joined_in_order() -> None:
    batch = Batch()
    for part in (
        *(TextDelta("a"), TextDelta("b"), ReasoningDelta("c"), ReasoningDelta("d"), TextDelta("e")),
        *(
            CallDelta(0, "x"),
            CallDelta(0, "", "{"),
            CallDelta(0, "", "}"),
            CallDelta(1, "y", "1"),
            CallDelta(1, "", "2"),
        ),
        Finish("stop"),
    ):
        batch.add(part)
    expected: list[ModelPart] = [TextDelta("ab"), ReasoningDelta("cd"), TextDelta("e"), CallDelta(0, "x", "{}")]
    assert list(batch.take()) == [*expected, CallDelta(1, "y", "12"), Finish("stop")]
    assert list(batch.take()) == []
