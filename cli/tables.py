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
            *([("forked from", view.forked_from)] if view.forked_from else []),
        ]
    )


def forked(view: views.SessionView) -> RenderableType:
    """Draw a session that was forked off, and how to go on in it."""
    way = Text(f"Go on: hubctl run --session {view.id} PROMPT", style="dim")
    return Group(session(view), way)


def runs(found: Sequence[views.RunView]) -> RenderableType:
    """Draw runs."""
    rows = [
        (
            str(view.run_count),
            view.id,
            state("turned back" if view.superseded else view.state),
            _why(view),
            model_label(view.model),
            plural(len(view.files_changed), "file"),
            ago(view.created_at),
        )
        for view in found
    ]
    return listing(rows, ("#", "!run", "!state", "why", "model", "!changed", "!begun"), "No runs yet.")


def _why(view: views.RunView) -> Text:
    """Return why a run ended, and why nothing can bring its files back where that is so."""
    words = Text(clean_line(view.error or view.stop_reason or "-", 60))
    if view.no_checkpoint:
        words.append(f" · no checkpoint: {clean_line(view.no_checkpoint)}", "yellow")
    return words


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


def workspaces(found: Sequence[views.WorkspaceView]) -> RenderableType:
    """Draw registered workspaces."""
    rows = [
        (clean_line(view.name), clean_path(view.path), view.checkpoint or "as configured", ago(view.created_at))
        for view in found
    ]
    nothing = "No workspace is registered; any directory can be used with -w."
    return listing(rows, ("!name", "path", "!checkpoints", "!added"), nothing)


def workspace(view: views.WorkspaceView) -> RenderableType:
    """Draw one registered workspace."""
    how = f", checkpoints of its runs: {view.checkpoint}" if view.checkpoint else ""
    return Text(f"{view.name} is {clean_path(view.path)}{how}")


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
