"""The system prompt: a template filled with what stays the same for a whole run, so that prefixes stay byte-stable."""

import functools
import hashlib
import platform
import string
from importlib import resources
from pathlib import Path

from hub.domain.values import AgentMode

_MODE_RULES = {
    "act": "",
    "plan": (
        "- You are in plan mode: nothing may be written. Explore, then answer with a plan: which files, which changes, "
        "in which order, and how to check them."
    ),
}


def system_prompt(workspace: Path | str, mode: AgentMode) -> str:
    """Return the system prompt of a run."""
    filled = _template().substitute(
        workspace=workspace, platform=platform.system(), mode=mode, mode_rules=_MODE_RULES[mode]
    )
    return filled.rstrip() + "\n"


@functools.cache
def _template() -> string.Template:
    text = resources.files("hub.agent").joinpath("prompts", "system.md").read_text(encoding="utf-8")
    return string.Template(text)


def digest(text: str) -> str:
    """Return the SHA-256 (hex) by which a run remembers its system prompt."""
    return hashlib.sha256(text.encode()).hexdigest()
