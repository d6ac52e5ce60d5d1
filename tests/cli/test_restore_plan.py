"""How a restore reads: a view in, the words of the screen out."""

from typing import Any

import pytest
from rich.console import Console, RenderableType

from cli.restore_plan import SHOWN, Telling, drawn, outcome
from hub.protocol.views import ConflictView, EffectView, HangingView, HeadView, KeptView, PlannedView
from tests.cli import given
from tests.cli.fakehub import AT
from tests.cli.given import SESSION

OTHER = SESSION[:-1] + "Z"


def screen(telling: Telling | None = None, **change: Any) -> str:
    """Return what is printed of a restore."""
    return printed(drawn(given.restore(**change), telling or Telling(session=SESSION)))


def printed(value: RenderableType) -> str:
    console = Console(width=300, markup=False, highlight=False, emoji=False)
    with console.capture() as captured:
        console.print(value)
    return "\n".join(line.rstrip() for line in captured.get().split("\n"))


def changed(path: str, action: Any, author: str | None, old: int | None = None, new: int | None = None) -> PlannedView:
    return PlannedView(path=path, action=action, old_size=old, new_size=new, author=author)


def test_a_plan_as_a_person_reads_it() -> None:
    shown = screen(
        dry_run=True,
        undo=None,
        reach="session",
        restored=["src/a.py"],
        created=["gone.py"],
        deleted=["new.txt"],
        changes=[
            changed("src/a.py", "restore", SESSION, 10, 2048),
            changed("gone.py", "create", OTHER, None, 5),
            changed("new.txt", "delete", None, 0, None),
        ],
        kept=[
            KeptView(path="mine.txt", reason="changed by the user or another program", author=None),
            KeptView(path="b.txt", reason=f"changed by {OTHER}", author=OTHER),
        ],
        index_changes=["src/a.py"],
        messages=4,
        runs=["run_1", "run_2"],
        cancelled=[HangingView(kind="prompt", id="prm_1", text="and then\ndeploy it")],
        notes=["HEAD stays where it is."],
    )
    assert (
        shown
        == f"""\
Would turn back to {given.CHECKPOINT}
  reach session: only what the session wrote and nobody changed since
Restore (1)
  src/a.py  10 B → 2.0 KiB, last changed by this session
Create (1)
  gone.py  5 B, last changed by session {OTHER}
Delete (1)
  new.txt  0 B, last changed by you or others
Index (1)
  src/a.py
Keep as they are (2)
  mine.txt  changed by the user or another program
  b.txt  changed by session {OTHER}
Conversation
  4 messages of 2 runs would be put aside
Put aside with it, does not proceed (1)
  prompt    and then deploy it
Note: HEAD stays where it is.
"""
    )


def test_effects_stand_last_and_apart_and_are_never_told_as_undone() -> None:
    effect = EffectView(run_id="run_1", call_id="call_1", summary="ran: curl example.org", at=AT)
    kept = KeptView(path="build/", reason="git ignores it", author=None)
    shown = screen(effects=[effect], kept=[kept], dry_run=True, undo=None)
    assert "\n\nNot turned back: what these calls did outside of the files stays as it is (1)\n  ran: curl" in shown
    assert "undone" not in shown
    assert shown.index("build/") < shown.index("curl")


@pytest.mark.parametrize(("full", "lines"), [(False, SHOWN + 1), (True, 40)])
def test_long_groups_are_counted_and_cut(full: bool, lines: int) -> None:
    paths = [f"{number:02}.py" for number in range(40)]
    shown = screen(Telling(full=full), restored=paths)
    assert "Restored (40)" in shown
    assert shown.count("\n  ") - shown.count("\n  reach") == lines
    assert ("… and 28 more (--full shows all)" in shown) is not full


def test_one_line_more_is_shown_rather_than_counted() -> None:
    assert "more" not in screen(Telling(), restored=[f"{number}.py" for number in range(SHOWN + 1)])


def test_authors_are_told_only_where_they_are_known() -> None:
    change = changed("a.py", "restore", None, 1, 2)
    for telling in (Telling(), Telling("undo", SESSION), Telling("redo", SESSION)):
        assert "you or others" not in screen(telling, changes=[change])
    assert "you or others" in screen(Telling(session=SESSION), changes=[change])


def test_conflicts_say_where_the_newer_content_lies() -> None:
    taken = ConflictView(path="a.py", reason="it changed meanwhile", rescue="/repo/.git/turnback/rescue/1")
    stayed = ConflictView(path="b.py", reason="it changed meanwhile", rescue=None)
    shown = screen(conflicts=[taken, stayed])
    assert "a.py  it changed meanwhile; the newer content lies in /repo/.git/turnback/rescue/1" in shown
    assert "b.py  it changed meanwhile; it stayed in place" in shown


@pytest.mark.parametrize(("forward", "words"), [(False, "main moves back by 1 commit"), (True, "main moves forward")])
def test_a_branch_that_moves(forward: bool, words: str) -> None:
    head = HeadView(
        ref="refs/heads/main", old="a" * 40, new="b" * 40, forward=forward, commits=1, kept_ref="refs/turnback/x/1o"
    )
    shown = screen(head=head, head_moved=True, dry_run=True)
    assert words in shown
    assert "aaaaaaaaaa → bbbbbbbbbb\n" in shown


def test_an_undo_says_what_comes_back() -> None:
    resumed = [HangingView(kind="run", id="run_1", text="run 3, which waits for an answer")]
    shown = screen(Telling("undo", SESSION, " --session x"), resumed=resumed)
    assert "The newest restore is undone, with" in shown
    assert "came back as far as the restore had put it aside" in shown
    assert "Taken up again (1)\n  run       run 3, which waits" in shown
    assert shown.endswith("To take it back: hubctl checkpoint redo --session x\n")


def test_what_went_as_planned_is_told_in_few_words() -> None:
    effect = EffectView(run_id="run_1", call_id="call_1", summary="ran: curl example.org", at=AT)
    fields: dict[str, Any] = {"restored": ["a.py", "b.py"], "deleted": ["c.py"], "messages": 4, "effects": [effect]}
    plan, done = given.restore(dry_run=True, undo=None, **fields), given.restore(**fields)
    shown = printed(outcome(plan, done, Telling(session=SESSION)))
    assert "2 restored, 1 deleted, 4 messages put aside, as planned" in shown
    assert "What 1 call did outside of the files stays as it is." in shown
    assert "To take it back" in shown
    assert "a.py" not in shown


def test_what_went_otherwise_than_planned_is_told_whole() -> None:
    plan, done = given.restore(dry_run=True, undo=None, restored=["a.py", "b.py"]), given.restore(restored=["a.py"])
    shown = printed(outcome(plan, done, Telling(session=SESSION)))
    assert "Restored (1)\n  a.py" in shown
    assert "as planned" not in shown


def test_another_directory_is_named() -> None:
    assert f"Turned back to {given.CHECKPOINT} in /elsewhere\n" in screen(Telling(elsewhere="/elsewhere"))


def test_a_restore_of_named_paths_is_no_exact_tree() -> None:
    assert "reach tree: the paths that were named" in screen(Telling(narrowed=True))


def test_nothing_to_do_is_said() -> None:
    assert "No file differs." in screen(restored=[], dry_run=True, undo=None)
    assert "No file was changed." in screen(restored=[])


def test_names_and_texts_of_others_cannot_steer_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[31m[bold]red\x9b2J\x08\r\u202edlrow"
    shown = screen(
        restored=[evil],
        kept=[KeptView(path=evil, reason=evil, author=None)],
        conflicts=[ConflictView(path=evil, reason=evil, rescue=evil)],
        cancelled=[HangingView(kind="prompt", id="prm_1", text=evil)],
        notes=[evil],
        effects=[EffectView(run_id="run_1", call_id="call_1", summary=evil, at=AT)],
        index_changes=[evil],
    )
    assert not any(char in shown for char in "\x1b\x07\x08\r\x9b\u202e")
    assert "[bold]" in shown
