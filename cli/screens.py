"""Where a followed session is shown: as text for people, or as NDJSON for programs. One of them per command."""

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from rich.text import Text

from cli import output
from cli.render import Renderer
from cli.text import clean_line
from hub.protocol.events import Event, Live
from hub.protocol.subscribing import Gap


class Screen(Protocol):
    """What is told of a session as it goes. `lines` are words of this program, `draft` is what the person types."""

    def event(self, event: Event) -> None: ...

    def live(self, notice: Live) -> None: ...

    def gap(self, gap: Gap) -> None: ...

    def lines(self, lines: Sequence[Text]) -> None: ...

    def draft(self, text: str, *, done: bool = False) -> None: ...


class TextScreen:
    """Shows a session to a person, on a terminal or through a pipe."""

    def __init__(self, *, prompts: bool) -> None:
        self._renderer = Renderer(prompts=prompts)
        self._draft: str | None = None

    def event(self, event: Event) -> None:
        self._write(self._renderer.event(event))

    def live(self, notice: Live) -> None:
        self._write(self._renderer.live(notice))

    def gap(self, gap: Gap) -> None:
        self.lines([Text(f"  some events are no longer kept: {gap.reason}", style="yellow")])

    def lines(self, lines: Sequence[Text]) -> None:
        self._write(self._renderer.lines(*lines))

    def draft(self, text: str, *, done: bool = False) -> None:
        """Show the line that is being typed: what changed at its end, or all of it after something else was shown.

        `done`: Enter has ended it.
        """
        text = clean_line(text) + " " * (len(text) - len(text.rstrip()))
        before = self._draft
        if before is None and not text:
            return
        if before is None or not (text.startswith(before) or before.startswith(text)):
            output.write(self._renderer.draft_begins())
            before = ""
        output.echo("\b \b" * max(0, len(before) - len(text)) + text[len(before) :])
        self._draft = text
        if done:
            self._write(self._renderer.draft_ends())

    def _write(self, pieces: Sequence[Text]) -> None:
        if pieces:
            self._draft = None
        output.write(pieces)


class JsonScreen:
    """Writes one flat JSON object a line. `deltas`: streamed text and progress too, which have no seq."""

    def __init__(self, *, deltas: bool) -> None:
        self._deltas = deltas

    def event(self, event: Event) -> None:
        output.line(flat(event))

    def live(self, notice: Live) -> None:
        if self._deltas:
            output.line({**_head(notice), **_data(notice)})

    def gap(self, gap: Gap) -> None:
        output.line({"type": "events.gap", "reason": gap.reason, "seq": gap.seq, "log_id": gap.log_id})

    def lines(self, lines: Sequence[Text]) -> None:
        for one in lines:
            output.note(one.plain)

    def draft(self, text: str, *, done: bool = False) -> None:
        """Show nothing: with --json nobody types."""


def flat(event: Event) -> dict[str, Any]:
    """Return an event as one object: its envelope, then its data."""
    return {**_head(event), "seq": event.seq, "at": event.at, **_data(event)}


def _head(item: Event | Live) -> dict[str, Any]:
    return {"type": item.type, "session_id": item.session_id, "run_id": item.run_id}


def _data(item: Event | Live) -> dict[str, Any]:
    data: dict[str, Any] = msgspec.json.decode(item.data)
    return data
