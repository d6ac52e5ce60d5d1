"""`hubctl demo`: an agent's run on a real repository, turned back, undone, and turned back again; each step proved.

Invariant: it touches a temporary folder of its own and nothing else: own home, own hub, own repository. Nothing is
taken on trust: after each step files, modes, index and conversation are compared with what was seen before. With the
scripted model the demo answers the approval itself, and says so; with a real model a person answers, or nobody.
"""

import shutil
import signal
import tempfile
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from cli import demo_repository, output, prompting, render, restore_plan, starting
from cli.context import Link, home_of, with_link
from cli.conversation import Conversation, OnAsk
from cli.demo_proof import Proof, Snapshot, compare, look
from cli.invocation import invocation
from cli.prompting import Inputs
from cli.restore_plan import Direction, Telling
from cli.run import Pursuit, chosen_model
from cli.screens import TextScreen
from cli.sessions import all_messages
from cli.stopping import end_hub
from cli.text import clean_path, model_label, plural
from hub import settings
from hub.client import follow
from hub.errors import ExitCode, TurnbackError
from hub.protocol.events import Event, Live
from hub.protocol.subscribing import Gap

STOP_S = 2.0
RULE_COLUMNS = 74
STEPS = ("turned back", "undone", "turned back again")


class Outcome(msgspec.Struct, frozen=True):
    """What the demo came to. `folder` is None when it was removed."""

    ok: bool
    model: str
    folder: str | None
    proofs: list[Proof]


def demo(
    context: typer.Context,
    model: Annotated[str | None, typer.Option("--model", help="A real model [a scripted one, no AI].")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the folder and its repository there.")] = False,
) -> None:
    """Show on a repository of its own that a run can be turned back."""
    folder = Path(tempfile.mkdtemp(prefix="turnback-demo-")).resolve()
    teller = Teller(silent=invocation(context).json)
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _as_ctrl_c)
    try:
        proofs = with_link(context, lambda _: _tell(teller, folder, chosen_model(model) if model else None, context))
    finally:
        if not keep:
            shutil.rmtree(folder)
    ok = all(proof.ok for proof in proofs)
    outcome = Outcome(ok, model or "scripted", str(folder) if keep else None, proofs)
    output.show(context, outcome, verdict)
    raise typer.Exit(ExitCode.OK if ok else ExitCode.FAILED)


def _as_ctrl_c(number: int, frame: object) -> None:
    """Leave by the way that stops the hub and removes the folder."""
    signal.raise_signal(signal.SIGINT)


class Teller:
    """Tells the story, or says nothing when only its outcome is wanted. It is also the screen of the runs."""

    def __init__(self, *, silent: bool) -> None:
        self._silent = silent
        self._chapter = 0
        self._screen = TextScreen(prompts=False)

    @property
    def may_ask(self) -> bool:
        """Whether a person can be asked here."""
        return prompting.interactive() and not self._silent

    def chapter(self, title: str) -> None:
        """Begin a chapter."""
        self._chapter += 1
        line = "─" * (RULE_COLUMNS - len(title))
        self.draw(Text.assemble("\n", (f"{self._chapter}  {title} ", "bold"), (line, "dim")))

    def draw(self, value: RenderableType) -> None:
        """Show a thing."""
        if not self._silent:
            output.draw(value)

    def say(self, text: str, style: str = "dim") -> None:
        """Say something."""
        self.draw(Text(text, style=style))

    def event(self, event: Event) -> None:
        if not self._silent:
            self._screen.event(event)

    def live(self, notice: Live) -> None:
        if not self._silent:
            self._screen.live(notice)

    def gap(self, gap: Gap) -> None:
        self.say(f"events are missing: {gap.reason}", "yellow")

    def lines(self, lines: Sequence[Text]) -> None:
        if not self._silent:
            self._screen.lines(lines)

    def draft(self, text: str, *, done: bool = False) -> None:
        if not self._silent:
            self._screen.draft(text, done=done)


async def _tell(teller: Teller, folder: Path, model: str | None, context: typer.Context) -> list[Proof]:
    home, repository = folder / "home", folder / "shop"
    if model is not None:
        configured = settings.read_config(home_of(context) / settings.CONFIG_NAME).model
        demo_repository.write_model_settings(home, msgspec.to_builtins(configured))
    environ = {name: value for name, value in settings.environment().items() if name != settings.PORT_VARIABLE}
    async with Link(home, start=False) as link:
        try:
            await (await starting.start_hub(home, environ)).close()
            return await Story(teller, link, folder, repository, model).tell()
        finally:
            await end_hub(link, STOP_S)


def _who(model: str | None) -> str:
    if model:
        return f"The agent is {model_label(model)}; what it does is not known beforehand."
    return "The agent is a scripted model (no AI). All else is real: the hub, the repository, the commands, the proofs."


class Story:
    """The chapters, in order."""

    def __init__(self, teller: Teller, link: Link, folder: Path, repository: Path, model: str | None) -> None:
        self._teller = teller
        self._link = link
        self._folder = folder
        self._repository = repository
        self._model = model
        self._session_id = ""
        self._proofs: list[Proof] = []

    async def tell(self) -> list[Proof]:
        """Tell all; return what was proved. Raises TurnbackError when a step could not be taken."""
        self._make_repository()
        await self._converse()
        before = await self._look()
        self._teller.chapter("An agent is let loose on it")
        checkpoint = await self._run(demo_repository.PROMPT, "change.yaml", demo_repository.second_turns())
        after = await self._look()
        self._show_damage(before, after)
        await self._turn_back(STEPS[0], checkpoint, before)
        await self._undo(after)
        await self._turn_back(STEPS[2], checkpoint, before)
        return self._proofs

    def _make_repository(self) -> None:
        demo_repository.make(self._repository)
        self._teller.say(_who(self._model), "bold")
        self._teller.chapter("A small repository with work in progress")
        self._show_status()
        self._teller.say("staged, unstaged and untracked work, an executable script, an ignored build product")

    def _show_status(self) -> None:
        status = demo_repository.git(self._repository, "status", "--short", "--branch").decode("utf-8", "replace")
        passing = demo_repository.tests_pass(self._repository)
        words = ("tests pass", "green") if passing else ("tests fail", "bold red")
        self._teller.draw(Text.assemble(clean_path(status).replace("\\n", "\n"), words))

    async def _converse(self) -> None:
        self._teller.chapter("A conversation about it")
        await self._run(demo_repository.QUESTION, "question.yaml", demo_repository.first_turns())

    async def _run(self, prompt: str, scenario: str, turns: list[dict[str, Any]]) -> str:
        """Carry a prompt to its end; return the checkpoint that was taken before it."""
        model = self._model or demo_repository.write_scenario(self._folder / scenario, turns)
        where = {"session_id": self._session_id} if self._session_id else {"workspace": str(self._repository)}
        async with (await self._link.client()).subscribe() as stream:
            cursor = stream.ack.last_seq
        run = {"model": model, "auto_approve": ["edits"]}
        accepted = await self._link.call("prompt.submit", text=prompt, mode="follow_up", run=run, **where)
        self._session_id = accepted.session_id
        self._teller.draw(Text(f"› {prompt}", style="bold"))
        pursuit = Pursuit(accepted.prompt_id)
        end = await (self._for_real(pursuit, cursor) if self._model else self._scripted(pursuit, cursor))
        checkpoint = render.data_of(end).checkpoint_id if end else None
        if end is None or checkpoint is None:
            raise TurnbackError("The run has no checkpoint to go back to.", code="demo_failed")
        return str(checkpoint)

    async def _scripted(self, pursuit: Pursuit, cursor: int) -> Event | None:
        stream = follow(self._link.reconnect, session_id=self._session_id, after_seq=cursor)
        async with aclosing(stream):
            async for item in stream:
                if not isinstance(item, Event) or not pursuit.wanted(item):
                    continue
                self._teller.event(item)
                if item.type == "approval.opened":
                    await self._allow(render.data_of(item).approval_id)
                if pursuit.ended_by(item):
                    return item
        return None

    async def _allow(self, approval_id: str) -> None:
        opened = await self._link.call("approval.list", session_id=self._session_id)
        card = render.approval_card(next(view for view in opened if view.id == approval_id), "")
        answer = Text("  the demo answers in your place: allow once", style="bold yellow")
        self._teller.lines([*card, answer])
        await self._link.call("approval.answer", approval_id=approval_id, decision="allow_once")

    async def _for_real(self, pursuit: Pursuit, cursor: int) -> Event | None:
        async def after_gap(_: Any) -> None:
            return None

        with Inputs() as inputs:
            on_ask: OnAsk = "prompt" if self._teller.may_ask else "reject"
            talk = Conversation(self._link, self._teller, inputs, self._session_id, on_ask=on_ask, steers=False)
            talk.wanted = pursuit.wanted
            return await talk.follow(cursor, ends_with=pursuit.ended_by, after_gap=after_gap)

    def _show_damage(self, before: Snapshot, after: Snapshot) -> None:
        self._teller.chapter("What it left behind")
        self._show_status()
        changed = [name for name in before.contents if after.contents.get(name) != before.contents[name]]
        self._teller.say(
            f"{plural(len(changed), 'file')} changed or gone, {after.messages - before.messages} messages more"
        )

    async def _turn_back(self, step: str, checkpoint: str, before: Snapshot) -> None:
        self._teller.chapter(step.capitalize())
        view = await self._link.call("checkpoint.restore", checkpoint_id=checkpoint, session_id=self._session_id)
        await self._prove(step, view, "restore", before)

    async def _undo(self, after: Snapshot) -> None:
        self._teller.chapter(STEPS[1].capitalize())
        view = await self._link.call("checkpoint.undo", session_id=self._session_id)
        await self._prove(STEPS[1], view, "undo", after)

    async def _prove(self, step: str, view: Any, direction: Direction, then: Snapshot) -> None:
        self._teller.draw(restore_plan.drawn(view, Telling(direction, self._session_id)))
        self._show_status()
        self._proofs += compare(step, await self._look(), then)

    async def _look(self) -> Snapshot:
        messages = await all_messages(self._link, self._session_id)
        return look(self._repository, messages, tests_pass=demo_repository.tests_pass(self._repository))


def verdict(outcome: Outcome) -> RenderableType:
    """Draw what was proved: a row per facet, a column per step."""
    made = Table.grid(padding=(0, 2))
    made.add_row(Text("proved", style="bold"), *(Text(step, style="bold") for step in STEPS))
    rows = len(outcome.proofs) // len(STEPS)
    for place, first in enumerate(outcome.proofs[:rows]):
        made.add_row(first.what, *(_mark(outcome.proofs[place + rows * step]) for step in range(len(STEPS))))
    held = sum(proof.ok for proof in outcome.proofs)
    words = f"{held} of {len(outcome.proofs)} proofs held. " + (f"Kept: {outcome.folder}" if outcome.folder else "")
    made.add_row(Text(words, style="bold green" if outcome.ok else "bold red"))
    return made


def _mark(proof: Proof) -> Text:
    return Text(f"✓ {proof.detail}", style="green") if proof.ok else Text(f"✗ {proof.detail}", style="bold red")
