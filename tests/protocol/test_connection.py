"""The hub's side of a connection, as dialogues: this frame comes in, that decision comes out."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.domain.states import IllegalMove
from hub.errors import AuthError, NotFoundError, UsageError
from hub.protocol import connection
from hub.protocol.connection import (
    CONNECTION,
    CallReceived,
    CloseCode,
    HelloReceived,
    Refused,
    ServerConnection,
    VersionOffer,
    check_scope,
    check_upgrade,
    check_version,
)
from hub.protocol.methods import FRAME_LIMIT, HELLO_LIMIT, METHODS
from hub.protocol.params import SessionRef

ALL = ("read", "prompt", "approve", "operate", "admin")
HELLO = {"protocol": {"min": 1, "max": 1}, "client": {"kind": "cli", "name": "n", "version": "0"}, "token": "t"}


def frame(method: str, params: Any = None, *, id: Any = 1, **more: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}, **more})


def opened(*scopes: Any) -> ServerConnection:
    connection = ServerConnection()
    assert isinstance(connection.receive(frame("hub.hello", HELLO)), HelloReceived)
    connection.accept(scopes or ALL)
    return connection


def refused(decision: Any, code: str, close: CloseCode | None = None) -> Refused:
    assert isinstance(decision, Refused), decision
    assert (decision.error.code, decision.close) == (code, close)
    return decision


def refused_hello(sent: str | bytes, code: str) -> Refused:
    connection = ServerConnection()
    decision = refused(connection.receive(sent), code, CloseCode.HELLO_REFUSED)
    assert connection.state == "closed"
    refused(connection.receive(frame("hub.hello", HELLO)), "connection_closed")
    return decision


# The handshake


def test_hello_then_calls() -> None:
    connection = ServerConnection()
    assert connection.state == "awaiting_hello"
    hello = connection.receive(frame("hub.hello", HELLO, id="h"))
    assert isinstance(hello, HelloReceived)
    assert (hello.id, hello.params.token, hello.protocol, connection.state) == ("h", "t", 1, "checking")
    connection.accept(["read"])
    assert connection.receive(frame("session.get", {"session_id": "s"}, id=2)) == CallReceived(
        2, METHODS["session.get"], SessionRef(session_id="s")
    )
    connection.close()
    connection.close()
    refused(connection.receive(frame("hub.status")), "connection_closed")


def test_the_first_frame_must_be_hello() -> None:
    assert refused_hello(frame("hub.status", id=7), "hello_expected").id == 7


def test_nothing_is_read_before_hello_is_accepted() -> None:
    connection = ServerConnection()
    connection.receive(frame("hub.hello", HELLO))
    refused(connection.receive(frame("hub.status")), "hello_expected", CloseCode.HELLO_REFUSED)
    with pytest.raises(IllegalMove):
        connection.accept(ALL)


def test_a_second_hello_while_the_first_is_checked_is_refused() -> None:
    connection = ServerConnection()
    connection.receive(frame("hub.hello", HELLO))
    refused(connection.receive(frame("hub.hello", HELLO)), "hello_expected", CloseCode.HELLO_REFUSED)


def test_accepting_without_a_hello_changes_nothing() -> None:
    connection = ServerConnection()
    with pytest.raises(IllegalMove):
        connection.accept(ALL)
    assert (connection.state, connection.scopes) == ("awaiting_hello", ())


def test_a_hello_may_fill_its_limit_and_no_more() -> None:
    text = frame("hub.hello", HELLO)
    fits = text + " " * (HELLO_LIMIT - len(text))
    assert isinstance(ServerConnection().receive(fits), HelloReceived)
    refused_hello(fits + " ", "frame_too_large")
    refused_hello(fits.encode() + b" ", "frame_too_large")


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("", "parse_error"),
        ("{", "parse_error"),
        (b"\xff\xfe", "parse_error"),
        ("[]", "invalid_request"),
        ('{"id":1,"method":"hub.hello"}', "invalid_request"),
        ('{"jsonrpc":"1.0","id":1,"method":"hub.hello"}', "invalid_request"),
        (frame("hub.hello", {**HELLO, "token": 7}), "invalid_params"),
        (frame("hub.hello", {**HELLO, "scopes": ["admin"]}), "invalid_params"),
        (frame("hub.hello", {"client": {}, "token": "t"}), "invalid_params"),
        (frame("hub.hello", {**HELLO, "protocol": {"min": 2, "max": 3}}), "protocol_mismatch"),
        (frame("hub.hello", {"protocol": {"min": 9, "max": 9}, "fields": "of the future"}), "protocol_mismatch"),
        ('{"params":' + "[" * 60_000, "parse_error"),
    ],
)
def test_a_first_frame_that_is_no_good_hello_closes(sent: str | bytes, code: str) -> None:
    refused_hello(sent, code)


def test_a_refusal_names_the_call_it_answers_where_it_can() -> None:
    assert refused_hello('{"jsonrpc":"1.0","id":41,"method":"hub.hello"}', "invalid_request").id == 41
    assert refused_hello('{"id":"x"}', "invalid_request").id == "x"
    assert refused_hello('{"id":[1]}', "invalid_request").id is None


# Versions


@pytest.mark.parametrize(("low", "high", "spoken"), [(1, 1, 1), (0, 1, 1), (1, 9, 1), (-5, 1 << 70, 1)])
def test_the_newest_common_version_is_spoken(low: int, high: int, spoken: int) -> None:
    assert check_version(VersionOffer(low, high)) == spoken


def test_a_mismatch_says_both_ranges_and_which_side_to_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PROTOCOL_MIN", 2)
    monkeypatch.setattr(connection, "PROTOCOL_VERSION", 4)
    assert check_version(VersionOffer(1, 3)) == 3
    assert check_version(VersionOffer(4, 9)) == 4
    for offer, told, hint in [
        (VersionOffer(5, 6), "5 to 6", "hubctl restart"),
        (VersionOffer(1, 1), " 1,", "upgrade the client"),
    ]:
        with pytest.raises(UsageError) as caught:
            check_version(offer)
        assert caught.value.code == "protocol_mismatch"
        assert told in caught.value.message
        assert "2 to 4" in caught.value.message
        assert hint in (caught.value.hint or "")


# Calls


def test_an_unknown_method_is_told_its_neighbours() -> None:
    decision = refused(opened().receive(frame("session.lst", id=3)), "unknown_method")
    assert isinstance(decision.error, NotFoundError)
    assert decision.id == 3
    assert "session.list" in (decision.error.hint or "")


def test_a_method_name_of_any_length_is_answered_shortly() -> None:
    decision = refused(opened().receive(frame("session." * 100_000)), "unknown_method")
    assert len(decision.error.message) < 200


@pytest.mark.parametrize(
    ("method", "params", "told"),
    [
        ("session.get", {}, "session_id"),
        ("session.get", {"session_id": 7}, "$.session_id"),
        ("session.get", {"session_id": "s", "actor": "boss"}, "actor"),
        ("prompt.submit", {"text": "x"}, "idempotency_key"),
        (
            "prompt.submit",
            {"text": "x", "idempotency_key": "12345678", "run": {"limits": {"max_turns": 0}}},
            "max_turns",
        ),
        ("approval.answer", {"approval_id": "a", "idempotency_key": "12345678", "decision": "maybe"}, "decision"),
    ],
)
def test_params_that_do_not_fit_are_told_where_and_why(method: str, params: Any, told: str) -> None:
    decision = refused(opened().receive(frame(method, params, id=5)), "invalid_params")
    assert isinstance(decision.error, UsageError)
    assert told in decision.error.message
    assert method in decision.error.message
    assert decision.id == 5


@pytest.mark.parametrize("params", ["null", "[]", "7", '{"session_id":"\\q"}', '{"session_id":"' + "[" * 9 + "}"])
def test_params_that_are_no_object_are_refused(params: str) -> None:
    sent = '{"jsonrpc":"2.0","id":5,"method":"session.get","params":' + params + "}"
    decision = opened().receive(sent)
    assert isinstance(decision, Refused)
    assert decision.error.code in ("invalid_params", "parse_error")


def test_what_a_refusal_quotes_stays_short() -> None:
    long = {"approval_id": "a", "idempotency_key": "12345678", "decision": "x" * 500_000, "y" * 400_000: 1}
    decision = refused(opened().receive(frame("approval.answer", long)), "invalid_params")
    assert len(decision.error.message) < 600


def test_params_may_be_left_out() -> None:
    decision = opened().receive('{"jsonrpc":"2.0","id":1,"method":"hub.status"}')
    assert isinstance(decision, CallReceived)


def test_a_frame_over_the_limit_leaves_the_connection_open() -> None:
    connection = opened()
    assert refused(connection.receive(frame("hub.status", {"x": "y" * FRAME_LIMIT}, id=8)), "frame_too_large").id == 8
    refused(connection.receive(b"x" * (FRAME_LIMIT + 1)), "frame_too_large")
    assert isinstance(connection.receive(frame("hub.status")), CallReceived)


def test_a_limit_counts_bytes_and_not_characters() -> None:
    sent = frame("hub.status") + " " * 10
    snow = "\N{SNOWMAN}" * (FRAME_LIMIT // 3)
    assert isinstance(opened().receive(sent), CallReceived)
    refused(opened().receive(f'{{"jsonrpc":"2.0","id":1,"method":"hub.status","x":"{snow}"}}'), "frame_too_large")


def test_deep_nesting_is_refused_and_the_connection_stays() -> None:
    connection = opened()
    sent = frame("session.get").replace("{}", "[" * 300_000 + "]" * 300_000)
    refused(connection.receive(sent), "parse_error")
    assert isinstance(connection.receive(frame("hub.status")), CallReceived)


def test_a_frame_both_too_large_and_too_deep_is_refused() -> None:
    connection = opened()
    refused(connection.receive(b'{"x":' + b"[" * FRAME_LIMIT), "frame_too_large")
    assert connection.state == "open"


def test_text_that_is_no_unicode_is_refused() -> None:
    refused(opened().receive('{"jsonrpc":"2.0","id":1,"method":"\ud800"}'), "parse_error")


def test_hello_is_not_said_twice() -> None:
    connection = opened()
    refused(connection.receive(frame("hub.hello", HELLO)), "hello_repeated")
    assert connection.state == "open"


def test_each_method_needs_exactly_its_scope() -> None:
    for row in METHODS.values():
        if row.scope is None:
            assert check_scope(row, ()) is None
            continue
        others = [scope for scope in ALL if scope != row.scope]
        assert check_scope(row, (row.scope,)) is None
        error = check_scope(row, others)  # admin among them: no scope implies another
        assert isinstance(error, AuthError)
        assert f"`{row.scope}`" in error.message


def test_a_call_without_its_scope_never_comes_out() -> None:
    connection = opened("read", "prompt")
    answer = {"approval_id": "a", "decision": "allow_once", "idempotency_key": "12345678"}
    decision = refused(connection.receive(frame("approval.answer", answer)), "scope_missing")
    assert isinstance(decision.error, AuthError)
    refused(connection.receive(frame("approval.answer", {"nonsense": 1})), "scope_missing")
    assert isinstance(connection.receive(frame("session.list")), CallReceived)


# Anything at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
likely = st.fixed_dictionaries(
    {},
    optional={
        "jsonrpc": st.just("2.0") | json_values,
        "id": st.integers() | st.text(max_size=5) | json_values,
        "method": st.sampled_from([*METHODS, "hub.helo", ""]) | json_values,
        "params": st.just(HELLO) | json_values,
        "result": json_values,
    },
).map(json.dumps)
any_text = st.text(st.characters(exclude_categories=()), max_size=60)  # lone surrogates included
frames = st.one_of(likely, st.binary(max_size=80), any_text, json_values.map(json.dumps))


@given(st.lists(frames, max_size=5), st.booleans())
def test_no_frame_makes_it_raise(sent: list[str | bytes], accepted: bool) -> None:
    connection = opened("read", "operate") if accepted else ServerConnection()
    for one in sent:
        before = connection.state
        decision = connection.receive(one)
        if isinstance(decision, CallReceived):
            assert before == "open"
            assert decision.method.scope in ("read", "operate")
            assert type(decision.params) is decision.method.params
        assert CONNECTION.may(before, connection.state) or before == connection.state
        assert (connection.state == "closed") >= (isinstance(decision, Refused) and decision.close is not None)


@given(likely)
def test_an_open_connection_stays_open(sent: str) -> None:
    connection = opened()
    decision = connection.receive(sent)
    assert isinstance(decision, CallReceived | Refused)
    assert connection.state == "open"


# The upgrade

PORT = 4711


@pytest.mark.parametrize("host", ["127.0.0.1:4711", "localhost:4711", "LOCALHOST:4711", "[::1]:4711"])
@pytest.mark.parametrize("origin", [None, "http://127.0.0.1:4711", "http://localhost:4711"])
def test_the_hubs_own_addresses_are_admitted(host: str, origin: str | None) -> None:
    assert check_upgrade(host, origin, False, PORT) is None


@pytest.mark.parametrize(
    "host",
    [None, "", "127.0.0.1", "127.0.0.1:80", "evil.example:4711", "127.0.0.1.evil.example:4711", "localhost:4711 "],
)
def test_another_host_is_refused(host: str | None) -> None:
    refusal = check_upgrade(host, None, False, PORT)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (421, "wrong_host")
    assert "http://127.0.0.1:4711" in refusal.text


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "null",
        "https://evil.example",
        "http://127.0.0.1:4712",
        "https://127.0.0.1:4711",
        "http://127.0.0.1:4711/",
        "http://127.0.0.1:4711.evil.example",
        "http://LOCALHOST:4711",
        "file://",
    ],
)
def test_another_origin_is_refused(origin: str) -> None:
    refusal = check_upgrade("127.0.0.1:4711", origin, False, PORT)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (403, "wrong_origin")


def test_a_forwarded_request_is_remote() -> None:
    refusal = check_upgrade("127.0.0.1:4711", None, True, PORT)
    assert refusal is not None
    assert (refusal.status, refusal.code) == (403, "forwarded")


@given(st.none() | st.text(), st.none() | st.text(), st.booleans(), st.integers(1, 65535))
def test_any_headers_give_a_verdict(host: str | None, origin: str | None, forwarded: bool, port: int) -> None:
    refusal = check_upgrade(host, origin, forwarded, port)
    assert refusal is None or refusal.text.endswith("\n")
    if origin is not None and refusal is None:
        assert origin.startswith("http://")


def test_the_table_is_whole() -> None:
    assert CONNECTION.initial in CONNECTION.states
    assert CONNECTION.final == {"closed"}
    assert all(CONNECTION.may(state, "closed") for state in CONNECTION.live)
