"""Git objects that we make ourselves: a checkpoint's own.

Invariant: the bytes and ids are those that git would make of the same content.
"""

import hashlib
from collections.abc import Iterable, Sequence

import msgspec


class Object(msgspec.Struct, frozen=True):
    """An object: its kind, its content, its id in hexadecimal."""

    kind: str
    content: bytes
    oid: str


def made(kind: str, content: bytes, algorithm: str) -> Object:
    """Return an object of this content."""
    head = f"{kind} {len(content)}\0".encode()
    return Object(kind, content, hashlib.new(algorithm, head + content, usedforsecurity=False).hexdigest())


def tree_of(entries: Iterable[tuple[str, str, str]], algorithm: str) -> Object:
    """Return the tree of entries (mode as git writes it, name, id)."""
    ordered = sorted(entries, key=lambda entry: entry[1] + "/" if entry[0] == "40000" else entry[1])
    return made(
        "tree", b"".join(f"{mode} {name}\0".encode() + bytes.fromhex(oid) for mode, name, oid in ordered), algorithm
    )


def commit_of(tree: str, parents: Sequence[str], who: str, at: int, message: str, algorithm: str) -> Object:
    """Return a commit; `who` is name and address, `at` are seconds since 1970, in UTC."""
    lines = [f"tree {tree}", *(f"parent {parent}" for parent in parents)]
    lines += [f"{role} {who} {at} +0000" for role in ("author", "committer")]
    return made("commit", ("\n".join(lines) + f"\n\n{message}\n").encode(), algorithm)


def path_of(objects: bytes, oid: str) -> bytes:
    """Return where an object has its file in an object directory, if it has one of its own."""
    return b"%b/%b/%b" % (objects, oid[:2].encode(), oid[2:].encode())
