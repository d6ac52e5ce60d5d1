"""A forked process that carries out one call of an engine and kills itself, by SIGKILL, before one of its steps.

A step is what the engine's `hook` is told, and every change that the process makes to the file system or asks of git:
a file opened for writing, a rename, a link, a removal, a new directory, other permission bits, a git process started.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hub.checkpoint.engine import Engine

Act = Callable[[Engine], object]
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGING = {"os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate"}
FAILED = 70


class Steps:
    """Counts steps and kills the process before the wanted one: `wanted` is a number or a name of the hook's."""

    def __init__(self, wanted: int | str | None) -> None:
        self.names: list[str] = []
        self._wanted = wanted

    def hook(self, step: str) -> None:
        self._pass("hook:" + step)

    def audit(self, event: str, words: tuple[Any, ...]) -> None:
        if event in CHANGING:
            self._pass(f"{event}:{_last(words[0])}")
        elif event == "open" and isinstance(words[2], int) and words[2] & WRITING:
            self._pass(f"open:{_last(words[0])}")
        elif event == "subprocess.Popen":
            self._pass("git:" + " ".join(os.fsdecode(word) for word in words[1][1:4]))

    def _pass(self, name: str) -> None:
        if self._wanted in (len(self.names), name.removeprefix("hook:")):
            os.kill(os.getpid(), signal.SIGKILL)
        self.names.append(name)


def _last(path: object) -> str:
    return os.path.basename(os.fsdecode(path)) if isinstance(path, str | bytes) else str(path)


def fork(root: Path, act: Act, wanted: int | str | None = None, listing: Path | None = None) -> int:
    """Start the process and return its pid. `listing` is the file into which it writes its steps when it ends."""
    pid = os.fork()
    if pid:
        return pid
    status = FAILED
    try:
        steps = Steps(wanted)
        sys.addaudithook(steps.audit)
        engine = Engine.open(root, lock_wait_s=30.0)
        engine.hook = steps.hook
        act(engine)
        names = list(steps.names)
        if listing is not None:
            listing.write_text("\n".join(names))
        status = 0
    finally:
        os._exit(status)


def killed(root: Path, act: Act, wanted: int | str) -> bool:
    """Run a call that is killed at a step; return False when it ended without reaching it."""
    _, status = os.waitpid(fork(root, act, wanted), 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL), f"{wanted}: the process ended with {code}"
    return code != 0


def steps_of(root: Path, act: Act, listing: Path) -> list[str]:
    """Return the names of a call's steps, by carrying it out once."""
    _, status = os.waitpid(fork(root, act, listing=listing), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return listing.read_text().split("\n")
