"""The database: one writer that commits in groups, a few readers, and the event log that grows with every commit.

Work is a plain function of a transaction (or a connection, for reads). It runs in the connection's own thread, which is
aiosqlite's, in one hop; so it must not touch asyncio objects, and it may be run twice: when one work of a group fails,
the group is rolled back and each work runs again by itself. Work therefore has no effects but those on the database.

Promises: when `write` returns, the change is durable (WAL, synchronous=FULL) and its events are numbered without holes
in commit order; when it raises, nothing of it is there. Does not promise: any order between reads and later writes.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import aiosqlite
import msgspec
import sqlalchemy as sa

from hub.clock import Clock
from hub.errors import UnavailableError, UsageError
from hub.protocol.events import EVENTS, Data, Event
from hub.store import migrations
from hub.store.eventlog import EventNumbers

T = TypeVar("T")

Connection = sa.Connection
"""What a read is given."""

GROUP_LIMIT = 64
"""Works in one commit."""
READERS = 2
BUSY_MS = 10_000


class Transaction:
    """What a work may use: the connection, the time of the commit, and `emit` for events that belong to it."""

    def __init__(self, conn: sa.Connection, now: datetime, numbers: EventNumbers) -> None:
        self.conn = conn
        self.now = now
        self.events: list[Event] = []
        self._numbers = numbers

    def emit(self, type: str, data: Data, *, session_id: str | None = None, run_id: str | None = None) -> None:
        """Add an event to the log. Raises ValueError when the table has no such type with such data."""
        if EVENTS.get(type) is not data.__class__:
            raise ValueError(f"event {type!r} does not carry {data.__class__.__name__}")
        self.events.append(self._numbers.make(self.conn, self.now, type, data, session_id, run_id))


Work = Callable[[Transaction], T]


class _Request(Generic[T]):
    def __init__(self, work: Work[T], done: "asyncio.Future[T]") -> None:
        self.work = work
        self.done = done


class _Outcome(msgspec.Struct):
    value: Any = None
    error: BaseException | None = None
    events: Sequence[Event] = ()


class _Connection(aiosqlite.Connection):
    """An aiosqlite connection whose thread runs whole functions on a SQLAlchemy connection: one hop for each."""

    sql: sa.Connection

    async def open(self) -> "_Connection":
        """Open it. Raises sqlite3.DatabaseError."""
        await self
        self.sql = await self.call(lambda: _wrap(self._conn))
        return self

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return await self._execute(function, *arguments)  # type: ignore[no-untyped-call]

    async def shut(self) -> None:
        """Close it and end its thread; also when it could not be opened."""
        if self._connection is not None:
            if hasattr(self, "sql"):
                await self.call(self.sql.close)
            await self.close()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join)


def _connect(path: Path) -> sqlite3.Connection:
    path.touch(mode=0o600)  # its -wal and -shm files take over this mode
    conn = sqlite3.connect(path, isolation_level=None, timeout=BUSY_MS / 1000)
    try:
        for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "journal_size_limit=67108864"):
            conn.execute(f"PRAGMA {pragma}")
    except sqlite3.DatabaseError:
        conn.close()
        raise
    return conn


def _wrap(raw: sqlite3.Connection) -> sa.Connection:
    engine = sa.create_engine("sqlite://", creator=lambda: raw, poolclass=sa.StaticPool, isolation_level="AUTOCOMMIT")
    return engine.connect()


class Database:
    """The store of one hub. Open it once; `on_commit` is called on the loop with each commit's events, in order."""

    _writer: _Connection
    _writing: asyncio.Task[None]

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self.on_commit: Callable[[Sequence[Event]], None] = lambda events: None
        self._clock = clock
        self._requests: asyncio.Queue[_Request[Any] | None] = asyncio.Queue()
        self._readers: asyncio.Queue[_Connection] = asyncio.Queue()
        self._numbers = EventNumbers()
        self._connections: list[_Connection] = []

    @classmethod
    async def open(cls, path: Path, clock: Clock) -> "Database":
        """Open and migrate. Raises UsageError with code database_newer, UnavailableError when it cannot be opened."""
        self = cls(path, clock)
        try:
            await self._open()
        except sqlite3.DatabaseError as error:
            await self._shut()
            raise _unusable(path, error) from error
        except BaseException:
            await self._shut()
            raise
        self._writing = asyncio.create_task(self._write_loop(), name="store-writer")
        return self

    async def _open(self) -> None:
        self._writer = await self._connect()
        await self._writer.call(migrations.migrate, self._writer.sql, self.path)
        await self._writer.call(self._numbers.load, self._writer.sql)
        for _ in range(READERS):
            self._readers.put_nowait(await self._connect())

    async def _connect(self) -> _Connection:
        connection = _Connection(lambda: _connect(self.path), iter_chunk_size=64)
        self._connections.append(connection)
        return await connection.open()

    async def _shut(self) -> None:
        for connection in self._connections:
            await connection.shut()

    @property
    def last_seq(self) -> int:
        """The seq of the newest event that is committed."""
        return self._numbers.committed

    async def write(self, work: Work[T]) -> T:
        """Run a work in a transaction and return its value once it is durable. Raises what the work raises.

        Whoever stops waiting does not stop the work.
        """
        return await asyncio.shield(self.hand_in(work))

    def hand_in(self, work: Work[T]) -> asyncio.Future[T]:
        """Hand a work in, and return what is done once it is durable, or has failed."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._requests.put_nowait(_Request(work, done))
        return done

    async def read(self, work: Callable[[sa.Connection], T]) -> T:
        """Run a read on one consistent view of the database."""
        reader = await self._readers.get()
        try:
            result: T = await asyncio.shield(asyncio.ensure_future(reader.call(_read, reader.sql, work)))
        finally:
            self._readers.put_nowait(reader)
        return result

    async def close(self) -> None:
        """Commit what was handed in, then close. Later calls of `write` never end; make none."""
        self._requests.put_nowait(None)
        await self._writing
        for _ in range(READERS):
            await self._readers.get()
        await self._shut()

    async def _write_loop(self) -> None:
        while (first := await self._requests.get()) is not None:
            group = [first]
            last = False
            while not self._requests.empty() and len(group) < GROUP_LIMIT and not last:
                following = self._requests.get_nowait()
                if following is None:
                    last = True
                else:
                    group.append(following)
            await self._commit(group)
            if last:
                return

    async def _commit(self, group: list[_Request[Any]]) -> None:
        works = [request.work for request in group]
        try:
            outcomes = await self._writer.call(self._run_group, works)
        except Exception as error:  # noqa: BLE001 - the writer outlives any failed commit; the callers are told
            outcomes = [_Outcome(error=error) for _ in works]
        for outcome in outcomes:
            if outcome.events:
                self.on_commit(outcome.events)
        for request, outcome in zip(group, outcomes, strict=True):
            _settle(request.done, outcome)

    def _run_group(self, works: list[Work[Any]]) -> list[_Outcome]:
        outcomes, failed = self._attempt(works)
        if failed and len(works) > 1:
            return [self._attempt([work])[0][0] for work in works]
        return outcomes

    def _attempt(self, works: list[Work[Any]]) -> tuple[list[_Outcome], bool]:
        conn = self._writer.sql
        outcomes: list[_Outcome] = []
        conn.exec_driver_sql("BEGIN IMMEDIATE")
        try:
            for work in works:
                tx = Transaction(conn, self._clock.now(), self._numbers)
                outcomes.append(_Outcome(work(tx), None, tx.events))
            self._numbers.store(conn, [event for outcome in outcomes for event in outcome.events])
            conn.exec_driver_sql("COMMIT")
        except Exception as error:  # noqa: BLE001 - handed to whoever asked for the work
            self._roll_back(conn)
            return [_Outcome(error=error) for _ in works], True
        self._numbers.confirm()
        return outcomes, False

    def _roll_back(self, conn: sa.Connection) -> None:
        self._numbers.forget()
        raw = conn.connection.driver_connection
        if isinstance(raw, sqlite3.Connection) and raw.in_transaction:
            conn.exec_driver_sql("ROLLBACK")


def _read(conn: sa.Connection, work: Callable[[sa.Connection], T]) -> T:
    conn.exec_driver_sql("BEGIN")
    try:
        return work(conn)
    finally:
        conn.exec_driver_sql("COMMIT")


def _settle(done: "asyncio.Future[Any]", outcome: _Outcome) -> None:
    if done.cancelled():
        return
    if outcome.error is None:
        done.set_result(outcome.value)
    else:
        done.set_exception(outcome.error)


def _unusable(path: Path, error: Exception) -> Exception:
    text = f"The database {path} cannot be opened: {error}"
    hint = "Move it aside to start with an empty one, or restore a backup; nothing was changed."
    if "not a database" in str(error) or "malformed" in str(error):
        return UsageError(text, code="database_corrupt", hint=hint)
    return UnavailableError(text, code="database_unavailable", hint=hint)
