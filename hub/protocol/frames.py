"""The client's side of a frame, without I/O: parameters checked before they are sent, answers and notices as values."""

import functools
import secrets
from typing import Any

import msgspec

from hub.errors import InternalError, NotFoundError, UsageError
from hub.protocol.cursor import Item
from hub.protocol.envelope import Notification, Reply, decode_from_hub
from hub.protocol.methods import METHODS, NOTIFICATIONS, EventFrame, LiveFrame, Method
from hub.protocol.subscribing import CaughtUp, Gap

_VERSION_HINT = "Hub and client may be of different versions: run `hubctl restart`."


def row_of(method: str) -> Method:
    """Return the method's row. Raises NotFoundError with code unknown_method."""
    row = METHODS.get(method)
    if row is None:
        raise NotFoundError(f"There is no method {method!r}.", code="unknown_method")
    return row


def checked_params(row: Method, params: dict[str, Any]) -> msgspec.Raw:
    """Return the parameters as they are sent, with an idempotency key where one is due. Raises UsageError.

    Only what was given is sent, defaults are not: an older hub refuses fields that it does not know.
    """
    if row.mutating and params.get("idempotency_key") is None:
        params = {**params, "idempotency_key": secrets.token_hex(16)}
    try:
        raw = msgspec.json.encode(params)
        decoder_of(row.params).decode(raw)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise UsageError(f"{row.name}: {error}") from None
    return msgspec.Raw(raw)


def decoded(frame: bytes) -> Reply | Notification:
    """Return what the hub sent. Raises InternalError with code malformed_frame."""
    try:
        return decode_from_hub(frame)
    except (UsageError, RecursionError) as error:
        raise InternalError(f"The hub sent a frame that cannot be read: {error}", code="malformed_frame") from None


def result_of(row: Method, reply: Reply) -> Any:
    """Return the result as the row's type. Raises the reply's error, or InternalError with code malformed_reply."""
    if reply.error is not None:
        raise reply.error
    try:
        return decoder_of(row.result).decode(reply.result or b"")
    except (ValueError, RecursionError) as error:
        raise InternalError(
            f"The hub's answer to {row.name} cannot be read: {error}", code="malformed_reply", hint=_VERSION_HINT
        ) from None


def item_of(notice: Notification) -> tuple[int, Item] | None:
    """Return the subscription's number and the item, None for a notice that this version does not know.

    Raises InternalError with code malformed_frame.
    """
    kind = NOTIFICATIONS.get(notice.method)
    if kind is None:
        return None
    try:
        frame = decoder_of(kind).decode(notice.params)
    except (ValueError, RecursionError) as error:
        raise InternalError(
            f"The hub's notice {notice.method} cannot be read: {error}", code="malformed_frame", hint=_VERSION_HINT
        ) from None
    return frame.subscription, _content(frame)


def _content(frame: EventFrame | LiveFrame | CaughtUp | Gap) -> Item:
    if isinstance(frame, EventFrame):
        return frame.event
    return frame.live if isinstance(frame, LiveFrame) else frame


@functools.cache
def decoder_of(type: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of a table's type."""
    return msgspec.json.Decoder(type)
