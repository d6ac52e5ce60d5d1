"""What the engine hands out: checkpoints, changes, plans. Values only, each encodable as JSON by msgspec.

A path stands twice where it matters: `path` is a text to show (bytes that are no UTF-8 appear as `\\xNN`), `name` holds
the exact bytes, relative to the worktree's top level, with forward slashes.
"""

from collections.abc import Sequence
from typing import Literal

import msgspec

from hub.errors import ConflictError, FailedError

SHOWN = 5
"""How many paths an error's text names; `details` has all of them."""

INCOMPLETE = "Restore another checkpoint; `hubctl checkpoint verify` says which are whole."
"""What to do about a checkpoint whose objects are missing or damaged."""


class CheckpointError(FailedError):
    """A capture or a checkpoint that is not complete: checkpoint_failed, checkpoint_incomplete, over_budget …"""

    default_code = "checkpoint_failed"


class FilesMoved(ConflictError):
    """Paths changed while a restore was carried out; all is as before. `details["paths"]` names them."""

    default_code = "files_moved"

    def __init__(self, paths: Sequence[str]) -> None:
        more = f" and {len(paths) - SHOWN} more" if len(paths) > SHOWN else ""
        have = "has" if len(paths) == 1 else "have"
        text = f"Nothing was restored: {', '.join(paths[:SHOWN])}{more} {have} changed since it was planned."
        super().__init__(text, hint="Plan it again, or say whose content to keep where both changed.", retryable=True)
        self.details = {"paths": list(paths)}


def show(name: bytes) -> str:
    """Return a path as text that can be shown and sent: UTF-8, other bytes as `\\xNN`."""
    return name.decode("utf-8", "backslashreplace")


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the values: immutable, by keyword."""


class Uncaptured(Value, frozen=True, kw_only=True):
    """A path whose bytes are not in the checkpoint; a restore leaves it alone.

    `why` is too_large, over_budget, unreadable, special_file, nested_repository, submodule or changing; a path that was
    changing is in the checkpoint as it was read, which may be between two writes.
    """

    path: str
    why: str


class Checkpoint(Value, frozen=True, kw_only=True):
    """A captured state. Two checkpoints with the same `tree_digest` hold the same state.

    `ref` is the name below `refs/turnback/`; `bytes` counts what this capture read from changed files. When nothing
    had changed, `commit` is the earlier one, `unchanged_since` names its ref, and a later `get` shows the labels and
    the time of the earlier capture: those are part of the commit. `broken` says why a listed one cannot be read; all
    but `ref` and `commit` is then empty.
    """

    ref: str
    commit: str
    tree_digest: str
    files: int
    bytes: int
    uncaptured: tuple[Uncaptured, ...]
    head: str | None
    branch: str | None
    labels: dict[str, str]
    created_at: str
    unchanged_since: str | None = None
    broken: str | None = None


ChangeKind = Literal["created", "modified", "deleted", "mode", "type"]
Reach = Literal["tree", "session"]
OnConflict = Literal["abort", "keep-mine", "take-checkpoint"]


class Change(Value, frozen=True, kw_only=True):
    """One path that differs. Modes are `st_mode` with type bits, None on the side where the path is missing.

    Sizes are in bytes; `added` and `removed` count lines, None for what is not text.
    """

    path: str
    kind: ChangeKind
    old_mode: int | None
    new_mode: int | None
    old_size: int | None
    new_size: int | None
    added: int | None
    removed: int | None


class Mark(Value, frozen=True, kw_only=True):
    """A capture in the history of a worktree: taken before or after a run. `owner` says whose run, in any words.

    A restore may be told as well: its undo checkpoint as `before`, its target as `after`.
    """

    ref: str
    kind: Literal["before", "after"]
    owner: str


class Step(Value, frozen=True, kw_only=True):
    """One file or link that a restore writes, creates or deletes.

    Modes are `st_mode`, object ids hexadecimal, sizes in bytes; None on the side where the path is missing. `author` is
    the owner of the run that wrote the path last since the target; None: the user or others, or the plan was made
    without a history.
    """

    path: str
    name: bytes
    old_mode: int | None
    old_oid: str | None
    new_mode: int | None
    new_oid: str | None
    old_size: int | None = None
    new_size: int | None = None
    author: str | None = None


class Folder(Value, frozen=True, kw_only=True):
    """One directory that a restore makes, removes or gives other permissions. Modes are permission bits."""

    path: str
    name: bytes
    old_mode: int | None
    new_mode: int | None


class Kept(Value, frozen=True, kw_only=True):
    """A path that differs from the target and is left where it is, or is moved aside whole, with the reason.

    `author` is as in `Step`.
    """

    path: str
    reason: str
    author: str | None = None


class HeadMove(Value, frozen=True, kw_only=True):
    """A branch that moves with a restore, `HEAD` when none is checked out: from one commit to another.

    `kept_ref`, below `refs/turnback/`, keeps the old commit when the new one does not have it; `commits` counts those
    that come off (or, `forward`, on).
    """

    ref: str
    old: str
    new: str
    forward: bool
    commits: int
    kept_ref: str | None


class Plan(Value, frozen=True, kw_only=True):
    """All that a restore will do, decided and not yet done.

    `undo` is the capture of the state before; in a preview its `ref` is empty. `displaced` are directories and
    special files that stand where the target has something else: they are moved aside whole and kept.
    `index_changes` are the paths whose staged entries are restored; `index_names` are the same as bytes when only these
    entries go back, None when the index goes back as a whole. `head_distance` counts the commits of the present HEAD
    that the target's HEAD does not have; `head` is how the branch moves, None when it stays. With reach `session` only
    what one owner wrote, and nobody else changed, is restored; the rest is among `kept`.

    When several units are restored together, the plan shows the steps of all, and `parts` has each unit's own plan;
    `joint` then is the path of their joint journal in each of those.
    """

    txid: str
    target: Checkpoint
    undo: Checkpoint
    writes: tuple[Step, ...]
    creations: tuple[Step, ...]
    deletions: tuple[Step, ...]
    displaced: tuple[Folder, ...]
    made_dirs: tuple[Folder, ...]
    removed_dirs: tuple[Folder, ...]
    changed_dirs: tuple[Folder, ...]
    kept: tuple[Kept, ...]
    index_changes: tuple[str, ...]
    restores_index: bool
    head_distance: int
    notes: tuple[str, ...]
    reach: Reach = "tree"
    index_names: tuple[bytes, ...] | None = None
    head: HeadMove | None = None
    parts: tuple["PartPlan", ...] = ()
    joint: bytes = b""

    @property
    def id(self) -> str:
        """The plan's id, which is also that of the restore that carries it out."""
        return self.txid

    @property
    def is_empty(self) -> bool:
        """True when the worktree and the index are already as in the target."""
        steps = (self.writes, self.creations, self.deletions, self.displaced)
        folders = (self.made_dirs, self.removed_dirs, self.changed_dirs)
        return not (self.restores_index or self.head or self.parts or any(steps) or any(folders))


class PartPlan(Value, frozen=True, kw_only=True):
    """The plan of one unit of several. `key` is its path relative to the first, which has an empty one; `top` is where
    it stands, and the plan's paths are relative to that.
    """

    key: bytes
    top: bytes
    plan: Plan


class Conflict(Value, frozen=True, kw_only=True):
    """A path that changed after the plan was made, and what was done about it.

    `rescue` is where the newer content lies once the restore is final; None when it was left at its path, or was gone.
    """

    path: str
    reason: str
    rescue: str | None


class Applied(Value, frozen=True, kw_only=True):
    """A restore that is done and waits for `finish` or `abort`; `displaced` are the paths that were moved aside."""

    txid: str
    written: int
    created: int
    deleted: int
    index_restored: bool
    displaced: tuple[str, ...]
    conflicts: tuple[Conflict, ...] = ()
    head_moved: bool = False


class Recovered(Value, frozen=True, kw_only=True):
    """What became of a restore that was found unfinished. `rescued` names bytes that were put aside, and where to."""

    txid: str
    direction: Literal["forward", "back", "discarded"]
    target_ref: str
    undo_ref: str
    rescued: tuple[Kept, ...]
