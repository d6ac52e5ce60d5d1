"""What is pruned and why, decided without a repository; and that the engine carries it out in a real one."""

import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hub.checkpoint.engine import Engine
from hub.checkpoint.keeping.retention import Doomed, Held, Limits, name_of, prunable
from hub.clock import iso
from hub.errors import NotFoundError, TurnbackError, UsageError
from tests.checkpoint.world import World

NOW = datetime(2026, 6, 1, tzinfo=UTC)
NO_LIMITS = Limits(runs=None, days=None, bytes=None)


def held(ref: str, days_old: float = 0.0, size: int = 1, *, protected: bool = False) -> Held:
    return Held(ref=ref, taken_at=NOW - timedelta(days=days_old), bytes=size, protected=protected)


def pruned(
    rows: Sequence[Held],
    *,
    runs: int | None = None,
    days: float | None = None,
    size: int | None = None,
    live: Sequence[str] = (),
    needed: Sequence[str] = (),
) -> dict[str, str]:
    limits = Limits(runs=runs, days=days, bytes=size)
    return {row.ref: row.why for row in prunable(rows, limits, now=NOW, live=live, needed=needed)}


def test_the_limits_are_those_of_the_design() -> None:
    assert Limits() == Limits(runs=50, days=30.0, bytes=5 << 30)


def test_the_last_runs_and_the_first_stay() -> None:
    rows = [held(f"ses/{number}") for number in range(1, 8)]
    assert pruned(rows, runs=3) == {"ses/2": "runs", "ses/3": "runs", "ses/4": "runs"}
    assert pruned(rows, runs=7) == {}


def test_each_session_counts_its_own_runs() -> None:
    rows = [held(f"{session}/{number}") for session in ("a", "b") for number in range(1, 5)]
    assert pruned(rows, runs=2).keys() == {"a/2", "b/2"}


def test_what_belongs_to_a_run_goes_with_it() -> None:
    rows = [held(f"ses/{number}{letter}") for number in (1, 2, 3) for letter in ("", "a", "s1", "s22", "p")]
    assert pruned(rows, runs=1).keys() == {
        *("ses/1a", "ses/1s1", "ses/1s22"),
        *("ses/2", "ses/2a", "ses/2s1", "ses/2s22", "ses/2p"),
    }


def test_a_run_is_as_old_as_its_last_checkpoint() -> None:
    rows = [held("ses/1", 90), held("ses/2", 40), held("ses/2a", 2), held("ses/3", 40), held("ses/3a", 39)]
    assert pruned(rows, days=30) == {"ses/3": "age", "ses/3a": "age"}


def test_undo_points_of_a_live_session_stay() -> None:
    rows = [held(f"{session}/{name}", 40) for session in ("a", "b") for name in ("1", "1u", "2u", "2o", "3m")]
    assert pruned(rows, days=30, live=["a"]).keys() == {"a/3m", "b/1u", "b/2u", "b/2o", "b/3m"}


def test_the_last_run_of_a_live_session_stays() -> None:
    rows = [held("a/1", 40), held("a/2", 40), held("a/3", 40), held("a/3s1", 40)]
    assert pruned(rows, days=30, size=0, live=["a"]) == {"a/2": "age"}


def test_protected_and_needed_ones_stay_with_their_pre_images() -> None:
    rows = [held(f"ses/{number}{letter}", 40) for number in (1, 2, 3) for letter in ("", "a", "p")]
    rows[3] = held("ses/2", 40, protected=True)
    assert pruned(rows, days=30, needed=["ses/3a"]).keys() == {"ses/1a", "ses/2a", "ses/3", "ses/3p"}


def test_the_oldest_go_until_the_rest_fits() -> None:
    rows = [held("a/1", 9, 10), held("a/2", 7, 10), held("b/1", 8, 10), held("b/2", 6, 10), held("a/3", 5, 10)]
    assert pruned(rows, size=50) == {}
    assert pruned(rows, size=49) == {"a/2": "size"}
    assert pruned(rows, size=35) == {"a/2": "size", "b/2": "size"}
    assert pruned(rows, size=0).keys() == {"a/2", "b/2", "a/3"}


def test_what_goes_by_another_limit_counts_for_the_size() -> None:
    rows = [held("a/1", 90, 10), held("a/2", 80, 10), held("a/3", 1, 10)]
    assert pruned(rows, days=30, size=20) == {"a/2": "age"}


@pytest.mark.parametrize("ref", ["ses", "ses/x", "1", "ses/1z", "ses/1s", "ses/1ua", "/1", "part/01234567/ses/1"])
def test_unknown_names_are_left_alone(ref: str) -> None:
    assert name_of(ref) is None
    assert pruned([held(ref, 900, 10**9)], runs=0, days=0, size=0) == {}


rows_of_some = st.lists(
    st.builds(
        held,
        st.from_regex(r"(a|b)/[1-6](|a|s[12]|p|u|o|m)", fullmatch=True),
        st.floats(0, 60),
        st.integers(0, 9),
        protected=st.booleans(),
    ),
    unique_by=lambda row: row.ref,
)


@settings(max_examples=50)
@given(rows_of_some, st.sets(st.sampled_from("ab")), st.integers(0, 4), st.integers(0, 30), st.integers(0, 40))
def test_whatever_there_is_what_must_stay_stays(
    rows: list[Held], live: set[str], runs: int, days: int, size: int
) -> None:
    limits = Limits(runs=runs, days=days, bytes=size)
    doomed = prunable(rows, limits, now=NOW, live=live, needed={"a/4", "b/2a"})
    gone = {row.ref for row in doomed}
    befores = [sorted(row.ref for row in rows if re.fullmatch(f"{session}/[0-9]", row.ref)) for session in "ab"]
    assert len(gone) == len(doomed)
    assert not gone & {"a/4", "b/2a", *(names[0] for names in befores if names)}
    assert not gone & {row.ref for row in rows if row.protected}
    assert not [ref for ref in gone if ref[0] in live and ref[-1] in "uo"]
    left = [row for row in rows if row.ref not in gone]
    assert prunable(left, limits, now=NOW, live=live, needed={"a/4", "b/2a"}) == []


@settings(max_examples=25)
@given(rows_of_some)
def test_without_limits_everything_stays(rows: list[Held]) -> None:
    assert prunable(rows, NO_LIMITS, now=NOW) == []


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A repository with three checkpoints, made once and copied."""
    world = World(tmp_path_factory.mktemp("once") / "w")
    world.base()
    capture(world, "ses/1", "ses/2", "ses/3")
    return world


@pytest.fixture
def w(once: World, tmp_path: Path) -> World:
    return once.copy(tmp_path / "w")


def capture(w: World, *names: str) -> Engine:
    engine = w.engine()
    for name in names:
        w.put("a.txt", f"at {name}\n")
        engine.capture(name, labels={})
    return engine


def refs(engine: Engine) -> list[str]:
    return [checkpoint.ref for checkpoint in engine.list()]


def code_of(error: pytest.ExceptionInfo[TurnbackError]) -> str:
    return error.value.code


def test_prune_deletes_and_says_so_later(w: World) -> None:
    engine = capture(w, "ses/2a", "ses/3a")
    before = w.state()
    planned = engine.prune(Limits(runs=1), dry_run=True)
    assert refs(engine) == ["ses/1", "ses/2", "ses/2a", "ses/3", "ses/3a"]
    done = engine.prune(Limits(runs=1), now=NOW)
    assert [row.ref for row in done.pruned] == ["ses/2", "ses/2a"]
    assert (planned.pruned, planned.kept, planned.dry_run) == (done.pruned, 3, True)
    assert (refs(engine), done.kept, done.dry_run) == (["ses/1", "ses/3", "ses/3a"], 3, False)
    with pytest.raises(NotFoundError) as gone:
        w.engine().plan("ses/2", undo_ref="ses/1u", labels={})
    assert code_of(gone) == "checkpoint_pruned"
    assert f"pruned at {iso(NOW)}: its session had more than 1 runs" in gone.value.message
    with pytest.raises(NotFoundError) as unknown:
        engine.get("ses/9")
    assert code_of(unknown) == "checkpoint_not_found"
    assert w.state() == before
    assert engine.get("ses/3").ref == "ses/3"


def test_a_name_may_be_taken_again(w: World) -> None:
    engine = w.engine()
    engine.purge("ses/2")
    w.put("a.txt", "anew\n")
    taken = engine.capture("ses/2", labels={})
    assert engine.get("ses/2") == taken
    engine.prune()
    engine.forget(["ses/2"])
    with pytest.raises(NotFoundError) as unknown:
        engine.get("ses/2")
    assert code_of(unknown) == "checkpoint_not_found"


def test_a_state_seen_again_is_as_new_as_that(w: World) -> None:
    """A capture that finds nothing changed refers to an old commit; its age is its own."""
    engine = w.engine()
    engine.purge("ses")
    for name in ("old/1", "old/2", "new/1", "new/2"):
        engine.capture(name, labels={})
    assert len({checkpoint.commit for checkpoint in engine.list()}) == 1
    ten_years_on = NOW + timedelta(days=3650)
    seen = Path(w.root, ".git/turnback/unchanged")
    seen.write_text(seen.read_text() + f'{{"ref":"new/2","at":"{iso(ten_years_on)}"}}\n{{"ref":"old')
    later = ten_years_on + timedelta(days=20)
    assert [row.ref for row in engine.prune(now=later).pruned] == ["old/2"]
    assert refs(engine) == ["new/1", "new/2", "old/1"]
    engine.capture("new/3", labels={})
    assert [row.ref for row in engine.prune(Limits(days=1), now=later, dry_run=True).pruned] == ["new/3", "new/2"]


def test_keep_protects_until_it_is_ended(w: World) -> None:
    engine = capture(w, "ses/4")
    engine.keep("ses/2")
    engine.keep("ses/2")
    assert w.engine().kept() == ["ses/2"]
    assert refs(engine) == ["ses/1", "ses/2", "ses/3", "ses/4"]
    assert [row.ref for row in engine.prune(Limits(runs=1)).pruned] == ["ses/3"]
    engine.keep("ses/2", on=False)
    engine.keep("ses/2", on=False)
    assert engine.kept() == []
    assert [row.ref for row in engine.prune(Limits(runs=1)).pruned] == ["ses/2"]
    for on in (True, False):
        with pytest.raises(NotFoundError) as gone:
            engine.keep("ses/2", on=on)
        assert code_of(gone) == "checkpoint_pruned"


def test_the_name_of_protections_is_reserved(w: World) -> None:
    for name in ("keep", "keep/1"):
        with pytest.raises(UsageError) as refused:
            w.engine().capture(name, labels={})
        assert code_of(refused) == "bad_ref"


def test_purge_takes_all_of_a_session_and_no_other(w: World) -> None:
    engine = capture(w, "ses/1u", "session/1", "other/1")
    engine.keep("ses/2")
    done = engine.purge("ses")
    assert {row.ref for row in done.pruned} == {"ses/1", "ses/1u", "ses/2", "ses/3"}
    assert {row.why for row in done.pruned} == {"purged"}
    assert (refs(engine), engine.kept()) == (["other/1", "session/1"], [])
    assert b"refs/turnback/ses/" not in w.git("for-each-ref")
    assert engine.purge("ses").pruned == ()
    with pytest.raises(UsageError):
        engine.purge("/")
    with pytest.raises(NotFoundError, match="purged on request"):
        engine.get("ses/2")


def test_bytes_are_what_the_checkpoints_alone_keep(w: World) -> None:
    w.put("tracked.bin", os.urandom(50_000))
    w.commit("a large one")
    engine = w.engine()
    engine.purge("ses")
    engine.capture("ses/1", labels={})
    for number in (2, 3):
        w.put("blob.bin", os.urandom(10_000))
        engine.capture(f"ses/{number}", labels={})
    engine.capture("ses/4", labels={})
    planned = engine.prune(Limits(runs=1), dry_run=True)
    sizes = {row.ref: row.bytes for row in planned.pruned}
    assert sizes.keys() == {"ses/2", "ses/3"}
    assert 10_000 < sizes["ses/2"] < 15_000
    assert sizes["ses/3"] == 0  # ses/4 refers to the same commit
    assert 20_000 < planned.bytes_before < 35_000
    assert planned.bytes_pruned == sizes["ses/2"]
    w.git("gc", "-q", "--prune=now")
    assert engine.prune(Limits(bytes=planned.bytes_before // 2)).pruned[0].why == "size"


def test_what_an_unfinished_restore_names_is_spared(w: World) -> None:
    engine = w.engine()
    plan = engine.plan("ses/2", undo_ref="ses/1u", labels={})
    engine.apply(plan)
    later = datetime.now(UTC) + timedelta(days=1)
    meanwhile = w.engine().prune(Limits(runs=0, days=0.5), now=later, dry_run=True)
    assert [row.ref for row in meanwhile.pruned] == ["ses/3"]
    engine.finish(plan.txid)
    afterwards = w.engine().prune(Limits(runs=0, days=0.5), now=later)
    assert {row.ref for row in afterwards.pruned} == {"ses/1u", "ses/2", "ses/3"}


def test_a_journal_that_cannot_be_read_stops_pruning(w: World) -> None:
    engine = w.engine()
    folder = Path(w.root, ".git/turnback/txn/0123456789abcdef")
    folder.mkdir()
    (folder / "plan.json").write_text("{")
    with pytest.raises(TurnbackError) as refused:
        engine.prune(Limits(runs=1))
    assert code_of(refused) == "journal_unreadable"
    assert refs(engine) == ["ses/1", "ses/2", "ses/3"]


def test_linked_worktrees_share_lists_and_limits(w: World, tmp_path: Path) -> None:
    w.git("worktree", "add", "-q", str(tmp_path / "linked"))
    engine = w.engine()
    linked = Engine.open(tmp_path / "linked")
    assert [row.ref for row in linked.prune(Limits(runs=1)).pruned] == ["ses/2"]
    with pytest.raises(NotFoundError) as gone:
        engine.get("ses/2")
    assert code_of(gone) == "checkpoint_pruned"


def test_refs_go_in_one_transaction_or_not_at_all(w: World) -> None:
    engine = capture(w, "ses/4")
    Path(w.root, ".git/refs/turnback/ses/3.lock").touch()
    with pytest.raises(TurnbackError) as refused:
        engine.prune(Limits(runs=1))
    assert code_of(refused) == "git_failed"
    assert refs(engine) == ["ses/1", "ses/2", "ses/3", "ses/4"]
    assert engine.get("ses/2").ref == "ses/2"
    Path(w.root, ".git/refs/turnback/ses/3.lock").unlink()
    assert len(engine.prune(Limits(runs=1)).pruned) == 2


def test_commits_taken_off_a_branch_are_kept_beside_their_undo(w: World) -> None:
    engine = capture(w, "ses/1u")
    engine.forget(["ses/2", "ses/3"])
    w.git("update-ref", "refs/turnback/ses/1o", "HEAD")
    assert refs(engine) == ["ses/1", "ses/1u"]
    assert engine.prune(now=datetime.now(UTC) + timedelta(days=29)).pruned == ()
    done = engine.prune(now=datetime.now(UTC) + timedelta(days=31))
    assert {row.ref for row in done.pruned} == {"ses/1u", "ses/1o"}
    Path(w.root, ".git/refs/turnback/ses/2o").write_text("1" * 40 + "\n")
    assert engine.prune(Limits(days=0.0)).pruned == ()
    assert [(row.kind, row.repaired) for row in engine.verify(repair=True).findings] == [("points_at_nothing", True)]


def test_a_broken_checkpoint_is_listed_and_left(w: World) -> None:
    engine = w.engine()
    oid = w.git("rev-parse", "refs/turnback/ses/2:meta.json").decode().strip()
    Path(w.root, ".git/objects", oid[:2], oid[2:]).unlink()
    broken = {checkpoint.ref: checkpoint.broken for checkpoint in engine.list()}
    assert (broken["ses/1"], broken["ses/3"]) == (None, None)
    assert "incomplete" in (broken["ses/2"] or "")
    assert engine.prune(Limits(runs=1)).pruned == ()
    assert [row.ref for row in engine.purge("ses/2").pruned] == ["ses/2"]
    assert engine.prune(Limits(runs=1)).pruned == ()


def test_no_limits_no_refs(tmp_path: Path) -> None:
    empty = World(tmp_path / "w")
    done = empty.engine().prune(NO_LIMITS)
    assert (done.pruned, done.kept, done.bytes_before) == ((), 0, 0)


def test_prune_tells_its_steps(w: World) -> None:
    engine = w.engine()
    steps: list[str] = []
    engine.hook = steps.append
    engine.prune(Limits(runs=1))
    assert steps == ["prune:noting", "prune:deleting", "prune:tidying"]


def test_a_ref_moved_meanwhile_is_a_conflict_of_git(w: World) -> None:
    engine = w.engine()

    def move(step: str) -> None:
        if step == "prune:deleting":
            w.git("update-ref", "-d", "refs/turnback/ses/2")

    engine.hook = move
    assert [row.ref for row in engine.prune(Limits(runs=1)).pruned] == ["ses/2"]
    assert refs(engine) == ["ses/1", "ses/3"]


def test_doomed_is_a_value() -> None:
    assert prunable([held("a/1"), held("a/2", 40, 7)], Limits(days=30), now=NOW) == [
        Doomed(ref="a/2", why="age", bytes=7)
    ]


def test_in_a_shadow_store_objects_are_freed(tmp_path: Path) -> None:
    """Nobody else's objects are there; what is younger than two hours stays for the next time."""
    folder, stores = tmp_path / "folder", tmp_path / "stores"
    folder.mkdir()
    engine = Engine.open(folder, shadow=stores)
    for number in (1, 2, 3):
        (folder / "blob.bin").write_bytes(os.urandom(50_000))
        engine.capture(f"ses/{number}", labels={})
    assert 150_000 < size_of(stores) < 300_000
    engine.prune(Limits(runs=1))
    assert size_of(stores) > 150_000
    long_ago = (datetime.now(UTC) - timedelta(hours=3)).timestamp()
    for path in stores.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    done = engine.prune(Limits(runs=1))
    assert (done.pruned, done.kept) == ((), 2)
    assert 100_000 < size_of(stores) < 140_000
    restored(engine, folder)
    engine.purge("ses")
    for path in stores.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    engine.purge("ses")
    assert size_of(stores) < 50_000
    with pytest.raises(NotFoundError, match="purged on request"):
        engine.get("ses/1")
    engine.capture("anew/1", labels={})
    assert engine.verify(deep=True).is_sound
    assert engine.remotes_that_mirror().remotes == ()
    assert engine.export(["anew/1"], tmp_path / "out.bundle").bytes > 50_000
    (folder / "blob.bin").unlink()
    plan = engine.plan("anew/1", undo_ref="anew/1u", labels={})
    engine.apply(plan)
    engine.finish(plan.txid)
    assert (folder / "blob.bin").stat().st_size == 50_000


def restored(engine: Engine, folder: Path) -> None:
    content = (folder / "blob.bin").read_bytes()
    for ref, undo in (("ses/1", "ses/1u"), ("ses/1u", "ses/2u")):
        plan = engine.plan(ref, undo_ref=undo, labels={})
        engine.apply(plan)
        engine.finish(plan.txid)
    assert (folder / "blob.bin").read_bytes() == content


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("prune:noting", marks=pytest.mark.slow),
        "prune:deleting",
        pytest.param("prune:tidying", marks=pytest.mark.slow),
    ],
)
def test_a_prune_that_is_cut_short_leaves_all_or_none(w: World, step: str) -> None:
    """Nothing is said to be pruned that is still there, and the next one ends what was begun."""
    engine = capture(w, "ses/4")

    def stop(reached: str) -> None:
        if reached == step:
            raise KeyboardInterrupt

    engine.hook = stop
    with pytest.raises(KeyboardInterrupt):
        engine.prune(Limits(runs=1))
    done = step == "prune:tidying"
    assert refs(w.engine()) == (["ses/1", "ses/4"] if done else ["ses/1", "ses/2", "ses/3", "ses/4"])
    assert w.engine().get("ses/1").ref == "ses/1"
    assert len(w.engine().prune(Limits(runs=1)).pruned) == (0 if done else 2)
    with pytest.raises(NotFoundError) as gone:
        w.engine().get("ses/2")
    assert code_of(gone) == "checkpoint_pruned"
