"""What a subscription says beside the events themselves: where it begins, when it is live, what it could not serve."""

from hub.protocol.events import Data


class Subscribed(Data, frozen=True, kw_only=True):
    """The answer to events.subscribe; `subscription` numbers it on this connection."""

    subscription: int
    log_id: str
    first_seq: int
    last_seq: int


class CaughtUp(Data, frozen=True, kw_only=True):
    """Notification `events.caught_up`: everything up to `seq` was sent; from here on it is live."""

    subscription: int
    seq: int


class Gap(Data, frozen=True, kw_only=True):
    """Notification `events.gap`: the cursor cannot be served; read the views again and go on from `seq`."""

    subscription: int
    log_id: str
    reason: str
    seq: int
