"""What callers send. Unknown fields are refused, so that nothing privileged can be smuggled in."""

from typing import Annotated, Literal

import msgspec

from hub.domain.values import (
    AgentMode,
    AutoApprove,
    CheckpointMode,
    Decision,
    OnConflict,
    Preset,
    PromptMode,
    Reach,
    RestoreOnly,
)

Text = Annotated[str, msgspec.Meta(min_length=1, max_length=400_000)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Key = Annotated[str, msgspec.Meta(min_length=8, max_length=200)]
Page = Annotated[int, msgspec.Meta(ge=1, le=1000)]
Seq = Annotated[int, msgspec.Meta(ge=0)]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the parameters of calls that change nothing."""


class Mutation(Params, frozen=True, kw_only=True):
    """Base of the parameters of calls that change something: the same key gives the same answer for 7 days."""

    idempotency_key: Key


class VersionRange(Params, frozen=True, kw_only=True):
    min: int
    max: int


class ClientInfo(Params, frozen=True, kw_only=True):
    """Who calls, for people who read logs; it grants nothing."""

    kind: Name
    name: Name
    version: Name


class Hello(Params, frozen=True, kw_only=True):
    protocol: VersionRange
    client: ClientInfo
    token: Name


class Nothing(Params, frozen=True, kw_only=True):
    pass


class Change(Mutation, frozen=True, kw_only=True):
    """A mutation without further parameters."""


class Shutdown(Mutation, frozen=True, kw_only=True):
    """`deadline_s` bounds the drain; runs that are not done by then go on after the next start."""

    deadline_s: Annotated[float, msgspec.Meta(ge=0, le=3600)] = 10.0


class WorkspaceAdd(Mutation, frozen=True, kw_only=True):
    """Name a directory, or change what a name means. `checkpoint` overrides the hub's mode for all runs in it."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
    path: Text
    checkpoint: CheckpointMode | None = None


class WorkspaceMirrors(Params, frozen=True, kw_only=True):
    workspace: Text


class WorkspaceRemove(Mutation, frozen=True, kw_only=True):
    name: Name


class SessionFork(Mutation, frozen=True, kw_only=True):
    """Open a new session that begins with the conversation as it stood at a checkpoint.

    It works in the same workspace, or in `worktree` (absolute, not there yet): a linked worktree that is made for it
    and filled with the checkpoint's files.
    """

    session_id: Name
    checkpoint_id: Name
    worktree: Text | None = None
    title: Annotated[str, msgspec.Meta(max_length=200)] = ""


class SessionCreate(Mutation, frozen=True, kw_only=True):
    """`workspace` is a registered name or an absolute path."""

    workspace: Text
    title: Annotated[str, msgspec.Meta(max_length=200)] = ""


class SessionList(Params, frozen=True, kw_only=True):
    archived: bool = False
    limit: Page = 200


class SessionRef(Params, frozen=True, kw_only=True):
    session_id: Name


class SessionUpdate(Mutation, frozen=True, kw_only=True):
    session_id: Name
    title: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class SessionChange(Mutation, frozen=True, kw_only=True):
    session_id: Name


class SessionMessages(Params, frozen=True, kw_only=True):
    """`after` is a page cursor; `superseded` adds the messages that a restore has put aside."""

    session_id: Name
    after: Seq = 0
    limit: Page = 200
    superseded: bool = False


class Limits(Params, frozen=True, kw_only=True):
    """Bounds of one run; None is the hub's default."""

    max_turns: Annotated[int, msgspec.Meta(ge=1, le=10_000)] | None = None
    max_tool_calls: Annotated[int, msgspec.Meta(ge=1, le=100_000)] | None = None
    max_wall_s: Annotated[float, msgspec.Meta(gt=0, le=7 * 86400)] | None = None
    max_cost: Annotated[float, msgspec.Meta(gt=0)] | None = None


class RunOptions(Params, frozen=True, kw_only=True):
    """How the run is to be carried out. None is the configured default."""

    agent_mode: AgentMode = "act"
    preset: Preset = "default"
    model: Text | None = None
    auto_approve: tuple[AutoApprove, ...] = ()
    limits: Limits = Limits()


class PromptSubmit(Mutation, frozen=True, kw_only=True):
    """Give either `session_id`, or `workspace` (a registered name or an absolute path) for a new session.

    `address` is where the result goes; `terminal:` waits in the inbox until somebody has seen it, empty goes nowhere.
    """

    text: Text
    session_id: Name | None = None
    workspace: Text | None = None
    mode: PromptMode = "steer"
    run: RunOptions = RunOptions()
    address: Annotated[str, msgspec.Meta(max_length=200)] = ""


class PromptList(Params, frozen=True, kw_only=True):
    session_id: Name


class PromptEdit(Mutation, frozen=True, kw_only=True):
    prompt_id: Name
    text: Text


class PromptMove(Mutation, frozen=True, kw_only=True):
    """`position` counts from 1, the next to be taken."""

    prompt_id: Name
    position: Annotated[int, msgspec.Meta(ge=1)]


class PromptChange(Mutation, frozen=True, kw_only=True):
    prompt_id: Name


class RunRef(Params, frozen=True, kw_only=True):
    run_id: Name


class RunList(Params, frozen=True, kw_only=True):
    session_id: Name | None = None
    limit: Page = 100


class RunCancel(Mutation, frozen=True, kw_only=True):
    """Give either a run or a session, whose active run is meant."""

    run_id: Name | None = None
    session_id: Name | None = None


class RunChange(Mutation, frozen=True, kw_only=True):
    run_id: Name


class ApprovalList(Params, frozen=True, kw_only=True):
    session_id: Name | None = None
    state: Literal["open", "all"] = "open"
    limit: Page = 200


class ApprovalAnswer(Mutation, frozen=True, kw_only=True):
    """`message` goes to the model with a rejection."""

    approval_id: Name
    decision: Decision
    message: Annotated[str, msgspec.Meta(max_length=10_000)] = ""


class QuestionList(Params, frozen=True, kw_only=True):
    session_id: Name | None = None
    state: Literal["open", "all"] = "open"
    limit: Page = 200


class QuestionAnswer(Mutation, frozen=True, kw_only=True):
    question_id: Name
    answer: Annotated[str, msgspec.Meta(min_length=1, max_length=100_000)]


class GrantList(Params, frozen=True, kw_only=True):
    session_id: Name | None = None


class GrantRevoke(Mutation, frozen=True, kw_only=True):
    grant_id: Name


class CheckpointCreate(Mutation, frozen=True, kw_only=True):
    """Give a session, or a workspace (a registered name or an absolute path) that needs no session."""

    session_id: Name | None = None
    workspace: Text | None = None
    note: Annotated[str, msgspec.Meta(max_length=500)] = ""


class CheckpointList(Params, frozen=True, kw_only=True):
    """`kinds` limits the list; without it only what was taken before runs and by hand is listed."""

    session_id: Name | None = None
    workspace: Text | None = None
    kinds: tuple[str, ...] = ("before", "manual")
    limit: Page = 200


class CheckpointRef(Params, frozen=True, kw_only=True):
    checkpoint_id: Name


class CheckpointDiff(Params, frozen=True, kw_only=True):
    """From `checkpoint_id` to `other_id`, or to the workspace as it is now."""

    checkpoint_id: Name
    other_id: Name | None = None
    patch: bool = False


class CheckpointRestore(Mutation, frozen=True, kw_only=True):
    """`session_id` says whose conversation moves; without it the checkpoint's own session, if it has one.

    `only` limits what is restored; `interrupt` cancels a run that is in the way, and proves that it has stopped.
    `paths`, relative to the worktree, narrow the files to these and what lies below; the conversation then stays.
    `reach` session takes back only what this session wrote and nobody has changed since; tree is the exact tree;
    without it: tree when nobody else wrote, else session. `head` moves the branch back, too. `on_conflict` says what
    becomes of a file that changes while it is restored: all is taken back (abort), it stays, or it is put aside.
    """

    checkpoint_id: Name
    session_id: Name | None = None
    only: RestoreOnly | None = None
    dry_run: bool = False
    interrupt: bool = False
    paths: Annotated[tuple[Text, ...], msgspec.Meta(min_length=1, max_length=10_000)] | None = None
    reach: Reach | None = None
    head: bool = False
    on_conflict: OnConflict = "abort"


class CheckpointUndo(Mutation, frozen=True, kw_only=True):
    """Undo the newest restore of a session, or of a workspace without sessions; or redo the newest that was undone.

    `reach` session takes back only what that restore changed and nobody has changed since; tree makes everything as it
    was before it; without it: tree when nothing was changed since, else session.
    """

    session_id: Name | None = None
    workspace: Text | None = None
    dry_run: bool = False
    interrupt: bool = False
    reach: Reach | None = None
    on_conflict: OnConflict = "abort"


class CheckpointKeep(Mutation, frozen=True, kw_only=True):
    """Protect a checkpoint from being pruned, or end its protection."""

    checkpoint_id: Name
    keep: bool = True


class CheckpointPrune(Mutation, frozen=True, kw_only=True):
    """Prune a workspace's checkpoints by what is configured, or by other limits: runs a session, days, bytes."""

    workspace: Text
    runs: Annotated[int, msgspec.Meta(ge=1)] | None = None
    days: Annotated[float, msgspec.Meta(ge=0)] | None = None
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    dry_run: bool = False


class CheckpointPurge(Mutation, frozen=True, kw_only=True):
    """Delete every checkpoint of a session, or those of a workspace that belong to no session; also protected ones."""

    session_id: Name | None = None
    workspace: Text | None = None
    dry_run: bool = False


class CheckpointVerify(Mutation, frozen=True, kw_only=True):
    """`deep` reads the content of every object; `repair` removes leftovers that are proven to be ours and of no use."""

    workspace: Text
    repair: bool = False
    deep: bool = False


class CheckpointExport(Mutation, frozen=True, kw_only=True):
    """Write checkpoints of one workspace into a git bundle at `path` (absolute)."""

    checkpoint_ids: Annotated[tuple[Name, ...], msgspec.Meta(min_length=1, max_length=1000)]
    path: Text
    overwrite: bool = False


class DeliveryList(Params, frozen=True, kw_only=True):
    address: Annotated[str, msgspec.Meta(max_length=200)] = "terminal:"
    state: Literal["pending", "all"] = "pending"
    limit: Page = 200


class DeliveryReceipt(Mutation, frozen=True, kw_only=True):
    delivery_id: Name
    receipt: Annotated[str, msgspec.Meta(max_length=500)]


class EventsSubscribe(Params, frozen=True, kw_only=True):
    """Without `session_id`: all sessions. `after_seq` None starts with what happens from now on.

    `log_id` is the log that the cursor belongs to; another log answers with a gap. `live` adds streamed text and
    progress, which have no seq.
    """

    session_id: Name | None = None
    after_seq: Seq | None = None
    log_id: Name | None = None
    live: bool = False


class EventsUnsubscribe(Params, frozen=True, kw_only=True):
    subscription: int
