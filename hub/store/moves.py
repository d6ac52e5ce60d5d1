"""Guarded moves: a row changes its state only along its machine's table, in one UPDATE that names the old states."""

from typing import Any

import sqlalchemy as sa

from hub.domain.states import IllegalMove, Machine
from hub.errors import NotFoundError
from hub.store.database import Transaction


def move(tx: Transaction, table: sa.Table, machine: Machine, id: str, new: str, **values: Any) -> None:
    """Set the state and the values. Raises IllegalMove, or NotFoundError when there is no such row."""
    update = sa.update(table).where(table.c.id == id, table.c.state.in_(machine.before(new)))
    if tx.conn.execute(update.values(state=new, **values)).rowcount == 1:
        return
    state = tx.conn.execute(sa.select(table.c.state).where(table.c.id == id)).scalar()
    if state is None:
        raise missing(machine.name, id)
    raise IllegalMove(f"{id} is {state} and cannot become {new}.")


def missing(what: str, id: str) -> NotFoundError:
    """Return the error for an id that names nothing."""
    code = f"unknown_{what.replace(' ', '_')}"
    return NotFoundError(f"There is no {what} {id!r}.", code=code)


def one(conn: sa.Connection, table: sa.Table, what: str, id: str) -> Any:
    """Return the row with this id. Raises NotFoundError."""
    row = conn.execute(sa.select(table).where(table.c.id == id)).one_or_none()
    if row is None:
        raise missing(what, id)
    return row
