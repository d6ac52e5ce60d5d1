"""approval.*, question.*, grant.*: what waits for a person, and what was remembered of the answers."""

from hub.daemon.calls import Caller, Handlers
from hub.daemon.services import Services
from hub.protocol.params import (
    ApprovalAnswer,
    ApprovalList,
    GrantList,
    GrantRevoke,
    QuestionAnswer,
    QuestionList,
)
from hub.protocol.views import Ack, ApprovalView, GrantView, QuestionView
from hub.store import approvals, questions
from hub.store.database import Transaction


def register(handlers: Handlers, services: Services) -> None:
    """Serve the methods of open questions."""

    async def list_approvals(params: ApprovalList, caller: Caller) -> list[ApprovalView]:
        return await services.database.read(
            lambda conn: approvals.listing(
                conn, params.session_id, open_only=params.state == "open", limit=params.limit
            )
        )

    async def list_questions(params: QuestionList, caller: Caller) -> list[QuestionView]:
        return await services.database.read(
            lambda conn: questions.listing(
                conn, params.session_id, open_only=params.state == "open", limit=params.limit
            )
        )

    async def list_grants(params: GrantList, caller: Caller) -> list[GrantView]:
        return await services.database.read(lambda conn: approvals.grant_listing(conn, params.session_id))

    handlers.asynchronous("approval.list", list_approvals)
    handlers.transactional("approval.answer", _answer_approval)
    handlers.asynchronous("question.list", list_questions)
    handlers.transactional("question.answer", _answer_question)
    handlers.asynchronous("grant.list", list_grants)
    handlers.transactional("grant.revoke", _revoke)


def _answer_approval(tx: Transaction, params: ApprovalAnswer, caller: Caller) -> ApprovalView:
    return approvals.answer(tx, params.approval_id, params.decision, caller.actor, params.message)


def _answer_question(tx: Transaction, params: QuestionAnswer, caller: Caller) -> QuestionView:
    return questions.answer(tx, params.question_id, params.answer, caller.actor)


def _revoke(tx: Transaction, params: GrantRevoke, caller: Caller) -> Ack:
    return Ack(id=approvals.revoke(tx, params.grant_id).id, state="revoked")
