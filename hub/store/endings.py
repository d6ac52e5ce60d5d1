"""What a run leaves open when it ends early or loses its holder: calls, questions, the answer that was streaming."""

from typing import Any

from hub.protocol.events import MessageDiscarded
from hub.store import approvals, calls, questions, runs
from hub.store.calls import Result
from hub.store.database import Transaction


def close_calls(tx: Transaction, run_id: str, text: str) -> None:
    """Cancel every call of a run that has no result yet, with its open question."""
    for row in calls.unsettled(tx.conn, run_id):
        approvals.close_open(tx, row.id, "cancelled", None, text)
        questions.close_open(tx, row.id, "cancelled", None, None)
        calls.conclude(tx, row, Result(state="cancelled", text=f"Not finished: {text}"))


def free(tx: Transaction, run: Any, *, crashed: bool) -> None:
    """Let go of a running run, to be taken up again; an answer that was streaming does not count."""
    data = MessageDiscarded(message_id=run.open_message_id, reason="the hub was stopped")
    tx.emit("message.discarded", data, session_id=run.session_id, run_id=run.id)
    runs.requeue(tx, run.id, crashed=crashed)


def free_all(tx: Transaction, holder: str) -> None:
    """Let go of every running run of a holder that stops because it was told to."""
    for run in runs.unfinished(tx.conn):
        if run.holder == holder and run.state == "running":
            free(tx, run, crashed=False)
