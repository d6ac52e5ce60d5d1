"""ask_question: a question to the people of the session, with answers to choose from.

The hub puts the question and waits for the answer; the tool itself only says what a question looks like.
"""

from pathlib import Path
from typing import Any

from hub.agent.model import ToolSpec
from hub.agent.tools.arguments import as_object, described, opened, text_of
from hub.agent.tools.base import Effect, Subject, ToolContext, ToolFailure, ToolOutput
from hub.agent.tools.truncate import shortened

NAME = "ask_question"
FEWEST_OPTIONS = 2
MOST_OPTIONS = 5

SPEC = ToolSpec(
    NAME,
    "Ask the user one question when the work cannot go on without the answer, and offer "
    f"{FEWEST_OPTIONS} to {MOST_OPTIONS} answers to choose from. The user may also answer in other words. "
    "This does not ask for permission: tools that need it ask by themselves.",
    {
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1, "description": "One clear question."},
            "options": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "minItems": FEWEST_OPTIONS,
                "maxItems": MOST_OPTIONS,
                "uniqueItems": True,
                "description": "Answers to choose from.",
            },
        },
        "required": ["question", "options"],
        "additionalProperties": False,
    },
)


class AskQuestion:
    """The tool."""

    spec = SPEC
    effect: Effect = "ask"

    def normalise(self, arguments: Any) -> dict[str, Any]:
        given = as_object(arguments, NAME)
        question = text_of(given.get("question"), "question").strip()
        options = opened(given.get("options"))
        if not question:
            raise ToolFailure("The question is blank.")
        if not isinstance(options, list):
            raise ToolFailure(f"options must be a list of texts, not {described(options)}.")
        answers = [text_of(option, "An option").strip() for option in options]
        if not FEWEST_OPTIONS <= len(answers) <= MOST_OPTIONS:
            raise ToolFailure(f"A question has {FEWEST_OPTIONS} to {MOST_OPTIONS} options, not {len(answers)}.")
        if not all(answers) or len(set(answers)) < len(answers):
            raise ToolFailure("Options must not be blank, and all different.")
        return {"question": question, "options": answers}

    def subject(self, arguments: dict[str, Any], root: Path) -> Subject:
        return Subject(f"ask: {shortened(arguments['question'], 200)}")

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        raise ToolFailure("This question was not put to anybody. Go on without an answer, or say what is missing.")
