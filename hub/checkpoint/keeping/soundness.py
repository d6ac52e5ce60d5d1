"""Whether the checkpoints are whole: every object there and, on request, every byte as its name says.

What is looked at is each checkpoint's own tree, and whether its commit is there; the history behind it is the user's.
Invariant: only a ref that points at nothing is ever deleted, and only on request.
"""

import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from hub.checkpoint.joined.parts import PREFIX as PART
from hub.checkpoint.keeping.verify import Finding
from hub.checkpoint.repository import GitFailed
from hub.checkpoint.stores.ledger import Gone, Ledgers
from hub.checkpoint.stores.records import COMMITS, PROTECTION, Broken, Records
from hub.checkpoint.stores.side import Store
from hub.checkpoint.values import CheckpointError
from hub.clock import iso

BUDGET_S = 1800.0
WALK = ("rev-list", "--objects", "--no-walk", "--stdin")
QUIET = ("--quiet", "--missing=allow-promisor")


class Soundness:
    """Looks at the checkpoints of one repository."""

    def __init__(self, store: Store, records: Records) -> None:
        self._records = records
        self._algorithm = store.algorithm
        self._objects = os.path.join(store.common_dir, b"objects")
        self._gone = Ledgers(store.common_dir).gone
        self._git = store.user.with_index(store.user_index)

    def look(self, *, deep: bool) -> tuple[dict[str, str], list[Finding]]:
        """Return the refs of complete checkpoints with their commits, and what is wrong. Raises GitFailed."""
        self._git.deadline = time.monotonic() + BUDGET_S
        rows = dict(self._records.refs(parts=True))
        types = self._types(list(rows.values()))
        findings = [_nothing(ref) for ref, oid in rows.items() if oid not in types]
        findings += [_other(ref, types[oid]) for ref, oid in rows.items() if types.get(oid, "commit") != "commit"]
        commits = {ref: oid for ref, oid in rows.items() if types.get(oid) == "commit"}
        holes = self._holes(commits)
        if deep:
            holes += self._corrupt({ref: oid for ref, oid in commits.items() if ref not in {h.name for h in holes}})
        findings += holes
        findings += self._unreadable({finding.name for finding in findings})
        findings += self._protections(rows)
        wrong = {finding.name for finding in findings}
        good = {ref: oid for ref, oid in commits.items() if ref not in wrong and is_whole(ref)}
        return good, sorted(findings, key=lambda finding: finding.name)

    def drop(self, findings: Sequence[Finding]) -> list[Finding]:
        """Delete refs that point at nothing, if nothing else is missing from the store; return what was found anew."""
        refs = [finding.name for finding in findings if finding.kind == "points_at_nothing"]
        if not refs or not self._store_is_whole():
            return list(findings)
        now = iso(datetime.now(UTC))
        self._gone.append([Gone(ref, "its commit was missing from the repository", now) for ref in refs], durably=True)
        self._records.forget(refs)
        return [msgspec.structs.replace(row, repaired=True) if row.name in refs else row for row in findings]

    def _store_is_whole(self) -> bool:
        """Return whether the objects as such are there: HEAD's commit, and every store that is borrowed from."""
        try:
            with open(os.path.join(self._objects, b"info", b"alternates"), "rb") as stream:
                borrowed = [line for line in stream.read().splitlines() if line and not line.startswith(b"#")]
        except FileNotFoundError:
            borrowed = []
        head = self._git.maybe_line("rev-parse", "-q", "--verify", "HEAD")
        there = all(os.path.isdir(os.path.join(self._objects, path)) for path in borrowed)
        return there and (head is None or head in self._types([head]))

    def _types(self, oids: Sequence[str]) -> dict[str, str]:
        """Return the type of each object that exists."""
        if not oids:
            return {}
        out = self._git.run("cat-file", "--batch-check=%(objectname) %(objecttype)", stdin=_lines(oids))
        rows = [line.split(" ") for line in out.decode().splitlines()]
        return {oid: kind for oid, kind in rows if kind != "missing"}

    def _holes(self, commits: Mapping[str, str]) -> list[Finding]:
        """Find checkpoints that lack objects: one look at all; only if that fails, one at each."""
        if self._hole(list(commits.values())) is None:
            return []
        found = {oid: self._hole([oid]) for oid in dict.fromkeys(commits.values())}
        return [_incomplete(ref, reason) for ref, oid in commits.items() if (reason := found[oid]) is not None]

    def _hole(self, oids: Sequence[str]) -> str | None:
        try:
            self._git.run(*WALK, *QUIET, stdin=_lines(oids))
        except GitFailed as failure:
            return failure.stderr.strip().splitlines()[-1] if failure.stderr.strip() else str(failure)
        return None

    def _unreadable(self, known: set[str]) -> list[Finding]:
        """Find refs whose objects are all there and are no checkpoint."""
        broken = [row for row in self._records.all(parts=True) if isinstance(row, Broken) and row.ref not in known]
        return [_other(row.ref, f"commit that is no checkpoint: {row.why}") for row in broken]

    def _protections(self, rows: Mapping[str, str]) -> list[Finding]:
        return [
            Finding(
                kind="protection",
                name=f"keep/{ref}",
                text=f"Checkpoint {ref} is protected, but its ref is gone. "
                f"It comes back with: git update-ref refs/turnback/{ref} {oid}",
            )
            for ref, oid in self._records.protected().items()
            if ref not in rows
        ]

    def _corrupt(self, commits: Mapping[str, str]) -> list[Finding]:
        """Read every object of these checkpoints and compare it with its name."""
        if not commits:
            return []
        out = self._git.run(*WALK, "--missing=allow-any", stdin=_lines(list(commits.values())))
        oids = list(dict.fromkeys(line.split(b" ", 1)[0].decode() for line in out.splitlines()))
        types = self._types(oids)
        bad = dict.fromkeys((oid for oid in oids if oid not in types), "git cannot read it.")
        bad |= dict(self._differing([oid for oid in oids if oid in types], types))
        return [
            Finding(kind="corrupt", name=ref, text=f"Object {oid} is damaged: {reason} {_WAY_OUT}")
            for ref, commit in (commits.items() if bad else ())
            for oid, reason in bad.items()
            if oid in self._objects_of(commit)
        ]

    def _objects_of(self, commit: str) -> set[str]:
        out = self._git.run(*WALK, "--missing=allow-any", stdin=_lines([commit]))
        return {line.split(b" ", 1)[0].decode() for line in out.splitlines()}

    def _differing(self, oids: Sequence[str], types: Mapping[str, str]) -> Iterator[tuple[str, str]]:
        """Yield each object that is not what its name says; git ends at one that it cannot read, and begins again."""
        done = 0
        while done < len(oids):
            try:
                for oid, size, chunks in self._git.objects(oids[done:]):
                    digest = hashlib.new(self._algorithm, f"{types[oid]} {size}\0".encode(), usedforsecurity=False)
                    for chunk in chunks:
                        digest.update(chunk)
                    done += 1
                    if digest.hexdigest() != oid:
                        yield oid, "its content is another."
            except CheckpointError:
                yield oids[done], "git cannot read it."
                done += 1


def is_whole(ref: str) -> bool:
    """Return whether a ref's name is that of a checkpoint that counts: no part of one, no commits off a branch."""
    return not ref.startswith((PART, PROTECTION)) and COMMITS.fullmatch(ref) is None


_WAY_OUT = "The checkpoint cannot be restored whole; purge it, or bring the object back from a copy of the repository."


def _nothing(ref: str) -> Finding:
    text = "Its commit is missing from the repository: nothing can be restored, and git's own clean-up stops at it."
    return Finding(kind="points_at_nothing", name=ref, text=text)


def _other(ref: str, what: str) -> Finding:
    return Finding(kind="no_checkpoint", name=ref, text=f"It points at a {what}.")


def _incomplete(ref: str, reason: str) -> Finding:
    return Finding(kind="incomplete", name=ref, text=f"Objects are missing ({reason}). {_WAY_OUT}")


def _lines(names: Sequence[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()
