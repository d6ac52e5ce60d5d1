"""Carries out what retention decides: refs are deleted in one transaction, and it is written down that they were.

Invariant: nothing is deleted while a restore's journal cannot be read, and nothing that an unfinished restore of any
worktree of the repository names. Git's clean-up is never run in a user's repository; in a shadow store, which is ours
alone, it is run under the worktree's lock and frees what is older than two hours.
"""

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from hub.checkpoint.keeping.retention import Doomed, Held, Limits, Pruned, prunable
from hub.checkpoint.keeping.sizes import kept_bytes
from hub.checkpoint.restoring.journal import DONE, PLAN, Transaction, transactions
from hub.checkpoint.stores.ledger import Again, Gone, Ledgers
from hub.checkpoint.stores.records import COMMITS, Found, Records
from hub.checkpoint.stores.shadow import ShadowStore
from hub.checkpoint.stores.side import FOLDER, Store
from hub.clock import iso, parse_iso
from hub.errors import UsageError

NOTED = 10_000
"""How many pruned checkpoints are remembered by name."""
GRACE = "2.hours.ago"
FREEING_S = 900.0


class Pruner:
    """Deletes checkpoints of one repository. `hook` is told the name of each step before it."""

    def __init__(self, store: Store, records: Records, hook: Callable[[str], None]) -> None:
        self._store = store
        self._records = records
        self._ledgers = Ledgers(store.common_dir)
        self._hook = hook

    def prune(
        self, limits: Limits, now: datetime, live: Collection[str], needed: Collection[str], *, dry_run: bool
    ) -> Pruned:
        """Delete what is over the limits. Raises CheckpointError journal_unreadable."""
        with contextlib.nullcontext() if dry_run else self._ledgers.alone():
            held = self._held()
            doomed = prunable(held, limits, now=now, live=live, needed={*needed, *self._in_use()})
            return self._carry_out(held, doomed, _reasons(limits), now, dry_run=dry_run)

    def purge(self, prefix: str, now: datetime, *, dry_run: bool) -> Pruned:
        """Delete the checkpoint of this name and all below it, protected ones too."""
        name = prefix.rstrip("/")
        if not name:
            raise UsageError("Say whose checkpoints are to be purged.", code="bad_ref")
        with contextlib.nullcontext() if dry_run else self._ledgers.alone():
            held = self._held()
            sizes = {row.ref: row.bytes for row in held}
            refs = [ref for ref, _ in self._records.refs(parts=True) if f"{ref}/".startswith(f"{name}/")]
            doomed = [Doomed(ref=ref, why="purged", bytes=sizes.get(ref, 0)) for ref in refs]
            return self._carry_out(held, doomed, {"purged": "purged on request"}, now, dry_run=dry_run)

    def _carry_out(
        self,
        held: Collection[Held],
        doomed: Collection[Doomed],
        why: Mapping[str, str],
        now: datetime,
        *,
        dry_run: bool,
    ) -> Pruned:
        if doomed and not dry_run:
            self._hook("prune:noting")
            self._ledgers.gone.append([Gone(row.ref, why[row.why], iso(now)) for row in doomed], durably=True)
            self._hook("prune:deleting")
            self._records.forget([row.ref for row in doomed])
        if not dry_run:
            self._hook("prune:tidying")
            self._tidy()
            self._free()
        return Pruned(
            pruned=tuple(doomed),
            kept=len(self._records.refs()) - (len(doomed) if dry_run else 0),
            bytes_before=sum(row.bytes for row in held),
            bytes_pruned=sum(row.bytes for row in doomed),
            dry_run=dry_run,
        )

    def _tidy(self) -> None:
        """Shorten the lists. Refs are asked for while a list is locked: what it names has been written by then."""

        def gone(rows: list[Gone]) -> list[Gone]:
            there = dict(self._records.refs(parts=True))
            return [row for row in rows if row.ref not in there][-NOTED:]

        def again(rows: list[Again]) -> list[Again]:
            there = dict(self._records.refs(parts=True))
            return [row for row in rows if row.ref in there]

        self._ledgers.gone.retain(gone)
        self._ledgers.again.retain(again)

    def _free(self) -> None:
        """Free the objects of what was deleted, where they are nobody else's."""
        if isinstance(self._store, ShadowStore):
            git = self._store.user.with_index(self._store.user_index)
            git.deadline = time.monotonic() + FREEING_S
            git.run("gc", "--quiet", f"--prune={GRACE}")

    def _held(self) -> list[Held]:
        """Return every checkpoint that can be read, and the commits taken off branches beside them."""
        found = [row for row in self._records.all() if isinstance(row, Found)]
        commits = self._commits()
        times = self._times(found) | self._commit_times(commits)
        oids = {row.ref: row.commit for row in found} | commits
        newest = {oids[ref]: ref for ref in sorted(oids, key=times.__getitem__)}
        sizes = kept_bytes(self._store.user, newest)
        protected = self._records.protected()
        return [
            Held(
                ref=ref,
                taken_at=times[ref],
                bytes=sizes[oid] if newest[oid] == ref else 0,
                protected=ref in protected,
            )
            for ref, oid in oids.items()
        ]

    def _commits(self) -> dict[str, str]:
        """Return the commits taken off branches, those that are there, by the names of their refs."""
        found = {ref: oid for ref, oid in self._records.refs() if COMMITS.fullmatch(ref)}
        there = self._store.user.sizes(found.values())
        return {ref: oid for ref, oid in found.items() if oid in there}

    def _times(self, found: Iterable[Found]) -> dict[str, datetime]:
        """Return when each checkpoint was taken, also where an earlier one's commit stands for it."""
        again = {row.ref: row.at for row in self._ledgers.again.rows()}
        return {row.ref: parse_iso(max(row.meta.created_at, again.get(row.ref, ""))) for row in found}

    def _commit_times(self, commits: Mapping[str, str]) -> dict[str, datetime]:
        if not commits:
            return {}
        names = "".join(f"{oid}\n" for oid in commits.values()).encode()
        lines = self._store.user.run("rev-list", "--no-walk", "--format=%H %cI", "--stdin", stdin=names).decode()
        dates = dict(line.split(" ", 1) for line in lines.splitlines() if not line.startswith("commit "))
        return {ref: datetime.fromisoformat(dates[oid]) for ref, oid in commits.items()}

    def _in_use(self) -> set[str]:
        """Return what unfinished restores name, in every worktree of the repository."""
        found: set[str] = set()
        linked = [os.path.join(room, b"txn") for room in rooms(self._store.common_dir)]
        for folder in dict.fromkeys([self._store.transactions, *linked]):
            for transaction in transactions(folder):
                found |= _named(transaction)
        return found


def _named(transaction: Transaction) -> set[str]:
    """Return the checkpoints that a restore names; none when it has not begun, or ends at this moment."""
    with contextlib.suppress(FileNotFoundError):
        if transaction.has(PLAN) or transaction.has(DONE):
            journal = transaction.read()
            return {journal.target_ref, journal.undo_ref}
    return set()


def rooms(common_dir: bytes) -> list[bytes]:
    """Return our folder in the git directory of each worktree of a repository."""
    linked = os.path.join(common_dir, b"worktrees")
    names = sorted(os.listdir(linked)) if os.path.isdir(linked) else []
    return [os.path.join(folder, FOLDER) for folder in (common_dir, *(os.path.join(linked, name) for name in names))]


def _reasons(limits: Limits) -> dict[str, str]:
    return {
        "runs": f"its session had more than {limits.runs} runs",
        "age": f"it was older than {limits.days:g} days" if limits.days is not None else "",
        "size": f"the checkpoints took more than {(limits.bytes or 0) / (1 << 30):.3g} GiB",
    }
