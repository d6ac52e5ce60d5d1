"""What a reviewer broke once: each stays as it must be."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from hub.client import HubClient
from hub.errors import RefusedError
from tests.hubs import HubProcess, collect, ended, lines, make_repo, scenario, submit


async def waiting_for(client: HubClient, session_id: str) -> str:
    await collect(client, session_id, {"run.waiting"})
    (found,) = await client.call("approval.list", session_id=session_id)
    return found.id


EDIT = """
turns:
  - tool_calls: [{name: editor, arguments: {path: a.txt, old_text: "o", new_text: "X"}}]
  - text: Done.
"""
LONG = """
turns:
  - tool_calls:
      - name: run_commands
        arguments: {commands: ["touch began; until test -e go; do sleep 0.1; done; echo moved > a.txt"]}
  - text: Done.
"""


async def test_an_allowed_edit_that_waits_for_another_writer_is_looked_at_again(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    edit, long = scenario(tmp_path / "e.yaml", EDIT), scenario(tmp_path / "l.yaml", LONG)
    hub = await hubs().start()
    async with await hub.client() as client:
        one = await submit(client, repo, edit)
        asked = await waiting_for(client, one.session_id)
        other = await submit(client, repo, long, auto_approve=["all"])
        while not (repo / "began").exists():
            await asyncio.sleep(0.02)
        await client.call("approval.answer", approval_id=asked, decision="allow_once")
        (repo / "go").touch()
        await ended(client, other.session_id)
        while not (open_ones := await client.call("approval.list", session_id=one.session_id)):
            await asyncio.sleep(0.02)
        assert "asked again" in open_ones[0].reason
        assert (repo / "a.txt").read_text() == "moved\n"


async def test_a_steer_stops_a_call_that_waits_for_its_turn(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    command = "turns: [{tool_calls: [{name: run_commands, arguments: {commands: ['echo x >> count']}}]}, {text: ok}]"
    ask, long = scenario(tmp_path / "e.yaml", command), scenario(tmp_path / "l.yaml", LONG)
    hub = await hubs().start()
    async with await hub.client() as client:
        one = await submit(client, repo, ask)
        asked = await waiting_for(client, one.session_id)
        await submit(client, repo, long, auto_approve=["all"])
        while not (repo / "began").exists():
            await asyncio.sleep(0.02)
        await client.call("approval.answer", approval_id=asked, decision="allow_once")
        await client.call("prompt.submit", session_id=one.session_id, text="stop", mode="steer")
        (repo / "go").touch()
        assert (await ended(client, one.session_id))[-1].type == "run.completed"
        assert lines(repo / "count") == []


async def test_interrupting_for_a_restore_keeps_the_next_prompt_out_until_it_is_done(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    long = "turns: [{tool_calls: [{name: run_commands, arguments: {commands: ['touch began; sleep 90']}}]}, {text: ok}]"
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "long.yaml", long)
    hub = await hubs().start()
    async with await hub.client() as client:
        made = await client.call("checkpoint.create", workspace=str(repo))
        one = await submit(client, repo, model, auto_approve=["all"])
        while not (repo / "began").exists():
            await asyncio.sleep(0.02)
        await client.call("prompt.submit", session_id=one.session_id, text="next", run={"auto_approve": ["all"]})
        done = await client.call("checkpoint.restore", checkpoint_id=made.id, interrupt=True)
        assert done.deleted == ["began"]
        while not (repo / "began").exists():
            await asyncio.sleep(0.02)
        states = [run.state for run in await client.call("run.list", session_id=one.session_id)]
        assert states == ["running", "cancelled"]
        await client.call("run.cancel", session_id=one.session_id)
    assert hub.stop() == 0


async def test_one_key_has_one_effect_however_often_it_comes_at_once(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    hub = await hubs().start()
    async with await hub.client() as client:
        calls = [
            client.call("checkpoint.create", workspace=str(repo), idempotency_key="the-same-key") for _ in range(6)
        ]
        answers = await asyncio.gather(*calls)
        assert len({answer.id for answer in answers}) == 1
        assert len(await client.call("checkpoint.list", workspace=str(repo))) == 1


async def test_a_repeat_is_answered_though_what_it_named_is_gone(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo, model = make_repo(tmp_path / "repo"), scenario(tmp_path / "s.yaml", "turns: [{text: hi}]")
    hub = await hubs().start()
    async with await hub.client() as client:
        call = {"text": "x", "workspace": str(repo), "run": {"model": model}, "idempotency_key": "the-same-key"}
        first = await client.call("prompt.submit", **call)
        (tmp_path / "s.yaml").unlink()
        assert await client.call("prompt.submit", **call) == first


async def test_stops_that_were_asked_for_are_no_crashes(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    model = scenario(tmp_path / "s.yaml", "turns: [{text: hello, delay_s: 60}]")
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, model)
        await collect(client, accepted.session_id, {"run.started"})
    for _ in range(4):
        assert hub.process is not None
        hub.process.terminate()
        await asyncio.sleep(0.1)
        assert hub.stop() == 0
        await hub.start()
    async with await hub.client() as client:
        while (state := (await client.call("run.list"))[0].state) == "queued":  # taken up when the hub is ready
            await asyncio.sleep(0.02)
        assert state == "running"


async def test_nothing_of_a_cancelled_run_lives_on(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    text = """
    turns:
      - tool_calls:
          - name: run_commands
            arguments:
              commands:
                - "(sleep 3; echo left >> late) >/dev/null 2>&1 &"
                - "setsid sh -c 'sleep 3; echo away >> late' &"
          - {name: run_commands, arguments: {commands: ["touch began; sleep 90"]}}
      - text: Done.
    """
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, scenario(tmp_path / "s.yaml", text), auto_approve=["all"])
        while not (repo / "began").exists():
            await asyncio.sleep(0.02)
        await client.call("run.cancel", session_id=accepted.session_id)
        assert (await ended(client, accepted.session_id))[-1].type == "run.cancelled"
        await asyncio.sleep(3.5)
        assert lines(repo / "late") == []


async def test_a_link_that_appears_after_the_ruling_is_asked_about(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    (tmp_path / "outside.txt").write_text("TOPSECRET\n")
    text = f"""
    turns:
      - tool_calls:
          - {{name: run_commands, arguments: {{commands: ["ln -s {tmp_path / "outside.txt"} late"]}}}}
          - {{name: read_files, arguments: {{paths: [late]}}}}
      - text: Done.
    """
    hub = await hubs().start()
    async with await hub.client() as client:
        model = scenario(tmp_path / "s.yaml", text)
        accepted = await submit(client, repo, model, auto_approve=["commands"])
        asked = await waiting_for(client, accepted.session_id)
        await client.call("approval.answer", approval_id=asked, decision="reject")
        await ended(client, accepted.session_id)
        told = await client.call("session.messages", session_id=accepted.session_id)
        assert "TOPSECRET" not in str(told)


async def test_a_grant_holds_in_its_own_directory_only(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo", {"one/run.sh": "echo one >> ../ran\n", "two/run.sh": "echo two >> ../ran\n"})
    text = "turns: [{tool_calls: [{name: run_commands, arguments: {commands: ['sh run.sh']}}]}, {text: ok}]"
    model = scenario(tmp_path / "s.yaml", text)
    hub = await hubs().start()
    async with await hub.client() as client:
        one = await submit(client, repo / "one", model)
        asked = await waiting_for(client, one.session_id)
        await client.call("approval.answer", approval_id=asked, decision="allow_always")
        await ended(client, one.session_id)
        again = await submit(client, repo / "one", model)
        await ended(client, again.session_id)
        two = await submit(client, repo / "two", model)
        await waiting_for(client, two.session_id)
        assert lines(repo / "ran") == ["one", "one"]


async def test_a_restore_names_what_was_run_whoever_ran_it(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    text = "turns: [{tool_calls: [{name: run_commands, arguments: {commands: ['echo x >> a.txt']}}]}, {text: ok}]"
    hub = await hubs().start()
    async with await hub.client() as client:
        made = await client.call("checkpoint.create", workspace=str(repo))
        accepted = await submit(client, repo, scenario(tmp_path / "s.yaml", text), auto_approve=["all"])
        await ended(client, accepted.session_id)
        done = await client.call("checkpoint.restore", checkpoint_id=made.id)
        assert [effect.summary for effect in done.effects] == ["run echo x >> a.txt"]


async def test_a_run_whose_refs_are_gone_still_completes(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    call = "{name: run_commands, arguments: {commands: ['rm -rf .git && git init -q']}}"
    text = f"turns: [{{tool_calls: [{call}]}}, {{text: ok}}]"
    hub = await hubs().start()
    async with await hub.client() as client:
        accepted = await submit(client, repo, scenario(tmp_path / "s.yaml", text), auto_approve=["all"])
        events = await ended(client, accepted.session_id)
        assert events[-1].type == "run.completed"
        assert "checkpoint.failed" in [event.type for event in events]


async def test_a_session_with_waiting_prompts_is_not_archived(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    edit, long = scenario(tmp_path / "e.yaml", EDIT), scenario(tmp_path / "l.yaml", LONG)
    hub = await hubs().start()
    async with await hub.client() as client:
        await submit(client, repo, long, auto_approve=["all"])
        while not (repo / "began").exists():
            await asyncio.sleep(0.02)
        blocked = await submit(client, repo, edit)
        with pytest.raises(RefusedError) as caught:
            await client.call("session.archive", session_id=blocked.session_id)
        assert caught.value.code == "prompts_pending"
