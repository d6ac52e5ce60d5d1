"""The steps of a run: commits each one before the next begins, and shows answers while they stream."""

import asyncio
from collections.abc import Sequence

from hub.agent import retry
from hub.agent.model import Model, ModelPart, ModelRequest, Notice, TextDelta
from hub.agent.retry import Answer
from hub.agent.tools.base import ToolContext, ToolOutput
from hub.daemon.captures import Captures
from hub.daemon.children import RUN_VARIABLE
from hub.daemon.outputs import keep_whole
from hub.daemon.running import Conclusion, Running, RunOver
from hub.domain.messages import Message, Part, TextPart, ToolCallPart
from hub.domain.runs import limit_reached
from hub.ids import new_id
from hub.protocol.events import CallProgress, MessageDelta, MessageDiscarded, ModelNotice
from hub.store import calls, messages, notices, prompts, runs
from hub.store.calls import Result
from hub.store.database import Connection, Transaction

LIMIT_TEXTS = {
    "limit_turns": "The run reached its limit of turns.",
    "limit_tool_calls": "The run reached its limit of tool calls.",
    "limit_time": "The run reached its limit of time.",
    "limit_cost": "The run reached its limit of cost.",
}


class RunSteps:
    """Implements the loop's Steps for one run."""

    def __init__(self, running: Running, captures: Captures) -> None:
        self._run = running
        self._captures = captures
        self._services = running.services

    async def before_model(self) -> Sequence[Message]:
        """Take what the model is to be told: notices, then steers, in order. Raises RunOver when a limit is reached.

        What the last calls have written is saved beside the request.
        """
        reached = limit_reached(self._run.spec.limits, self._run.spent)
        if reached is not None:
            raise RunOver(reached, LIMIT_TEXTS[reached])
        self._captures.step()
        if not self._run.steered:
            return ()
        self._run.steered = False
        if not await self._services.database.read(lambda conn: words_wait(conn, self._run.session_id)):
            return ()
        taken = await self._services.database.write(self._take_words)
        return [self._at_head(message) for message in taken]

    def _at_head(self, message: Message) -> Message:
        self._run.head_id = message.id
        return message

    def _take_words(self, tx: Transaction) -> list[Message]:
        runs.fence(tx, self._run.hold)
        taken = notices.take(tx, self._run.session_id, self._run.run_id)
        for row in prompts.steers(tx.conn, self._run.session_id):
            prompts.take(tx, row.id, self._run.session_id, self._run.run_id, as_steer=True)
            taken.append(messages.append(tx, self._run.session_id, self._run.run_id, "user", [TextPart(row.text)]))
        return taken

    async def ask(self, model: Model, request: ModelRequest) -> Answer:
        """Get one answer; what streams is shown at once, and kept in case the run is cancelled."""
        self._run.partial = ""
        return await retry.ask(model, request, self._show, on_discard=self._discard)

    def _show(self, part: ModelPart) -> None:
        if isinstance(part, TextDelta):
            self._run.partial += part.text
            message_id = self._run.next_message_id
            offset = self._services.bus.stream(self._run.session_id, self._run.run_id, message_id, part.text)
            delta = MessageDelta(message_id=message_id, offset=offset, text=part.text)
            self._services.bus.live("message.delta", delta, self._run.session_id, self._run.run_id)
        elif isinstance(part, Notice):
            notice = ModelNotice(text=part.text)
            self._services.bus.live("model.notice", notice, self._run.session_id, self._run.run_id)

    async def _discard(self, reason: str) -> None:
        """What was shown does not count: say so before the answer is asked for again."""
        if not self._run.partial:
            return
        gone = MessageDiscarded(message_id=self._run.next_message_id, reason=reason)
        self._run.partial = ""
        self._run.next_message_id = new_id("message")
        hold = self._run.hold
        await self._services.database.write(
            lambda tx: tx.emit("message.discarded", gone, session_id=hold.session_id, run_id=hold.run_id)
        )

    async def answered(self, answer: Answer) -> Message:
        """Store an answer with its calls, and what it cost."""
        return self._at_head(await self._services.database.write(self._counted(answer)))

    async def concluded(self, answer: Answer) -> None:
        """Keep the last answer: stored at once if a capture follows, else with the run's end, in one commit."""
        if self._run.may_have_written or self._captures.pending:
            await self.answered(answer)
        else:
            self._run.conclusion = self._counted(answer)

    def _counted(self, answer: Answer) -> Conclusion:
        """Count an answer, and return what stores it; from now on it is more than what had streamed."""
        run, usage = self._run, answer.usage
        run.add_usage(usage.input_tokens, usage.output_tokens, usage.cached_tokens)
        run.add_cost(usage.cost)
        run.turns += 1
        run.tool_calls += len(answer.calls)
        parts, message_id = _parts(answer), run.next_message_id
        run.partial, run.next_message_id = "", new_id("message")
        return lambda tx: self._store_answer(tx, parts, message_id)

    def _store_answer(self, tx: Transaction, parts: list[Part], message_id: str) -> Message:
        run = self._run
        runs.fence(tx, run.hold)
        message = messages.append(tx, run.session_id, run.run_id, "assistant", parts, id=message_id)
        runs.count_answer(
            tx,
            run.hold,
            usage=run.usage,
            cost=run.cost,
            calls=len(message.calls),
            active_s=run.time.seconds,
            next_message_id=run.next_message_id,
        )
        return message

    async def settled(self, call: ToolCallPart, state: str, output: ToolOutput) -> Message:
        """Store what a call came to."""
        text = await asyncio.to_thread(keep_whole, self._run, call.id, output)
        result = Result(state=state, text=text, display=output.display, paths=output.paths)
        hold = self._run.hold
        return self._at_head(await self._services.database.write(lambda tx: calls.settle(tx, hold, call.id, result)))

    def context(self, call: ToolCallPart) -> ToolContext:
        """Return what a call may use."""
        run = self._run

        def progress(text: str) -> None:
            shown = CallProgress(call_id=call.id, text=text)
            self._services.bus.live("tool_call.progress", shown, run.session_id, run.run_id)

        return ToolContext(
            root=run.root,
            env={**self._services.tool_environment, RUN_VARIABLE: run.run_id},
            call_id=call.id,
            remaining_s=run.time.remaining_s,
            watch=self._services.children.watch(run.run_id, call.id),
            before_write=self._captures.before_write,
            progress=progress,
        )


def words_wait(conn: Connection, session_id: str) -> bool:
    """Return whether steers or notices wait for a session's next model request."""
    return bool(prompts.steers(conn, session_id)) or notices.are_waiting(conn, session_id)


def _parts(answer: Answer) -> list[Part]:
    """Return the parts of an answer: its words, then its calls, each with an id of the hub's own."""
    words: list[Part] = [TextPart(answer.text)] if answer.text else []
    cut = answer.finish == "length"
    return words + [_call(name, raw, cut=cut) for name, raw in answer.calls]


def _call(name: str, raw: str, *, cut: bool) -> ToolCallPart:
    parsed = retry.parse_arguments(raw, cut=cut)
    call_id = new_id("tool_call")
    if isinstance(parsed, str):
        return ToolCallPart(call_id, name, {}, problem=parsed, raw=raw)
    return ToolCallPart(call_id, name, parsed)
