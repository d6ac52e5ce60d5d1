"""A walk over the directories that git does not keep: empty ones, permissions, special files.

Invariant: no symlink is followed, no file is opened, nothing below an ignored path or a nested repository is visited.
"""

import os
import stat
from collections.abc import Container

import msgspec

from hub.checkpoint.files import PERMISSIONS


class Walked(msgspec.Struct):
    """What a walk found, by name: permission bits of directories and regular files, special files, closed folders."""

    folders: dict[bytes, int] = msgspec.field(default_factory=dict)
    files: dict[bytes, int] = msgspec.field(default_factory=dict)
    special: list[bytes] = msgspec.field(default_factory=list)
    closed: list[bytes] = msgspec.field(default_factory=list)


def walk(top: bytes, skipped: Container[bytes]) -> Walked:
    """Walk the worktree without what is in `skipped`, and without any `.git`."""
    found = Walked()
    waiting = [b""]
    while waiting:
        folder = waiting.pop()
        try:
            entries = os.scandir(os.path.join(top, folder))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError:
            found.closed.append(folder)
            continue
        with entries:
            for entry in entries:
                name = folder + b"/" + entry.name if folder else entry.name
                if entry.name != b".git" and name not in skipped:
                    _note(found, waiting, name, entry)
    return found


def _note(found: Walked, waiting: list[bytes], name: bytes, entry: os.DirEntry[bytes]) -> None:
    try:
        mode = entry.stat(follow_symlinks=False).st_mode
    except FileNotFoundError:
        return
    if stat.S_ISREG(mode):
        found.files[name] = mode & PERMISSIONS
    elif stat.S_ISDIR(mode):
        found.folders[name] = mode & PERMISSIONS
        waiting.append(name)
    elif not stat.S_ISLNK(mode):
        found.special.append(name)


def ancestors(name: bytes) -> list[bytes]:
    """Return the directories above a name, the outermost first."""
    parts = name.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def implied_folders(names: list[bytes]) -> set[bytes]:
    """Return every directory that must exist for these files to exist."""
    found: set[bytes] = set()
    for name in names:
        end = name.rfind(b"/")
        while end > 0 and (folder := name[:end]) not in found:
            found.add(folder)
            end = name.rfind(b"/", 0, end)
    return found
