"""The engine of a whole workspace: its roots, and every repository inside them, captured and restored as one.

A unit is one worktree with its own engine: each root, each populated submodule, each nested repository that is not
ignored. Invariant: all or none. The checkpoint of the whole exists only when those of all units do; a restore of
several units has one commit point, before which recovery takes all of them back, and after which it brings all of them
forward. Paths of other units are shown relative to the first root (absolute ones for other roots). With a single unit
everything is as `Engine` does it. Not promised: one instant for all units; more than one thread at a time.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from hub.checkpoint.capture.worktree import Progress
from hub.checkpoint.engine import BUDGET_S, LOCK_WAIT_S, Engine
from hub.checkpoint.joined import verify as unit_verify
from hub.checkpoint.joined.captures import Captures, Written
from hub.checkpoint.joined.discovery import Family, Opening, Roll
from hub.checkpoint.joined.parts import Seen, part_ref
from hub.checkpoint.joined.plans import Planning
from hub.checkpoint.joined.restores import Restores
from hub.checkpoint.joined.values import below, by_place, changes_in, narrowed
from hub.checkpoint.keeping.export import Exported
from hub.checkpoint.keeping.mirrors import Mirrors
from hub.checkpoint.keeping.retention import Limits, Pruned
from hub.checkpoint.keeping.verify import Verified
from hub.checkpoint.restoring.plans import Wish
from hub.checkpoint.stores.meta import Part
from hub.checkpoint.values import Applied, Change, Checkpoint, Kept, Mark, OnConflict, Plan, Reach, Recovered
from hub.errors import RefusedError

log = logging.getLogger(__name__)

Compared = tuple[str, Engine, str, str | None]
"""One unit of a comparison: its key, its engine, and its own names of the two checkpoints."""
Inner = list[Compared]


class Units:
    """Checkpoints of a workspace. Synchronous; errors are TurnbackError with a stable code. `hook` is for tests."""

    def __init__(self, directories: Sequence[Path], opening: Opening) -> None:
        self.hook: Callable[[str], None] = _no_hook
        self._family = Family(directories, opening, self._listen)
        self._first = self._family.first
        self._restores = Restores(self._family, lambda step: self.hook(step))
        self.root = self._first.root

    @classmethod
    def open(
        cls,
        directories: Sequence[Path],
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        owner: str = "turnback",
        shadow: Path | None = None,
        always_shadow: bool = False,
    ) -> "Units":
        """Return the units of a workspace; the first directory's worktree speaks for all.

        Raises as `Engine.open` does for each directory, and UsageError roots_overlap.
        """
        opening = Opening(lock_wait_s=lock_wait_s, owner=owner, stores=shadow, always_shadow=always_shadow)
        return cls(directories, opening)

    @property
    def roots(self) -> tuple[Path, ...]:
        """The worktrees around the directories, each once."""
        return tuple(root.root for root in self._family.roots)

    def places(self) -> tuple[Path, ...]:
        """Return where units stand, as far as captures have met them: the roots, and what lies inside."""
        return tuple(engine.root for engine in self._everyone())

    def _listen(self, engine: Engine, key: str) -> None:
        engine.hook = lambda step: self.hook(f"{key}:{step}" if key else step)

    def capture(
        self,
        ref: str,
        *,
        labels: Mapping[str, str],
        budget_s: float = BUDGET_S,
        progress: Progress | None = None,
        include: Sequence[str] = (),
    ) -> Checkpoint:
        """Take a checkpoint of all units. `budget_s` is for each. Raises as `Engine.capture`; then there is none."""
        with self._restores.settled(), self._writing() as written:
            captures = Captures(self._family, written, labels=labels, budget_s=budget_s, progress=progress)
            return captures.take(self._first, ref, include)

    def ignored(self, paths: Sequence[str]) -> Sequence[str]:
        """Return which of these files, relative to `root`, git ignores and no capture has by itself."""
        places = {engine.root: engine for engine in self._everyone()}
        found: list[str] = []
        for place, names in by_place(self.root, list(places), paths).items():
            found += [names[name] for name in places[place].ignored(list(names))]
        return sorted(found)

    def list(self, prefix: str = "") -> list[Checkpoint]:
        """Return the checkpoints whose refs begin with `prefix`; see `Engine.list`."""
        return self._first.list(prefix)

    def get(self, ref: str) -> Checkpoint:
        """Return a checkpoint; see `Engine.get`."""
        return self._first.get(ref)

    def diff(self, old_ref: str, new_ref: str | None) -> Sequence[Change]:
        """Return what differs; see `Engine.diff`. Units that only one side has are left out."""
        with self._comparing(new_ref):
            changes = self._diff(("", self._first, old_ref, new_ref))
        return sorted(changes, key=lambda change: change.path)

    def _comparing(self, new_ref: str | None) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if new_ref is not None else self._restores.settled()

    def _diff(self, sides: Compared) -> Sequence[Change]:
        key, engine, old_ref, new_ref = sides
        inner: Inner = []
        changes = changes_in(key, engine.diff(old_ref, new_ref, parts=self._seen(sides, inner)))
        return [*changes, *(change for unit in inner for change in self._diff(unit))]

    def patch(self, old_ref: str, new_ref: str | None, paths: Sequence[str] = ()) -> str:
        """Return the same as a unified diff for people; see `Engine.patch`."""
        with self._comparing(new_ref):
            return self._patch(("", self._first, old_ref, new_ref), paths)

    def _patch(self, sides: Compared, paths: Sequence[str]) -> str:
        key, engine, old_ref, new_ref = sides
        inner: Inner = []
        own = narrowed(paths, key) if key else list(paths)
        if paths and not own:
            return ""
        prefix = f"{key.lstrip('/')}/" if key else ""
        wanted = [] if "." in own else own
        text = engine.patch(old_ref, new_ref, wanted, parts=self._seen(sides, inner), prefix=prefix)
        return text + "".join(self._patch(unit, paths) for unit in inner)

    def _seen(self, sides: Compared, inner: Inner) -> Seen:
        """Return what is told of the parts while two states are compared, and adds those to compare to `inner`."""
        outer, engine, old_ref, new_ref = sides

        def seen(old: Mapping[str, Part], new: Mapping[str, Part] | None, nested: Sequence[bytes]) -> None:
            for key, child in self._family.inside(engine, nested, old if new is None else new):
                if key not in old or old[key].root != child.identity():
                    continue
                newer = None if new is None else part_ref(new[key].mark, new_ref or "") if key in new else ""
                if newer != "":
                    inner.append((below(outer, key), child, part_ref(old[key].mark, old_ref), newer))

        return seen

    def plan(
        self,
        target_ref: str,
        *,
        undo_ref: str,
        labels: Mapping[str, str],
        paths: Sequence[str] | None = None,
        reach: Reach | None = None,
        owner: str | None = None,
        history: Sequence[Mark] = (),
        head: bool = False,
        kept_head_ref: str | None = None,
    ) -> Plan:
        """Capture the present state of all units under `undo_ref`, and return the way to the target; see `Engine.plan`.

        Raises also CheckpointError checkpoint_incomplete when a unit that is here lacks its part of the target.
        """
        wish = Wish(paths=paths, reach=reach, owner=owner, history=history, head=head, kept_head_ref=kept_head_ref)
        with self._restores.settled(), self._writing() as written:
            captures = Captures(self._family, written, labels=labels)
            return Planning(self._family, written, captures, labels).whole(target_ref, undo_ref, wish)

    def preview(
        self,
        target_ref: str,
        *,
        paths: Sequence[str] | None = None,
        reach: Reach | None = None,
        owner: str | None = None,
        history: Sequence[Mark] = (),
        head: bool = False,
        kept_head_ref: str | None = None,
    ) -> Plan:
        """Return the same plan without keeping a checkpoint; it cannot be applied. Raises as `plan`."""
        wish = Wish(paths=paths, reach=reach, owner=owner, history=history, head=head, kept_head_ref=kept_head_ref)
        with self._restores.settled():
            return Planning(self._family, Written(), None, {}).whole(target_ref, "", wish)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Written]:
        """Note what is written, so that it can be taken back, and found when it is forgotten."""
        written = Written()
        with written.all_or_none():
            yield written
        if written.places:
            self._roll.add(written.places)

    @property
    def _roll(self) -> Roll:
        return Roll(self._first.room)

    def apply(self, plan: Plan, *, on_conflict: OnConflict = "abort") -> Applied:
        """Carry a plan out in all units; their locks stay held until `finish` or `abort`; see `Engine.apply`."""
        return self._restores.apply(plan, on_conflict)

    def finish(self, txid: str) -> tuple[Kept, ...]:
        """Make an applied restore final in all units; see `Engine.finish`."""
        return self._restores.finish(txid)

    def abort(self, txid: str) -> tuple[Kept, ...]:
        """Roll an applied restore back in all units; see `Engine.abort`."""
        return self._restores.abort(txid)

    def recover(self, is_committed: Callable[[str], bool]) -> Sequence[Recovered]:
        """End every restore that was left unfinished, in all units alike; see `Engine.recover`."""
        return self._restores.recover(is_committed)

    def open_elsewhere(self, ref: str, directory: Path) -> Path:
        """Open the first unit's part of a checkpoint in a linked worktree; see `Engine.open_elsewhere`."""
        return self._first.open_elsewhere(ref, directory)

    def keep(self, ref: str, on: bool = True) -> None:
        """Protect a checkpoint from `prune`, or end that."""
        self._first.keep(ref, on)

    def kept(self) -> Sequence[str]:
        """Return the names of protected checkpoints, in order."""
        return self._first.kept()

    def forget(self, refs: Sequence[str]) -> None:
        """Delete checkpoints' refs, and those of their parts."""
        self._first.forget(refs)
        self._forget_parts(refs)

    def prune(
        self,
        limits: Limits | None = None,
        *,
        live: Collection[str] = (),
        needed: Collection[str] = (),
        dry_run: bool = False,
        now: datetime | None = None,
    ) -> Pruned:
        """Delete the checkpoints that are over the limits, with their parts; see `Engine.prune`."""
        pruned = self._first.prune(limits, live=live, needed=needed, dry_run=dry_run, now=now)
        if not dry_run:
            self._forget_parts([row.ref for row in pruned.pruned])
        return pruned

    def purge(self, prefix: str, *, dry_run: bool = False, now: datetime | None = None) -> Pruned:
        """Delete all checkpoints of a session, with their parts; see `Engine.purge`."""
        pruned = self._first.purge(prefix, dry_run=dry_run, now=now)
        if dry_run:
            return pruned
        self._forget_parts([row.ref for row in pruned.pruned])
        return pruned

    def verify(self, *, repair: bool = False, deep: bool = False) -> Verified:
        """Look at the checkpoints of all units, and for leftovers in each; see `Engine.verify`.

        Counted are the checkpoints of the whole; a part that is damaged is named by the path of its repository.
        """
        if repair:
            self._settled_as_far_as_can_be()
        return unit_verify.look(self._family, self._everyone(), repair=repair, deep=deep)

    def _settled_as_far_as_can_be(self) -> None:
        """End what needs nobody's word; what waits for its caller is named by the units themselves."""
        try:
            self._restores.settle()
        except RefusedError as refused:
            if refused.code not in ("restore_in_progress", "restore_unfinished"):
                raise

    def _everyone(self) -> Sequence[Engine]:
        """Return the engines of the roots, and of every other place where parts have stood and still do."""
        places = [os.fsencode(root.root) for root in self._family.roots] + list(self._roll.read().values())
        found = [self._family.at(place) for place in dict.fromkeys(places)]
        return [engine for engine in found if engine is not None]

    def export(self, refs: Sequence[str], file: Path, *, overwrite: bool = False) -> Exported:
        """Write checkpoints of the first unit into a bundle; see `Engine.export`. Parts are in their own repositories,
        from which they are exported as `part/…`.
        """
        return self._first.export(refs, file, overwrite=overwrite)

    def remotes_that_mirror(self) -> Sequence[tuple[Path, Mirrors]]:
        """Return, for each unit that has such remotes, where it stands and which these are."""
        told = [(engine.root, engine.remotes_that_mirror()) for engine in self._everyone()]
        return [(root, mirrors) for root, mirrors in told if mirrors.remotes]

    def _forget_parts(self, refs: Sequence[str]) -> None:
        for mark, top in self._roll.read().items():
            engine = self._family.at(top)
            if engine is None:
                log.info("checkpoints of a repository that is gone went with it", extra={"path": os.fsdecode(top)})
            else:
                engine.forget([part_ref(mark, ref) for ref in refs])


def _no_hook(step: str) -> None:
    """Nobody wants to know."""
