"""How the hub's views look to people: one function per view, from a value to something rich can draw. No I/O.

Everything that comes from a model, a repository or another person passes through `cli.text`.
"""

from collections.abc import Callable, Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.text import ago, arguments_text, clean, clean_line, clean_path, model_label, plural, visible
from hub.protocol import views

STATE_STYLES = {
    "running": "cyan",
    "waiting": "bold yellow",
    "queued": "blue",
    "failed": "red",
    "interrupted": "red",
    "cancelled": "yellow",
    "completed": "green",
    "open": "bold yellow",
    "allowed": "green",
    "rejected": "red",
    "expired": "red",
    "pending": "yellow",
}
PATHS_SHOWN = 12
SHORT_ID = 6
"""Characters of an abbreviated id."""


def state(word: str) -> Text:
    """Return a state in its colour."""
    return Text(word, style=STATE_STYLES.get(word, ""))


def table(*columns: str) -> Table:
    """Return an empty table; a column whose name starts with ! is never cut."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for column in columns:
        made.add_column(column.lstrip("!"), no_wrap=column.startswith("!"), overflow="fold")
    return made


def facts(rows: Iterable[tuple[str, RenderableType]]) -> Table:
    """Return names and values in two columns."""
    made = Table.grid(padding=(0, 2, 0, 0))
    made.add_column(style="dim", no_wrap=True)
    made.add_column(overflow="fold")
    for name, value in rows:
        made.add_row(name, value)
    return made


def listing(rows: Sequence[Sequence[RenderableType]], columns: Sequence[str], nothing: str) -> RenderableType:
    """Return a table of the rows, or the words for none."""
    if not rows:
        return Text(nothing, style="dim")
    made = table(*columns)
    for row in rows:
        made.add_row(*row)
    return made


def status(view: views.Status, questions: int = 0) -> RenderableType:
    """Draw how the hub is; `questions` of agents are open."""
    to_answer = view.approvals_open + questions
    word = Text("draining", "yellow") if view.draining else Text("ready", "green") if view.ready else Text("not ready")
    return facts(
        [
            ("hub", Text.assemble(word, f"  version {view.version}, pid {view.pid}")),
            ("url", view.url),
            ("home", clean_path(view.home)),
            ("started", ago(view.started_at)),
            ("model", model_label(view.default_model) if view.default_model else Text("none configured", "yellow")),
            ("work", f"{plural(view.sessions, 'session')}, {view.runs_active} active, {to_answer} to answer"),
            ("parts", ", ".join(f"{name} {how}" for name, how in view.components.items()) or "-"),
        ]
    )


def sessions(found: Sequence[views.SessionView]) -> RenderableType:
    """Draw sessions."""
    rows = [
        (
            view.id,
            state(view.state),
            str(view.run_count),
            ago(view.updated_at),
            clean_line(view.title, 60) or "-",
            clean_path(view.workspace),
        )
        for view in found
    ]
    return listing(rows, ("!session", "!state", "runs", "!changed", "title", "workspace"), "No sessions yet.")


def session(view: views.SessionView) -> RenderableType:
    """Draw one session."""
    return facts(
        [
            ("session", Text.assemble(view.id, "  ", state(view.state))),
            ("title", clean_line(view.title) or "-"),
            ("workspace", clean_path(view.workspace)),
            ("runs", f"{view.run_count}, {plural(view.pending_prompts, 'prompt')} waiting"),
            ("begun", ago(view.created_at)),
        ]
    )


def runs(found: Sequence[views.RunView]) -> RenderableType:
    """Draw runs."""
    rows = [
        (
            str(view.run_count),
            view.id,
            state("turned back" if view.superseded else view.state),
            clean_line(view.error or view.stop_reason or "-", 60),
            model_label(view.model),
            plural(len(view.files_changed), "file"),
            ago(view.created_at),
        )
        for view in found
    ]
    return listing(rows, ("#", "!run", "!state", "why", "model", "!changed", "!begun"), "No runs yet.")


def prompts(found: Sequence[views.PromptView]) -> RenderableType:
    """Draw prompts that wait."""
    rows = [
        (str(view.position), view.id, view.mode, clean_line(view.author), clean_line(view.text, 80)) for view in found
    ]
    return listing(rows, ("#", "!prompt", "!mode", "author", "text"), "Nothing waits.")


def accepted(view: views.PromptAccepted) -> RenderableType:
    """Draw what became of a prompt."""
    if view.mode == "steer":
        return Text(f"Steers the run in progress of {view.session_id}.")
    where = f"position {view.position}" if view.position else "it starts now"
    return Text(f"Stored as {view.mode} in {view.session_id} ({where}): {view.prompt_id}")


def approvals(found: Sequence[views.ApprovalView]) -> RenderableType:
    """Draw questions about tool calls, each with its arguments whole: they are what will be executed."""
    if not found:
        return Text("Nothing waits for an answer.", style="dim")
    return Group(*(_approval(view) for view in found))


def open_asks(calls: Sequence[views.ApprovalView], asked: Sequence[views.QuestionView]) -> RenderableType:
    """Draw tool calls that ask, then questions of agents under a heading of their own."""
    if not asked:
        return approvals(calls)
    heading = Text("Questions of agents; to answer: hubctl answer ID TEXT\n", style="bold")
    questions = (_question(view) for view in asked)
    return Group(*(_approval(view) for view in calls), heading, *questions)


def _question(view: views.QuestionView) -> RenderableType:
    head = Text.assemble((view.id, "bold"), "  ", state(view.state), "  ", clean(view.question).strip())
    options = [Text(f"    {number}. {clean_line(option)}") for number, option in enumerate(view.options, 1)]
    when = f"expires {ago(view.expires_at)}" if view.state == "open" else f"answer: {clean_line(view.answer or '-')}"
    return Group(head, *options, Text(f"    {view.session_id}  {when}\n", style="dim"))


def replied(view: views.QuestionView) -> RenderableType:
    """Draw the answer to a question."""
    return Text.assemble(state(view.state), f"  {clean_line(view.question, 80)}  {clean_line(view.answer or '-', 80)}")


def _approval(view: views.ApprovalView) -> RenderableType:
    head = Text.assemble((view.id, "bold"), "  ", state(view.state), "  ", (clean_path(view.tool), "bold cyan"))
    when = f"expires {ago(view.expires_at)}" if view.state == "open" else f"by {clean_line(view.decided_by or '-')}"
    body = Text(arguments_text(view.arguments, "    ") + "\n")
    about = Text(f"    {view.session_id}  in {clean_path(view.cwd)}  {when}  {clean_line(view.reason)}\n", style="dim")
    return Group(head, body, about) if view.arguments else Group(head, about)


def answered(view: views.ApprovalView) -> RenderableType:
    """Draw a decision."""
    what = clean_line(visible(view.summary), 100)
    return Text.assemble(state(view.state), f"  {clean_path(view.tool)}  {what}  ({view.decision}, {view.id})")


def checkpoint_row(view: views.CheckpointView) -> tuple[RenderableType, ...]:
    run = "-" if view.run_count is None else f"run {view.run_count}"
    return (view.id, view.kind, run, str(view.files), ago(view.created_at), clean_line(view.note, 50) or "-")


def checkpoints(found: Sequence[views.CheckpointView]) -> RenderableType:
    """Draw checkpoints."""
    columns: tuple[str, ...] = ("!checkpoint", "!kind", "!of", "files", "!taken", "note")
    rows = [checkpoint_row(view) for view in found]
    if len({view.session_id for view in found}) > 1:  # runs of several sessions bear the same numbers
        columns = ("!checkpoint", "!kind", "!session", "!of", "files", "!taken", "note")
        rows = [(*row[:2], _short(view.session_id), *row[2:]) for row, view in zip(rows, found, strict=True)]
    return listing(rows, columns, "No checkpoints here yet.")


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
        ("branch", f"{clean_line(view.branch or '-')} at {view.head or '-'}"),
        ("kept as", f"{view.ref}  {view.commit}"),
        ("note", clean_line(view.note) or "-"),
    ]
    lines += [("not in it", Text(f"{clean_path(x.path)}: {clean_line(x.why)}", "yellow")) for x in view.uncaptured]
    return facts(lines)


CHANGE_STYLES = {"added": "green", "created": "green", "deleted": "red", "removed": "red"}


def diff(view: views.DiffView) -> RenderableType:
    """Draw the difference between two checkpoints, or a checkpoint and now."""
    if not view.changes:
        return Text("No difference.", style="dim")
    rows = [
        (_kind(change.kind), _count("+", change.added), _count("-", change.removed), clean_path(change.path))
        for change in view.changes
    ]
    changes = listing(rows, ("!what", "+", "-", "path"), "")
    return Group(changes, Text(), patch(view.patch)) if view.patch else changes


def _kind(word: str) -> Text:
    return Text(word, style=CHANGE_STYLES.get(word, "cyan"))


def _count(sign: str, lines: int | None) -> str:
    return "-" if lines is None else f"{sign}{lines}"


def patch(text: str) -> Text:
    """Draw a unified diff in its usual colours."""
    drawn = Text()
    for line in clean(text).rstrip("\n").split("\n"):
        drawn.append(line + "\n", style=_patch_style(line))
    return drawn


def _patch_style(line: str) -> str:
    if line.startswith(("+++", "---", "diff ", "index ")):
        return "bold"
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")


def undone(view: views.RestoreView) -> RenderableType:
    """Draw the undoing of a restore, planned or done. Only its own checkpoint takes it back."""
    return restore(view, undoes=True)


def restore(view: views.RestoreView, *, undoes: bool = False) -> RenderableType:
    """Draw a restore, planned or done, with all that it cannot undo."""
    title = "Would turn back to" if view.dry_run else "Turned back to"
    parts: list[RenderableType] = [Text(f"{title} {view.checkpoint}", style="bold")]
    parts += _paths("written", view.restored, "cyan") + _paths("created", view.created, "green")
    parts += _paths("deleted", view.deleted, "red") + _paths(
        "in conflict", [conflict.path for conflict in view.conflicts], "bold red"
    )
    parts += _paths("index", view.index_changes, "cyan")
    parts += [Text(f"  kept         {clean_path(kept.path)}: {clean_line(kept.reason)}") for kept in view.kept]
    if view.messages:
        aside = f"{plural(view.messages, 'message')} of {plural(len(view.runs), 'run')} put aside"
        parts.append(Text(f"  conversation {aside}"))
    if undoes:
        comes = "would come back" if view.dry_run else "came back"
        parts.append(Text(f"  conversation {comes}, where the restore had put it aside"))
    parts += [Text(f"  cancelled    {item.kind} {clean_line(item.text)}", "yellow") for item in view.cancelled]
    parts += [Text(f"  taken up     {item.kind} {clean_line(item.text)}") for item in view.resumed]
    parts += [Text("  HEAD         moves back to the checkpoint's commit")] if view.head_moved else []
    parts += [Text(f"  note         {clean_line(note)}") for note in view.notes]
    parts += [Text(f"  not undone   {clean_line(effect.summary)}", "yellow") for effect in view.effects]
    if view.undo:
        ways = f"restore {view.undo}" if undoes else f"undo  (or restore {view.undo})"
        parts.append(Text(f"Taken back by: hubctl checkpoint {ways}", style="dim"))
    return Group(*parts)


def _paths(title: str, paths: Sequence[str], style: str) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text(f"  {title if index == 0 else '':<12} {clean_path(path)}", style=style)
        for index, path in enumerate(paths[:PATHS_SHOWN])
    ]
    if len(paths) > PATHS_SHOWN:
        lines.append(Text(f"  {'':<12} … and {len(paths) - PATHS_SHOWN} more", style=style))
    return lines


def workspaces(found: Sequence[views.WorkspaceView]) -> RenderableType:
    """Draw registered workspaces."""
    rows = [(clean_line(view.name), clean_path(view.path), ago(view.created_at)) for view in found]
    return listing(rows, ("!name", "path", "!added"), "No workspace is registered; any directory can be used with -w.")


def workspace(view: views.WorkspaceView) -> RenderableType:
    """Draw one registered workspace."""
    return Text(f"{view.name} is {clean_path(view.path)}")


def acknowledged(words: str) -> Callable[[views.Ack], RenderableType]:
    """Return a drawing of an acknowledgement: the words, what it was about, and its state."""
    return lambda view: Text(f"{words} {view.id} ({view.state})")


def deliveries(found: Sequence[views.DeliveryView]) -> RenderableType:
    """Draw results that wait to be seen."""
    if not found:
        return Text("The inbox is empty.", style="dim")
    return Group(*(_delivery(view) for view in found))


def _delivery(view: views.DeliveryView) -> RenderableType:
    return Text.assemble((f"{view.session_id}  {ago(view.created_at)}\n", "bold"), clean(view.text).rstrip(), "\n")
