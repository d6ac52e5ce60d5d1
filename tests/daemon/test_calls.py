"""How calls are answered, when who asked stops waiting."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from hub.clock import SystemClock
from hub.daemon.calls import Caller, Handlers
from hub.protocol.methods import METHODS
from hub.protocol.params import WorkspaceAdd
from hub.store.database import Database, Transaction

CALLER = Caller(actor="test", scopes=("operate",))


async def test_what_was_prepared_is_given_back_only_after_the_transaction(tmp_path: Path) -> None:
    """A call that is cancelled leaves its transaction in the queue: until that is over, nobody else may take it."""
    database = await Database.open(tmp_path / "hub.db", SystemClock())
    began, go_on = asyncio.Event(), asyncio.Event()
    loop, told = asyncio.get_running_loop(), list[str]()

    async def prepare(params: Any, caller: Caller) -> str:
        return "taken"

    def handle(tx: Transaction, params: Any, caller: Caller, found: str) -> str:
        loop.call_soon_threadsafe(began.set)
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result(10)
        told.append("committing")
        return "done"

    handlers = Handlers(database)
    handlers.prepared("workspace.add", prepare, handle, lambda found: told.append(f"{found} is given back"))
    params = WorkspaceAdd(name="shop", path="/repo", idempotency_key="one")
    call = asyncio.create_task(handlers.answer(METHODS["workspace.add"], params, CALLER))
    await began.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert told == []
    go_on.set()
    await database.write(lambda tx: None)
    assert told == ["committing", "taken is given back"]
    await database.close()
