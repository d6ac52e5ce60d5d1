"""A workspace and a call's context, made of real parts."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hub.agent.tools.base import ToolContext


class Recorder:
    """A ChildWatch, a progress sink and a `before_write` that remember what they were told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int]] = []
        self.groups: dict[int, tuple[float, int]] = {}
        self.progress: list[str] = []
        self.announced: list[Path] = []

    async def started(self, pid: int, start_time: float, group: int) -> None:
        self.events.append(("started", pid))
        self.groups[pid] = (start_time, group)

    async def ended(self, pid: int) -> None:
        self.events.append(("ended", pid))

    async def before_write(self, paths: Sequence[Path]) -> None:
        self.announced.extend(paths)

    @property
    def running(self) -> list[int]:
        """The pids that were started and have not ended."""
        ended = {pid for word, pid in self.events if word == "ended"}
        return [pid for word, pid in self.events if word == "started" and pid not in ended]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    workspace = tmp_path.resolve() / "workspace"
    workspace.mkdir()
    return workspace


@pytest.fixture
def context(root: Path, recorder: Recorder) -> Callable[..., ToolContext]:
    """Make a context; keyword arguments stand in for its fields."""

    def made(**fields: Any) -> ToolContext:
        environment = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        given: dict[str, Any] = {
            "root": root,
            "env": environment,
            "call_id": "call_1",
            "remaining_s": 60.0,
            "watch": recorder,
            "before_write": recorder.before_write,
            "progress": recorder.progress.append,
        }
        return ToolContext(**(given | fields))

    return made
