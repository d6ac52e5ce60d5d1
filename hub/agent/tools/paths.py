"""Where a path that a model wrote leads to.

Purpose: one answer, for policy and for execution, to "which file is this, and is it inside the workspace?".
Invariant: `inside` is decided on the path with every symlink resolved, so a link that leads out counts as outside.
Not promised: protection from a process that swaps directories for links between this answer and the use of it.
"""

import os
import unicodedata
from pathlib import Path, PurePath

import msgspec

from hub.agent.tools.base import ToolFailure

GIT_DIRECTORY = ".git"


class Location(msgspec.Struct, frozen=True):
    """A place in the file system. `path` is absolute with symlinks resolved, whether or not it exists;
    `shown` is it relative to the workspace when inside, else absolute, as text that can be shown."""

    path: Path
    inside: bool
    shown: str

    @property
    def named(self) -> str:
        """The absolute path as text that can be stored: bytes that are not UTF-8 are escaped."""
        return os.fsencode(self.path).decode("utf-8", "backslashreplace")


def locate(root: Path, text: str) -> Location:
    """Return where `text` leads, relative paths being taken from `root`. Looks at links, changes nothing."""
    return placed(root, Path(os.path.realpath(root / text)))


def locate_existing(root: Path, text: str) -> Location:
    """Return where `text` leads; if nothing is there, a single sibling that differs only in the kind of space or
    in Unicode composition is meant (screenshots have names that no keyboard can type)."""
    found = locate(root, text)
    if os.path.lexists(found.path):
        return found
    alike = _alike(found.path)
    return locate(root, str(alike)) if alike is not None else found


def placed(root: PurePath, resolved: Path) -> Location:
    """Return the location of a path that is already resolved. Pure."""
    inside = resolved.is_relative_to(root)
    shown = resolved.relative_to(root) if inside else resolved
    return Location(resolved, inside, os.fsencode(shown).decode("utf-8", "replace"))


def in_git_directory(location: Location) -> bool:
    """Say whether a place inside the workspace is git's own data, which no checkpoint covers. Pure."""
    return any(part.lower() == GIT_DIRECTORY for part in PurePath(location.shown).parts)


def checked_path(value: object) -> str:
    """Return the value if it can be a path at all. Raises ToolFailure."""
    if not isinstance(value, str) or not value.strip():
        raise ToolFailure("A path must be a text that is not blank.")
    if "\0" in value or not is_unicode(value):
        raise ToolFailure(f"No file can have this path: {value!r}.")
    return value


def is_unicode(text: str) -> bool:
    """Say whether the text can be written as UTF-8 (JSON can carry halves of surrogate pairs, which cannot)."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _alike(path: Path) -> Path | None:
    wanted = _plain(path.name)
    try:
        alike = [entry for entry in path.parent.iterdir() if _plain(entry.name) == wanted]
    except OSError:
        return None  # no such folder, or not to be listed: then nothing in it is alike
    return alike[0] if len(alike) == 1 else None


def _plain(name: str) -> str:
    spaced = "".join(" " if unicodedata.category(character) == "Zs" else character for character in name)
    return unicodedata.normalize("NFC", spaced)
