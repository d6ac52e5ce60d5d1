"""search_codebase: the same places with ripgrep and without, bounded output, nothing from outside the workspace."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.agent.tools.base import ToolContext, ToolFailure
from hub.agent.tools.hits import MAX_LINE, Collector
from hub.agent.tools.patterns import portable
from hub.agent.tools.search_codebase import (
    MAX_HITS,
    TEXT_LIMIT,
    SearchCodebase,
    own_command,
    trusted_ripgrep,
)

Context = Callable[..., ToolContext]
RIPGREP = shutil.which("rg")
needs_ripgrep = pytest.mark.skipif(RIPGREP is None, reason="ripgrep is not installed: there is nothing to compare with")
ENGINES = [pytest.param("auto", marks=needs_ripgrep), "own"]


@pytest.mark.parametrize(
    ("sent", "queries"),
    [
        ("a.b", ["a.b"]),
        (["a", "[b]"], ["a", "[b]"]),
        ({"queries": "a"}, ["a"]),
        ({"queries": ["a", "b"]}, ["a", "b"]),
        ({"queries": '["a", "b"]'}, ["a", "b"]),
        ("[a-z]+", ["[a-z]+"]),
    ],
)
def test_forms(sent: Any, queries: list[str]) -> None:
    canonical = SearchCodebase().normalise(sent)
    assert canonical == {"queries": queries}
    assert SearchCodebase().normalise(canonical) == canonical


@pytest.mark.parametrize("sent", [None, "", [], {}, [" "], {"queries": [5]}, {"query": "x"}, ["a"] * 21, "\ud800"])
def test_forms_that_are_refused(sent: Any) -> None:
    with pytest.raises(ToolFailure):
        SearchCodebase().normalise(sent)


def fill(root: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


async def search(context: ToolContext, *queries: str, engine: Any = "own") -> Any:
    tool = SearchCodebase(engine)
    return await tool.execute(tool.normalise({"queries": list(queries)}), context)


@pytest.mark.parametrize("engine", ENGINES)
async def test_hits_are_shown_with_the_lines_around_them(context: Context, root: Path, engine: str) -> None:
    lines = "\n".join(f"line {number}" for number in range(1, 31))
    fill(root, {"a.py": lines.encode(), "sub/b.txt": b"x\r\nline 5\r\ny", "c": b"nothing"})
    output = await search(context(), "line (5|9|20)$", engine=engine)
    assert output.ok
    assert output.text == (
        "'line (5|9|20)$': 4 matching lines\n"
        "a.py\n"
        " 3- line 3\n 4- line 4\n 5: line 5\n 6- line 6\n 7- line 7\n 8- line 8\n 9: line 9\n10- line 10\n11- line 11\n"
        "--\n"
        "18- line 18\n19- line 19\n20: line 20\n21- line 21\n22- line 22\n"
        "\n"
        "sub/b.txt\n"
        "1- x\n2: line 5\n3- y"
    )


@pytest.mark.parametrize("engine", ENGINES)
async def test_nothing_found_is_a_success(context: Context, root: Path, engine: str, recorder: Any) -> None:
    output = await search(context(), "absent", engine=engine)
    assert (output.ok, output.text) == (True, "'absent': no results")
    assert recorder.running == []
    assert len(recorder.events) == 2


@pytest.mark.parametrize("engine", ENGINES)
async def test_what_is_searched_and_what_is_not(context: Context, root: Path, engine: str) -> None:
    outside = root.parent / "secret"
    fill(root.parent, {"secret/key": b"needle\n"})
    fill(
        root,
        {
            ".env": b"needle\n",
            ".gitignore": b"ignored\n",
            "ignored": b"needle\n",
            ".git/config": b"needle\n",
            "node_modules/x/y.js": b"needle\n",
            "sub/build/y": b"needle\n",
            "builds/y": b"needle\n",
            "dist": b"needle\n",
            "binary": b"needle\n\0",
            "late-binary": b"needle\n" + b"x" * 200_000 + b"\nneedle\n\0",
            "-e": b"needle\n",
            "new\nline": b"needle\n",
            "/".join(["d"] * 19) + "/deep": b"needle\n",
            "/".join(["e"] * 20) + "/too-deep": b"needle\n",
        },
    )
    (root / "link").symlink_to(outside / "key")
    (root / "folder").symlink_to(outside)
    (root / "loop").symlink_to(".")
    os.mkfifo(root / "fifo")
    output = await search(context(), "needle", engine=engine)
    names = re.findall(r"(?m)^(.+)\n *1: needle", output.text)
    assert sorted(names) == sorted(["-e", ".env", "builds/y", "d/" * 19 + "deep", "dist", "ignored", "line"])
    assert "new\nline\n1: needle" in output.text


@pytest.mark.parametrize("engine", ENGINES)
async def test_c21_a_line_of_12_megabytes_is_cut_around_its_match(context: Context, root: Path, engine: str) -> None:
    fill(root, {"min.js": b"x" * 6_000_000 + b"needle" + b"y" * 6_000_000 + b"\n", "b": b"needle\n"})
    output = await search(context(), "needle", "[xy]", engine=engine)
    assert output.ok
    assert len(output.text) < 4 * MAX_LINE
    assert "xneedley" in output.text
    assert "[line of 12000006 characters, cut]" in output.text
    assert "b\n1: needle" in output.text


@pytest.mark.parametrize("engine", ENGINES)
async def test_hits_are_limited_over_all_files(context: Context, root: Path, engine: str) -> None:
    fill(root, {f"f{number:03}": b"needle\nneedle\nneedle\n" for number in range(60)})
    output = await search(context(), "needle", engine=engine)
    assert output.text.count(": needle\n") + output.text.endswith(": needle") == MAX_HITS
    assert output.text.startswith(f"'needle': the first {MAX_HITS} matching lines; there are more")
    assert "f033\n1: needle" in output.text
    assert "f034" not in output.text


async def test_much_text_is_cut_and_kept_in_full(context: Context, root: Path) -> None:
    fill(root, {"f": b"".join((b"needle" if number % 5 == 0 else b"") + b"x" * 390 + b"\n" for number in range(500))})
    output = await search(context(), "needle")
    assert len(output.text) <= TEXT_LIMIT
    assert output.text.startswith("[cut: ")
    assert len(output.full_text) > TEXT_LIMIT
    assert output.full_text.count("needlex") == MAX_HITS


async def test_each_query_is_answered_in_order_and_a_wrong_one_by_itself(context: Context, root: Path) -> None:
    fill(root, {"f": b"a(b\n"})
    output = await search(context(), "a(", r"a\(b", "(?=a)", "c")
    parts = output.text.split("\n\n")
    assert not output.ok
    assert "a ( without its )" in parts[0]
    assert parts[1] == "'a\\\\(b': 1 matching lines\nf\n1: a(b"
    assert "look-around" in parts[2]
    assert parts[3] == "'c': no results"


async def test_a_pattern_that_runs_away_is_ended(context: Context, root: Path, recorder: Any) -> None:
    fill(root, {"a": b"aaab\n", "b": b"a" * 60 + b"\n"})
    output = await search(context(remaining_s=1.5), "(a+)+b")
    assert not output.ok
    assert "ended after 1.5 s" in output.text
    assert "a\n1: aaab" in output.text
    assert recorder.running == []


async def test_a_cancel_ends_the_search(context: Context, root: Path, recorder: Any) -> None:
    fill(root, {"b": b"a" * 60 + b"\n"})
    task = asyncio.create_task(search(context(), "(a+)+b", "(a+)+c"))
    while len(recorder.events) < 2:
        await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert recorder.running == []
    assert not any(psutil.pid_exists(pid) for _, pid in recorder.events)


def test_a_ripgrep_that_the_workspace_brings_is_not_run(context: Context, root: Path) -> None:
    fill(root, {"bin/rg": b"#!/bin/sh\ntouch pwned\n"})
    (root / "bin/rg").chmod(0o755)
    (root.parent / "bin").mkdir()
    (root.parent / "bin/rg").symlink_to(root / "bin/rg")
    for folder in (str(root / "bin"), str(root.parent / "bin"), "bin", ""):
        assert trusted_ripgrep(context(env={"PATH": folder})) is None
    assert trusted_ripgrep(context(env={})) is None


async def test_settings_of_ripgrep_in_the_environment_are_not_read(context: Context, root: Path) -> None:
    fill(root, {"f": b"needle\n", "rc": b"--invert-match\n"})
    env = context().env | {"RIPGREP_CONFIG_PATH": str(root / "rc")}
    output = await search(context(env=env), "needle", engine="auto")
    assert "f\n1: needle" in output.text


async def test_a_search_that_breaks_is_said(context: Context, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(root, {"f": b"needle\n"})
    broken = ("/bin/sh", "-c", "printf './f\\0001:1:\\n'; echo broken >&2; exit 1")
    monkeypatch.setattr(SearchCodebase, "_command", lambda *_: broken)
    output = await search(context(), "needle")
    assert (output.ok, output.text) == (False, "'needle': The search failed: broken")


@needs_ripgrep
async def test_what_ripgrep_refuses_is_said(context: Context, root: Path) -> None:
    output = await search(context(), r"((\w{900}){900}){900}", engine="auto")
    assert not output.ok
    assert "The search failed" in output.text


def test_the_subject_is_the_workspace(root: Path) -> None:
    tool = SearchCodebase()
    subject = tool.subject({"queries": ["a", "b"]}, root)
    assert subject.paths == (str(root),)
    assert subject.summary == "search for a, b"


@given(st.lists(st.binary(max_size=20), max_size=12))
def test_a_collector_survives_any_output(chunks: list[bytes]) -> None:
    collector = Collector(5, lambda: None)
    for chunk in chunks:
        collector.feed("stdout", chunk)
    collector.finish()
    assert all(hit.line >= 0 for hit in collector.hits)


@given(
    st.lists(st.sampled_from([b"./a\0001:1:x\n", b"./a\0002:7:\n", b"./b\nc\0003:1:y\n"]), max_size=9),
    st.integers(1, 9),
)
def test_a_collector_reads_the_same_however_the_output_is_split(records: list[bytes], size: int) -> None:
    data, whole, split = b"".join(records), Collector(50, lambda: None), Collector(50, lambda: None)
    whole.feed("stdout", data)
    for start in range(0, len(data), size):
        split.feed("stdout", data[start : start + size])
    whole.finish()
    split.finish()
    assert whole.hits == split.hits
    assert len(whole.hits) == len(records)


def test_the_own_search_needs_nothing_but_the_standard_library(root: Path) -> None:
    fill(root, {"f": b"x\n"})
    command = own_command(portable("x"))
    assert command[:3] == (sys.executable, "-I", "-S")
    assert json.loads(command[-1])["pattern"] == "x"
    assert subprocess.run(command, cwd=root, env={}, capture_output=True, check=True).stdout == b"./f\0001:1:\n"
