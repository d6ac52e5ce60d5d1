"""Git itself is killed at one of its calls: ours fails and says so, and everything is as before, or it succeeds."""

import os
import random
import shutil
from pathlib import Path

import pytest

from hub.checkpoint.engine import Engine
from hub.errors import TurnbackError
from tests.checkpoint.world import World, differing, restore

SCRIPT = """#!/bin/sh
number=$(cat {folder}/calls)
echo $((number + 1)) > {folder}/calls
if [ "$number" = "$(cat {folder}/wanted)" ]; then kill -9 $$; fi
exec {git} "$@"
"""


class DyingGit:
    """A git in front of the real one that counts its calls and kills itself at one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "git").write_text(SCRIPT.format(folder=folder, git=shutil.which("git")))
        (folder / "git").chmod(0o755)
        self.dies_at(-1)

    @property
    def calls(self) -> int:
        return int((self._folder / "calls").read_text())

    def dies_at(self, number: int) -> None:
        (self._folder / "calls").write_text("0\n")
        (self._folder / "wanted").write_text(f"{number}\n")


@pytest.fixture
def git(tmp_path: Path) -> DyingGit:
    return DyingGit(tmp_path / "tools")


@pytest.fixture
def world(tmp_path: Path) -> World:
    w = World(tmp_path / "w")
    w.base()
    w.engine().capture("ses/1", labels={})
    w.agent()
    return w


def tried(call: str, engine: Engine) -> str | None:
    """Carry out a call; return the code of the error that it raised."""
    try:
        if call == "capture":
            engine.capture("ses/2", labels={})
        else:
            restore(engine, "ses/1", "ses/1u")
    except TurnbackError as error:
        return error.code
    return None


@pytest.mark.parametrize(
    ("call", "stride"),
    [
        ("capture", 5),
        ("restore", 8),
        pytest.param("capture", 1, marks=pytest.mark.slow),
        pytest.param("restore", 1, marks=pytest.mark.slow),
    ],
)
def test_git_killed_at_its_calls(
    world: World, git: DyingGit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, stride: int
) -> None:
    """The next call finds nothing in its way: no lock of our own index, no half of a restore."""
    whole = world.copy(tmp_path / "whole")
    engine = whole.engine()
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{path}")
    assert tried(call, engine) is None
    before, after, codes = world.state(), whole.state(), set()
    for number in range(random.randrange(stride), git.calls, stride):
        w = world.copy(tmp_path / f"w{number}")
        monkeypatch.setenv("PATH", path)
        engine = w.engine()
        monkeypatch.setenv("PATH", f"{tmp_path / 'tools'}:{path}")
        git.dies_at(number)
        codes.add(failed := tried(call, engine))
        git.dies_at(-1)
        assert differing(before if failed else after, w.state()) == {}, f"call {number}"
        engine.recover(lambda _: False)
        if failed:
            assert tried(call, engine) in (None, "ref_exists"), f"call {number}"
        assert [row.broken for row in engine.list()] == [None] * len(engine.list())
        shutil.rmtree(w.root)
    assert codes <= {None, "git_failed", "checkpoint_failed", "checkpoint_incomplete", "restore_failed"}
