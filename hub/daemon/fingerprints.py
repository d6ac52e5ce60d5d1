"""What an approval was given for: the directory, the files the call names, and the commit that commands meet.

Two equal fingerprints mean that what was shown to the person is still what will be acted on.
"""

import asyncio
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

CHUNK = 1 << 20


async def fingerprint(root: Path, paths: Sequence[str], *, commands: bool) -> dict[str, str]:
    """Return name → mark: `cwd` device and inode, `file:<path>` a SHA-256 or what stands there, `head` for commands."""
    return await asyncio.to_thread(_fingerprint, root, paths, commands)


def _fingerprint(root: Path, paths: Sequence[str], commands: bool) -> dict[str, str]:
    marks = {"cwd": _place(root)}
    marks.update({f"file:{path}": _content(Path(path)) for path in paths})
    if commands:
        marks["head"] = _head(root)
    return marks


def _place(directory: Path) -> str:
    try:
        found = directory.stat()
    except OSError as error:
        return f"none:{error.errno}"
    return f"{found.st_dev}:{found.st_ino}"


def _content(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        return f"none:{error.errno}"
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return "not a file"
        digest = hashlib.sha256()
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def _head(root: Path) -> str:
    """Return what HEAD names, read as git lays it out; `none` where that cannot be told without git."""
    for directory in (root, *root.parents):
        marker = directory / ".git"
        if marker.is_dir():
            return _read_head(marker)
        if marker.is_file():
            target = marker.read_text(errors="replace").removeprefix("gitdir:").strip()
            return _read_head((directory / target).resolve())
    return "none"


def _read_head(git_dir: Path) -> str:
    try:
        head = (git_dir / "HEAD").read_text(errors="replace").strip()
        common = git_dir / "commondir"
        base = (git_dir / common.read_text().strip()).resolve() if common.exists() else git_dir
        ref = base / head.removeprefix("ref:").strip()
        return f"{head} {ref.read_text().strip()}" if head.startswith("ref:") and ref.is_file() else head
    except OSError:
        return "none"
