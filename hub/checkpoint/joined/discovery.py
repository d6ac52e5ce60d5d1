"""Which engines there are: those of the roots that a caller names, and those of repositories inside a worktree.

Invariant: one engine for each place, so that none waits for a lock that another one of ours holds. The repositories
inside a worktree come from its own walk; nothing is searched for here.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from hub.checkpoint.engine import Engine
from hub.checkpoint.files import write_durably
from hub.checkpoint.joined.joint import Joint
from hub.checkpoint.joined.parts import key_of
from hub.checkpoint.stores.meta import raw, text
from hub.checkpoint.values import CheckpointError
from hub.errors import UsageError

log = logging.getLogger(__name__)

ROLL = b"parts.json"


class Opening(msgspec.Struct, frozen=True, kw_only=True):
    """How engines are opened; see `Engine.open`. `stores` are where shadow stores lie, None when there are none."""

    lock_wait_s: float
    owner: str
    stores: Path | None
    always_shadow: bool

    def engine(self, directory: Path) -> Engine:
        """Return the engine of a directory. Raises as `Engine.open`."""
        return Engine.open(
            directory,
            lock_wait_s=self.lock_wait_s,
            owner=self.owner,
            shadow=self.stores,
            always_shadow=self.always_shadow,
        )


class Family:
    """The engines of a workspace: of its roots, the first of which speaks for all, and of what lies inside them.

    `told` is given each new engine, and the path by which it is known (empty for the first).
    """

    def __init__(self, directories: Sequence[Path], opening: Opening, told: Callable[[Engine, str], None]) -> None:
        """Raises as `Engine.open`, UsageError roots_overlap and invalid_params for no directory."""
        self._opening = opening
        self._told = told
        self._inside: dict[bytes, tuple[tuple[int, ...], Engine | None]] = {}
        self.roots = _distinct([opening.engine(directory) for directory in directories])
        self.first = self.roots[0]
        for root in self.roots:
            told(root, "" if root is self.first else text(os.fsencode(root.root)))

    def at(self, top: bytes) -> Engine | None:
        """Return the engine of the repository that stands at a path, None when none does that can be worked with."""
        for root in self.roots:
            if os.fsencode(root.root) == top:
                return root
        marks = _marks(top)
        if marks is None:
            self._inside.pop(top, None)
            return None
        if top not in self._inside or self._inside[top][0] != marks:
            self._inside[top] = marks, self._open(top)
        return self._inside[top][1]

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the locks of several roots, always in the same order, so that two sessions never wait for each other."""
        with contextlib.ExitStack() as locks:
            for root in sorted(self.roots, key=lambda root: root.root) if len(self.roots) > 1 else ():
                locks.enter_context(root.hold())
            yield

    @property
    def stores(self) -> bytes | None:
        """Where shadow stores lie."""
        return os.fsencode(self._opening.stores) if self._opening.stores is not None else None

    def open(self, directory: Path, stores: Path | None) -> Engine:
        """Return the engine of a root that the caller has not named. Raises as `Engine.open`."""
        engine = msgspec.structs.replace(self._opening, stores=stores).engine(directory)
        self._told(engine, str(directory))
        return engine

    def holder(self, joint: Joint) -> Engine:
        """Return the root in whose room a joint journal lies."""
        return next(root for root in self.roots if joint.path.startswith(root.room + b"/"))

    def _open(self, top: bytes) -> Engine | None:
        try:
            engine = self._opening.engine(Path(os.fsdecode(top)))
        except UsageError as error:
            log.info("a nested repository is not captured", extra={"reason": error.message})
            return None
        if os.fsencode(engine.root) != top:  # its .git names another worktree
            return None
        inside = engine.root.is_relative_to(self.first.root)
        self._told(engine, str(engine.root.relative_to(self.first.root) if inside else engine.root))
        return engine

    def inside(self, engine: Engine, nested: Iterable[bytes], wanted: Iterable[str]) -> Iterator[tuple[str, Engine]]:
        """Yield key and engine of what belongs to an engine's checkpoints: the nested repositories that its walk found,
        those among the keys `wanted` that still stand, and for the first root the other ones.
        """
        keys = {key_of(name) for name in nested} | {key for key in wanted if not key.startswith("/")}
        for key in sorted(keys):
            found = self.at(os.path.join(os.fsencode(engine.root), raw(key)))
            if found is not None:
                yield key, found
        if engine is self.first:
            for root in sorted(self.roots[1:], key=lambda root: root.root):
                yield text(os.fsencode(root.root)), root


class Roll:
    """The list, in the first root's room, of where parts of its checkpoints have stood, by mark."""

    def __init__(self, room: bytes) -> None:
        self._path = os.path.join(room, ROLL)

    def read(self) -> Mapping[str, bytes]:
        """Return the place of each part."""
        try:
            with open(self._path, "rb") as stream:
                return msgspec.json.decode(stream.read(), type=dict[str, bytes])
        except FileNotFoundError:
            return {}
        except msgspec.DecodeError as error:
            path = os.fsdecode(self._path)
            raise CheckpointError(f"The list of repositories in {path} cannot be read.", code="roll_damaged") from error

    def add(self, places: Mapping[str, bytes]) -> None:
        """Note places. The worktree's lock is held."""
        known = self.read()
        if not places.items() <= known.items():
            write_durably(self._path, msgspec.json.encode({**known, **places}))


def _distinct(engines: Sequence[Engine]) -> list[Engine]:
    """Return one engine for each root, in order. Raises UsageError for none, and when one would capture another."""
    by_root = {engine.root: engine for engine in reversed(engines)}
    found = [engine for engine in engines if by_root[engine.root] is engine]
    if not found:
        raise UsageError("There is no directory to work in.", code="invalid_params")
    plain = [engine.root for engine in found if not (engine.root / ".git").exists()]
    for outer in plain:
        for inner in plain:
            if inner != outer and inner.is_relative_to(outer):
                raise UsageError(
                    f"{inner} lies in {outer}, which is captured as a whole.",
                    code="roots_overlap",
                    hint="Name only the outer one, or make the inner one a git repository.",
                )
    return found


def _marks(top: bytes) -> tuple[int, ...] | None:
    """Return what tells whether the same repository stands at a path still; None when there is none."""
    try:
        status = os.lstat(os.path.join(top, b".git"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    changes = status.st_mtime_ns if not os.path.isdir(os.path.join(top, b".git")) else 0
    return status.st_dev, status.st_ino, status.st_mode, changes
