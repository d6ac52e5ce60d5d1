"""`hubctl` on a pseudo terminal: what a person sees, and the keys that a person presses."""

import fcntl
import os
import pty
import signal
import subprocess
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import psutil

from tests.cli.given import command, environment

PATIENCE_S = 30


class Terminal:
    """A process whose terminal we hold. `seen` is all that it has printed."""

    def __init__(self, home: Path, *arguments: str, cwd: Path | None = None) -> None:
        self._ours, theirs = pty.openpty()
        self.seen = ""
        self._changed = threading.Condition()
        self._cursor = 0
        self.process = subprocess.Popen(
            command(home, *arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            cwd=cwd,
            env=environment(),
            start_new_session=True,
            preexec_fn=lambda: _take_terminal(theirs),
        )
        os.close(theirs)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def expect(self, text: str) -> None:
        """Wait until a text has been printed after what was expected before, and the process waits for something."""
        with self._changed:
            found = self._changed.wait_for(lambda: text in self.seen[self._cursor :], PATIENCE_S)
            assert found, f"{text!r} did not come after {self.seen[: self._cursor]!r}: {self.seen[self._cursor :]!r}"
            self._cursor = self.seen.index(text, self._cursor) + len(text)
        self._wait_until_it_waits()

    def _wait_until_it_waits(self) -> None:
        """On a machine that is busy a text is seen before its printer has gone on to take note that it was shown."""
        until = time.monotonic() + PATIENCE_S
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(self.process.pid)
            while process.status() == psutil.STATUS_RUNNING and time.monotonic() < until:
                time.sleep(0.005)

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def rests(self, seconds: float = 1.0) -> None:
        """Press nothing for a while, so that the next key is a single one."""
        time.sleep(seconds)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self.type("\x03")

    def ends(self) -> int:
        """Wait for the end; return the exit code."""
        return self.process.wait(PATIENCE_S)

    def settings(self) -> list[object]:
        """Return the terminal's settings."""
        return list(termios.tcgetattr(self._ours))

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 65_536)
            except OSError:
                return
            with self._changed:
                self.seen += data.decode("utf-8", "replace")
                self._changed.notify_all()


def _take_terminal(descriptor: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSCTTY, 0)
