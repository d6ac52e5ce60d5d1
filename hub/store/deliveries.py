"""The outbox: messages the hub owes to addresses, one per run and address."""

from typing import Any

import sqlalchemy as sa

from hub.clock import iso
from hub.domain.states import DELIVERY
from hub.ids import new_id
from hub.protocol.events import TEXT_LIMIT, DeliveryChanged
from hub.protocol.views import DeliveryView
from hub.store.database import Transaction
from hub.store.rows import move, one
from hub.store.schema import deliveries


def owe(tx: Transaction, session_id: str, run_id: str, address: str, text: str) -> None:
    """Store a delivery, unless there is no address or this run owes it already."""
    if not address:
        return
    delivery_id = new_id("delivery")
    insert = sa.insert(deliveries).prefix_with("OR IGNORE")
    stored = tx.conn.execute(
        insert.values(
            id=delivery_id,
            session_id=session_id,
            run_id=run_id,
            address=address,
            state=DELIVERY.initial,
            text=text[:TEXT_LIMIT],
            created_at=tx.now,
        )
    )
    if stored.rowcount:
        data = DeliveryChanged(delivery_id=delivery_id, address=address, state=DELIVERY.initial)
        tx.emit("delivery.available", data, session_id=session_id, run_id=run_id)


def receipt(tx: Transaction, delivery_id: str, text: str) -> DeliveryView:
    """Say that a delivery was shown or sent; `text` is the platform's proof."""
    move(tx, deliveries, DELIVERY, delivery_id, "sent", receipt=text, sent_at=tx.now)
    row = one(tx.conn, deliveries, "delivery", delivery_id)
    data = DeliveryChanged(delivery_id=delivery_id, address=row.address, state=row.state)
    tx.emit("delivery.sent", data, session_id=row.session_id, run_id=row.run_id)
    return _view(row)


def listing(conn: sa.Connection, address: str, *, pending_only: bool, limit: int) -> list[DeliveryView]:
    """Return what is owed to an address, oldest first."""
    query = sa.select(deliveries).where(deliveries.c.address == address).order_by(deliveries.c.created_at)
    if pending_only:
        query = query.where(deliveries.c.state == DELIVERY.initial)
    return [_view(row) for row in conn.execute(query.limit(limit))]


def _view(row: Any) -> DeliveryView:
    return DeliveryView(
        id=row.id,
        session_id=row.session_id,
        run_id=row.run_id,
        address=row.address,
        state=row.state,
        text=row.text,
        created_at=iso(row.created_at),
        sent_at=iso(row.sent_at) if row.sent_at else None,
    )
