"""Random edits against an oracle that knows nothing of git: a plain copy of the state."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.edits import MODES, PARTS, TARGETS, edit
from tests.checkpoint.world import World, differing, restore

NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map(b"/".join)
BYTES = st.binary(max_size=40)
EDIT = st.one_of(
    st.tuples(st.just("write"), NAMES, BYTES, st.sampled_from(MODES)),
    st.tuples(st.just("link"), NAMES, st.sampled_from(TARGETS)),
    st.tuples(st.just("folder"), NAMES, st.sampled_from([0o755, 0o700])),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("chmod"), NAMES, st.sampled_from(MODES)),
    st.tuples(st.just("stage")),
    st.tuples(st.just("stage_one"), NAMES),
    st.tuples(st.just("unstage"), NAMES),
)
EDITS = st.lists(EDIT, max_size=12)


def check(first: list[tuple[object, ...]], committed: bool, second: list[tuple[object, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder_name:
        w = World(Path(folder_name, "w"))
        edit(w, first)
        if committed:
            w.git("commit", "-q", "--allow-empty", "-m", "some")
            edit(w, first[::2])
        engine = w.engine()
        before = w.state()
        taken = engine.capture("ses/1", labels={})
        assert engine.capture("ses/2", labels={}).commit == taken.commit
        edit(w, second)
        after = w.state()
        restore(engine, "ses/1", "ses/1u")
        assert differing(before, w.state()) == {}
        restore(engine, "ses/1u", "ses/2u")
        assert differing(after, w.state()) == {}
        restore(engine, "ses/1", "ses/3u")
        assert differing(before, w.state()) == {}
        assert engine.capture("ses/3", labels={}).tree_digest == taken.tree_digest


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(EDITS, st.booleans(), EDITS)
def test_random_edits(first: list[tuple[object, ...]], committed: bool, second: list[tuple[object, ...]]) -> None:
    check(first, committed, second)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), print_blob=True)
@given(EDITS, st.booleans(), EDITS)
def test_many_random_edits(first: list[tuple[object, ...]], committed: bool, second: list[tuple[object, ...]]) -> None:
    check(first, committed, second)
