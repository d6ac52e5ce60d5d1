"""A home, a hub of tables in it, and `hubctl` called in this process."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli.main import run
from tests.cli.fakehub import FakeHub


class Said(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> Any:
        return json.loads(self.err)["error"]


Call = Callable[..., Said]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def hub(home: Path) -> Iterator[FakeHub]:
    with FakeHub(home) as running:
        yield running


@pytest.fixture
def call(home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Call `hubctl` with the home of this test, in this process."""
    monkeypatch.delenv("TURNBACK_MODEL", raising=False)

    def called(*arguments: str) -> Said:
        capfd.readouterr()
        code = run(["--home", str(home), *arguments])
        return Said(code, *capfd.readouterr())

    return called
