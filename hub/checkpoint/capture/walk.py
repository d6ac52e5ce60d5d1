"""A survey of directories: what lies in them, and what of it git ignores.

Invariant: no symlink is followed, no file is opened but a `.git` that may make a repository of its directory, nothing
below an ignored path or a nested repository is visited. Git decides what is ignored, we decide where it is asked.
Not promised: one instant for all directories; each is looked at before it is read, so that a later look tells whether
it has changed since.
"""

import os
import stat
from collections.abc import Callable, Collection, Container, Iterable, Iterator

import msgspec

from hub.checkpoint.files import PERMISSIONS

RULES = b".gitignore"
AT_ONCE = 20_000
"""About as many names are held, and given to git, at a time."""

Traits = tuple[int, int, int, int]
"""Inode, times of the last change of content and of status in ns, `st_mode`."""
NO_TRAITS: Traits = (0, 0, 0, 0)

Ask = Callable[[Collection[bytes]], Container[bytes]]
"""Returns which of some names git ignores."""
Visit = Callable[[bytes, list[bytes]], None]
"""Is told a directory and the files and links in it that count."""


class Entries(msgspec.Struct):
    """What lies in one directory, by full name. `nested`: it is a repository of its own."""

    traits: Traits
    files: list[bytes] = msgspec.field(default_factory=list)
    folders: list[bytes] = msgspec.field(default_factory=list)
    special: list[bytes] = msgspec.field(default_factory=list)
    closed: bool = False
    nested: bool = False


class Survey(msgspec.Struct):
    """What a survey found, by name. Ignored directories end with a slash; `hollow` are those that are empty.

    `rules` are the files with ignore rules that count; `closed` are directories that cannot be read.
    """

    folders: dict[bytes, Traits] = msgspec.field(default_factory=dict)
    ignored: dict[bytes, Traits] = msgspec.field(default_factory=dict)
    hollow: set[bytes] = msgspec.field(default_factory=set)
    rules: dict[bytes, Traits] = msgspec.field(default_factory=dict)
    special: set[bytes] = msgspec.field(default_factory=set)
    closed: set[bytes] = msgspec.field(default_factory=set)
    nested: set[bytes] = msgspec.field(default_factory=set)


class Surveyor:
    """Surveys one worktree.

    Of `tracked` names it is not asked whether git ignores them; directories in `opened` are visited although ignored,
    because something below them is captured.
    """

    def __init__(self, top: bytes, ask: Ask, tracked: Container[bytes], opened: Container[bytes]) -> None:
        self._top = top
        self._ask = ask
        self._tracked = tracked
        self._opened = opened

    def survey(self, start: Iterable[bytes], known: Container[bytes], visit: Visit) -> Survey:
        """Return what lies in the directories of `start`, and in all below them that are not known."""
        found = Survey()
        waiting = list(start)
        while waiting:
            batch = list(self._read(waiting))
            for folder, entries in batch:
                self._note(found, folder, entries)
            alive = [(folder, entries) for folder, entries in batch if not entries.nested]
            ignored = self._ignored(alive)
            for folder, entries in alive:
                visit(folder, self._counting(entries.files, ignored))
                self._note_ignored(found, entries, ignored)
                waiting += [name for name in entries.folders if name not in known and self._enters(name, ignored)]
        return found

    def _counting(self, names: list[bytes], ignored: Container[bytes]) -> list[bytes]:
        return [name for name in names if name in self._tracked or name not in ignored] if ignored else names

    def _read(self, waiting: list[bytes]) -> Iterator[tuple[bytes, Entries]]:
        """Yield directories with what lies in them, as many as are held at a time, and take them off the list."""
        count = 0
        while waiting and count < AT_ONCE:
            folder = waiting.pop()
            entries = read_folder(self._top, folder)
            if entries is not None:
                count += len(entries.files) + len(entries.folders)
                yield folder, entries

    def _note(self, found: Survey, folder: bytes, entries: Entries) -> None:
        if entries.nested:
            found.nested.add(folder)
            return
        found.folders[folder] = entries.traits
        found.special.update(entries.special)
        if entries.closed:
            found.closed.add(folder)
        rules = folder + b"/" + RULES if folder else RULES
        if rules in entries.files:
            found.rules[rules] = traits_at(self._top, rules) or NO_TRAITS

    def _ignored(self, batch: list[tuple[bytes, Entries]]) -> Container[bytes]:
        asked = [name for _, entries in batch for name in entries.files if name not in self._tracked]
        asked += [name for _, entries in batch for name in entries.folders]
        return self._ask(asked) if asked else ()

    def _note_ignored(self, found: Survey, entries: Entries, ignored: Container[bytes]) -> None:
        for name in entries.files:
            if name in ignored and name not in self._tracked:
                found.ignored[name] = NO_TRAITS
        for name in entries.folders:
            if name in ignored and name not in self._opened:
                note_ignored_folder(self._top, found, name + b"/")

    def _enters(self, folder: bytes, ignored: Container[bytes]) -> bool:
        return folder not in ignored or folder in self._opened


def read_folder(top: bytes, folder: bytes) -> Entries | None:
    """Return what lies in a directory, None when it has gone."""
    traits = traits_at(top, folder)
    if traits is None or not stat.S_ISDIR(traits[3]):
        return None
    entries = Entries(traits)
    prefix = folder + b"/" if folder else b""
    add_file = entries.files.append
    try:
        with os.scandir(os.path.join(top, folder)) as found:
            for entry in found:
                name = entry.name
                if name == b".git":
                    entries.nested = bool(folder) and is_repository(top, folder)
                elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                    add_file(prefix + name)
                elif entry.is_dir(follow_symlinks=False):
                    entries.folders.append(prefix + name)
                else:
                    entries.special.append(prefix + name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError:
        entries.closed = True
    return entries


def is_repository(top: bytes, folder: bytes) -> bool:
    """Return whether a directory has a `.git` that makes it a repository of its own."""
    place = os.path.join(top, folder, b".git")
    try:
        with open(place, "rb") as stream:
            line = stream.readline(4096 + 10)
    except IsADirectoryError:
        return all(os.path.lexists(os.path.join(place, name)) for name in (b"HEAD", b"objects", b"refs"))
    except FileNotFoundError:
        return False
    except OSError:
        return True  # one that cannot be read is not looked into
    target = line.removeprefix(b"gitdir: ").rstrip(b"\r\n")
    return target != line and os.path.lexists(os.path.join(top, folder, target, b"HEAD"))


def traits_at(top: bytes, name: bytes) -> Traits | None:
    """Return the traits of what stands at a name, None when nothing does."""
    try:
        status = os.lstat(os.path.join(top, name))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    return status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_mode


def note_ignored_folder(top: bytes, found: Survey, name: bytes) -> None:
    """Note an ignored directory; an empty one has nothing that could be ignored: it is one among the visited."""
    bare = name.rstrip(b"/")
    found.ignored.pop(name, None)
    found.hollow.discard(name)
    found.folders.pop(bare, None)
    traits = traits_at(top, bare)
    if traits is not None and _holds_something(os.path.join(top, name)):
        found.ignored[name] = traits
    elif traits is not None:
        found.hollow.add(name)
        found.folders[bare] = traits


def _holds_something(path: bytes) -> bool:
    try:
        with os.scandir(path) as entries:
            return next(entries, None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return True


def moved_folders(top: bytes, folders: dict[bytes, Traits]) -> tuple[list[bytes], set[bytes]]:
    """Return which of the known directories have changed, and which are no directories any more."""
    changed: list[bytes] = []
    gone: set[bytes] = set()
    prefix = os.path.join(top, b"")
    for name, old in folders.items():
        try:
            status = os.lstat(prefix + name)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            gone.add(name)
            continue
        mode = status.st_mode
        if not stat.S_ISDIR(mode):
            gone.add(name)
        elif old != (status.st_ino, status.st_mtime_ns, status.st_ctime_ns, mode):
            changed.append(name)
    if gone:
        gone |= {name for name in folders if not gone.isdisjoint(ancestors(name))}
    return [name for name in changed if name not in gone], gone


def permission_bits(folders: dict[bytes, Traits]) -> dict[bytes, int]:
    """Return the permission bits of directories, the worktree's own top apart."""
    return {name: traits[3] & PERMISSIONS for name, traits in folders.items() if name}


def parent_of(name: bytes) -> bytes:
    """Return the directory that holds a name; a slash at its end does not count."""
    return os.path.dirname(name.rstrip(b"/"))


def ancestors(name: bytes) -> list[bytes]:
    """Return the directories above a name, the outermost first."""
    parts = name.split(b"/")
    return [b"/".join(parts[:depth]) for depth in range(1, len(parts))]


def implied_folders(names: Iterable[bytes]) -> set[bytes]:
    """Return every directory that must exist for these files to exist."""
    found: set[bytes] = set()
    for name in names:
        end = name.rfind(b"/")
        while end > 0 and (folder := name[:end]) not in found:
            found.add(folder)
            end = name.rfind(b"/", 0, end)
    return found
