"""Typing at a terminal where a question appears: a line stays a line, only a single key answers, Ctrl-D leaves."""

from pathlib import Path

import pytest

from tests.cli import given
from tests.cli.fakehub import FakeHub
from tests.cli.given import SESSION, asks, decided, opens, starts
from tests.cli.terminal import Terminal
from tests.cli.test_run import plays
from tests.cli.test_terminal import answers, watched


def test_what_was_typed_before_a_question_does_not_answer_it(hub: FakeHub, home: Path) -> None:
    watched(hub)
    answers(hub, then_ends=False)
    with Terminal(home, "attach", SESSION) as screen:
        screen.expect("the first prompt")
        hub.wait_call("events.subscribe")
        screen.type("a")
        screen.expect("a")
        opens(hub)
        screen.expect("[a] allow once")
        screen.expect("› a")
        screen.rests()
        screen.type("dd docs\n")
        assert hub.wait_call("prompt.submit")["text"] == "add docs"
        assert hub.params_of("approval.answer") == []
        screen.rests()
        screen.type("r")
        screen.expect("why?")
        screen.type("\n")
        screen.expect("rejected")
    assert [sent["decision"] for sent in hub.params_of("approval.answer")] == ["reject"]


@pytest.mark.parametrize("line", ["all of it", "a", "read it again"])
def test_a_line_at_once_steers_and_answers_nothing(hub: FakeHub, home: Path, line: str) -> None:
    watched(hub)
    hub.answers["approval.list"] = [given.approval()]
    answers(hub)
    with Terminal(home, "attach", SESSION) as screen:
        screen.expect("[a] allow once")
        screen.type(line + "\n")
        assert hub.wait_call("prompt.submit")["text"] == line
        screen.rests()
    assert hub.params_of("approval.answer") == []


def test_letters_typed_one_by_one_are_a_line_and_stay_when_the_question_closes(hub: FakeHub, home: Path) -> None:
    watched(hub)
    hub.answers["approval.list"] = [given.approval()]
    answers(hub)
    with Terminal(home, "attach", SESSION) as screen:
        screen.expect("[a] allow once")
        screen.type("a")
        screen.rests(0.05)
        screen.type("s")
        screen.expect("› as")
        decided(hub, "allowed", "allow_once", decided_by="ada")
        screen.expect("by ada")
        screen.type("k\n")
        assert hub.wait_call("prompt.submit")["text"] == "ask"
    assert hub.params_of("approval.answer") == []


def test_enter_after_a_key_answers(hub: FakeHub, home: Path) -> None:
    plays(hub, starts, opens)
    answers(hub)
    with Terminal(home, "run", "x") as screen:
        screen.expect("[a] allow once")
        screen.type("a")
        screen.rests(0.1)
        screen.type("\n")
        assert screen.ends() == 0
    assert [sent["decision"] for sent in hub.params_of("approval.answer")] == ["allow_once"]


def test_a_line_begun_before_a_question_of_the_agent_does_not_answer_it(hub: FakeHub, home: Path) -> None:
    watched(hub)
    with Terminal(home, "attach", SESSION) as screen:
        screen.expect("the first prompt")
        hub.wait_call("events.subscribe")
        screen.type("use")
        screen.expect("use")
        asks(hub)
        screen.expect("type your answer")
        screen.expect("› use")
        screen.type(" tabs\n")
        assert hub.wait_call("prompt.submit")["text"] == "use tabs"
    assert hub.params_of("question.answer") == []


def test_ctrl_d_leaves_while_a_question_is_open(hub: FakeHub, home: Path) -> None:
    watched(hub)
    hub.answers["approval.list"] = [given.approval()]
    with Terminal(home, "attach", SESSION) as screen:
        screen.expect("[a] allow once")
        screen.type("\x04")
        assert screen.ends() == 0
    assert hub.params_of("approval.answer") == hub.params_of("run.cancel") == []
