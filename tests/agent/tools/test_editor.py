"""The editor keeps every byte that it was not asked to change."""

import os
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hub.agent.tools.base import ToolContext, ToolFailure, ToolOutput
from hub.agent.tools.diffs import cut_diff, unified
from hub.agent.tools.editor import MAX_NEW_TEXT, MAX_OLD_TEXT, Editor, plan, write
from hub.agent.tools.edits import BOM, Change, inserted, replaced

Context = Callable[..., ToolContext]
TOOL = Editor()


async def edit(context: ToolContext, **arguments: Any) -> ToolOutput:
    return await TOOL.execute(TOOL.normalise(arguments), context)


async def failing(context: ToolContext, **arguments: Any) -> str:
    with pytest.raises(ToolFailure) as caught:
        await edit(context, **arguments)
    return str(caught.value)


@pytest.mark.parametrize(
    ("sent", "canonical"),
    [
        ({"path": "a", "new_text": "x"}, {"path": "a", "new_text": "x"}),
        ({"path": "a", "new_text": "", "old_text": "y"}, {"path": "a", "new_text": "", "old_text": "y"}),
        ({"path": "a", "new_text": "x", "old_text": None, "insert_line": None}, {"path": "a", "new_text": "x"}),
        (
            {"path": "a", "new_text": "x", "old_text": "", "insert_line": "3"},
            {"path": "a", "new_text": "x", "insert_line": 3},
        ),
        ('{"path": "a", "new_text": "x"}', {"path": "a", "new_text": "x"}),
    ],
)
def test_forms(sent: Any, canonical: dict[str, Any]) -> None:
    assert TOOL.normalise(sent) == canonical
    assert TOOL.normalise(canonical) == canonical


@pytest.mark.parametrize(
    "sent",
    [
        *("a", None, {}, {"path": "a"}, {"new_text": "x"}, {"path": "", "new_text": "x"}),
        {"path": "a\0", "new_text": "x"},
        *({"path": "a", "new_text": None}, {"path": "a", "new_text": 5}, {"path": ["a"], "new_text": "x"}),
        *({"path": "a", "new_text": "x", "insert_line": 0}, {"path": "a", "new_text": "x", "insert_line": "x"}),
        *({"path": "a", "new_text": "x", "insert_line": True}, {"path": "a", "new_text": "x", "insert_line": 1.5}),
        {"path": "a", "new_text": "x", "old_text": "y", "insert_line": 1},
        {"path": "a", "new_text": "x" * (MAX_NEW_TEXT + 1)},
        {"path": "a", "new_text": "x", "old_text": "y" * (MAX_OLD_TEXT + 1)},
        {"path": "a", "new_text": "\ud800"},
    ],
)
def test_forms_that_are_refused(sent: Any) -> None:
    with pytest.raises(ToolFailure):
        TOOL.normalise(sent)


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        (b"one two three\n", "two", "2", b"one 2 three\n"),
        (b"a\r\nb\r\nc\r\n", "b\nc", "x\ny\nz", b"a\r\nx\r\ny\r\nz\r\n"),
        (b"a\r\nb\r\n", "a\r\nb", "a\nx", b"a\r\nx\r\n"),
        (b"a\nb\r\nc\nd\r\n", "a\nb\nc", "a\nb\nC", b"a\nb\r\nC\nd\r\n"),
        (b"a\nb\r\nc\n", "b\n", "b\nx\n", b"a\nb\r\nx\r\nc\n"),
        (b"a\nb\n", "b", "x\r\ny", b"a\nx\ny\n"),
        (BOM + b"a\r\nb", "a\nb", "A\nb", BOM + b"A\r\nb"),
        (BOM + b"a\n", "\ufeffa", "b", BOM + b"b\n"),
        (b"a\xff\xfeb\n", "b", "c", b"a\xff\xfec\n"),
        (b"caf\xe9 old\n", "old", "é", b"caf\xe9 \xc3\xa9\n"),
        (b"no newline", "newline", "end", b"no end"),
        (b"a\nb", "b", "b\n", b"a\nb\n"),
        (b"a\nb\n", "b\n", "", b"a\n"),
        (b"x $& \\1 y", "x", "\\1 $& $1", b"\\1 $& $1 $& \\1 y"),
        ("é漢".encode(), "漢", "字", "é字".encode()),
    ],
)
def test_replacing(before: bytes, old: str, new: str, after: bytes) -> None:
    assert replaced(before, old, new).new == after


@pytest.mark.parametrize(
    ("before", "old", "message"),
    [
        (b"abc", "x", "is not in the file"),
        (b"a a\na", "a", "3 times (at lines 1, 1, 2)"),
        (b"aaa", "aa", "2 times"),
        (b"\taa\n\tb", "aa\n    b", "other spaces or tabs"),
        (b"caf\xe9", "caf\ufffd", "not UTF-8"),
        (b"abc", "new", "nothing would change"),
    ],
)
def test_replacing_what_is_not_there_exactly_once_is_refused(before: bytes, old: str, message: str) -> None:
    with pytest.raises(ToolFailure) as caught:
        replaced(before, old, "new")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("before", "line", "new", "after"),
    [
        (b"a\nb\n", 1, "x", b"x\na\nb\n"),
        (b"a\nb\n", 2, "x\n", b"a\nx\nb\n"),
        (b"a\nb\n", 3, "x", b"a\nb\nx\n"),
        (b"a\nb", 3, "x", b"a\nb\nx"),
        (b"a\nb", 3, "x\n", b"a\nb\nx\n"),
        (b"a\nb", 2, "x", b"a\nx\nb"),
        (b"a\r\nb\r\n", 2, "x\ny", b"a\r\nx\r\ny\r\nb\r\n"),
        (b"a\r\nb", 3, "x", b"a\r\nb\r\nx"),
        (BOM + b"a\n", 1, "x", BOM + b"x\na\n"),
        (b"", 1, "x", b"x"),
        (b"\n", 1, "x", b"x\n\n"),
    ],
)
def test_inserting(before: bytes, line: int, new: str, after: bytes) -> None:
    assert inserted(before, line, new).new == after


@pytest.mark.parametrize(("before", "line"), [(b"a\nb\n", 4), (b"a\nb", 4), (b"", 2)])
def test_inserting_past_the_end_is_refused(before: bytes, line: int) -> None:
    with pytest.raises(ToolFailure, match="past the end"):
        inserted(before, line, "x")


BYTES = st.lists(st.sampled_from([b"a", b"b", b"\n", b"\r\n", b"\r", b"\xff", "é".encode(), b" "]), max_size=25).map(
    b"".join
)
PREFIX = st.sampled_from([b"", BOM])
TEXTS = st.text(alphabet="ab\né ", max_size=8)


def occurrences(data: bytes, wanted: bytes) -> int:
    return sum(data.startswith(wanted, at) for at in range(len(data)))


def shared_start(one: bytes, other: bytes) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def without_endings(data: bytes) -> bytes:
    return data.replace(b"\r\n", b"\n")


@given(PREFIX, BYTES, st.text(alphabet="abcé\n", min_size=1, max_size=5), TEXTS, BYTES)
@example(b"", b"a\r\nb\n", "c\nd", "c\n\nd", b"\r\n")
def test_replacing_keeps_every_byte_outside(prefix: bytes, head: bytes, old: str, new: str, tail: bytes) -> None:
    """The old text is put between two random pieces, with either ending; what is around it must stay."""
    assume(old != new and not head.endswith(b"\r"))
    for middle in (old.encode(), old.encode().replace(b"\n", b"\r\n")):
        data = prefix + head + middle + tail
        if occurrences(without_endings(prefix.replace(BOM, b"") + head + middle + tail), old.encode()) > 1:
            with pytest.raises(ToolFailure, match="times"):
                replaced(data, old, new)
            continue
        change = replaced(data, old, new)
        assert change.new.startswith(prefix + head)
        assert change.new.endswith(tail)
        done = change.new[len(prefix + head) : len(change.new) - len(tail)]
        assert without_endings(done) == new.encode()
        assert data[change.start : change.old_end] != change.new[change.start : change.new_end]
        assert data[: change.start] + change.new[change.start : change.new_end] + data[change.old_end :] == change.new


@given(PREFIX, BYTES, st.text(alphabet="abé\n", min_size=1, max_size=8), st.integers(1, 8))
def test_inserting_keeps_every_byte(prefix: bytes, body: bytes, new: str, line: int) -> None:
    data = prefix + body
    lines = body.count(b"\n") + (not body.endswith(b"\n") and body != b"")
    if line > lines + 1:
        with pytest.raises(ToolFailure, match="past the end"):
            inserted(data, line, new)
        return
    change = inserted(data, line, new)
    assert change.start == change.old_end
    assert change.new[: change.start] + change.new[change.new_end :] == data
    written = without_endings(change.new[len(prefix) :]).split(b"\n")
    assert written[line - 1] == new.encode().split(b"\n")[0]
    assert not (data.endswith(b"\n") and not change.new.endswith(b"\n"))


LINES = st.lists(st.sampled_from(["a", "b", "", "é", "x y", "c\r", "-d", "+e", "\\ f"]), max_size=30)


@given(LINES, LINES, st.booleans(), st.booleans())
def test_the_diff_can_be_applied_again(old: list[str], new: list[str], old_end: bool, new_end: bool) -> None:
    """`git apply` is the judge."""
    before = ("\n".join(old) + ("\n" if old_end and old else "")).encode()
    after = ("\n".join(new) + ("\n" if new_end and new else "")).encode()
    assume(before != after and before)
    start = shared_start(before, after)
    shared = shared_start(before[start:][::-1], after[start:][::-1])
    diff = unified("f", Change(before, after, start, len(before) - shared, len(after) - shared))
    assert applied(before, diff) == after


def applied(before: bytes, diff: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f").write_bytes(before)
        subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"], input=diff.encode(), cwd=folder, check=True, timeout=20
        )
        return (Path(folder) / "f").read_bytes()


def test_a_long_diff_is_cut_in_the_middle() -> None:
    before = b"".join(b"%d\n" % number for number in range(1_000))
    diff = unified("f", Change(before, b"x\n", 0, len(before), 2))
    assert len(diff.split("\n")) > 1_000
    assert len(cut_diff(diff).split("\n")) == 201
    assert "lines of the diff left out" in cut_diff(diff)


async def test_a_file_is_created_with_its_folders(context: Context, root: Path, recorder: Any) -> None:
    output = await edit(context(), path="a/b/c.txt", new_text="x\ny")
    assert (root / "a/b/c.txt").read_bytes() == b"x\ny"
    assert output.ok
    assert output.paths == ("a/b/c.txt",)
    assert output.display == "--- /dev/null\n+++ b/a/b/c.txt\n@@ -0,0 +1,2 @@\n+x\n+y\n\\ No newline at end of file\n"
    assert recorder.announced == [root / "a/b/c.txt"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE((root / "a/b/c.txt").stat().st_mode) == 0o666 & ~mask


async def test_an_empty_file_is_filled_and_a_full_one_is_not_overwritten(context: Context, root: Path) -> None:
    (root / "empty").touch()
    await edit(context(), path="empty", new_text="x")
    assert (root / "empty").read_text() == "x"
    assert "exists and is not empty" in await failing(context(), path="empty", new_text="y")


async def test_an_edit_keeps_the_mode_and_leaves_nothing_beside(context: Context, root: Path) -> None:
    file = root / "run.sh"
    file.write_bytes(b"#!/bin/sh\r\necho a\r\n")
    file.chmod(0o751)
    output = await edit(context(), path=str(file), old_text="echo a", new_text="echo b\necho c")
    assert file.read_bytes() == b"#!/bin/sh\r\necho b\r\necho c\r\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o751
    assert [entry.name for entry in root.iterdir()] == ["run.sh"]
    assert output.text.startswith("Edited run.sh\n--- a/run.sh\n")


async def test_a_symlinks_target_is_written_only_inside(context: Context, root: Path, recorder: Any) -> None:
    (root / "real").write_text("a\n")
    (root / "link").symlink_to("real")
    outside = root.parent / "outside"
    outside.write_text("a\n")
    (root / "out").symlink_to(outside)
    (root / "folder").symlink_to(root.parent)
    output = await edit(context(), path="link", old_text="a", new_text="b")
    assert (root / "link").is_symlink()
    assert (root / "real").read_text() == "b\n"
    assert output.paths == ("real",)
    for path in ("out", "folder/outside", "../outside", str(outside), "folder/new"):
        assert "outside the workspace" in await failing(context(), path=path, old_text="a", new_text="b")
    assert outside.read_text() == "a\n"
    assert recorder.announced == [root / "real"]


async def test_what_cannot_be_edited_is_said(context: Context, root: Path) -> None:
    (root / ".git").mkdir()
    (root / "sub" / ".GIT").mkdir(parents=True)
    (root / "binary").write_bytes(b"a\0b")
    (root / "loop").symlink_to("loop")
    os.mkfifo(root / "fifo")
    (root / "file").write_text("a")
    one = {"old_text": "a", "new_text": "b"}
    assert "belongs to git" in await failing(context(), path=".git/hooks/pre-commit", new_text="x")
    assert "belongs to git" in await failing(context(), path="sub/.GIT/config", new_text="x")
    assert "NUL" in await failing(context(), path="binary", **one)
    assert "leads nowhere" in await failing(context(), path="loop", **one)
    assert "not a regular file" in await failing(context(), path="fifo", **one)
    assert "is a folder" in await failing(context(), path="sub", **one)
    assert "does not exist" in await failing(context(), path="gone", **one)
    assert "names a folder" in await failing(context(), path="new/", new_text="x")
    assert "cannot be written" in await failing(context(), path="file/x", new_text="x")
    assert "cannot be written" in await failing(context(), path="n" * 300, new_text="x")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
async def test_a_read_only_file_is_not_edited(context: Context, root: Path) -> None:
    (root / "f").write_text("a")
    (root / "f").chmod(0o444)
    assert "read-only" in await failing(context(), path="f", old_text="a", new_text="b")


async def test_a_file_that_changed_meanwhile_is_left_alone(context: Context, root: Path) -> None:
    (root / "f").write_text("a\n")

    async def meddle(paths: Any) -> None:
        (root / "f").write_text("a, and more\n")

    assert "changed by something else" in await failing(
        context(before_write=meddle), path="f", old_text="a", new_text="b"
    )
    assert (root / "f").read_text() == "a, and more\n"
    assert [entry.name for entry in root.iterdir()] == ["f"]


async def test_a_file_that_appeared_meanwhile_is_left_alone(root: Path) -> None:
    planned = plan({"path": "f", "new_text": "x"}, root)
    (root / "f").write_text("mine")
    with pytest.raises(ToolFailure, match="changed by something else"):
        write(planned)
    assert (root / "f").read_text() == "mine"


async def test_when_the_pre_image_fails_nothing_is_written(context: Context, root: Path) -> None:
    async def refuse(paths: Any) -> None:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        await edit(context(before_write=refuse), path="f", new_text="x")
    assert list(root.iterdir()) == []


def test_the_subject_shows_where_a_path_leads_and_what_would_change(root: Path) -> None:
    (root / "f").write_text("a\n")
    (root / "out").symlink_to("/etc")
    subject = TOOL.subject({"path": "f", "old_text": "a", "new_text": "b"}, root)
    assert subject.paths == (str(root / "f"),)
    assert subject.preview == "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n"
    away = TOOL.subject({"path": "out/passwd", "old_text": "a", "new_text": "b"}, root)
    assert away.paths == (str(Path("/etc/passwd").resolve()),)
    assert away.preview is None
    assert (root / "f").read_text() == "a\n"


def test_a_name_cannot_forge_a_line_of_the_diff() -> None:
    diff = unified("a\n+++ b/x", Change(b"", b"y\n", 0, 0, 2), created=True)
    assert diff.split("\n")[1] == '+++ "b/a\\n+++ b/x"'
