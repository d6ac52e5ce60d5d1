"""Patterns mean the same to both engines: ripgrep itself is the judge, over patterns and files made to meet."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hub.agent.tools.base import ToolFailure
from hub.agent.tools.hits import Collector
from hub.agent.tools.patterns import portable
from hub.agent.tools.search_codebase import own_command, ripgrep_command

RIPGREP = shutil.which("rg")
needs_ripgrep = pytest.mark.skipif(RIPGREP is None, reason="ripgrep is not installed: there is nothing to compare with")

# The comparison: every kind of construct over lines that are made to be hit by it.
ALPHABET = "ab(){}[]. \\-_1\tA"
CLASSES = [
    "[ab]",
    "[^a]",
    "[a-c_]",
    "[]a]",
    "[^]a]",
    "[a-]",
    "[-a]",
    r"[\w-]",
    r"[^\s]",
    r"[\S]",
    r"[\W\d]",
    "[[:alpha:]]",
]
ESCAPES = [
    r"\(",
    r"\{",
    r"\.",
    r"\-",
    r"\/",
    r"\"",
    r"\t",
    r"\x61",
    r"\x{e9}",
    "\\u00e9",
    r"\w",
    r"\W",
    r"\d",
    r"\D",
    r"\s",
    r"\S",
]
ATOMS = st.sampled_from([*"ab1 é漢_-#&~/\"'<>%@,;:=!.^$]{}", r"\b", r"\B", *ESCAPES, *CLASSES])
QUANTIFIERS = st.sampled_from(["", "", "", "*", "+", "?", "*?", "{2}", "{1,2}", "{,2}", "{1,}"])
GROUPS = st.sampled_from(["(", "(?:", "(?P<n>", "(?<n>", "(?i:"])


def bigger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.tuples(GROUPS, inner, QUANTIFIERS).map(lambda parts: f"{parts[0]}{parts[1]}){parts[2]}")
    return st.one_of(group, st.tuples(inner, inner).map("".join), st.tuples(inner, inner).map("|".join))


PATTERNS = st.tuples(
    st.sampled_from(["", "", "(?i)"]),
    st.recursive(st.tuples(ATOMS, QUANTIFIERS).map("".join), bigger, max_leaves=6),
).map("".join)
CONTENTS = st.lists(
    st.sampled_from([*ALPHABET, "\n", "\n", "\r\n", "é", "É", "漢", "ab", "\x1c", "\x85", "\u3000"]), max_size=40
).map(lambda pieces: "".join(pieces).encode())
RAW = st.lists(st.sampled_from([b"a", b"\xff", b"\xc3", b"\n", "é".encode(), b" "]), max_size=20).map(b"".join)


def places(command: tuple[str, ...], folder: str) -> list[tuple[str, int, int]]:
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=60, check=False)
    assert done.returncode in (0, 1), done.stderr
    collector = Collector(10_000, lambda: None)
    collector.feed("stdout", done.stdout)
    collector.finish()
    return [(hit.path, hit.line, hit.column) for hit in collector.hits]


FILES = st.dictionaries(st.sampled_from(["a", "b/c", "b.x", "b/.d", "build/x"]), CONTENTS | RAW, min_size=1, max_size=4)


def compare(query: str, files: dict[str, bytes]) -> None:
    try:
        pattern = portable(query)
    except ToolFailure as failure:
        assert str(failure).strip()  # noqa: PT017
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).parent.mkdir(exist_ok=True)
            (Path(folder) / name).write_bytes(data)
        assert RIPGREP is not None
        assert places(own_command(pattern), folder) == places(ripgrep_command(RIPGREP, pattern), folder)


@needs_ripgrep
@given(PATTERNS, FILES)
@example("foo$", {"a": b"foo\r\nxfoo\nfoo x\n"})
@example("a*", {"a": b"\n\nb"})
@example("$", {"a": b"a"})
@example("b?$", {"a": b"a\n\nb"})
@example("", {"a": b"a\n"})
@example(r"\B", {"a": b"\n"})
@example("[^a]", {"a": b"\xff\n"})
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_both_engines_find_the_same_places(query: str, files: dict[str, bytes]) -> None:
    compare(query, files)


@needs_ripgrep
@pytest.mark.slow
@pytest.mark.timeout(900)
@given(PATTERNS, FILES)
@settings(max_examples=3_000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_both_engines_find_the_same_places_in_full(query: str, files: dict[str, bytes]) -> None:
    compare(query, files)


@given(PATTERNS)
def test_an_accepted_pattern_is_one_for_python(query: str) -> None:
    try:
        pattern = portable(query)
    except ToolFailure as failure:
        assert "quantifier" in str(failure) or "nothing before it" in str(failure)  # noqa: PT017
        return
    re.compile(pattern.python)


@given(st.text(max_size=20))
def test_any_text_is_a_pattern_or_is_refused_with_a_reason(query: str) -> None:
    try:
        pattern = portable(query)
    except ToolFailure as failure:
        assert str(failure).strip()  # noqa: PT017
        return
    re.compile(pattern.python)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"), max_size=10))
def test_an_escaped_text_matches_itself(text: str) -> None:
    query = "".join(f"\\{c}" if not (c.isalnum() or ord(c) > 127 or c in "_ \t") else c for c in text)
    assert re.search(portable(query).python, text) is not None


@pytest.mark.parametrize(
    ("query", "line", "matches"),
    [
        ("if (x) {", "if x {", True),
        ("a{2}", "aa", True),
        ("a{b}", "a{b}", True),
        ("a{,2}c", "c", True),
        ("x[", "", None),
        ("[[:digit:]]+", "12", True),
        ("[[:nope:]]", "", None),
        ("[z-a]", "", None),
        ("(?i)É", "é", True),
        ("(?ims)a.b", "A-B", True),
        ("(?P<name>a)", "a", True),
        ("(?P=name)", "", None),
        ("(?!a)", "", None),
        ("(?<=a)", "", None),
        ("(?>a)", "", None),
        (r"\1", "", None),
        (r"\pL", "", None),
        (r"\A", "", None),
        (r"\n", "", None),
        (r"\x0a", "", None),
        (r"\x{110000}", "", None),
        (r"\x4", "", None),
        ("a\nb", "", None),
        ("a++", "", None),
        ("a**", "", None),
        ("*a", "", None),
        ("a|*", "", None),
        ("^*", "", None),
        ("a{1001}", "", None),
        ("a{3,2}", "", None),
        ("a)", "", None),
        ("(" * 60 + ")" * 60, "", None),
        ("a" * 2_001, "", None),
        ("\\", "", None),
        ("[a", "", None),
    ],
)
def test_what_a_pattern_means(query: str, line: str, matches: bool | None) -> None:
    if matches is None:
        with pytest.raises(ToolFailure):
            portable(query)
    else:
        assert bool(re.search(portable(query).python, line)) == matches
