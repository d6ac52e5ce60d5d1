"""Ids sort by creation and name their kind; time is a value."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.clock import Clock, ManualClock, SystemClock, iso, parse_iso
from hub.ids import PREFIXES, new_id

SHAPE = re.compile(r"([a-z]+)_([0-9A-HJKMNP-TV-Z]{26})")


@pytest.mark.parametrize("kind", PREFIXES)
def test_an_id_names_its_kind(kind: str) -> None:
    found = SHAPE.fullmatch(new_id(kind))
    assert found is not None
    assert found.group(1) == PREFIXES[kind]


def test_prefixes_are_distinct() -> None:
    assert len(set(PREFIXES.values())) == len(PREFIXES)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(KeyError):
        new_id("lamp")


def test_ids_sort_in_the_order_in_which_they_were_made() -> None:
    made = [new_id("run") for _ in range(5_000)]
    assert made == sorted(set(made))


def test_ids_of_many_threads_are_unique_and_sorted_within_each() -> None:
    start = threading.Barrier(4)

    def make(_: int) -> list[str]:
        start.wait()
        return [new_id("message") for _ in range(1_000)]

    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(make, range(4)))
    assert all(one == sorted(one) for one in made)
    assert len({id for one in made for id in one}) == 4_000


def test_an_id_begins_with_the_time_it_was_made() -> None:
    alphabet = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
    before = datetime.now(UTC)
    value = 0
    for character in new_id("run").removeprefix("run_"):
        value = value * 32 + alphabet.index(character)
    made = datetime.fromtimestamp((value >> 80) / 1000, UTC)
    assert abs(made - before) < timedelta(minutes=1)


def test_a_manual_clock_moves_only_when_told() -> None:
    clock: Clock = (manual := ManualClock())
    before = (clock.now(), clock.monotonic())
    assert (clock.now(), clock.monotonic()) == before
    manual.advance(1.5)
    assert clock.now() - before[0] == timedelta(seconds=1.5)
    assert clock.monotonic() - before[1] == 1.5


def test_the_system_clock_tells_utc_and_never_goes_back() -> None:
    clock: Clock = SystemClock()
    assert clock.now().utcoffset() == timedelta(0)
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


@given(st.datetimes(datetime(1970, 1, 1), datetime(2999, 12, 31)), st.integers(-14 * 60, 14 * 60))
def test_instants_survive_text_to_the_millisecond(naive: datetime, offset_min: int) -> None:
    instant = naive.replace(tzinfo=timezone(timedelta(minutes=offset_min)))
    text = iso(instant)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", text)
    assert parse_iso(text) == instant.replace(microsecond=instant.microsecond // 1000 * 1000)
    assert iso(parse_iso(text)) == text


@given(st.lists(st.datetimes(datetime(1970, 1, 1), datetime(2999, 12, 31), timezones=st.just(UTC)), max_size=6))
def test_texts_sort_like_their_instants(instants: list[datetime]) -> None:
    assert [iso(one) for one in sorted(instants)] == sorted(iso(one) for one in instants)


@pytest.mark.parametrize("text", ["", "now", "2026-13-01T00:00:00.000Z", "2026-01-01T25:00:00.000Z"])
def test_what_is_no_instant_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_iso(text)
