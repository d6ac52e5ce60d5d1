"""read_files: forms, windows, and what cannot be read."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.agent.tools.base import ToolContext, ToolFailure
from hub.agent.tools.read_files import CALL_LIMIT, COUNT_LIMIT, MAX_LINE, MAX_LINES, WINDOW, ReadFiles

Context = Callable[..., ToolContext]
TOOL = ReadFiles()


@pytest.mark.parametrize(
    ("sent", "files"),
    [
        ("a b", [{"path": "a b"}]),
        (["a", "b"], [{"path": "a"}, {"path": "b"}]),
        ('["a", {"path": "b"}]', [{"path": "a"}, {"path": "b"}]),
        ({"path": "a", "start_line": 2}, [{"path": "a", "start_line": 2}]),
        ({"file_path": "a"}, [{"path": "a"}]),
        ({"filePath": "a", "end_line": "7"}, [{"path": "a", "end_line": 7}]),
        ({"files": "a"}, [{"path": "a"}]),
        ({"files": {"path": "a"}}, [{"path": "a"}]),
        ({"files": ["a", {"filePath": "b"}]}, [{"path": "a"}, {"path": "b"}]),
        ({"files": '[{"path": "a", "start_line": "3"}]'}, [{"path": "a", "start_line": 3}]),
        ({"files": None, "paths": ["a"]}, [{"path": "a"}]),
        ({"files": [], "paths": ["a"]}, [{"path": "a"}]),
        ({"file_paths": ["a", "b"]}, [{"path": "a"}, {"path": "b"}]),
        ({"paths": "a"}, [{"path": "a"}]),
        ({"paths": ["a", "b"]}, [{"path": "a"}, {"path": "b"}]),
        ({"files": [{"path": "a", "start_line": None, "end_line": 5.0}]}, [{"path": "a", "end_line": 5}]),
        (["a", {"start_line": 2, "end_line": 3}], [{"path": "a", "start_line": 2, "end_line": 3}]),
        ([{"path": "a", "start_line": 2}, {"end_line": 3}], [{"path": "a", "start_line": 2, "end_line": 3}]),
        (["[1]"], [{"path": "[1]"}]),
    ],
)
def test_every_form_becomes_the_advertised_one(sent: Any, files: list[dict[str, Any]]) -> None:
    canonical = TOOL.normalise(sent)
    assert canonical == {"files": files}
    assert TOOL.normalise(canonical) == canonical


@pytest.mark.parametrize(
    "sent",
    [
        *(None, 5, [], {}, "", "  ", [5], [["a"]], {"files": [{}]}, {"files": [None]}, {"name": "a"}, "a\0b", "\ud800"),
        *([{"start_line": 1}], ["a", {"start_line": 1}, {"start_line": 2}], {"files": ["a"], "paths": ["b"]}),
        *({"path": "a", "file_path": "b"}, {"path": "a", "start_line": 0}, {"path": "a", "start_line": "x"}),
        *({"path": "a", "start_line": True}, {"path": "a", "start_line": 1.5}, ["a"] * 51),
        {"path": "a", "end_line": 10**30},
    ],
)
def test_forms_that_are_refused(sent: Any) -> None:
    with pytest.raises(ToolFailure):
        TOOL.normalise(sent)


async def read(context: ToolContext, *files: Any) -> Any:
    return await TOOL.execute(TOOL.normalise(list(files)), context)


async def test_a_file_is_shown_with_line_numbers(context: Context, root: Path) -> None:
    (root / "a").write_bytes(b"\xef\xbb\xbfone\r\n" + b"x\n" * 9 + "é".encode())
    output = await read(context(), "a")
    lines = output.text.split("\n")
    assert output.ok
    assert lines[:3] == ["a:", " 1 | one", " 2 | x"]
    assert lines[-1] == "11 | é"


@pytest.mark.parametrize(
    ("first", "last", "shown", "note"),
    [
        (None, None, range(1, 11), None),
        (3, 5, range(3, 6), "[lines 3-5 of 10]"),
        (8, None, range(8, 11), "[lines 8-10 of 10]"),
        (None, 2, range(1, 3), "[lines 1-2 of 10]"),
        (9, 99, range(9, 11), "[lines 9-10 of 10]"),
        (1, 10, range(1, 11), None),
    ],
)
async def test_ranges(context: Context, root: Path, first: Any, last: Any, shown: range, note: str | None) -> None:
    (root / "a").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    lines = (await read(context(), {"path": "a", "start_line": first, "end_line": last})).text.split("\n")
    width = len(str(shown[-1]))
    expected = [f"{number:>{width}} | line {number}" for number in shown]
    assert lines == ["a:", *expected, *([note] if note else [])]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"path": "a", "start_line": 5, "end_line": 3}, "start_line 5 is after end_line 3"),
        ({"path": "a", "start_line": 4}, "past the end: the file has 3 lines"),
        ({"path": "empty", "start_line": 2}, "past the end: the file has 0 lines"),
        ({"path": "gone"}, "does not exist"),
        ({"path": "a/b"}, "does not exist"),
        ({"path": "folder"}, "is a folder"),
        ({"path": "fifo"}, "not a regular file"),
        ({"path": "loop"}, "leads nowhere"),
        ({"path": "binary"}, "is binary"),
        ({"path": "utf16"}, "UTF-16"),
        ({"path": "n" * 5_000}, "cannot be opened"),
    ],
)
async def test_what_cannot_be_read_fails_by_itself(context: Context, root: Path, entry: Any, message: str) -> None:
    (root / "a").write_text("1\n2\n3\n")
    (root / "empty").touch()
    (root / "folder").mkdir()
    os.mkfifo(root / "fifo")
    (root / "loop").symlink_to("loop")
    (root / "binary").write_bytes(b"\x7fELF\0\0")
    (root / "utf16").write_text("text", encoding="utf-16")
    output = await read(context(), entry, "a")
    failed, read_well = output.text.split("\n\n")
    assert not output.ok
    assert message in failed
    assert read_well == "a:\n1 | 1\n2 | 2\n3 | 3"


async def test_an_empty_file_and_one_that_is_not_utf8(context: Context, root: Path) -> None:
    (root / "empty").touch()
    (root / "latin").write_bytes(b"caf\xe9\n")
    output = await read(context(), "empty", "latin")
    assert output.ok
    assert output.text == (
        "empty:\n[the file is empty]\n\nlatin:\n1 | caf\ufffd\n"
        "[the file is not UTF-8: bytes that could not be read are shown as \ufffd]"
    )


async def test_a_long_file_is_shown_in_windows(context: Context, root: Path) -> None:
    (root / "many").write_text("x\n" * (MAX_LINES + 5))
    (root / "wide").write_text(("y" * 1_000 + "\n") * 100)
    (root / "endless").write_text("z\n" * (COUNT_LIMIT + 10))
    output = await read(context(), "many", "wide", "endless")
    many, wide, endless = output.text.split("\n\n")
    assert many.endswith(f"[lines 1-{MAX_LINES} of {MAX_LINES + 5}; read on with start_line {MAX_LINES + 1}]")
    assert len(wide) < WINDOW + 200
    assert "[lines 1-47 of 100; read on with start_line 48]" in wide
    assert f"of {COUNT_LIMIT}+; read on" in endless
    rest = await read(context(), {"path": "many", "start_line": MAX_LINES + 1})
    assert rest.text.endswith(f"[lines {MAX_LINES + 1}-{MAX_LINES + 5} of {MAX_LINES + 5}]")
    far = await read(context(), {"path": "endless", "start_line": COUNT_LIMIT + 9})
    assert f"{COUNT_LIMIT + 9} | z" in far.text


async def test_c21_one_long_line_is_cut(context: Context, root: Path) -> None:
    (root / "min.js").write_bytes(b"x" * 12_000_000)
    output = await read(context(), "min.js")
    assert len(output.text) < 2 * MAX_LINE
    assert "[line of 12000000 characters, cut]" in output.text


async def test_a_call_shows_a_bounded_amount(context: Context, root: Path) -> None:
    (root / "a").write_text(("y" * 1_000 + "\n") * 100)
    output = await read(context(), *["a"] * 10)
    assert len(output.text) < CALL_LIMIT + 3_000
    assert "Read it in another call" in output.text
    assert not output.ok


@given(st.lists(st.text(alphabet="aé \t", max_size=6), max_size=20), st.integers(1, 25), st.integers(1, 25))
def test_a_range_shows_just_these_lines(lines: list[str], first: int, last: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
        context = ToolContext(Path(folder).resolve(), {}, "c", 60, None, None, print)  # type: ignore[arg-type]
        arguments = {"files": [{"path": "f", "start_line": first, "end_line": last}]}
        output = asyncio.run(TOOL.execute(arguments, context))
    shown = [line.split(" | ", 1) for line in output.text.split("\n") if " | " in line]
    assert output.ok == (first <= last and (first <= len(lines) or first == 1))
    expected = lines[first - 1 : last] if output.ok else []
    assert shown == [[str(number).rjust(len(shown[-1][0])), line] for number, line in enumerate(expected, start=first)]


async def test_relative_paths_are_the_workspaces_and_links_say_where_they_lead(
    context: Context, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir("/")
    (root / "sub").mkdir()
    (root / "sub/a").write_text("inside\n")
    (root.parent / "outside").write_text("outside\n")
    (root / "out").symlink_to(root.parent / "outside")
    subject = TOOL.subject(TOOL.normalise(["sub/a", "sub/../sub/a", "out", "../outside"]), root)
    assert subject.paths == (str(root / "sub/a"), str(root.parent / "outside"))
    assert (await read(context(), "sub/a")).text == "sub/a:\n1 | inside"
    assert (await read(context(), "out")).text == f"{root.parent}/outside:\n1 | outside"


async def test_a_name_with_a_space_that_cannot_be_typed_is_found(context: Context, root: Path) -> None:
    (root / "Shot 9.41\u202fAM.txt").write_text("x\n")
    (root / "cafe\u0301").write_text("y\n")
    output = await read(context(), "Shot 9.41 AM.txt", "caf\u00e9")
    assert output.ok
    (root / "Shot 9.41\u00a0AM.txt").write_text("x\n")
    assert "does not exist" in (await read(context(), "Shot 9.41 AM.txt")).text
    (root / "Shot 9.41 AM.txt").write_text("exact\n")
    assert "exact" in (await read(context(), "Shot 9.41 AM.txt")).text
