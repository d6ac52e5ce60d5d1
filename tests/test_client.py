"""The client against a loopback server: connecting and calling."""

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hub.client
import hub.subscription
from hub.client import HubClient
from hub.errors import (
    AuthError,
    ConflictError,
    InternalError,
    NotFoundError,
    TurnbackError,
    UnavailableError,
    UsageError,
)
from hub.protocol.discovery import DiscoveryRecord, record_path
from hub.protocol.envelope import Call, encode_error, encode_notification, encode_result
from hub.protocol.methods import FRAME_LIMIT
from hub.protocol.views import Ack
from tests.loopback import (
    HELLO,
    TOKEN,
    LoopbackHub,
    Peer,
    answering,
    event,
    http_server,
    open_client,
    session,
    silent,
)


@pytest.fixture
async def server() -> AsyncIterator[LoopbackHub]:
    server = LoopbackHub()
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def client(server: LoopbackHub) -> AsyncIterator[HubClient]:
    async with await open_client(server) as client:
        yield client


# Connecting


async def test_hello_tells_who_answers(client: HubClient) -> None:
    assert client.hello == HELLO


async def test_a_wrong_token_is_refused_with_the_hubs_error(server: LoopbackHub) -> None:
    with pytest.raises(AuthError) as caught:
        await open_client(server, "wrong")
    assert caught.value.code == "bad_token"


async def test_the_record_leads_to_the_hub(server: LoopbackHub, tmp_path: Path) -> None:
    write_record(tmp_path, server.url, os.getpid())
    async with await HubClient.connect(tmp_path, kind="cli", name="test") as client:
        assert client.hello.hub_id == "hub_1"


def write_record(home: Path, url: str, pid: int) -> None:
    record = DiscoveryRecord(
        pid=pid,
        url=url,
        token=TOKEN,
        version="0",
        hub_id="hub_1",
        boot_id="boot_1",
        started_at="",
        protocol_min=1,
        protocol_max=1,
    )
    record_path(home).write_bytes(msgspec.json.encode(record))


async def no_hub_text(home: Path) -> str:
    with pytest.raises(UnavailableError) as caught:
        await HubClient.connect(home, kind="cli", name="test")
    assert (caught.value.code, caught.value.hint) == ("no_hub", "Run `hubctl start`.")
    return caught.value.message


async def test_no_record_is_no_hub(tmp_path: Path) -> None:
    assert "No hub runs" in await no_hub_text(tmp_path)


async def test_a_broken_record_is_no_hub_and_is_named(tmp_path: Path) -> None:
    record_path(tmp_path).write_bytes(b'{"pid": 1, "url":')
    assert "hub.json" in await no_hub_text(tmp_path)


async def test_a_record_of_a_dead_process_is_no_hub(server: LoopbackHub, tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, 0, -1, 1 << 80):
        write_record(tmp_path, server.url, pid)
        assert "gone" in await no_hub_text(tmp_path)
    assert server.calls == []


async def test_a_hub_of_another_user_counts_as_alive(
    server: LoopbackHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(pid: int, signal: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", forbidden)
    write_record(tmp_path, server.url, 1)
    async with await HubClient.connect(tmp_path, kind="cli", name="test") as client:
        assert client.hello.hub_id == "hub_1"


async def test_a_port_where_nobody_listens_is_no_hub(server: LoopbackHub, tmp_path: Path) -> None:
    await server.stop()
    write_record(tmp_path, server.url, os.getpid())
    assert "No hub listens" in await no_hub_text(tmp_path)
    await server.start()


@pytest.mark.parametrize(
    "url", ["", "http://127.0.0.1:1/rpc", "ws://127.0.0.1/rpc", "ws://[x", "ws://127.0.0.1:99999/"]
)
async def test_an_address_that_is_none_is_a_usage_error(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        await HubClient.connect_to(url, TOKEN, kind="cli", name="test")
    assert caught.value.code == "bad_url"


@pytest.mark.parametrize(
    ("answer", "kind", "code", "text"),
    [
        (b"HTTP/1.1 403 No\r\nContent-Length: 9\r\n\r\nUse Host.", AuthError, "upgrade_refused", "Use Host."),
        (b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", UnavailableError, "not_a_hub", "HTTP 404"),
        (b"SSH-2.0-x\r\n\r\n", UnavailableError, "not_a_hub", "not a hub"),
        (b"", UnavailableError, "no_hub", "ended before it answered"),
    ],
)
async def test_what_is_no_hub_is_said(answer: bytes, kind: type[TurnbackError], code: str, text: str) -> None:
    server, url = await http_server(answer)
    async with server:
        with pytest.raises(kind) as caught:
            await HubClient.connect_to(url, TOKEN, kind="cli", name="test")
    assert caught.value.code == code
    assert text in caught.value.message


async def test_a_redirect_is_never_followed_to_another_place(server: LoopbackHub) -> None:
    seen: list[str] = []
    server.on["hub.hello"] = lambda peer, call: asyncio.sleep(0, seen.append(call.method))
    answer = f"HTTP/1.1 302 Found\r\nLocation: {server.url}\r\nContent-Length: 0\r\n\r\n"
    front, url = await http_server(answer.encode())
    async with front:
        with pytest.raises(UnavailableError) as caught:
            await HubClient.connect_to(url, TOKEN, kind="cli", name="test")
    assert caught.value.code == "not_a_hub"
    assert seen == []


async def test_no_proxy_is_taken_from_the_environment(server: LoopbackHub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "ws_proxy", "socks_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("no_proxy", raising=False)
    async with await open_client(server) as client:
        assert client.hello.hub_id == "hub_1"


async def test_a_hub_that_closes_during_hello_is_a_lost_connection(server: LoopbackHub) -> None:
    async def close(peer: Peer, call: Call) -> None:
        await peer.socket.close(4001, "token rotated")

    server.on["hub.hello"] = close
    with pytest.raises(UnavailableError) as caught:
        await open_client(server)
    assert caught.value.code == "connection_lost"
    assert "token rotated" in caught.value.message


# Calls


async def test_a_result_has_the_tables_type(server: LoopbackHub, client: HubClient) -> None:
    server.on["session.list"] = answering([session("ses_1"), session("ses_2")])
    assert await client.call("session.list", limit=2) == [session("ses_1"), session("ses_2")]
    assert server.params() == {"limit": 2}


async def test_fields_of_a_newer_hub_are_overlooked(server: LoopbackHub, client: HubClient) -> None:
    server.on["run.cancel"] = answering({"id": "run_1", "state": "running", "mood": "new"})
    assert await client.call("run.cancel", run_id="run_1") == Ack(id="run_1", state="running")


async def test_a_mutation_gets_a_fresh_key_unless_one_is_given(server: LoopbackHub, client: HubClient) -> None:
    server.on["run.cancel"] = answering(Ack(id="r", state="s"))
    for given in ({}, {"idempotency_key": None}, {"idempotency_key": "my-own-key"}):
        await client.call("run.cancel", run_id="r", **given)
    keys = [server.params(number)["idempotency_key"] for number in range(3)]
    assert len(set(keys)) == 3
    assert keys[2] == "my-own-key"


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("session.get", {}),
        ("session.get", {"session_id": 7}),
        ("session.get", {"session_id": "s", "extra": 1}),
        ("session.list", {"limit": 0}),
        ("prompt.submit", {"text": "x", "run": {"agent_mode": "fly"}}),
        ("session.get", {"session_id": Path("s") / "t", "x": object()}),
    ],
)
async def test_params_that_do_not_fit_are_never_sent(
    server: LoopbackHub, client: HubClient, method: str, params: dict[str, Any]
) -> None:
    with pytest.raises(UsageError) as caught:
        await client.call(method, **params)
    assert caught.value.code == "invalid_params"
    assert method in caught.value.message
    assert server.calls == []


async def test_an_unknown_method_and_a_bare_subscribe_are_refused(client: HubClient) -> None:
    with pytest.raises(NotFoundError):
        await client.call("session.destroy")
    with pytest.raises(UsageError):
        await client.call("events.subscribe")


async def test_a_call_larger_than_a_frame_is_not_sent(server: LoopbackHub, client: HubClient) -> None:
    with pytest.raises(UsageError) as caught:
        await client.call("prompt.submit", text="\N{SNOWMAN}" * 399_999, session_id="s")
    assert caught.value.code == "frame_too_large"
    assert server.calls == []


async def test_the_hubs_error_arrives_whole(server: LoopbackHub, client: HubClient) -> None:
    sent = ConflictError("Taken.", code="taken", hint="Wait.", retryable=True, retry_after_s=1.5)
    server.on["session.get"] = lambda peer, call: peer.error(call, sent)
    with pytest.raises(ConflictError) as caught:
        await client.call("session.get", session_id="s")
    got = caught.value
    assert (got.message, got.code, got.hint, got.retryable, got.retry_after_s) == (
        "Taken.",
        "taken",
        "Wait.",
        True,
        1.5,
    )


async def test_answers_find_their_calls_in_any_order(server: LoopbackHub, client: HubClient) -> None:
    held: list[Call] = []

    async def shuffle(peer: Peer, call: Call) -> None:
        held.append(call)
        if len(held) == 20:
            random.Random(7).shuffle(held)
            for one in held:
                await peer.result(one, session(msgspec.json.decode(one.params)["session_id"]))

    server.on["session.get"] = shuffle
    names = [f"ses_{number}" for number in range(20)]
    got = await asyncio.gather(*(client.call("session.get", session_id=name) for name in names))
    assert [one.id for one in got] == names


async def test_an_answer_of_the_wrong_shape_fails_its_call_only(server: LoopbackHub, client: HubClient) -> None:
    server.on["session.get"] = answering({"id": 7}, session())
    with pytest.raises(InternalError) as caught:
        await client.call("session.get", session_id="s")
    assert caught.value.code == "malformed_reply"
    assert await client.call("session.get", session_id="s") == session()


async def test_an_error_that_names_no_call_reaches_whoever_waits(server: LoopbackHub, client: HubClient) -> None:
    async def unattributed(peer: Peer, call: Call) -> None:
        await peer.send(encode_error(None, UsageError("Unreadable.", code="parse_error")))

    server.on["session.get"] = unattributed
    with pytest.raises(UsageError) as caught:
        await client.call("session.get", session_id="s")
    assert caught.value.code == "parse_error"
    server.on["session.get"] = answering(session())
    assert await client.call("session.get", session_id="s") == session()


@pytest.mark.parametrize(
    "frame",
    [
        b"not json",
        b"[1]",
        b'{"jsonrpc":"1.0","id":1,"result":1}',
        b'{"jsonrpc":"2.0","method":"event","params":{"subscription":"one"}}',
        b'{"jsonrpc":"2.0","id":1,"result":' + b"[" * 200_000 + b"}",
        b'{"jsonrpc":"2.0","method":"live","params":[]}',
        b'"' + b"x" * (FRAME_LIMIT + 1) + b'"',
    ],
)
async def test_an_unreadable_frame_ends_the_connection_with_a_reason(
    server: LoopbackHub, client: HubClient, frame: bytes
) -> None:
    server.on["session.get"] = lambda peer, call: peer.send(frame)
    with pytest.raises(InternalError) as caught:
        await client.call("session.get", session_id="s")
    assert caught.value.code == "malformed_frame"
    with pytest.raises(InternalError):
        await client.call("session.get", session_id="s")


async def test_unknown_notices_and_late_answers_are_overlooked(server: LoopbackHub, client: HubClient) -> None:
    async def chatty(peer: Peer, call: Call) -> None:
        await peer.send(encode_notification("weather.changed", {"sun": True}))
        await peer.send(encode_result(999_999, 1))
        await peer.send(encode_result("word", 1))
        await peer.event(77, event(1, 0))
        await peer.result(call, session())

    server.on["session.get"] = chatty
    assert await client.call("session.get", session_id="s") == session()


async def test_a_cut_gives_every_waiting_call_its_own_error(server: LoopbackHub, client: HubClient) -> None:
    server.on["session.get"] = silent
    calls = [asyncio.create_task(client.call("session.get", session_id="s")) for _ in range(5)]
    while len(server.calls) < 5:
        await asyncio.sleep(0.005)
    server.peers[0].drop()
    errors = await asyncio.gather(*calls, return_exceptions=True)
    assert {(type(error), getattr(error, "code", None)) for error in errors} == {(UnavailableError, "connection_lost")}
    assert all(getattr(error, "retryable", False) for error in errors)
    later = [client.call("session.get", session_id="s") for _ in range(2)]
    errors += await asyncio.gather(*later, return_exceptions=True)
    assert len({id(error) for error in errors}) == 7


async def test_a_silent_hub_is_left_after_the_time_limit(
    server: LoopbackHub, client: HubClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub.client, "GRACE_S", -29.9)
    server.on["run.cancel"] = silent
    with pytest.raises(UnavailableError) as caught:
        await client.call("run.cancel", run_id="r")
    assert (caught.value.code, caught.value.retryable) == ("timed_out", True)
    assert "idempotency key" in caught.value.message


async def test_closing_ends_what_waits(server: LoopbackHub) -> None:
    client = await open_client(server)
    server.on["session.get"] = silent
    call = asyncio.create_task(client.call("session.get", session_id="s"))
    while not server.calls:
        await asyncio.sleep(0.005)
    await client.close()
    await client.close()
    with pytest.raises(UnavailableError) as caught:
        await call
    assert caught.value.code == "connection_lost"


def test_importing_the_client_stays_light() -> None:
    heavy = (
        "sqlalchemy",
        "litellm",
        "alembic",
        "git",
        "slack_bolt",
        "telegram",
        "apscheduler",
        "rich",
        "typer",
        "psutil",
    )
    code = f"import sys, hub.client; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
