"""Where HEAD stands, and which merge, rebase, cherry-pick, revert or bisect is in progress. Reads only."""

import hashlib
import os
import re

from hub.checkpoint.repository import Repository
from hub.checkpoint.stores.meta import text

FILES = (
    *(b"MERGE_HEAD", b"MERGE_MODE", b"MERGE_MSG", b"CHERRY_PICK_HEAD", b"REVERT_HEAD", b"REBASE_HEAD"),
    *(b"BISECT_LOG", b"BISECT_START", b"BISECT_NAMES", b"BISECT_TERMS", b"BISECT_EXPECTED_REV"),
)
_OID = re.compile(rb"[0-9a-f]{40}|[0-9a-f]{64}")
PACKED_BYTES = 1 << 20
"""So much of a list of packed refs is read here; git finds its way in a longer one faster."""
STAND_IN = "refs/heads/.invalid"
"""What the file HEAD says where git keeps refs in another format."""

NO_BRANCH = "refs/heads/turnback-none"
"""Where HEAD points in a store of ours, in which there is no branch: git's own clean-up wants it to point somewhere."""

FOLDERS = (b"rebase-merge", b"rebase-apply", b"sequencer")


def head_of(user: Repository, git_dir: bytes, common_dir: bytes = b"") -> tuple[str | None, str | None]:
    """Return the commit of HEAD (None before the first) and the full name of the branch (None when detached).

    With `common_dir`, where branches have their files, git is asked only for what has none.
    """
    with open(os.path.join(git_dir, b"HEAD"), "rb") as stream:
        content = stream.read().removesuffix(b"\n")
    branch = text(content.removeprefix(b"ref: ")) if content.startswith(b"ref: ") else None
    if branch == STAND_IN:
        branch = user.maybe_line("symbolic-ref", "-q", "HEAD")
    commit = _tip(content, common_dir) or user.maybe_line("rev-parse", "-q", "--verify", "HEAD^{commit}")
    return commit, None if branch == NO_BRANCH else branch


def _tip(head: bytes, common_dir: bytes) -> str | None:
    """Return the commit that HEAD's own file, or that of its branch, names."""
    branch = head.removeprefix(b"ref: ")
    if branch != head:
        if not common_dir or not branch.startswith(b"refs/heads/"):
            return None
        try:
            with open(os.path.join(common_dir, branch), "rb") as stream:
                head = stream.read().strip()
        except OSError:
            head = _packed(common_dir, branch)
    return head.decode() if _OID.fullmatch(head) else None


def _packed(common_dir: bytes, branch: bytes) -> bytes:
    """Return the commit of a branch that has no file of its own, nothing where git had better be asked."""
    try:
        with open(os.path.join(common_dir, b"packed-refs"), "rb") as stream:
            content = stream.read(PACKED_BYTES)
    except OSError:
        return b""
    start = content.find(b" " + branch + b"\n")
    return content[:start].rpartition(b"\n")[2] if start >= 0 else b""


def operation_of(git_dir: bytes) -> dict[str, str]:
    """Return the SHA-256 of each file of an operation in progress, by its name in the git directory."""
    names = [name for name in FILES if os.path.isfile(os.path.join(git_dir, name))]
    for folder in FOLDERS:
        for path, _, files in os.walk(os.path.join(git_dir, folder)):
            names += [os.path.relpath(os.path.join(path, file), git_dir) for file in files]
    return {text(name): _digest(os.path.join(git_dir, name)) for name in sorted(names)}


def name_of(operation: dict[str, str]) -> str:
    """Return what is in progress, in words."""
    words = {
        "MERGE_HEAD": "a merge",
        "CHERRY_PICK_HEAD": "a cherry-pick",
        "REVERT_HEAD": "a revert",
        "rebase-": "a rebase",
        "BISECT_": "a bisect",
    }
    found = [word for start, word in words.items() if any(name.startswith(start) for name in operation)]
    return " and ".join(found) or "no operation"


def distance(user: Repository, base: str | None, head: str | None) -> int:
    """Return how many commits `head` has that `base` does not have."""
    if head is None or head == base:
        return 0
    return int(user.line("rev-list", "--count", head, *([f"^{base}"] if base else []), "--"))


def _digest(path: bytes) -> str:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
