"""Starting and stopping a real hub: one comes out, whoever starts it, and what goes wrong is told."""

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hub.protocol.discovery import decode_record, record_path
from tests.cli.given import command, environment, hubctl


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Path]:
    """A home whose hub is stopped afterwards."""
    home = tmp_path / "home"
    yield home
    hubctl(home, "stop", "--deadline", "0")


def test_a_hub_from_its_start_to_its_end(own: Path) -> None:
    """What lies in the home is not imported; restart is another process of the same hub; stop is the end."""
    (own / "hub").mkdir(parents=True)
    own.chmod(0o700)
    for module in ("hub/__init__.py", "asyncio.py"):
        (own / module).write_text("raise SystemExit('imported from the home')\n")
    assert json.loads(hubctl(own, "sessions", "--json").stdout) == []
    record = decode_record(record_path(own).read_bytes())
    first = json.loads(hubctl(own, "status", "--json").stdout)
    assert (first["pid"], first["url"], first["ready"]) == (record.pid, record.url, True)
    assert hubctl(own, "doctor").returncode == 0
    second = json.loads(hubctl(own, "restart", "--json").stdout)
    assert first["pid"] != second["pid"]
    assert (first["hub_id"], first["url"]) == (second["hub_id"], second["url"])
    assert hubctl(own, "logs", "-n", "3").stdout.count("\n") == 3
    assert json.loads(hubctl(own, "stop", "--json").stdout) == {"stopped": True, "pid": second["pid"]}
    assert not psutil.pid_exists(second["pid"]) or psutil.Process(second["pid"]).status() == psutil.STATUS_ZOMBIE
    assert hubctl(own, "status").returncode == 4
    assert json.loads(hubctl(own, "stop", "--json").stdout) == {"stopped": False, "pid": None}


def hubs_of(home: Path) -> list[int]:
    """Return the pids of all hubs of a home, those that come up included."""
    found = [process.info for process in psutil.process_iter(["pid", "status", "cmdline"])]
    live = [one for one in found if one["status"] != psutil.STATUS_ZOMBIE]
    return [one["pid"] for one in live if {"hub", str(home)} <= set(one["cmdline"] or ())]


def test_of_many_starters_one_hub_comes_out(own: Path) -> None:
    starters = [
        subprocess.Popen(command(own, "start", "--json"), stdout=subprocess.PIPE, text=True, env=environment())
        for _ in range(3)
    ]
    found = [json.loads(starter.communicate(timeout=60)[0]) for starter in starters]
    assert len({status["pid"] for status in found}) == 1
    assert hubctl(own, "stop").returncode == 0
    assert hubs_of(own) == []
    assert {starter.returncode for starter in starters} == {0}


def test_a_wrong_setting_is_told_before_anything_starts(own: Path) -> None:
    own.mkdir()
    (own / "config.toml").write_text("[hub]\nport = 'many'\n")
    said = hubctl(own, "sessions", "--json")
    error = json.loads(said.stderr)["error"]
    assert (said.returncode, error["code"]) == (2, "config_invalid")
    assert "config.toml:2" in error["message"]
    assert not record_path(own).exists()


def test_a_wrong_setting_is_told_before_a_restart_stops_anything(own: Path) -> None:
    pid = json.loads(hubctl(own, "start", "--json").stdout)["pid"]
    (own / "config.toml").write_text("[hub]\nport = 'many'\n")
    said = hubctl(own, "restart", "--json")
    assert (said.returncode, json.loads(said.stderr)["error"]["code"]) == (2, "config_invalid")
    assert json.loads(hubctl(own, "status", "--json").stdout)["pid"] == pid
    stopped = hubctl(own, "stop")
    assert stopped.returncode == 0
    assert "cannot start again before this is mended" in stopped.stderr
    assert "config.toml:2" in stopped.stderr


def test_a_home_that_cannot_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = hubctl(tmp_path / "file" / "home", "sessions", "--json")
    assert (said.returncode, json.loads(said.stderr)["error"]["code"]) == (2, "home_unwritable")


def test_a_hub_that_does_not_come_up_shows_its_last_words(own: Path) -> None:
    own.mkdir()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        (own / "config.toml").write_text(f"[hub]\nport = {port}\n")
        said = hubctl(own, "sessions", "--json")
    error = json.loads(said.stderr)["error"]
    assert (said.returncode, error["code"]) == (4, "hub_start_failed")
    assert str(port) in error["message"]


def test_in_the_foreground_the_process_becomes_the_hub(own: Path) -> None:
    hub = subprocess.Popen(command(own, "start", "--foreground"), env=environment(), stderr=subprocess.DEVNULL)
    try:
        while hubctl(own, "status").returncode != 0:
            assert hub.poll() is None
        found = json.loads(hubctl(own, "start", "--json").stdout)
        assert found["pid"] == hub.pid
        assert hubctl(own, "stop").returncode == 0
        assert hub.wait(20) == 0
    finally:
        hub.kill()
