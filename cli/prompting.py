"""Asking the person at the terminal: keys and lines from standard input, Ctrl-C as input, and what keys mean.

Invariant: the terminal's settings are put back whatever happens. Nothing that was typed before a question stood on the
screen answers it: it is thrown away, or kept as text (`cli.keys`). A process in the background never reads from its
terminal.
"""

import asyncio
import codecs
import os
import signal
import sys
import termios
import threading
import time
import tty
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

from cli import output
from cli.keys import AFTER_S, Key
from cli.text import clean
from hub.domain.values import Decision

READ_BYTES = 65_536
ARM_S = 0.3
"""Seconds for what was typed before a question to arrive, so that it is known to be older than the question."""

APPROVAL_KEYS = "  [a] allow once  [s] this session  [A] always  [r] reject  [d] show all  [?] help"
APPROVAL_HELP = (
    "  a  run exactly this, once",
    "  s  and the same again without asking, in this session",
    "  A  and the same again without asking, in this workspace, whenever",
    "  r  do not run it; you may say why, the model reads it",
    "  d  show the arguments and the diff whole",
)
LEAVE_KEYS = "  [c] cancel the run  [d] detach, it goes on without you  [Enter] go on watching"

Action = Literal["reject", "details", "help", "cancel", "detach", "go_on"]
DECISIONS: dict[str, Decision] = {"a": "allow_once", "s": "allow_session", "A": "allow_always"}
APPROVAL_ACTIONS: dict[str, Action] = {"r": "reject", "d": "details", "?": "help"}
LEAVE_ACTIONS: dict[str, Action] = {"c": "cancel", "d": "detach", "\r": "go_on", "\n": "go_on"}


@dataclass(frozen=True)
class Quiet:
    """No key followed this one within `AFTER_S`."""

    key: Key


@dataclass(frozen=True)
class Line:
    """A line was typed, or came through a pipe. `at` in seconds, monotonic."""

    text: str
    at: float = 0.0


@dataclass(frozen=True)
class End:
    """There is no more input."""


@dataclass(frozen=True)
class Interrupt:
    """Ctrl-C."""


@dataclass(frozen=True)
class Leave:
    """The process was asked to end, or its terminal is gone."""


Input = Key | Quiet | Line | End | Interrupt | Leave


def terminal() -> int | None:
    """Return the descriptor of standard input when it is a terminal."""
    return sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None


def may_read() -> bool:
    """Return whether standard input can be read: there is one, and no terminal would stop us for being in the back."""
    descriptor = terminal()
    if descriptor is None:
        return sys.stdin is not None
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


def interactive() -> bool:
    """Return whether a person can be asked: a terminal on both sides, and we are in its foreground."""
    return terminal() is not None and sys.stdout.isatty() and may_read()


class Inputs:
    """Everything that comes from the person, in order: keys or lines, end of input, Ctrl-C, a wish to end.

    Use it as a context on the event loop. Nothing is read before `listen`; then a thread of its own reads, for
    standard input may be a file or a pipe that no loop can wait for.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[Input] = asyncio.Queue()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._buffer = ""
        self._keys = False
        self._listening = False
        self._terminal = terminal()
        self._saved: list[Any] | None = None

    def __enter__(self) -> "Inputs":
        self._loop.add_signal_handler(signal.SIGINT, self._queue.put_nowait, Interrupt())
        for ending in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(ending, self._queue.put_nowait, Leave())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._loop.remove_signal_handler(ending)
        self.want_lines()

    async def next(self) -> Input:
        """Wait for the next input."""
        return await self._queue.get()

    def listen(self) -> None:
        """Begin to read."""
        if not self._listening:
            self._listening = True
            threading.Thread(target=self._read, name="input", daemon=True).start()

    async def want_keys(self) -> None:
        """Give keys from now on, when input is a terminal; what was typed before is thrown away."""
        self.listen()
        if self._terminal is not None:
            self._enter_keys(termios.TCSAFLUSH)
            termios.tcflush(self._terminal, termios.TCIFLUSH)
            await asyncio.sleep(0)
            self._forget_typed()

    async def want_typing(self) -> None:
        """Give keys from now on, when input is a terminal; a line that was half typed comes first, as keys."""
        self.listen()
        if self._terminal is not None:
            self._enter_keys(termios.TCSADRAIN)
            await asyncio.sleep(ARM_S)

    def _enter_keys(self, when: int) -> None:
        if self._saved is None and self._terminal is not None:
            self._saved = termios.tcgetattr(self._terminal)
            tty.setcbreak(self._terminal, when)
        self._keys = True

    def want_lines(self) -> None:
        """Give lines from now on."""
        self._keys = False
        if self._terminal is not None and self._saved is not None:
            termios.tcsetattr(self._terminal, termios.TCSADRAIN, self._saved)
            self._saved = None

    def _forget_typed(self) -> None:
        self._buffer = ""
        waiting = [self._queue.get_nowait() for _ in range(self._queue.qsize())]
        for kept in waiting:
            if not isinstance(kept, Key | Quiet | Line):
                self._queue.put_nowait(kept)

    def _read(self) -> None:
        data = b"-"
        while data:
            try:
                data = os.read(sys.stdin.fileno(), READ_BYTES)
            except OSError:  # the terminal is gone
                data = b""
            try:
                self._loop.call_soon_threadsafe(self._take, data, time.monotonic())
            except RuntimeError:  # the loop has ended, and with it the interest in input
                return

    def _take(self, data: bytes, at: float) -> None:
        text = self._decoder.decode(data, final=not data)
        if self._keys:
            self._take_keys(text, at)
        else:
            self._take_lines(text, at, last=not data)
        if not data:
            self._queue.put_nowait(End())

    def _take_keys(self, text: str, at: float) -> None:
        chars = clean(text) if text.startswith("\x1b") else text  # an arrow or another key that is no character
        keys = [Key(char, at, burst=len(chars) > 1) for char in chars]
        for key in keys:
            self._queue.put_nowait(key)
        if len(keys) == 1:
            self._loop.call_later(AFTER_S, self._queue.put_nowait, Quiet(keys[0]))

    def _take_lines(self, text: str, at: float, *, last: bool) -> None:
        *lines, self._buffer = (self._buffer + text).split("\n")
        if last and self._buffer:
            lines.append(self._buffer)
        for line in lines:
            self._queue.put_nowait(Line(line, at))


async def confirm(question: str) -> bool:
    """Ask yes or no; anything but y is no. Ctrl-C is no."""
    with Inputs() as inputs:
        await inputs.want_keys()
        output.text(f"{question} [y/N]", "bold")
        answer = await inputs.next()
    return isinstance(answer, Key) and answer.char in "yY"
