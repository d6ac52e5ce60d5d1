"""run_commands: shell commands in the workspace, one after another.

A later command runs although an earlier one failed. Each result's first line says how its command ended.
Not promised: that an effect outside the workspace can be taken back, or that a command does only what its text says.
"""

import os
import shlex
import signal
import time
from pathlib import Path
from typing import Any

import msgspec

from hub.agent.model import ToolSpec
from hub.agent.tools.arguments import as_list, as_object, only_given, opened, seconds, text_of
from hub.agent.tools.base import Effect, Subject, ToolContext, ToolFailure, ToolOutput
from hub.agent.tools.capture import Capture, Progress
from hub.agent.tools.heredocs import join_heredocs
from hub.agent.tools.process import Ended, Launch, Runner
from hub.agent.tools.truncate import cut_middle, shortened

NAME = "run_commands"
DEFAULT_TIMEOUT_S = 600
MAX_COMMANDS = 20
TEXT_LIMIT = 48_000  # characters of one command's result
FULL_LIMIT = 20_000_000  # bytes kept of one call, all its commands together
STDERR_SHARE = 4  # one part in so many of what is kept is for stderr
ECHO_LIMIT = 200  # characters of a command repeated in its result
SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")

SPEC = ToolSpec(
    NAME,
    "Run shell commands in the workspace's root, one after another; each gets its own result. Standard input is empty, "
    "so nothing can be answered interactively. A command ends when its process exits; use `&` to leave something "
    f"running. Without timeout_s a command is ended after {DEFAULT_TIMEOUT_S} s, and what it printed is returned.",
    {
        "type": "object",
        "properties": {
            "commands": {
                "type": "array",
                "items": {"type": "string", "minLength": 1},
                "minItems": 1,
                "maxItems": MAX_COMMANDS,
                "description": "Shell command lines, run in order.",
            },
            "timeout_s": {
                "type": "number",
                "exclusiveMinimum": 0,
                "description": "Seconds that each command may take, at most the run's remaining time.",
            },
        },
        "required": ["commands"],
        "additionalProperties": False,
    },
)


class Result(msgspec.Struct, frozen=True):
    """One command's result: what the model reads, and the same uncut when it was cut."""

    ok: bool
    text: str
    full: str | None


class RunCommands:
    """The tool. It keeps following what commands leave in the background until `close`."""

    spec = SPEC
    effect: Effect = "external"

    def __init__(self) -> None:
        self._runner = Runner()

    def normalise(self, arguments: Any) -> dict[str, Any]:
        value = opened(arguments)
        commands, limit = _parts(value)
        lines = join_heredocs([_line(command) for command in commands])
        if not lines:
            raise ToolFailure("run_commands needs at least one command.")
        if len(lines) > MAX_COMMANDS:
            raise ToolFailure(f"run_commands takes at most {MAX_COMMANDS} commands in one call, not {len(lines)}.")
        timeout = seconds(limit, "timeout_s")
        return {"commands": lines} if timeout is None else {"commands": lines, "timeout_s": timeout}

    def subject(self, arguments: dict[str, Any], root: Path) -> Subject:
        lines = tuple(arguments["commands"])
        more = f" (and {len(lines) - 1} more)" if len(lines) > 1 else ""
        return Subject(f"run {shortened(lines[0], ECHO_LIMIT)}{more}", commands=lines)

    async def execute(self, arguments: dict[str, Any], context: ToolContext) -> ToolOutput:
        deadline = time.monotonic() + context.remaining_s
        lines: list[str] = arguments["commands"]
        results = []
        for line in lines:
            left_s = min(arguments.get("timeout_s", DEFAULT_TIMEOUT_S), deadline - time.monotonic())
            results.append(await self._one(line, left_s, FULL_LIMIT // len(lines), context))
        full = "\n\n".join(result.full or result.text for result in results)
        return ToolOutput(
            ok=all(result.ok for result in results),
            text="\n\n".join(result.text for result in results),
            full_text=full if any(result.full is not None for result in results) else None,
        )

    async def _one(self, line: str, timeout_s: float, keep: int, context: ToolContext) -> Result:
        if timeout_s <= 0:
            return Result(False, f"not run: the run's time is used up\n{_echo(line)}", None)
        output = {"stdout": Capture(keep - keep // STDERR_SHARE), "stderr": Capture(keep // STDERR_SHARE)}
        progress = Progress(context.progress)

        def sink(stream: str, data: bytes) -> None:
            output[stream].feed(data)
            progress.feed(stream, data)

        launch = Launch((shell(), "-c", line), context.root, context.env, keep_background=True)
        try:
            ended = await self._runner.run(launch, context.watch, sink, timeout_s)
        finally:
            progress.flush()
        return _result(line, ended, timeout_s, output["stdout"].text(), output["stderr"].text())

    async def close(self) -> None:
        """Stop following what commands left in the background."""
        await self._runner.close()


def shell() -> str:
    """Return the shell that reads command lines: bash where there is one, for that is what models write."""
    return next((path for path in SHELLS if os.access(path, os.X_OK)), SHELLS[-1])


def _parts(value: Any) -> tuple[list[Any], Any]:
    """Return the commands of any accepted form, and the time limit."""
    if not isinstance(value, dict):
        return as_list(value), None
    if "args" in value:
        return [value], value.get("timeout_s")
    given = as_object(value, NAME)
    return as_list(opened(only_given(given, ("commands", "command", "cmd"), NAME))), given.get("timeout_s")


def _line(command: Any) -> str:
    """Return one command as a shell line. An object with args is run as written, so each argument is quoted."""
    if isinstance(command, dict):
        command = _from_object(command)
    line = text_of(command, "A command")
    if not line.strip() or "\0" in line:
        raise ToolFailure("A command must not be blank or hold a NUL character.")
    return line


def _from_object(command: dict[str, Any]) -> str:
    program = only_given(command, ("command", "cmd"), NAME)
    if not isinstance(program, str):
        raise ToolFailure('A command must be a text, or an object such as {"command": "ls", "args": ["-l"]}.')
    if command.get("args") is None:
        return program
    words = [text_of(word, "An argument of a command") for word in as_list(opened(command["args"]))]
    return shlex.join([program, *words])


def _echo(line: str) -> str:
    return f"$ {shortened(line, ECHO_LIMIT)}"


def _result(line: str, ended: Ended, timeout_s: float, stdout: str, stderr: str) -> Result:
    parts = [_ending(ended, timeout_s), _echo(line), *_remarks(ended)]
    heading = "\n".join(parts)
    body = _joined(stdout, stderr)
    cut = cut_middle(body, TEXT_LIMIT)
    ok = ended.how == "exited" and ended.exit_code == 0
    return Result(ok, f"{heading}\n{cut.text}".rstrip("\n"), f"{heading}\n{body}" if cut.cut else None)


def _joined(stdout: str, stderr: str) -> str:
    if not stderr:
        return stdout
    separator = "" if not stdout or stdout.endswith("\n") else "\n"
    return f"{stdout}{separator}[stderr]\n{stderr}"


def _ending(ended: Ended, timeout_s: float) -> str:
    if ended.how == "timeout":
        return f"timed out after {timeout_s:.3g} s and was ended; its output so far:"
    code = ended.exit_code
    if code is not None and code < 0:
        return f"exit code {128 - code} (ended by {_signal_name(-code)})"
    return f"exit code {code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _remarks(ended: Ended) -> list[str]:
    remarks = []
    if ended.background:
        names = ", ".join(ended.background)
        remarks.append(f"[still running in the background, process group {ended.group}: {names}]")
    elif ended.held and ended.how == "exited":
        remarks.append("[a process that this command started elsewhere still runs and holds its output open]")
    if ended.survivors:
        remarks.append(f"[could not be ended: pids {', '.join(map(str, ended.survivors))}]")
    return remarks
