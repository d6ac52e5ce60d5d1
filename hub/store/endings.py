"""What a run leaves open when it ends early: each call gets its one result, each question is closed."""

from hub.store import approvals, calls, questions
from hub.store.calls import Result
from hub.store.database import Transaction


def close_calls(tx: Transaction, run_id: str, text: str) -> None:
    """Cancel every call of a run that has no result yet, with its open question."""
    for row in calls.unsettled(tx.conn, run_id):
        approvals.close_open(tx, row.id, "cancelled", None, text)
        questions.close_open(tx, row.id, "cancelled", None, None)
        calls.conclude(tx, row, Result(state="cancelled", text=f"Not finished: {text}"))
