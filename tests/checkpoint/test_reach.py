"""Whose changes a restore takes back: the whole tree's, or only what one session wrote and nobody else changed."""

import itertools
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hub.checkpoint.engine import Engine
from hub.checkpoint.restoring.authors import Interval, authors_of, choose_reach, is_only, owner_between, since, why_kept
from hub.checkpoint.stores.trees import differences_of
from hub.checkpoint.values import Mark, Plan
from hub.errors import UsageError
from tests.checkpoint.world import World, differing


class Story:
    """A worktree in which sessions run and people work, with the history that a hub would keep of it."""

    def __init__(self, root: Path) -> None:
        self.world = World(root)
        self.history: list[Mark] = []
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        if self._engine is None:
            self._engine = self.world.engine()
        return self._engine

    def capture(self, owner: str, kind: str) -> str:
        ref = f"{owner}/{len(self.history)}{'a' if kind == 'after' else ''}"
        self.engine.capture(ref, labels={})
        self.history.append(Mark(ref=ref, kind=kind, owner=owner))  # type: ignore[arg-type]
        return ref

    def run(self, owner: str, **files: str | None) -> str:
        """Let a session run and leave these files; return the ref of the checkpoint before it."""
        before = self.capture(owner, "before")
        self.write(**files)
        self.capture(owner, "after")
        return before

    def write(self, **files: str | None) -> None:
        for name, content in files.items():
            if content is None:
                self.world.remove(name)
            else:
                self.world.put(name, content)

    def plan(self, target: str, owner: str, **options: object) -> Plan:
        return self.engine.preview(target, owner=owner, history=self.history, **options)  # type: ignore[arg-type]

    def restore(self, target: str, owner: str, undo: str, **options: object) -> Plan:
        plan = self.engine.plan(
            target,
            undo_ref=undo,
            labels={},
            owner=owner,
            history=self.history,
            **options,  # type: ignore[arg-type]
        )
        self.engine.apply(plan)
        self.engine.finish(plan.txid)
        return plan


@pytest.fixture
def story(tmp_path: Path) -> Story:
    found = Story(tmp_path / "w")
    for name in ("a", "b", "c"):
        found.world.put(name, f"{name} at base\n")
    found.world.commit()
    return found


def steps(plan: Plan) -> dict[str, str | None]:
    return {step.path: step.author for step in (*plan.writes, *plan.creations, *plan.deletions)}


def kept(plan: Plan) -> dict[str, str | None]:
    return {row.path: row.author for row in plan.kept}


def test_only_what_the_session_wrote_goes_back_when_others_worked_too(story: Story) -> None:
    """C60, C66: another session and the user changed other files meanwhile; theirs stay, and are named with them."""
    target = story.run("one", a="a by one\n", new="new\n")
    story.run("two", b="b by two\n")
    story.write(c="c by the user\n")
    before = story.world.state()
    plan = story.restore(target, "one", "one/u")
    assert plan.reach == "session"
    assert steps(plan) == {"a": "one", "new": "one"}
    assert kept(plan) == {"b": "two", "c": None}
    assert {row.path: row.reason for row in plan.kept} == {
        "b": "changed by two",
        "c": "changed by the user or another program",
    }
    assert (story.world.get("a"), story.world.exists("new")) == (b"a at base\n", False)
    assert (story.world.get("b"), story.world.get("c")) == (b"b by two\n", b"c by the user\n")
    story.restore("one/u", "one", "one/u2", reach="tree")
    assert differing(before, story.world.state()) == {}


def test_the_whole_tree_goes_back_when_nobody_else_worked(story: Story) -> None:
    target = story.run("one", a="a by one\n", new="new\n")
    story.run("one", b="b by one\n")
    plan = story.plan(target, "one")
    assert (plan.reach, steps(plan), plan.kept) == ("tree", {"a": "one", "new": "one", "b": "one"}, ())


def test_the_whole_tree_goes_back_when_asked_for(story: Story) -> None:
    target = story.run("one", a="a by one\n")
    story.write(c="c by the user\n", mine="new\n")
    plan = story.plan(target, "one", reach="tree")
    assert (plan.reach, steps(plan), plan.kept) == ("tree", {"a": "one", "c": None, "mine": None}, ())


def test_without_a_history_there_is_only_the_tree(story: Story) -> None:
    target = story.run("one", a="a by one\n")
    assert story.engine.preview(target).reach == "tree"
    assert steps(story.engine.preview(target)) == {"a": None}
    with pytest.raises(UsageError) as wrong:
        story.engine.preview(target, reach="session")
    assert wrong.value.code == "invalid_params"


def test_a_line_of_the_user_in_the_sessions_file_is_kept(story: Story) -> None:
    """After the session wrote it, or before: going back would lose it."""
    target = story.run("one", a="a by one\n", b="b by one\n")
    story.write(a="a by one\nand by the user\n", b="b by the user\n")
    story.run("one", b="b by the user, and by one\n")
    plan = story.plan(target, "one")
    assert (plan.reach, steps(plan)) == ("session", {})
    assert {row.path: row.reason for row in plan.kept} == {
        "a": "changed by the user or another program after one",
        "b": "changed by others, too, before one wrote it last",
    }


def test_nothing_to_do_for_a_session_that_changed_nothing(story: Story) -> None:
    """anthropics/claude-code#28078: rewinding an idle session must not wipe another one's work."""
    target = story.run("two")
    story.run("one", a="a by one\n")
    plan = story.plan(target, "two")
    assert (plan.reach, plan.is_empty, kept(plan)) == ("session", True, {"a": "one"})


def test_a_run_without_its_second_capture_is_nobodys(story: Story) -> None:
    """Killed, or its capture failed: what it wrote cannot be told from what others wrote."""
    target = story.capture("one", "before")
    story.write(a="a by one, or not\n")
    story.run("one", b="b by one\n")
    plan = story.plan(target, "one")
    assert (steps(plan), kept(plan)) == ({"b": "one"}, {"a": None})
    story.engine.forget([story.history[-1].ref])
    assert kept(story.plan(target, "one")) == {"a": None, "b": None}


def test_renames_deletions_and_folders_of_the_session(story: Story) -> None:
    story.world.put("dir/sub/x", "x\n")
    story.world.commit()
    target = story.capture("one", "before")
    files = story.world.files()
    story.world.put("made/deep/n", "n\n")
    os.rename(story.world.path("dir/sub/x"), story.world.path("made/x"))
    os.rmdir(story.world.path("dir/sub"))
    story.world.remove("b")
    os.chmod(story.world.path("c"), 0o600)
    story.capture("one", "after")
    os.mkdir(story.world.path("users-empty"))
    story.write(mine="mine\n")
    plan = story.restore(target, "one", "one/u")
    assert plan.reach == "session"
    assert differing(files, story.world.files()).keys() == {b"users-empty", b"mine"}


def test_a_file_of_the_user_in_a_folder_of_the_session_keeps_the_folder(story: Story) -> None:
    target = story.run("one", **{"made/n": "n\n"})
    story.write(**{"made/mine": "mine\n"})
    story.restore(target, "one", "one/u")
    assert (story.world.exists("made/n"), story.world.get("made/mine")) == (False, b"mine\n")


def test_what_others_put_in_the_way_stays(story: Story) -> None:
    target = story.run("one", a=None)
    story.world.put("a/mine", "mine\n")
    plan = story.restore(target, "one", "one/u")
    assert (steps(plan), kept(plan)) == ({}, {"a": "one", "a/mine": None})
    assert story.world.get("a/mine") == b"mine\n"


def test_the_index_goes_back_in_the_entries_of_the_restored_paths(story: Story) -> None:
    target = story.capture("one", "before")
    story.write(a="a by one\n", new="new\n")
    story.world.git("add", "a", "new")
    story.capture("one", "after")
    story.write(c="c by the user\n")
    story.world.git("add", "c")
    plan = story.restore(target, "one", "one/u")
    assert plan.index_changes == ("a", "new")
    assert story.world.git("diff", "--cached", "--name-only").split() == [b"c"]
    assert story.world.git("status", "--porcelain").split() == [b"M", b"c"]


def test_an_index_with_flags_stays_as_it_is(story: Story) -> None:
    target = story.run("one", a="a by one\n")
    story.write(c="c by the user\n")
    story.world.git("update-index", "--assume-unchanged", "c")
    before = story.world.index()
    plan = story.restore(target, "one", "one/u")
    assert (plan.restores_index, any("index stays" in note for note in plan.notes)) == (False, True)
    assert (story.world.index(), story.world.get("a")) == (before, b"a at base\n")


def test_single_paths_of_a_session(story: Story) -> None:
    target = story.run("one", a="a by one\n", b="b by one\n")
    story.write(c="c by the user\n")
    plan = story.plan(target, "one", paths=["a", "c"], reach="session")
    assert (steps(plan), kept(plan)) == ({"a": "one"}, {"c": None})
    assert story.plan(target, "one", paths=["b"]).reach == "tree"


def test_names_that_look_like_gits_own_lines(story: Story) -> None:
    """The names of all pairs of trees come in one answer of git; no name is taken for a line of it."""
    names = [b"a\nb", b":000000 100644 x", b"0" * 40 + b" " + b"1" * 40 + b"\n", b"\n", b"-", b"\xff"]
    states = [story.capture("one", "before")]
    for name in names:
        story.world.put(name, "x\n")
        states.append(story.capture("one", "after"))
    view = story.engine._store.side
    trees = [view.line("rev-parse", f"{story.engine.get(ref).commit}:worktree") for ref in states]
    pairs = [*itertools.pairwise(trees), (trees[0], trees[0]), (trees[0], trees[-1])]
    found = [{d.name for d in differing} for differing in differences_of(view, pairs)]
    assert found == [*({name} for name in names), set(), set(names)]


def test_intervals_and_owners() -> None:
    before, after = Mark(ref="1", kind="before", owner="x"), Mark(ref="1a", kind="after", owner="x")
    other = Mark(ref="2a", kind="after", owner="y")
    assert owner_between(before, after) == "x"
    assert [owner_between(*pair) for pair in ((after, before), (before, other), (None, after), (before, None))] == [
        None
    ] * 4
    assert since([before, after, other], "1") == [after, other]
    assert since([before, after], "elsewhere") == [before, after]


def test_authors_of_intervals() -> None:
    start = dict.fromkeys((b"a", b"b", b"c", b"d", b"e"), 0)
    line = [
        Interval("x", {b"a": 1, b"b": 1, b"c": 1, b"e": 1}),
        Interval(None, {b"b": 2, b"e": 2}),
        Interval("y", {b"c": 2}),
        Interval(None, {b"e": 1}),
    ]
    found = authors_of(start, line, start)
    assert {name: (author.last, author.last_run, author.as_left) for name, author in found.items()} == {
        b"a": ("x", "x", True),
        b"b": (None, "x", False),
        b"c": ("y", "y", True),
        b"d": (None, None, False),
        b"e": ("x", "x", True),
    }
    assert {name for name, author in found.items() if is_only(author, "x")} == {b"a", b"e"}
    assert why_kept(found[b"c"], "x") == "changed by y"
    assert choose_reach(None, "x", [found[b"a"]]) == "tree"
    assert choose_reach(None, "x", found.values()) == "session"
    assert choose_reach("tree", "x", found.values()) == "tree"


def test_a_restore_in_between_is_not_taken_for_somebody_elses_change(story: Story) -> None:
    """Turned back, and worked on: the session may be turned back again, whatever checkpoint it was."""
    first = story.run("one", a="a by one\n")
    second = story.run("one", a="a by one, once more\n", b="b by one\n")
    story.restore(second, "one", "one/u")
    story.run("one", a="a by one, in another way\n")
    plan = story.restore(first, "one", "one/u2")
    assert (plan.reach, steps(plan)) == ("tree", {"a": "one"})
    story.run("one", a="a by one, at last\n")
    assert (story.plan(first, "one").reach, steps(story.plan(first, "one"))) == ("tree", {"a": "one"})


def test_a_restore_told_as_a_run(story: Story) -> None:
    """The user's change went with the restore, and is not in the way of the next one."""
    target = story.run("one", a="a by one\n")
    story.write(a="a by the user\n")
    story.restore(target, "one", "one/u", reach="tree")
    story.history += [Mark(ref="one/u", kind="before", owner="one"), Mark(ref=target, kind="after", owner="one")]
    story.run("one", a="a by one again\n")
    plan = story.plan(target, "one")
    assert (plan.reach, steps(plan)) == ("tree", {"a": "one"})


def test_permission_bits_have_authors(story: Story) -> None:
    target = story.capture("one", "before")
    os.chmod(story.world.path("a"), 0o600)
    story.world.put("b", "b by one\n")
    story.capture("one", "after")
    os.chmod(story.world.path("b"), 0o640)
    os.chmod(story.world.path("c"), 0o640)
    plan = story.plan(target, "one")
    assert (steps(plan), kept(plan)) == ({"a": "one"}, {"b": None, "c": None})


WHO = ("one", "two", "user")
EDITS = st.lists(
    st.tuples(st.sampled_from(WHO), st.dictionaries(st.sampled_from("abcde"), st.integers(0, 2))), max_size=5
)


@settings(
    max_examples=4, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(EDITS)
def test_a_session_takes_back_exactly_its_own(edits: list[tuple[str, dict[str, int]]]) -> None:
    """Against a plain account of who changed which file, by content, from one capture to the next."""
    with tempfile.TemporaryDirectory() as folder:
        story = Story(Path(folder) / "w")
        for name in "abc":
            story.write(**{name: "0"})
        story.world.commit()
        first = dict.fromkeys("abc", "0")
        target, now = story.capture("one", "before"), dict(first)
        lines = {name: [(first.get(name), "")] for name in "abcde"}

        def account(who: str) -> None:
            for name, line in lines.items():
                contents = [content for content, _ in line]
                if now.get(name) in contents:
                    del line[contents.index(now.get(name)) + 1 :]
                else:
                    line.append((now.get(name), who))

        for who, files in [*edits, ("two", {})]:
            wanted = {name: str(number) for name, number in files.items()}
            if who == "user":
                story.write(**wanted)
                now |= wanted
                continue
            account("user")
            story.run(who, **wanted)
            now |= wanted
            account(who)
        plan = story.plan(target, "one", reach="session")
        differ = {name for name in "abcde" if now.get(name) != first.get(name)}
        mine = {name for name in differ if {who for _, who in lines[name][1:]} == {"one"}}
        assert set(steps(plan)) == mine
        assert set(kept(plan)) == differ - mine
