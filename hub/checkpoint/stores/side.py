"""The side git directory: our own view of the user's worktree, in which git converts nothing and runs nothing.

It lies in the repository's git directory, one for each worktree, with its own configuration, attributes and index;
objects go to the user's store. Invariant: bytes go in and come out raw, whatever attributes, filters and settings the
user has; ignore rules are the user's. Not promised: anything about a worktree of another git directory.
"""

import hashlib
import os
import secrets
from pathlib import Path

from hub.checkpoint.files import write_durably, write_plainly
from hub.checkpoint.repository import SETTINGS, Repository, discover
from hub.checkpoint.stores.incoming import Incoming
from hub.checkpoint.stores.reading import Reader
from hub.checkpoint.stores.shelf import Shelf
from hub.checkpoint.stores.user_settings import UserSettings
from hub.errors import RefusedError

FOLDER = b"turnback"
ATTRIBUTES = b"* -text !eol -ident -filter !working-tree-encoding\n"
CONFIG = """[core]
\trepositoryformatversion = {version}
\tbare = false
\tfileMode = true
\tsymlinks = true
\tautocrlf = false
\tsafecrlf = false
\tuntrackedCache = false
\tpreloadIndex = true
[extensions]
\tobjectFormat = {algorithm}
"""
SIDE_SETTINGS = {"core.fsync": "none", "core.splitIndex": "true"}
"""What git writes for us is made durable when it moves into the user's store; an index is written in part."""


class Store:
    """A worktree, the user's repository around it, and our room in its git directory. Paths are absolute bytes."""

    def __init__(self, directory: Path) -> None:
        top, git_dir, common_dir, self.algorithm = discover(directory)
        self._lay_out(top, git_dir, common_dir, os.path.join(git_dir, FOLDER))

    def _lay_out(self, top: bytes, git_dir: bytes, common_dir: bytes, room: bytes) -> None:
        self.top, self.git_dir, self.common_dir, self.room = top, git_dir, common_dir, room
        self.side_dir = os.path.join(self.room, b"side.git")
        self.index = os.path.join(self.room, b"index")
        self.user_index = os.path.join(self.git_dir, b"index")
        self.index_copy = os.path.join(self.room, b"user-index")
        self.rules_key = ""
        self.transactions = os.path.join(self.room, b"txn")
        self.rescue = os.path.join(self.room, b"rescue")
        self.user = Repository(self.top, self._environment(self.git_dir, self.common_dir, self.user_index))
        self._settings = UserSettings(self.user, self.git_dir, self.common_dir)
        self.objects = os.path.join(self.common_dir, b"objects")
        place = os.path.join(self.room, b"incoming")
        self.side = Repository(
            self.top,
            self._environment(self.side_dir, self.side_dir, self.index) | _side_environment(place, self.objects),
            SETTINGS | SIDE_SETTINGS,
        )
        shelf = Shelf(self.room, self.objects, self.algorithm)
        self.reader = Reader(self.side, (self.objects, place), shelf, self.algorithm)
        self.incoming = Incoming(place, self.objects, self.reader, shelf)

    @property
    def null_oid(self) -> str:
        """The id that stands for no object."""
        return "0" * (64 if self.algorithm == "sha256" else 40)

    def views(self) -> tuple[Repository, Repository]:
        """Return the user's view and ours."""
        return self.user, self.side

    def prepare(self) -> None:
        """Make the room and bring the side directory up to date. The worktree's lock is held."""
        for folder in (self.room, self.side_dir, self.transactions, self.rescue):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        for folder in (b"objects", b"refs", b"info"):
            os.makedirs(os.path.join(self.side_dir, folder), exist_ok=True)
        version = 0 if self.algorithm == "sha1" else 1
        config = CONFIG.format(version=version, algorithm=self.algorithm) if version else _plain_config()
        config += self._copied()
        self.incoming.shared = self._settings.shared_bits()
        exclude = _read(os.path.join(self.common_dir, b"info", b"exclude"))
        self._keep(b"HEAD", b"ref: refs/heads/none\n")
        self._keep(b"config", config.encode())
        self._keep(b"info/attributes", ATTRIBUTES)
        self._keep(b"info/exclude", exclude)
        self.rules_key = self._key(config.encode(), exclude)
        for stale in (self.index + b".lock",):  # left by a killed child: nobody else works under our lock
            if os.path.lexists(stale):
                os.unlink(stale)

    def has_ref_files(self) -> bool:
        """Return whether new refs may be written as files, once the side directory is up to date."""
        return self._settings.has_ref_files()

    def elsewhere(self, ref: str) -> RefusedError | None:
        """Return why a checkpoint that is not here is in another store, None when it is nowhere; see `shadow`."""
        return None

    def has_attributes(self) -> bool:
        """Return whether attributes are set outside the worktree; those in it are files among others."""
        places = (os.path.join(self.common_dir, b"info", b"attributes"), *self._settings.attributes_files())
        return any(os.path.exists(place) for place in places)

    def _key(self, config: bytes, exclude: bytes) -> str:
        """Return what is equal as long as the ignore rules outside the worktree are."""
        named = self._settings.excludes_file()
        digest = hashlib.sha256(b"\0".join((config, exclude, named)))
        digest.update(b"\0" + (_read(named) if os.access(named, os.R_OK) else b""))  # git passes over it, too
        return digest.hexdigest()

    def identity(self) -> str:
        """Return the id of this worktree's room, made at the first call."""
        path = os.path.join(self.room, b"id")
        if not os.path.exists(path):
            write_durably(path, secrets.token_hex(16).encode())
        return _read(path).decode()

    def _copied(self) -> str:
        """Return what is taken over from the user's settings, as configuration text."""
        rows = self._settings.taken_over().items()
        return "[core]\n" + "".join(f"\t{key.split('.')[1]} = {_quoted(value)}\n" for key, value in rows)

    def _keep(self, name: bytes, content: bytes) -> None:
        path = os.path.join(self.side_dir, name)
        if _read(path) != content:
            write_plainly(path, content)  # a torn one is seen and written again

    def _environment(self, git_dir: bytes, common_dir: bytes, index: bytes) -> dict[str, str]:
        values = {
            "GIT_DIR": git_dir,
            "GIT_COMMON_DIR": common_dir,
            "GIT_WORK_TREE": self.top,
            "GIT_INDEX_FILE": index,
            "GIT_OBJECT_DIRECTORY": os.path.join(self.common_dir, b"objects"),
        }
        return {name: os.fsdecode(value) for name, value in values.items()}


def _side_environment(incoming: bytes, objects: bytes) -> dict[str, str]:
    return {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_OBJECT_DIRECTORY": os.fsdecode(incoming),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": _quoted(os.fsdecode(objects)),
    }


def _plain_config() -> str:
    return CONFIG.format(version=0, algorithm="sha1").split("[extensions]")[0]


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
    return f'"{escaped}"'


def _read(path: bytes) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return b""
