"""The hub with a model behind an OpenAI-compatible server on loopback: real worker, real command line."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from hub.protocol.events import Live
from tests.hubs import HubProcess, ended, git, make_repo, submit
from tests.stub_openai import StubServer, calls, error, refusal, text

EDIT = ("editor", {"path": "a.txt", "old_text": "one", "new_text": "two"})
KEY = "sk-a-very-secret-key-0123456789"


def configured(stub: StubServer) -> str:
    return f"""
    [model]
    name = "openai/stub"
    api_base = "{stub.api_base}"
    api_key = "env:STUB_KEY"
    """


async def hubctl(hub: HubProcess, *words: str) -> tuple[int, list[dict], str]:
    process = await asyncio.create_subprocess_exec(
        *(str(Path(sys.executable).with_name("hubctl")), "--home", str(hub.home), *words),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=hub.environ,
    )
    out, err = await asyncio.wait_for(process.communicate(), 90)
    return process.returncode or 0, [json.loads(line) for line in out.splitlines()], err.decode()


async def test_a_run_changes_the_file_and_its_stream_ends_with_the_outcome(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    async with StubServer([calls(EDIT, words="Editing."), text("Done.")], by_turn=True) as stub:
        hub = await hubs(config=configured(stub), STUB_KEY=KEY).start()
        code, told, err = await hubctl(hub, "run", "-w", str(repo), "change it", "--auto-approve", "edits", "--json")
        assert (code, err) == (0, "")
        assert (repo / "a.txt").read_text() == "two\n"
        last = told[-1]
        assert (last["type"], last["stop_reason"], last["files_changed"]) == ("run.completed", "completed", ["a.txt"])
        assert last["usage"] == {"input_tokens": 24, "output_tokens": 10, "cached_tokens": None}
        assert last["cost"] is None
        assert [line["seq"] for line in told] == sorted({line["seq"] for line in told})
        assert {exchange.headers["authorization"] for exchange in stub.exchanges} == {f"Bearer {KEY}"}
        names = [tool["function"]["name"] for tool in stub.exchanges[0].body["tools"]]
        assert names == ["read_files", "search_codebase", "run_commands", "editor", "ask_question"]
        for kept in hub.home.rglob("*"):
            assert not kept.is_file() or KEY.encode() not in kept.read_bytes(), kept


async def test_a_rejection_leaves_every_byte_and_is_told_to_the_model(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    before = {path: path.read_bytes() for path in repo.rglob("*") if path.is_file() and ".git" not in path.parts}
    async with StubServer([calls(EDIT), text("As you wish.")], by_turn=True) as stub:
        hub = await hubs(config=configured(stub), STUB_KEY=KEY).start()
        words = ("run", "-w", str(repo), "change it", "--on-ask", "reject", "--json")
        code, told, _ = await hubctl(hub, *words)
        assert code == 8
        assert told[-1]["type"] == "run.completed"
        after = {path: path.read_bytes() for path in repo.rglob("*") if path.is_file() and ".git" not in path.parts}
        assert after == before
        assert git(repo, "status", "--short") == ""
        answer = stub.exchanges[-1].body["messages"][-1]
        assert answer["role"] == "tool"
        assert "Rejected" in answer["content"]


async def test_a_dead_worker_is_started_again_and_the_run_goes_on(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    async with StubServer([text("slow " * 50, pieces=50, gap_s=0.1)], by_turn=True) as stub:
        hub = await hubs(config=configured(stub), STUB_KEY=KEY).start()
        assert hub.process is not None
        async with await hub.client() as client:
            accepted = await submit(client, repo, "openai/stub")
            async with client.subscribe(session_id=accepted.session_id, after_seq=0, live=True) as stream:
                async for item in stream:
                    if isinstance(item, Live) and item.type == "message.delta":
                        break
            for child in psutil.Process(hub.process.pid).children():
                if "hub.agent.worker" in " ".join(child.cmdline()):
                    os.kill(child.pid, signal.SIGKILL)
            events = await ended(client, accepted.session_id)
            assert events[-1].type == "run.completed"
            assert [event.type for event in events].count("message.discarded") == 1
            assert msgspec.json.decode(events[-1].data)["text"] == "slow " * 50


async def test_a_server_that_refuses_ends_the_run_with_its_reason(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")

    async with StubServer([error(401, refusal("no such key", "invalid_api_key"))]) as stub:
        hub = await hubs(config=configured(stub), STUB_KEY=KEY).start()
        code, told, _ = await hubctl(hub, "run", "-w", str(repo), "x", "--json")
        assert code == 1
        assert (told[-1]["type"], told[-1]["stop_reason"]) == ("run.failed", "model_error")
        assert told[-1]["error"].startswith("auth:")


async def test_a_key_that_is_not_set_says_what_to_do(hubs: Callable[..., HubProcess], tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "repo")
    async with StubServer([text("hi")]) as stub:
        hub = await hubs(config=configured(stub)).start()
        code, _, err = await hubctl(hub, "run", "-w", str(repo), "x", "--json")
        assert code == 2
        told = json.loads(err)["error"]
        assert told["code"] == "secret_missing"
        assert "STUB_KEY" in told["message"]
        assert "hubctl restart" in told["hint"]
