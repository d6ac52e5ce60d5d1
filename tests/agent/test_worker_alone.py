"""The worker by itself, lines in and reports out: it begins when it is told, and leaves when the hub has gone."""

import subprocess
import sys
from pathlib import Path

import pytest

from hub.agent.worker_protocol import Ask, Begin, Cancel, Hello, Ping, Pong, Ready, Target, decode_report, encode
from tests.agent.given import request
from tests.agent.stand_in import stand_in_environment


@pytest.fixture
def stand_in(tmp_path: Path) -> dict[str, str]:
    """An environment in which another module is found as litellm."""
    return stand_in_environment(tmp_path)


class Bare:
    """A worker without a hub's side: lines in, reports out."""

    def __init__(self, environ: dict[str, str]) -> None:
        command = [sys.executable, "-P", "-m", "hub.agent.worker"]
        environ = environ | {"TURNBACK_MODEL_KEY_0": "sk-loopback"}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environ
        )

    def say(self, *orders: Begin | Ask | Cancel | Ping) -> None:
        assert self.process.stdin is not None
        for order in orders:
            self.process.stdin.write(encode(order))
        self.process.stdin.flush()

    def hear(self) -> object:
        assert self.process.stdout is not None
        return decode_report(self.process.stdout.readline())

    def leave(self) -> int:
        """Close its input and return its exit code. Raises TimeoutExpired if it stays."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            return self.process.wait(10)
        finally:
            self.process.kill()
            self.process.stdout.close()


def test_it_begins_when_it_is_told_and_answers_pings(stand_in: dict[str, str]) -> None:
    bare = Bare(stand_in)
    assert isinstance(bare.hear(), Hello)
    bare.say(Ping())
    assert isinstance(bare.hear(), Pong)
    bare.say(Begin())
    assert isinstance(bare.hear(), Ready)
    bare.say(Cancel(99), Ping())
    assert isinstance(bare.hear(), Pong)
    assert bare.leave() == 0


@pytest.mark.parametrize("name", ["hold", "block"])
def test_it_leaves_when_the_hub_has_gone(stand_in: dict[str, str], name: str) -> None:
    bare = Bare(stand_in)
    assert isinstance(bare.hear(), Hello)
    bare.say(Begin())
    assert isinstance(bare.hear(), Ready)
    bare.say(Ask(1, Target(name), request()))
    assert bare.leave() == 0


def test_it_leaves_while_the_library_is_being_loaded(stand_in: dict[str, str]) -> None:
    bare = Bare(stand_in | {"LC_IMPORT_S": "3600"})
    bare.say(Begin())
    assert isinstance(bare.hear(), Hello)
    assert bare.leave() == 0
