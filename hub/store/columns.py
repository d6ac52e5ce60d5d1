"""Columns: how instants, JSON values, states, references and counts are kept."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from hub.domain.states import Machine


class Instant(sa.types.TypeDecorator[datetime]):
    """An aware UTC datetime, kept as whole milliseconds since 1970."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else round(value.timestamp() * 1000)

    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value / 1000, UTC)


class Json(sa.types.TypeDecorator[Any]):
    """Any JSON value or msgspec struct, kept as compact JSON text; read back as plain values."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else msgspec.json.decode(value)


def id_column() -> sa.Column[str]:
    """Return the primary key."""
    return sa.Column("id", sa.Text, primary_key=True)


def state_columns(machine: Machine) -> tuple[sa.Column[str], sa.CheckConstraint]:
    """Return the state of a machine and the check that it is one."""
    allowed = ", ".join(f"'{state}'" for state in machine.states)
    return sa.Column("state", sa.Text, nullable=False), sa.CheckConstraint(f"state IN ({allowed})")


def reference(name: str, target: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a column that names a row of another table."""
    return sa.Column(name, sa.Text, sa.ForeignKey(target), nullable=nullable)


def text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    """Return a column of text."""
    return sa.Column(name, sa.Text, nullable=nullable)


def count(name: str, default: int = 0) -> sa.Column[int]:
    """Return a column that counts."""
    return sa.Column(name, sa.Integer, nullable=False, server_default=str(default))


def json(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    """Return a column of JSON."""
    return sa.Column(name, Json, nullable=nullable)


def instant(name: str, *, nullable: bool = True) -> sa.Column[datetime]:
    """Return a column with a moment."""
    return sa.Column(name, Instant, nullable=nullable)
