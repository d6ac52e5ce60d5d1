"""What is told of a restore: to people as a view, to the model as a notice. Pure."""

from collections.abc import Iterator, Sequence

import msgspec

from hub.checkpoint.values import Applied, Plan, Step, show
from hub.daemon.wishes import Wish
from hub.domain.values import Reach
from hub.protocol.views import ConflictView, EffectView, HangingView, HeadView, KeptView, PlannedView, RestoreView

NAMED = 40
"""Paths that a notice names; more are counted."""


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """What the store has to say about a restore: what goes back with it, what is taken up again, what is not undone."""

    messages: int
    runs: list[str]
    effects: list[EffectView]
    cancelled: list[HangingView]
    resumed: list[HangingView]


def view(
    wish: Wish,
    told: Told,
    plan: Plan | None,
    applied: Applied | None = None,
    undo_id: str | None = None,
    notes: Sequence[str] = (),
) -> RestoreView:
    """Return the answer to a restore that was planned, or done when `applied` or `undo_id` say so."""
    empty = _of_plan(plan, authors=wish.direction == "restore") if plan is not None else _NO_FILES
    conflicts = applied.conflicts if applied is not None else ()
    stayed = {conflict.path for conflict in conflicts if conflict.rescue is None}
    return RestoreView(
        dry_run=wish.dry_run,
        checkpoint=wish.checkpoint.id,
        undo=undo_id,
        reach=empty.reach,
        restored=[change.path for change in empty.changes if change.action == "restore" and change.path not in stayed],
        created=[change.path for change in empty.changes if change.action == "create" and change.path not in stayed],
        deleted=[change.path for change in empty.changes if change.action == "delete" and change.path not in stayed],
        changes=[change for change in empty.changes if change.path not in stayed],
        kept=empty.kept,
        conflicts=[ConflictView(path=found.path, reason=found.reason, rescue=found.rescue) for found in conflicts],
        index_changes=empty.index_changes,
        head_moved=applied.head_moved if applied is not None else empty.head is not None,
        head=empty.head,
        notes=[*empty.notes, *notes],
        effects=told.effects,
        conversation=wish.conversation,
        messages=told.messages,
        runs=told.runs,
        cancelled=told.cancelled,
        resumed=told.resumed,
    )


class _Files(msgspec.Struct, frozen=True, kw_only=True):
    reach: Reach = "tree"
    changes: list[PlannedView] = []
    kept: list[KeptView] = []
    index_changes: list[str] = []
    head: HeadView | None = None
    notes: list[str] = []


_NO_FILES = _Files()


def _of_plan(plan: Plan, *, authors: bool) -> _Files:
    """Return what a plan says of files; without `authors` nobody's name: what is taken back is a restore's."""
    changes = [
        *(_planned(step, "restore", authors=authors) for step in plan.writes),
        *(_planned(step, "create", authors=authors) for step in plan.creations),
        *(_planned(step, "delete", authors=authors) for step in plan.deletions),
    ]
    return _Files(
        reach=plan.reach,
        changes=changes,
        kept=[
            KeptView(path=kept.path, reason=kept.reason, author=kept.author if authors else None) for kept in plan.kept
        ],
        index_changes=list(plan.index_changes),
        head=HeadView(**msgspec.structs.asdict(plan.head)) if plan.head is not None else None,
        notes=list(plan.notes),
    )


def _planned(step: Step, action: str, *, authors: bool) -> PlannedView:
    return PlannedView(
        path=step.path,
        action=action,  # type: ignore[arg-type]
        old_size=step.old_size,
        new_size=step.new_size,
        author=step.author if authors else None,
    )


def unknown(absent: Sequence[bytes], plan: Plan) -> Sequence[bytes]:
    """Return which of some paths that are not on disk the plan does not bring back either."""
    names = [step.name for step in (*plan.writes, *plan.creations, *plan.deletions)]
    names += [folder.name for folder in plan.made_dirs]
    return [path for path in absent if not any(name == path or name.startswith(path + b"/") for name in names)]


def nowhere(path: bytes) -> str:
    """Return a note on a named path that is unknown."""
    return f"Neither here nor in the checkpoint: {show(path)}."


def notice(wish: Wish, done: RestoreView) -> str | None:
    """Return what the model must know before it goes on, None when the conversation says it all."""
    lines = [*_about_files(wish, done), *_about_effects(done)]
    return "\n".join(["[Turnback: a notice from the hub, not from a person]", *lines]) if lines else None


def _about_files(wish: Wish, done: RestoreView) -> Iterator[str]:
    if not wish.conversation and done.changes:
        yield f"{_DEEDS[wish.direction]} while this conversation went on. What you wrote or read before may be gone:"
        yield from _named("restored to an earlier content", done.restored)
        yield from _named("created again", done.created)
        yield from _named("deleted", done.deleted)
        yield "Read a file again before you rely on it."
    elif wish.conversation and not wish.files:
        yield "This conversation was turned back to an earlier point, the files were not: look before you change them."


_DEEDS = {
    "restore": "The files of the workspace were turned back",
    "undo": "The turning back of the files was undone",
    "redo": "The files of the workspace were turned back again",
}


def _about_effects(done: RestoreView) -> Iterator[str]:
    if done.effects:
        yield "Files were turned back, but not what these calls did outside of them:"
        yield from (f"- {effect.summary}" for effect in done.effects[:NAMED])
        yield from _more(done.effects)


def _named(words: str, paths: Sequence[str]) -> Iterator[str]:
    if paths:
        yield f"- {words}: {', '.join(paths[:NAMED])}" + "".join(f" {more}" for more in _more(paths))


def _more(items: Sequence[object]) -> Iterator[str]:
    if len(items) > NAMED:
        yield f"and {len(items) - NAMED} more"
