"""Fixtures that several rooms of tests share."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.hubs import HubProcess


@pytest.fixture
async def hubs(tmp_path: Path) -> AsyncIterator[Callable[..., HubProcess]]:
    """Make hubs whose processes are gone when the test is over."""
    made: list[HubProcess] = []

    def make(name: str = "home", config: str = "", **environ: str) -> HubProcess:
        made.append(HubProcess(tmp_path / name, config=config, environ=environ))
        return made[-1]

    yield make
    for hub in made:
        hub.end()
