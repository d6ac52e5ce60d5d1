"""How much disk space the checkpoints alone keep: an estimate at the cost of two git calls.

Objects that branches, tags or other refs reach, too, count nothing; an object of several checkpoints counts to the
newest, since only then is it freed. Not promised: what is freed in the end; git packs objects against each other, and
the reflog and the index of the user may hold some of them.
"""

from collections import Counter
from collections.abc import Collection

from hub.checkpoint.repository import Repository

OTHERS = ("--not", "--exclude=refs/turnback/*", "--all")


def kept_bytes(user: Repository, commits: Collection[str]) -> dict[str, int]:
    """Return the bytes on disk of what goes with each commit when all older ones have gone before. Raises GitFailed."""
    if not commits:
        return {}
    words = ("--objects", "--in-commit-order", "--missing=allow-any", "--stdin", *OTHERS)
    out = user.run("rev-list", *words, stdin=_lines(commits))
    owners = _owners(out, frozenset(commits))
    sizes = user.run("cat-file", "--batch-check=%(objectname) %(objectsize:disk)", stdin=_lines(owners))
    found: Counter[str] = Counter()
    for line in sizes.decode().splitlines():
        oid, size = line.split(" ", 1)
        if size.isdigit():
            found[owners[oid]] += int(size)
    return {commit: found[commit] for commit in commits}


def _owners(out: bytes, commits: frozenset[str]) -> dict[str, str]:
    """Return which checkpoint each object counts to. Commits come newest first, each before its objects."""
    owners, owner = {}, ""
    for line in out.splitlines():
        oid = line.split(b" ", 1)[0].decode()
        owner = oid if oid in commits else owner
        if owner:
            owners[oid] = owner
    return owners


def _lines(names: Collection[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode()
