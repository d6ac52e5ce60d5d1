"""The error tree. Every error that leaves the hub has a stable code; clients branch on the code, people read the text.

    TurnbackError
    ├── UsageError          invalid_params, not_a_directory, config_invalid, unknown_model …   exit code 2
    ├── RefusedError        refused by policy or state, said with the reason                   exit code 3
    ├── UnavailableError    no hub, or it cannot serve now                                     exit code 4
    ├── NotFoundError       unknown id, method or name                                         exit code 5
    ├── ConflictError       somebody else was first, or the state has moved                    exit code 6
    ├── AuthError           bad token, missing scope, wrong origin                             exit code 7
    ├── FailedError         tried and not done: a disk is full, an object is missing           exit code 1
    └── InternalError       a defect of ours; the text names the log                           exit code 1

A message says what happened and what to do next; `hint` holds the second half when the two are better kept apart.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """What `hubctl` ends with. Stable: scripts rely on it."""

    OK = 0
    FAILED = 1
    USAGE = 2
    REFUSED = 3
    NO_HUB = 4
    NOT_FOUND = 5
    CONFLICT = 6
    NOT_AUTHORISED = 7
    APPROVAL = 8
    CANCELLED = 130


class TurnbackError(Exception):
    """Base of every error with a stable code (snake_case). `retryable`: the same call may work later."""

    exit_code = ExitCode.FAILED
    default_code = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        hint: str | None = None,
        retryable: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.hint = hint
        self.retryable = retryable
        self.retry_after_s = retry_after_s


class UsageError(TurnbackError):
    """The call itself is wrong: bad arguments, a bad path, a bad setting."""

    exit_code = ExitCode.USAGE
    default_code = "invalid_params"


class RefusedError(TurnbackError):
    """The call is understood and not allowed now, by policy or by the state of things."""

    exit_code = ExitCode.REFUSED
    default_code = "refused"


class UnavailableError(TurnbackError):
    """There is no hub, or it cannot serve this now."""

    exit_code = ExitCode.NO_HUB
    default_code = "unavailable"


class NotFoundError(TurnbackError):
    """Nothing has this id or name."""

    exit_code = ExitCode.NOT_FOUND
    default_code = "not_found"


class ConflictError(TurnbackError):
    """Somebody else was first, or the thing has changed since it was looked at."""

    exit_code = ExitCode.CONFLICT
    default_code = "conflict"


class AuthError(TurnbackError):
    """The caller is not who it must be, or may not do this."""

    exit_code = ExitCode.NOT_AUTHORISED
    default_code = "unauthorised"


class FailedError(TurnbackError):
    """It was tried and could not be done, for a reason outside of the hub; the text says what is as before."""

    exit_code = ExitCode.FAILED
    default_code = "failed"


class InternalError(TurnbackError):
    """A defect of the program. The text names the log to look at and never carries a stack trace."""

    exit_code = ExitCode.FAILED
    default_code = "internal"


KINDS: dict[str, type[TurnbackError]] = {
    kind.__name__: kind
    for kind in (
        UsageError,
        RefusedError,
        UnavailableError,
        NotFoundError,
        ConflictError,
        AuthError,
        FailedError,
        InternalError,
    )
}
