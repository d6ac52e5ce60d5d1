"""The hub's side of a connection as a value: frames in, decisions out, no I/O and no waiting.

Invariant: whatever a peer sends, `receive` returns a value and never raises; a call comes out of it only after hello
was accepted, with parameters of its method's type and within the scopes that were granted.
It does not know tokens (the caller checks the one in HelloReceived), deadlines, or what a method does.

    awaiting_hello ──► checking ──► open        every state may go to closed
"""

import difflib
from collections.abc import Collection
from enum import IntEnum

import msgspec

from hub.domain.states import Machine
from hub.domain.values import Scope
from hub.errors import AuthError, NotFoundError, RefusedError, TurnbackError, UsageError
from hub.protocol.envelope import Call, RequestId, decode_call
from hub.protocol.frames import decoder_of
from hub.protocol.methods import FRAME_LIMIT, HELLO_LIMIT, METHODS, PROTOCOL_MIN, PROTOCOL_VERSION, Method
from hub.protocol.params import Hello, Params, VersionRange

CONNECTION = Machine(
    "connection",
    "awaiting_hello",
    {
        "awaiting_hello": frozenset({"checking", "closed"}),
        "checking": frozenset({"open", "closed"}),
        "open": frozenset({"closed"}),
        "closed": frozenset(),
    },
)

FORWARDING_HEADERS = ("Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Real-IP", "Via")
"""A request that carries one of these came through a proxy, and counts as remote."""

_HELLO = "hub.hello"
_NAME_SHOWN = 80
_PROBLEM_SHOWN = 500
_READ_ERRORS = (ValueError, RecursionError)  # msgspec's own errors and Unicode's are ValueErrors


class CloseCode(IntEnum):
    """WebSocket close codes of this protocol; a coded error or a reason always comes before or with them."""

    GOING_AWAY = 1001
    HELLO_REFUSED = 4001
    HELLO_LATE = 4002
    SLOW_READER = 4003
    TOKEN_REVOKED = 4004


class HelloReceived(msgspec.Struct, frozen=True):
    """The first frame is a hello; `protocol` is the version to speak. Check the token, then `accept` or `close`."""

    id: RequestId
    params: Hello
    protocol: int


class CallReceived(msgspec.Struct, frozen=True):
    """A call that may be carried out."""

    id: RequestId
    method: Method
    params: Params


class Refused(msgspec.Struct, frozen=True):
    """Answer with this error; then close the connection, if there is a close code."""

    id: RequestId | None
    error: TurnbackError
    close: CloseCode | None = None


class HttpRefusal(msgspec.Struct, frozen=True):
    """The answer to an upgrade that is refused."""

    status: int
    code: str
    text: str


class ServerConnection:
    """One peer, from its first frame to its end."""

    def __init__(self) -> None:
        self._state = CONNECTION.initial
        self._scopes: tuple[Scope, ...] = ()

    @property
    def state(self) -> str:
        return self._state

    @property
    def scopes(self) -> tuple[Scope, ...]:
        return self._scopes

    def accept(self, scopes: Collection[Scope]) -> None:
        """The token is good: from now on calls within these scopes come out. Raises IllegalMove before a hello."""
        self._state = CONNECTION.check(self._state, "open")
        self._scopes = tuple(scopes)

    def close(self) -> None:
        """The connection is over; may be said twice."""
        self._state = "closed"

    def receive(self, frame: str | bytes) -> HelloReceived | CallReceived | Refused:
        """Return what a frame means. After a Refused with a close code the connection is closed."""
        data = frame.encode("utf-8", "surrogatepass") if isinstance(frame, str) else bytes(frame)
        if self._state == "closed":
            return Refused(None, RefusedError("This connection is closed.", code="connection_closed"))
        if self._state == "open":
            return self._receive_call(data)
        decision = self._receive_hello(data)
        self._state = "closed" if isinstance(decision, Refused) else "checking"
        return decision

    def _receive_hello(self, data: bytes) -> HelloReceived | Refused:
        if len(data) > HELLO_LIMIT:
            return Refused(None, _too_large(len(data), HELLO_LIMIT), CloseCode.HELLO_REFUSED)
        call = _call_in(data)
        if isinstance(call, Refused):
            return Refused(call.id, call.error, CloseCode.HELLO_REFUSED)
        if call.method != _HELLO or self._state != "awaiting_hello":
            return Refused(call.id, _hello_expected(), CloseCode.HELLO_REFUSED)
        try:
            protocol = check_version(decoder_of(_Offer).decode(call.params).protocol)
            return HelloReceived(call.id, decoder_of(Hello).decode(call.params), protocol)
        except TurnbackError as error:
            return Refused(call.id, error, CloseCode.HELLO_REFUSED)
        except _READ_ERRORS as error:
            return Refused(call.id, _invalid_params(_HELLO, error), CloseCode.HELLO_REFUSED)

    def _receive_call(self, data: bytes) -> CallReceived | Refused:
        if len(data) > FRAME_LIMIT:
            return Refused(_id_in(data), _too_large(len(data), FRAME_LIMIT))
        call = _call_in(data)
        if isinstance(call, Refused):
            return call
        row = METHODS.get(call.method)
        if row is None:
            return Refused(call.id, _unknown_method(call.method))
        objection = self._objection(row)
        if objection is not None:
            return Refused(call.id, objection)
        try:
            return CallReceived(call.id, row, decoder_of(row.params).decode(call.params))
        except _READ_ERRORS as error:
            return Refused(call.id, _invalid_params(row.name, error))

    def _objection(self, row: Method) -> TurnbackError | None:
        if row.name == _HELLO:
            return UsageError("This connection has had its hub.hello.", code="hello_repeated")
        return check_scope(row, self._scopes)


class VersionOffer(msgspec.Struct, frozen=True):
    """Versions a client speaks, read leniently: a newer client's hello may have fields that are unknown here."""

    min: int
    max: int


class _Offer(msgspec.Struct, frozen=True):
    protocol: VersionOffer


def check_version(offer: VersionOffer | VersionRange) -> int:
    """Return the newest version both sides speak. Raises UsageError with code protocol_mismatch."""
    newest = min(offer.max, PROTOCOL_VERSION)
    if offer.min <= newest and newest >= PROTOCOL_MIN:
        return newest
    if offer.min > PROTOCOL_VERSION:
        hint = "The hub is older than the client: run `hubctl restart`; if that does not help, upgrade Turnback."
    else:
        hint = "The client is older than the hub: upgrade the client."
    theirs, ours = _range(offer.min, offer.max), _range(PROTOCOL_MIN, PROTOCOL_VERSION)
    raise UsageError(f"The client speaks protocol {theirs}, this hub {ours}.", code="protocol_mismatch", hint=hint)


def check_scope(row: Method, scopes: Collection[Scope]) -> AuthError | None:
    """Return why a connection may not call a method, None when it may. No scope implies another."""
    if row.scope is None or row.scope in scopes:
        return None
    held = ", ".join(scopes) or "none"
    return AuthError(
        f"{row.name} needs the scope `{row.scope}`; this token has: {held}.",
        code="scope_missing",
        hint="Use a token that has this scope; scopes are granted with a token and cannot be asked for.",
    )


def check_upgrade(host: str | None, origin: str | None, forwarded: bool, port: int) -> HttpRefusal | None:
    """Return why an HTTP request to the hub on loopback is refused, None when it is not.

    `forwarded`: the request has one of FORWARDING_HEADERS. A page of another site fails by its Origin, one whose name
    was pointed at loopback (DNS rebinding) by its Host.
    """
    if forwarded:
        text = "This request came through a proxy, and the hub serves this machine only. Connect to it directly."
        return HttpRefusal(403, "forwarded", text + "\n")
    if (host or "").lower() not in _hosts(port):
        shown = (host or "")[:_NAME_SHOWN]
        text = (
            f"The Host header {shown!r} does not name this hub. Use http://127.0.0.1:{port} or http://localhost:{port}."
        )
        return HttpRefusal(421, "wrong_host", text + "\n")
    if origin is not None and origin not in _origins(port):
        text = f"Pages of {origin[:_NAME_SHOWN]!r} may not talk to this hub. Open http://127.0.0.1:{port} itself."
        return HttpRefusal(403, "wrong_origin", text + "\n")
    return None


def _hosts(port: int) -> tuple[str, ...]:
    return (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}")


def _origins(port: int) -> tuple[str, ...]:
    return (f"http://127.0.0.1:{port}", f"http://localhost:{port}")


def _range(lowest: int, highest: int) -> str:
    return str(lowest) if lowest == highest else f"{lowest} to {highest}"


class _OnlyId(msgspec.Struct, frozen=True):
    id: RequestId | None = None


def _id_in(data: bytes) -> RequestId | None:
    """Return the id of a frame that cannot be carried out, so that its sender knows which call is meant."""
    try:
        found: _OnlyId = decoder_of(_OnlyId).decode(data)
    except _READ_ERRORS:
        return None
    return found.id


def _call_in(data: bytes) -> Call | Refused:
    try:
        return decode_call(data)
    except TurnbackError as error:
        return Refused(_id_in(data), error)
    except RecursionError:
        return Refused(None, UsageError("The frame is nested too deeply.", code="parse_error"))


def _too_large(size: int, limit: int) -> UsageError:
    return UsageError(f"The frame has {size} bytes; {limit} are allowed here.", code="frame_too_large")


def _hello_expected() -> UsageError:
    return UsageError(
        "The first frame must be hub.hello, and nothing else is read until it is accepted.",
        code="hello_expected",
        hint='Send {"jsonrpc":"2.0","id":1,"method":"hub.hello","params":{"protocol":…,"client":…,"token":…}} first.',
    )


def _unknown_method(name: str) -> NotFoundError:
    shown = name[:_NAME_SHOWN]
    close = difflib.get_close_matches(shown, METHODS, n=3)
    hint = f"Did you mean {' or '.join(close)}?" if close else "The protocol reference lists all methods."
    return NotFoundError(f"There is no method {shown!r}.", code="unknown_method", hint=hint)


def _invalid_params(method: str, error: Exception) -> UsageError:
    problem = str(error)[:_PROBLEM_SHOWN]  # it may quote what was sent
    return UsageError(
        f"{method}: {problem}", code="invalid_params", hint="The protocol reference lists its parameters."
    )
