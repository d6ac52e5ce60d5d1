"""JSON-RPC 2.0 frames: text in, values out, and back. One object per frame; batches are refused.

Errors carry `data: {code, kind, retryable, retry_after_s?, hint?}`; clients branch on `code`.
Specification: JSON-RPC 2.0 (numbers, `id` rules); the `data` object is this protocol's own.
"""

from typing import Any

import msgspec

from hub.errors import KINDS, InternalError, TurnbackError, UsageError

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
REFUSED = -32000

RequestId = int | str


class Call(msgspec.Struct, frozen=True):
    """A request for one method. `params` stays raw until the method's own type decodes it."""

    id: RequestId
    method: str
    params: msgspec.Raw


class Reply(msgspec.Struct, frozen=True):
    """An answer: `result` (raw) or `error`."""

    id: RequestId | None
    result: msgspec.Raw | None
    error: TurnbackError | None


class Notification(msgspec.Struct, frozen=True):
    """Something the hub tells without being asked."""

    method: str
    params: msgspec.Raw


class _ErrorData(msgspec.Struct, omit_defaults=True):
    code: str = "internal"
    kind: str = "InternalError"
    retryable: bool = False
    retry_after_s: float | None = None
    hint: str | None = None


class _Error(msgspec.Struct):
    code: int
    message: str
    data: _ErrorData = msgspec.field(default_factory=_ErrorData)


class _Incoming(msgspec.Struct):
    jsonrpc: str
    method: str = ""
    id: RequestId | None = None
    params: msgspec.Raw = msgspec.Raw(b"{}")
    result: msgspec.Raw = msgspec.Raw(b"")
    error: _Error | None = None


_decoder = msgspec.json.Decoder(_Incoming)
_encoder = msgspec.json.Encoder()


def decode_call(frame: str | bytes) -> Call:
    """Return the call in a frame. Raises UsageError with code parse_error or invalid_request."""
    incoming = _decode(frame)
    if not incoming.method or incoming.id is None:
        raise UsageError(
            "A frame must be a JSON-RPC 2.0 request with `method` and `id`.",
            code="invalid_request",
            hint='Example: {"jsonrpc":"2.0","id":1,"method":"hub.status","params":{}}',
        )
    return Call(incoming.id, incoming.method, incoming.params)


def decode_from_hub(frame: str | bytes) -> Reply | Notification:
    """Return the reply or notification in a frame that the hub sent. Raises UsageError when it is neither."""
    incoming = _decode(frame)
    if incoming.method:
        return Notification(incoming.method, incoming.params)
    if incoming.error is not None:
        return Reply(incoming.id, None, _to_exception(incoming.error))
    return Reply(incoming.id, incoming.result, None)


def _decode(frame: str | bytes) -> _Incoming:
    try:
        incoming = _decoder.decode(frame)
    except msgspec.ValidationError as error:
        raise UsageError(f"Not a JSON-RPC 2.0 object: {error}", code="invalid_request") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The frame is not JSON: {error}", code="parse_error") from None
    if incoming.jsonrpc != "2.0":
        raise UsageError('`jsonrpc` must be "2.0".', code="invalid_request")
    return incoming


def encode_call(id: RequestId, method: str, params: Any) -> bytes:
    """Return the frame of a request."""
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def encode_result(id: RequestId, result: Any) -> bytes:
    """Return the frame of a successful answer; `result` may be msgspec.Raw."""
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "result": result})


def encode_error(id: RequestId | None, error: TurnbackError) -> bytes:
    """Return the frame of a refusal."""
    data = _ErrorData(error.code, kind_of(error), error.retryable, error.retry_after_s, error.hint)
    body = _Error(number_of(error), error.message, data)
    return _encoder.encode({"jsonrpc": "2.0", "id": id, "error": body})


def encode_notification(method: str, params: Any) -> bytes:
    """Return the frame of a notification."""
    return _encoder.encode({"jsonrpc": "2.0", "method": method, "params": params})


def kind_of(error: TurnbackError) -> str:
    """Return the name of the branch of the error tree that an error is of."""
    kinds = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in KINDS)
    return next(kinds, InternalError.__name__)


def number_of(error: TurnbackError) -> int:
    """Return the JSON-RPC error number for an error."""
    special = {
        "parse_error": PARSE_ERROR,
        "invalid_request": INVALID_REQUEST,
        "unknown_method": METHOD_NOT_FOUND,
        "internal": INTERNAL_ERROR,
    }
    if error.code in special:
        return special[error.code]
    return INVALID_PARAMS if isinstance(error, UsageError) else REFUSED


def _to_exception(error: _Error) -> TurnbackError:
    kind = KINDS.get(error.data.kind, InternalError)
    return kind(
        error.message,
        code=error.data.code,
        hint=error.data.hint,
        retryable=error.data.retryable,
        retry_after_s=error.data.retry_after_s,
    )
