"""`hubctl run`: one submission, followed to its end, and the exit code of its outcome."""

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cli.run import Pursuit, categories, chosen_model, end_of, exit_code
from hub.errors import RefusedError, UnavailableError, UsageError
from hub.protocol.discovery import record_path
from tests.cli import given
from tests.cli.conftest import Call
from tests.cli.fakehub import FakeHub
from tests.cli.given import PROMPT, RUN, SESSION, decided, ends, lines, opens, starts


def plays(hub: FakeHub, *steps: Callable[[FakeHub], None]) -> None:
    """When the prompt is submitted, it is stored and these steps happen."""

    def submit(params: dict[str, Any]) -> Any:
        for step in steps:
            step(hub)
        return given.accepted()

    hub.answers["prompt.submit"] = submit


@contextmanager
def played(play: Callable[[], object]) -> Iterator[None]:
    """The hub goes on by itself meanwhile."""
    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(play)
        yield
        playing.result(20)


def test_json_ends_with_the_outcome(hub: FakeHub, call: Call) -> None:
    plays(hub, starts, ends)
    said = call("run", "fix it", "--json")
    found = lines(said.out)
    assert said.code == 0
    assert [line["type"] for line in found] == ["prompt.taken", "run.started", "run.completed"]
    assert [line["seq"] for line in found] == [1, 2, 3]
    last = found[-1]
    assert (last["session_id"], last["run_id"], last["stop_reason"]) == (SESSION, RUN, "completed")
    assert last["usage"] == {"input_tokens": 10, "output_tokens": 2, "cached_tokens": None}
    assert (last["cost"], last["files_changed"]) == (None, ["a.py"])


def test_what_is_submitted(hub: FakeHub, call: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(hub, starts, ends)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNBACK_MODEL", "scripted:turns.yaml")
    call("run", "plan it", "--mode", "plan", "--preset", "search", "--auto-approve", "edits,commands", "--json")
    sent = hub.params_of("prompt.submit")[0]
    assert (sent["text"], sent["mode"], sent["workspace"]) == ("plan it", "follow_up", str(tmp_path))
    assert sent["run"] == {
        "agent_mode": "plan",
        "preset": "search",
        "model": f"scripted:{tmp_path}/turns.yaml",
        "auto_approve": ["edits", "commands"],
    }


def test_the_prompt_may_come_through_a_pipe(hub: FakeHub, call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    plays(hub, starts, ends)
    for arguments in (("run", "--json"), ("run", "-", "--json")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("größer\n".encode()), "utf-8"))
        assert call(*arguments).code == 0
    assert [sent["text"] for sent in hub.params_of("prompt.submit")] == ["größer", "größer"]
    assert call("run", "  ").code == 2


@pytest.mark.parametrize(
    ("end", "code"), [("run.completed", 0), ("run.failed", 1), ("run.interrupted", 1), ("run.cancelled", 130)]
)
def test_exit_code_is_that_of_the_end(hub: FakeHub, call: Call, end: str, code: int) -> None:
    plays(hub, starts, lambda hub: ends(hub, end))
    said = call("run", "x", "--json")
    assert (said.code, lines(said.out)[-1]["type"]) == (code, end)


def test_a_refused_prompt_is_an_error(hub: FakeHub, call: Call) -> None:
    hub.answers["prompt.submit"] = UsageError("No model.", code="no_model", hint="Three ways.")
    said = call("run", "x", "--json")
    assert (said.code, said.out, said.error["code"]) == (2, "", "no_model")


def test_a_prompt_that_was_taken_back_ends_the_waiting(hub: FakeHub, call: Call) -> None:
    plays(hub, lambda hub: hub.emit("prompt.removed", session_id=SESSION, prompt_id=PROMPT, reason="taken back"))
    assert call("run", "x", "--json").code == 130


def test_runs_before_ours_are_not_shown(hub: FakeHub, call: Call) -> None:
    hub.answers["session.get"] = given.session(active_run_id="run_old")
    plays(
        hub,
        lambda hub: ends(hub, run_id="run_old"),
        lambda hub: starts(hub, "run_other", "prm_other"),
        lambda hub: ends(hub, run_id="run_other"),
        starts,
        ends,
    )
    found = lines(call("run", "x", "--session", SESSION, "--json").out)
    assert {line["run_id"] for line in found} == {RUN}
    assert found[-1]["type"] == "run.completed"


def test_on_ask_reject_answers_no_and_ends_with_8(hub: FakeHub, call: Call) -> None:
    plays(hub, starts, opens)

    def answer(params: dict[str, Any]) -> Any:
        decided(hub, "rejected", params["decision"])
        ends(hub)
        return given.approval(state="rejected", decision="reject")

    hub.answers["approval.answer"] = answer
    assert call("run", "x", "--on-ask", "reject", "--json").code == 8
    sent = hub.params_of("approval.answer")
    assert [(one["decision"], bool(one["message"])) for one in sent] == [("reject", True)]


def test_on_ask_reject_says_in_words_what_was_asked_and_why_it_ends_with_8(hub: FakeHub, call: Call) -> None:
    plays(hub, starts, opens)

    def answer(params: dict[str, Any]) -> Any:
        decided(hub, "rejected", params["decision"])
        ends(hub)
        return given.approval(state="rejected", decision="reject")

    hub.answers["approval.answer"] = answer
    said = call("run", "x", "--on-ask", "reject")
    assert said.code == 8
    assert "make test" in said.out
    assert "Rejected because of --on-ask reject: 1 question" in said.err
    assert "exit code is 8" in said.err


def test_when_the_hub_stays_away_it_says_how_to_come_back(
    hub: FakeHub, call: Call, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.conversation.HUB_PATIENCE_S", 0.1)
    plays(hub, starts)
    with played(lambda: (hub.wait_call("events.subscribe", 2), record_path(home).unlink(), hub.drop())):
        said = call("run", "x")
    assert said.code == 4
    assert f"The run in {SESSION} goes on when the hub is back. Then: hubctl attach {SESSION}" in said.err


def test_steers_of_others_are_shown(hub: FakeHub, call: Call) -> None:
    def says(hub: FakeHub, text: str) -> None:
        whole = {"message_id": f"msg_{text}", "position": 1, "role": "user", "text": text, "cut": False}
        hub.emit("message.added", session_id=SESSION, run_id=RUN, **whole)

    plays(hub, starts, lambda hub: says(hub, "fix it"), lambda hub: says(hub, "the docs too"), ends)
    said = call("run", "fix it").out
    assert "› the docs too" in said
    assert "fix it" not in said


def test_an_expired_approval_ends_with_8(hub: FakeHub, call: Call) -> None:
    plays(hub, starts, opens, lambda hub: decided(hub, "expired", None), ends)
    hub.answers["approval.answer"] = RefusedError("never asked")
    assert call("run", "x").code == 8
    assert hub.params_of("approval.answer") == []


def test_a_rejection_by_a_person_is_a_completed_run(hub: FakeHub, call: Call) -> None:
    plays(hub, starts, opens, lambda hub: decided(hub, "rejected", "reject", message="too risky"), ends)
    said = call("run", "x")
    assert said.code == 0
    assert "too risky" in said.out


def test_without_a_terminal_it_says_how_to_answer_and_answers_nothing(hub: FakeHub, call: Call) -> None:
    plays(hub, starts, opens)
    with played(lambda: (hub.wait_call("question.list"), decided(hub, "allowed", "allow_once"), ends(hub))):
        said = call("run", "x", "--json")
    assert said.code == 0
    assert f"hubctl approve {given.APPROVAL}" in said.err
    assert lines(said.out)[-1]["type"] == "run.completed"
    assert hub.params_of("approval.answer") == []


def test_it_goes_on_by_cursor_after_a_lost_connection(hub: FakeHub, call: Call) -> None:
    plays(hub, starts)
    with played(lambda: (hub.wait_call("events.subscribe", 2), hub.drop(), ends(hub))):
        found = lines(call("run", "x", "--json").out)
    assert [line["seq"] for line in found] == [1, 2, 3]
    assert found[-1]["type"] == "run.completed"


def say(hub: FakeHub, text: str) -> None:
    hub.live("message.delta", session_id=SESSION, run_id=RUN, message_id="msg_1", offset=0, text=text)


@pytest.mark.parametrize(("option", "shown"), [((), False), (("--deltas",), True)])
def test_deltas_are_shown_only_when_asked_for(hub: FakeHub, call: Call, option: tuple[str, ...], shown: bool) -> None:
    plays(hub, starts)
    with played(lambda: (hub.wait_call("events.subscribe", 2), say(hub, "ha"), ends(hub))):
        found = lines(call("run", "x", "--json", *option).out)
    assert ("message.delta" in [line["type"] for line in found]) is shown


def test_streamed_text_is_shown_once(hub: FakeHub, call: Call) -> None:
    whole = {"message_id": "msg_1", "position": 2, "role": "assistant", "text": "hello there", "cut": False}
    plays(hub, starts)
    with played(
        lambda: (
            hub.wait_call("events.subscribe", 2),
            say(hub, "hello"),
            hub.emit("message.added", session_id=SESSION, run_id=RUN, **whole),
            ends(hub),
        )
    ):
        said = call("run", "x")
    assert said.out.count("hello there\n") == 1
    assert said.out.count("hello") == 1


def test_whoever_follows_to_the_end_has_seen_the_result(hub: FakeHub, call: Call) -> None:
    hub.answers |= {
        "delivery.list": [given.delivery(), given.delivery(id="dlv_2", run_id="run_other")],
        "delivery.receipt": given.delivery(state="sent"),
    }
    plays(hub, starts, ends)
    call("run", "x", "--json")
    assert [sent["delivery_id"] for sent in hub.params_of("delivery.receipt")] == ["dlv_1"]


def test_session_and_workspace_exclude_each_other(call: Call) -> None:
    assert call("run", "x", "--session", SESSION, "-w", "/repo").code == 2


@pytest.mark.parametrize(
    ("words", "found"),
    [((), ()), (("edits", "all"), ("edits", "all")), (("edits, commands,edits",), ("edits", "commands"))],
)
def test_categories(words: tuple[str, ...], found: tuple[str, ...]) -> None:
    assert categories(words) == found


def test_an_unknown_category_is_refused() -> None:
    with pytest.raises(UsageError, match="everything"):
        categories(["everything"])


def test_the_flag_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNBACK_MODEL", "openai/other")
    assert chosen_model("openai/this") == "openai/this"
    assert chosen_model(None) == "openai/other"
    monkeypatch.delenv("TURNBACK_MODEL")
    assert chosen_model(None) is None


@pytest.mark.parametrize(
    ("end", "unanswered", "code"),
    [
        ("run.completed", True, 8),
        ("run.failed", True, 8),
        ("run.cancelled", True, 130),
        ("run.failed", False, 1),
        (None, False, 130),
    ],
)
def test_exit_codes(end: str | None, unanswered: bool, code: int) -> None:
    assert exit_code(end, unanswered=unanswered) == code


def test_an_end_that_was_lost_in_a_gap_is_made_anew() -> None:
    end = end_of(given.run_view(state="failed", stop_reason="model_error"), 9)
    assert (end.type, end.seq) == ("run.failed", 9)
    assert Pursuit(PROMPT, run_id=RUN).ended_by(end)


def test_questions_of_another_run_are_left_to_others(hub: FakeHub, call: Call) -> None:
    hub.answers["session.get"] = given.session(active_run_id="run_old")
    plays(
        hub,
        lambda hub: opens(hub, given.approval(id="apr_old", run_id="run_old")),
        lambda hub: ends(hub, run_id="run_old"),
        starts,
        ends,
    )
    assert call("run", "x", "--session", SESSION, "--on-ask", "reject", "--json").code == 0
    assert hub.params_of("approval.answer") == []


def test_it_does_not_start_a_hub_that_was_stopped(hub: FakeHub, call: Call, home: Path) -> None:
    """The run ends and the hub with it: the outcome counts, and nobody is started to take the receipt."""
    plays(hub, starts)

    def stops_meanwhile(params: dict[str, Any]) -> Any:
        record_path(home).unlink()
        hub.drop()
        raise UnavailableError("stopping", code="draining")

    hub.answers["delivery.list"] = stops_meanwhile
    with played(lambda: (hub.wait_call("events.subscribe", 2), ends(hub))):
        said = call("run", "x", "--json")
    assert said.code == 0
    assert lines(said.out)[-1]["type"] == "run.completed"
    assert not (home / "logs").exists()
