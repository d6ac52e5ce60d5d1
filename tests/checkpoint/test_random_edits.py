"""Random edits against an oracle that knows nothing of git: a plain copy of the state."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.edits import FILE_ACT, Act, act
from tests.checkpoint.world import World, differing, restore

EDITS = st.lists(FILE_ACT, max_size=12)


def check(first: list[Act], committed: bool, second: list[Act]) -> None:
    with tempfile.TemporaryDirectory() as folder_name:
        w = World(Path(folder_name, "w"))
        act(w, first)
        if committed:
            w.git("commit", "-q", "--allow-empty", "-m", "some")
            act(w, first[::2])
        engine = w.engine()
        before = w.state()
        taken = engine.capture("ses/1", labels={})
        assert engine.capture("ses/2", labels={}).commit == taken.commit
        act(w, second)
        after = w.state()
        restore(engine, "ses/1", "ses/1u")
        assert differing(before, w.state()) == {}
        restore(engine, "ses/1u", "ses/2u")
        assert differing(after, w.state()) == {}
        restore(engine, "ses/1", "ses/3u")
        assert differing(before, w.state()) == {}
        assert engine.capture("ses/3", labels={}).tree_digest == taken.tree_digest


@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(EDITS, st.booleans(), EDITS)
def test_random_edits(first: list[Act], committed: bool, second: list[Act]) -> None:
    check(first, committed, second)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(EDITS, st.booleans(), EDITS)
def test_many_random_edits(first: list[Act], committed: bool, second: list[Act]) -> None:
    check(first, committed, second)
