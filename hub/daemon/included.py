"""Which files `checkpoint.include` names in a worktree: patterns become paths. Looks at the disk, reads no file."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path


def included(root: Path, patterns: Sequence[str]) -> list[str]:
    """Return the files, relative to `root` and sorted, that patterns match now; a folder stands for all in it.

    Git's own directories and what lies behind a symlink to a folder are left out.
    """
    return sorted({name for pattern in patterns for name in _matched(root, pattern)})


def _matched(root: Path, pattern: str) -> Iterator[str]:
    for path in root.glob(pattern):
        inside = [path] if path.is_symlink() or not path.is_dir() else path.rglob("*")
        yield from (str(found.relative_to(root)) for found in inside if _is_ours(root, found))


def _is_ours(root: Path, path: Path) -> bool:
    """Return whether a path is a file or symlink of the worktree's own, reached through no symlink."""
    is_file = path.is_symlink() or path.is_file()
    return is_file and ".git" not in path.relative_to(root).parts and path.parent == Path(os.path.realpath(path.parent))
