"""Random edits against an oracle that knows nothing of git: a plain copy of the state."""

import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.checkpoint.world import World, differing, restore

PARTS = [b"a", b"b", b"dir", b"\xe9", b"x y", b".dot", b"-n"]
NAMES = st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map(b"/".join)
BYTES = st.binary(max_size=40)
MODES = st.sampled_from([0o644, 0o600, 0o755, 0o750])
EDIT = st.one_of(
    st.tuples(st.just("write"), NAMES, BYTES, MODES),
    st.tuples(st.just("link"), NAMES, st.sampled_from([b"a", b"dir", b"/etc", b"nowhere"])),
    st.tuples(st.just("folder"), NAMES, st.sampled_from([0o755, 0o700])),
    st.tuples(st.just("remove"), NAMES),
    st.tuples(st.just("rename"), NAMES, NAMES),
    st.tuples(st.just("chmod"), NAMES, MODES),
    st.tuples(st.just("stage")),
    st.tuples(st.just("stage_one"), NAMES),
    st.tuples(st.just("unstage"), NAMES),
)
EDITS = st.lists(EDIT, max_size=12)


def clear(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def make_way(w: World, name: bytes) -> bytes:
    """Remove what stands at a name or where its directories must be; make the directories."""
    parts = name.split(b"/")
    for depth in range(1, len(parts)):
        folder = w.path(b"/".join(parts[:depth]))
        if os.path.islink(folder) or not os.path.isdir(folder):
            clear(folder)
            os.mkdir(folder)
    clear(w.path(name))
    return w.path(name)


def _real(w: World, name: bytes) -> bool:
    """Return whether a name exists without a link on its way."""
    parts = name.split(b"/")
    folders = [w.path(b"/".join(parts[:depth])) for depth in range(1, len(parts))]
    return w.exists(name) and not any(os.path.islink(folder) for folder in folders)


def write(w: World, name: bytes, content: bytes, mode: int) -> None:
    make_way(w, name)
    w.put(name, content, mode)


def link(w: World, name: bytes, target: bytes) -> None:
    os.symlink(target, make_way(w, name))


def folder(w: World, name: bytes, mode: int) -> None:
    path = make_way(w, name)
    os.mkdir(path)
    os.chmod(path, mode)


def remove(w: World, name: bytes) -> None:
    if _real(w, name):
        clear(w.path(name))


def rename(w: World, old: bytes, new: bytes) -> None:
    if _real(w, old) and not (new + b"/").startswith(old + b"/") and not old.startswith(new + b"/"):
        os.rename(w.path(old), make_way(w, new))


def chmod(w: World, name: bytes, mode: int) -> None:
    if _real(w, name) and not os.path.islink(w.path(name)):
        os.chmod(w.path(name), mode | stat.S_IXUSR if os.path.isdir(w.path(name)) else mode)


def stage(w: World) -> None:
    w.git("add", "-A")


def stage_one(w: World, name: bytes) -> None:
    w.git("--literal-pathspecs", "add", "-A", "--", name, check=False)


def unstage(w: World, name: bytes) -> None:
    w.git("--literal-pathspecs", "rm", "-rq", "--cached", "--", name, check=False)


ACTS: dict[str, Callable[..., None]] = {
    act.__name__: act for act in (write, link, folder, remove, rename, chmod, stage, stage_one, unstage)
}


def edit(w: World, edits: list[tuple[object, ...]]) -> None:
    for act, *words in edits:
        ACTS[str(act)](w, *words)


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
