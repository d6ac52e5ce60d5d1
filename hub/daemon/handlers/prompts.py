"""prompt.*: what people and programs want done. Stored before it is acknowledged."""

import msgspec

from hub.daemon.calls import Caller, Handlers
from hub.daemon.dispatcher import Dispatcher
from hub.daemon.handlers import places
from hub.daemon.services import Services
from hub.daemon.starting import Opening, Place, Starter
from hub.errors import RefusedError, UsageError
from hub.protocol.params import PromptChange, PromptEdit, PromptList, PromptMove, PromptSubmit
from hub.protocol.views import Ack, PromptAccepted, PromptView
from hub.store import prompts, runs, sessions
from hub.store.database import Transaction
from hub.store.prompts import NewPrompt


class Prepared(msgspec.Struct, frozen=True):
    """Where a prompt goes, the model its session had before, and the place that is held for its run, if one is free."""

    place: Place
    before: str | None
    opening: Opening | None


class PromptHandlers:
    """Serves the prompt methods. A prompt for an idle session is stored and begun in one transaction."""

    def __init__(self, services: Services, starter: Starter, dispatcher: Dispatcher) -> None:
        self._services = services
        self._starter = starter
        self._dispatcher = dispatcher
        self._limit = services.settings.config.runs.queue_limit

    def register(self, handlers: Handlers) -> None:
        """Serve them."""
        handlers.prepared("prompt.submit", self._prepare, self._submit, self._over)
        handlers.asynchronous("prompt.list", self._list)
        handlers.transactional("prompt.edit", _edit)
        handlers.transactional("prompt.move", _move)
        handlers.transactional("prompt.remove", _remove)

    async def _prepare(self, params: PromptSubmit, caller: Caller) -> Prepared:
        if (params.session_id is None) == (params.workspace is None):
            raise UsageError("Give either session_id or workspace.")
        _check_rights(params, caller)
        before = None
        if params.session_id is not None:
            before = await self._starter.model_before(params.session_id, params.run)
            place = await self._starter.place_of(params.session_id)
        else:
            place = await places.find(self._services, params.workspace or "", caller)
        self._services.models.check(self._services.models.choose(params.run.model, before))
        return Prepared(place, before, self._dispatcher.offer(place))

    def _submit(self, tx: Transaction, params: PromptSubmit, caller: Caller, found: Prepared) -> PromptAccepted:
        session_id = params.session_id
        if session_id is None:
            title = sessions.title_from(params.text)
            session_id = sessions.create(tx, found.place.workspace, found.place.worktree, title)
        accepted, pending, active = prompts.submit(tx, _new(session_id, params, caller), queue_limit=self._limit)
        if active is not None and accepted.mode == "interrupt":
            runs.ask_cancel(tx, active.id, caller.actor)
        elif active is None and accepted.position == 1 and found.opening is not None:
            self._starter.make(tx, found.opening, pending, found.before)
        return accepted

    def _over(self, found: Prepared) -> None:
        if found.opening is not None:
            self._dispatcher.take_back(found.opening)

    async def _list(self, params: PromptList, caller: Caller) -> list[PromptView]:
        return await self._services.database.read(lambda conn: prompts.listing(conn, params.session_id))


def _new(session_id: str, params: PromptSubmit, caller: Caller) -> NewPrompt:
    return NewPrompt(
        session_id=session_id,
        text=params.text,
        mode=params.mode,
        author=caller.actor,
        may_approve=caller.may_approve,
        address=params.address,
        options=params.run,
    )


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
