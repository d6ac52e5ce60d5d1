"""The closed sets of words that decisions are made of."""

from typing import Literal

AgentMode = Literal["act", "plan"]
Preset = Literal["default", "search", "minimal", "yolo"]
PromptMode = Literal["steer", "follow_up", "interrupt"]
AutoApprove = Literal["edits", "commands", "all"]
Scope = Literal["read", "prompt", "approve", "operate", "admin"]
Decision = Literal["allow_once", "allow_session", "allow_always", "reject"]
RestoreOnly = Literal["files", "conversation"]
Reach = Literal["tree", "session"]
CheckpointMode = Literal["required", "best_effort", "off"]
OnConflict = Literal["abort", "keep-mine", "take-checkpoint"]
Verdict = Literal["allow", "ask", "deny"]
