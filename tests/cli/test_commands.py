"""Each command is arguments, a call, a print: what reaches the hub, what is printed, and the exit code."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from hub.errors import (
    AuthError,
    ConflictError,
    InternalError,
    NotFoundError,
    RefusedError,
    TurnbackError,
    UnavailableError,
    UsageError,
)
from hub.protocol.views import Ack, WorkspaceView
from tests.cli import given
from tests.cli.conftest import Call
from tests.cli.fakehub import AT, FakeHub
from tests.cli.given import APPROVAL, CHECKPOINT, SESSION


def test_status_prints_one_document(hub: FakeHub, call: Call) -> None:
    hub.answers["hub.status"] = given.status(pid=77)
    said = call("status", "--json")
    assert (said.code, said.err) == (0, "")
    assert said.json == msgspec.to_builtins(given.status(pid=77))


@pytest.mark.parametrize("place", ["before", "after"])
def test_global_options_stand_before_or_after_the_command(hub: FakeHub, call: Call, home: Path, place: str) -> None:
    hub.answers["workspace.list"] = []
    arguments = ["--json", "workspace", "list"] if place == "before" else ["workspace", "list", "--json"]
    assert call(*arguments).json == []


def test_sessions_lists_views(hub: FakeHub, call: Call) -> None:
    hub.answers["session.list"] = [given.session()]
    assert call("sessions", "--json").json == [msgspec.to_builtins(given.session())]
    shown = call("sessions").out
    assert SESSION in shown
    assert "idle" in shown


def test_show_reads_every_page(hub: FakeHub, call: Call) -> None:
    pages: dict[int, Any] = {
        0: {"messages": [_message("one")], "next_after": 7, "last_seq": 3},
        7: {"messages": [_message("two")], "next_after": None, "last_seq": 4},
    }
    hub.answers |= {
        "session.get": given.session(),
        "session.messages": lambda params: pages[params.get("after", 0)],
        "run.list": [given.run_view()],
    }
    found = call("show", SESSION, "--json").json
    assert [message["parts"][0]["text"] for message in found["messages"]] == ["one", "two"]
    assert set(found) == {"session", "messages", "runs"}
    assert "› one" in call("show", SESSION).out


def _message(text: str) -> dict[str, Any]:
    return {"role": "user", "parts": [{"type": "text", "text": text}], "id": f"msg_{text}"}


@pytest.mark.parametrize(
    ("option", "mode"), [((), "steer"), (("--follow-up",), "follow_up"), (("--interrupt",), "interrupt")]
)
def test_send_says_what_became_of_it(hub: FakeHub, call: Call, option: tuple[str, ...], mode: str) -> None:
    hub.answers["prompt.submit"] = lambda params: given.accepted(mode=params["mode"], position=2)
    said = call("send", SESSION, "hello", *option, "--json")
    assert said.json["mode"] == mode
    assert {"prompt_id", "mode", "position"} <= set(said.json)
    sent = hub.params_of("prompt.submit")[0]
    assert (sent["session_id"], sent["text"], sent["address"]) == (SESSION, "hello", "terminal:")


def test_modes_of_send_exclude_each_other(hub: FakeHub, call: Call) -> None:
    assert call("send", SESSION, "x", "--steer", "--follow-up").code == 2
    assert hub.calls == []


def test_cancel_and_queue_take_abbreviated_ids(hub: FakeHub, call: Call) -> None:
    hub.answers |= {
        "session.list": [given.session()],
        "run.cancel": Ack(id="run_1", state="running"),
        "prompt.list": [],
    }
    assert call("cancel", SESSION[-6:].lower()).code == 0
    assert call("queue", SESSION[:12]).code == 0
    assert hub.params_of("run.cancel")[0]["session_id"] == SESSION
    assert hub.params_of("prompt.list")[0]["session_id"] == SESSION


@pytest.mark.parametrize(
    ("arguments", "decision", "message"),
    [
        (("approve", APPROVAL), "allow_once", ""),
        (("approve", APPROVAL, "--session"), "allow_session", ""),
        (("approve", APPROVAL[-5:], "--always"), "allow_always", ""),
        (("reject", APPROVAL, "--reason", "not now"), "reject", "not now"),
    ],
)
def test_answers(hub: FakeHub, call: Call, arguments: tuple[str, ...], decision: str, message: str) -> None:
    hub.answers |= {
        "approval.list": [given.approval()],
        "approval.answer": lambda params: given.approval(state="allowed", decision=params["decision"]),
    }
    assert call(*arguments, "--json").json["decision"] == decision
    sent = hub.params_of("approval.answer")[0]
    assert (sent["approval_id"], sent["decision"], sent["message"]) == (APPROVAL, decision, message)


def test_approvals_show_arguments_whole(hub: FakeHub, call: Call) -> None:
    script = "\n".join(f"echo {number}" for number in range(300))
    hub.answers["approval.list"] = [given.approval(arguments={"commands": [script]})]
    shown = call("approvals").out
    assert all(f"echo {number}\n" in shown for number in range(300))


def test_open_questions_are_listed_counted_and_answered(hub: FakeHub, call: Call) -> None:
    asked = given.question()
    hub.answers |= {
        "hub.status": given.status(approvals_open=1),
        "approval.list": [given.approval()],
        "question.list": [asked],
        "question.answer": lambda params: given.question(state="answered", answer=params["answer"]),
    }
    shown = call("approvals").out
    assert "hubctl answer ID TEXT" in shown
    assert all(words in shown for words in (APPROVAL, asked.id, "Which database?", "2. postgres"))
    assert [one["id"] for one in call("approvals", "--json").json] == [APPROVAL]
    assert "2 to answer" in call("status").out
    assert call("answer", asked.id[-5:], "2", "--json").json["answer"] == "postgres"
    assert call("answer", asked.id, "neither").code == 0
    sent = hub.params_of("question.answer")
    assert [(one["question_id"], one["answer"]) for one in sent] == [(asked.id, "postgres"), (asked.id, "neither")]


def test_approve_takes_one_kind_of_memory(hub: FakeHub, call: Call) -> None:
    assert call("approve", APPROVAL, "--session", "--always").code == 2
    assert hub.calls == []


def test_workspaces(hub: FakeHub, call: Call, tmp_path: Path) -> None:
    view = WorkspaceView(id="wsp_1", name="shop", path=str(tmp_path), checkpoint="required", created_at=AT)
    hub.answers |= {
        "workspace.add": view,
        "workspace.list": [view],
        "workspace.remove": Ack(id="wsp_1", state="removed"),
    }
    assert call("workspace", "add", "shop", str(tmp_path), "--json").json["name"] == "shop"
    assert call("workspace", "add", "shop", str(tmp_path), "--checkpoint", "required").code == 0
    assert [sent.get("checkpoint") for sent in hub.params_of("workspace.add")] == [None, "required"]
    assert "required" in call("workspace", "list").out
    assert call("workspace", "add", "shop", str(tmp_path), "--checkpoint", "perhaps").code == 2
    assert call("workspace", "remove", "shop", "--json").json["state"] == "removed"


def test_inbox_shows_once(hub: FakeHub, call: Call) -> None:
    hub.answers |= {"delivery.list": [given.delivery()], "delivery.receipt": given.delivery(state="sent")}
    assert "It is done." in call("inbox").out
    assert hub.params_of("delivery.receipt")[0]["delivery_id"] == "dlv_1"
    call("inbox", "--keep")
    assert len(hub.params_of("delivery.receipt")) == 1


def test_inbox_leaves_to_another_what_it_showed_first(hub: FakeHub, call: Call) -> None:
    hub.answers |= {"delivery.list": [given.delivery()], "delivery.receipt": ConflictError("sent already")}
    assert call("inbox").code == 0


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (RefusedError("x"), 3),
        (UnavailableError("x"), 4),
        (NotFoundError("x"), 5),
        (ConflictError("x"), 6),
        (AuthError("x"), 7),
        (InternalError("x"), 1),
    ],
)
def test_errors_of_the_hub_end_with_their_exit_code(hub: FakeHub, call: Call, error: TurnbackError, code: int) -> None:
    hub.answers["session.list"] = error
    said = call("sessions", "--json")
    assert (said.code, said.out) == (code, "")
    assert said.error == {"code": error.code, "message": "x", "hint": None}


def test_errors_in_words(hub: FakeHub, call: Call) -> None:
    hub.answers["session.list"] = RefusedError("The queue is full.", code="queue_full", hint="Wait a little.")
    said = call("sessions")
    assert said.out == ""
    assert "The queue is full.  [queue_full]" in said.err
    assert "Wait a little." in said.err


def test_bad_command_lines_are_errors_with_code_2(call: Call) -> None:
    said = call("sesions", "--json")
    assert said.code == 2
    assert said.error["code"] == "usage"
    assert "sessions" in said.error["message"]
    assert call("run", "--no-such-option").code == 2
    assert call("checkpoint", "restore", CHECKPOINT, "--only", "everything").code == 2


def test_status_starts_nothing(call: Call, home: Path) -> None:
    said = call("status", "--json")
    assert said.code == 4
    assert said.error["code"] == "no_hub"
    assert not home.exists()


def test_a_lost_connection_repeats_the_call_with_the_same_key(hub: FakeHub, call: Call) -> None:
    hub.answers["prompt.submit"] = given.accepted()
    hub.drop_before_answer = {"prompt.submit"}
    assert call("send", SESSION, "hello").code == 0
    first, second = hub.params_of("prompt.submit")
    assert first == second
    assert len(first["idempotency_key"]) >= 8


def test_an_ambiguous_or_unknown_id_is_told(hub: FakeHub, call: Call) -> None:
    hub.answers["session.list"] = [given.session(), given.session(id=SESSION[:-1] + "Z")]
    assert call("cancel", "ses_01", "--json").error["code"] == "ambiguous_id"
    said = call("cancel", "nothing", "--json")
    assert (said.code, said.error["code"]) == (5, "unknown_session")


def test_what_others_wrote_cannot_steer_the_terminal(hub: FakeHub, call: Call) -> None:
    evil = "\x1b]0;owned\x07\x1b[31m[bold]red\x9b2J\x08\r\u202edlrow"
    hub.answers["session.list"] = [given.session(title=evil, workspace="/r\x1b[2J\nx")]
    hub.answers["approval.list"] = [given.approval(arguments={"commands": [evil]}, tool=evil, reason=evil, cwd=evil)]
    for shown in (call("sessions").out, call("approvals").out):
        assert not any(char in shown for char in "\x1b\x07\x08\r\x9b\u202e")
    assert "[bold]" in call("sessions").out
    assert "\\x1b" in call("approvals").out
