"""The gate of a run: rules on every call, puts its questions, waits for answers, and lets a call execute once.

Nothing executes without a stored allow of exactly its arguments: `begin` looks again, in the transaction that marks the
call as executing. What a person approved must still be so: files, directory and commit are compared before it runs.
"""

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from hub.agent.loop import Go, Settled
from hub.agent.tools.base import Subject, Tool, ToolFailure
from hub.daemon.captures import Captures
from hub.daemon.fingerprints import fingerprint
from hub.daemon.outputs import outputs_of
from hub.daemon.running import Running
from hub.domain.commands import analyse
from hub.domain.messages import Message, ToolCallPart
from hub.domain.policy import Facts, Rules, Ruling, arguments_hash, rule, targets, targets_of
from hub.ids import new_id
from hub.store import approvals, calls, prompts, questions, runs
from hub.store.approvals import NewApproval
from hub.store.calls import Proposal
from hub.store.database import Connection, Transaction

INVALID = "invalid"
"""Source of the ruling on a call that cannot be carried out at all."""


PLACE_RULES = ("base", "auto-approve:edits")
"""Sources that allow a call because of where its files lie."""


class _Judged(msgspec.Struct, frozen=True):
    """A call with its ruling and what its question would hold."""

    proposal: Proposal
    targets: tuple[str, ...] = ()
    fingerprint: dict[str, str] = {}
    preview: str | None = None


class _Seen(msgspec.Struct, frozen=True):
    """One look at what decides a call."""

    call: Any
    approval: Any
    question: Any
    steers: list[Any]


class RunGate:
    """Implements the loop's Gate for one run."""

    def __init__(self, running: Running, captures: Captures) -> None:
        self._run = running
        self._captures = captures
        self._services = running.services

    async def prepare(self, message: Message) -> None:
        """Rule on every call of an answer and store rulings and questions, all in one transaction."""
        known = await self._services.database.read(lambda conn: calls.known(conn, message.id))
        fresh = [(place, call) for place, call in enumerate(message.calls) if call.id not in known]
        if not fresh:
            return
        granted = await self._granted()
        judged = [await self._judge(message, place, call, granted) for place, call in fresh]
        batch_id = new_id("batch")
        await self._services.database.write(lambda tx: self._store(tx, batch_id, judged))

    async def _granted(self) -> frozenset[tuple[str, str]]:
        hold, workspace, now = self._run.hold, str(self._run.root), self._services.clock.now()
        return await self._services.database.read(
            lambda conn: approvals.granted(conn, session_id=hold.session_id, workspace=workspace, now=now)
        )

    async def _judge(
        self, message: Message, place: int, call: ToolCallPart, granted: frozenset[tuple[str, str]]
    ) -> _Judged:
        tool = self._run.tools.get(call.name)
        problem = call.problem
        if problem is None and tool is None:
            spec = self._run.spec
            problem = f"There is no tool {call.name!r} in {spec.agent_mode} mode with the preset {spec.preset}."
        if problem is None and tool is not None:
            try:
                return await self._rule(message, place, call, tool, granted)
            except ToolFailure as failure:
                problem = str(failure)
        ruling = Ruling("deny", INVALID, problem or "invalid call")
        return _Judged(_proposal(message, place, call, call.arguments, "read", call.name, ruling))

    async def _rule(
        self, message: Message, place: int, call: ToolCallPart, tool: Tool, granted: frozenset[tuple[str, str]]
    ) -> _Judged:
        spec = self._run.spec
        arguments = tool.normalise(call.arguments)
        subject = await asyncio.to_thread(tool.subject, arguments, self._run.root)
        facts = Facts(
            tool=call.name,
            effect=tool.effect,
            inside=all(self._is_inside(Path(path), tool) for path in subject.paths),
            paths=subject.paths,
            commands=tuple(analyse(command) for command in subject.commands),
        )
        rules = Rules(
            agent_mode=spec.agent_mode,
            preset=spec.preset,
            auto_approve=frozenset(spec.auto_approve),
            granted=granted,
        )
        ruling = rule(facts, rules)
        proposal = _proposal(message, place, call, arguments, tool.effect, subject.summary, ruling)
        if ruling.verdict != "ask":
            return _Judged(proposal)
        mark = await fingerprint(self._run.root, subject.paths, commands=bool(subject.commands))
        return _Judged(proposal, targets(facts), mark, subject.preview)

    def _is_inside(self, path: Path, tool: Tool) -> bool:
        """Return whether a file lies in the workspace; for reading, the session's own kept outputs count as well."""
        if path.is_relative_to(self._run.root):
            return True
        return tool.effect == "read" and path.is_relative_to(outputs_of(self._run))

    def _store(self, tx: Transaction, batch_id: str, judged: list[_Judged]) -> None:
        runs.fence(tx, self._run.hold)
        for one in judged:
            calls.propose(tx, self._run.hold, batch_id, one.proposal)
            if one.proposal.verdict == "ask":
                self._put_approval(tx, batch_id, one)
            elif one.proposal.effect == "ask" and one.proposal.source != INVALID:
                self._put_question(tx, one.proposal)

    def _put_approval(self, tx: Transaction, batch_id: str, one: _Judged) -> None:
        expires_s = self._services.settings.config.approvals.expires_s
        approvals.open_for(
            tx,
            NewApproval(
                call_id=one.proposal.call_id,
                batch_id=batch_id,
                targets=one.targets,
                cwd=str(self._run.root),
                reason=one.proposal.reason,
                preview=one.preview,
                fingerprint=one.fingerprint,
                expires_at=tx.now + timedelta(seconds=expires_s),
            ),
        )

    def _put_question(self, tx: Transaction, proposal: Proposal) -> None:
        expires_at = tx.now + timedelta(seconds=self._services.settings.config.approvals.expires_s)
        options = [str(option) for option in proposal.arguments.get("options") or []]
        questions.open_for(tx, proposal.call_id, str(proposal.arguments["question"]), options, expires_at)

    async def settle(self, call: ToolCallPart) -> Go | Settled:
        """Wait until the call is decided; mark it as executing when it may run."""
        while True:
            self._run.wake.clear()
            seen = await self._services.database.read(lambda conn: self._look(conn, call.id))
            decided = await self._decide(call, seen)
            if decided is not None and self._run.waiting:
                await self._come_back()  # things may have changed while it waited for its turn: look again
            elif isinstance(decided, Settled) or (decided is not None and await self._begin(call, seen)):
                return decided
            elif decided is not None:
                continue
            elif not self._run.wake.is_set():
                await self._step_aside(seen)
                await self._run.wake.wait()

    def _look(self, conn: Connection, call_id: str) -> _Seen:
        return _Seen(
            calls.row(conn, call_id),
            approvals.newest_of(conn, call_id),
            questions.of_call(conn, call_id),
            prompts.steers(conn, self._run.session_id),
        )

    async def _decide(self, call: ToolCallPart, seen: _Seen) -> Settled | Go | None:
        row = seen.call
        if row.source == INVALID:
            return Settled("failed", row.reason)
        if row.verdict == "deny":
            return Settled("denied", f"Not allowed: {row.reason} ({row.source}).")
        if seen.steers:
            return await self._yield_to_steer(call, seen)
        if row.effect == "ask":
            return _answered(seen.question)
        if row.verdict == "allow" and seen.approval is None and await self._leads_where_it_did(row):
            return Go(row.arguments)
        return await self._by_approval(call, seen)

    async def _leads_where_it_did(self, row: Any) -> bool:
        """Return whether a call that was allowed without a question still names what it named then.

        A link that appeared since may lead out of the workspace: then a person is asked after all.
        """
        if row.effect not in ("read", "workspace") or row.source not in PLACE_RULES:
            return True
        subject = await self._subject(row)
        tool = self._run.tools[row.name]
        if all(self._is_inside(Path(path), tool) for path in subject.paths):
            return True
        mark = await fingerprint(self._run.root, subject.paths, commands=False)
        new = self._new_approval(row.id, row.batch_id, subject, mark, "what it names leads out of the workspace now")
        await self._services.database.write(lambda tx: approvals.open_for(tx, new))
        self._run.wake.set()
        return False

    async def _by_approval(self, call: ToolCallPart, seen: _Seen) -> Settled | Go | None:
        approval = seen.approval
        if approval is None or approval.state == "open":
            return None
        if approval.state == "allowed":
            if await self._still_so(seen):
                return Go(seen.call.arguments)
            await self._ask_anew(seen)
            self._run.wake.set()
            return None
        return Settled("denied", refusal(approval.state, approval.decided_by, approval.message))

    async def _still_so(self, seen: _Seen) -> bool:
        subject = await self._subject(seen.call)
        now = await fingerprint(self._run.root, subject.paths, commands=bool(subject.commands))
        return bool(now == seen.approval.fingerprint)

    async def _subject(self, row: Any) -> Subject:
        return await asyncio.to_thread(self._run.tools[row.name].subject, row.arguments, self._run.root)

    async def _ask_anew(self, seen: _Seen) -> None:
        subject = await self._subject(seen.call)
        mark = await fingerprint(self._run.root, subject.paths, commands=bool(subject.commands))
        reason = "asked again: what it concerns has changed since it was allowed"
        new = self._new_approval(seen.call.id, seen.call.batch_id, subject, mark, reason)
        await self._services.database.write(lambda tx: approvals.open_for(tx, new))

    def _new_approval(
        self, call_id: str, batch_id: str, subject: Subject, mark: dict[str, str], reason: str
    ) -> NewApproval:
        expires_s = self._services.settings.config.approvals.expires_s
        commands = tuple(analyse(command) for command in subject.commands)
        return NewApproval(
            call_id=call_id,
            batch_id=batch_id,
            targets=targets_of(subject.paths, commands),
            cwd=str(self._run.root),
            reason=reason,
            preview=subject.preview,
            fingerprint=mark,
            expires_at=self._services.clock.now() + timedelta(seconds=expires_s),
        )

    async def _yield_to_steer(self, call: ToolCallPart, seen: _Seen) -> Settled:
        """A steer goes first: it rejects what waits (if its author may), answers a question, and skips the rest."""
        words = seen.steers[0]

        def close(tx: Transaction) -> None:
            approvals.close_open(
                tx, call.id, "rejected" if words.author_may_approve else "cancelled", words.author, None
            )
            state = "answered" if seen.question is not None else "cancelled"
            questions.close_open(tx, call.id, state, words.text, words.author)

        await self._services.database.write(close)
        return Settled("skipped", "Skipped: new input arrived before this call began. Read it first.")

    async def _begin(self, call: ToolCallPart, seen: _Seen) -> bool:
        """Mark the call as executing. Returns False when it waited, or a steer came: then all is looked at anew."""
        if seen.call.effect in ("workspace", "external"):
            waited = self._captures.pending
            await self._captures.ready()
            if waited:
                return False
            self._run.may_write()
        digest = arguments_hash(call.name, seen.call.arguments)
        return await self._services.database.write(lambda tx: self._begin_unless_steered(tx, call.id, digest))

    def _begin_unless_steered(self, tx: Transaction, call_id: str, digest: str) -> bool:
        if prompts.steers(tx.conn, self._run.session_id):
            return False
        calls.begin(tx, self._run.hold, call_id, digest)
        return True

    async def _step_aside(self, seen: _Seen) -> None:
        """Wait without holding anything: no slot, no writer lock, and the run's time stands still.

        What the run has written is saved before: from here on, others write.
        """
        if self._run.waiting:
            return
        self._run.time.stop()
        await self._captures.leave()
        open_approval = [seen.approval.id] if seen.approval is not None else []
        open_question = [seen.question.id] if seen.question is not None else []
        hold, seconds = self._run.hold, self._run.time.seconds
        await self._services.database.write(lambda tx: runs.wait(tx, hold, open_approval, open_question, seconds))
        self._run.waiting = True
        self._services.admission.leave(self._run.run_id)

    async def _come_back(self) -> None:
        if not self._run.waiting:
            return
        await self._services.admission.enter(self._run.spec.worktree, self._run.run_id)
        hold = self._run.hold
        await self._services.database.write(lambda tx: runs.go_on(tx, hold, "answered"))
        self._run.waiting = False
        self._captures.come_back()
        self._run.time.run()


def _answered(question: Any) -> Settled | None:
    if question.state == "open":
        return None
    if question.state == "answered":
        return Settled("completed", str(question.answer))
    return Settled("failed", "Nobody answered the question in time. Go on without an answer, or end the run.")


def refusal(state: str, decided_by: str | None, message: str | None) -> str:
    """Return what the model is told of a question that was not allowed."""
    if state == "rejected":
        return f"Rejected by {decided_by}" + (f": {message}" if message else ". No reason was given.")
    if state == "expired":
        return "Nobody answered in time, so this was not executed. It was not refused by a person."
    return "The question was withdrawn, so this was not executed."


def _proposal(
    message: Message,
    place: int,
    call: ToolCallPart,
    arguments: dict[str, Any],
    effect: str,
    summary: str,
    ruling: Ruling,
) -> Proposal:
    return Proposal(
        call_id=call.id,
        message_id=message.id,
        ordinal=place,
        name=call.name,
        effect=effect,
        summary=summary,
        arguments=arguments,
        arguments_hash=arguments_hash(call.name, arguments),
        verdict=ruling.verdict,
        source=ruling.source,
        reason=ruling.reason,
    )
