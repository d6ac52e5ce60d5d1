"""Admission: never two writers in a worktree, never more than the slots, nobody waits for ever."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from hub.daemon.admission import Admission


@settings(max_examples=60, deadline=None)
@given(
    slots=st.integers(1, 3),
    visits=st.lists(st.tuples(st.sampled_from("xyz"), st.integers(0, 3), st.booleans()), max_size=20),
)
async def test_everybody_gets_in_and_never_beside_another(slots: int, visits: list[tuple[str, int, bool]]) -> None:
    admission = Admission(slots)
    inside: dict[str, str] = {}
    finished: list[str] = []

    async def visit(name: str, worktree: str, stay: int, polite: bool) -> None:
        if polite:
            await admission.enter(worktree, name)
        else:
            while not admission.try_enter(worktree, name):
                await asyncio.sleep(0)
        assert worktree not in inside
        inside[worktree] = name
        assert len(inside) <= slots
        for _ in range(stay):
            await asyncio.sleep(0)
        del inside[worktree]
        admission.leave(name)
        finished.append(name)

    await asyncio.gather(*(visit(f"v{n}", *facts) for n, facts in enumerate(visits)))
    assert len(finished) == len(visits)


async def test_a_cancelled_wait_takes_nothing() -> None:
    admission = Admission(1)
    assert admission.try_enter("x", "first")
    waiting = asyncio.create_task(admission.enter("x", "second"))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    admission.leave("first")
    assert admission.try_enter("x", "third")


async def test_a_cancel_that_meets_the_turn_gives_it_back() -> None:
    admission = Admission(1)
    assert admission.try_enter("x", "first")
    waiting = asyncio.create_task(admission.enter("x", "second"))
    await asyncio.sleep(0)
    admission.leave("first")
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert admission.try_enter("x", "third")
