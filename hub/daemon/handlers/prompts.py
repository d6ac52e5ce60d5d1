"""prompt.*: what people and programs want done. Stored before it is acknowledged."""

from hub.daemon.calls import Caller, Handlers
from hub.daemon.handlers import places
from hub.daemon.services import Services
from hub.errors import RefusedError, UsageError
from hub.protocol.params import PromptChange, PromptEdit, PromptList, PromptMove, PromptSubmit
from hub.protocol.views import Ack, PromptAccepted, PromptView
from hub.store import prompts, runs, sessions
from hub.store.database import Transaction
from hub.store.prompts import NewPrompt


def register(handlers: Handlers, services: Services) -> None:
    """Serve the prompt methods."""
    limit = services.settings.config.runs.queue_limit

    async def prepare(params: PromptSubmit, caller: Caller) -> places.Place | None:
        if (params.session_id is None) == (params.workspace is None):
            raise UsageError("Give either session_id or workspace.")
        _check_rights(params, caller)
        session_id, before = params.session_id, None
        if session_id is not None and params.run.model is None:
            before = await services.database.read(lambda conn: prompts.last_model(conn, session_id))
        services.models.check(services.models.choose(params.run.model, before))
        return await places.find(services, params.workspace, caller) if params.workspace is not None else None

    def submit(tx: Transaction, params: PromptSubmit, caller: Caller, place: places.Place | None) -> PromptAccepted:
        session_id = params.session_id or ""
        if place is not None:
            session_id = sessions.create(tx, place.workspace, place.worktree, sessions.title_from(params.text))
        new = NewPrompt(
            session_id=session_id,
            text=params.text,
            mode=params.mode,
            author=caller.actor,
            may_approve=caller.may_approve,
            address=params.address,
            options=params.run,
        )
        accepted = prompts.submit(tx, new, queue_limit=limit)
        active = sessions.active_run(tx.conn, session_id)
        if accepted.mode == "interrupt" and active is not None:
            runs.ask_cancel(tx, active.id, caller.actor)
        return accepted

    async def listing(params: PromptList, caller: Caller) -> list[PromptView]:
        return await services.database.read(lambda conn: prompts.listing(conn, params.session_id))

    handlers.prepared("prompt.submit", prepare, submit)
    handlers.asynchronous("prompt.list", listing)
    handlers.transactional("prompt.edit", _edit)
    handlers.transactional("prompt.move", _move)
    handlers.transactional("prompt.remove", _remove)


def _check_rights(params: PromptSubmit, caller: Caller) -> None:
    """Refuse to widen what a run may do, or to read a scenario file, for callers who may not operate or approve."""
    widens = bool(params.run.auto_approve) or params.run.preset == "yolo"
    if widens and not caller.may_approve:
        raise RefusedError("Auto-approval needs the scope approve.", code="scope_missing")
    if (params.run.model or "").startswith("scripted:") and "operate" not in caller.scopes:
        raise RefusedError("A scripted model needs the scope operate.", code="scope_missing")


def _edit(tx: Transaction, params: PromptEdit, caller: Caller) -> PromptView:
    return prompts.edit(tx, params.prompt_id, params.text)


def _move(tx: Transaction, params: PromptMove, caller: Caller) -> PromptView:
    return prompts.reorder(tx, params.prompt_id, params.position)


def _remove(tx: Transaction, params: PromptChange, caller: Caller) -> Ack:
    prompts.remove(tx, params.prompt_id, f"removed by {caller.actor}")
    return Ack(id=params.prompt_id, state="removed")
