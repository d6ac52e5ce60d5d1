"""Every state machine, read from its table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.domain import states
from hub.domain.states import APPROVAL, DELIVERY, MACHINES, PROMPT, QUESTION, RUN, TOOL_CALL, IllegalMove, Machine
from hub.errors import ConflictError

machines = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


@machines
def test_each_move_of_the_table_is_allowed_and_no_other(machine: Machine) -> None:
    for old in (*machine.states, "nowhere"):
        for new in (*machine.states, "nowhere"):
            if new in machine.moves.get(old, ()):
                assert machine.check(old, new) == new
                assert machine.may(old, new)
                assert old in machine.before(new)
            else:
                assert not machine.may(old, new)
                assert old not in machine.before(new)
                with pytest.raises(IllegalMove) as caught:
                    machine.check(old, new)
                assert old in caught.value.message
                assert new in caught.value.message


@machines
def test_every_state_can_be_reached_and_can_end(machine: Machine) -> None:
    assert reached_from(machine, machine.initial) == set(machine.states)
    assert machine.final
    for state in machine.states:
        assert reached_from(machine, state) & machine.final


def reached_from(machine: Machine, start: str) -> set[str]:
    seen, left = set(), [start]
    while left:
        state = left.pop()
        if state not in seen:
            seen.add(state)
            left.extend(machine.moves[state])
    return seen


@machines
def test_live_and_final_states_are_all_states(machine: Machine) -> None:
    assert set(machine.live) | machine.final == set(machine.states)
    assert not set(machine.live) & machine.final
    assert [state for state in machine.states if state in machine.live] == list(machine.live)


@given(st.data())
def test_a_walk_stops_at_its_first_illegal_move(data: st.DataObject) -> None:
    machine = data.draw(st.sampled_from(MACHINES))
    state = machine.initial
    for wanted in data.draw(st.lists(st.sampled_from(machine.states), max_size=12)):
        before = state
        try:
            state = machine.check(state, wanted)
        except IllegalMove:
            assert state == before
            assert wanted not in machine.moves[state]
        assert state in machine.states
        assert before not in machine.final or state == before


def test_an_illegal_move_is_a_conflict_with_a_code() -> None:
    with pytest.raises(ConflictError) as caught:
        RUN.check("completed", "running")
    assert caught.value.code == "illegal_state"


def test_a_table_that_leads_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="lost"):
        states._machine("lamp", {"on": "off lost", "off": "on"})


def test_names_are_unique() -> None:
    assert len({machine.name for machine in MACHINES}) == len(MACHINES)


# What the laws and the decisions ask of the tables


def test_an_interrupted_run_leaves_only_by_resume_or_cancel() -> None:
    assert RUN.moves["interrupted"] == {"queued", "cancelled"}


def test_a_finished_run_stays_finished() -> None:
    assert RUN.final == {"completed", "failed", "cancelled"}


def test_a_run_that_waits_does_not_end_as_completed_without_going_on() -> None:
    assert not RUN.may("waiting", "completed")
    assert not RUN.may("queued", "completed")


def test_a_call_of_unknown_outcome_is_never_executed_again() -> None:
    assert TOOL_CALL.moves["unknown"] == frozenset()
    assert TOOL_CALL.before("executing") == ("proposed", "waiting")
    assert "proposed" not in TOOL_CALL.moves["executing"]


@pytest.mark.parametrize("machine", [APPROVAL, QUESTION])
def test_a_question_is_answered_once(machine: Machine) -> None:
    assert machine.live == ("open", "suspended")
    assert machine.before("open") == ("suspended",), "only what was put aside opens again"
    assert not set(machine.moves["suspended"]) & {"allowed", "rejected", "answered"}


def test_a_removed_prompt_never_runs_and_a_sent_delivery_is_not_sent_again() -> None:
    assert "removed" in PROMPT.final
    assert "sent" in DELIVERY.final
    assert "sending" not in DELIVERY.moves["unknown"]
