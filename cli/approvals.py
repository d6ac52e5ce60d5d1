"""Approvals: list what waits, allow, reject."""

from typing import Annotated, Any

import typer

from cli import output, tables
from cli.context import Link, approval_id, call, session_id, with_link
from hub.domain.values import Decision
from hub.errors import UsageError

ApprovalArgument = Annotated[str, typer.Argument(help="Id of the approval, or a unique part at its start or end.")]


def approvals(
    context: typer.Context,
    session: Annotated[str | None, typer.Option("--session", help="Only those of one session.")] = None,
    every: Annotated[bool, typer.Option("--all", help="Also those that are closed.")] = False,
) -> None:
    """List the tool calls that wait for an answer."""
    state = "all" if every else "open"

    async def listed(link: Link) -> Any:
        id = await session_id(link, session) if session else None
        return await link.call("approval.list", session_id=id, state=state)

    output.show(
        context,
        with_link(context, listed) if session else call(context, "approval.list", state=state),
        tables.approvals,
    )


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


def _answer(context: typer.Context, given: str, decision: Decision, message: str = "") -> None:
    async def decide(link: Link) -> Any:
        id = await approval_id(link, given)
        return await link.call("approval.answer", approval_id=id, decision=decision, message=message)

    output.show(context, with_link(context, decide), tables.answered)
