"""What the hub tells of its things. Every field is always there; None means unknown or not (yet) so.

Times are ISO 8601 in UTC, durations are seconds, costs are US dollars, sizes are bytes.
"""

from typing import Any, Literal

import msgspec

from hub.domain.messages import Message
from hub.domain.values import AgentMode, CheckpointMode, Preset, PromptMode, Reach


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
    """A directory by name. `checkpoint` says whether its runs need a checkpoint, None: as the hub is configured."""

    id: str
    name: str
    path: str
    checkpoint: CheckpointMode | None
    created_at: str


class MirrorView(View, frozen=True, kw_only=True):
    """A remote to which a plain `git push` would send checkpoints; `remedy` are the command lines that end it."""

    repository: str
    remote: str
    why: str
    remedy: list[str]


class SessionView(View, frozen=True, kw_only=True):
    """A conversation. `state` is derived from its runs: idle, queued, running, waiting or archived.

    `last_seq` is the session's newest durable event: the cursor to pass as `after_seq` after reading the messages.
    `forked_from` is the session whose conversation it began with.
    """

    id: str
    workspace: str
    title: str
    state: str
    run_count: int
    active_run_id: str | None
    pending_prompts: int
    last_seq: int
    forked_from: str | None
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
    no_checkpoint: str | None
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
    """Saved state of a workspace.

    `kind` is before or after (a run), left or back (a run that waits for an answer meanwhile), step (between a run's
    calls), preimage (ignored files, before a run writes them), manual or undo. `prompt` is how that of the run begins
    before which it was taken. `protected`: it is never pruned. `pruned_at`: its files are gone; it cannot be restored.
    """

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
    prompt: str | None
    protected: bool
    pruned_at: str | None
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
    """A path that differs and stays as it is. `author` is the session whose run wrote it last, None: anybody else."""

    path: str
    reason: str
    author: str | None


class PlannedView(View, frozen=True, kw_only=True):
    """What becomes of one path. Sizes are in bytes, None on the side where there is no file; `author` is as above."""

    path: str
    action: Literal["restore", "create", "delete"]
    old_size: int | None
    new_size: int | None
    author: str | None


class ConflictView(View, frozen=True, kw_only=True):
    """A path that changed while it was restored. `rescue` is where the newer content lies, None: it stayed in place."""

    path: str
    reason: str
    rescue: str | None


class HeadView(View, frozen=True, kw_only=True):
    """How a branch moves: by how many commits, `forward` or back. `kept_ref` keeps those that come off."""

    ref: str
    old: str
    new: str
    forward: bool
    commits: int
    kept_ref: str | None


class HangingView(View, frozen=True, kw_only=True):
    """Something that hangs on the runs that a restore puts aside. `kind`: run, prompt, approval, question or grant."""

    kind: str
    id: str
    text: str


class EffectView(View, frozen=True, kw_only=True):
    """Something a tool call did outside the workspace; a restore never undoes it."""

    run_id: str
    call_id: str
    summary: str
    at: str


class RestoreView(View, frozen=True, kw_only=True):
    """A restore, planned (`dry_run`) or done. `undo` is the checkpoint that brings back what was there before.

    `changes` tells more about each path of `restored`, `created` and `deleted`. `cancelled` is what no longer proceeds,
    because it hangs on runs that are put aside; `resumed` is what an undo takes up again. `conversation`: it moves,
    too. `effects` are what tool calls did outside the files since: no restore takes these back.
    """

    dry_run: bool
    checkpoint: str
    undo: str | None
    reach: Reach
    restored: list[str]
    created: list[str]
    deleted: list[str]
    changes: list[PlannedView]
    kept: list[KeptView]
    conflicts: list[ConflictView]
    index_changes: list[str]
    head_moved: bool
    head: HeadView | None
    notes: list[str]
    effects: list[EffectView]
    conversation: bool
    messages: int
    runs: list[str]
    cancelled: list[HangingView]
    resumed: list[HangingView]


class PrunedItemView(View, frozen=True, kw_only=True):
    """One checkpoint that goes. `why`: runs, age, size or purged. `checkpoint_id` is None for one not in the store."""

    checkpoint_id: str | None
    ref: str
    why: str
    bytes: int


class PrunedView(View, frozen=True, kw_only=True):
    """What was pruned, or would be. Bytes are what the checkpoints alone keep on disk, estimated."""

    pruned: list[PrunedItemView]
    kept: int
    bytes_before: int
    bytes_pruned: int
    dry_run: bool


class FindingView(View, frozen=True, kw_only=True):
    """One thing that verify found; `name` is a ref or a path, `text` says what it is and what to do."""

    kind: str
    name: str
    text: str
    repaired: bool


class VerifiedView(View, frozen=True, kw_only=True):
    """`sound`: no checkpoint is damaged and no restore waits to be ended; leftovers do not count."""

    checkpoints: int
    complete: int
    deep: bool
    sound: bool
    findings: list[FindingView]


class ExportedView(View, frozen=True, kw_only=True):
    """A bundle that was written. `commands` bring its first checkpoint into a new folder, with plain git."""

    path: str
    refs: list[str]
    bytes: int
    commands: list[str]


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
