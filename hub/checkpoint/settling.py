"""Ends restores that were left unfinished: rolled back before their commit point, cleaned up after it.

Invariant: what is decided stays decided: a restore with `done.json` only ever goes forward. Nothing here asks who is
right; whether an applied restore counts is told by the caller.
"""

import logging
from collections.abc import Callable

from hub.checkpoint.journal import APPLIED, DONE, PLAN, Transaction, transactions
from hub.checkpoint.repository import GitFailed
from hub.checkpoint.restore import Restorer
from hub.checkpoint.side import Store
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
            if transaction.is_undecided:
                raise RefusedError(
                    f"Restore {transaction.txid} was applied, and the program that began it ended before it was final.",
                    code="restore_unfinished",
                    hint="Start the hub that made it again: it knows whether the restore counts.",
                )
            settled = self._one(transaction, lambda _: False)
            log.warning("an unfinished restore was settled", extra={"txid": settled.txid, "went": settled.direction})

    def recover(self, is_committed: Callable[[str], bool]) -> list[Recovered]:
        """End every restore; `is_committed` tells whether an applied one counts.

        One that cannot be ended yet does not hold up the others; its error is raised after them.
        """
        settled: list[Recovered] = []
        failures: list[Exception] = []
        for transaction in transactions(self._store.transactions):
            try:
                settled.append(self._one(transaction, is_committed))
            except (TurnbackError, GitFailed, OSError) as failure:
                failures.append(failure)
        if failures:
            raise failures[0]
        return settled

    def _one(self, transaction: Transaction, is_committed: Callable[[str], bool]) -> Recovered:
        if not (transaction.has(PLAN) or transaction.has(DONE)):
            self._restorer.discard(transaction)
            return Recovered(txid=transaction.txid, direction="discarded", target_ref="", undo_ref="", rescued=())
        journal = transaction.read()
        forward = transaction.has(DONE) or (transaction.has(APPLIED) and is_committed(transaction.txid))
        rescued = self._restorer.finish(transaction) if forward else self._restorer.roll_back(transaction)
        return Recovered(
            txid=transaction.txid,
            direction="forward" if forward else "back",
            target_ref=journal.target_ref,
            undo_ref=journal.undo_ref,
            rescued=rescued,
        )
