"""What the tests of models share: a request, and a model whose attempts are written down."""

from collections.abc import AsyncIterator, Sequence

from hub.agent.model import Finish, Model, ModelError, ModelPart, ModelRequest, TextDelta, ToolSpec
from hub.domain.messages import user_message

TOOL = ToolSpec("read_files", "Read files.", {"type": "object", "properties": {"paths": {"type": "array"}}})


def request(words: str = "hi", *, turn: int = 0) -> ModelRequest:
    """Return a question of one user message."""
    return ModelRequest("You are a test.", [user_message(words)], [TOOL], turn)


async def parts_of(model: Model, asked: ModelRequest) -> list[ModelPart]:
    """Return every part of one answer. Raises ModelError."""
    return [part async for part in model.stream(asked)]


def said(words: str) -> list[ModelPart | ModelError]:
    """Return the parts of an answer of words."""
    return [TextDelta(words), Finish("stop")]


class ListedModel:
    """A model whose attempts are lists of parts; an error in a list is raised there. `fallback` is asked after it."""

    def __init__(
        self, *attempts: Sequence[ModelPart | ModelError], name: str = "listed", fallback: Model | None = None
    ):
        self.name = name
        self.fallback = fallback
        self.asked = 0
        self.closed = 0
        self._attempts = attempts

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelPart]:
        attempt = self._attempts[min(self.asked, len(self._attempts) - 1)]
        self.asked += 1
        try:
            for item in attempt:
                if isinstance(item, ModelError):
                    raise item
                yield item
        finally:
            self.closed += 1
