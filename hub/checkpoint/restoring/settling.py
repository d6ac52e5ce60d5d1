"""Ends restores that were left unfinished: rolled back before their commit point, cleaned up after it.

Invariant: what is decided stays decided: a restore with `done.json` only ever goes forward. Nothing here asks who is
right; whether an applied restore counts is told by the caller.
"""

import logging
from collections.abc import Callable
from typing import Literal

from hub.checkpoint.joined.joint import Fate, fate_of
from hub.checkpoint.repository import GitFailed
from hub.checkpoint.restoring.journal import APPLIED, DONE, PLAN, Transaction, transactions
from hub.checkpoint.restoring.restore import Restorer
from hub.checkpoint.stores.side import Store
from hub.checkpoint.values import Recovered
from hub.errors import RefusedError, TurnbackError

log = logging.getLogger(__name__)


class Settler:
    """Settles the restores of one worktree. Its lock is held by the caller."""

    def __init__(self, store: Store, restorer: Restorer) -> None:
        self._store = store
        self._restorer = restorer

    def settle(self, in_progress: str | None) -> None:
        """End what needs nobody's word; `in_progress` is the restore that this engine has applied itself.

        Raises RefusedError restore_in_progress, and restore_unfinished for one that only its caller can decide on.
        """
        for transaction in transactions(self._store.transactions):
            if transaction.txid == in_progress:
                raise RefusedError("A restore is in progress here.", code="restore_in_progress", retryable=True)
            if self.waits(transaction):
                raise RefusedError(
                    f"Restore {transaction.txid} was applied, and the program that began it ended before it was final.",
                    code="restore_unfinished",
                    hint="Start the hub that made it again: it knows whether the restore counts.",
                )
            settled = self.settle_one(transaction, lambda _: False)
            log.warning("an unfinished restore was settled", extra={"txid": settled.txid, "went": settled.direction})

    def recover(self, is_committed: Callable[[str], bool]) -> list[Recovered]:
        """End every restore; `is_committed` tells whether an applied one counts. One of several units waits for them.

        One that cannot be ended yet does not hold up the others; its error is raised after them.
        """
        settled: list[Recovered] = []
        failures: list[Exception] = []
        for transaction in transactions(self._store.transactions):
            if transaction.is_undecided and self._joint_fate(transaction) == "open":
                continue
            try:
                settled.append(self.settle_one(transaction, is_committed))
            except (TurnbackError, GitFailed, OSError) as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        return settled

    def waits(self, transaction: Transaction) -> bool:
        """Return whether a restore was applied and only its caller knows whether it counts."""
        return transaction.is_undecided and self._joint_fate(transaction) in ("open", "alone")

    def _joint_fate(self, transaction: Transaction) -> Fate | Literal["alone"]:
        """Return what the joint journal of several units says, `alone` when there is but one unit."""
        path = transaction.read().joint
        return (fate_of(path) or "void") if path else "alone"

    def settle_one(self, transaction: Transaction, is_committed: Callable[[str], bool]) -> Recovered:
        """End one restore; `is_committed` is asked when it was applied and is not final."""
        if not (transaction.has(PLAN) or transaction.has(DONE)):
            self._restorer.discard(transaction)
            return Recovered(txid=transaction.txid, direction="discarded", target_ref="", undo_ref="", rescued=())
        journal = transaction.read()
        forward = transaction.has(DONE)
        if transaction.has(APPLIED) and not forward:
            fate = self._joint_fate(transaction)
            forward = is_committed(transaction.txid) if fate == "alone" else fate == "done"
        rescued = self._restorer.finish(transaction) if forward else self._restorer.roll_back(transaction)
        return Recovered(
            txid=transaction.txid,
            direction="forward" if forward else "back",
            target_ref=journal.target_ref,
            undo_ref=journal.undo_ref,
            rescued=rescued,
        )
