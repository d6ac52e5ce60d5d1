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
        """Return what the store keeps, so that an undo goes as far: with reach session also the touched paths."""
        found: dict[str, Any] = {"paths": _quoted(self.paths), "reach": reach, "head": self.head}
        return found | ({"touched": _quoted(touched)} if reach == "session" else {})


def _quoted(paths: Sequence[bytes] | None) -> list[str] | None:
    return None if paths is None else [urllib.parse.quote(path) for path in paths]


def _scope_of(stored: dict[str, Any], reach: Reach | None, *, alone: bool) -> Scope:
    """Return how far a restore is taken back; `alone`: by what it was, for what it changed is no longer known."""
    paths = stored.get("touched", stored["paths"]) if alone else stored["paths"]
    exact = None if paths is None else [urllib.parse.unquote_to_bytes(path) for path in paths]
    return Scope(paths=exact, reach=reach, head=stored["head"])


class Mine(msgspec.Struct, frozen=True, kw_only=True):
    """Whose changes a restore takes back, and by which captures these are known: rows with ref, kind and session.

    Without `history` they are known by the captures around runs, those that are still to come too.
    """

    owner: str | None = None
    history: Sequence[Any] | None = None


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A state before or after a restore, told as a capture around a run is."""

    ref: str
    kind: str
    session_id: str


BY = {"undo": "the restore", "redo": "the undo"}
"""Whose changes an undo and a redo take back, in words for people."""


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
    mine: Mine

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
        mine=Mine(owner=row.session_id),
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
    """Return the wish to take a restore back. What others have changed since it stays, as far as that is known."""
    before = checkpoints.row(conn, newest.undo_id or newest.checkpoint_id)
    after = checkpoints.row(conn, newest.checkpoint_id)
    known = after.pruned_at is None and newest.undo_id is not None
    if params.reach == "session" and not known and newest.undo_id is not None:
        raise RefusedError(
            "What that restore changed is no longer known: its checkpoint was pruned.",
            code="reach_unknown",
            hint="Say --reach tree: then everything is as it was before it.",
        )
    return Wish(
        checkpoint=before,
        session_id=newest.session_id,
        only=newest.only,
        dry_run=params.dry_run,
        interrupt=params.interrupt,
        direction=direction,
        undoes=newest,
        head_id=newest.previous_head,
        scope=_scope_of(newest.scope, params.reach if known else "tree", alone=not known),
        on_conflict=params.on_conflict,
        mine=_changes_of(before, after, BY[direction]) if known else Mine(),
    )


def _changes_of(before: Any, after: Any, owner: str) -> Mine:
    """Return what a restore changed, as if it had been a run: what came later is somebody else's."""
    sides = [
        Side(ref=before.ref, kind="before", session_id=owner),
        Side(ref=after.ref, kind="after", session_id=owner),
    ]
    return Mine(owner=owner, history=sides)
