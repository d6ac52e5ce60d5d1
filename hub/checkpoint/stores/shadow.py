"""The shadow store: checkpoints of a folder without git, or of one whose repository is to hold none.

It lies outside the folder, as `<stores>/<identity>`, and has an object store and refs of its own; to the engine it is
a store like that in a repository, for a worktree with an empty index and no HEAD. Invariant: nothing is written in the
folder. A store belongs to one folder, told by device, inode and path: one that was moved, or replaced by another, gets
a store of its own, and what the earlier store holds is named, never restored into the wrong folder. Not promised: that
a folder on a removable disk is known again after a restart of the machine.
"""

import hashlib
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from hub.checkpoint.capture.operations import NO_BRANCH
from hub.checkpoint.failures import told
from hub.checkpoint.files import write_durably
from hub.checkpoint.repository import NoRepository, Repository
from hub.checkpoint.stores.meta import text
from hub.checkpoint.stores.places import check_folder, check_place
from hub.checkpoint.stores.side import Store
from hub.errors import RefusedError, UsageError

log = logging.getLogger(__name__)

PLACE = b"place.json"
ALGORITHM = "sha1"
NO_HEAD = f"ref: {NO_BRANCH}\n".encode()
EXCLUDED = b"/.turnback/\n/.turnback-*\n"
"""What is our own in a folder: it is not captured."""
CONFIG = """[core]
\trepositoryformatversion = 0
\tbare = true
\texcludesFile = /dev/null
\tignoreCase = {ignore_case}
\tprecomposeUnicode = {precompose}
"""
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_IDENTITY = re.compile(r"[0-9a-f]{32}")


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Which folder a store is for. Device numbers count only within one boot; `mounted`: the root of a file system."""

    path: str
    inode: int
    device: int
    boot: str
    mounted: bool

    @property
    def identity(self) -> str:
        """The name of the folder's store."""
        facts = f"{self.device}\0{self.inode}\0{self.path}"
        return hashlib.sha256(facts.encode("utf-8", "surrogateescape")).hexdigest()[:32]

    def is_same(self, other: "Place") -> bool:
        """Return whether both are one folder, as far as can be told."""
        if (self.path, self.inode) != (other.path, other.inode):
            return False
        return self.device == other.device or (self.boot != other.boot and not (self.mounted or other.mounted))


class ShadowStore(Store):
    """A folder, and our own repository for it in another place. `stores` is where such repositories lie."""

    def __init__(self, directory: Path, stores: Path) -> None:
        """Raises UsageError: not_a_directory, protected_directory, foreign_owner, CheckpointError store_unwritable."""
        if not directory.is_dir():
            raise UsageError(f"{directory} is not a directory.", code="not_a_directory")
        top = directory.resolve()
        check_folder(top, stores)
        self.algorithm = ALGORITHM
        place = place_of(top)
        room = os.path.join(os.fsencode(stores), _name_for(stores, place))
        self._lay_out(os.fsencode(top), os.path.join(room, b"store.git"), os.path.join(room, b"store.git"), room)
        self._stores = stores
        with told():
            self._make(place)

    def elsewhere(self, ref: str) -> RefusedError | None:
        """Return why a checkpoint is in the store of another folder, None when it is in none."""
        return elsewhere(ref, self, self._stores)

    def _make(self, place: Place) -> None:
        for folder in (self.room, self.git_dir, *(os.path.join(self.git_dir, name) for name in _FOLDERS)):
            os.makedirs(folder, mode=0o700, exist_ok=True)
        config = CONFIG.format(ignore_case=_ignores_case(self.top), precompose=_composes_names())
        for name, content in ((b"HEAD", NO_HEAD), (b"config", config.encode()), (b"info/exclude", EXCLUDED)):
            _write_once(os.path.join(self.git_dir, name), content)
        _write_once(os.path.join(self.room, PLACE), msgspec.json.encode(place))

    def _environment(self, git_dir: bytes, common_dir: bytes, index: bytes) -> dict[str, str]:
        """The user's own settings of git say nothing about a folder without git."""
        found = super()._environment(git_dir, common_dir, index)
        return found | {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


_FOLDERS = (b"objects", b"refs", b"info")


class GitStore(Store):
    """The store in a repository, where folders without git have shadow stores."""

    def __init__(self, directory: Path, stores: Path) -> None:
        super().__init__(directory)
        self._stores = stores

    def elsewhere(self, ref: str) -> RefusedError | None:
        """Return why a checkpoint is in the shadow store that this folder had, None when it is not."""
        return elsewhere(ref, self, self._stores)


def store_for(directory: Path, stores: Path | None, *, always: bool) -> Store:
    """Return the store of a directory: that of the repository around it, else, or if `always`, a shadow store.

    Without `stores` there is no shadow store. Raises UsageError: not_a_directory, not_a_repository,
    protected_directory, foreign_owner, git_missing.
    """
    try:
        store = Store(directory) if stores is None else GitStore(directory, stores)
    except NoRepository:
        if stores is None:
            raise
        return ShadowStore(directory, stores)
    top = Path(os.fsdecode(store.top))
    check_place(top)
    _check_around(directory, top)
    return store if stores is None or not always else ShadowStore(top, stores)


def _check_around(directory: Path, top: Path) -> None:
    """Raise UsageError for a repository whose files are not where its git directory is found."""
    found = directory.resolve()
    if not any(folder.samefile(top) for folder in (found, *found.parents)):
        raise UsageError(
            f"The repository around {directory} has its files in {top}.",
            code="not_a_repository",
            hint=f"Work in {top}, or see `git config core.worktree`.",
        )


def place_of(top: Path) -> Place:
    """Return which folder this is; symlinks are resolved already."""
    status = os.stat(top)
    return Place(
        path=text(os.fsencode(top)),
        inode=status.st_ino,
        device=status.st_dev,
        boot=_boot(),
        mounted=top.is_mount(),
    )


def elsewhere(ref: str, store: Store, stores: Path) -> RefusedError | None:
    """Return why a checkpoint that this folder's store lacks is in another store, None when no store has it."""
    here = place_of(Path(os.fsdecode(store.top)))
    for room, place in _known(stores):
        if room != store.room and _is_kin(here, place) and _holds(store, room, ref):
            return RefusedError(
                f"Checkpoint {ref} is not of this folder as it is now: {_difference(here, place, store)}",
                code="other_worktree",
                hint=f"{_way_back(here, place)} The checkpoint is kept in {os.fsdecode(room)}.",
            )
    return None


def _difference(here: Place, there: Place, store: Store) -> str:
    if here.is_same(there) and not isinstance(store, ShadowStore):
        return "it was taken before the folder became a git repository."
    if here.is_same(there):
        return "it was taken in another store of it."
    if here.path == there.path:
        return "the folder was replaced by another one of the same name."
    return f"it was at {there.path} then, and was moved."


def _way_back(here: Place, there: Place) -> str:
    if here.path == there.path or os.path.lexists(there.path):
        return "Nothing was changed."
    return f"Nothing was changed: move the folder back to {there.path}, and it can be restored."


def _is_kin(here: Place, there: Place) -> bool:
    return here.path == there.path or (here.inode, here.device) == (there.inode, there.device)


def _holds(store: Store, room: bytes, ref: str) -> bool:
    git_dir = os.path.join(room, b"store.git")
    view = Repository(store.top, {"GIT_DIR": os.fsdecode(git_dir)})
    return view.maybe_line("rev-parse", "-q", "--verify", f"refs/turnback/{ref}") is not None


def _name_for(stores: Path, place: Place) -> bytes:
    """Return the name of a folder's store; device numbers of an earlier boot may have been others."""
    if not (stores / place.identity).exists():
        for room, known in _known(stores):
            if known.is_same(place):
                return os.path.basename(room)
    return place.identity.encode()


def _known(stores: Path) -> Iterator[tuple[bytes, Place]]:
    """Yield the rooms of the stores that there are, and which folder each is for."""
    if not stores.is_dir():
        return
    for name in sorted(os.listdir(stores)):
        path = stores / name / os.fsdecode(PLACE)
        if _IDENTITY.fullmatch(name) and path.exists():
            try:
                place = msgspec.json.decode(path.read_bytes(), type=Place)
            except msgspec.DecodeError as error:
                log.warning("a shadow store cannot be told", extra={"path": str(path), "error": str(error)})
            else:
                yield os.fsencode(stores / name), place


def _boot() -> str:
    """Return an id of this boot, an empty text where the system tells none."""
    try:
        return Path(_BOOT_ID).read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def _ignores_case(top: bytes) -> str:
    """Return whether the file system takes names that differ by case for one, as git writes it."""
    folder, name = os.path.split(top)
    other = os.path.join(folder, name.swapcase())
    return "true" if other != top and os.path.exists(other) and os.path.samefile(top, other) else "false"


def _composes_names() -> str:
    """Return whether names are written decomposed by the system, as git writes it."""
    return "true" if os.uname().sysname == "Darwin" else "false"


def _write_once(path: bytes, content: bytes) -> None:
    """Write a file that stays as it is; whoever opens the same store at this moment writes the same."""
    if not os.path.exists(path):
        mine = path + b".%d" % os.getpid()
        write_durably(mine, content)
        os.rename(mine, path)
