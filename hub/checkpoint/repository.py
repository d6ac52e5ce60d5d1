"""The only module that runs git: every call of the hub to it goes through a `Repository`.

Invariant: arguments, input and output are bytes; no hook, filter, signature, identity, replacement or lazy fetch of
the user's takes part; GIT_* of the caller never decide which repository is meant. Git children inherit the descriptors
in `inherit`, so that a worktree's lock lives as long as they do. Not promised: that a killed child left no lock file
of the private index; who holds the worktree's lock may remove it.
"""

import contextlib
import copy
import os
import shlex
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

from hub.checkpoint.values import CheckpointError
from hub.errors import UsageError

IDENTITY = "turnback"
LOCAL_VARIABLES = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES"),
    *("GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_CEILING_DIRECTORIES", "GIT_DISCOVERY_ACROSS_FILESYSTEM", "GIT_PREFIX"),
    *("GIT_CONFIG", "GIT_CONFIG_PARAMETERS", "GIT_CONFIG_COUNT", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"),
    *("GIT_CONFIG_NOSYSTEM", "GIT_IMPLICIT_WORK_TREE", "GIT_GRAFT_FILE", "GIT_SHALLOW_FILE", "GIT_REPLACE_REF_BASE"),
)
"""What could turn discovery to another repository than the one the directory lies in."""

NEUTRAL = {
    **dict.fromkeys(("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_CONFIG_PARAMETERS", "GIT_NAMESPACE"), ""),
    **dict.fromkeys(("GIT_GLOB_PATHSPECS", "GIT_NOGLOB_PATHSPECS", "GIT_ICASE_PATHSPECS"), "0"),
    **dict.fromkeys(("GIT_LITERAL_PATHSPECS", "GIT_NO_REPLACE_OBJECTS", "GIT_NO_LAZY_FETCH"), "1"),
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    **{f"GIT_{who}_NAME": IDENTITY for who in ("AUTHOR", "COMMITTER")},
    **{f"GIT_{who}_EMAIL": f"{IDENTITY}@localhost" for who in ("AUTHOR", "COMMITTER")},
}
SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.logAllRefUpdates": "false",
    "core.fsync": "loose-object,reference",
    "core.fsyncMethod": "batch",
    "core.splitIndex": "false",
    "core.quotePath": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
}
QUESTIONS = (
    *("--path-format=absolute", "--show-toplevel", "--absolute-git-dir", "--git-common-dir"),
    "--show-object-format",
)
CHUNK = 1 << 20
"""Bytes read at a time from an object."""

PATIENCE_S = 60.0
"""How long a single git call may take where the caller sets no deadline."""


class GitFailed(Exception):
    """A git call ended with an error: its exit status and what it printed on standard error."""

    def __init__(self, arguments: Sequence[str], status: int, stderr: str) -> None:
        super().__init__(f"git {arguments[0]} ended with status {status}: {stderr.strip()[:500]}")
        self.status = status
        self.stderr = stderr


class NoRepository(UsageError):
    """A directory around which there is no repository at all; a shadow store can take its checkpoints."""


class Call:
    """A git process in progress; `finish` gives what it printed."""

    def __init__(self, arguments: Sequence[str], handle: Any) -> None:
        self._arguments = arguments
        self._handle = handle  # ends the process when it goes
        self._process: subprocess.Popen[bytes] = handle.proc

    @property
    def stdout(self) -> IO[bytes]:
        return cast("IO[bytes]", self._process.stdout)

    def finish(self, timeout_s: float, allow: Sequence[int] = (0,)) -> bytes:
        """Return standard output. Raises GitFailed, or CheckpointError over_budget when the time is up."""
        try:
            out, err = self._process.communicate(timeout=max(timeout_s, 0.01))
        except subprocess.TimeoutExpired:
            self.kill()
            raise CheckpointError("Git took longer than the time given.", code="over_budget", retryable=True) from None
        if self._process.returncode not in allow:
            raise GitFailed(self._arguments, self._process.returncode, err.decode("utf-8", "replace"))
        return out

    def kill(self) -> None:
        """End the process, if it still runs, and let its pipes go."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


class Repository:
    """Git, with one view of a repository: a git directory, a worktree, an index, an object store.

    `deadline` is on `time.monotonic`'s scale; a call that would outlast it is killed.
    """

    def __init__(self, top: bytes, environment: Mapping[str, str], settings: Mapping[str, str] = SETTINGS) -> None:
        self.top = top
        self.deadline: float | None = None
        self.inherit: list[int] = []
        self._environment = {**NEUTRAL, **environment, **_as_variables(settings)}

    def with_index(self, index: bytes) -> "Repository":
        """Return the same view with another index file."""
        return self.with_environment({"GIT_INDEX_FILE": os.fsdecode(index)})

    def with_environment(self, environment: Mapping[str, str]) -> "Repository":
        """Return the same view with some variables set otherwise."""
        twin = copy.copy(self)
        twin._environment = {**self._environment, **environment}
        return twin

    def start(self, *arguments: str | bytes, stdin: bytes = b"") -> Call:
        """Start a git process."""
        words = [os.fsdecode(word) for word in arguments]
        with _input(stdin) as source:
            handle = _git(self.top).execute(
                ["git", *words],
                istream=source,
                as_process=True,
                env=self._environment,
                pass_fds=tuple(self.inherit),
            )
        return Call(words, handle)

    def run(self, *arguments: str | bytes, stdin: bytes = b"", allow: Sequence[int] = (0,)) -> bytes:
        """Return what a git call prints. Raises GitFailed, CheckpointError over_budget."""
        return self.start(*arguments, stdin=stdin).finish(self.time_left(), allow)

    def line(self, *arguments: str | bytes, stdin: bytes = b"") -> str:
        """Return the line that a git call prints. Raises as `run`."""
        return os.fsdecode(self.run(*arguments, stdin=stdin).removesuffix(b"\n"))

    def maybe_line(self, *arguments: str | bytes) -> str | None:
        """Return the line, or None when git says that there is none (status 1)."""
        out = self.run(*arguments, allow=(0, 1))
        return os.fsdecode(out.removesuffix(b"\n")) or None

    def time_left(self) -> float:
        """Return the seconds that the next call may take. Raises CheckpointError over_budget when none are left."""
        if self.deadline is None:
            return PATIENCE_S
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise CheckpointError("The time for this capture is up.", code="over_budget", retryable=True)
        return left

    def objects(self, names: Sequence[str]) -> Generator[tuple[str, int, Iterator[bytes]], None, None]:
        """Yield each object's id, size and content in chunks, in the order of `names`; read each before the next.

        Whoever may stop before the end closes it: git inherits the worktree's lock and lives as long as this does.
        Raises CheckpointError checkpoint_incomplete for one that is missing.
        """
        if not names:
            return
        call = self.start("cat-file", "--batch", stdin="".join(f"{name}\n" for name in names).encode())
        try:
            for name in names:
                oid, size = _header(name, call.stdout.readline())
                yield oid, size, _content(call.stdout, size)
                call.stdout.read(1)
        finally:
            call.kill()  # it has nothing more to say, or nobody listens any more

    def sizes(self, oids: Iterable[str]) -> dict[str, int]:
        """Return the size of each blob that exists."""
        wanted = sorted(set(oids))
        if not wanted:
            return {}
        names = "".join(f"{oid}\n" for oid in wanted).encode()
        out = self.run("cat-file", "--batch-check=%(objectname) %(objectsize)", stdin=names)
        rows = [line.split(" ") for line in out.decode().splitlines()]
        return {row[0]: int(row[1]) for row in rows if row[1].isdigit()}


def discover(directory: Path) -> tuple[bytes, bytes, bytes, str]:
    """Return top level, git directory, common directory and object format of the repository around a directory.

    Raises UsageError: not_a_directory, not_a_repository, foreign_owner, git_missing.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory.", code="not_a_directory")
    answers = _ask(directory, *QUESTIONS).split(b"\n")
    if len(answers) != len(QUESTIONS) - 1:  # a path contains a newline
        answers = [_ask(directory, QUESTIONS[0], question) for question in QUESTIONS[1:]]
    top, git_dir, common_dir, algorithm = answers
    return top, git_dir, common_dir, algorithm.decode()


def safe_directories() -> list[str]:
    """Return the directories of other owners that the user has told git to trust. Raises UsageError git_missing."""
    words = ("config", "-z", "--type=path", "--get-all", "safe.directory")
    return os.fsdecode(_outside(b"/", *words).finish(PATIENCE_S, allow=(0, 1))).split("\0")[:-1]


def _ask(directory: Path, *question: str) -> bytes:
    """Ask git where it is, whatever the caller's environment says."""
    try:
        return _outside(os.fsencode(directory), "rev-parse", *question).finish(PATIENCE_S).removesuffix(b"\n")
    except GitFailed as failure:
        raise _explained(directory, failure) from failure


def _outside(directory: bytes, *words: str) -> Call:
    """Start git in a directory as the user's shell would, whatever the caller's environment says."""
    unset = [word for name in LOCAL_VARIABLES for word in ("-u", name)]
    handle = _git(directory).execute(["env", *unset, "git", *words], as_process=True)
    return Call(list(words), handle)


def _explained(directory: Path, failure: GitFailed) -> UsageError:
    if "dubious ownership" in failure.stderr:
        return UsageError(
            f"{directory} is in a repository that belongs to somebody else; git refuses to work there.",
            code="foreign_owner",
            hint=f"If you trust it: {_trusting(directory, failure)}",
        )
    if failure.status == 127:
        return _git_missing()
    if "must be run in a work tree" in failure.stderr:
        return UsageError(
            f"{directory} is inside a git directory or a bare repository: there are no files to capture.",
            code="not_a_repository",
            hint="Name a directory of a worktree.",
        )
    if "(or any" not in failure.stderr:
        return UsageError(
            f"The repository of {directory} cannot be found: {failure.stderr.strip()}",
            code="not_a_repository",
            hint="Its .git file or folder is damaged, or what it points to has moved; see `git worktree repair`.",
        )
    return NoRepository(
        f"{directory} is not in a git repository.",
        code="not_a_repository",
        hint="`git init` in it makes it one; nothing needs to be committed.",
    )


def _trusting(directory: Path, failure: GitFailed) -> str:
    """Return the command line that makes git trust a repository, as git itself gives it."""
    lines = (line.strip() for line in failure.stderr.splitlines())
    own = next((line for line in lines if line.startswith("git config")), None)
    return own or f"git config --global --add safe.directory {shlex.quote(str(directory))}"


def _git_missing() -> UsageError:
    return UsageError("git is not installed, or not on the PATH.", code="git_missing", hint="Install git.")


def _git(top: bytes) -> Any:
    """Return GitPython's runner of commands in a directory. Raises UsageError git_missing."""
    try:
        from git.cmd import Git  # costs 60 ms and a process: paid when a repository is first worked with
    except ImportError as error:
        raise _git_missing() from error
    return Git(os.fsdecode(top))


def _as_variables(settings: Mapping[str, str]) -> dict[str, str]:
    pairs = {f"GIT_CONFIG_KEY_{number}": key for number, key in enumerate(settings)}
    pairs |= {f"GIT_CONFIG_VALUE_{number}": value for number, value in enumerate(settings.values())}
    return pairs | {"GIT_CONFIG_COUNT": str(len(settings))}


@contextlib.contextmanager
def _input(data: bytes) -> Iterator[IO[bytes] | None]:
    if not data:
        yield None
        return
    with tempfile.TemporaryFile() as source:
        source.write(data)
        source.seek(0)
        yield source


def _header(name: str, line: bytes) -> tuple[str, int]:
    words = line.decode().split(" ")
    if len(words) != 3 or not words[2].strip().isdigit():
        raise CheckpointError(
            f"The checkpoint is incomplete: object {name} is missing from the repository.",
            code="checkpoint_incomplete",
        )
    return words[0], int(words[2])


def _content(stream: IO[bytes], size: int) -> Iterator[bytes]:
    while size > 0:
        chunk = stream.read(min(size, CHUNK))
        if not chunk:
            raise CheckpointError("Git ended in the middle of an object.", code="checkpoint_incomplete")
        size -= len(chunk)
        yield chunk
