"""What the hub tells of its things. Every field is always there; None means unknown or not (yet) so.

Times are ISO 8601 in UTC, durations are seconds, costs are US dollars, sizes are bytes.
"""

from typing import Any, Literal

import msgspec

from hub.domain.messages import Message
from hub.domain.values import AgentMode, Preset, PromptMode


class View(msgspec.Struct, frozen=True, kw_only=True):
    """Base of everything that is only told."""


class Usage(View, frozen=True, kw_only=True):
    """Tokens of a run or an answer; None where the provider did not say."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None


class Status(View, frozen=True, kw_only=True):
    """The hub at this moment. `components` names each part that `ready` depends on and its state."""

    pid: int
    url: str
    version: str
    ready: bool
    draining: bool
    hub_id: str
    boot_id: str
    home: str
    started_at: str
    default_model: str | None
    sessions: int
    runs_active: int
    approvals_open: int
    components: dict[str, str]


class WorkspaceView(View, frozen=True, kw_only=True):
    id: str
    name: str
    path: str
    created_at: str


class SessionView(View, frozen=True, kw_only=True):
    """A conversation. `state` is derived from its runs: idle, queued, running, waiting or archived.

    `last_seq` is the session's newest durable event: the cursor to pass as `after_seq` after reading the messages.
    """

    id: str
    workspace: str
    title: str
    state: str
    run_count: int
    active_run_id: str | None
    pending_prompts: int
    last_seq: int
    created_at: str
    updated_at: str


class PromptView(View, frozen=True, kw_only=True):
    """A prompt that waits or was taken. `position` counts from 1 among the session's pending ones; 0 when taken."""

    id: str
    session_id: str
    mode: PromptMode
    state: str
    position: int
    text: str
    author: str
    address: str
    created_at: str
    run_id: str | None


class PromptAccepted(View, frozen=True, kw_only=True):
    """The prompt is stored. `mode` is what it became: a steer with no run to steer is a `follow_up`."""

    prompt_id: str
    session_id: str
    mode: PromptMode
    position: int
    run_id: str | None


class RunView(View, frozen=True, kw_only=True):
    id: str
    session_id: str
    run_count: int
    state: str
    stop_reason: str | None
    error: str | None
    model: str
    agent_mode: AgentMode
    preset: Preset
    prompt_id: str | None
    turns: int
    tool_calls: int
    usage: Usage
    cost: float | None
    files_changed: list[str]
    checkpoint_id: str | None
    superseded: bool
    created_at: str
    started_at: str | None
    ended_at: str | None


class Transcript(View, frozen=True, kw_only=True):
    """One page of messages, oldest first; `next_after` is the cursor of the next page, None at the end."""

    messages: list[Message]
    next_after: int | None
    last_seq: int


class ApprovalView(View, frozen=True, kw_only=True):
    """A question that holds a tool call. `arguments` are complete: what is approved is what is executed."""

    id: str
    session_id: str
    run_id: str
    call_id: str
    batch_id: str
    state: str
    tool: str
    summary: str
    arguments: dict[str, Any]
    arguments_hash: str
    cwd: str
    reason: str
    preview: str | None
    created_at: str
    expires_at: str
    decision: str | None
    decided_by: str | None
    decided_at: str | None
    message: str | None


class QuestionView(View, frozen=True, kw_only=True):
    """A question of the agent to a person."""

    id: str
    session_id: str
    run_id: str
    call_id: str
    state: str
    question: str
    options: list[str]
    created_at: str
    expires_at: str
    answer: str | None
    answered_by: str | None


class GrantView(View, frozen=True, kw_only=True):
    """A remembered allow. `target` is exact: a command's argv, a file's path or a tool's name."""

    id: str
    actor: str
    tool: str
    target: str
    scope: Literal["session", "always"]
    session_id: str | None
    workspace: str
    created_at: str
    expires_at: str | None
    revoked_at: str | None


class UncapturedView(View, frozen=True, kw_only=True):
    path: str
    why: str


class CheckpointView(View, frozen=True, kw_only=True):
    """Saved state of a workspace. `kind` is before, after, manual or undo."""

    id: str
    session_id: str | None
    run_id: str | None
    run_count: int | None
    workspace: str
    kind: str
    ref: str
    commit: str
    files: int
    uncaptured: list[UncapturedView]
    head: str | None
    branch: str | None
    note: str
    created_at: str


class ChangeView(View, frozen=True, kw_only=True):
    """One path that differs. `added` and `removed` count lines, None for what is not text."""

    path: str
    kind: str
    added: int | None
    removed: int | None


class DiffView(View, frozen=True, kw_only=True):
    changes: list[ChangeView]
    patch: str | None


class KeptView(View, frozen=True, kw_only=True):
    path: str
    reason: str


class EffectView(View, frozen=True, kw_only=True):
    """Something a tool call did outside the workspace; a restore never undoes it."""

    run_id: str
    call_id: str
    summary: str
    at: str


class RestoreView(View, frozen=True, kw_only=True):
    """A restore, planned (`dry_run`) or done. `undo` is the checkpoint that brings back what was there before."""

    dry_run: bool
    checkpoint: str
    undo: str | None
    restored: list[str]
    created: list[str]
    deleted: list[str]
    kept: list[KeptView]
    conflicts: list[str]
    index_changes: list[str]
    head_moved: bool
    notes: list[str]
    effects: list[EffectView]
    messages: int
    runs: list[str]
    prompts_cancelled: list[str]
    approvals_cancelled: list[str]


class DeliveryView(View, frozen=True, kw_only=True):
    """A message the hub owes to an address."""

    id: str
    session_id: str
    run_id: str | None
    address: str
    state: str
    text: str
    created_at: str
    sent_at: str | None


class Ack(View, frozen=True, kw_only=True):
    """Accepted and stored; `id` is what the call was about, `state` what it is now."""

    id: str
    state: str
