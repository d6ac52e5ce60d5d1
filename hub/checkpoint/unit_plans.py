"""Plans of restores of several units: each unit's own plan, from the same call that captures the unit for undo.

Invariant: a repository that was not there at the checkpoint, or is another one now, is named and kept; one that is gone
is named. Nothing in any worktree is written here.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hub.checkpoint.engine import Engine
from hub.checkpoint.meta import Part, raw
from hub.checkpoint.parts import mark_of, part_of, part_ref
from hub.checkpoint.unit_captures import Captures, Written
from hub.checkpoint.unit_discovery import Family
from hub.checkpoint.unit_values import GONE, REPLACED, below, joined_plan, narrowed
from hub.checkpoint.values import CheckpointError, Kept, PartPlan, Plan, show
from hub.errors import NotFoundError


class Planning:
    """Draws up one plan for all units. Without `captures` it is a preview, for which nothing is written.

    `options` are passed on to each unit's `Engine.plan`.
    """

    def __init__(self, family: Family, written: Written, captures: Captures | None, **options: Any) -> None:
        self._family = family
        self._written = written
        self._captures = captures
        self._options = options
        self._plans: list[PartPlan] = []
        self._kept: list[Kept] = []

    def whole(self, target_ref: str, undo_ref: str, paths: Sequence[str] | None) -> Plan:
        """Return the plan of all. Raises as `Engine.plan`."""
        self._plan(self._family.first, target_ref, undo_ref, paths, "")
        return joined_plan(sorted(self._plans, key=lambda part: part.key), self._kept)

    def _plan(self, engine: Engine, target_ref: str, undo_ref: str, paths: Sequence[str] | None, key: str) -> Plan:
        def parts(nested: Sequence[bytes], target: Mapping[str, Part]) -> Mapping[str, Part]:
            return dict(self._parts(engine, nested, target, (target_ref, undo_ref), paths, key))

        if self._captures is None:
            self._written.met.add(id(engine))
            plan = engine.preview(target_ref, paths=paths, parts=parts, **self._options)
        else:
            with self._written.writing(engine, undo_ref):
                plan = engine.plan(target_ref, undo_ref=undo_ref, paths=paths, parts=parts, **self._options)
        self._plans.append(PartPlan(key=key, top=os.fsencode(engine.root), plan=plan))
        return plan

    def _parts(
        self,
        engine: Engine,
        nested: Sequence[bytes],
        target: Mapping[str, Part],
        refs: tuple[str, str],
        paths: Sequence[str] | None,
        outer: str,
    ) -> Iterator[tuple[str, Part]]:
        """Yield what is recorded of each unit for undo; its plan is drawn up by the way."""
        missing = set(target)
        for key, child in self._family.inside(engine, nested, target):
            missing.discard(key)
            if self._written.is_new(child):
                wanted = None if paths is None else narrowed(paths, key)
                yield from self._part(child, target.get(key), refs, wanted, (key, below(outer, key)))
        for key in sorted(missing):
            self._keep(below(outer, key), GONE)

    def _part(
        self,
        child: Engine,
        part: Part | None,
        refs: tuple[str, str],
        paths: Sequence[str] | None,
        keys: tuple[str, str],
    ) -> Iterator[tuple[str, Part]]:
        key, whole_key = keys
        mark = mark_of(os.fsencode(child.root))
        if part is not None and part.root != child.identity():
            self._keep(whole_key, REPLACED)
        elif part is not None and paths != []:
            self._written.places[mark] = os.fsencode(child.root)
            plan = self._checked(child, part, (part_ref(part.mark, refs[0]), part_ref(mark, refs[1])), paths, whole_key)
            yield key, part_of(plan.undo, child.identity(), mark)
            return
        if self._captures is not None:
            yield key, self._captures.part(child, refs[1])

    def _checked(self, child: Engine, part: Part, refs: tuple[str, str], paths: Sequence[str] | None, key: str) -> Plan:
        """Return a unit's plan. Raises CheckpointError when its checkpoint is not what the whole was made of."""
        try:
            plan = self._plan(child, refs[0], refs[1], paths, key)
        except NotFoundError as error:
            raise _incomplete(key, error.message) from error
        if plan.target.tree_digest != part.digest:
            raise _incomplete(key, f"{refs[0]} is another state than the one that was recorded.")
        return plan

    def _keep(self, key: str, reason: str) -> None:
        self._kept.append(Kept(path=f"{show(raw(key))}/", reason=reason))


def _incomplete(key: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"The checkpoint is incomplete, nothing was changed: its part in {show(raw(key))} is missing. {why}",
        code="checkpoint_incomplete",
        hint="Restore the paths outside that repository, if you do not need it.",
    )
