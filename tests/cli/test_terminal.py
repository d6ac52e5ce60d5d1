"""What a person does at a terminal: one-key answers, steering lines, Ctrl-C; and the same through a plain pipe."""

import asyncio
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from hub.errors import ConflictError, RefusedError
from tests.cli import given
from tests.cli.fakehub import FakeHub
from tests.cli.given import APPROVAL, RUN, SESSION, command, decided, ends, environment, hubctl, opens, starts
from tests.cli.terminal import Terminal
from tests.cli.test_run import plays


def answers(hub: FakeHub, *, then_ends: bool = True) -> None:
    """The hub takes one answer, and the run ends."""

    def answer(params: dict[str, Any]) -> Any:
        state = "rejected" if params["decision"] == "reject" else "allowed"
        decided(hub, state, params["decision"], message=params["message"] or None)
        if then_ends:
            ends(hub)
        return given.approval(state=state, decision=params["decision"])

    hub.answers["approval.answer"] = answer


@pytest.mark.parametrize(("key", "decision"), [("a", "allow_once"), ("s", "allow_session"), ("A", "allow_always")])
def test_one_key_answers(hub: FakeHub, home: Path, key: str, decision: str) -> None:
    plays(hub, starts, opens)
    answers(hub)
    with Terminal(home, "run", "x") as screen:
        screen.expect("make test")
        screen.expect("[a] allow once")
        screen.type(key)
        screen.expect("completed")
        assert screen.ends() == 0
    assert [sent["decision"] for sent in hub.params_of("approval.answer")] == [decision]


def test_a_rejection_may_say_why(hub: FakeHub, home: Path) -> None:
    plays(hub, starts, opens)
    answers(hub)
    with Terminal(home, "run", "x") as screen:
        screen.expect("[a] allow once")
        before = screen.settings()
        screen.type("r")
        screen.expect("why?")
        assert screen.settings() != before
        screen.type("use the other branch\n")
        screen.expect("rejected")
        assert screen.ends() == 0
    sent = hub.params_of("approval.answer")
    assert [(one["decision"], one["message"]) for one in sent] == [("reject", "use the other branch")]


def test_other_keys_answer_nothing(hub: FakeHub, home: Path) -> None:
    long = "\n".join(f"line {number}" for number in range(90))
    plays(hub, starts, lambda hub: opens(hub, given.approval(arguments={"commands": [long]})))
    answers(hub)
    with Terminal(home, "run", "x") as screen:
        screen.expect("press d")
        screen.expect("[a] allow once")
        screen.type("y\r")
        screen.expect("not sent")
        screen.rests()
        screen.type("?")
        screen.expect("run exactly this, once")
        screen.rests()
        screen.type("d")
        screen.expect("line 89")
        screen.expect("[a] allow once")
        assert hub.params_of("approval.answer") == []
        screen.rests()
        screen.type("a")
        assert screen.ends() == 0


def test_an_answer_given_elsewhere_closes_the_question(hub: FakeHub, home: Path) -> None:
    plays(hub, starts, opens)
    with Terminal(home, "run", "x") as screen:
        screen.expect("[a] allow once")
        decided(hub, "allowed", "allow_once", decided_by="ada")
        screen.expect("by ada")
        ends(hub)
        assert screen.ends() == 0
    assert hub.params_of("approval.answer") == []


def test_who_comes_second_is_told(hub: FakeHub, home: Path) -> None:
    plays(hub, starts, opens)
    hub.answers["approval.answer"] = ConflictError("Ada has answered already.")
    with Terminal(home, "run", "x") as screen:
        screen.expect("[a] allow once")
        screen.type("a")
        screen.expect("Ada has answered already.")
        decided(hub, "rejected", "reject")
        ends(hub)
        assert screen.ends() == 0


def test_ctrl_c_can_cancel(hub: FakeHub, home: Path) -> None:
    plays(hub, starts)

    def cancel(params: dict[str, Any]) -> Any:
        ends(hub, "run.cancelled", stop_reason="cancelled")
        return {"id": RUN, "state": "running"}

    hub.answers["run.cancel"] = cancel
    with Terminal(home, "run", "x") as screen:
        screen.expect(RUN)
        screen.interrupt()
        screen.expect("[c] cancel the run")
        screen.type("c")
        screen.expect("cancelled")
        assert screen.ends() == 130
    assert hub.params_of("run.cancel")[0]["run_id"] == RUN


@pytest.mark.parametrize("second", ["\x03", "d"])
def test_ctrl_c_can_detach_and_answers_nothing(hub: FakeHub, home: Path, second: str) -> None:
    plays(hub, starts, opens)
    hub.answers |= {"approval.answer": ConflictError("no"), "run.cancel": ConflictError("no")}
    with Terminal(home, "run", "x") as screen:
        cooked = screen.settings()
        screen.expect("[a] allow once")
        screen.interrupt()
        screen.expect("[d] detach")
        screen.type(second)
        screen.expect("Detached")
        assert screen.ends() == 130
        assert screen.settings() == cooked
    assert hub.params_of("approval.answer") == hub.params_of("run.cancel") == []


def test_ctrl_c_and_enter_goes_on(hub: FakeHub, home: Path) -> None:
    plays(hub, starts, opens)
    answers(hub)
    with Terminal(home, "run", "x") as screen:
        screen.expect("[a] allow once")
        screen.interrupt()
        screen.expect("[Enter] go on")
        screen.type("\r")
        screen.expect("[a] allow once")
        screen.type("a")
        assert screen.ends() == 0


def watched(hub: FakeHub, **change: Any) -> None:
    """There is a session with a transcript and a run in progress."""
    message = {"role": "user", "parts": [{"type": "text", "text": "the first prompt"}], "id": "msg_1"}
    hub.answers |= {
        "session.get": given.session(state="running", active_run_id=RUN, **change),
        "session.messages": {"messages": [message], "next_after": None, "last_seq": 0},
        "prompt.submit": given.accepted(mode="steer"),
    }


def test_attach_shows_what_was_then_lives(hub: FakeHub, home: Path) -> None:
    watched(hub)
    answers(hub, then_ends=False)
    with Terminal(home, "attach", SESSION) as screen:
        screen.expect("the first prompt")
        hub.wait_call("events.subscribe")
        hub.live("message.delta", session_id=SESSION, run_id=RUN, message_id="msg_2", offset=0, text="I look")
        screen.expect("I look")
        screen.type("use the new API\n")
        assert hub.wait_call("prompt.submit")["text"] == "use the new API"
        opens(hub)
        screen.expect("[a] allow once")
        screen.rests()
        screen.type("a")
        screen.expect("allowed")
        ends(hub)
        screen.expect("completed")
        screen.interrupt()
        assert screen.ends() == 0


def test_a_question_that_was_open_before_is_put(hub: FakeHub, home: Path) -> None:
    watched(hub)
    hub.answers |= {
        "question.list": [given.question()],
        "question.answer": lambda params: given.question(state="answered", answer=params["answer"]),
    }
    with Terminal(home, "attach", SESSION) as screen:
        screen.expect("2. postgres")
        screen.expect("type your answer")
        screen.type("2\n")
        assert hub.wait_call("question.answer")["answer"] == "postgres"


def test_attach_through_a_pipe_steers_and_leaves_when_idle(hub: FakeHub, home: Path) -> None:
    watched(hub)

    def steered(params: dict[str, Any]) -> Any:
        hub.answers["session.get"] = given.session(state="idle")
        ends(hub)
        return given.accepted(mode="steer")

    hub.answers["prompt.submit"] = steered
    said = hubctl(home, "attach", SESSION, input="also the docs\n")
    assert said.returncode == 0
    assert "the first prompt" in said.stdout
    assert "\x1b" not in said.stdout
    assert hub.params_of("prompt.submit")[0]["text"] == "also the docs"


def test_a_line_through_a_pipe_can_be_a_key(hub: FakeHub, home: Path) -> None:
    watched(hub)
    hub.answers["approval.list"] = [given.approval()]
    answers(hub, then_ends=False)
    attached = subprocess.Popen(
        command(home, "attach", SESSION),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert attached.stdin
    assert attached.stdout
    assert any("[a] allow once" in line for line in attached.stdout)
    attached.stdin.write("r no network here\n")
    attached.stdin.flush()
    assert hub.wait_call("approval.answer")["message"] == "no network here"
    attached.terminate()
    assert attached.wait(20) == 0


def test_the_end_of_input_answers_nothing_and_says_how_to(hub: FakeHub, home: Path) -> None:
    watched(hub)
    hub.answers["approval.list"] = [given.approval()]
    attached = subprocess.Popen(
        command(home, "attach", SESSION),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert attached.stdout
    assert any(f"hubctl approve {APPROVAL}" in line for line in attached.stdout)
    attached.terminate()
    assert attached.wait(20) == 0
    assert hub.params_of("approval.answer") == []


def test_a_refused_line_is_told_and_watching_goes_on(hub: FakeHub, home: Path) -> None:
    watched(hub)
    hub.answers["prompt.submit"] = RefusedError("The queue is full.", code="queue_full")
    with Terminal(home, "attach", SESSION) as screen:
        screen.expect("the first prompt")
        hub.wait_call("events.subscribe")
        screen.type("one more thing\n")
        screen.expect("The queue is full.")
        ends(hub)
        screen.expect("completed")
        screen.type("\x04")
        assert screen.ends() == 0


def test_what_a_transcript_has_shown_leaves_the_inbox(hub: FakeHub, home: Path) -> None:
    watched(hub)
    other = given.delivery(id="dlv_2", session_id="ses_other")
    hub.answers |= {"delivery.list": [given.delivery(), other], "delivery.receipt": given.delivery(state="sent")}
    with Terminal(home, "attach", SESSION) as screen:
        screen.expect("the first prompt")
        hub.wait_call("events.subscribe")
        screen.type("\x04")
        assert screen.ends() == 0
    assert [sent["delivery_id"] for sent in hub.params_of("delivery.receipt")] == ["dlv_1"]


def test_two_who_attach_with_json_see_the_same(hub: FakeHub, home: Path) -> None:
    watched(hub)
    starts(hub)
    early = subprocess.Popen(
        command(home, "attach", SESSION, "--json"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert early.stdout
    first = [early.stdout.readline() for _ in range(2)]
    ends(hub)
    first.append(early.stdout.readline())
    late = subprocess.Popen(
        command(home, "attach", SESSION, "--json"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert late.stdout
    assert [late.stdout.readline() for _ in range(3)] == first
    for process in (early, late):
        process.terminate()
        assert process.wait(20) == 0


UNDO = "ckp_" + 100 * "0"
"""An id that no line of the screen has room for: what is to be copied is not cut."""


def test_restore_asks_at_a_terminal(hub: FakeHub, home: Path) -> None:
    hub.answers["checkpoint.show"] = given.checkpoint()
    hub.answers["checkpoint.restore"] = lambda params: given.restore(dry_run=params.get("dry_run", False), undo=UNDO)
    for key, code, count in (("n", 3, 1), ("y", 0, 3)):
        with Terminal(home, "checkpoint", "restore", given.CHECKPOINT) as screen:
            screen.expect("Would turn back")
            screen.expect("[y/N]")
            screen.type(key)
            if key == "y":
                screen.expect("1 restored, as planned")
                screen.expect(f"To take it back: hubctl checkpoint undo -w /repo  (or restore {UNDO})")
            assert screen.ends() == code
        assert len(hub.params_of("checkpoint.restore")) == count
    assert [sent["dry_run"] for sent in hub.params_of("checkpoint.restore")] == [True, True, False]


@pytest.mark.parametrize(("reach", "agreed"), [("session", "session"), ("tree", None)])
def test_a_plan_that_spares_others_is_what_is_done(hub: FakeHub, home: Path, reach: str, agreed: str | None) -> None:
    hub.answers["checkpoint.show"] = given.checkpoint()
    hub.answers["checkpoint.restore"] = lambda params: given.restore(dry_run=params["dry_run"], reach=reach)
    with Terminal(home, "checkpoint", "restore", given.CHECKPOINT, "--interrupt") as screen:
        screen.expect("the run in progress is cancelled first")
        screen.expect("[y/N]")
        screen.type("y")
        assert screen.ends() == 0
    assert [sent.get("reach") for sent in hub.params_of("checkpoint.restore")] == [None, agreed]


def test_purge_shows_what_goes_and_asks(hub: FakeHub, home: Path) -> None:
    hub.answers["checkpoint.purge"] = lambda params: given.pruned(dry_run=params.get("dry_run", False))
    for key, code, count in (("n", 3, 1), ("y", 0, 3)):
        with Terminal(home, "checkpoint", "purge", "--session", SESSION) as screen:
            screen.expect("Would delete 1 checkpoint")
            screen.expect("[y/N]")
            screen.type(key)
            assert screen.ends() == code
        assert len(hub.params_of("checkpoint.purge")) == count
    assert [sent["dry_run"] for sent in hub.params_of("checkpoint.purge")] == [True, True, False]


def test_how_far_a_long_capture_is(hub: FakeHub, home: Path) -> None:
    seen = threading.Event()

    async def create(params: dict[str, Any]) -> Any:
        hub.live("checkpoint.progress", session_id="ses_other", step="files", done=7, total=8)
        hub.live("checkpoint.progress", session_id=SESSION, step="files", done=1200, total=5000)
        await asyncio.to_thread(seen.wait, 20)
        return given.checkpoint(session_id=SESSION)

    hub.answers["checkpoint.create"] = create
    with Terminal(home, "checkpoint", "create", "--session", SESSION) as screen:
        screen.expect("saving files: 1,200 of 5,000")
        seen.set()
        screen.expect(given.CHECKPOINT)
        assert screen.ends() == 0
        assert "7 of 8" not in screen.seen
