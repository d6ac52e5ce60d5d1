"""Policy: a pure rule from what a call is and what was allowed to allow, ask or deny, with its source and reason.

Order, the first that speaks wins: agent mode (plan only narrows), preset yolo, auto-approve, grants, base. The base
policy allows reading inside the workspace and asks for everything else. Whatever it cannot judge, it asks.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from hub.domain.commands import Analysis
from hub.domain.values import AgentMode, AutoApprove, Preset, Verdict

Effect = Literal["read", "workspace", "external", "ask", "finish"]


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a call before it runs. `inside`: every file it names lies in the workspace, links resolved."""

    tool: str
    effect: Effect
    inside: bool
    paths: tuple[str, ...]
    commands: tuple[Analysis, ...]


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """What was allowed for this run. `granted` holds exact (tool, target) pairs."""

    agent_mode: AgentMode
    preset: Preset
    auto_approve: frozenset[AutoApprove]
    granted: frozenset[tuple[str, str]]


class Ruling(msgspec.Struct, frozen=True):
    """The answer, the rule that gave it, and why, in words for people and for the audit."""

    verdict: Verdict
    source: str
    reason: str


def rule(facts: Facts, rules: Rules) -> Ruling:
    """Return what is to be done with a call."""
    for judge in (_by_kind, _by_mode, _by_preset, _by_auto_approve, _by_grants):
        ruling = judge(facts, rules)
        if ruling is not None:
            return ruling
    return _by_base(facts)


def _by_kind(facts: Facts, rules: Rules) -> Ruling | None:
    if facts.effect == "ask":
        return Ruling("allow", "base", "a question to a person changes nothing")
    if facts.effect == "finish":
        return Ruling("allow", "base", "ending the run changes nothing")
    return None


def _by_mode(facts: Facts, rules: Rules) -> Ruling | None:
    if rules.agent_mode != "plan" or facts.effect == "read":
        return None
    if facts.effect == "workspace":
        return Ruling("deny", "mode:plan", "plan mode writes no files")
    if facts.commands and all(command.read_only for command in facts.commands):
        return None
    return Ruling("deny", "mode:plan", "plan mode runs only commands that are known to change nothing")


def _by_preset(facts: Facts, rules: Rules) -> Ruling | None:
    if rules.preset == "yolo":
        return Ruling("allow", "preset:yolo", "the preset allows everything")
    return None


def _by_auto_approve(facts: Facts, rules: Rules) -> Ruling | None:
    if "all" in rules.auto_approve:
        return Ruling("allow", "auto-approve:all", "everything is auto-approved")
    if "edits" in rules.auto_approve and facts.effect == "workspace" and facts.inside:
        return Ruling("allow", "auto-approve:edits", "edits inside the workspace are auto-approved")
    if "commands" in rules.auto_approve and facts.effect == "external":
        return Ruling("allow", "auto-approve:commands", "commands are auto-approved")
    return None


def _by_grants(facts: Facts, rules: Rules) -> Ruling | None:
    wanted = targets(facts)
    if wanted and all((facts.tool, target) in rules.granted for target in wanted):
        return Ruling("allow", "grant", "exactly this was allowed before")
    return None


def _by_base(facts: Facts) -> Ruling:
    if facts.effect == "read" and facts.inside:
        return Ruling("allow", "base", "reading inside the workspace is allowed")
    if facts.effect == "read":
        return Ruling("ask", "base", "reading outside the workspace asks")
    if facts.effect == "workspace":
        where = "inside" if facts.inside else "outside"
        return Ruling("ask", "base", f"writing {where} the workspace asks")
    return Ruling("ask", "base", "running commands asks")


def targets(facts: Facts) -> tuple[str, ...]:
    """Return what an `allow_always` would remember: each command's exact argv, or each file's exact path."""
    return targets_of(facts.paths, facts.commands)


def targets_of(paths: tuple[str, ...], commands: tuple[Analysis, ...]) -> tuple[str, ...]:
    """Return the same of a call's files and commands alone."""
    if commands:
        return tuple(command_target(command) for command in commands)
    return tuple(f"path:{path}" for path in paths)


def command_target(command: Analysis) -> str:
    """Return the exact target of a command: its argv when it could be parsed, else its whole text."""
    if command.parsed:
        return "argv:" + msgspec.json.encode(command.target).decode()
    return "text:" + command.text


def arguments_hash(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return the SHA-256 (hex) of a tool's name and its canonical arguments: keys sorted, UTF-8, no spaces."""
    canonical = msgspec.json.encode([tool, arguments], order="deterministic")
    return hashlib.sha256(canonical).hexdigest()


def may(scopes: tuple[str, ...], needed: str) -> bool:
    """Return whether a caller with these scopes may do what needs one. Scopes never imply each other."""
    return needed in scopes
