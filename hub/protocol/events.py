"""The table of events: past tense, small data, one durable row each; and the live notices that have no seq.

`EVENTS` and `LIVE` are the whole truth: the log refuses other types, and the reference is generated from them.
"""

from typing import Any

import msgspec

from hub.domain.values import AgentMode, Preset, PromptMode
from hub.protocol.views import Usage

TEXT_LIMIT = 16_384
"""Characters of text an event may carry; the whole text is in the transcript or the view."""


class Event(msgspec.Struct, frozen=True):
    """A fact in the log. `prev_seq` is the seq of the session's event before it, 0 for the first."""

    seq: int
    prev_seq: int
    session_id: str | None
    run_id: str | None
    type: str
    at: str
    data: msgspec.Raw


class Live(msgspec.Struct, frozen=True):
    """Something worth showing now and not worth keeping."""

    type: str
    session_id: str | None
    run_id: str | None
    data: msgspec.Raw


class Data(msgspec.Struct, frozen=True, kw_only=True):
    """Base of an event's data."""


class HubStarted(Data, frozen=True, kw_only=True):
    """The hub is up. The counts say what start-up recovery found."""

    boot_id: str
    runs_reclaimed: int
    calls_unknown: int
    children_ended: int
    restores_forward: int
    restores_back: int


class HubDraining(Data, frozen=True, kw_only=True):
    """No new runs are admitted."""

    deadline_s: float


class WorkspaceChanged(Data, frozen=True, kw_only=True):
    """A workspace was registered, anew with another mode too, or removed."""

    name: str
    path: str


class SessionChanged(Data, frozen=True, kw_only=True):
    """A session was made, renamed or archived."""

    title: str
    workspace: str


class PromptQueued(Data, frozen=True, kw_only=True):
    """A prompt is stored and waits."""

    prompt_id: str
    mode: PromptMode
    position: int
    author: str
    text: str


class PromptTaken(Data, frozen=True, kw_only=True):
    """A prompt became a run (`as_steer` false) or was given to the run in progress."""

    prompt_id: str
    as_steer: bool


class PromptChanged(Data, frozen=True, kw_only=True):
    """A pending prompt was edited, moved or turned from a steer into a follow-up."""

    prompt_id: str
    mode: PromptMode
    position: int
    text: str


class PromptRemoved(Data, frozen=True, kw_only=True):
    """A pending prompt will never run."""

    prompt_id: str
    reason: str


class RunStarted(Data, frozen=True, kw_only=True):
    """A prompt became a run."""

    run_count: int
    prompt_id: str | None
    model: str
    agent_mode: AgentMode
    preset: Preset


class RunWaiting(Data, frozen=True, kw_only=True):
    """The run needs an answer; it holds no lock and no model connection meanwhile."""

    approvals: list[str]
    questions: list[str]


class RunQueued(Data, frozen=True, kw_only=True):
    """An interrupted run is to be taken up again, because `by` asked for it."""

    by: str


class RunContinued(Data, frozen=True, kw_only=True):
    """The run goes on: answered, reclaimed after a restart, or resumed. `generation` counts its holders."""

    reason: str
    generation: int


class RunEnded(Data, frozen=True, kw_only=True):
    """The run is over and nothing of it lives any more. `no_checkpoint` says why nothing can bring its files back."""

    stop_reason: str
    error: str | None
    text: str
    usage: Usage
    cost: float | None
    files_changed: list[str]
    turns: int
    tool_calls: int
    checkpoint_id: str | None
    no_checkpoint: str | None


class RunCancelling(Data, frozen=True, kw_only=True):
    """Somebody asked for the run's end; it is being stopped."""

    by: str


class MessageAdded(Data, frozen=True, kw_only=True):
    """The transcript grew. `position` is the message's place in it; `cut` says that `text` is not all of it."""

    message_id: str
    position: int
    role: str
    text: str
    cut: bool


class MessageDiscarded(Data, frozen=True, kw_only=True):
    """A streamed answer was broken off and is asked for again; what was shown of it does not count."""

    message_id: str
    reason: str


class CallProposed(Data, frozen=True, kw_only=True):
    """The model wants this. `arguments` is None when they are too large for an event."""

    call_id: str
    name: str
    summary: str
    arguments: dict[str, Any] | None
    verdict: str
    source: str
    reason: str


class CallStarted(Data, frozen=True, kw_only=True):
    """The call executes now."""

    call_id: str
    name: str
    summary: str


class CallEnded(Data, frozen=True, kw_only=True):
    """The call is settled. `display` is what people see (a diff, say), None when that is `text`."""

    call_id: str
    name: str
    state: str
    text: str
    display: str | None
    paths: list[str]


class ApprovalOpened(Data, frozen=True, kw_only=True):
    """A call waits for an answer. `arguments` is None when too large for an event; the view has them whole."""

    approval_id: str
    call_id: str
    batch_id: str
    tool: str
    summary: str
    arguments: dict[str, Any] | None
    cwd: str
    reason: str
    preview: str | None
    expires_at: str


class ApprovalDecided(Data, frozen=True, kw_only=True):
    """The question is closed: allowed, rejected, expired or cancelled."""

    approval_id: str
    call_id: str
    state: str
    decision: str | None
    decided_by: str | None
    message: str | None


class QuestionOpened(Data, frozen=True, kw_only=True):
    """The agent asks a person."""

    question_id: str
    call_id: str
    question: str
    options: list[str]
    expires_at: str


class QuestionClosed(Data, frozen=True, kw_only=True):
    """The question is answered, expired or cancelled."""

    question_id: str
    call_id: str
    state: str
    answer: str | None
    answered_by: str | None


class GrantChanged(Data, frozen=True, kw_only=True):
    """A remembered allow was added or revoked."""

    grant_id: str
    tool: str
    target: str
    scope: str


class CheckpointCreated(Data, frozen=True, kw_only=True):
    """The workspace's state is saved."""

    checkpoint_id: str
    kind: str
    run_count: int | None
    files: int
    uncaptured: int


class CheckpointFailed(Data, frozen=True, kw_only=True):
    """There is no checkpoint of this kind for a run, because of `reason`.

    With the kind hook there is one, but the user's hook before it failed; with after, what the run changed is unknown.
    """

    kind: str
    run_count: int | None
    code: str
    reason: str


class RestoreCommitted(Data, frozen=True, kw_only=True):
    """Files, conversation or both are back at a checkpoint; `undo_id` brings back what was there before.

    `cancelled` counts what was put aside with superseded runs, `resumed` what an undo took up again.
    """

    restore_id: str
    checkpoint_id: str
    undo_id: str | None
    only: str | None
    restored: int
    created: int
    deleted: int
    messages: int
    direction: str
    reach: str
    head_moved: bool
    cancelled: int
    resumed: int


class DeliveryChanged(Data, frozen=True, kw_only=True):
    """A result waits for an address, or was delivered to it."""

    delivery_id: str
    address: str
    state: str


class MessageDelta(Data, frozen=True, kw_only=True):
    """Streamed text: `text` stands at `offset` of the answer that will be `message_id`."""

    message_id: str
    offset: int
    text: str


class CallProgress(Data, frozen=True, kw_only=True):
    """Output of a call while it runs."""

    call_id: str
    text: str


class ModelNotice(Data, frozen=True, kw_only=True):
    """What the model is waiting for."""

    text: str


class CheckpointProgress(Data, frozen=True, kw_only=True):
    """How far a capture or restore is."""

    step: str
    done: int
    total: int


EVENTS: dict[str, type[Data]] = {
    "hub.started": HubStarted,
    "hub.draining": HubDraining,
    "workspace.added": WorkspaceChanged,
    "workspace.removed": WorkspaceChanged,
    "session.created": SessionChanged,
    "session.updated": SessionChanged,
    "session.archived": SessionChanged,
    "prompt.queued": PromptQueued,
    "prompt.taken": PromptTaken,
    "prompt.edited": PromptChanged,
    "prompt.moved": PromptChanged,
    "prompt.removed": PromptRemoved,
    "run.started": RunStarted,
    "run.waiting": RunWaiting,
    "run.queued": RunQueued,
    "run.continued": RunContinued,
    "run.cancelling": RunCancelling,
    "run.completed": RunEnded,
    "run.failed": RunEnded,
    "run.cancelled": RunEnded,
    "run.interrupted": RunEnded,
    "message.added": MessageAdded,
    "message.discarded": MessageDiscarded,
    "tool_call.proposed": CallProposed,
    "tool_call.started": CallStarted,
    "tool_call.ended": CallEnded,
    "approval.opened": ApprovalOpened,
    "approval.decided": ApprovalDecided,
    "question.opened": QuestionOpened,
    "question.closed": QuestionClosed,
    "grant.added": GrantChanged,
    "grant.revoked": GrantChanged,
    "checkpoint.created": CheckpointCreated,
    "checkpoint.failed": CheckpointFailed,
    "restore.committed": RestoreCommitted,
    "delivery.available": DeliveryChanged,
    "delivery.sent": DeliveryChanged,
}

LIVE: dict[str, type[Data]] = {
    "message.delta": MessageDelta,
    "tool_call.progress": CallProgress,
    "model.notice": ModelNotice,
    "checkpoint.progress": CheckpointProgress,
}

RUN_ENDS = frozenset({"run.completed", "run.failed", "run.cancelled", "run.interrupted"})
