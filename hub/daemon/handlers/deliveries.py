"""delivery.*: what the hub owes to addresses."""

from hub.daemon.calls import Caller, Handlers
from hub.daemon.services import Services
from hub.protocol.params import DeliveryList, DeliveryReceipt
from hub.protocol.views import DeliveryView
from hub.store import deliveries
from hub.store.database import Transaction


def register(handlers: Handlers, services: Services) -> None:
    """Serve the delivery methods."""

    async def listing(params: DeliveryList, caller: Caller) -> list[DeliveryView]:
        return await services.database.read(
            lambda conn: deliveries.listing(
                conn, params.address, pending_only=params.state == "pending", limit=params.limit
            )
        )

    handlers.asynchronous("delivery.list", listing)
    handlers.transactional("delivery.receipt", _receipt)


def _receipt(tx: Transaction, params: DeliveryReceipt, caller: Caller) -> DeliveryView:
    return deliveries.receipt(tx, params.delivery_id, params.receipt)
