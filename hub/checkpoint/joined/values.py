"""Values of several units joined into one: paths of each get its place in front, so that callers see one worktree.

Decisions only. The key of a unit is its path relative to the first root, or absolute for another root.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from hub.checkpoint.stores.meta import raw, text
from hub.checkpoint.values import Applied, Change, Conflict, Folder, Kept, PartPlan, Plan, Step, show
from hub.errors import TurnbackError

GONE = "the repository that was here at the checkpoint is gone: what it held cannot be brought back without it"
_BLAMED = "told by one of several repositories"
REPLACED = "another repository stands here now than at the checkpoint: left as it is"


def below(outer: str, key: str) -> str:
    """Return the key of a unit inside another one."""
    return key if not outer or key.startswith("/") else f"{outer}/{key}"


def narrowed(paths: Sequence[str], key: str) -> list[str]:
    """Return which of the paths concern a unit, relative to it: `.` for all of it, none for none of it."""
    found = []
    for path in (path.rstrip("/") for path in paths):
        if path in ("", ".", key) or key.startswith(f"{path}/"):
            found.append(".")
        elif path.startswith(f"{key}/"):
            found.append(path[len(key) + 1 :])
    return found


def by_place(root: Path, places: Sequence[Path], paths: Iterable[str]) -> dict[Path, dict[str, str]]:
    """Return the paths below each place, the innermost one, as they are called there and as they are called here."""
    found: dict[Path, dict[str, str]] = {}
    for path in paths:
        around = [place for place in places if (root / path).is_relative_to(place)]
        place = max(around, key=lambda place: len(place.parts), default=root)
        found.setdefault(place, {})[os.path.relpath(root / path, place)] = path
    return found


def owner_of(root: str, path: str) -> str:
    """Return the outermost directory on the way to a path that is a repository of its own, empty when none is."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        folder = "/".join(parts[:depth])
        if os.path.lexists(os.path.join(root, folder, ".git")):
            return folder
    return ""


def kept_in(key: str, kept: Iterable[Kept]) -> tuple[Kept, ...]:
    """Return what one unit kept or put aside, as the whole shows it."""
    return tuple(msgspec.structs.replace(row, path=shown(key, row.path)) for row in kept)


def changes_in(key: str, changes: Iterable[Change]) -> list[Change]:
    """Return what differs in one unit, as the whole shows it."""
    return [msgspec.structs.replace(change, path=shown(key, change.path)) for change in changes]


def joined_plan(plans: Sequence[PartPlan], kept: Iterable[Kept]) -> Plan:
    """Return the plan of all units; the first is the root's. A root alone keeps its plan as it is."""
    first, more = plans[0].plan, tuple(kept)
    active = [part for part in plans[1:] if not part.plan.is_empty]
    whole = msgspec.structs.replace(
        first,
        writes=_steps(plans, [part.plan.writes for part in plans]),
        creations=_steps(plans, [part.plan.creations for part in plans]),
        deletions=_steps(plans, [part.plan.deletions for part in plans]),
        displaced=_folders(plans, [part.plan.displaced for part in plans]),
        made_dirs=_folders(plans, [part.plan.made_dirs for part in plans]),
        removed_dirs=_folders(plans, [part.plan.removed_dirs for part in plans]),
        changed_dirs=_folders(plans, [part.plan.changed_dirs for part in plans]),
        kept=tuple(row for part in plans for row in kept_in(text(part.key), part.plan.kept)) + more,
        index_changes=tuple(shown(text(part.key), path) for part in plans for path in part.plan.index_changes),
        restores_index=any(part.plan.restores_index for part in plans),
        reach="session" if any(part.plan.reach == "session" for part in plans) else "tree",
        notes=tuple(_note(text(part.key), note) for part in plans for note in part.plan.notes),
    )
    if not active:
        return whole
    return msgspec.structs.replace(whole, parts=(plans[0], *active))


def joined_applied(txid: str, rows: Sequence[tuple[str, Applied]]) -> Applied:
    """Return what was done in all units."""
    return Applied(
        txid=txid,
        written=sum(applied.written for _, applied in rows),
        created=sum(applied.created for _, applied in rows),
        deleted=sum(applied.deleted for _, applied in rows),
        index_restored=any(applied.index_restored for _, applied in rows),
        displaced=tuple(shown(key, path) for key, applied in rows for path in applied.displaced),
        conflicts=tuple(_conflict(key, row) for key, applied in rows for row in applied.conflicts),
        head_moved=any(applied.head_moved for _, applied in rows),
    )


def _conflict(key: str, conflict: Conflict) -> Conflict:
    return msgspec.structs.replace(conflict, path=shown(key, conflict.path))


def _steps(plans: Sequence[PartPlan], rows: Iterable[tuple[Step, ...]]) -> tuple[Step, ...]:
    return tuple(
        msgspec.structs.replace(step, path=shown(text(part.key), step.path), name=_named(part.key, step.name))
        for part, steps in zip(plans, rows, strict=True)
        for step in steps
    )


def _folders(plans: Sequence[PartPlan], rows: Iterable[tuple[Folder, ...]]) -> tuple[Folder, ...]:
    return tuple(
        msgspec.structs.replace(folder, path=shown(text(part.key), folder.path), name=_named(part.key, folder.name))
        for part, folders in zip(plans, rows, strict=True)
        for folder in folders
    )


def shown(key: str, path: str) -> str:
    """Return a unit's path as the whole shows it."""
    return f"{show(raw(key))}/{path}" if key else path


def _named(key: bytes, name: bytes) -> bytes:
    return key + b"/" + name if key else name


def blame(error: TurnbackError, key: str) -> None:
    """Let an error say in which unit it arose, once; the first one keeps its words."""
    cause = error.__cause__
    if key and _BLAMED not in (getattr(error, "__notes__", []) + getattr(cause, "__notes__", [])):
        error.message = _note(key, error.message)
        error.args = (error.message,)
    error.add_note(_BLAMED)


def _note(key: str, note: str) -> str:
    return f"In {show(raw(key))}: {note}" if key else note
