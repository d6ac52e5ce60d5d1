"""Where a call means: a registered name, or an absolute path for callers who may operate."""

from pathlib import Path

from hub.daemon.calls import Caller
from hub.daemon.services import Services
from hub.daemon.starting import Place
from hub.errors import AuthError, UsageError
from hub.store import registry


async def find(services: Services, workspace: str, caller: Caller) -> Place:
    """Return the place. Raises NotFoundError unknown_workspace, UsageError, AuthError code path_not_allowed."""
    path = await path_of(services, workspace, caller)
    return Place(path, await services.worktrees.locate(path))


async def path_of(services: Services, workspace: str, caller: Caller) -> str:
    """Return the resolved directory that is meant."""
    if not workspace.startswith("/"):
        return (await services.database.read(lambda conn: registry.workspace(conn, workspace))).path
    if "operate" not in caller.scopes:
        raise AuthError(
            "Only callers with the scope operate may name a path; use a registered name.", code="path_not_allowed"
        )
    return resolved(workspace)


def resolved(path: str) -> str:
    """Return an existing directory without symlinks in its path. Raises UsageError with code not_a_directory."""
    found = Path(path)
    if not found.is_dir():
        raise UsageError(
            f"{path} is not a directory.",
            code="not_a_directory",
            hint="Give the directory of a git repository with -w.",
        )
    return str(found.resolve())
