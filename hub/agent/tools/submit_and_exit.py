"""submit_and_exit: the agent says that its work is done, and the run ends with its summary."""

from pathlib import Path
from typing import Any

from hub.agent.model import ToolSpec
from hub.agent.tools.arguments import as_object, described, text_of
from hub.agent.tools.base import Effect, Subject, ToolContext, ToolFailure, ToolOutput
from hub.agent.tools.truncate import shortened

NAME = "submit_and_exit"
SHORTEST_SUMMARY = 10  # characters

SPEC = ToolSpec(
    NAME,
    "End the run when the work is done, with a summary of what was done and what is left.",
    {
        "type": "object",
        "properties": {
            "summary": {
                "type": "string",
                "minLength": SHORTEST_SUMMARY,
                "description": "What was done, how it was checked, what is left.",
            },
            "verified": {"type": "boolean", "description": "Whether you have checked that the work is right."},
        },
        "required": ["summary", "verified"],
        "additionalProperties": False,
    },
)


class SubmitAndExit:
    """The tool."""

    spec = SPEC
    effect: Effect = "finish"

    def normalise(self, arguments: Any) -> dict[str, Any]:
        given = as_object(arguments, NAME)
        summary, verified = text_of(given.get("summary"), "summary").strip(), given.get("verified")
        if len(summary) < SHORTEST_SUMMARY:
            raise ToolFailure(f"The summary must have at least {SHORTEST_SUMMARY} characters.")
        if not isinstance(verified, bool):
            raise ToolFailure(f"verified must be true or false, not {described(verified)}.")
        return {"summary": summary, "verified": verified}

    def subject(self, arguments: dict[str, Any], root: Path) -> Subject:
        return Subject(f"end the run: {shortened(arguments['summary'], 200)}")

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        return ToolOutput(True, arguments["summary"])
