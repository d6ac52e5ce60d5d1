"""Frames: what goes in comes out, and what is no frame is refused with a code."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.errors import KINDS, InternalError, TurnbackError, UsageError
from hub.protocol.envelope import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    PARSE_ERROR,
    REFUSED,
    Notification,
    Reply,
    decode_call,
    decode_from_hub,
    encode_call,
    encode_error,
    encode_notification,
    encode_result,
    number_of,
)

ids = st.integers(-(2**63), 2**63 - 1) | st.text(max_size=30)
names = st.text(min_size=1, max_size=30)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
errors = st.builds(
    lambda kind, message, code, hint, retryable, after: kind(
        message, code=code, hint=hint, retryable=retryable, retry_after_s=after
    ),
    st.sampled_from(sorted(KINDS.values(), key=lambda kind: kind.__name__)),
    st.text(max_size=40),
    st.from_regex(r"[a-z_]{1,20}", fullmatch=True),
    st.none() | st.text(max_size=40),
    st.booleans(),
    st.none() | st.floats(0, 1e6),
)


@given(ids, names, values)
def test_calls_survive_the_wire(id: int | str, method: str, params: Any) -> None:
    call = decode_call(encode_call(id, method, params))
    assert (call.id, call.method, msgspec.json.decode(call.params)) == (id, method, params)
    assert decode_call(encode_call(id, method, params).decode()) == call


@given(ids, values)
def test_results_survive_the_wire(id: int | str, result: Any) -> None:
    reply = decode_from_hub(encode_result(id, result))
    assert isinstance(reply, Reply)
    assert (reply.id, reply.error) == (id, None)
    assert msgspec.json.decode(reply.result or b"") == result
    assert decode_from_hub(encode_result(id, reply.result)) == reply


@given(st.none() | ids, errors)
def test_errors_survive_the_wire(id: int | str | None, error: TurnbackError) -> None:
    reply = decode_from_hub(encode_error(id, error))
    assert isinstance(reply, Reply)
    assert (reply.id, reply.result) == (id, None)
    assert type(reply.error) is type(error)
    assert vars(reply.error) == vars(error)


@given(names, values)
def test_notifications_survive_the_wire(method: str, params: Any) -> None:
    notice = decode_from_hub(encode_notification(method, params))
    assert isinstance(notice, Notification)
    assert (notice.method, msgspec.json.decode(notice.params)) == (method, params)


def refusal_code(decode: Callable[[bytes], Any], frame: bytes) -> str | None:
    try:
        decode(frame)
    except UsageError as error:
        return error.code
    return None


@given(st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_a_usage_error(frame: bytes) -> None:
    assert refusal_code(decode_call, frame) in ("parse_error", "invalid_request")
    assert refusal_code(decode_from_hub, frame) in ("parse_error", "invalid_request")


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        ("", "parse_error"),
        ("{", "parse_error"),
        (b"\xff", "parse_error"),
        ("null", "invalid_request"),
        ('[{"jsonrpc":"2.0","id":1,"method":"hub.status"}]', "invalid_request"),
        ('{"jsonrpc":"1.1","id":1,"method":"x"}', "invalid_request"),
        ('{"jsonrpc":"2.0","method":"x"}', "invalid_request"),
        ('{"jsonrpc":"2.0","id":null,"method":"x"}', "invalid_request"),
        ('{"jsonrpc":"2.0","id":1.5,"method":"x"}', "invalid_request"),
        ('{"jsonrpc":"2.0","id":1}', "invalid_request"),
    ],
)
def test_what_is_no_call_is_refused(frame: str | bytes, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode_call(frame)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (UsageError("x", code="parse_error"), PARSE_ERROR),
        (UsageError("x", code="invalid_request"), INVALID_REQUEST),
        (KINDS["NotFoundError"]("x", code="unknown_method"), METHOD_NOT_FOUND),
        (UsageError("x"), INVALID_PARAMS),
        (InternalError("x"), INTERNAL_ERROR),
        (KINDS["ConflictError"]("x"), REFUSED),
    ],
)
def test_numbers_are_those_of_the_specification(error: TurnbackError, number: int) -> None:
    assert number_of(error) == number
    assert msgspec.json.decode(encode_error(1, error))["error"]["code"] == number


def test_an_unknown_kind_of_error_is_still_an_error() -> None:
    frame = '{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"m","data":{"kind":"FutureError","code":"new"}}}'
    reply = decode_from_hub(frame)
    assert isinstance(reply, Reply)
    assert isinstance(reply.error, InternalError)
    assert reply.error.code == "new"
