"""Run a prompt: submit it once, follow its run to the end, and leave with the code of its outcome.

Invariant: one idempotency key for the submission, so that a repeat after a lost connection cannot run it twice; and the
exit code is decided by the event that ended the run, never by the connection.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import typer

from cli import output, prompting
from cli.asks import Ask
from cli.attach import Deltas
from cli.context import Link, session_id, with_link, workspace_of
from cli.conversation import Conversation, OnAsk
from cli.inbox import ADDRESS
from cli.invocation import invocation
from cli.prompting import Inputs
from cli.render import data_of
from cli.screens import JsonScreen, Screen, TextScreen
from cli.text import plural
from hub import settings
from hub.domain.values import AgentMode, Preset
from hub.errors import ExitCode, UnavailableError, UsageError
from hub.protocol.events import RUN_ENDS, Event, Live, RunEnded
from hub.protocol.subscribing import Gap
from hub.protocol.views import ApprovalView, QuestionView, RunView

SCRIPTED = "scripted:"
CATEGORIES = ("edits", "commands", "all")
GAP_RUNS = 1000


@dataclass(frozen=True)
class Order:
    """What is asked for. `session` is as given, possibly abbreviated; None: a new session in `workspace`."""

    text: str
    session: str | None
    workspace: str | None
    options: dict[str, Any]
    on_ask: OnAsk


def run(
    context: typer.Context,
    prompt: Annotated[str | None, typer.Argument(help="What to do; - or nothing: read standard input.")] = None,
    workspace: Annotated[
        str | None, typer.Option("-w", "--workspace", help="Directory (relative: ./DIR) or name [here].")
    ] = None,
    session: Annotated[str | None, typer.Option("--session", help="Go on in this session.")] = None,
    model: Annotated[str | None, typer.Option("--model", help="Model [TURNBACK_MODEL, else config.toml].")] = None,
    mode: Annotated[AgentMode, typer.Option("--mode", help="plan: nothing that writes.")] = "act",
    preset: Annotated[Preset, typer.Option("--preset", help="Set of tools and rules.")] = "default",
    auto_approve: Annotated[
        list[str] | None, typer.Option("--auto-approve", metavar="WHAT", help="edits, commands or all; repeatable.")
    ] = None,
    on_ask: Annotated[
        Literal["wait", "reject"], typer.Option("--on-ask", help="When nobody at this terminal can be asked.")
    ] = "wait",
    deltas: Deltas = False,
) -> None:
    """Give the agent a prompt and follow its run to the end.

    Ends with 0 when the run completed, 1 when it failed or was interrupted, 8 when an approval found no answer,
    130 when it was cancelled or you left before its end.
    """
    if session and workspace:
        raise UsageError("--session has its workspace already; leave -w out.")
    options = {
        "agent_mode": mode,
        "preset": preset,
        "model": chosen_model(model),
        "auto_approve": categories(auto_approve or ()),
    }
    as_json = invocation(context).json
    order = Order(
        text=text_of(prompt),
        session=session,
        workspace=None if session else workspace_of(workspace),
        options={name: value for name, value in options.items() if value},
        on_ask=how_to_ask(on_ask, as_json=as_json),
    )
    screen: Screen = JsonScreen(deltas=deltas) if as_json else TextScreen(prompts=False)
    raise typer.Exit(with_link(context, lambda link: _carry_out(link, order, screen)))


def text_of(prompt: str | None) -> str:
    """Return the prompt, from standard input when it is `-`, or not given and piped. Raises UsageError.

    Of standard input one final newline is left out: it ends the last line, it is no part of it.
    """
    piped = prompt is None or prompt == "-"
    if sys.stdin is None or (prompt is None and sys.stdin.isatty()):
        piped = False
    text = sys.stdin.read().removesuffix("\n") if piped else prompt or ""
    if not text.strip():
        raise UsageError("The prompt is empty.", hint="Give it as an argument, or - to read standard input.")
    return text


def chosen_model(flag: str | None) -> str | None:
    """Return the model to ask for: --model, else TURNBACK_MODEL; None leaves it to the hub's configuration.

    The file of a scripted model becomes absolute, for the hub works elsewhere.
    """
    model = flag or settings.model_from_environment()
    if model is None or not model.startswith(SCRIPTED):
        return model
    return SCRIPTED + str(Path(model.removeprefix(SCRIPTED)).expanduser().absolute())


def categories(given: Sequence[str]) -> tuple[str, ...]:
    """Return the categories that were named, with commas or repeats. Raises UsageError for another word."""
    words = [word.strip() for value in given for word in value.split(",") if word.strip()]
    unknown = [word for word in words if word not in CATEGORIES]
    if unknown:
        raise UsageError(f"--auto-approve {unknown[0]!r}: expected {', '.join(CATEGORIES)}.")
    return tuple(dict.fromkeys(words))


def how_to_ask(on_ask: Literal["wait", "reject"], *, as_json: bool) -> OnAsk:
    """Return what happens at a question: a person at this terminal is asked, unless rejecting was ordered."""
    if on_ask == "reject":
        return "reject"
    return "prompt" if prompting.interactive() and not as_json else "wait"


@dataclass
class Pursuit:
    """Which run of the session is ours: known once our prompt was taken. Other runs' events are not shown."""

    prompt_id: str
    foreign: set[str] = field(default_factory=set)
    run_id: str | None = None
    removed: bool = False

    def wanted(self, item: Event | Live | Ask) -> bool:
        """Return whether the item belongs to our run, or to no run at all."""
        if isinstance(item, ApprovalView | QuestionView):
            return item.run_id == self.run_id
        if isinstance(item, Event):
            self._learn(item)
        return item.run_id is None or item.run_id not in self.foreign

    def _learn(self, event: Event) -> None:
        data = data_of(event) if event.type in ("prompt.taken", "prompt.removed", "run.started") else None
        if data is not None and data.prompt_id == self.prompt_id:
            self.removed = event.type == "prompt.removed"
            self.run_id = event.run_id or self.run_id
        elif data is not None and event.run_id and not getattr(data, "as_steer", False):
            self.foreign.add(event.run_id)

    def ended_by(self, event: Event) -> bool:
        """Return whether the event is the end of our run, or tells that there will be none."""
        return self.removed or (event.type in RUN_ENDS and event.run_id is not None and event.run_id == self.run_id)


async def _carry_out(link: Link, order: Order, screen: Screen) -> int:
    accepted, cursor, foreign = await _submit(link, order)
    id = accepted.session_id
    pursuit = Pursuit(accepted.prompt_id, foreign)

    async def after_gap(gap: Gap) -> Event | None:
        runs = await link.call("run.list", session_id=accepted.session_id, limit=GAP_RUNS)
        found = next((run for run in runs if run.prompt_id == pursuit.prompt_id), None)
        pursuit.run_id = found.id if found else None
        return end_of(found, gap.seq) if found and found.ended_at else None

    with Inputs() as inputs:
        talk = Conversation(link, screen, inputs, accepted.session_id, on_ask=order.on_ask, steers=False)
        talk.wanted = pursuit.wanted
        try:
            end = await talk.follow(cursor, ends_with=pursuit.ended_by, after_gap=after_gap)
        except UnavailableError as error:
            raise _left_behind(error, id) from error
    code = exit_code(end.type if end else None, unanswered=talk.unanswered)
    if code == ExitCode.APPROVAL and talk.refused:
        asked = plural(talk.refused, "question")
        output.note(
            f"Rejected because of --on-ask reject: {asked}, shown above. That is why the exit code is {code:d}."
        )
    if end is None:
        output.note(f"Detached; the run goes on. Come back: hubctl attach {id}  End it: hubctl cancel {id}")
    return code


def _left_behind(error: UnavailableError, session_id: str) -> UnavailableError:
    """Return what is told when the hub is lost: the run is not."""
    hint = f"The run in {session_id} goes on when the hub is back. Then: hubctl attach {session_id}"
    return UnavailableError(error.message, code=error.code, hint=hint)


async def _submit(link: Link, order: Order) -> tuple[Any, int, set[str]]:
    """Store the prompt; return what the hub said, the cursor from before, and runs that are not ours."""
    where: dict[str, Any] = {"workspace": order.workspace}
    foreign: set[str] = set()
    if order.session:
        found = await link.call("session.get", session_id=await session_id(link, order.session))
        where = {"session_id": found.id}
        cursor = found.last_seq
        foreign = {found.active_run_id} if found.active_run_id else set()
    else:
        async with (await link.client()).subscribe() as stream:
            cursor = stream.ack.last_seq
    params = {"text": order.text, "mode": "follow_up", "address": ADDRESS, "run": order.options, **where}
    return await link.call("prompt.submit", **params), cursor, foreign


def end_of(run: RunView, seq: int) -> Event:
    """Return the event that ended a run, made anew from what the hub tells of it."""
    data = RunEnded(
        stop_reason=run.stop_reason or run.state,
        error=run.error,
        text="",
        usage=run.usage,
        cost=run.cost,
        files_changed=run.files_changed,
        turns=run.turns,
        tool_calls=run.tool_calls,
        checkpoint_id=run.checkpoint_id,
        no_checkpoint=run.no_checkpoint,
    )
    raw = msgspec.Raw(msgspec.json.encode(data))
    return Event(seq, 0, run.session_id, run.id, f"run.{run.state}", run.ended_at or "", raw)


def exit_code(end: str | None, *, unanswered: bool) -> ExitCode:
    """Return the exit code for the type of the event that ended it; None: the person left before."""
    if end in (None, "run.cancelled", "prompt.removed"):
        return ExitCode.CANCELLED
    if unanswered:
        return ExitCode.APPROVAL
    return ExitCode.OK if end == "run.completed" else ExitCode.FAILED
