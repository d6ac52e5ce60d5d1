"""session.fork: a new conversation that begins where another one stood at a checkpoint."""

import os
from pathlib import Path
from typing import Any

from hub.daemon.calls import Caller, Handlers, Seal
from hub.daemon.services import Services
from hub.daemon.starting import Place
from hub.errors import AuthError, RefusedError, UsageError
from hub.protocol.params import SessionFork
from hub.protocol.views import SessionView
from hub.store import checkpoints, messages, sessions
from hub.store.database import Transaction


class ForkHandlers:
    """Serves session.fork. The files of the first session are not touched; its conversation is copied."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, handlers: Handlers) -> None:
        """Enter the table."""
        handlers.sealed("session.fork", self.fork)

    async def fork(self, params: SessionFork, caller: Caller, seal: Seal) -> SessionView:
        session, checkpoint = await self._services.database.read(
            lambda conn: (sessions.row(conn, params.session_id), checkpoints.row(conn, params.checkpoint_id))
        )
        if checkpoint.session_id != session.id:
            owner = f"belongs to session {checkpoint.session_id}" if checkpoint.session_id else "has no conversation"
            raise RefusedError(f"Checkpoint {checkpoint.id} {owner}.", code="other_session")
        place = Place(session.workspace, session.worktree)
        if params.worktree is not None:
            place = await self._new_place(params.worktree, session, checkpoint, caller)

        def store(tx: Transaction) -> SessionView:
            title = params.title or f"{session.title} (fork)".strip()
            made = sessions.create(tx, place.workspace, place.worktree, title, forked_from=session.id)
            messages.copy_chain(tx, session.id, checkpoint.message_id, made)
            told = sessions.view(tx.conn, made)
            seal(tx, told)
            return told

        return await self._services.database.write(store)

    async def _new_place(self, wanted: str, session: Any, checkpoint: Any, caller: Caller) -> Place:
        """Make a linked worktree with the checkpoint's files; the workspace is the same folder in it."""
        if "operate" not in caller.scopes:
            raise AuthError("Only callers with the scope operate may name a path.", code="path_not_allowed")
        directory = Path(wanted)
        if not directory.is_absolute():
            raise UsageError(f"{wanted!r} is not an absolute path.")
        top = await self._services.worktrees.work(
            session.worktree, lambda engine: engine.open_elsewhere(checkpoint.ref, directory)
        )
        inside = os.path.relpath(session.workspace, session.worktree)
        return Place(str((top / inside).resolve()), str(top))
