"""`meta.json` of a checkpoint: what a tree of git objects cannot hold.

Paths are texts in which bytes that are no UTF-8 are escaped as lone surrogates (Python's surrogateescape), so that
JSON holds every name exactly. Unknown fields are ignored when it is read; `v` tells the format.
"""

import hashlib
import json
from typing import Any

import msgspec

from hub.checkpoint.values import CheckpointError

FORMAT = 1


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the parts of `meta.json`."""


class Root(Record, frozen=True, kw_only=True):
    """Which worktree this was: the id of our room in its git directory, and where it stood."""

    id: str
    path: str
    inode: int
    device: int


class IndexState(Record, frozen=True, kw_only=True):
    """The user's index. `tree` holds stage 0, `stages` the tree of each conflict stage.

    `raw` is the blob of the index file itself, kept when entries carry what trees cannot (flags, stages, intents);
    None otherwise. `digest` is equal for equal entries, whatever their stat data; no index is an index without entries.
    """

    tree: str
    stages: dict[str, str]
    raw: str | None
    digest: str


class Missed(Record, frozen=True, kw_only=True):
    """A path that was not captured; directories end with a slash."""

    path: str
    why: str


class Permissions(Record, frozen=True, kw_only=True):
    """The usual permission bits, by git's mode (`100644`, `100755`, `40000`), and the paths that have others."""

    usual: dict[str, int]
    files: dict[str, int]
    folders: dict[str, int]


class State(Record, frozen=True, kw_only=True):
    """A captured state apart from its bytes. `ignored` are the paths git ignored, directories with a slash;
    `folders` are directories that hold no captured file; `operation` has the digest of each file of a merge,
    rebase, cherry-pick, revert or bisect in progress.
    """

    worktree: str
    index: IndexState
    head: str | None
    branch: str | None
    operation: dict[str, str]
    ignored: tuple[str, ...]
    folders: tuple[str, ...]
    permissions: Permissions
    uncaptured: tuple[Missed, ...]
    root: Root
    files: int


class Part(Record, frozen=True, kw_only=True):
    """A repository inside the worktree, or another root, that was captured together with it; see `parts`.

    `root` is the id of its room, `digest` that of its state; `uncaptured` has paths as they are shown.
    """

    mark: str
    root: str
    digest: str
    files: int
    bytes: int
    uncaptured: tuple[Missed, ...]


class Meta(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The whole of `meta.json`. `bytes` is what the capture read from changed files; `parts` are by path."""

    v: int
    complete: bool
    state: State
    digest: str
    labels: dict[str, str]
    created_at: str
    bytes: int
    parts: dict[str, Part] = msgspec.field(default_factory=dict)


def text(name: bytes) -> str:
    """Return a path as `meta.json` writes it."""
    return name.decode("utf-8", "surrogateescape")


def raw(name: str) -> bytes:
    """Return the exact bytes of a path in `meta.json`."""
    return name.encode("utf-8", "surrogateescape")


def digest_of(state: State) -> str:
    """Return a digest that is equal for equal states."""
    return hashlib.sha256(_json(msgspec.to_builtins(state))).hexdigest()


def encode(meta: Meta) -> bytes:
    """Return `meta.json`."""
    return _json(msgspec.to_builtins(meta)) + b"\n"


def decode(content: bytes) -> Meta:
    """Return what `meta.json` says. Raises CheckpointError checkpoint_incomplete for one that cannot be used."""
    try:
        meta = msgspec.convert(json.loads(content), Meta)
    except (ValueError, msgspec.ValidationError) as error:
        raise CheckpointError(f"A checkpoint cannot be read: {error}", code="checkpoint_incomplete") from error
    if meta.v > FORMAT or not meta.complete:
        raise CheckpointError("The checkpoint is incomplete, or a newer version made it.", code="checkpoint_incomplete")
    return meta


def _json(value: Any) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode("ascii")
