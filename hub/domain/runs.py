"""What a run is carried out with, and the decisions about its life."""

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

from hub.domain.values import AgentMode, AutoApprove, Preset, PromptMode

StopReason = Literal[
    "completed",
    "cancelled",
    "limit_turns",
    "limit_tool_calls",
    "limit_time",
    "limit_cost",
    "model_error",
    "cut_off",
    "no_checkpoint",
    "crash_loop",
    "workspace_gone",
    "internal",
]

CRASH_LIMIT = 3
"""Times a run may take the hub down with it before it is failed."""


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a run, resolved. Seconds and US dollars; waiting for answers does not count as time."""

    max_turns: int
    max_tool_calls: int
    max_wall_s: float
    max_cost: float | None


class RunSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that was settled when the run began, so that it goes on the same after any restart."""

    model: str
    agent_mode: AgentMode
    preset: Preset
    auto_approve: tuple[AutoApprove, ...]
    limits: RunLimits
    workspace: str
    worktree: str
    system_digest: str
    author: str
    address: str


class RunUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens so far; None means that at least one answer did not say."""

    input_tokens: int | None = 0
    output_tokens: int | None = 0
    cached_tokens: int | None = 0


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has used of its limits."""

    turns: int
    tool_calls: int
    active_s: float
    cost: float | None


def plus(total: int | None, more: int | None) -> int | None:
    """Return the sum; unknown makes the sum unknown, for unknown is not 0."""
    return None if total is None or more is None else total + more


def limit_reached(limits: RunLimits, spent: Spent) -> StopReason | None:
    """Return which limit forbids the next model call, None when none does."""
    if spent.turns >= limits.max_turns:
        return "limit_turns"
    if spent.tool_calls > limits.max_tool_calls:
        return "limit_tool_calls"
    if spent.active_s >= limits.max_wall_s:
        return "limit_time"
    if limits.max_cost is not None and spent.cost is not None and spent.cost >= limits.max_cost:
        return "limit_cost"
    return None


def effective_mode(asked: PromptMode, *, run_active: bool) -> PromptMode:
    """Return what a new prompt becomes: with nothing in progress there is nothing to steer or interrupt."""
    return asked if run_active else "follow_up"


def position_between(positions: Sequence[float], place: int) -> float:
    """Return a sort key that puts a thing at `place` (from 1) among the others, which stand in order."""
    index = min(max(place - 1, 0), len(positions))
    if not positions:
        return 1.0
    if index == 0:
        return positions[0] - 1.0
    if index == len(positions):
        return positions[-1] + 1.0
    return (positions[index - 1] + positions[index]) / 2


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A run as start-up finds it."""

    state: str
    crashes: int
    cancel_asked: bool


def after_restart(found: Found) -> Literal["requeue", "wait", "cancel", "fail", "leave"]:
    """Return what becomes of a run whose holder is gone."""
    if found.cancel_asked and found.state in ("queued", "running", "waiting"):
        return "cancel"
    if found.state == "running":
        return "fail" if found.crashes + 1 >= CRASH_LIMIT else "requeue"
    if found.state == "waiting":
        return "wait"
    return "requeue" if found.state == "queued" else "leave"


def session_state(*, archived: bool, run_state: str | None, pending: int) -> str:
    """Return the state of a session, which is derived and never stored."""
    if archived:
        return "archived"
    if run_state in ("running", "waiting", "queued"):
        return run_state
    return "queued" if pending else "idle"


def spec_from(raw: Any) -> RunSpec:
    """Return the spec that a row holds as plain JSON values."""
    return msgspec.convert(raw, RunSpec)
