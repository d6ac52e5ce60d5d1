"""What a restore is asked to do, joined with what the store knows: restore, undo and redo become one kind of wish."""

import urllib.parse
from collections.abc import Sequence
from typing import Any

import msgspec

from hub.domain.values import OnConflict, Reach
from hub.errors import RefusedError, UsageError
from hub.protocol.params import CheckpointRestore, CheckpointUndo
from hub.store import checkpoints
from hub.store.database import Connection


class Scope(msgspec.Struct, frozen=True, kw_only=True):
    """How far a restore goes: these paths (None: all), this reach (None: to be chosen), the branch too."""

    paths: Sequence[bytes] | None = None
    reach: Reach | None = None
    head: bool = False

    def stored(self, reach: Reach, touched: Sequence[bytes]) -> dict[str, Any]:
        """Return what the store keeps, so that an undo goes as far: with reach session, exactly the touched paths."""
        paths = touched if reach == "session" else self.paths
        quoted = None if paths is None else [urllib.parse.quote(path) for path in paths]
        return {"paths": quoted, "reach": reach, "head": self.head}


def _scope_of(stored: dict[str, Any]) -> Scope:
    paths = stored["paths"]
    exact = None if paths is None else [urllib.parse.unquote_to_bytes(path) for path in paths]
    return Scope(paths=exact, reach="tree", head=stored["head"])


class Wish(msgspec.Struct, frozen=True, kw_only=True):
    """A restore as it was asked for. `undoes` is the restore that it takes back, `head_id` where the talk goes to."""

    checkpoint: Any
    session_id: str | None
    only: str | None
    dry_run: bool
    interrupt: bool
    direction: str
    undoes: Any
    head_id: str | None
    scope: Scope
    on_conflict: OnConflict

    @property
    def files(self) -> bool:
        return self.only in (None, "files")

    @property
    def conversation(self) -> bool:
        return self.session_id is not None and self.only in (None, "conversation")


def of_restore(conn: Connection, params: CheckpointRestore) -> Wish:
    """Return what a restore means. Raises NotFoundError, RefusedError, UsageError."""
    row = checkpoints.row(conn, params.checkpoint_id)
    _check(params, row)
    narrowed = params.paths is not None
    return Wish(
        checkpoint=row,
        session_id=row.session_id,
        only="files" if narrowed else params.only,
        dry_run=params.dry_run,
        interrupt=params.interrupt,
        direction="restore",
        undoes=None,
        head_id=row.message_id,
        scope=Scope(
            paths=[path.encode() for path in params.paths] if params.paths is not None else None,
            reach=params.reach or _reach_of(row, narrowed=narrowed),
            head=params.head,
        ),
        on_conflict=params.on_conflict,
    )


def _reach_of(row: Any, *, narrowed: bool) -> Reach | None:
    """Return how far a restore goes that does not say so; None: as far as others have changed nothing.

    Of the files of a pre-image only that one capture knows, so nobody's changes are known.
    """
    return "tree" if row.session_id is None or (narrowed and row.kind == "preimage") else None


def _check(params: CheckpointRestore, row: Any) -> None:
    if params.session_id is not None and row.session_id is not None and params.session_id != row.session_id:
        raise RefusedError(
            f"Checkpoint {row.id} belongs to session {row.session_id}, not to {params.session_id}.",
            code="other_session",
            hint="Leave --session out to restore it where it belongs.",
        )
    if row.session_id is None and params.only == "conversation":
        raise RefusedError("This checkpoint has no conversation; restore its files.", code="no_conversation")
    if params.only == "conversation" and (params.paths is not None or params.head or params.reach is not None):
        raise UsageError("Paths, reach and head are about files: leave out --only conversation.")
    if row.session_id is None and params.reach == "session":
        raise UsageError("This checkpoint belongs to no session: its reach is the tree.")


def of_undo(conn: Connection, params: CheckpointUndo, worktree: str | None) -> Wish:
    """Return what undoing the newest restore means. Raises NotFoundError nothing_to_undo."""
    newest = checkpoints.to_undo(conn, session_id=params.session_id, worktree=worktree)
    return _taking_back(conn, newest, params, "undo")


def of_redo(conn: Connection, params: CheckpointUndo, worktree: str | None) -> Wish:
    """Return what repeating the restore that was undone last means. Raises NotFoundError nothing_to_redo."""
    newest = checkpoints.to_redo(conn, session_id=params.session_id, worktree=worktree)
    return _taking_back(conn, newest, params, "redo")


def _taking_back(conn: Connection, newest: Any, params: CheckpointUndo, direction: str) -> Wish:
    return Wish(
        checkpoint=checkpoints.row(conn, newest.undo_id or newest.checkpoint_id),
        session_id=newest.session_id,
        only=newest.only,
        dry_run=params.dry_run,
        interrupt=params.interrupt,
        direction=direction,
        undoes=newest,
        head_id=newest.previous_head,
        scope=_scope_of(newest.scope),
        on_conflict=params.on_conflict,
    )
