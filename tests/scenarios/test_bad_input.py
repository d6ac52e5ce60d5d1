"""Whatever a peer sends, it gets a clear answer with a stable code, and nobody else notices."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.protocol import State

from hub.client import HubClient
from hub.errors import UnavailableError
from hub.protocol.discovery import decode_record, record_path
from hub.protocol.methods import FRAME_LIMIT
from tests.hubs import HubProcess, ended, make_repo, scenario, submit


def hello(token: str, **changes: Any) -> dict[str, Any]:
    params = {
        "protocol": {"min": 1, "max": 1},
        "client": {"kind": "test", "name": "raw", "version": "0"},
        "token": token,
        **changes,
    }
    return {"jsonrpc": "2.0", "id": 1, "method": "hub.hello", "params": params}


@asynccontextmanager
async def raw(hub: HubProcess, **options: Any) -> AsyncIterator[ClientConnection]:
    record = decode_record(record_path(hub.home).read_bytes())
    peer = await connect(record.url, proxy=None, max_size=None, **options)
    try:
        yield peer
    finally:
        if peer.state is State.OPEN:
            await peer.close()


def token_of(hub: HubProcess) -> str:
    return decode_record(record_path(hub.home).read_bytes()).token


async def answer(peer: ClientConnection, frame: Any) -> dict[str, Any]:
    await peer.send(frame if isinstance(frame, str | bytes) else json.dumps(frame))
    return json.loads(await peer.recv())


async def is_well(client: HubClient) -> bool:
    return bool((await client.call("hub.status")).ready)


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (lambda token: hello("wrong"), "bad_token"),
        (lambda token: hello(token, protocol={"min": 7, "max": 9}), "protocol_mismatch"),
        (lambda token: hello(token, scopes=["admin"]), "invalid_params"),
        (lambda token: {"jsonrpc": "2.0", "id": 1, "method": "hub.status", "params": {}}, "hello_expected"),
        (lambda token: "{", "parse_error"),
        (lambda token: "[]", "invalid_request"),
        (lambda token: b"\xff\xfe", "parse_error"),
        (lambda token: json.dumps(hello(token)) + " " * 70_000, "frame_too_large"),
    ],
)
async def test_a_bad_first_frame_is_answered_and_closed(
    hubs: Callable[..., HubProcess], frame: Callable[[str], Any], code: str
) -> None:
    hub = await hubs().start()
    async with await hub.client() as client:
        async with raw(hub) as peer:
            told = await answer(peer, frame(token_of(hub)))
            assert told["error"]["data"]["code"] == code
            assert told["error"]["message"]
            with pytest.raises(ConnectionClosed):
                await peer.recv()
        assert await is_well(client)


async def test_bad_frames_after_hello_are_answered_and_the_connection_stays(hubs: Callable[..., HubProcess]) -> None:
    hub = await hubs().start()
    call = {"jsonrpc": "2.0", "id": 2, "params": {}}
    async with await hub.client() as client, raw(hub) as peer:
        assert "result" in await answer(peer, hello(token_of(hub)))
        for frame, code in [
            ("nonsense", "parse_error"),
            ('{"jsonrpc":' * 5_000, "invalid_request"),
            ([call], "invalid_request"),
            ({**call, "method": "session.lits"}, "unknown_method"),
            ({**call, "method": "session.get", "params": {"session_id": "ses_none"}}, "unknown_session"),
            ({**call, "method": "session.get", "params": {"session_id": 7}}, "invalid_params"),
            ({**call, "method": "session.get", "params": []}, "invalid_params"),
            ({**call, "method": "hub.status", "params": {"x": "y" * FRAME_LIMIT}}, "frame_too_large"),
            (hello(token_of(hub)), "hello_repeated"),
        ]:
            told = await answer(peer, frame)
            assert told["error"]["data"]["code"] == code, told
            assert "Traceback" not in json.dumps(told)
        assert (await answer(peer, {**call, "method": "hub.status"}))["result"]["ready"]
        assert await is_well(client)


async def test_an_unknown_method_names_its_neighbour(hubs: Callable[..., HubProcess]) -> None:
    hub = await hubs().start()
    async with raw(hub) as peer:
        await answer(peer, hello(token_of(hub)))
        told = await answer(peer, {"jsonrpc": "2.0", "id": 2, "method": "session.lits", "params": {}})
        assert "session.list" in told["error"]["data"]["hint"]


async def test_a_huge_frame_ends_that_connection_only(hubs: Callable[..., HubProcess]) -> None:
    hub = await hubs().start()
    async with await hub.client() as client:
        async with raw(hub) as peer:
            await answer(peer, hello(token_of(hub)))
            sending = asyncio.create_task(peer.send("x" * (8 * FRAME_LIMIT)))
            with pytest.raises(ConnectionClosed):
                await peer.recv()
            await asyncio.gather(sending, return_exceptions=True)
        assert await is_well(client)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost:3000"}, 403),
        ({"X-Forwarded-For": "10.0.0.1"}, 403),
    ],
)
async def test_an_upgrade_from_elsewhere_is_refused_before_any_frame(
    hubs: Callable[..., HubProcess], headers: dict[str, str], status: int
) -> None:
    hub = await hubs().start()
    with pytest.raises(InvalidStatus) as caught:
        async with raw(hub, additional_headers=headers):
            pass
    assert caught.value.response.status_code == status
    assert caught.value.response.body


def http(port: int, path: str, host: str) -> tuple[int, str]:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        plain.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        data = b""
        while piece := plain.recv(65536):
            data += piece
    head, _, body = data.decode().partition("\r\n\r\n")
    return int(head.split(" ")[1]), body


async def test_health_pages_and_rebinding(hubs: Callable[..., HubProcess]) -> None:
    hub = await hubs().start()
    port = int(decode_record(record_path(hub.home).read_bytes()).url.split(":")[2].split("/")[0])
    ask = asyncio.to_thread
    assert await ask(http, port, "/healthz", f"127.0.0.1:{port}") == (200, "alive\n")
    status, body = await ask(http, port, "/readyz", f"localhost:{port}")
    assert status == 200
    assert "store: ready" in body
    assert (await ask(http, port, "/healthz", f"evil.example:{port}"))[0] == 421
    assert (await ask(http, port, "/elsewhere", f"127.0.0.1:{port}"))[0] == 404


async def test_the_port_is_kept_and_another_is_chosen_when_it_is_taken(hubs: Callable[..., HubProcess]) -> None:
    hub = await hubs().start()
    first = decode_record(record_path(hub.home).read_bytes())
    hub.stop()
    await hub.start()
    again = decode_record(record_path(hub.home).read_bytes())
    assert (again.url, again.token) == (first.url, first.token)
    assert again.boot_id != first.boot_id
    hub.stop()
    port = int(first.url.split(":")[2].split("/")[0])
    with socket.create_server(("127.0.0.1", port)):
        await hub.start()
        assert decode_record(record_path(hub.home).read_bytes()).url != first.url


async def test_a_configured_port_that_is_taken_is_refused(hubs: Callable[..., HubProcess]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        hub = hubs(config=f"[hub]\nport = {port}\n")
        with pytest.raises(RuntimeError, match="port_in_use"):
            await hub.start()


async def test_a_corrupt_config_names_file_line_and_what_was_expected(hubs: Callable[..., HubProcess]) -> None:
    hub = hubs(config='[model]\n\nname = 3\n[hub]\nlog_level = "info"\n')
    with pytest.raises(RuntimeError, match=r"config\.toml:3: Expected `str \| null`, got `int`.*config_invalid"):
        await hub.start()


async def test_a_home_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("here")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "hub", "--home", str(occupied), stderr=asyncio.subprocess.PIPE
    )
    _, told = await process.communicate()
    assert process.returncode == 2
    assert b"home_unwritable" in told
    assert b"Traceback" not in told


async def test_nobody_without_hello_lives_on(hubs: Callable[..., HubProcess]) -> None:
    hub = await hubs().start()
    hub.kill()
    with pytest.raises(UnavailableError):
        await hub.client()


async def test_files_of_the_home_are_private(hubs: Callable[..., HubProcess]) -> None:
    hub = await hubs().start()
    private = ["hub.db", "hub.db-wal", "hub.json", "token", "port", "hub.lock", "logs", "logs/hub.log"]
    for name in private:
        assert (hub.home / name).stat().st_mode & 0o077 == 0, name


async def test_files_that_a_run_makes_have_the_modes_of_the_persons_own(
    hubs: Callable[..., HubProcess], tmp_path: Path
) -> None:
    repo = make_repo(tmp_path / "repo")
    text = """
    turns:
      - tool_calls:
          - {name: editor, arguments: {path: made/by_editor.txt, new_text: "x"}}
          - {name: run_commands, arguments: {commands: ["echo x > by_command.txt"]}}
      - text: Done.
    """
    hub = await hubs().start()
    async with await hub.client() as client:
        model = scenario(tmp_path / "s.yaml", text)
        await ended(client, (await submit(client, repo, model, auto_approve=["all"])).session_id)
    mine = tmp_path / "mine.txt"
    mine.write_text("x")
    for name in ("made/by_editor.txt", "by_command.txt"):
        assert (repo / name).stat().st_mode == mine.stat().st_mode, name
