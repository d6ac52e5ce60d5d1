"""The reader's place against a hub that repeats, leaves out and breaks off at random."""

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.errors import AuthError, ConflictError, UnavailableError
from hub.protocol.cursor import BACKOFF_S, Cursor, MissingEvents, Retry
from hub.protocol.events import Event, Live
from hub.protocol.subscribing import CaughtUp, Gap, Subscribed

NOTHING = msgspec.Raw(b"{}")


def event(seq: int, prev: int, session: str = "a") -> Event:
    return Event(seq, prev, session, None, "run.waiting", "", NOTHING)


def ack(last_seq: int, log_id: str = "log") -> Subscribed:
    return Subscribed(subscription=1, log_id=log_id, first_seq=1, last_seq=last_seq)


def log_of(sessions: str) -> list[Event]:
    last: dict[str, int] = {}
    made = []
    for seq, session in enumerate(sessions, 1):
        made.append(event(seq, last.get(session, 0), session))
        last[session] = seq
    return made


class Unreliable:
    """Serves one session's events; leaves each out at most once, repeats some, and breaks off."""

    def __init__(self, log: list[Event], data: Any) -> None:
        self.log = log
        self.data = data
        self.left_out: set[int] = set()

    def serve(self, after: int) -> list[Event | CaughtUp]:
        sent: list[Event | CaughtUp] = []
        for one in self.log:
            if one.session_id == "a" and one.seq > after:
                sent.extend([one] * self._copies(one))
        if self.data.draw(st.booleans(), "broken off"):
            return sent[: self.data.draw(st.integers(0, len(sent)))]
        return [*sent, CaughtUp(subscription=1, seq=self.log[-1].seq)]

    def _copies(self, one: Event) -> int:
        copies = self.data.draw(st.sampled_from([1, 1, 1, 0, 2]), "copies")
        if copies == 0 and (one.seq in self.left_out or one is self.log[-1]):
            return 1
        if copies == 0:
            self.left_out.add(one.seq)
        return int(copies)


@given(st.text("ab", max_size=30), st.integers(0, 10), st.data())
def test_none_twice_and_none_left_out(sessions: str, after: int, data: Any) -> None:
    log = log_of(sessions + "a")
    after = min(after, len(log) - 1)
    hub, cursor = Unreliable(log, data), Cursor(after, "a")
    wanted = [one for one in log if one.session_id == "a" and one.seq > after]
    got: list[Event] = []
    for _ in itertools.count():
        cursor.subscribed(ack(len(log)))
        try:
            for item in hub.serve(cursor.params(live=False).get("after_seq", 0)):
                got.extend(one for one in cursor.take(item) if isinstance(one, Event))
        except MissingEvents:
            continue
        if got == wanted:
            break
        assert got == wanted[: len(got)]


def test_a_caught_up_that_skips_an_event_is_not_believed_for_ever() -> None:
    cursor = Cursor(0, "a")
    cursor.subscribed(ack(9))
    cursor.take(CaughtUp(subscription=1, seq=9))
    assert cursor.params(live=False)["after_seq"] == 9
    with pytest.raises(MissingEvents):
        cursor.take(event(10, 7))
    assert cursor.params(live=False)["after_seq"] == 0
    assert cursor.take(event(7, 0)) == (event(7, 0),)
    assert cursor.take(event(10, 7)) == (event(10, 7),)


def test_a_hole_found_twice_is_told_before_the_event() -> None:
    cursor = Cursor(3, "a")
    cursor.subscribed(ack(9))
    with pytest.raises(MissingEvents) as caught:
        cursor.take(event(9, 5))
    assert caught.value.retryable
    gap, after = cursor.take(event(9, 5))
    assert isinstance(gap, Gap)
    assert (gap.seq, gap.log_id, after) == (5, "log", event(9, 5))


def test_after_a_gap_the_other_log_counts() -> None:
    cursor = Cursor(50, "a")
    cursor.subscribed(ack(60))
    cursor.subscribed(ack(4, "other"))
    assert cursor.params(live=True) == {"session_id": "a", "live": True, "after_seq": 50, "log_id": "log"}
    cursor.take(Gap(subscription=1, log_id="other", reason="", seq=4))
    assert cursor.take(event(5, 4)) == (event(5, 4),)
    assert cursor.params(live=True) == {"session_id": "a", "live": True, "after_seq": 5, "log_id": "other"}


def test_a_hole_in_another_log_is_asked_for_anew() -> None:
    cursor = Cursor(5, "a")
    cursor.subscribed(ack(9))
    with pytest.raises(MissingEvents):
        cursor.take(event(9, 7))
    cursor.take(Gap(subscription=1, log_id="other", reason="", seq=5))
    with pytest.raises(MissingEvents):
        cursor.take(event(9, 7))


def test_without_a_cursor_it_begins_where_the_hub_stands() -> None:
    cursor = Cursor(None)
    assert cursor.params(live=False) == {"live": False}
    cursor.subscribed(ack(12))
    assert cursor.params(live=False) == {"live": False, "after_seq": 12, "log_id": "log"}
    assert cursor.take(event(12, 0)) == ()
    assert cursor.take(event(13, 12)) == (event(13, 12),)


def test_live_notices_pass_and_move_nothing() -> None:
    cursor, notice = Cursor(3), Live("model.notice", None, None, NOTHING)
    assert cursor.take(notice) == (notice,)
    assert cursor.params(live=True)["after_seq"] == 3


# Coming back

GONE = UnavailableError("gone", code="no_hub")


def test_pauses_grow_within_their_bounds() -> None:
    retry = Retry(1e9)
    pauses = [retry.pause_after(GONE, 0.0, 1.0) for _ in range(40)]
    assert pauses[:3] == [0.1, 0.2, 0.4]
    assert pauses[-1] == BACKOFF_S[1]
    retry.reset()
    assert retry.pause_after(GONE, 0.0, 0.0) == BACKOFF_S[0] / 2


def test_patience_is_counted_from_the_first_failure_and_renewed_by_success() -> None:
    retry = Retry(60.0)
    assert retry.pause_after(GONE, 100.0, 1.0) is not None
    assert retry.pause_after(GONE, 159.9, 1.0) == pytest.approx(0.1)
    assert retry.pause_after(GONE, 160.0, 1.0) is None
    retry.reset()
    assert retry.pause_after(GONE, 161.0, 1.0) is not None


def test_the_hubs_own_wish_is_honoured() -> None:
    busy = ConflictError("busy", retryable=True, retry_after_s=7.0)
    assert Retry(60.0).pause_after(busy, 0.0, 1.0) == 7.0


@pytest.mark.parametrize("error", [AuthError("no"), ConflictError("taken")])
def test_what_cannot_get_better_is_not_tried_again(error: AuthError | ConflictError) -> None:
    assert Retry(60.0).pause_after(error, 0.0, 1.0) is None


@given(st.floats(0, 100), st.lists(st.tuples(st.floats(0, 10), st.floats(0, 1)), max_size=60))
def test_it_never_sleeps_past_its_patience(patience_s: float, steps: list[tuple[float, float]]) -> None:
    retry, now, began = Retry(patience_s), 5.0, 5.0
    for work_s, luck in steps:
        pause_s = retry.pause_after(GONE, now, luck)
        if pause_s is None:
            assert now >= began + patience_s
            return
        assert 0 <= pause_s <= BACKOFF_S[1]
        assert now + pause_s <= began + patience_s + 1e-9
        now += pause_s + work_s
