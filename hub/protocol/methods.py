"""The table of methods: one row each, read by the server, the client, the reference and the tests alike."""

from typing import Any

import msgspec

from hub.domain.values import Scope
from hub.protocol import events, params, subscribing, views

PROTOCOL_VERSION = 1
PROTOCOL_MIN = 1

FRAME_LIMIT = 1 << 20
"""Bytes of one frame after hello."""
HELLO_LIMIT = 64 << 10
"""Bytes of the first frame."""
HELLO_DEADLINE_S = 10.0
"""Seconds a connection may live without an accepted hello."""

SHORT_S = 30.0
LONG_S = 600.0


class HelloAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Who answers, and what this connection may do. Scopes are assigned by the hub, never asked for."""

    protocol: int
    hub_id: str
    boot_id: str
    log_id: str
    version: str
    scopes: list[Scope]
    actor: str
    frame_limit: int


class Method(msgspec.Struct, frozen=True):
    """One row. `mutating` methods take an idempotency key; `time_limit_s` bounds the wait for the answer."""

    name: str
    params: type[params.Params]
    result: Any
    scope: Scope | None
    doc: str
    time_limit_s: float = SHORT_S

    @property
    def mutating(self) -> bool:
        return issubclass(self.params, params.Mutation)


_ROWS = (
    Method("hub.hello", params.Hello, HelloAnswer, None, "Open the connection; must be the first frame."),
    Method("hub.status", params.Nothing, views.Status, "read", "Tell how the hub is."),
    Method("hub.drain", params.Shutdown, views.Ack, "admin", "Admit no new runs; those that run go on."),
    Method("hub.shutdown", params.Shutdown, views.Ack, "admin", "Drain until the deadline, then stop."),
    Method("workspace.add", params.WorkspaceAdd, views.WorkspaceView, "operate", "Register a directory by name."),
    Method("workspace.list", params.Nothing, list[views.WorkspaceView], "read", "List registered workspaces."),
    Method(
        "workspace.mirrors", params.WorkspaceMirrors, list[views.MirrorView], "read", "Remotes that get checkpoints."
    ),
    Method("workspace.remove", params.WorkspaceRemove, views.Ack, "operate", "Forget a name; no file is touched."),
    Method("session.create", params.SessionCreate, views.SessionView, "operate", "Start a conversation."),
    Method("session.fork", params.SessionFork, views.SessionView, "operate", "Begin anew at a checkpoint.", LONG_S),
    Method("session.list", params.SessionList, list[views.SessionView], "read", "List sessions, newest first."),
    Method("session.get", params.SessionRef, views.SessionView, "read", "Tell about one session."),
    Method("session.messages", params.SessionMessages, views.Transcript, "read", "Read the transcript by pages."),
    Method("session.update", params.SessionUpdate, views.SessionView, "operate", "Rename a session."),
    Method(
        "session.archive", params.SessionChange, views.SessionView, "operate", "Put a session aside; nothing is lost."
    ),
    Method("prompt.submit", params.PromptSubmit, views.PromptAccepted, "prompt", "Store a prompt or a steer."),
    Method("prompt.list", params.PromptList, list[views.PromptView], "read", "List pending prompts, next first."),
    Method("prompt.edit", params.PromptEdit, views.PromptView, "prompt", "Change a pending prompt's text."),
    Method("prompt.move", params.PromptMove, views.PromptView, "prompt", "Give a pending prompt another position."),
    Method("prompt.remove", params.PromptChange, views.Ack, "prompt", "Take a pending prompt back; it never runs."),
    Method("run.get", params.RunRef, views.RunView, "read", "Tell about one run."),
    Method("run.list", params.RunList, list[views.RunView], "read", "List runs, newest first."),
    Method("run.cancel", params.RunCancel, views.Ack, "prompt", "Stop a run; `run.cancelled` comes when it has."),
    Method("run.resume", params.RunChange, views.Ack, "prompt", "Take an interrupted run up again."),
    Method("approval.list", params.ApprovalList, list[views.ApprovalView], "read", "List questions about tool calls."),
    Method("approval.answer", params.ApprovalAnswer, views.ApprovalView, "approve", "Decide; the first answer wins."),
    Method("grant.list", params.GrantList, list[views.GrantView], "read", "List remembered allows."),
    Method("grant.revoke", params.GrantRevoke, views.Ack, "approve", "End a remembered allow."),
    Method("question.list", params.QuestionList, list[views.QuestionView], "read", "List questions of agents."),
    Method("question.answer", params.QuestionAnswer, views.QuestionView, "prompt", "Answer an agent's question."),
    Method(
        "checkpoint.create", params.CheckpointCreate, views.CheckpointView, "operate", "Save a workspace now.", LONG_S
    ),
    Method("checkpoint.list", params.CheckpointList, list[views.CheckpointView], "read", "List, newest first."),
    Method("checkpoint.show", params.CheckpointRef, views.CheckpointView, "read", "Tell about one checkpoint."),
    Method(
        "checkpoint.diff", params.CheckpointDiff, views.DiffView, "read", "Compare with another or with now.", LONG_S
    ),
    Method(
        "checkpoint.restore",
        params.CheckpointRestore,
        views.RestoreView,
        "operate",
        "Bring files, conversation or both back, as one transaction.",
        LONG_S,
    ),
    Method("checkpoint.undo", params.CheckpointUndo, views.RestoreView, "operate", "Undo the newest restore.", LONG_S),
    Method("checkpoint.redo", params.CheckpointUndo, views.RestoreView, "operate", "Undo the newest undo.", LONG_S),
    Method("checkpoint.keep", params.CheckpointKeep, views.CheckpointView, "operate", "Protect one from pruning."),
    Method("checkpoint.prune", params.CheckpointPrune, views.PrunedView, "operate", "Delete old ones.", LONG_S),
    Method("checkpoint.purge", params.CheckpointPurge, views.PrunedView, "admin", "Delete all of a session.", LONG_S),
    Method("checkpoint.verify", params.CheckpointVerify, views.VerifiedView, "operate", "Prove them whole.", LONG_S),
    Method("checkpoint.export", params.CheckpointExport, views.ExportedView, "admin", "Write a git bundle.", LONG_S),
    Method("delivery.list", params.DeliveryList, list[views.DeliveryView], "read", "List what is owed to an address."),
    Method("delivery.receipt", params.DeliveryReceipt, views.DeliveryView, "operate", "Say that it was shown or sent."),
    Method(
        "events.subscribe",
        params.EventsSubscribe,
        subscribing.Subscribed,
        "read",
        "Replay from a cursor, then live.",
    ),
    Method("events.unsubscribe", params.EventsUnsubscribe, views.Ack, "read", "End a subscription."),
)


def table(rows: tuple[Method, ...]) -> dict[str, Method]:
    """Return the rows by name. Raises ValueError for a duplicate."""
    by_name = {row.name: row for row in rows}
    if len(by_name) != len(rows):
        raise ValueError("two methods have the same name")
    return by_name


METHODS: dict[str, Method] = table(_ROWS)


class EventFrame(msgspec.Struct, frozen=True):
    """Params of the notification `event`: which subscription it belongs to, and the event."""

    subscription: int
    event: events.Event


class LiveFrame(msgspec.Struct, frozen=True):
    """Params of the notification `live`."""

    subscription: int
    live: events.Live


NOTIFICATIONS: dict[str, Any] = {
    "event": EventFrame,
    "live": LiveFrame,
    "events.caught_up": subscribing.CaughtUp,
    "events.gap": subscribing.Gap,
}
