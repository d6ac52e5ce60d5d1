"""How a restore reads, planned or done: groups that are counted, and last, set apart, what stays as it is now. No I/O.

Invariant: what is cut from a long group is counted, and what tool calls did outside of the files is never told as
taken back. Who changed a path is told only where the hub can know it: in a restore of a session's checkpoint.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from cli.text import ago, clean_line, clean_path, plural, size
from hub.protocol import views

SHOWN = 12
"""Lines of a group that are shown; more are counted."""
WORDS = 100
"""Characters shown of what somebody wrote."""
EFFECT = 240
"""Characters shown of what a call did outside of the files."""
COMMIT = 10
"""Characters of an abbreviated commit."""

Direction = Literal["restore", "undo", "redo"]
TITLES: dict[Direction, tuple[str, str]] = {
    "restore": ("Would turn back to {}", "Turned back to {}"),
    "undo": ("Would undo the newest restore, with {}", "The newest restore is undone, with {}"),
    "redo": ("Would restore again what was undone, with {}", "Restored again what was undone, with {}"),
}
REACHES_BACK = {
    "tree": "everything as it was before",
    "session": "only what it had changed and nobody changed since",
}
REACHES = {
    "tree": "the exact tree of that moment",
    "session": "only what the session wrote and nobody changed since",
}
NARROWED = "the paths that were named, as they were at that moment"
GROUPS = (("restore", "Restore", "Restored", "cyan"), ("create", "Create", "Created", "green"))
DELETED = ("delete", "Delete", "Deleted", "red")
WAYS_BACK: dict[Direction, str] = {"restore": "undo", "undo": "redo", "redo": "undo"}


@dataclass(frozen=True)
class Telling:
    """What a view does not say of itself. `session` is whose checkpoint it is; `where` is `-w`, `--session` or nothing.

    `narrowed`: only paths that were named are restored; `full`: nothing is cut. `elsewhere` is the worktree when the
    current directory is not in it.
    """

    direction: Direction = "restore"
    session: str | None = None
    where: str = ""
    full: bool = False
    narrowed: bool = False
    elsewhere: str | None = None

    def author(self, id: str | None) -> str:
        """Return a person's name for an author; empty where the hub does not know authors."""
        if self.session is None or self.direction != "restore":
            return ""
        if id is None:
            return "you or others"
        return "this session" if id == self.session else f"session {id}"


def drawn(view: views.RestoreView, telling: Telling) -> RenderableType:
    """Draw a restore, planned or done."""
    parts = [_title(view, telling), *_files(view, telling), *_conflicts(view, telling), *_git(view, telling)]
    parts += [*_kept(view, telling), *_conversation(view, telling), *_notes(view), *_effects(view, telling)]
    if not view.dry_run:
        parts += _way_back(view, telling)
    return Group(*parts)


def outcome(plan: views.RestoreView, done: views.RestoreView, telling: Telling) -> RenderableType:
    """Draw a restore that went as its plan, which was shown just before, in few words; any other is drawn whole."""
    if _touched(plan) != _touched(done) or plan.kept != done.kept or plan.messages != done.messages:
        return drawn(done, telling)
    counts = [f"{len(paths)} {deed}" for deed, paths in _touched(done).items() if paths]
    counts += [f"{plural(done.messages, 'message')} put aside"] if done.messages else []
    parts = [_title(done, telling)]
    parts += [Text(f"  {', '.join(counts)}, as planned")] if counts else []
    parts += [*_conflicts(done, telling), *_notes(done)]
    if done.effects:
        parts.append(
            Text(f"What {plural(len(done.effects), 'call')} did outside of the files stays as it is.", "yellow")
        )
    return Group(*parts, *_way_back(done, telling))


def _touched(view: views.RestoreView) -> dict[str, list[str]]:
    return {"restored": view.restored, "created": view.created, "deleted": view.deleted}


def _title(view: views.RestoreView, telling: Telling) -> Text:
    planned, done = TITLES[telling.direction]
    title = (planned if view.dry_run else done).format(view.checkpoint)
    title += f" in {clean_path(telling.elsewhere)}" if telling.elsewhere else ""
    if not _touches_files(view):
        return Text(title, style="bold")
    words = REACHES if telling.direction == "restore" else REACHES_BACK
    reach = NARROWED if telling.narrowed and view.reach == "tree" else words.get(view.reach, view.reach)
    return Text.assemble((title, "bold"), f"\n  reach {view.reach}: {reach}")


def _touches_files(view: views.RestoreView) -> bool:
    return bool(view.restored or view.created or view.deleted or view.kept)


def _group(title: str, lines: Sequence[Text], telling: Telling, style: str = "") -> Iterator[Text]:
    """Yield a heading with the count, and the lines, or the first of them."""
    if not lines:
        return
    yield Text(f"{title} ({len(lines)})", style=f"bold {style}".strip())
    shown = len(lines) if telling.full or len(lines) <= SHOWN + 1 else SHOWN
    for line in lines[:shown]:
        yield Text.assemble("  ", line)
    if len(lines) > shown:
        yield Text(f"  … and {len(lines) - shown} more (--full shows all)", style="dim")


def _files(view: views.RestoreView, telling: Telling) -> Iterator[Text]:
    known = {change.path: change for change in view.changes}
    paths = {"restore": view.restored, "create": view.created, "delete": view.deleted}
    for action, planned, done, style in (*GROUPS, DELETED):
        lines = [_path(path, known.get(path), telling, style) for path in paths[action]]
        yield from _group(planned if view.dry_run else done, lines, telling, style)
    if not any(paths.values()) and telling.direction == "restore" and not view.messages:
        yield Text("No file differs." if view.dry_run else "No file was changed.")


def _path(path: str, change: views.PlannedView | None, telling: Telling, style: str) -> Text:
    """Return a path, with its size and who changed it last."""
    if change is None:
        return Text(clean_path(path), style=style)
    author = telling.author(change.author)
    details = [*_sizes(change), *([f"last changed by {author}"] if author else [])]
    return Text.assemble((clean_path(path), style), (f"  {', '.join(details)}" if details else "", "dim"))


def _sizes(change: views.PlannedView) -> Iterator[str]:
    if change.old_size is not None and change.new_size is not None:
        yield f"{size(change.old_size)} → {size(change.new_size)}"
    elif change.old_size is not None or change.new_size is not None:
        yield size(change.old_size or change.new_size or 0)


def _conflicts(view: views.RestoreView, telling: Telling) -> Iterator[Text]:
    lines = [_conflict(conflict) for conflict in view.conflicts]
    yield from _group("Changed while it was restored", lines, telling, "red")


def _conflict(conflict: views.ConflictView) -> Text:
    where = f"the newer content lies in {clean_path(conflict.rescue)}" if conflict.rescue else "it stayed in place"
    return Text.assemble((clean_path(conflict.path), "red"), f"  {clean_line(conflict.reason)}; {where}")


def _git(view: views.RestoreView, telling: Telling) -> Iterator[Text]:
    """Yield what becomes of the index and the branch."""
    yield from _group("Index", [Text(clean_path(path)) for path in view.index_changes], telling)
    if view.head is not None:
        yield Text("Branch", style="bold")
        yield Text(f"  {_branch(view.head, planned=view.dry_run)}")
    elif view.head_moved:
        yield Text("Branch", style="bold")
        yield Text("  HEAD moved to the checkpoint's commit")


def _branch(head: views.HeadView, *, planned: bool) -> str:
    name = clean_line(head.ref.removeprefix("refs/heads/"))
    moves = f"{'moves' if planned else 'moved'} {'forward' if head.forward else 'back'}"
    span = f"{head.old[:COMMIT]} → {head.new[:COMMIT]}"
    return f"{name} {moves} by {plural(head.commits, 'commit')}, {span}"


def _kept(view: views.RestoreView, telling: Telling) -> Iterator[Text]:
    lines = [Text.assemble(clean_path(kept.path), (f"  {_why_kept(kept, telling)}", "dim")) for kept in view.kept]
    yield from _group("Keep as they are" if view.dry_run else "Kept as they are", lines, telling)


def _why_kept(kept: views.KeptView, telling: Telling) -> str:
    """Return the reason, with a session's id replaced by what a person calls it."""
    reason = clean_line(kept.reason)
    if kept.author is None:
        return reason
    author = telling.author(kept.author) or kept.author
    return reason.replace(kept.author, author) if kept.author in reason else f"{reason} (by {author})"


def _conversation(view: views.RestoreView, telling: Telling) -> Iterator[Text]:
    dry = view.dry_run
    if view.messages:
        aside = f"{plural(view.messages, 'message')} of {plural(len(view.runs), 'run')}"
        yield Text("Conversation", style="bold")
        yield Text(f"  {aside} {'would be put aside' if dry else 'put aside'}")
    elif telling.direction == "undo" and view.conversation:
        yield Text("Conversation", style="bold")
        yield Text(f"  {'comes' if dry else 'came'} back as far as the restore had put it aside")
    yield from _group("Put aside with it, does not proceed", _hanging(view.cancelled), telling, "yellow")
    yield from _group("Taken up again", _hanging(view.resumed), telling, "green")


def _hanging(found: Sequence[views.HangingView]) -> list[Text]:
    return [Text(f"{item.kind:<9} {clean_line(item.text, WORDS)}") for item in found]


def _notes(view: views.RestoreView) -> Iterator[Text]:
    for note in view.notes:
        yield Text(f"Note: {clean_line(note)}", style="yellow")


def _effects(view: views.RestoreView, telling: Telling) -> Iterator[Text]:
    if not view.effects:
        return
    yield Text()
    lines = [Text.assemble(clean_line(one.summary, EFFECT), (f"  {ago(one.at)}", "dim")) for one in view.effects]
    title = "Not turned back: what these calls did outside of the files stays as it is"
    yield from _group(title, lines, telling, "yellow")


def _way_back(view: views.RestoreView, telling: Telling) -> Iterator[Text]:
    way = f"hubctl checkpoint {WAYS_BACK[telling.direction]}{telling.where}"
    exact = f"  (or restore {view.undo})" if view.undo and telling.direction == "restore" else ""
    yield Text(f"\nTo take it back: {way}{exact}", style="dim", no_wrap=True, overflow="ignore")
