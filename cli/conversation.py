"""Following a session live: events to the screen, questions to the person, and the person's input to the hub.

Invariant: this program answers an approval only with a key that was pressed at it, with the caller's own
`--on-ask reject`, or not at all: leaving, losing the connection or the end of input answers nothing. It follows by
cursor through lost connections and restarts of the hub. It does not start a hub that somebody stopped.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Literal

from rich.text import Text

from cli import prompting, render
from cli.asks import SINGLE_KEYS, Ask, card, chosen, how_to_answer, is_answer
from cli.context import Link
from cli.inbox import ADDRESS, mark_run_seen
from cli.keys import Entered, Key, Pressed, Typing
from cli.prompting import End, Input, Inputs, Interrupt, Leave, Line, Quiet
from cli.screens import Screen
from hub.client import HubClient, follow
from hub.errors import ConflictError, TurnbackError, UnavailableError
from hub.protocol.cursor import Item
from hub.protocol.events import RUN_ENDS, Event, Live
from hub.protocol.subscribing import Gap
from hub.protocol.views import ApprovalView, QuestionView

OnAsk = Literal["prompt", "wait", "reject", "watch"]
Mode = Literal["watching", "approval", "reason", "question", "leaving"]

PATIENCE_S = 20.0
"""Seconds that an answer waits for a hub that is being restarted."""
HUB_PATIENCE_S = 60.0
"""Seconds after which following ends when there is no hub."""
NOBODY = "Nobody is there to answer (hubctl run --on-ask reject)."
END_OF_INPUT = "\x04"
"""Ctrl-D."""
ASK_EVENTS = {"approval.opened", "question.opened", "approval.decided", "question.closed"}


class Conversation:
    """One session, followed on one screen. `steers`: typed lines go to the agent."""

    def __init__(
        self, link: Link, screen: Screen, inputs: Inputs, session_id: str, *, on_ask: OnAsk, steers: bool
    ) -> None:
        self._link = link
        self._screen = screen
        self._inputs = inputs
        self._on_ask = on_ask
        self._steers = steers
        self._asks: dict[str, Ask] = {}
        self._mode: Mode = "watching"
        self._typing = Typing()
        self._steered = False
        self._input_over = False
        self._hub_gone = False
        self._session_id = session_id
        self.run_id: str | None = None
        self.unanswered = False
        self.refused = 0
        self.wanted: Callable[[Event | Live | Ask], bool] = lambda item: True

    async def follow(
        self,
        after_seq: int,
        *,
        ends_with: Callable[[Event], bool],
        after_gap: Callable[[Gap], Awaitable[Event | None]],
    ) -> Event | None:
        """Follow until an event ends it; return that event, None when the person left.

        `after_gap` looks at the hub's present state and returns the end if it was among the lost events.
        """
        self._link.await_hub(PATIENCE_S)
        stream = follow(
            self._connect, session_id=self._session_id, after_seq=after_seq, live=True, patience_s=HUB_PATIENCE_S
        )
        async with aclosing(stream), aclosing(merged(stream, self._inputs)) as everything:
            async for item in everything:
                if isinstance(item, Event) and self.wanted(item):
                    await self._event(item)
                    if ends_with(item):
                        return item
                elif isinstance(item, Live) and self.wanted(item):
                    self._screen.live(item)
                elif isinstance(item, Gap):
                    self._screen.gap(item)
                    found = await after_gap(item)
                    if found is not None:
                        self._screen.event(found)
                        return found
                    await self.welcome_asks()
                elif isinstance(item, Key | Quiet | Line | End | Interrupt | Leave) and await self._input(item):
                    return None
                if await self._done_with_input():
                    return None
        raise AssertionError("a stream of events has no end of its own")

    async def _event(self, event: Event) -> None:
        self._screen.event(event)
        if event.type == "run.started":
            self.run_id = event.run_id
        if event.type in RUN_ENDS and event.run_id is not None:
            self.run_id = None if event.run_id == self.run_id else self.run_id
            if self._on_ask != "watch":
                await self._shown_to_its_end(event.run_id)
        if event.type in ASK_EVENTS:
            await self._ask_event(event)

    async def _shown_to_its_end(self, run_id: str) -> None:
        try:
            await mark_run_seen(self._link, run_id)
        except UnavailableError:
            self._screen.lines([Text("  the hub is gone; the inbox will show this result again", style="dim")])

    async def _connect(self) -> HubClient:
        try:
            client = await self._link.reconnect()
        except UnavailableError as error:
            if not self._hub_gone:
                self._screen.lines([Text(f"  {error.message} Waiting for it to come back.", style="yellow")])
            self._hub_gone = True
            raise
        self._hub_gone = False
        return client

    async def _ask_event(self, event: Event) -> None:
        data = render.data_of(event)
        ask_id = getattr(data, "approval_id", "") or getattr(data, "question_id", "")
        if event.type.endswith(".opened"):
            if self._on_ask != "watch":
                await self._asked(ask_id)
            return
        self.unanswered = self.unanswered or data.state == "expired"
        if self._asks.pop(ask_id, None) is not None and self._mode in ("approval", "reason", "question"):
            self._watch()
            await self._put_next()

    async def welcome_asks(self) -> None:
        """Take up the questions that are open already."""
        if self._on_ask != "watch":
            for ask_id in await self._open_asks():
                await self._asked(ask_id)

    async def _open_asks(self) -> dict[str, Ask]:
        approvals = await self._link.call("approval.list", session_id=self._session_id)
        questions = await self._link.call("question.list", session_id=self._session_id)
        return {ask.id: ask for ask in (*approvals, *questions)}

    async def _asked(self, ask_id: str) -> None:
        if ask_id in self._asks:
            return
        found = (await self._open_asks()).get(ask_id)
        if found is None or not self.wanted(found):  # settled before we looked, or somebody else's
            return
        self.run_id = self.run_id or found.run_id
        if self._on_ask == "reject":
            await self._refuse(found)
            return
        self._asks[ask_id] = found
        if self._on_ask == "wait":
            self._screen.lines([*card(found), *how_to_answer(found)])
        elif self._mode == "watching":
            await self._put_next()

    async def _refuse(self, ask: Ask) -> None:
        self.unanswered = True
        self.refused += 1
        self._screen.lines(card(ask))
        if isinstance(ask, ApprovalView):
            await self._settle("approval.answer", approval_id=ask.id, decision="reject", message=NOBODY)
        else:
            await self._settle("question.answer", question_id=ask.id, answer=NOBODY)

    async def _put_next(self) -> None:
        """Put the oldest open question to the person."""
        ask = next(iter(self._asks.values()), None)
        if ask is None or self._on_ask != "prompt":
            return
        if isinstance(ask, ApprovalView):
            self._mode, shown = "approval", card(ask, prompting.APPROVAL_KEYS)
        else:
            words = Text("  type your answer, or the number of one", style="bold")
            self._mode, shown = "question", [*card(ask), words]
        await self._inputs.want_typing()
        self._screen.lines(shown)
        self._typing.asked(time.monotonic())
        self._screen.draft(self._typing.text)

    def _watch(self) -> None:
        """Watch on. A line that is half typed goes on to be ours: the terminal cannot be given it back."""
        self._mode = "watching"
        self._typing.release()
        if self._typing.empty:
            self._inputs.want_lines()

    def _watch_lines(self) -> None:
        self._inputs.want_lines()
        self._inputs.listen()

    async def _input(self, item: Input) -> bool:
        """Take the person's input; return whether they leave."""
        match item:
            case Leave():
                return True
            case Interrupt():
                return await self._interrupted()
            case End():
                return self._no_more_input()
            case Key():
                return await self._key(item)
            case Quiet():
                await self._typed(self._typing.quiet(item.key))
            case Line():
                self._typing.typed_at(item.at)
                await self._line(item.text)
        return False

    def _no_more_input(self) -> bool:
        """Take note of the end of input; return whether it means that the person leaves: at a terminal it does."""
        self._input_over = True
        if prompting.terminal() is not None:
            return True
        if self._on_ask == "prompt":
            self._on_ask = "wait"
            self._screen.lines([line for ask in self._asks.values() for line in how_to_answer(ask)])
        return False

    async def _interrupted(self) -> bool:
        if self._mode == "leaving" or self.run_id is None or self._on_ask != "prompt":
            return True
        self._mode = "leaving"
        self._typing.clear()
        await self._inputs.want_keys()
        self._screen.lines([Text(prompting.LEAVE_KEYS, style="bold")])
        return False

    async def _key(self, key: Key) -> bool:
        if key.char == END_OF_INPUT:
            return True
        if self._mode == "leaving":
            return not key.burst and await self._leave_key(prompting.LEAVE_ACTIONS.get(key.char))
        done = self._typing.key(key, SINGLE_KEYS if self._mode == "approval" else ())
        if isinstance(done, Entered):
            self._screen.draft(done.text, done=True)
        else:
            self._screen.draft(self._typing.text)
        await self._typed(done)
        return False

    async def _typed(self, done: Pressed | Entered | None) -> None:
        ask = next(iter(self._asks.values()), None)
        if isinstance(done, Pressed) and self._mode == "approval" and isinstance(ask, ApprovalView):
            await self._approval_key(ask, done.char)
        elif isinstance(done, Entered):
            await self._entered(ask, done)

    async def _entered(self, ask: Ask | None, done: Entered) -> None:
        if self._mode == "question" and isinstance(ask, QuestionView) and not done.earlier and done.text.strip():
            await self._reply(ask, done.text.strip())
        else:
            await self._steer(done.text)
        if self._mode == "watching":
            self._watch()

    async def _leave_key(self, action: prompting.Action | None) -> bool:
        if action is None:
            return False
        if action == "cancel" and self.run_id is not None:
            await self._settle("run.cancel", run_id=self.run_id)
        self._watch()
        await self._put_next()
        return action == "detach"

    async def _approval_key(self, ask: ApprovalView, char: str) -> None:
        decision = prompting.DECISIONS.get(char)
        if decision is not None:
            await self._answer(ask, decision)
            return
        match prompting.APPROVAL_ACTIONS.get(char):
            case "reject":
                self._mode = "reason"
                self._watch_lines()
                self._screen.lines([Text("  why? the model reads it (Enter: no reason)", style="bold")])
            case "details":
                self._screen.lines([*render.approval_whole(ask), Text(prompting.APPROVAL_KEYS, style="bold")])
            case _:
                self._screen.lines([Text(words) for words in prompting.APPROVAL_HELP])

    async def _answer(self, ask: ApprovalView, decision: str, message: str = "") -> None:
        self._asks.pop(ask.id, None)
        self._watch()
        await self._settle("approval.answer", approval_id=ask.id, decision=decision, message=message)
        await self._put_next()

    async def _settle(self, method: str, **params: Any) -> None:
        """Decide or say something; a refusal is told. Raises it when there is nobody to tell, UnavailableError always.

        Where somebody else was first, their decision is on its way to the screen.
        """
        try:
            await self._link.call(method, **params)
        except UnavailableError:
            raise
        except TurnbackError as error:
            if self._on_ask != "prompt" and not isinstance(error, ConflictError):
                raise
            self._screen.lines([Text(f"  {error.message}", style="yellow")])

    async def _line(self, line: str) -> None:
        text = line.strip()
        ask = next(iter(self._asks.values()), None)
        if self._mode == "reason" and isinstance(ask, ApprovalView):
            await self._answer(ask, "reject", text)
        elif prompting.terminal() is not None:  # typed before a question stood there
            await self._steer(line)
        elif self._mode == "approval" and isinstance(ask, ApprovalView) and is_answer(text):
            await self._piped_answer(ask, text)
        elif isinstance(ask, QuestionView) and self._mode == "question" and text:
            await self._reply(ask, text)
        else:
            await self._steer(line)

    async def _reply(self, ask: QuestionView, text: str) -> None:
        self._asks.pop(ask.id, None)
        self._watch()
        await self._settle("question.answer", question_id=ask.id, answer=chosen(ask, text))
        await self._put_next()

    async def _steer(self, line: str) -> None:
        if not line.strip():
            return
        if not self._steers:
            self._screen.lines([Text(f"  not sent; to steer: hubctl send {self._session_id} TEXT", style="yellow")])
            return
        self._steered = True
        await self._settle("prompt.submit", session_id=self._session_id, text=line, mode="steer", address=ADDRESS)

    async def _piped_answer(self, ask: ApprovalView, text: str) -> None:
        """Take a whole line as the key that it begins with: a pipe has no keys."""
        key, _, reason = text.partition(" ")
        if key == "r":
            await self._answer(ask, "reject", reason.strip())
        else:
            await self._approval_key(ask, key)

    async def _done_with_input(self) -> bool:
        """Return whether a pipe that steered has ended and its work is done."""
        if not (self._input_over and self._steered):
            return False
        session = await self._link.call("session.get", session_id=self._session_id)
        return session.state in ("idle", "archived") and session.pending_prompts == 0


async def merged(stream: AsyncGenerator[Item], inputs: Inputs) -> AsyncGenerator[Item | Input]:
    """Yield what comes from the hub and from the person, as it comes."""
    waiting: dict[asyncio.Future[Any], Callable[[], Awaitable[Any]]] = {}

    def arm(source: Callable[[], Awaitable[Any]]) -> None:
        waiting[asyncio.ensure_future(source())] = source

    arm(stream.__anext__)
    arm(inputs.next)
    try:
        while True:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for future in done:
                source = waiting.pop(future)
                item = future.result()
                arm(source)
                yield item
    finally:
        for future in waiting:
            future.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
