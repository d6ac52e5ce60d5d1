"""What a child process prints, kept in bounded memory.

Invariant: a Capture never holds more than about twice its limit, whatever is fed to it; its first and last bytes are
kept. A character whose bytes arrive in two pieces is still one character.
"""

import asyncio
import codecs
from collections.abc import Callable

from hub.agent.tools.truncate import joined

PROGRESS_EVERY_S = 0.05
PROGRESS_BACKLOG = 16_384  # characters between two reports; what comes on top is counted, not shown


class Capture:
    """The bytes of one stream: all of them up to `limit`, beyond that the first and the last half."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        if len(self._tail) > 2 * self._half:
            del self._tail[: -self._half]

    @property
    def held(self) -> int:
        """The number of bytes held in memory."""
        return len(self._head) + len(self._tail)

    def text(self) -> str:
        """Return what was printed as text; when the middle is missing, that is said."""
        tail = bytes(self._tail[-self._half :]) if self._half else b""
        missing = self.total - len(self._head) - len(tail)
        if missing <= 0:
            return (bytes(self._head) + tail).decode("utf-8", "replace")
        head = _whole_end(bytes(self._head)).decode("utf-8", "replace")
        return joined(head, _whole_start(tail).decode("utf-8", "replace"), missing, self.total, "bytes")


class Progress:
    """Passes on what is printed while a call runs, at most once in PROGRESS_EVERY_S seconds."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self._decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._waiting: list[str] = []
        self._size = 0
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None

    def feed(self, stream: str, data: bytes) -> None:
        """Take bytes of a named stream; each stream is decoded by itself."""
        decoder = self._decoders.get(stream)
        if decoder is None:
            decoder = self._decoders[stream] = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(data)
        room = max(0, PROGRESS_BACKLOG - self._size)
        self._dropped += len(text) - len(text[:room])
        self._size += len(text[:room])
        if text[:room]:
            self._waiting.append(text[:room])
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(PROGRESS_EVERY_S, self.flush)

    def flush(self) -> None:
        """Report at once what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        text = "".join(self._waiting)
        if self._dropped:
            text += f"\n[... {self._dropped} characters not shown ...]\n"
        self._waiting, self._size, self._dropped = [], 0, 0
        if text:
            self._report(text)


def _whole_end(data: bytes) -> bytes:
    """Drop a character that is cut off at the end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return data[:-back] if length > back else data
        if byte < 0x80:
            break
    return data


def _whole_start(data: bytes) -> bytes:
    """Drop the rest of a character that began before."""
    start = 0
    while start < min(3, len(data)) and 0x80 <= data[start] < 0xC0:
        start += 1
    return data[start:]
