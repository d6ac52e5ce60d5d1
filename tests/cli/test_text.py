"""Untrusted text: whatever comes in, nothing that could steer a terminal comes out."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.text import ago, arguments_text, clean, clean_line, clean_path, head, model_label, size, visible

CONTROLS = "\x00\x07\x08\x0b\x0c\r\x1b\x7f\x85\x9b\x9d\u061c\u200e\u202a\u202e\u2066\u2028\ufeff\ud800"
anything = st.text(st.characters() | st.sampled_from(CONTROLS + "[]0;m\\"), max_size=60)


def harmless(text: str, allowed: str) -> bool:
    """Return whether a terminal would only print this."""
    return all(char in allowed or (ord(char) >= 0x20 and char not in CONTROLS) for char in text)


@given(anything)
def test_clean_leaves_nothing_that_steers(text: str) -> None:
    assert harmless(clean(text), "\n\t")
    assert clean(clean(text)) == clean(text)


@given(anything)
def test_a_line_is_one_line(text: str) -> None:
    assert harmless(clean_line(text), "")
    assert harmless(clean_path(text), "")
    assert len(clean_line(text, 10)) <= 10


@given(anything)
def test_visible_hides_nothing(text: str) -> None:
    shown = visible(text)
    assert harmless(shown, "\n\t")
    assert len(shown) >= len(text)


@given(st.text(st.characters(categories=["L", "N", "P", "S"], exclude_characters="\ufeff"), max_size=40))
def test_plain_text_is_left_alone(text: str) -> None:
    assert clean(text) == visible(text) == clean_path(text) == text


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1bP$q\x1b\\a", "a"),
        ("\x9b2Ja", "a"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("a\x08\x08b", "ab"),
    ],
)
def test_sequences_vanish_whole(raw: str, shown: str) -> None:
    assert clean(raw) == shown


def test_what_is_decided_about_is_shown_with_its_escapes() -> None:
    shown = arguments_text({"commands": ["rm -rf x\x1b[2K\recho ok\u202e"], "n": 1})
    assert shown == "commands: \n  - rm -rf x\\x1b[2K\\recho ok\\u202e\nn: 1"


def test_arguments_are_not_written_as_a_program_would() -> None:
    shown = arguments_text({"edits": [{"path": "a.py", "all": True}], "limit": None, "none": [], "where": {"x": 1.5}})
    assert shown == "edits: \n  - \n    path: a.py\n    all: true\nlimit: null\nnone: []\nwhere: \n  x: 1.5"


def test_names_stay_distinct() -> None:
    assert clean_path("a\nb") == "a\\nb"
    assert clean_path("a\u200bb") != clean_path("ab")


def test_head() -> None:
    assert head("a\nb\nc", 2) == ("a\nb", 1)
    assert head("a", 2) == ("a", 0)


def test_a_scripted_model_is_called_what_it_is() -> None:
    assert model_label("scripted:/tmp/x/turns.yaml") == "scripted model (no AI): turns.yaml"
    assert model_label("openai/gpt") == "openai/gpt"


@pytest.mark.parametrize(
    ("at", "words"),
    [
        ("2026-01-01T00:00:00.000Z", "2 d ago"),
        ("2026-01-02T23:58:00.000Z", "2 min ago"),
        ("2026-01-03T00:00:00.000Z", "just now"),
        ("2026-01-03T05:00:00.000Z", "in 5 h"),
        (None, "-"),
    ],
)
def test_ago(at: str | None, words: str) -> None:
    assert ago(at, datetime(2026, 1, 3, tzinfo=UTC)) == words


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (3 << 19, "1.5 MiB"),
        (2 << 30, "2.0 GiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_sizes_for_people(count: int, words: str) -> None:
    assert size(count) == words
