"""A checkpoint opened in another place: a linked worktree of its own, filled with the checkpoint's files and index.

Invariant: the first worktree is not touched, and what was made is taken away again when it cannot be filled. HEAD is
detached at the checkpoint's commit. Not promised: ignored files, and what the checkpoint could not capture.
"""

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from hub.checkpoint.repository import GitFailed, Repository
from hub.checkpoint.stores.records import Found
from hub.checkpoint.stores.shadow import ShadowStore
from hub.checkpoint.stores.side import Store
from hub.errors import ConflictError, RefusedError, TurnbackError


def linked_worktree(store: Store, target: Found, directory: Path, fill: Callable[[Path], None]) -> Path:
    """Make a linked worktree, have it filled, and return its top level. Raises ConflictError, RefusedError."""
    if isinstance(store, ShadowStore):
        raise RefusedError("A linked worktree needs a git repository, and there is none here.", code="no_repository")
    if os.path.lexists(directory):
        raise ConflictError(f"{directory} is there already; name a folder that is not.", code="file_exists")
    if not directory.parent.is_dir():
        raise RefusedError(f"{directory.parent} is not a directory.", code="not_a_directory")
    if target.state.head is None:
        raise RefusedError(
            "The checkpoint was taken before the first commit, and a linked worktree needs one.", code="head_unknown"
        )
    with _taken_away_on_failure(store.user, directory):
        how = ("--quiet", "--no-checkout", "--detach")
        store.user.run("worktree", "add", *how, os.fspath(directory), target.state.head)
        fill(directory)
    return directory.resolve()


@contextlib.contextmanager
def _taken_away_on_failure(user: Repository, directory: Path) -> Iterator[None]:
    try:
        yield
    except (GitFailed, TurnbackError, OSError):
        with contextlib.suppress(GitFailed):  # git refused to make it: then there is nothing to take away
            user.run("worktree", "remove", "--force", os.fspath(directory))
        raise
