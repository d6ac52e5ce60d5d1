"""Conversations in memory: what was read of them last, so that nothing is read twice on the path of a prompt."""

from collections import OrderedDict
from collections.abc import Sequence

from hub.domain.messages import Message

KEPT = 32
"""Conversations that are kept."""


class Transcripts:
    """Conversations as they were read last, so that the next run reads only what is new. The store decides."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, list[Message]] = OrderedDict()

    def get(self, session_id: str) -> Sequence[Message]:
        """Return what is known of a conversation; whoever uses it asks the store whether it still stands."""
        return self._kept.get(session_id, ())

    def put(self, session_id: str, messages: list[Message]) -> None:
        """Keep a conversation; the one unused for longest goes first."""
        self._kept[session_id] = messages
        self._kept.move_to_end(session_id)
        if len(self._kept) > KEPT:
            self._kept.popitem(last=False)
