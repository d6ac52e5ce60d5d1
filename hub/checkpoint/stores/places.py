"""Which directories are never captured, even when they are repositories: those that hold everything a person has.

Invariant: a question asked here writes nothing.
"""

import os
import re
import tempfile
from pathlib import Path

from hub.checkpoint.repository import safe_directories
from hub.errors import UsageError

BELOW_HOME = ("Desktop", "Documents", "Downloads")
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
NAMED = re.compile(r'^XDG_(?:DESKTOP|DOCUMENTS|DOWNLOAD)_DIR="?(\$HOME/[^"\n]+|/[^"\n]+)', re.MULTILINE)
"""How a desktop tells the names of these folders in the user's own language."""


def protected(home: Path) -> set[Path]:
    """Return the directories that are refused, symlinks resolved."""
    places = [Path("/"), home, Path(tempfile.gettempdir()), *map(Path, TEMPORARY)]
    places += [home / name for name in BELOW_HOME]
    places += [Path(name.replace("$HOME", str(home), 1)) for name in NAMED.findall(_names(home))]
    return {place.resolve() for place in places}


def check_place(top: Path) -> None:
    """Raise UsageError protected_directory when a worktree is one of those directories itself."""
    if top.resolve() in protected(Path.home()):
        raise _refused(top, "holds more than one project", "Work in a directory below it that holds one project.")


def check_folder(top: Path, stores: Path) -> None:
    """Raise UsageError protected_directory or foreign_owner for a folder without git that is not to be captured.

    `stores` is where shadow stores lie: a folder that holds them would capture its own checkpoints.
    """
    check_place(top)
    if Path.home().resolve().is_relative_to(top):
        raise _refused(top, "holds your home directory", "Work in a directory below it that holds one project.")
    if stores.resolve().is_relative_to(top):
        raise _refused(top, f"holds the checkpoints themselves ({stores})", "Keep them outside: set TURNBACK_HOME.")
    owner = os.stat(top).st_uid
    if owner != os.geteuid() and not _trusted(top):
        raise UsageError(
            f"{top} belongs to somebody else (user id {owner}); it is not captured.",
            code="foreign_owner",
            hint=f"If you trust it: git config --global --add safe.directory {top}",
        )


def _trusted(top: Path) -> bool:
    """Return whether git would work here although it belongs to somebody else, because the user has said so."""
    wanted: list[str] = []
    for name in safe_directories():
        wanted = [*wanted, name] if name else []  # an empty one takes back those before it
    return "*" in wanted or any(Path(name).resolve() == top for name in wanted)


def _refused(top: Path, why: str, hint: str) -> UsageError:
    return UsageError(f"{top} {why}; it is not captured as a whole.", code="protected_directory", hint=hint)


def _names(home: Path) -> str:
    try:
        return (home / ".config" / "user-dirs.dirs").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return ""
