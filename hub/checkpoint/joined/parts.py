"""Parts of a checkpoint: the repositories inside a worktree, and further roots, that were captured together with it.

Each part is a checkpoint of its own in the part's own store, under `part/<mark>/<name of the whole>`; the `meta.json`
of the whole says which parts it has. Decisions only.
"""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence

from hub.checkpoint.stores.meta import Missed, Part, text
from hub.checkpoint.values import Checkpoint

PREFIX = "part/"
MARK_LENGTH = 8
_PREFIXED = re.compile(r"part/[0-9a-f]{8}/")

Parts = Callable[[Sequence[bytes], Mapping[str, Part]], Mapping[str, Part]]
"""Captures the parts: from the nested repositories that the whole's walk found, and the parts of the target (none for a
capture), to what is recorded of each, by path relative to the whole, or by absolute path."""


def no_parts(nested: Sequence[bytes], target: Mapping[str, Part]) -> Mapping[str, Part]:
    """Return that a checkpoint stands for one repository alone."""
    return {}


Seen = Callable[[Mapping[str, Part], Mapping[str, Part] | None, Sequence[bytes]], None]
"""Is told, when states are compared, the parts of the old one and of the new one; of the worktree as it is now (None),
the nested repositories.
"""


def not_seen(old: Mapping[str, Part], new: Mapping[str, Part] | None, nested: Sequence[bytes]) -> None:
    """Nobody wants to know."""


def mark_of(top: bytes) -> str:
    """Return the mark of a part, by the path where it stands."""
    return hashlib.sha256(top).hexdigest()[:MARK_LENGTH]


def part_ref(mark: str, ref: str) -> str:
    """Return the name of a part's checkpoint; `ref` is the whole's, or that of a part which holds it."""
    return f"{PREFIX}{mark}/{_PREFIXED.sub('', ref)}"


def part_of(taken: Checkpoint, identity: str, mark: str) -> Part:
    """Return what is recorded of a part that has been captured."""
    return Part(
        mark=mark,
        root=identity,
        digest=taken.tree_digest,
        files=taken.files,
        bytes=taken.bytes,
        uncaptured=tuple(Missed(path=row.path, why=row.why) for row in taken.uncaptured),
    )


def joined_digest(digest: str, parts: Mapping[str, Part]) -> str:
    """Return the digest of a whole: that of its own state when it has no parts."""
    if not parts:
        return digest
    facts = "\0".join((digest, *(f"{key}\0{part.digest}" for key, part in sorted(parts.items()))))
    return hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()


def key_of(name: bytes) -> str:
    """Return the key of a nested repository; git ends its name with a slash."""
    return text(name.rstrip(b"/"))
