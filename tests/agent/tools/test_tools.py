"""What holds for every tool; the small tools; which tools a run gets."""

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hub.agent.tools.arguments import opened
from hub.agent.tools.ask_question import AskQuestion
from hub.agent.tools.base import Tool, ToolContext, ToolFailure
from hub.agent.tools.env import is_withheld, scrubbed_environment
from hub.agent.tools.paths import in_git_directory, locate, placed
from hub.agent.tools.registry import AGENT_MODES, PRESETS, default_tools, registered, tool_names, tools_for
from hub.agent.tools.submit_and_exit import SubmitAndExit
from hub.agent.tools.threads import in_thread, to_the_end
from hub.agent.tools.truncate import NOTICE_ROOM, cut_line, cut_middle, shortened
from hub.domain.values import AgentMode, Preset
from hub.errors import InternalError

Context = Callable[..., ToolContext]
TOOLS = default_tools()
KEYS = st.sampled_from(
    [
        *("files", "file_paths", "paths", "path", "file_path", "filePath", "start_line", "end_line", "queries"),
        *("commands", "command", "cmd", "args", "timeout_s", "old_text", "new_text", "insert_line", "question"),
        *("options", "summary", "verified"),
    ]
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 5) | st.just(10**400),
    st.floats(),
    st.sampled_from(["", " ", "a", "b c", "1", '["a"]', '{"path": "a"}', "a <<X", "X", "\0", "\ud800", "x" * 10]),
)
SENT = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)


@pytest.mark.parametrize("name", TOOLS)
@given(sent=SENT)
@example(sent=["a", "b"])
@example(sent={"question": "q", "options": ["a", "b"]})
@example(sent={"summary": "long enough", "verified": True})
@example(sent={"path": "a", "new_text": "b", "old_text": "c"})
def test_whatever_is_sent_is_refused_or_becomes_canonical(name: str, sent: Any) -> None:
    """Canonical arguments fit the advertised schema, stay as they are, and can be stored."""
    tool = TOOLS[name]
    try:
        canonical = tool.normalise(sent)
    except ToolFailure:
        return
    jsonschema.validate(canonical, tool.spec.parameters)
    assert tool.normalise(canonical) == canonical
    assert msgspec.json.decode(msgspec.json.encode(canonical)) == canonical
    assert tool.normalise(msgspec.json.encode(canonical).decode()) == canonical


@pytest.mark.parametrize("name", TOOLS)
def test_a_schema_is_an_object_at_its_top(name: str) -> None:
    parameters = TOOLS[name].spec.parameters
    jsonschema.Draft202012Validator.check_schema(parameters)
    assert parameters["type"] == "object"
    assert not {"anyOf", "oneOf", "allOf"} & parameters.keys()


def test_each_tool_has_its_effect() -> None:
    assert {name: tool.effect for name, tool in TOOLS.items()} == {
        "read_files": "read",
        "search_codebase": "read",
        "run_commands": "external",
        "editor": "workspace",
        "ask_question": "ask",
        "submit_and_exit": "finish",
    }


@pytest.mark.parametrize(
    ("agent_mode", "preset", "names"),
    [
        ("act", "default", ["read_files", "search_codebase", "run_commands", "editor", "ask_question"]),
        ("plan", "default", ["read_files", "search_codebase", "run_commands", "ask_question"]),
        ("act", "search", ["read_files", "search_codebase"]),
        ("plan", "search", ["read_files", "search_codebase"]),
        ("act", "minimal", ["run_commands"]),
        ("plan", "minimal", ["run_commands"]),
        ("act", "yolo", ["read_files", "run_commands", "editor", "submit_and_exit"]),
        ("plan", "yolo", ["read_files", "run_commands", "submit_and_exit"]),
    ],
)
def test_what_a_run_gets(agent_mode: AgentMode, preset: Preset, names: list[str]) -> None:
    assert list(tool_names(agent_mode, preset)) == names
    assert list(tools_for(preset, agent_mode)) == names


def test_nobody_is_asked_in_an_unattended_run() -> None:
    for preset in PRESETS:
        for mode in AGENT_MODES:
            names = tool_names(mode, preset, unattended=True)
            assert "ask_question" not in names
            assert ("submit_and_exit" in names) == (preset in ("default", "yolo"))


def test_the_tables_are_whole() -> None:
    assert set(PRESETS) == set(get_args(Preset))
    assert set(AGENT_MODES) == set(get_args(AgentMode))
    assert set().union(*PRESETS.values()) == set(TOOLS)


def test_two_tools_of_one_name_are_refused() -> None:
    tools: list[Tool] = [AskQuestion(), SubmitAndExit(), AskQuestion()]
    with pytest.raises(InternalError, match="ask_question") as caught:
        registered(tools)
    assert caught.value.code == "duplicate_tool"


def test_a_question_is_tidied_up() -> None:
    sent = {"question": " Which? ", "options": '["a ", "b"]'}
    assert AskQuestion().normalise(sent) == {"question": "Which?", "options": ["a", "b"]}
    assert AskQuestion().subject({"question": "Which?", "options": ["a", "b"]}, Path("/")).summary == "ask: Which?"


@pytest.mark.parametrize(
    "sent",
    [
        *(None, "Which?", {}, {"question": "q"}, {"question": "q", "options": "a"}),
        {"question": "", "options": ["a", "b"]},
        *({"question": "q", "options": ["a"]}, {"question": "q", "options": list("abcdef")}),
        *({"question": "q", "options": ["a", "a "]}, {"question": "q", "options": ["a", " "]}),
        {"question": "q", "options": ["a", 5]},
    ],
)
def test_what_is_no_question_is_refused(sent: Any) -> None:
    with pytest.raises(ToolFailure):
        AskQuestion().normalise(sent)


async def test_a_question_is_never_answered_by_the_tool(context: Context) -> None:
    with pytest.raises(ToolFailure, match="not put to anybody"):
        await AskQuestion().execute({"question": "q", "options": ["a", "b"]}, context())


async def test_submitting_gives_the_summary(context: Context) -> None:
    arguments = SubmitAndExit().normalise({"summary": " All tests pass. ", "verified": True})
    output = await SubmitAndExit().execute(arguments, context())
    assert (output.ok, output.text) == (True, "All tests pass.")


@pytest.mark.parametrize("sent", [{}, {"summary": "too short", "verified": True}, {"summary": "x" * 20, "verified": 1}])
def test_what_is_no_summary_is_refused(sent: Any) -> None:
    with pytest.raises(ToolFailure):
        SubmitAndExit().normalise(sent)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "TURNBACK_TOKEN",
            "TURNBACK_HOME",
            "GIT_DIR",
            "git_index_file",
            "OPENAI_API_KEY",
            "openai_api_key",
            "NPM_TOKEN",
        ),
        *("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "PGPASSWORD", "DB_PASS", "SLACK_BOT_TOKEN", "GITHUB_PAT"),
        *("SSH_AUTH_SOCK", "GOOGLE_APPLICATION_CREDENTIALS", "SENTRY_DSN", "MYAPIKEY", "BASH_ENV", "ENV", "GHTOKEN"),
        *("BASH_FUNC_ls%%", "CLIENT_SECRET", "SESSION_COOKIE", "DATABASE_URL", "TLS_PRIVATE_KEY", "HTTP_AUTHORIZATION"),
    ],
)
def test_these_are_withheld_from_tools(name: str) -> None:
    assert is_withheld(name)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "PATH",
            "HOME",
            "LANG",
            "LC_ALL",
            "TERM",
            "TMPDIR",
            "USER",
            "SHELL",
            "PWD",
            "TZ",
            "VIRTUAL_ENV",
            "PYTHONPATH",
        ),
        *("TOKENIZERS_PARALLELISM", "AUTHOR", "KEYBOARD", "PASSENGER", "COMPASS", "PATHS", "HTTP_PROXY", "CI"),
    ],
)
def test_these_are_kept(name: str) -> None:
    assert scrubbed_environment({name: "x"}) == {name: "x"}


def test_names_that_settings_call_secret_are_withheld_too() -> None:
    environ = {"PATH": "/bin", "HARMLESS": "s", "OTHER": "o"}
    assert scrubbed_environment(environ, {"HARMLESS"}) == {"PATH": "/bin", "OTHER": "o"}
    assert environ == {"PATH": "/bin", "HARMLESS": "s", "OTHER": "o"}


def test_where_a_path_leads(root: Path) -> None:
    (root / "in").symlink_to("folder")
    (root / "folder").mkdir()
    (root / "away").symlink_to("/etc")
    (root / "up").symlink_to("..")
    sibling = root.parent / f"{root.name}-other"
    sibling.mkdir()
    assert locate(root, "in/x").shown == "folder/x"
    assert locate(root, str(root / "folder")).inside
    assert locate(root, ".").inside
    for outside in ("away/passwd", "up/x", "..", "/", f"../{sibling.name}", str(sibling), "in/../../x", "~/x/../../.."):
        assert not locate(root, outside).inside
    assert locate(root, f"up/{root.name}/x").inside
    assert locate(root, "~/x").shown == "~/x"


def test_names_that_are_not_utf8_can_be_stored_and_shown(root: Path) -> None:
    location = placed(root, root / os.fsdecode(b"a\xff"))
    assert location.shown == "a\ufffd"
    assert location.named == f"{root}/a\\xff"
    assert not in_git_directory(location)
    assert in_git_directory(locate(root, "sub/.git/config"))
    assert not in_git_directory(locate(root, ".github/x"))


@given(st.text(max_size=600), st.integers(NOTICE_ROOM, 400))
def test_a_cut_text_fits_and_keeps_both_ends(text: str, limit: int) -> None:
    cut = cut_middle(text, limit)
    assert len(cut.text) <= limit
    assert cut.cut == (len(text) > limit)
    if not cut.cut:
        assert cut.text == text
        return
    half = (limit - NOTICE_ROOM) // 2
    assert cut.text.startswith(f"[cut: {len(text) - 2 * half} of {len(text)} characters")
    assert text[:half] in cut.text
    assert cut.text.endswith(text[len(text) - half :])


@given(st.text(alphabet="ab", max_size=300), st.integers(1, 100), st.integers(0, 320))
def test_a_cut_line_shows_the_part_that_matters(line: str, limit: int, around: int) -> None:
    shown = cut_line(line, limit, around)
    if len(line) <= limit:
        assert shown == line
        return
    assert f"[line of {len(line)} characters, cut]" in shown
    start = max(0, min(around - limit // 2, len(line) - limit))
    assert line[start : start + limit] in shown
    assert start <= min(around, len(line) - 1) < start + limit or around >= len(line)


def test_a_summary_is_one_line() -> None:
    assert shortened("  a b ", 10) == "a b"
    assert shortened("a\nb", 10) == "a … [3 characters]"
    assert shortened("x" * 20, 10) == "x" * 10 + " … [20 characters]"


def test_only_whole_json_is_opened() -> None:
    assert opened('["a"]') == ["a"]
    assert opened('{"a": 1}') == {"a": 1}
    for text in ("[a]", "{", "5", '"x"', "[" * 100_000):
        assert opened(text) == text


async def test_work_is_carried_to_its_end_though_cancelled() -> None:
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        go.wait(20)
        done.set()
        return "result"

    task = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait, 20)
    for _ in range(3):
        task.cancel()
        await asyncio.sleep(0)
    assert not task.done()
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done.is_set()
    assert await in_thread(lambda: "fine") == "fine"


async def test_an_error_of_the_work_is_its_own() -> None:
    async def broken() -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        await to_the_end(broken())
