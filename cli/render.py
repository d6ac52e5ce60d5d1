"""How a session reads in a terminal: events and streamed text in, pieces of text out. No I/O.

Invariant: a piece begins at the start of a line unless it continues streamed text, and no text is shown twice: what was
streamed of an answer is not repeated when the whole answer arrives. Unknown events are passed over, for a hub may be
newer than this program.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
from rich.text import Text

from cli import tables
from cli.text import arguments_text, clean, clean_line, clean_path, head, model_label, plural, visible
from hub.domain.messages import Message, TextPart, ToolCallPart, ToolResultPart
from hub.protocol import events
from hub.protocol.events import EVENTS, LIVE, Event, Live
from hub.protocol.views import ApprovalView, QuestionView

OUTPUT_LINES = 24
"""Lines shown of a call's output."""
PATCH_LINES = 60
"""Lines shown of a diff."""
ASKING_TOOL = "ask_question"
MARKS = {"completed": ("✓", "green"), "failed": ("✗", "red"), "denied": ("✗", "red"), "unknown": ("?", "bold yellow")}
RESTORED = {
    "restore": "turned back to",
    "undo": "a restore was undone with",
    "redo": "what was undone is restored again with",
}
END_MARKS = {"run.completed": ("✓", "green"), "run.cancelled": ("■", "yellow")}


def data_of(item: Event | Live) -> Any:
    """Return the typed data of an event or notice, None for a type that this version does not know."""
    kind = EVENTS.get(item.type) or LIVE.get(item.type)
    return msgspec.json.decode(item.data, type=kind) if kind else None


FAILED_CAPTURES = {
    "after": "what the run left is not saved",
    "left": "what the run left before it waited is not saved",
    "back": "what others changed while it waited is not saved",
    "step": "this step is not saved",
    "preimage": "an ignored file is not saved before it is written",
    "hook": "the hook checkpoint_before failed",
}
"""What is told of a capture that failed, by its kind; of all others, that there is no checkpoint."""


class Renderer:
    """Draws one session. `prompts`: also show what people say; else only what they say to a run in progress."""

    def __init__(self, *, prompts: bool) -> None:
        self._prompts = prompts
        self._begun: set[str] = set()
        self._mid_line = False
        self._streamed: dict[str, int] = {}
        self._progress: dict[str, str] = {}
        self._settled = ""
        self._named: dict[str, Text] = {}

    def event(self, event: Event) -> list[Text]:
        """Return what to print for an event."""
        draw = _EVENTS.get(event.type)
        data = data_of(event)
        if draw is None or data is None:
            return []
        return self._fresh(list(draw(self, event, data)))

    def live(self, notice: Live) -> list[Text]:
        """Return what to print for streamed text or progress."""
        data = data_of(notice)
        match data:
            case events.MessageDelta():
                return self._delta(data)
            case events.CallProgress():
                self._progress[data.call_id] = self._progress.get(data.call_id, "") + data.text
                return self._continued(clean(data.text), "dim")
            case events.ModelNotice():
                return self._fresh([_line(f"  … {clean_line(data.text)}", "dim")])
            case _:
                return []

    def lines(self, *lines: Text) -> list[Text]:
        """Return lines of the caller's own, on lines of their own."""
        return self._fresh([Text.assemble(line, "\n") for line in lines])

    def draft_begins(self) -> list[Text]:
        """Return what stands before a line that the person types; the line is left open."""
        pieces = self._fresh([Text("› ")])
        self._mid_line = True
        return pieces

    def draft_ends(self) -> list[Text]:
        """Return the end of the line that the person has typed."""
        self._mid_line = False
        return [Text("\n")]

    def _fresh(self, pieces: list[Text]) -> list[Text]:
        if pieces and self._mid_line:
            pieces.insert(0, Text("\n"))
        if pieces:
            self._mid_line = False
        return pieces

    def _continued(self, text: str, style: str = "") -> list[Text]:
        if text:
            self._mid_line = not text.endswith("\n")
        return [Text(text, style=style)]

    def _delta(self, delta: events.MessageDelta) -> list[Text]:
        shown = self._streamed.get(delta.message_id, 0)
        if delta.message_id == self._settled or delta.offset > shown:
            return []  # a piece before it was lost: the whole answer comes with its event
        start = [] if shown else self._fresh([Text()])
        fresh = delta.text[shown - delta.offset :]
        self._streamed[delta.message_id] = shown + len(fresh)
        return start + self._continued(clean(fresh))

    def _message(self, event: Event, data: events.MessageAdded) -> Iterator[Text]:
        if data.role == "user":
            yield from self._said(event, data)
        if data.role == "assistant":
            shown = self._streamed.pop(data.message_id, 0)
            self._settled = data.message_id
            yield from self._rest(data, shown)

    def _said(self, event: Event, data: events.MessageAdded) -> Iterator[Text]:
        """Yield what a person says. The first words of a run are the prompt that it was given."""
        first = event.run_id is not None and event.run_id not in self._begun
        if event.run_id is not None:
            self._begun.add(event.run_id)
        if self._prompts or not first:
            yield from said(data.text)

    def _rest(self, data: events.MessageAdded, shown: int) -> Iterator[Text]:
        rest = clean(data.text[shown:]).rstrip()
        if shown:
            if rest:
                self._mid_line = False  # it goes on where the streamed text ends
                yield _line(rest)
            return
        if rest:
            yield _line(rest)
        if data.cut:
            yield _line("  … the rest: hubctl show", "dim")

    def _discarded(self, event: Event, data: events.MessageDiscarded) -> Iterator[Text]:
        self._streamed.pop(data.message_id, None)
        yield _line(f"  ↺ this answer was broken off and is asked for again: {clean_line(data.reason)}", "yellow")

    def _run_started(self, event: Event, data: events.RunStarted) -> Iterator[Text]:
        plan = ", plan only" if data.agent_mode == "plan" else ""
        preset = "" if data.preset == "default" else f", preset {data.preset}"
        yield _line(f"run {data.run_count} · {model_label(data.model)}{plan}{preset} · {event.run_id}", "dim")

    def _run_ended(self, event: Event, data: events.RunEnded) -> Iterator[Text]:
        yield from run_end(event.type, data)

    def _continued_run(self, event: Event, data: events.RunContinued) -> Iterator[Text]:
        if data.reason != "answered":
            yield _line(f"  the run goes on: {clean_line(data.reason)}", "dim")

    def _cancelling(self, event: Event, data: events.RunCancelling) -> Iterator[Text]:
        yield _line(f"  cancelling, asked by {clean_line(data.by)} …", "yellow")

    def _queued(self, event: Event, data: events.PromptQueued) -> Iterator[Text]:
        if self._prompts and data.position > 1:
            yield _line(f"  queued behind {data.position - 1}: {clean_line(data.text, 100)}", "dim")

    def _removed(self, event: Event, data: events.PromptRemoved) -> Iterator[Text]:
        yield _line(f"  a prompt was taken back: {clean_line(data.reason)}", "yellow")

    def _proposed(self, event: Event, data: events.CallProposed) -> Iterator[Text]:
        """Keep the line that names the call until it starts: the calls of a turn are proposed all at once."""
        self._named[data.call_id] = call_line(data.name, data.summary)
        if data.verdict == "deny":
            yield from self._name(data.call_id)
            yield _line(f"  denied by {clean_line(data.source)}: {clean_line(data.reason)}", "red")

    def _started(self, event: Event, data: events.CallStarted) -> Iterator[Text]:
        self._named.setdefault(data.call_id, call_line(data.name, data.summary))
        yield from self._name(data.call_id)

    def _name(self, call_id: str) -> Iterator[Text]:
        """Yield the line that names a call, once."""
        line = self._named.pop(call_id, None)
        if line is not None:
            yield line

    def _call_ended(self, event: Event, data: events.CallEnded) -> Iterator[Text]:
        yield from self._name(data.call_id)
        streamed = self._progress.pop(data.call_id, None)
        text = data.text if streamed is None else _unseen(data, streamed)
        yield from call_result(data.state, data.display, text)

    def _decided(self, event: Event, data: events.ApprovalDecided) -> Iterator[Text]:
        style = "green" if data.state == "allowed" else "red"
        by = f" by {clean_line(data.decided_by)}" if data.decided_by else ""
        why = f": {clean_line(data.message)}" if data.message else ""
        yield _line(f"  {data.state}{f' ({data.decision})' if data.decision else ''}{by}{why}", style)

    def _question_closed(self, event: Event, data: events.QuestionClosed) -> Iterator[Text]:
        answer = f": {clean_line(data.answer, 200)}" if data.answer else ""
        yield _line(f"  question {data.state}{answer}", "dim")

    def _checkpoint(self, event: Event, data: events.CheckpointCreated) -> Iterator[Text]:
        missing = f", {plural(data.uncaptured, 'file')} not in it" if data.uncaptured else ""
        if data.kind in ("before", "manual"):
            yield _line(f"  ⛁ checkpoint {data.checkpoint_id} · {plural(data.files, 'file')}{missing}", "dim")

    def _no_checkpoint(self, event: Event, data: events.CheckpointFailed) -> Iterator[Text]:
        what = FAILED_CAPTURES.get(data.kind, "no checkpoint")
        yield _line(f"  {what} ({data.code}): {clean_line(data.reason)}", "bold yellow")

    def _restored(self, event: Event, data: events.RestoreCommitted) -> Iterator[Text]:
        deed = RESTORED.get(data.direction, RESTORED["restore"])
        told = [f"{deed} {data.checkpoint_id}"]
        told += [f"{plural(data.messages, 'message')} put aside"] if data.messages else []
        told += [f"{data.cancelled} that hung on them do not proceed"] if data.cancelled else []
        told += [f"{data.resumed} taken up again"] if data.resumed else []
        told += ["the branch moved"] if data.head_moved else []
        undo = f"; undo with {data.undo_id}" if data.undo_id else ""
        yield _line(f"  ⤺ {', '.join(told)}{undo}", "bold")


_EVENTS: dict[str, Callable[[Renderer, Event, Any], Iterable[Text]]] = {
    "message.added": Renderer._message,
    "message.discarded": Renderer._discarded,
    "run.started": Renderer._run_started,
    "run.continued": Renderer._continued_run,
    "run.cancelling": Renderer._cancelling,
    **dict.fromkeys(events.RUN_ENDS, Renderer._run_ended),
    "prompt.queued": Renderer._queued,
    "prompt.removed": Renderer._removed,
    "tool_call.proposed": Renderer._proposed,
    "tool_call.started": Renderer._started,
    "tool_call.ended": Renderer._call_ended,
    "approval.decided": Renderer._decided,
    "question.closed": Renderer._question_closed,
    "checkpoint.created": Renderer._checkpoint,
    "checkpoint.failed": Renderer._no_checkpoint,
    "restore.committed": Renderer._restored,
}


def _line(text: str, style: str = "") -> Text:
    return Text(text + "\n", style=style)


def _unseen(data: events.CallEnded, streamed: str) -> str:
    """Return what is still to be shown of a call whose output was streamed: when it went wrong, what tells why."""
    seen = set(streamed.splitlines())
    return "" if data.state == "completed" else "\n".join(line for line in data.text.splitlines() if line not in seen)


def said(text: str) -> Iterator[Text]:
    """Yield what a person said."""
    yield Text.assemble(("› ", "bold cyan"), (clean(text).strip() + "\n", "bold"))


def call_line(name: str, summary: str) -> Text:
    """Return the line that names a call."""
    return Text.assemble(("● ", "cyan"), (clean_path(name), "bold"), f"  {clean_line(visible(summary), 200)}\n")


def call_result(state: str, display: str | None, text: str) -> Iterator[Text]:
    """Yield the outcome of a call: its diff or the head of its output, and how it ended when that was not well."""
    if display:
        shown, more = head(clean(display).rstrip(), PATCH_LINES)
        yield tables.patch(shown)
    else:
        shown, more = head(clean(text).rstrip(), OUTPUT_LINES)
        if shown:
            yield Text("".join(f"  {line}\n" for line in shown.split("\n")), style="dim")
    if more:
        yield _line(f"  … {plural(more, 'more line')}", "dim")
    mark, style = MARKS.get(state, ("·", "yellow"))
    yield _line(f"  {mark} {state}", style)


def run_end(type: str, data: events.RunEnded) -> Iterator[Text]:
    """Yield how a run ended and what it took."""
    mark, style = END_MARKS.get(type, ("✗", "bold red"))
    word = type.removeprefix("run.")
    reason = "" if data.stop_reason == word else f" ({data.stop_reason})"
    facts = [plural(data.turns, "turn"), plural(data.tool_calls, "call"), *_tokens(data), *_cost(data)]
    yield _line(f"{mark} {word}{reason} · {' · '.join(facts)}", style)
    if data.error:
        yield _line(f"  {clean_line(data.error)}", "red")
    if data.files_changed:
        names = ", ".join(clean_path(path) for path in data.files_changed[: tables.PATHS_SHOWN])
        more = len(data.files_changed) - tables.PATHS_SHOWN
        yield _line(f"  changed {names}{f' and {more} more' if more > 0 else ''}")
    if data.no_checkpoint:
        yield _line(f"  no checkpoint: {clean_line(data.no_checkpoint)}", "bold yellow")
    if data.files_changed and data.checkpoint_id:
        yield _line(f"  turn back: hubctl checkpoint restore {data.checkpoint_id}", "dim")


def _tokens(data: events.RunEnded) -> list[str]:
    if data.usage.input_tokens is None or data.usage.output_tokens is None:
        return []
    return [f"{data.usage.input_tokens} tokens in, {data.usage.output_tokens} out"]


def _cost(data: events.RunEnded) -> list[str]:
    return [] if data.cost is None else [f"${data.cost:.4f}"]


def transcript(messages: Sequence[Message]) -> list[Text]:
    """Return a transcript so far."""
    return [piece for message in messages for part in message.parts for piece in _part(message.role, part)]


def _part(role: str, part: TextPart | ToolCallPart | ToolResultPart) -> Iterator[Text]:
    match part:
        case TextPart() if role == "user":
            yield from said(part.text)
        case TextPart():
            if part.text.strip():
                yield _line(clean(part.text).rstrip())
        case ToolCallPart():
            yield call_line(part.name, _asked(part) or arguments_text(part.arguments))
        case ToolResultPart():
            yield from call_result(part.state, None, part.text)


def _asked(part: ToolCallPart) -> str:
    """Return the question of a call that asks one, as it was shown live; empty for any other."""
    question = part.arguments.get("question") if part.name == ASKING_TOOL else None
    return f"ask: {question}" if isinstance(question, str) else ""


def approval_card(view: ApprovalView, keys: str) -> list[Text]:
    """Return a question about a call: what exactly it will do, where, why it is asked."""
    lines = [
        Text.assemble(("? ", "bold yellow"), (f"{clean_path(view.tool)} ", "bold"), "asks to do this"),
        *(_preview_lines(view.preview) if view.preview else _argument_lines(view)),
        Text(f"  in {clean_path(view.cwd)} · {clean_line(view.reason)} · {view.id}", style="dim"),
    ]
    return [*lines, Text(keys, style="bold")] if keys else lines


def _argument_lines(view: ApprovalView) -> list[Text]:
    shown, more = head(arguments_text(view.arguments, "  "), OUTPUT_LINES)
    return [Text(shown), *_more(more)]


def _preview_lines(preview: str) -> list[Text]:
    shown, more = head(visible(preview).rstrip(), PATCH_LINES)
    return [tables.patch(shown), *_more(more)]


def _more(lines: int) -> list[Text]:
    return [Text(f"  … {plural(lines, 'more line')}: press d", style="yellow")] if lines else []


def approval_whole(view: ApprovalView) -> list[Text]:
    """Return a call's arguments and its diff, with nothing left out."""
    preview = [tables.patch(visible(view.preview))] if view.preview else []
    return [Text(arguments_text(view.arguments, "  ")), *preview]


def question_card(view: QuestionView) -> list[Text]:
    """Return a question of the agent, with its options numbered."""
    options = [Text(f"  {number}. {clean_line(option)}") for number, option in enumerate(view.options, 1)]
    return [Text.assemble(("? ", "bold yellow"), clean(view.question).strip()), *options]
