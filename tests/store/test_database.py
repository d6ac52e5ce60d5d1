"""The writer: durable when told, whole or not at all, events numbered without holes."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.clock import ManualClock, SystemClock
from hub.errors import UsageError
from hub.protocol.events import Event, HubDraining
from hub.store import eventlog, migrations, schema
from hub.store.database import Database, Transaction


def emit(tx: Transaction, session_id: str | None = None) -> int:
    tx.emit("hub.draining", HubDraining(deadline_s=1.0), session_id=session_id)
    return tx.events[-1].seq


class Refused(Exception):
    pass


def emit_then_fail(tx: Transaction) -> None:
    emit(tx)
    tx.conn.execute(sa.insert(schema.meta).values(key="half", value="done"))
    raise Refused


async def everything(database: Database) -> list[Event]:
    return await database.read(lambda conn: eventlog.page(conn, 0, 10**9, 10**6))


async def test_a_failed_work_leaves_nothing_and_its_neighbours_commit(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "hub.db", ManualClock())
    works = [emit_then_fail if place % 3 == 0 else emit for place in range(12)]
    outcomes = await asyncio.gather(*(database.write(work) for work in works), return_exceptions=True)
    assert [isinstance(outcome, Refused) for outcome in outcomes] == [place % 3 == 0 for place in range(12)]
    assert [event.seq for event in await everything(database)] == list(range(1, 9))
    assert await database.read(lambda conn: conn.execute(sa.select(schema.meta)).all()) == []
    await database.close()


async def test_events_are_published_in_commit_order_and_only_when_committed(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "hub.db", ManualClock())
    published: list[int] = []
    database.on_commit = lambda events: published.extend(event.seq for event in events)
    works = [emit_then_fail if place % 5 == 2 else emit for place in range(40)]
    await asyncio.gather(*(database.write(work) for work in works), return_exceptions=True)
    assert published == list(range(1, 33))
    await database.close()


@settings(max_examples=25, deadline=None)
@given(plan=st.lists(st.tuples(st.sampled_from(["s1", "s2", "s3", None]), st.booleans()), max_size=30))
async def test_prev_seq_chains_each_session_without_holes(
    tmp_path_factory: pytest.TempPathFactory, plan: list[tuple[str | None, bool]]
) -> None:
    path = tmp_path_factory.mktemp("log") / "hub.db"
    database = await Database.open(path, ManualClock())

    def work(session: str | None, fails: bool) -> object:
        def body(tx: Transaction) -> None:
            emit(tx, session)
            if fails:
                raise Refused

        return body

    works = [work(session, fails) for session, fails in plan]
    await asyncio.gather(*(database.write(body) for body in works), return_exceptions=True)  # type: ignore[arg-type]
    await database.close()
    database = await Database.open(path, ManualClock())
    await database.write(lambda tx: emit(tx, "s1"))
    last: dict[str, int] = {}
    for place, event in enumerate(await everything(database), 1):
        assert event.seq == place
        if event.session_id is not None:
            assert event.prev_seq == last.get(event.session_id, 0)
            last[event.session_id] = event.seq
    await database.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from hub.clock import SystemClock
from hub.protocol.events import HubDraining
from hub.store.database import Database

async def main():
    database = await Database.open(Path(sys.argv[1]), SystemClock())
    def work(tx):
        tx.emit("hub.draining", HubDraining(deadline_s=1.0))
        return tx.events[-1].seq
    while True:
        for seq in await asyncio.gather(*(database.write(work) for _ in range(7))):
            print(seq, flush=True)

asyncio.run(main())
"""


def test_what_was_acknowledged_survives_sigkill(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(200)]
    os.kill(child.pid, signal.SIGKILL)
    acknowledged += [int(line) for line in child.stdout.read().splitlines() if line.strip()]
    child.wait()
    stored = [row[0] for row in sqlite3.connect(path).execute("SELECT seq FROM events ORDER BY seq")]
    assert stored == list(range(1, len(stored) + 1))
    assert set(acknowledged) <= set(stored)


async def test_a_newer_database_is_refused_and_untouched(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE future (a)")
    raw.execute(f"PRAGMA user_version = {migrations.LATEST + 1}")
    raw.close()
    with pytest.raises(UsageError, match="newer Turnback") as caught:
        await Database.open(path, SystemClock())
    assert caught.value.code == "database_newer"
    assert [row[0] for row in sqlite3.connect(path).execute("SELECT name FROM sqlite_master")] == ["future"]


async def test_what_is_no_database_is_refused_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "hub.db"
    path.write_bytes(b"this is no database" * 1000)
    with pytest.raises(UsageError) as caught:
        await Database.open(path, SystemClock())
    assert caught.value.code == "database_corrupt"
    assert path.read_bytes().startswith(b"this is no database")


async def test_migrations_make_exactly_the_schema_that_the_code_reads(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "migrated.db", ManualClock())
    await database.close()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'made.db'}")
    schema.metadata.create_all(engine)
    engine.dispose()

    def shape(path: Path) -> set[str]:
        rows = sqlite3.connect(path).execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
        return {" ".join(row[0].split()) for row in rows}

    assert shape(tmp_path / "migrated.db") == shape(tmp_path / "made.db")


async def test_trimming_spares_each_sessions_newest_event(tmp_path: Path) -> None:
    clock = ManualClock()
    database = await Database.open(tmp_path / "hub.db", clock)
    for session in ("old", "busy", "busy", "busy", "busy"):
        await database.write(lambda tx, session=session: emit(tx, session))  # type: ignore[misc]
    await database.write(lambda tx: eventlog.trim(tx.conn, max_rows=2, oldest=clock.now()))
    assert [event.seq for event in await everything(database)] == [1, 4, 5]
    assert await database.write(emit) == 6
    await database.close()


async def test_an_event_that_is_not_in_the_table_is_refused(tmp_path: Path) -> None:
    database = await Database.open(tmp_path / "hub.db", ManualClock())
    with pytest.raises(ValueError, match="does not carry"):
        await database.write(lambda tx: tx.emit("hub.vanished", HubDraining(deadline_s=1.0)))
    await database.close()
