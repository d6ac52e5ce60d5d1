"""What a provider streams, made orderly: calls told apart, characters whole, events few.

Servers number the pieces of their tool calls in every way: without index, all with the same one, without ids, with the
id repeated on each piece. `CallSplitter` gives every piece the number of its call. `Mender` joins characters that were
cut in half between chunks, so that everything that leaves can be written as UTF-8. `Batch` joins pieces that come in
quick succession. Nothing here waits or knows the time.
"""

from collections.abc import Iterable

import msgspec

from hub.agent.model import CallDelta, ModelPart, ReasoningDelta, TextDelta


class Piece(msgspec.Struct, frozen=True):
    """A piece of a call as a server sent it. None is what it left out."""

    index: int | None = None
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class ObjectScanner:
    """Follows JSON text piece by piece and says when one object or list is complete."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._begun = False

    @property
    def complete(self) -> bool:
        return self._begun and self._depth == 0 and not self._in_string

    def feed(self, text: str) -> None:
        """Read on."""
        for character in text:
            if self._in_string:
                self._inside_string(character)
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._begun = True
                self._depth += 1
            elif character in "}]":
                self._depth -= 1

    def _inside_string(self, character: str) -> None:
        if self._escaped:
            self._escaped = False
        elif character == "\\":
            self._escaped = True
        elif character == '"':
            self._in_string = False


class _Call:
    def __init__(self, number: int, piece: Piece) -> None:
        self.number = number
        self.id = piece.id
        self.name = piece.name or ""
        self.arguments = ObjectScanner()
        self.mender = Mender()


class CallSplitter:
    """Numbers the calls of one answer. A piece begins a new call when its id is new, when it names another tool, or
    when the call it would belong to already has complete arguments."""

    def __init__(self) -> None:
        self._count = 0
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        self._last: _Call | None = None

    @property
    def count(self) -> int:
        return self._count

    def feed(self, piece: Piece) -> CallDelta | None:
        """Return the piece with the number of its call, None when it says nothing."""
        call = self._known(piece)
        if call is None:
            if not (piece.id or piece.name or piece.arguments.strip()):
                return None
            call = _Call(self._count, piece)
            self._count += 1
            named = call.name
        else:
            named = "" if call.name else piece.name or ""
            call.name = call.name or named
        self._remember(call, piece)
        arguments = call.mender.feed(piece.arguments)
        call.arguments.feed(arguments)
        return CallDelta(call.number, named, arguments) if named or arguments else None

    def _known(self, piece: Piece) -> _Call | None:
        if piece.id and piece.id in self._by_id:
            call = self._by_id[piece.id]
            return None if _begins_anew(call, piece, named=False) else call
        call_there = self._by_index.get(piece.index) if piece.index is not None else self._last
        if call_there is None or (piece.id and call_there.id):
            return None
        return None if _begins_anew(call_there, piece, named=bool(piece.name)) else call_there

    def _remember(self, call: _Call, piece: Piece) -> None:
        self._last = call
        if piece.index is not None:
            self._by_index[piece.index] = call
        if piece.id:
            call.id = piece.id
            self._by_id[piece.id] = call


def _begins_anew(call: _Call, piece: Piece, *, named: bool) -> bool:
    """Say whether a piece cannot belong to a call: another name, or more when its arguments are complete."""
    if piece.name and call.name and piece.name != call.name:
        return True
    return call.arguments.complete and (named or piece.arguments.lstrip().startswith("{"))


class Mender:
    """Joins surrogate halves that came in different pieces; a half whose other one never comes becomes U+FFFD."""

    def __init__(self) -> None:
        self._half = ""

    def feed(self, text: str) -> str:
        """Return the text so far that is whole."""
        text = self._half + text
        self._half = text[-1] if text and "\ud800" <= text[-1] <= "\udbff" else ""
        return mended(text.removesuffix(self._half) if self._half else text)

    def end(self) -> str:
        """Return what is left."""
        left, self._half = self._half, ""
        return mended(left)


def mended(text: str) -> str:
    """Return the text with surrogate pairs joined and lone halves replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class Batch:
    """Parts that wait to be sent together: neighbours of one kind are joined."""

    def __init__(self) -> None:
        self._parts: list[ModelPart] = []

    def __bool__(self) -> bool:
        return bool(self._parts)

    def add(self, part: ModelPart) -> None:
        """Put a part behind the others."""
        joined = _joined(self._parts[-1], part) if self._parts else None
        if joined is None:
            self._parts.append(part)
        else:
            self._parts[-1] = joined

    def take(self) -> Iterable[ModelPart]:
        """Return what waits; nothing waits afterwards."""
        taken, self._parts = self._parts, []
        return taken


def _joined(first: ModelPart, second: ModelPart) -> ModelPart | None:
    match first, second:
        case TextDelta(), TextDelta():
            return TextDelta(first.text + second.text)
        case ReasoningDelta(), ReasoningDelta():
            return ReasoningDelta(first.text + second.text)
        case CallDelta(), CallDelta() if first.index == second.index and not second.name:
            return CallDelta(first.index, first.name, first.arguments + second.arguments)
    return None
