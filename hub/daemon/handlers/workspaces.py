"""workspace.*: directories by name."""

from hub.daemon.calls import Caller, Handlers
from hub.daemon.handlers import places
from hub.daemon.services import Services
from hub.daemon.starting import Place
from hub.protocol.params import Nothing, WorkspaceAdd, WorkspaceMirrors, WorkspaceRemove
from hub.protocol.views import Ack, MirrorView, WorkspaceView
from hub.store import registry
from hub.store.database import Transaction


def register(handlers: Handlers, services: Services) -> None:
    """Serve the workspace methods."""

    async def locate(params: WorkspaceAdd, caller: Caller) -> Place:
        return await places.find(services, places.resolved(params.path), caller)

    async def listing(params: Nothing, caller: Caller) -> list[WorkspaceView]:
        return await services.database.read(registry.workspace_listing)

    async def mirrors(params: WorkspaceMirrors, caller: Caller) -> list[MirrorView]:
        worktree = (await places.find(services, params.workspace, caller)).worktree
        found = await services.worktrees.work(worktree, lambda engine: engine.remotes_that_mirror())
        return [
            MirrorView(repository=str(root), remote=remote.remote, why=remote.why, remedy=list(remote.remedy))
            for root, told in found
            for remote in told.remotes
        ]

    handlers.asynchronous("workspace.mirrors", mirrors)
    handlers.prepared("workspace.add", locate, _add)
    handlers.asynchronous("workspace.list", listing)
    handlers.transactional("workspace.remove", _remove)


def _add(tx: Transaction, params: WorkspaceAdd, caller: Caller, place: Place) -> WorkspaceView:
    return registry.add_workspace(tx, params.name, place.workspace, params.checkpoint)


def _remove(tx: Transaction, params: WorkspaceRemove, caller: Caller) -> Ack:
    return Ack(id=registry.remove_workspace(tx, params.name).id, state="removed")
