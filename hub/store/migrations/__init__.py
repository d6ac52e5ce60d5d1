"""Numbered migrations, applied in order at start, each in one transaction with the new number.

The number is SQLite's `user_version`. A database with a higher number than this program knows is refused, unread.
A database that holds data is copied beside itself before it is changed; the copy is named in the log.
"""

import importlib
import logging
from pathlib import Path

import sqlalchemy as sa

from hub.errors import UsageError

LATEST = 2
_PREFIX = "m"

log = logging.getLogger(__name__)


def migrate(conn: sa.Connection, path: Path) -> None:
    """Bring the database to LATEST. Raises UsageError with code database_newer."""
    current = conn.exec_driver_sql("PRAGMA user_version").scalar() or 0
    if current > LATEST:
        raise UsageError(
            f"{path} was written by a newer Turnback (database version {current}, this program knows {LATEST}).",
            code="database_newer",
            hint="Upgrade Turnback, or use another home with --home.",
        )
    if 0 < current < LATEST:
        _back_up(conn, path, current)
    for number in range(current + 1, LATEST + 1):
        _apply(conn, number)


def _apply(conn: sa.Connection, number: int) -> None:
    # Late on purpose: a hub whose database is current loads no migration.
    module = importlib.import_module(f"{__name__}.{_PREFIX}{number:04d}")
    conn.exec_driver_sql("BEGIN IMMEDIATE")
    try:
        module.upgrade(conn)
        conn.exec_driver_sql(f"PRAGMA user_version = {number}")
    except BaseException:
        conn.exec_driver_sql("ROLLBACK")
        raise
    conn.exec_driver_sql("COMMIT")


def _back_up(conn: sa.Connection, path: Path, current: int) -> None:
    copy = path.with_name(f"{path.name}.before-{LATEST}-from-{current}")
    if not copy.exists():
        conn.exec_driver_sql("VACUUM INTO ?", (str(copy),))
        copy.chmod(0o600)
    log.warning("the database is migrated; a copy of it as it was is kept", extra={"backup": str(copy)})
