"""Which directories are never captured, even when they are repositories: those that hold everything a person has."""

import tempfile
from pathlib import Path

from hub.errors import UsageError

BELOW_HOME = ("Desktop", "Documents", "Downloads")
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")


def protected(home: Path) -> set[Path]:
    """Return the directories that are refused, symlinks resolved."""
    places = [Path("/"), home, Path(tempfile.gettempdir()), *map(Path, TEMPORARY)]
    places += [home / name for name in BELOW_HOME]
    return {place.resolve() for place in places}


def check_place(top: Path) -> None:
    """Raise UsageError protected_directory when a worktree is one of those directories itself."""
    if top.resolve() in protected(Path.home()):
        raise UsageError(
            f"{top} holds more than one project; it is not captured as a whole.",
            code="protected_directory",
            hint="Work in a directory below it that is a repository of its own.",
        )
