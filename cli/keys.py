"""What keys at a terminal mean while a question stands: one key that answers it, or the text of a line.

Invariant: a key answers only alone. The line is empty, no other key came within `BEFORE_S` before it or follows within
`AFTER_S`, and it was pressed after the question was shown; Enter right after it answers at once. Everything else is
text, and text that was begun before the question was shown never answers it. No I/O; times are those of the keys.
"""

from collections.abc import Container
from dataclasses import dataclass

BEFORE_S = 0.5
AFTER_S = 0.4

ENTER = "\r\n"
ERASE = "\x7f\b"
ERASE_LINE = "\x15"


@dataclass(frozen=True)
class Key:
    """One key was pressed. `burst`: it came with others at once, as pasted text does; `at` in seconds, monotonic."""

    char: str
    at: float = 0.0
    burst: bool = False


@dataclass(frozen=True)
class Pressed:
    """A single key that was meant as one."""

    char: str


@dataclass(frozen=True)
class Entered:
    """A line was finished. `earlier`: it was begun before the present question was shown."""

    text: str
    earlier: bool


class Typing:
    """The line that is being typed, and a key that may turn out to be its first."""

    def __init__(self) -> None:
        self.text = ""
        self._held: Key | None = None
        self._last_at = float("-inf")
        self._shown_at = float("-inf")
        self._earlier = False

    @property
    def empty(self) -> bool:
        """Whether nothing is typed that waits for more."""
        return not self.text and self._held is None

    def typed_at(self, at: float) -> None:
        """Take note of a key that went elsewhere."""
        self._last_at = max(self._last_at, at)

    def asked(self, at: float) -> None:
        """A question was shown; what is typed already has nothing to do with it."""
        self.release()
        self._shown_at = at
        self._earlier = bool(self.text)

    def release(self) -> None:
        """Make text of a key that was held: there is no question any more that it could answer."""
        if self._held is not None:
            self.text += self._held.char
        self._held = None

    def clear(self) -> None:
        """Throw away what was typed."""
        self.text, self._held, self._earlier = "", None, False

    def key(self, key: Key, single: Container[str]) -> Pressed | Entered | None:
        """Take a key; return what it completes. Keys in `single` may answer alone."""
        alone = not key.burst and key.at > self._shown_at and key.at - self._last_at >= BEFORE_S
        self.typed_at(key.at)
        held, self._held = self._held, None
        if held is not None and key.char in ENTER and not key.burst:
            return Pressed(held.char)
        if held is not None:
            self.text += held.char
        if key.char in ENTER:
            return self._entered()
        if alone and not self.text and key.char in single:
            self._held = key
        else:
            self._edit(key)
        return None

    def quiet(self, after: Key) -> Pressed | None:
        """No key followed this one; return it when it was held as a possible answer."""
        if self._held is not after:
            return None
        self._held = None
        return Pressed(after.char)

    def _edit(self, key: Key) -> None:
        if not self.text:
            self._earlier = key.at <= self._shown_at
        if key.char in ERASE:
            self.text = self.text[:-1]
        elif key.char == ERASE_LINE:
            self.text = ""
        elif key.char.isprintable() or key.char == "\t":
            self.text += key.char

    def _entered(self) -> Entered | None:
        entered = Entered(self.text, self._earlier)
        self.clear()
        return entered if entered.text else None
