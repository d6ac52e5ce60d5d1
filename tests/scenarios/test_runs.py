"""Runs on a real hub with a real repository: asked, allowed, refused, steered, cancelled, limited."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from hub.errors import ConflictError, NotFoundError, UsageError
from tests.hubs import HubProcess, collect, ended, lines, make_repo, scenario, submit

EDIT = """
turns:
  - text: I will edit.
    tool_calls: [{name: editor, arguments: {path: a.txt, old_text: one, new_text: two}}]
  - text: Done.
"""


def data_of(events: list, type: str) -> list[dict]:
    return [msgspec.json.decode(event.data) for event in events if event.type == type]


async def test_an_edit_asks_and_an_allowed_one_is_made(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", EDIT)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        opened = data_of(await collect(client, accepted.session_id, {"run.waiting"}), "approval.opened")
        assert opened[0]["tool"] == "editor"
        assert opened[0]["arguments"]["new_text"] == "two"
        assert "-one" in opened[0]["preview"]
        assert (repo / "a.txt").read_text() == "one\n"
        answer = {"approval_id": opened[0]["approval_id"], "decision": "allow_once"}
        decided = await client.call("approval.answer", **answer)
        assert (decided.state, decided.decided_by) == ("allowed", "owner")
        events = await ended(client, accepted.session_id)
        assert events[-1].type == "run.completed"
        assert data_of(events, "run.completed")[0]["files_changed"] == ["a.txt"]
        assert (repo / "a.txt").read_text() == "two\n"
        with pytest.raises(ConflictError) as caught:
            await client.call("approval.answer", **answer)
        assert caught.value.code == "already_decided"


async def test_a_rejection_changes_nothing_and_the_model_is_told(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", EDIT)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        opened = data_of(await collect(client, accepted.session_id, {"run.waiting"}), "approval.opened")
        await client.call(
            "approval.answer", approval_id=opened[0]["approval_id"], decision="reject", message="not this file"
        )
        events = await ended(client, accepted.session_id)
        assert events[-1].type == "run.completed"
        assert data_of(events, "tool_call.ended")[0]["state"] == "denied"
        assert (repo / "a.txt").read_text() == "one\n"
        told = await client.call("session.messages", session_id=accepted.session_id)
        results = [part.text for message in told.messages for part in message.results]
        assert results == ["Rejected by owner: not this file"]


async def test_an_allowed_call_is_asked_again_when_its_file_has_changed(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", EDIT)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        first = data_of(await collect(client, accepted.session_id, {"run.waiting"}), "approval.opened")[0]
        (repo / "a.txt").write_text("one and more\n")
        await client.call("approval.answer", approval_id=first["approval_id"], decision="allow_once")
        decided = await collect(client, accepted.session_id, {"approval.decided"})
        again = await collect(client, accepted.session_id, {"approval.opened"}, after=decided[-1].seq)
        second = data_of(again, "approval.opened")[0]
        assert second["call_id"] == first["call_id"]
        assert "asked again" in second["reason"]
        assert (repo / "a.txt").read_text() == "one and more\n"
        await client.call("approval.answer", approval_id=second["approval_id"], decision="allow_once")
        await ended(client, accepted.session_id)
        assert (repo / "a.txt").read_text() == "two and more\n"


TWO_COMMANDS = """
turns:
  - tool_calls: [{name: run_commands, arguments: {commands: ["echo x >> count"]}}]
  - tool_calls: [{name: run_commands, arguments: {commands: ["echo x >> count"]}}]
  - tool_calls: [{name: run_commands, arguments: {commands: ["echo y >> count"]}}]
  - text: Done.
"""


async def test_allow_session_covers_exactly_the_same_command(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", TWO_COMMANDS)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        first = data_of(await collect(client, accepted.session_id, {"run.waiting"}), "approval.opened")[0]
        await client.call("approval.answer", approval_id=first["approval_id"], decision="allow_session")
        while len(found := await client.call("approval.list", session_id=accepted.session_id)) != 1 or (
            found[0].id == first["approval_id"]
        ):
            await asyncio.sleep(0.02)
        assert found[0].arguments == {"commands": ["echo y >> count"]}
        assert lines(repo / "count") == ["x", "x"]
        grants = await client.call("grant.list", session_id=accepted.session_id)
        assert [grant.scope for grant in grants] == ["session"]
        await client.call("approval.answer", approval_id=found[0].id, decision="reject")
        await ended(client, accepted.session_id)
        assert lines(repo / "count") == ["x", "x"]


SLOW = """
turns:
  - tool_calls: [{name: run_commands, arguments: {commands: ["echo $$ >> pids; sleep 90 & sleep 90"]}}]
  - text: Heard you.
  - text: Second.
"""


async def test_cancel_ends_the_command_with_its_children(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", SLOW)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"])
        while not lines(repo / "pids"):
            await asyncio.sleep(0.02)
        ack = await client.call("run.cancel", session_id=accepted.session_id)
        events = await ended(client, accepted.session_id)
        assert (events[-1].type, events[-1].run_id) == ("run.cancelled", ack.id)
        assert data_of(events, "tool_call.ended")[0]["state"] == "cancelled"
        group = int(lines(repo / "pids")[0])
        assert not Path(f"/proc/{group}").exists()
        again = await client.call(
            "prompt.submit",
            text="and now?",
            session_id=accepted.session_id,
            run={"model": model, "auto_approve": ["all"]},
        )
        assert again.mode == "follow_up"


STEERED = """
turns:
  - tool_calls:
      - {name: run_commands, arguments: {commands: ["touch began; while ! test -e go; do sleep 0.02; done"]}}
      - {name: run_commands, arguments: {commands: ["echo second >> count"]}}
  - text: Heard you.
"""


async def test_a_steer_goes_before_the_calls_that_have_not_begun(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", STEERED)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"])
        while not (repo / "began").exists():
            await asyncio.sleep(0.02)
        steers = [
            await client.call("prompt.submit", text=text, session_id=accepted.session_id, mode="steer")
            for text in ("first", "second")
        ]
        assert {steer.mode for steer in steers} == {"steer"}
        (repo / "go").touch()
        events = await ended(client, accepted.session_id)
        assert [data["state"] for data in data_of(events, "tool_call.ended")] == ["completed", "skipped"]
        assert lines(repo / "count") == []
        told = await client.call("session.messages", session_id=accepted.session_id)
        assert [(m.role, m.text) for m in told.messages if m.text] == [
            ("user", "do it"),
            ("user", "first"),
            ("user", "second"),
            ("assistant", "Heard you."),
        ]


QUESTION = """
turns:
  - tool_calls: [{name: ask_question, arguments: {question: "Which one?", options: ["red", "blue"]}}]
  - text: Thanks.
"""


async def test_a_question_waits_for_its_answer(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", QUESTION)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        await collect(client, accepted.session_id, {"run.waiting"})
        (question,) = await client.call("question.list")
        assert (question.question, question.options) == ("Which one?", ["red", "blue"])
        await client.call("question.answer", question_id=question.id, answer="blue")
        assert (await ended(client, accepted.session_id))[-1].type == "run.completed"
        told = await client.call("session.messages", session_id=accepted.session_id)
        assert [part.text for m in told.messages for part in m.results] == ["blue"]


async def test_limits_end_a_run_with_their_name(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", TWO_COMMANDS)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"], limits={"max_turns": 2})
        events = await ended(client, accepted.session_id)
        assert events[-1].type == "run.failed"
        assert data_of(events, "run.failed")[0]["stop_reason"] == "limit_turns"
        accepted = await submit(
            client, repo, scenario(tmp_path / "slow.yaml", SLOW), auto_approve=["all"], limits={"max_wall_s": 0.3}
        )
        events = await ended(client, accepted.session_id)
        assert data_of(events, "run.failed")[0]["stop_reason"] == "limit_time"


async def test_plan_mode_writes_nothing(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", TWO_COMMANDS)
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model, auto_approve=["all"], agent_mode="plan", preset="yolo")
        events = await ended(client, accepted.session_id)
        assert {data["state"] for data in data_of(events, "tool_call.ended")} == {"denied"}
        assert lines(repo / "count") == []


async def test_the_same_key_gives_the_same_answer_over_two_sockets(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", "turns: [{text: hi}]")
    hub = await hubs().start()
    async with await hub.client() as one, await hub.client() as two:
        call = {"text": "x", "workspace": str(repo), "run": {"model": model}, "idempotency_key": "the-same-key"}
        answers = await asyncio.gather(*(client.call("prompt.submit", **call) for client in (one, two, one)))
        assert len({answer.prompt_id for answer in answers}) == 1
        other = await one.call("prompt.submit", **{**call, "idempotency_key": "another-key"})
        assert other.prompt_id != answers[0].prompt_id
        with pytest.raises(ConflictError) as caught:
            await two.call("prompt.submit", **{**call, "text": "y"})
        assert caught.value.code == "key_reused"
        assert len(await one.call("session.list")) == 2


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"run": {}}, UsageError, "no_model"),
        ({"run": {"model": "nonsense"}}, UsageError, "unknown_model"),
        ({"run": {"model": "scripted:/nowhere.yaml"}}, UsageError, "scenario_invalid"),
        ({"workspace": "/nowhere/at/all"}, UsageError, "not_a_directory"),
        ({"workspace": "unregistered"}, NotFoundError, "unknown_workspace"),
        ({"workspace": None, "session_id": "ses_none"}, NotFoundError, "unknown_session"),
        ({"session_id": "ses_none"}, UsageError, "invalid_params"),
        ({"text": ""}, UsageError, "invalid_params"),
        ({"approved": True}, UsageError, "invalid_params"),
    ],
)
async def test_bad_prompts_are_refused_with_a_code_and_nothing_is_stored(
    hubs: Callable[..., HubProcess], tmp_path: Path, change: dict, kind: type, code: str
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", "turns: [{text: hi}]")
    hub = await hubs().start()
    async with await hub.client() as client:
        call = {"text": "x", "workspace": str(repo), "run": {"model": model}, **change}
        call = {name: value for name, value in call.items() if value is not None}
        with pytest.raises(kind) as caught:
            await client.call("prompt.submit", **call)
        assert caught.value.code == code
        assert await client.call("session.list") == []


async def test_a_folder_without_git_can_be_turned_back_as_well(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    calls = "[{name: run_commands, arguments: {commands: ['rm a.txt; echo new > b.txt']}}]"
    model = scenario(tmp_path / "s.yaml", f"turns: [{{tool_calls: {calls}}}, {{text: ok}}]")
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "a.txt").write_text("mine")
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, folder, model, auto_approve=["all"])
        await ended(client, accepted.session_id)
        assert sorted(path.name for path in folder.iterdir()) == ["b.txt"]
        (saved,) = await client.call("checkpoint.list", session_id=accepted.session_id)
        done = await client.call("checkpoint.restore", checkpoint_id=saved.id)
        assert (done.created, done.deleted, done.messages > 0) == (["a.txt"], ["b.txt"], True)
        assert [(path.name, path.read_text()) for path in folder.iterdir()] == [("a.txt", "mine")]
        await client.call("checkpoint.undo", session_id=accepted.session_id)
        assert [path.name for path in folder.iterdir()] == ["b.txt"]
