"""Arguments as models write them: read, mended where that is safe, else refused in words."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.agent.arguments import parse_arguments, repaired_json

GOOD = [
    ("", {}),
    ("  \n", {}),
    ("{}", {}),
    ('{"a": [1, {"b": null}]}', {"a": [1, {"b": None}]}),
    ('{"text": "two\nlines"}', {"text": "two\nlines"}),
    ("{'a': 'it''s'}", None),
    ("{'a': 'say \"hi\"'}", {"a": 'say "hi"'}),
    (r"{'a': 'it\'s \\ done'}", {"a": "it's \\ done"}),
    ("""{'a': "it's"}""", {"a": "it's"}),
    ('{"commands": ["ls"', {"commands": ["ls"]}),
    ('{"a": {"b": ["c"]', {"a": {"b": ["c"]}}),
    ("{'a': ['b'", {"a": ["b"]}),
    (r'"{\"a\": 1}"', {"a": 1}),
]
CUT_SHORT = [
    '{"commands": ["rm -rf /tmp/x',
    '{"a": "b\\"',
    '{"timeout_s": 6',
    '{"a": tru',
    '{"a": true',
    '{"a": "b",',
    '{"a":',
    "{",
    '{"files": [',
    "{'a': 'b",
]
WRONG = [
    '{"a": 1}}',
    '{"a": [1}',
    '{"a": 1}{"a": 2}',
    "{a: 1}",
    "rm -rf",
    '{"a": NaN}',
    '{"a": "\\ud800"}',
    "[" * 100_000,
]
NOT_OBJECTS = ["[1]", '"text"', "3", "null", '"[1]"']


@pytest.mark.parametrize(("raw", "value"), [(raw, value) for raw, value in GOOD if value is not None])
def test_readable(raw: str, value: dict[str, object]) -> None:
    assert parse_arguments(raw) == value


@pytest.mark.parametrize("raw", CUT_SHORT + WRONG)
def test_unreadable(raw: str) -> None:
    problem = parse_arguments(raw)
    assert isinstance(problem, str)
    assert "not valid JSON" in problem
    assert len(problem) < 400


@pytest.mark.parametrize("raw", NOT_OBJECTS)
def test_not_an_object_is_said_otherwise(raw: str) -> None:
    problem = parse_arguments(raw)
    assert isinstance(problem, str)
    assert "one JSON object" in problem


@pytest.mark.parametrize("raw", ['{"commands": ["ls"', "{'a': 'b'}", "", '{"a": "b'])
def test_the_last_call_of_a_cut_answer_is_never_mended(raw: str) -> None:
    problem = parse_arguments(raw, cut=True)
    assert isinstance(problem, str)
    assert "cut off" in problem


def test_a_call_that_was_complete_before_the_cut_is_read() -> None:
    assert parse_arguments('{"commands": ["ls"]}', cut=True) == {"commands": ["ls"]}


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner, max_size=3)
    ),
    max_leaves=8,
)
objects = st.dictionaries(st.text(st.characters(codec="utf-8")), values, max_size=4)


@settings(deadline=None)
@given(objects)
def test_what_was_valid_stays_as_it_is(value: dict[str, object]) -> None:
    raw = json.dumps(value)
    assert parse_arguments(raw) == value
    assert repaired_json(raw) == raw


@settings(deadline=None)
@given(objects, st.data())
def test_a_cut_never_changes_a_string_that_is_kept(value: dict[str, object], data: st.DataObject) -> None:
    raw = json.dumps(value)
    cut = raw[: data.draw(st.integers(1, len(raw)))]
    mended = parse_arguments(cut)
    if isinstance(mended, dict):
        assert _within(mended, value)


def _within(part: object, whole: object) -> bool:
    """Say whether `part` is `whole` with members left out at the end, and nothing changed."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _within(item, whole[key]) for key, item in part.items())
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) <= len(whole) and all(map(_within, part, whole))
    return type(part) is type(whole) and part == whole
