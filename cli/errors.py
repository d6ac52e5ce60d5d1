"""How things that go wrong end: one table from exceptions to a code, a text and an exit code.

Invariant: every way out of `hubctl` that is not a success goes through `failure_of`, so a code or exit code is decided
in one place. It does not print; `cli.output` does.
"""

from dataclasses import dataclass

import typer

from hub.errors import ExitCode, TurnbackError


@dataclass(frozen=True)
class Failure:
    """What is told to the person or script. `usage` is the command's usage line, empty when it does not help."""

    code: str
    message: str
    hint: str | None
    exit_code: int
    usage: str = ""


EXPECTED = (TurnbackError, typer.TyperException, typer.Abort, KeyboardInterrupt, OSError)
"""Exceptions that `failure_of` knows. Any other is a defect and keeps its stack trace."""


def failure_of(error: BaseException) -> Failure:
    """Return what an expected exception means to the caller. Raises TypeError for any other."""
    match error:
        case TurnbackError():
            return Failure(error.code, error.message, error.hint, int(error.exit_code))
        case typer.TyperException():
            return _usage_failure(error)
        case typer.Abort() | KeyboardInterrupt():
            return Failure("cancelled", "Stopped by Ctrl-C.", None, int(ExitCode.CANCELLED))
        case OSError():
            return Failure("io_error", _os_text(error), None, int(ExitCode.FAILED))
        case _:
            raise TypeError(f"not an expected exception: {error!r}")


def _usage_failure(error: typer.TyperException) -> Failure:
    context = getattr(error, "ctx", None)
    hint = f"Try '{context.command_path} --help'." if context else None
    usage = context.get_usage() if context else ""
    return Failure("usage", error.format_message(), hint, int(ExitCode.USAGE), usage)


def _os_text(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
