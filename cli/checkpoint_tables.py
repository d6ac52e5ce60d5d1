"""How checkpoints look to people: lists, one of them, differences, and what keeping them in order came to. No I/O."""

import shlex
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from cli.tables import facts, listing, patch
from cli.text import ago, clean_line, clean_path, plural, size, visible
from hub.protocol import views

SHORT_ID = 6
"""Characters of an abbreviated id."""
GONE_SHOWN = 20
"""Checkpoints that are named when many go."""
PREFIX = "refs/turnback/"
"""Where git keeps them; the hub names a ref by what follows."""
CHANGE_STYLES = {"added": "green", "created": "green", "deleted": "red", "removed": "red"}
WHY_GONE = {
    "runs": "older than the newest runs that are kept",
    "age": "too old",
    "size": "to save space",
    "purged": "purged",
}


def checkpoints(found: Sequence[views.CheckpointView]) -> RenderableType:
    """Draw checkpoints; sessions are named where there are several, for their runs bear the same numbers."""
    several = len({view.session_id for view in found}) > 1
    names = ("!checkpoint", "!kind", *(("!session",) if several else ()), "!of", "files", "!taken", "note")
    return listing([_row(view, several=several) for view in found], names, "No checkpoints here yet.")


def _row(view: views.CheckpointView, *, several: bool) -> tuple[RenderableType, ...]:
    run = "-" if view.run_count is None else f"run {view.run_count}"
    session = (_short(view.session_id),) if several else ()
    missing = [Text(f"{plural(len(view.uncaptured), 'path')} not in it", "yellow")] if view.uncaptured else []
    return (view.id, view.kind, *session, run, str(view.files), ago(view.created_at), _note(view, missing, limit=50))


def _note(view: views.CheckpointView, marks: Sequence[Text] = (), *, limit: int = 0) -> Text:
    """Return the note, behind the marks of one that is protected or whose files are gone."""
    parts = [Text("protected", "green")] if view.protected else []
    if view.pruned_at is not None:
        parts.append(Text(f"pruned {ago(view.pruned_at)}, its files are gone", "yellow"))
    words = clean_line(view.note or view.prompt or "", limit)
    parts += [*marks, Text(words)] if words else marks
    return Text(" · ").join(parts) if parts else Text("-")


def _short(id: str | None) -> str:
    """Return the end of an id, which stands for it on a command line."""
    return "-" if id is None else id[-SHORT_ID:]


def checkpoint(view: views.CheckpointView) -> RenderableType:
    """Draw one checkpoint, with what it could not read."""
    lines: list[tuple[str, RenderableType]] = [
        ("checkpoint", f"{view.id}  ({view.kind})"),
        ("workspace", clean_path(view.workspace)),
        ("session", f"{view.session_id or '-'}  run {view.run_count if view.run_count is not None else '-'}"),
        ("taken", ago(view.created_at)),
        ("files", str(view.files)),
        ("branch", f"{clean_line(view.branch or '-').removeprefix('refs/heads/')} at {view.head or '-'}"),
        ("kept as", f"{PREFIX}{view.ref.removeprefix(PREFIX)}  {view.commit}"),
        ("note", _note(view)),
    ]
    lines += [("not in it", Text(f"{clean_path(x.path)}: {clean_line(x.why)}", "yellow")) for x in view.uncaptured]
    return facts(lines)


def diff(view: views.DiffView) -> RenderableType:
    """Draw the difference between two checkpoints, or a checkpoint and now."""
    if not view.changes:
        return Text("No difference.", style="dim")
    rows = [
        (_kind(change.kind), _count("+", change.added), _count("-", change.removed), clean_path(change.path))
        for change in view.changes
    ]
    changes = listing(rows, ("!what", "+", "-", "path"), "")
    if not view.patch:
        return changes
    lines = patch(view.patch)
    lines.right_crop()  # the last line end is the console's
    return Group(changes, Text(), lines)


def _kind(word: str) -> Text:
    return Text(word, style=CHANGE_STYLES.get(word, "cyan"))


def _count(sign: str, lines: int | None) -> str:
    return "-" if lines is None else f"{sign}{lines}"


def kept(view: views.CheckpointView) -> RenderableType:
    """Draw what keeping a checkpoint, or no longer keeping it, came to."""
    if view.protected:
        return Text(f"{view.id} is protected: it is not pruned until `hubctl checkpoint keep {view.id} --off`.")
    return Text(f"{view.id} is not protected any more: it is pruned when its time comes.")


def pruned(view: views.PrunedView) -> RenderableType:
    """Draw the checkpoints that went, or would go."""
    left = f"{view.kept} {'would stay' if view.dry_run else 'stay'}"
    if not view.pruned:
        return Text(f"Nothing is to be deleted; {left}.")
    word = "Would delete" if view.dry_run else "Deleted"
    freed = f"about {size(view.bytes_pruned)} of {size(view.bytes_before)}"
    head = Text(f"{word} {plural(len(view.pruned), 'checkpoint')}, {freed}; {left}.", style="bold")
    rows = [
        (item.checkpoint_id or clean_path(item.ref), size(item.bytes), WHY_GONE.get(item.why, clean_line(item.why)))
        for item in view.pruned[:GONE_SHOWN]
    ]
    more = len(view.pruned) - GONE_SHOWN
    cut = [Text(f"… and {more} more", style="dim")] if more > 0 else []
    return Group(head, listing(rows, ("!checkpoint", "!alone", "why"), ""), *cut)


def verified(view: views.VerifiedView) -> RenderableType:
    """Draw what verify found, and whether every checkpoint can be relied on."""
    depth = "every object was read" if view.deep else "objects exist; --deep reads them"
    counted = f"{view.complete} of {plural(view.checkpoints, 'checkpoint')} whole ({depth})"
    verdict = Text(f"Sound: {counted}.", "green") if view.sound else Text(f"Not sound: {counted}.", "bold red")
    rows = [
        (Text(row.kind, "green" if row.repaired else "yellow"), clean_path(row.name), _found(row))
        for row in view.findings
    ]
    return Group(verdict, listing(rows, ("!found", "where", "what"), "")) if rows else verdict


def _found(row: views.FindingView) -> str:
    return f"repaired: {clean_line(row.text)}" if row.repaired else clean_line(row.text)


def exported(view: views.ExportedView) -> RenderableType:
    """Draw where a bundle lies, and the commands that read it; they can be copied as they stand."""
    head = f"{clean_path(view.path)} holds {plural(len(view.refs), 'checkpoint')}, {size(view.bytes)}."
    return Group(
        Text(head, style="bold"),
        Text("To get the first of them out, with nothing but git:"),
        *(Text(f"  {visible(line)}", no_wrap=True, overflow="ignore") for line in view.commands),
        Text(f"All it holds: git bundle list-heads {shlex.quote(view.path)}", style="dim"),
    )
