"""Approvals and questions of agents: list what waits, allow, reject, answer."""

from typing import Annotated, Any

import typer

from cli import output, tables
from cli.asks import chosen
from cli.context import FULL_ID, Link, approval_id, pick, session_id, with_link
from cli.invocation import invocation
from hub.domain.values import Decision
from hub.errors import UsageError

PAGE = 1000
ApprovalArgument = Annotated[str, typer.Argument(help="Id of the approval, or a unique part at its start or end.")]


def approvals(
    context: typer.Context,
    session: Annotated[str | None, typer.Option("--session", help="Only those of one session.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that are closed.")] = False,
) -> None:
    """List the tool calls and questions that wait for an answer.

    With --json: the tool calls only.
    """
    state = "all" if every else "open"

    async def listed(link: Link) -> tuple[Any, Any]:
        id = await session_id(link, session) if session else None
        calls = await link.call("approval.list", session_id=id, state=state)
        asked = [] if invocation(context).json else await link.call("question.list", session_id=id, state=state)
        return calls, asked

    calls, asked = with_link(context, listed)
    output.show(context, calls, lambda found: tables.open_asks(found, asked))


def approve(
    context: typer.Context,
    approval: ApprovalArgument,
    for_session: Annotated[bool, typer.Option("--session", help="And the same again in this session.")] = False,
    always: Annotated[bool, typer.Option("--always", help="And the same again in this workspace.")] = False,
) -> None:
    """Allow a tool call that waits."""
    if for_session and always:
        raise UsageError("--session and --always exclude each other.")
    _answer(context, approval, "allow_session" if for_session else "allow_always" if always else "allow_once")


def reject(
    context: typer.Context,
    approval: ApprovalArgument,
    reason: Annotated[str, typer.Option("--reason", help="Told to the model.")] = "",
) -> None:
    """Refuse a tool call that waits."""
    _answer(context, approval, "reject", reason)


def answer(
    context: typer.Context,
    question: Annotated[str, typer.Argument(help="Id of the question, or a unique part at its start or end.")],
    text: Annotated[str, typer.Argument(help="The answer, or the number of an option.")],
) -> None:
    """Answer a question of an agent."""

    async def reply(link: Link) -> Any:
        opened = await link.call("question.list", limit=PAGE)
        id = question if FULL_ID.fullmatch(question) else pick(question, [view.id for view in opened], "question")
        asked = next((view for view in opened if view.id == id), None)
        words = chosen(asked, text.strip()) if asked else text
        return await link.call("question.answer", question_id=id, answer=words)

    output.show(context, with_link(context, reply), tables.replied)


def _answer(context: typer.Context, given: str, decision: Decision, message: str = "") -> None:
    async def decide(link: Link) -> Any:
        id = await approval_id(link, given)
        return await link.call("approval.answer", approval_id=id, decision=decision, message=message)

    output.show(context, with_link(context, decide), tables.answered)
