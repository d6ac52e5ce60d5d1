"""Checkpoints as one file: a git bundle that holds all they need, made whole or not at all.

Plain git reads it. A whole checkpoint, byte for byte, into a new folder (`Exported.commands` has them filled in):

    git init -q FOLDER && cd FOLDER
    git fetch -q FILE 'refs/turnback/*:refs/turnback/*'
    echo '* -text !eol -ident -filter !working-tree-encoding' > .git/info/attributes
    git read-tree --reset -u refs/turnback/REF:worktree

A single file: `git show refs/turnback/REF:worktree/PATH`. What was staged is in `index/`, everything else (permissions
that git does not keep, empty directories, what was not captured) in `meta.json`. Invariant: the file is complete and on
disk before it has its name. Not promised: a small file; the history behind the checkpoints is in it.
"""

import os
import secrets
import shlex
import time
from collections.abc import Sequence
from pathlib import Path

from hub.checkpoint.files import sync_directory
from hub.checkpoint.repository import GitFailed, Repository
from hub.checkpoint.stores.records import PREFIX, Records
from hub.checkpoint.stores.side import ATTRIBUTES, Store
from hub.checkpoint.values import CheckpointError, Value
from hub.errors import ConflictError, UsageError

BUDGET_S = 900.0


class Exported(Value, frozen=True, kw_only=True):
    """A bundle that was written. `commands` bring the first of its checkpoints into a new folder, with plain git."""

    file: str
    refs: tuple[str, ...]
    bytes: int
    commands: tuple[str, ...]


def export(store: Store, records: Records, refs: Sequence[str], file: Path, *, overwrite: bool) -> Exported:
    """Write checkpoints into a bundle. Raises as `Engine.export`."""
    _check(records, refs, file, overwrite=overwrite)
    temporary = file.parent / f".{file.name}.{secrets.token_hex(4)}.tmp"
    try:
        _bundle(_patient(store), refs, temporary)
        _settle(temporary, file, overwrite=overwrite)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(os.fsencode(file.parent))
    return Exported(
        file=str(file), refs=tuple(refs), bytes=file.stat().st_size, commands=commands(store.algorithm, file, refs[0])
    )


def commands(algorithm: str, file: Path, ref: str) -> tuple[str, ...]:
    """Return the shell commands that bring a checkpoint out of a bundle, byte for byte."""
    wanted = "" if algorithm == "sha1" else f" --object-format={algorithm}"
    return (
        f"git init -q{wanted} restored && cd restored",
        f"git fetch -q {shlex.quote(str(file))} '{PREFIX}*:{PREFIX}*'",
        f"echo {shlex.quote(ATTRIBUTES.decode().strip())} > .git/info/attributes",
        f"git read-tree --reset -u {PREFIX}{ref}:worktree",
    )


def _check(records: Records, refs: Sequence[str], file: Path, *, overwrite: bool) -> None:
    known = dict(records.refs(parts=True))
    for ref in refs:
        if ref not in known:
            raise records.missing(ref)
    if not refs:
        raise UsageError("Say which checkpoints are to be exported.", code="bad_ref")
    if not file.is_absolute() or not file.parent.is_dir():
        raise UsageError(f"{file} is no absolute path in a directory that is there.", code="not_a_directory")
    if os.path.lexists(file) and not overwrite:
        raise _taken(file)


def _patient(store: Store) -> Repository:
    view = store.user.with_index(store.user_index)
    view.deadline = time.monotonic() + BUDGET_S
    return view


def _bundle(user: Repository, refs: Sequence[str], file: Path) -> None:
    names = [PREFIX + ref for ref in dict.fromkeys(refs)]
    try:
        user.run("bundle", "create", "--quiet", os.fsencode(file), *names)
        user.run("bundle", "verify", "--quiet", os.fsencode(file))
    except GitFailed as failure:
        raise CheckpointError(
            f"The checkpoints could not be exported: {failure}",
            code="export_failed",
            hint="Verify the checkpoints: one of them may be incomplete.",
        ) from failure


def _settle(temporary: Path, file: Path, *, overwrite: bool) -> None:
    """Give the bundle its name once it is on disk."""
    with temporary.open("rb") as stream:
        os.fsync(stream.fileno())
    if overwrite:
        os.replace(temporary, file)
        return
    try:
        os.link(temporary, file)
    except FileExistsError:
        raise _taken(file) from None


def _taken(file: Path) -> ConflictError:
    return ConflictError(f"{file} exists already.", code="file_exists", hint="Name another, or say to overwrite it.")
