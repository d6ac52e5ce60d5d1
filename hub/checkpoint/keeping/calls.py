"""The engine's calls about checkpoints as they are kept: protect, prune, purge, look after, export.

Invariant: none of them touches the worktree, the user's index or a ref of the user's.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from hub.checkpoint.failures import check_there, told
from hub.checkpoint.keeping.export import Exported, export
from hub.checkpoint.keeping.leftovers import Leftovers
from hub.checkpoint.keeping.mirrors import Mirrors, mirrors
from hub.checkpoint.keeping.pruning import Pruner
from hub.checkpoint.keeping.retention import Limits, Pruned
from hub.checkpoint.keeping.soundness import Soundness, is_whole
from hub.checkpoint.keeping.verify import Finding, Verified
from hub.checkpoint.restoring.settling import Settler
from hub.checkpoint.stores.meta import Part
from hub.checkpoint.stores.records import Found, Records
from hub.checkpoint.stores.shadow import ShadowStore
from hub.checkpoint.stores.side import Store
from hub.checkpoint.values import CheckpointError


class Keeping(ABC):
    """What an engine of one worktree can do with the repository's checkpoints."""

    hook: Callable[[str], None]
    _store: Store
    _records: Records
    _settler: Settler
    _open: str | None

    @abstractmethod
    def _locked(self) -> AbstractContextManager[None]:
        """Hold the worktree's lock."""

    def keep(self, ref: str, on: bool = True) -> None:
        """Protect a checkpoint from `prune`, or end that. A ref `refs/turnback/keep/<ref>` says so. Raises as `get`."""
        with told():
            self._records.protect(ref) if on else self._records.unprotect(ref)

    def kept(self) -> Sequence[str]:
        """Return the names of protected checkpoints, in order."""
        with told():
            return sorted(self._records.protected())

    def forget(self, refs: Sequence[str]) -> None:
        """Delete checkpoints' refs, all or none, protected or not. Their objects stay until git cleans up by itself."""
        with told():
            self._records.forget(refs)

    def prune(
        self,
        limits: Limits | None = None,
        *,
        live: Collection[str] = (),
        needed: Collection[str] = (),
        dry_run: bool = False,
        now: datetime | None = None,
    ) -> Pruned:
        """Delete the repository's checkpoints that are over the limits, all or none; in a dry run only tell which.

        Spared are each session's first, protected ones, `needed` refs, and of sessions in `live` (first parts of refs)
        the undo points and the last run. `get` then says of a pruned one that it was. Raises CheckpointError.
        """
        with self._deleting():
            return self._pruner().prune(limits or Limits(), now or datetime.now(UTC), live, needed, dry_run=dry_run)

    def purge(self, prefix: str, *, dry_run: bool = False, now: datetime | None = None) -> Pruned:
        """Delete all checkpoints of a session (the first part of its refs), or a single one, protected or not.

        In a repository the objects go when git cleans up by itself; in a shadow store now, but for what was written in
        the last two hours. Raises UsageError bad_ref for an empty prefix.
        """
        with self._deleting():
            return self._pruner().purge(prefix, now or datetime.now(UTC), dry_run=dry_run)

    def verify(self, *, repair: bool = False, deep: bool = False) -> Verified:
        """Look at every checkpoint of the repository and for leftovers in this worktree; `deep` reads every byte.

        `repair` removes leftovers that are proven to be ours and of no use, rolls back what was begun and not ended,
        and deletes refs that point at nothing. Raises RefusedError workspace_busy, CheckpointError git_failed.
        """
        left = self._leftovers(repair=repair)
        with told():
            soundness = Soundness(self._store, self._records)
            complete, found = soundness.look(deep=deep)
            found = soundness.drop(found) if repair else found
            damaged = {row.name for row in found if row.kind != "no_checkpoint" and is_whole(row.name)}
        return Verified(
            checkpoints=len({*complete, *damaged}), complete=len(complete), deep=deep, findings=(*found, *left)
        )

    def _leftovers(self, *, repair: bool) -> Sequence[Finding]:
        leftovers = Leftovers(self._store, self._settler, self._open)
        try:
            with self._locked():
                return leftovers.look(repair=repair)
        except CheckpointError as error:
            if repair or error.code != "store_unwritable":
                raise
        with told():  # nothing can be locked on a file system that is read only, and nobody can write there
            return leftovers.look(repair=False)

    def parts_of_all(self) -> Sequence[tuple[str, str, Part]]:
        """Return each part that a checkpoint here has: the checkpoint's name, the part's path, what is recorded."""
        with told():
            found = [row for row in self._records.all(parts=True) if isinstance(row, Found)]
        return [(row.ref, key, part) for row in found for key, part in sorted(row.meta.parts.items())]

    def names(self) -> Collection[str]:
        """Return the names of all checkpoints, and of parts that others have here."""
        with told():
            return {name for name, _ in self._records.refs(parts=True)}

    def export(self, refs: Sequence[str], file: Path, *, overwrite: bool = False) -> Exported:
        """Write checkpoints into a git bundle, whole or not at all; the module `export` says how plain git reads it.

        Raises NotFoundError, ConflictError file_exists, UsageError not_a_directory, CheckpointError export_failed.
        """
        with told():
            return export(self._store, self._records, refs, file, overwrite=overwrite)

    def remotes_that_mirror(self) -> Mirrors:
        """Return the remotes to which a plain `git push` would send the checkpoints, and how to prevent it."""
        with told():
            return mirrors(self._store.user)

    @contextmanager
    def _deleting(self) -> Iterator[None]:
        """Hold the worktree's lock where objects are freed, too."""
        with self._locked() if isinstance(self._store, ShadowStore) else told():
            check_there(self._store.common_dir)
            yield

    def _pruner(self) -> Pruner:
        return Pruner(self._store, self._records, lambda step: self.hook(step))
