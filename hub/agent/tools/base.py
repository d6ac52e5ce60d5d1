"""What a tool is: a name, a schema, an effect class and one coroutine. Tools know nothing of sessions or the store.

Effect classes: `read` changes nothing; `workspace` writes files that a checkpoint covers; `external` may reach outside
and is recorded as an effect; `ask` puts a question to a person and is carried out by the caller; `finish` ends the run.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec

from hub.agent.model import ToolSpec

Effect = Literal["read", "workspace", "external", "ask", "finish"]


class ToolOutput(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call returned. `ok` is False when any part of it failed; `text` is what the model reads, already cut to
    the tool's limits; `display` is what people see when that is something else (a unified diff, say);
    `paths` are the files it changed, relative to the workspace; `full_text` is set when `text` was cut."""

    ok: bool
    text: str
    display: str | None = None
    paths: tuple[str, ...] = ()
    full_text: str | None = None


class ToolFailure(Exception):
    """The call cannot be carried out; the text tells the model what to do instead. Not a defect of the program."""


class Subject(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call is about, for policy and for people: the files it names (absolute, symlinks resolved), the commands
    it runs (shell text), a one-line summary, and (for edits) a preview of the change as a unified diff. Computed
    without side effects before anything is asked."""

    summary: str
    paths: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    preview: str | None = None


class ChildWatch(Protocol):
    """Told of each process before it runs and after it has ended, so that a restart of the hub finds survivors.
    `started` returns only when the fact is stored; the process executes nothing before that."""

    async def started(self, pid: int, start_time: float, group: int) -> None: ...

    async def ended(self, pid: int) -> None: ...


class ToolContext(msgspec.Struct, frozen=True):
    """What a call may use. `root` is the workspace, resolved; relative paths are taken from it.
    `env` is the whole environment for child processes (already scrubbed). `remaining_s` is the run's remaining wall
    time. `before_write` must be awaited with the absolute paths before a file is written. `progress` takes text to
    show while the call runs. Cancelling the task that runs the call ends it, children included: when `execute` has
    raised CancelledError nothing of it lives any more."""

    root: Path
    env: Mapping[str, str]
    call_id: str
    remaining_s: float
    watch: ChildWatch
    before_write: Callable[[Sequence[Path]], Awaitable[None]]
    progress: Callable[[str], None]


class Tool(Protocol):
    """One tool. `spec.parameters` is what the model sees; `normalise` accepts the looser forms that models send.

    `normalise(arguments)` returns the canonical arguments (those that are hashed, shown, approved and executed), or
    raises ToolFailure with what was wrong. It is pure, and normalise(normalise(x)) == normalise(x).
    `subject(arguments, root)` may look at the file system (to resolve symlinks) and writes nothing.
    `execute` raises ToolFailure, or returns; asyncio.CancelledError passes through after clean-up.
    """

    @property
    def spec(self) -> ToolSpec: ...

    @property
    def effect(self) -> Effect: ...

    def normalise(self, arguments: Any) -> dict[str, Any]: ...

    def subject(self, arguments: dict[str, Any], root: Path) -> Subject: ...

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput: ...
