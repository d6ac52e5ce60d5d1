"""A hub in this process, so that a test can do at once what otherwise happens by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from hub import settings
from hub.client import HubClient
from hub.daemon.app import App


@asynccontextmanager
async def running_app(home: Path, config: str = "") -> AsyncIterator[tuple[App, HubClient]]:
    """Hold a hub with its own home, and a client of it."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.toml").write_text(config)
    app = App(settings.load(home))
    await app.start()
    try:
        async with await HubClient.connect(home, kind="test", name="test") as client:
            yield app, client
    finally:
        await app.stop()
