"""Plans of restores of several units: each unit's own plan, from the same call that captures the unit for undo.

Invariant: a repository that was not there at the checkpoint, or is another one now, is named and kept; one that is gone
is named. Nothing in any worktree is written here.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hub.checkpoint.engine import Engine
from hub.checkpoint.joined.captures import Captures, Written
from hub.checkpoint.joined.discovery import Family
from hub.checkpoint.joined.parts import mark_of, part_of, part_ref
from hub.checkpoint.joined.values import GONE, REPLACED, below, joined_plan, narrowed
from hub.checkpoint.restoring.plans import Wish
from hub.checkpoint.stores.meta import Part, raw
from hub.checkpoint.values import CheckpointError, Kept, PartPlan, Plan, show
from hub.errors import NotFoundError


class Refs(msgspec.Struct, frozen=True):
    """The names of a unit's two checkpoints: to which to go, and that which saves the present state."""

    target: str
    undo: str


class Planning:
    """Draws up one plan for all units. Without `captures` it is a preview, for which nothing is written."""

    def __init__(self, family: Family, written: Written, captures: Captures | None, labels: Mapping[str, str]) -> None:
        self._family = family
        self._written = written
        self._captures = captures
        self._labels = labels
        self._plans: list[PartPlan] = []
        self._kept: list[Kept] = []

    def whole(self, target_ref: str, undo_ref: str, wish: Wish) -> Plan:
        """Return the plan of all. Raises as `Engine.plan`."""
        self._plan(self._family.first, Refs(target_ref, undo_ref), wish, "")
        return joined_plan(sorted(self._plans, key=lambda part: part.key), self._kept)

    def _plan(self, engine: Engine, refs: Refs, wish: Wish, key: str) -> Plan:
        def parts(nested: Sequence[bytes], target: Mapping[str, Part]) -> Mapping[str, Part]:
            return dict(self._parts(engine, nested, target, refs, wish, key))

        options: dict[str, Any] = msgspec.structs.asdict(wish)
        if self._captures is None:
            self._written.met.add(id(engine))
            plan = engine.preview(refs.target, parts=parts, **options)
        else:
            with self._written.writing(engine, refs.undo, key):
                plan = engine.plan(refs.target, undo_ref=refs.undo, labels=self._labels, parts=parts, **options)
        self._plans.append(PartPlan(key=raw(key), top=os.fsencode(engine.root), plan=plan))
        return plan

    def _parts(
        self, engine: Engine, nested: Sequence[bytes], target: Mapping[str, Part], refs: Refs, wish: Wish, outer: str
    ) -> Iterator[tuple[str, Part]]:
        """Yield what is recorded of each unit for undo; its plan is drawn up by the way."""
        missing = set(target)
        for key, child in self._family.inside(engine, nested, target):
            missing.discard(key)
            if self._written.is_new(child):
                found = self._part(child, target.get(key), refs, for_unit(wish, key), below(outer, key))
                if found is not None:
                    yield key, found
        for key in sorted(missing):
            self._keep(below(outer, key), GONE)

    def _part(self, child: Engine, part: Part | None, refs: Refs, wish: Wish, key: str) -> Part | None:
        """Return what is recorded of a unit, None in a preview when there is nothing to bring back in it."""
        top, wanted = os.fsencode(child.root), wish.paths is None or bool(wish.paths)
        if part is not None and part.root == child.identity() and wanted:
            mark = mark_of(top)
            self._written.places[mark] = top
            inner = Refs(part_ref(part.mark, refs.target), part_ref(mark, refs.undo))
            plan = self._checked(child, part, inner, in_unit(wish, part.mark), key)
            return part_of(plan.undo, child.identity(), mark)
        if part is not None and wanted:
            self._keep(key, REPLACED)
        return self._captures.part(child, refs.undo, key) if self._captures is not None else None

    def _checked(self, child: Engine, part: Part, refs: Refs, wish: Wish, key: str) -> Plan:
        """Return a unit's plan. Raises CheckpointError when its checkpoint is not what the whole was made of."""
        try:
            plan = self._plan(child, refs, wish, key)
        except NotFoundError as error:
            raise _incomplete(key, error.message) from error
        if plan.target.tree_digest != part.digest:
            raise _incomplete(key, f"{refs.target} is another state than the one that was recorded.")
        return plan

    def _keep(self, key: str, reason: str) -> None:
        self._kept.append(Kept(path=f"{show(raw(key))}/", reason=reason))


def for_unit(wish: Wish, key: str) -> Wish:
    """Return what is wished of a unit; no paths at all: nothing."""
    return wish if wish.paths is None else msgspec.structs.replace(wish, paths=narrowed(wish.paths, key))


def in_unit(wish: Wish, mark: str) -> Wish:
    """Return a wish in the names of a unit's own checkpoints."""
    history = [msgspec.structs.replace(row, ref=part_ref(mark, row.ref)) for row in wish.history]
    kept = part_ref(mark, wish.kept_head_ref) if wish.kept_head_ref is not None else None
    return msgspec.structs.replace(wish, history=history, kept_head_ref=kept)


def _incomplete(key: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint is incomplete, nothing was changed: its part in {show(raw(key))} is missing. {why}",
        code="checkpoint_incomplete",
        hint="Restore the paths outside that repository, if you do not need it.",
    )
