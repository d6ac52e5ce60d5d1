"""How a session reads: a dialogue of events in, the text of the screen out."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from cli.render import Renderer, approval_card, approval_whole, question_card, transcript
from hub.domain.messages import Message, TextPart, ToolCallPart, ToolResultPart
from hub.protocol.events import EVENTS, LIVE, Event, Live
from tests.cli import given
from tests.cli.fakehub import AT


def shown(*items: tuple[str, dict[str, Any]], prompts: bool = True) -> str:
    """Return what a screen shows of events and live notices, in order."""
    renderer = Renderer(prompts=prompts)
    pieces: list[str] = []
    for seq, (type, data) in enumerate(items, 1):
        raw = msgspec.Raw(msgspec.json.encode(msgspec.convert(data, (EVENTS | LIVE)[type])))
        if type in LIVE:
            drawn = renderer.live(Live(type, "ses_1", "run_1", raw))
        else:
            drawn = renderer.event(Event(seq, seq - 1, "ses_1", "run_1", type, AT, raw))
        pieces += [piece.plain for piece in drawn]
    return "".join(pieces)


def delta(offset: int, text: str) -> tuple[str, dict[str, Any]]:
    return "message.delta", {"message_id": "msg_1", "offset": offset, "text": text}


def answer(text: str, role: str = "assistant") -> tuple[str, dict[str, Any]]:
    return "message.added", {"message_id": "msg_1", "position": 1, "role": role, "text": text, "cut": False}


def proposed(verdict: str = "ask") -> tuple[str, dict[str, Any]]:
    data = {"call_id": "call_1", "name": "editor", "summary": "edit a.py", "arguments": {}, "verdict": verdict}
    return "tool_call.proposed", {**data, "source": "default rule", "reason": "edits ask"}


def begins() -> tuple[str, dict[str, Any]]:
    return "tool_call.started", {"call_id": "call_1", "name": "editor", "summary": "edit a.py"}


def settled(state: str = "completed", text: str = "fine", display: str | None = None) -> tuple[str, dict[str, Any]]:
    data = {"call_id": "call_1", "name": "editor", "state": state, "text": text, "display": display, "paths": []}
    return "tool_call.ended", data


@hypothesis_given(st.text("ab \n", max_size=20), st.data())
def test_streamed_text_comes_once_whatever_its_pieces(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    edges = [0, *cuts]
    pieces = [delta(start, text[start:end]) for start, end in itertools.pairwise(edges)]
    repeated = [piece for piece in pieces for _ in range(data.draw(st.integers(1, 2)))]
    screen = shown(*repeated, answer(text), ("prompt.removed", {"prompt_id": "p", "reason": "END"}))
    before = screen.partition("  a prompt was taken back")[0]
    assert before.strip() == text.strip()
    assert before == "" or before.endswith("\n")


def test_an_answer_that_was_not_streamed_is_shown_whole() -> None:
    assert shown(answer("hello")) == "hello\n"


def test_a_lost_piece_is_made_good_by_the_whole_answer() -> None:
    assert shown(delta(7, "there"), answer("hello, there")) == "hello, there\n"


def test_late_pieces_of_an_answer_are_passed_over() -> None:
    assert shown(answer("hello"), delta(0, "hello")) == "hello\n"


def test_an_answer_that_was_broken_off_does_not_count() -> None:
    screen = shown(delta(0, "hel"), ("message.discarded", {"message_id": "msg_1", "reason": "lost"}), answer("bye"))
    assert screen.splitlines() == ["hel", "  ↺ this answer was broken off and is asked for again: lost", "bye"]


def test_a_call_is_shown_with_its_diff() -> None:
    screen = shown(proposed(), begins(), settled(display="--- a\n+++ b\n-x\n+y\n"))
    assert screen == "● editor  edit a.py\n--- a\n+++ b\n-x\n+y\n  ✓ completed\n"


def test_output_that_was_shown_while_it_came_is_not_repeated() -> None:
    progress = ("tool_call.progress", {"call_id": "call_1", "text": "line 1\nline"})
    assert shown(proposed(), begins(), progress, settled(text="line 1\nline")) == (
        "● editor  edit a.py\nline 1\nline\n  ✓ completed\n"
    )


def test_of_a_failed_call_what_was_not_streamed_is_shown() -> None:
    progress = ("tool_call.progress", {"call_id": "call_1", "text": "line 1\n"})
    screen = shown(proposed(), begins(), progress, settled("failed", "exit code 2\nline 1"))
    assert screen == "● editor  edit a.py\nline 1\n  exit code 2\n  ✗ failed\n"


def test_long_output_is_cut_and_says_so() -> None:
    screen = shown(settled(text="\n".join(map(str, range(100)))))
    assert "… 76 more lines" in screen
    assert "99" not in screen


def test_a_denied_call_says_by_what() -> None:
    assert "denied by default rule: edits ask" in shown(proposed("deny"))


def test_each_call_is_named_where_its_outcome_is() -> None:
    other = ("tool_call.proposed", {**proposed()[1], "call_id": "call_2", "summary": "edit b.py"})
    skipped = ("tool_call.ended", {**settled("skipped", "")[1], "call_id": "call_2"})
    assert shown(proposed(), other, begins(), settled(), skipped).splitlines() == [
        "● editor  edit a.py",
        "  fine",
        "  ✓ completed",
        "● editor  edit b.py",
        "  · skipped",
    ]


def test_prompts_are_shown_to_who_watches_only() -> None:
    assert shown(answer("do it", "user")) == "› do it\n"
    assert shown(answer("do it", "user"), prompts=False) == ""


def test_a_question_reads_in_a_transcript_as_it_did_live() -> None:
    asked = ToolCallPart(id="call_1", name="ask_question", arguments={"question": "Which?", "options": ["a", "b"]})
    message = Message(role="assistant", parts=[asked], id="msg_1")
    assert "".join(piece.plain for piece in transcript([message])) == "● ask_question  ask: Which?\n"


def test_who_gave_the_prompt_sees_what_others_add_to_the_run() -> None:
    assert shown(answer("do it", "user"), answer("in the docs too", "user"), prompts=False) == "› in the docs too\n"


@pytest.mark.parametrize("type", ["run.completed", "run.failed", "run.cancelled", "run.interrupted"])
def test_an_end_tells_reason_files_and_the_way_back(type: str) -> None:
    screen = shown((type, {**given.ENDED, "stop_reason": "limit_turns", "error": "too long", "cost": 0.5}))
    assert f"{type.removeprefix('run.')} (limit_turns)" in screen
    assert "10 tokens in, 2 out · $0.5000" in screen
    assert "too long" in screen
    assert "changed a.py" in screen
    assert f"hubctl checkpoint restore {given.CHECKPOINT}" in screen


def test_an_end_without_a_checkpoint_says_so() -> None:
    screen = shown(("run.completed", {**given.ENDED, "checkpoint_id": None, "no_checkpoint": "it took over 30 s"}))
    assert "no checkpoint: it took over 30 s" in screen
    assert "turn back" not in screen


@pytest.mark.parametrize(
    ("direction", "words"),
    [
        (
            "restore",
            "⤺ turned back to ckp_1, 2 messages put aside, 3 that hung on them do not proceed; undo with ckp_2",
        ),
        ("undo", "⤺ a restore was undone with ckp_1, 4 taken up again; undo with ckp_2"),
    ],
)
def test_a_restore_reads_by_its_direction(direction: str, words: str) -> None:
    aside = direction == "restore"
    data = {
        "restore_id": "rst_1",
        "checkpoint_id": "ckp_1",
        "undo_id": "ckp_2",
        "only": None,
        "restored": 1,
        "created": 0,
        "deleted": 0,
        "messages": 2 if aside else 0,
        "direction": direction,
        "reach": "tree",
        "head_moved": False,
        "cancelled": 3 if aside else 0,
        "resumed": 0 if aside else 4,
    }
    assert words in shown(("restore.committed", data))


def test_events_of_a_newer_hub_are_passed_over() -> None:
    assert Renderer(prompts=True).event(Event(1, 0, "ses_1", None, "moon.risen", AT, msgspec.Raw(b"{}"))) == []


def test_every_event_of_the_table_can_be_shown() -> None:
    """Each type either has words of its own or is silent on purpose; none raises."""
    for type, kind in EVENTS.items():
        data = {field.name: _sample(field.type) for field in msgspec.structs.fields(kind)}
        screen = shown((type, data))
        assert screen == "" or screen.endswith("\n")


def _sample(type: Any) -> Any:
    schema = msgspec.json.schema_components([type], ref_template="#/{name}")
    root = schema[0][0]
    return _of_schema(root, schema[1])


def _of_schema(schema: dict[str, Any], parts: dict[str, Any]) -> Any:
    if "$ref" in schema:
        return _of_schema(parts[schema["$ref"].removeprefix("#/")], parts)
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return _of_schema(schema["anyOf"][0], parts)
    samples: dict[str, Any] = {
        "string": "x",
        "integer": 2,
        "number": 1.5,
        "boolean": True,
        "array": ["x"],
        "null": None,
    }
    return samples.get(schema.get("type", ""), {})


def test_the_transcript_so_far() -> None:
    messages = [
        Message("user", (TextPart("fix it"),)),
        Message("assistant", (TextPart("I look."), ToolCallPart("call_1", "read_files", {"paths": ["a.py"]}))),
        Message("tool", (ToolResultPart("call_1", "read_files", "completed", "1 | x"),)),
    ]
    assert "".join(piece.plain for piece in transcript(messages)) == (
        "› fix it\nI look.\n● read_files  paths: - a.py\n  1 | x\n  ✓ completed\n"
    )


def test_a_card_names_the_directory_and_the_reason() -> None:
    card = "\n".join(line.plain for line in approval_card(given.approval(), "keys"))
    for words in ("run_commands", "make test", "/repo", "commands ask", given.APPROVAL, "keys"):
        assert words in card


def test_a_card_prefers_the_diff() -> None:
    card = approval_card(given.approval(preview="-old\n+new\n"), "")
    assert "+new" in "\n".join(line.plain for line in card)


def test_nothing_is_hidden_in_what_is_decided_about() -> None:
    hidden = given.approval(preview="+x\x1b[8m; rm -rf /\u202e\n", arguments={"path": "a\x1b[8m"})
    for lines in (approval_card(hidden, ""), approval_whole(hidden)):
        shown = "\n".join(line.plain for line in lines)
        assert "\\x1b[8m; rm -rf /\\u202e" in shown
        assert "\x1b" not in shown


def test_options_are_numbered() -> None:
    card = "\n".join(line.plain for line in question_card(given.question()))
    assert "1. sqlite" in card
    assert "2. postgres" in card
