"""Decisions about runs: limits, places in a queue, what a restart does."""

from hypothesis import given
from hypothesis import strategies as st

from hub.domain.runs import (
    CRASH_LIMIT,
    Found,
    RunLimits,
    Spent,
    after_restart,
    effective_mode,
    limit_reached,
    plus,
    position_between,
    session_state,
)
from hub.domain.states import RUN

LIMITS = RunLimits(max_turns=3, max_tool_calls=10, max_wall_s=60.0, max_cost=1.0)


def spent(**changes: object) -> Spent:
    facts = {"turns": 0, "tool_calls": 0, "active_s": 0.0, "cost": 0.0, **changes}
    return Spent(**facts)  # type: ignore[arg-type]


def test_each_limit_names_itself() -> None:
    assert limit_reached(LIMITS, spent()) is None
    assert limit_reached(LIMITS, spent(turns=3)) == "limit_turns"
    assert limit_reached(LIMITS, spent(tool_calls=11)) == "limit_tool_calls"
    assert limit_reached(LIMITS, spent(active_s=60.0)) == "limit_time"
    assert limit_reached(LIMITS, spent(cost=1.0)) == "limit_cost"


def test_an_unknown_cost_is_not_counted_as_anything() -> None:
    assert limit_reached(LIMITS, spent(cost=None)) is None


@given(st.lists(st.integers(1, 9), max_size=40))
def test_a_moved_prompt_lands_where_it_was_put(places: list[int]) -> None:
    queue: list[tuple[float, int]] = []
    expected: list[int] = []
    for name, place in enumerate(places):
        position = position_between([key for key, _ in queue], place)
        queue.append((position, name))
        queue.sort()
        expected.insert(min(place - 1, len(expected)), name)
        assert [other for _, other in queue] == expected


def test_unknown_is_not_zero() -> None:
    assert plus(1, 2) == 3
    assert plus(None, 2) is None
    assert plus(1, None) is None


def test_a_steer_with_nothing_to_steer_is_a_follow_up() -> None:
    assert effective_mode("steer", run_active=False) == "follow_up"
    assert effective_mode("interrupt", run_active=False) == "follow_up"
    assert effective_mode("steer", run_active=True) == "steer"


@given(state=st.sampled_from(RUN.states), crashes=st.integers(0, 5), asked=st.booleans())
def test_a_restart_moves_runs_only_along_their_table(state: str, crashes: int, asked: bool) -> None:
    fate = after_restart(Found(state=state, crashes=crashes, cancel_asked=asked))
    if state in RUN.final:
        assert fate == "leave"
    if fate == "cancel":
        assert asked
        assert RUN.may(state, "cancelled")
    if fate == "fail":
        assert state == "running"
        assert crashes + 1 >= CRASH_LIMIT
    if fate == "wait":
        assert state == "waiting"
    if fate == "requeue":
        assert state in ("running", "queued")


def test_a_sessions_state_is_derived() -> None:
    assert session_state(archived=True, run_state="running", pending=3) == "archived"
    assert session_state(archived=False, run_state="waiting", pending=3) == "waiting"
    assert session_state(archived=False, run_state=None, pending=3) == "queued"
    assert session_state(archived=False, run_state=None, pending=0) == "idle"
