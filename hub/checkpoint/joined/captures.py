"""Captures of several units as one: the root's walk says which repositories lie inside, each is captured before it.

Invariant: the checkpoint of the whole is written last, so that it exists only when those of all its parts do; what was
written for one that failed is taken back.
"""

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hub.checkpoint.engine import Engine
from hub.checkpoint.joined.discovery import Family
from hub.checkpoint.joined.parts import mark_of, part_of, part_ref
from hub.checkpoint.joined.values import below, blame, narrowed, owner_of
from hub.checkpoint.stores.meta import Part
from hub.checkpoint.values import Checkpoint
from hub.errors import TurnbackError


class Written:
    """The checkpoints that one call has written so far, and which units it has met."""

    def __init__(self) -> None:
        self.met: set[int] = set()
        self.places: dict[str, bytes] = {}
        self._refs: list[tuple[Engine, str]] = []

    @contextlib.contextmanager
    def writing(self, engine: Engine, ref: str, key: str) -> Iterator[None]:
        """Remember a checkpoint that is written meanwhile, unless it was there before; `key` is the unit's path."""
        self.met.add(id(engine))
        try:
            yield
        except TurnbackError as error:
            if error.code != "ref_exists":
                self._refs.append((engine, ref))
            blame(error, key)
            raise
        self._refs.append((engine, ref))

    def is_new(self, engine: Engine) -> bool:
        """Return whether a unit has not been met yet."""
        return id(engine) not in self.met

    @contextlib.contextmanager
    def all_or_none(self) -> Iterator[None]:
        """Take back what was written when the whole fails; a root alone takes care of itself."""
        try:
            yield
        except TurnbackError:
            if self.places:
                for engine, ref in reversed(self._refs):
                    engine.forget([ref])
            raise


class Captures:
    """Takes one checkpoint of all units. `options` are passed on to each unit's `Engine.capture`."""

    def __init__(self, family: Family, written: Written, **options: Any) -> None:
        self._family = family
        self._written = written
        self._options = options

    def take(self, engine: Engine, ref: str, include: Sequence[str] = (), key: str = "") -> Checkpoint:
        """Return the checkpoint of a unit and of all that lies inside it. `include` is relative to the unit."""
        own = [path for path in include if not (path.startswith("/") or owner_of(str(engine.root), path))]

        def parts(nested: Sequence[bytes], target: Mapping[str, Part]) -> Mapping[str, Part]:
            return dict(self._parts(engine, ref, nested, include, key))

        with self._written.writing(engine, ref, key):
            return engine.capture(ref, include=own, parts=parts, **self._options)

    def _parts(
        self, engine: Engine, ref: str, nested: Sequence[bytes], include: Sequence[str], outer: str
    ) -> Iterator[tuple[str, Part]]:
        for key, child in self._family.inside(engine, nested, ()):
            if self._written.is_new(child):
                yield key, self.part(child, ref, below(outer, key), narrowed(include, key))

    def part(self, child: Engine, ref: str, key: str, include: Sequence[str] = ()) -> Part:
        """Capture a unit inside another one; `ref` is the name of the whole's checkpoint, `key` the unit's path."""
        top = os.fsencode(child.root)
        mark = mark_of(top)
        self._written.places[mark] = top
        taken = self.take(child, part_ref(mark, ref), [path for path in include if path != "."], key)
        return part_of(taken, child.identity(), mark)
