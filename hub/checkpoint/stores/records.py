"""Checkpoints as commits under `refs/turnback/`: found, listed, protected, forgotten; `writing` makes them.

Invariant: no ref of anybody else is read or written. Not promised: that what is listed is sound; one that cannot be
read is listed as broken.
"""

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from hub.checkpoint.capture.snapshot import Snapshot
from hub.checkpoint.joined.parts import PREFIX as PART
from hub.checkpoint.joined.parts import joined_digest
from hub.checkpoint.stores.ledger import Ledgers
from hub.checkpoint.stores.meta import FORMAT, Meta, Part, State, decode, raw
from hub.checkpoint.stores.side import Store
from hub.checkpoint.values import Checkpoint, CheckpointError, Uncaptured, show
from hub.errors import ConflictError, NotFoundError, UsageError

PREFIX = "refs/turnback/"
PROTECTION = "keep/"
"""Below `refs/turnback/`, before the name of a protected checkpoint."""
NO_PARTS: Mapping[str, Part] = {}
COMMITS = re.compile(r".*/[0-9]+o")
"""Names of refs that hold commits taken off a branch: no checkpoints."""
NAME_LENGTH = 60
"""Longest full name of a ref: longer ones fail on some systems when they are fetched."""
_OID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(/[A-Za-z0-9][A-Za-z0-9_-]*)*")


ELSEWHERE = (
    "Checkpoints lie in the repository's git directory, as refs below refs/turnback; when it is cloned or made anew, "
    "or somebody deletes the ref, they are gone."
)


class Found(msgspec.Struct, frozen=True):
    """A stored checkpoint: ref below `refs/turnback/`, commit, and its `meta.json`."""

    ref: str
    commit: str
    meta: Meta

    @property
    def state(self) -> State:
        return self.meta.state


class Broken(msgspec.Struct, frozen=True):
    """A ref of ours whose checkpoint cannot be read, and why."""

    ref: str
    commit: str
    why: str


class Records:
    """The checkpoints of one repository."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ledgers = Ledgers(store.common_dir)

    def check_free(self, ref: str) -> None:
        """Raise UsageError bad_ref for a name that cannot be used, ConflictError ref_exists for one in use."""
        if not _NAME.fullmatch(ref) or len(PREFIX + ref) > NAME_LENGTH or f"{ref}/".startswith(PROTECTION):
            raise UsageError(f"{ref!r} is no name for a checkpoint: letters, digits, - and _, short.", code="bad_ref")
        if self.loose(ref) is not None:  # a packed one is found when the ref is written
            raise ConflictError(f"There is a checkpoint {ref} already.", code="ref_exists")

    def find(self, ref: str) -> Found:
        """Return a checkpoint. Raises NotFoundError checkpoint_not_found, CheckpointError checkpoint_incomplete."""
        if not _NAME.fullmatch(ref):
            raise self.missing(ref)
        direct = self._direct(ref)
        if direct is not None:
            return direct
        try:
            (commit, _), (_, meta) = self._contents([PREFIX + ref, f"{PREFIX}{ref}:meta.json"])
        except CheckpointError:
            if self.commit(ref) is None:
                raise self._store.elsewhere(ref) or self.missing(ref) from None
            raise
        return Found(ref, commit, decode(meta))

    def _direct(self, ref: str) -> Found | None:
        """Return a checkpoint that can be had without git, None when git is to be asked."""
        commit = self.loose(ref) or ""
        found = self._store.reader.object(commit) if _OID.fullmatch(commit) else None
        if found is None or found.kind != "commit":
            return None
        tree = self._store.reader.tree(found.content[5 : 5 + len(commit)].decode()) or {}
        meta = self._store.reader.object(tree[b"meta.json"][1]) if b"meta.json" in tree else None
        return None if meta is None else Found(ref, commit, decode(meta.content))

    def all(self, prefix: str = "", *, parts: bool = False) -> list[Found | Broken]:
        """Return the checkpoints whose names begin with `prefix`, in order of name, also those that are broken."""
        rows = [
            (ref, oid) for ref, oid in self.refs(parts=parts) if ref.startswith(prefix) and not COMMITS.fullmatch(ref)
        ]
        found: list[Found | Broken] = []
        while len(found) < len(rows):
            try:
                for checkpoint in self._read(rows[len(found) :]):
                    found.append(checkpoint)
            except CheckpointError as error:
                found.append(Broken(*rows[len(found)], error.message))
        return found

    def refs(self, *, parts: bool = False) -> list[tuple[str, str]]:
        """Return name and commit of every ref of ours but protections, in order of name; with or without parts."""
        others = (PROTECTION,) if parts else (PROTECTION, PART)
        return [(ref, oid) for ref, oid in self._refs() if not ref.startswith(others)]

    def protected(self) -> dict[str, str]:
        """Return the commits of protected checkpoints by the checkpoint's name."""
        return {ref.removeprefix(PROTECTION): oid for ref, oid in self._refs() if ref.startswith(PROTECTION)}

    def protect(self, ref: str) -> None:
        """Protect a checkpoint, with a second ref. Raises NotFoundError."""
        self._update([f"update {PREFIX}{PROTECTION}{ref} {self.find(ref).commit}"])

    def unprotect(self, ref: str) -> None:
        """Take the protection away. Raises NotFoundError for a name that is neither protected nor there."""
        commit = self.protected().get(ref)
        if commit is not None:
            self._update([f"delete {PREFIX}{PROTECTION}{ref} {commit}"])
        elif self.commit(ref) is None:
            raise self.missing(ref)

    def forget(self, refs: Collection[str]) -> None:
        """Delete refs and their protections, all or none; those that are gone already are no error."""
        wanted = set(refs)
        names = [(ref, oid) for ref, oid in self._refs() if ref.removeprefix(PROTECTION) in wanted]
        self._update([f"delete {PREFIX}{ref} {oid}" for ref, oid in names])

    def missing(self, ref: str) -> NotFoundError:
        """Return the error for a name without a checkpoint: it says when it was pruned, if it was."""
        gone = next((row for row in reversed(self._ledgers.gone.rows()) if row.ref == ref), None)
        if gone is None:
            return NotFoundError(
                f"There is no checkpoint {ref} in this repository.", code="checkpoint_not_found", hint=ELSEWHERE
            )
        return NotFoundError(f"Checkpoint {ref} was pruned at {gone.at}: {gone.why}.", code="checkpoint_pruned")

    def _refs(self) -> list[tuple[str, str]]:
        out = self._store.user.line("for-each-ref", "--format=%(objectname) %(refname)", PREFIX.rstrip("/"))
        rows = [line.split(" ", 1) for line in out.splitlines()]
        return [(name.removeprefix(PREFIX), oid) for oid, name in rows]

    def _update(self, lines: Sequence[str]) -> None:
        """Change refs in one transaction."""
        if lines:
            self._store.user.run("update-ref", "--no-deref", "--stdin", stdin="".join(f"{x}\n" for x in lines).encode())

    def _read(self, names: Sequence[tuple[str, str]]) -> Iterable[Found]:
        objects = self._store.user.objects([f"{commit}:meta.json" for _, commit in names])
        for (ref, commit), (_, _, chunks) in zip(names, objects, strict=True):
            yield Found(ref, commit, decode(b"".join(chunks)))

    def _contents(self, names: Sequence[str]) -> list[tuple[str, bytes]]:
        """Return id and content of each object. Raises CheckpointError checkpoint_incomplete when one is missing."""
        return [(oid, b"".join(chunks)) for oid, _, chunks in self._store.user.objects(names)]

    def loose(self, ref: str) -> str | None:
        """Return what the file of a ref says, None when it has no file of its own."""
        try:
            with open(os.path.join(self._store.common_dir, os.fsencode(PREFIX + ref)), "rb") as stream:
                return stream.read().decode("ascii", "replace").strip()
        except OSError:  # a name that is too long, too
            return None

    def stands(self, found: Found) -> bool:
        """Return whether a checkpoint's ref is as it was."""
        return (self.loose(found.ref) or self.commit(found.ref)) == found.commit

    def commit(self, ref: str) -> str | None:
        """Return the commit of a ref of ours, None when there is no such ref."""
        return self._store.user.maybe_line("rev-parse", "-q", "--verify", PREFIX + ref)


def describe(snapshot: Snapshot, labels: Mapping[str, str], parts: Mapping[str, Part] = NO_PARTS) -> Meta:
    """Return the `meta.json` of a snapshot."""
    return Meta(
        v=FORMAT,
        complete=True,
        state=snapshot.state,
        digest=joined_digest(snapshot.digest, parts),
        labels=dict(labels),
        created_at=now(),
        bytes=snapshot.tree.bytes,
        parts=dict(parts),
    )


def checkpoint_of(found: Found, unchanged_since: str | None = None) -> Checkpoint:
    """Return what is told of a checkpoint."""
    state = found.state
    return Checkpoint(
        ref=found.ref,
        commit=found.commit,
        tree_digest=found.meta.digest,
        files=state.files + sum(part.files for part in found.meta.parts.values()),
        bytes=found.meta.bytes + sum(part.bytes for part in found.meta.parts.values()),
        uncaptured=tuple(_uncaptured(found.meta)),
        head=state.head,
        branch=state.branch,
        labels=found.meta.labels,
        created_at=found.meta.created_at,
        unchanged_since=unchanged_since,
    )


def told_broken(broken: Broken) -> Checkpoint:
    """Return what is told of a checkpoint that cannot be read."""
    return Checkpoint(
        ref=broken.ref,
        commit=broken.commit,
        tree_digest="",
        files=0,
        bytes=0,
        uncaptured=(),
        head=None,
        branch=None,
        labels={},
        created_at="",
        broken=broken.why,
    )


def _uncaptured(meta: Meta) -> Iterator[Uncaptured]:
    """Yield what is missing: of the whole, and of its parts; a repository that is a part is not missing."""
    for missed in meta.state.uncaptured:
        if missed.path.rstrip("/") not in meta.parts:
            yield Uncaptured(path=show(raw(missed.path)), why=missed.why)
    for key, part in sorted(meta.parts.items()):
        for missed in part.uncaptured:
            yield Uncaptured(path=f"{show(raw(key))}/{missed.path}", why=missed.why)


def now() -> str:
    """Return the time as checkpoints tell it: UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
