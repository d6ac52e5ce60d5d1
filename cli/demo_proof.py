"""What `hubctl demo` proves, by looking itself: snapshots of a repository and a conversation, compared facet by facet.

It asks the hub only for the messages; files, modes and the index are read from the disk and from git.
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from cli.demo_repository import git
from cli.text import plural


class Snapshot(msgspec.Struct, frozen=True):
    """How everything is at one moment. Each facet is a digest or a value that can be compared."""

    contents: Mapping[str, str]
    modes: Mapping[str, str]
    index: str
    history: str
    ignored: Mapping[str, str]
    messages: int
    conversation: str
    tests_pass: bool


class Proof(msgspec.Struct, frozen=True):
    """One facet at one step: whether it was as it should be. `detail` says how much was compared."""

    step: str
    what: str
    detail: str
    ok: bool


def look(repository: Path, messages: Sequence[Any], *, tests_pass: bool) -> Snapshot:
    """Return how the repository and the conversation are now."""
    mine = paths(repository, "--cached", "--others", "--exclude-standard")
    ignored = paths(repository, "--others", "--ignored", "--exclude-standard")
    return Snapshot(
        contents={name: _content(repository / name) for name in mine},
        modes={name: _mode(repository / name) for name in mine},
        index=_digest(git(repository, "ls-files", "--stage"), git(repository, "status", "--porcelain=v2", "-z")),
        history=_digest(_refs(repository), git(repository, "stash", "list")),
        ignored={name: _content(repository / name) for name in ignored},
        messages=len(messages),
        conversation=_digest(msgspec.json.encode(messages)),
        tests_pass=tests_pass,
    )


def paths(repository: Path, *which: str) -> list[str]:
    """Return the names of files that exist, as `git ls-files` selects them."""
    names = {os.fsdecode(name) for name in git(repository, "ls-files", "-z", *which).split(b"\0") if name}
    return sorted(name for name in names if os.path.lexists(repository / name))


def _content(path: Path) -> str:
    return _digest(os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes())


def _mode(path: Path) -> str:
    return oct(stat.S_IMODE(path.lstat().st_mode))


def _refs(repository: Path) -> bytes:
    refs = git(repository, "for-each-ref").splitlines()
    own = [ref for ref in refs if b"\trefs/turnback/" not in ref]
    return b"\n".join([git(repository, "rev-parse", "HEAD"), git(repository, "symbolic-ref", "HEAD"), *own])


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def compare(step: str, now: Snapshot, then: Snapshot) -> list[Proof]:
    """Return one proof per facet: now is as it was then."""
    kept = all(now.ignored.get(name) == content for name, content in then.ignored.items())
    found = (
        ("every byte (SHA-256)", plural(len(then.contents), "file"), now.contents == then.contents),
        ("every mode", plural(len(then.modes), "file"), now.modes == then.modes),
        ("what was staged, git status", "", now.index == then.index),
        ("HEAD, branches, stash", "", now.history == then.history),
        ("ignored files left alone", plural(len(then.ignored), "file"), kept),
        ("the conversation", plural(then.messages, "message"), now.conversation == then.conversation),
        ("the tests", "pass" if then.tests_pass else "fail", now.tests_pass == then.tests_pass),
    )
    return [Proof(step, what, detail, ok) for what, detail, ok in found]
