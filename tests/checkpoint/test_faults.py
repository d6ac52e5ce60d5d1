"""What becomes of a restore that a process left unfinished; and the way that is taken where the kernel has no swap."""

from pathlib import Path

import pytest

from hub.checkpoint.engine import Engine
from hub.checkpoint.restoring import renames
from hub.errors import RefusedError
from tests.checkpoint.world import World, differing, restore
from tests.faults.killing import killed
from tests.faults.states import change, make


@pytest.fixture
def world(tmp_path: Path) -> World:
    w = World(tmp_path / "w")
    make(w)
    w.engine().capture("ses/1", labels={})
    change(w)
    return w


def states(w: World, tmp_path: Path) -> tuple[dict[str, object], dict[str, object]]:
    """Return the state before a restore and the state after it, the latter by a restore in a copy."""
    copy = w.copy(tmp_path / "copy")
    restore(copy.engine(), "ses/1", "ses/1u")
    return w.state(), copy.state()


def _restore(engine: Engine) -> None:
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    engine.finish(plan.txid)


def side_of(w: World, before: dict[str, object], after: dict[str, object]) -> str:
    now = w.state()
    if not differing(before, now):
        return "before"
    assert differing(after, now) == {}, f"mixed: not before by {differing(before, now).keys()}"
    return "after"


def clean(w: World) -> bool:
    room = Path(w.root, ".git/turnback")
    return not list((room / "txn").iterdir()) and not list(Path(w.root, ".git").glob("*.lock"))


@pytest.mark.parametrize(("committed", "side"), [(True, "after"), (False, "before")])
def test_killed_between_apply_and_finish(world: World, tmp_path: Path, committed: bool, side: str) -> None:
    """C67: whether an applied restore counts is for the caller to say; until then nobody else may work here."""
    before, after = states(world, tmp_path)
    assert killed(world.root, _restore, "finishing")
    engine = world.engine()
    with pytest.raises(RefusedError) as refused:
        engine.capture("ses/2", labels={})
    assert refused.value.code == "restore_unfinished"
    (settled,) = engine.recover(lambda _: committed)
    assert (settled.direction, settled.target_ref, settled.undo_ref) == (
        "forward" if committed else "back",
        "ses/1",
        "ses/1u",
    )
    assert side_of(world, before, after) == side
    assert clean(world)
    assert engine.recover(lambda _: True) == []


def test_the_next_call_rolls_back_what_never_was_applied(world: World, tmp_path: Path) -> None:
    before, after = states(world, tmp_path)
    assert killed(world.root, _restore, "index")
    undo = world.engine().get("ses/1u")
    assert world.engine().capture("ses/2", labels={}).tree_digest == undo.tree_digest
    assert side_of(world, before, after) == "before"


def test_the_portable_way_without_the_kernels_swap(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, after = states(world, tmp_path)
    monkeypatch.setattr(renames, "NATIVE", None)
    engine = world.engine()
    plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    assert side_of(world, before, after) == "after"
    engine.abort(plan.txid)
    assert side_of(world, before, after) == "before"
    restore(engine, "ses/1", "ses/2u")
    assert side_of(world, before, after) == "after"


def test_the_portable_swap_cut_off_in_the_middle(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of its single steps is the last one, recovery brings back the state before."""
    before, after = states(world, tmp_path)
    for cut in range(1, 5):
        w = world.copy(tmp_path / f"cut{cut}")
        with monkeypatch.context() as patched:
            patched.setattr(renames, "NATIVE", None)
            _cut_off(patched, cut)
            engine = Engine.open(w.root)
            plan = engine.plan("ses/1", undo_ref="ses/1u", labels={})
            with pytest.raises(KeyboardInterrupt):
                engine.apply(plan)
        (settled,) = w.engine().recover(lambda _: False)
        assert settled.direction == "back"
        assert side_of(w, before, after) == "before"
        assert clean(w)


def _cut_off(patched: pytest.MonkeyPatch, after: int) -> None:
    """Let the portable swap be interrupted after some of its calls."""
    counted = 0

    def counting(name: str) -> None:
        real = getattr(renames.os, name)

        def call(*words: object, **options: object) -> object:
            nonlocal counted
            counted += 1
            if counted == after:
                raise KeyboardInterrupt
            return real(*words, **options)

        patched.setattr(renames.os, name, call)

    real_swap = renames._portable_swap

    def swap(slot: renames.Place, path: renames.Place) -> None:
        for name in ("rename", "link", "unlink"):
            counting(name)
        real_swap(slot, path)

    patched.setattr(renames, "_portable_swap", swap)
