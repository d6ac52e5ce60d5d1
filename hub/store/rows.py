"""Single rows: inserted, found by id, and moved along their machine's table in one UPDATE that names the old states.

The statements are built once per table and shape: building one costs more than running it.
"""

from functools import cache
from typing import Any

import sqlalchemy as sa

from hub.domain.states import MACHINES, IllegalMove, Machine
from hub.errors import NotFoundError
from hub.store.database import Connection, Transaction

_MACHINES = {machine.name: machine for machine in MACHINES}


@cache
def _insert(table: sa.Table) -> sa.Insert:
    return sa.insert(table)


@cache
def _by_id(table: sa.Table) -> sa.Select[Any]:
    return sa.select(table).where(table.c.id == sa.bindparam("row_id"))


@cache
def _update(table: sa.Table) -> sa.Update:
    return sa.update(table).where(table.c.id == sa.bindparam("row_id"))


@cache
def _move(table: sa.Table, machine: str, new: str) -> sa.Update:
    return _update(table).where(table.c.state.in_(_MACHINES[machine].before(new)))


@cache
def _move_and_read(table: sa.Table, machine: str, new: str) -> Any:
    return _move(table, machine, new).returning(*table.c)


def insert(tx: Transaction, table: sa.Table, **values: Any) -> None:
    """Insert a row."""
    tx.conn.execute(_insert(table), values)


def change(tx: Transaction, table: sa.Table, id: str, **values: Any) -> None:
    """Set columns of a row; values are plain, not expressions."""
    tx.conn.execute(_update(table), {"row_id": id, **values})


def move(tx: Transaction, table: sa.Table, machine: Machine, id: str, new: str, **values: Any) -> None:
    """Set the state and the values. Raises IllegalMove, or NotFoundError when there is no such row."""
    update = _move(table, machine.name, new)
    if tx.conn.execute(update, {"row_id": id, "state": new, **values}).rowcount != 1:
        raise _illegal(tx, table, machine, id, new)


def move_and_read(tx: Transaction, table: sa.Table, machine: Machine, id: str, new: str, **values: Any) -> Any:
    """Do the same and return the row as it is then."""
    update = _move_and_read(table, machine.name, new)
    row = tx.conn.execute(update, {"row_id": id, "state": new, **values}).one_or_none()
    if row is None:
        raise _illegal(tx, table, machine, id, new)
    return row


def _illegal(tx: Transaction, table: sa.Table, machine: Machine, id: str, new: str) -> IllegalMove:
    state = one(tx.conn, table, machine.name, id).state
    return IllegalMove(f"{id} is {state} and cannot become {new}.")


def missing(what: str, id: str) -> NotFoundError:
    """Return the error for an id that names nothing."""
    code = f"unknown_{what.replace(' ', '_')}"
    return NotFoundError(f"There is no {what} {id!r}.", code=code)


def one(conn: Connection, table: sa.Table, what: str, id: str) -> Any:
    """Return the row with this id. Raises NotFoundError."""
    row = conn.execute(_by_id(table), {"row_id": id}).one_or_none()
    if row is None:
        raise missing(what, id)
    return row
