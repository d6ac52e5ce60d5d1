"""Restores of several units: all are applied, then one word decides for all, then all are ended.

Invariant: the joint journal is durable before the first unit is changed and vanishes after the last one is settled; a
unit alone never decides. Not promised: anything about units that vanish between crash and recovery; they are named.
"""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec

from hub.checkpoint.engine import Engine
from hub.checkpoint.joined.discovery import Family
from hub.checkpoint.joined.joint import Content, Joint, Member, joints
from hub.checkpoint.joined.values import blame, joined_applied, kept_in, shown
from hub.checkpoint.stores.meta import text
from hub.checkpoint.values import Applied, FilesMoved, Kept, OnConflict, PartPlan, Plan, Recovered, show
from hub.errors import ConflictError, NotFoundError, RefusedError, TurnbackError

log = logging.getLogger(__name__)

VANISHED = "its repository is gone: its part of the restore went with it"


class Restores:
    """Applies and ends restores of a family of units. `hook` is told the name of each step before it."""

    def __init__(self, family: Family, hook: Callable[[str], None]) -> None:
        self._family = family
        self._hook = hook
        self._applied: str | None = None

    def apply(self, plan: Plan, on_conflict: OnConflict) -> Applied:
        """Carry a plan out in all units. Raises as `Engine.apply`; all is then as it was before, in all units."""
        with self.settled():
            if not plan.parts or not plan.undo.ref:
                return self._family.first.apply(plan, on_conflict=on_conflict)
            return self._apply(plan, on_conflict)

    def _apply(self, plan: Plan, on_conflict: OnConflict) -> Applied:
        with self._family.first.hold(), contextlib.ExitStack() as back:
            joint = Joint(self._family.first.room, plan.txid)
            self._hook("joint:beginning")
            joint.begin(self._content(plan))
            back.callback(self._give_up, joint)
            rows = [(text(part.key), self._apply_one(part, joint, on_conflict)) for part in plan.parts]
            self._hook("joint:applied")
            back.pop_all()
        self._applied = plan.txid
        return joined_applied(plan.txid, rows)

    def _apply_one(self, part: PartPlan, joint: Joint, on_conflict: OnConflict) -> Applied:
        self._hook(f"joint:apply:{show(part.key)}")
        plan = msgspec.structs.replace(part.plan, txid=joint.txid, joint=joint.path)
        try:
            return self._engine(part.top).apply(plan, on_conflict=on_conflict)
        except FilesMoved as moved:
            raise FilesMoved([shown(text(part.key), path) for path in moved.details["paths"]]) from moved
        except TurnbackError as error:
            blame(error, text(part.key))
            raise

    def _content(self, plan: Plan) -> Content:
        members = [
            Member(key=part.key, top=part.top, room=self._engine(part.top).room, stores=self._family.stores)
            for part in plan.parts
        ]
        return Content(target_ref=plan.target.ref, undo_ref=plan.undo.ref, members=members)

    def _engine(self, top: bytes) -> Engine:
        engine = self._family.at(top)
        if engine is None:
            raise ConflictError(f"{os.fsdecode(top)} has changed since the restore was planned.", code="files_moved")
        return engine

    def finish(self, txid: str) -> tuple[Kept, ...]:
        """Pass the commit point, and end the restore in all units. May be called again."""
        joint = self._joint(txid)
        if joint is None:
            return self._family.first.finish(txid)
        with self._family.holder(joint).hold():
            self._hook("joint:finishing")
            joint.decide("done")
            if joint.fate != "done":
                raise NotFoundError(f"There is no restore {txid} in progress.", code="restore_not_found")
            self._hook("joint:done")
            return self._end(joint)

    def abort(self, txid: str) -> tuple[Kept, ...]:
        """Roll the restore back in all units. May be called again. Raises ConflictError restore_final."""
        joint = self._joint(txid)
        if joint is None:
            return self._family.first.abort(txid)
        with self._family.holder(joint).hold():
            joint.decide("void")
            if joint.fate != "void":
                raise ConflictError(f"Restore {txid} is final already.", code="restore_final")
            self._hook("joint:void")
            return self._end(joint)

    def recover(self, is_committed: Callable[[str], bool]) -> Sequence[Recovered]:
        """End every restore, those of several units first. `is_committed` tells whether an applied one counts."""
        settled = [found for joint in self._joints() for found in self._recover_joint(joint, is_committed)]
        return [*settled, *(found for root in self._family.roots for found in root.recover(is_committed))]

    def _recover_joint(self, joint: Joint, is_committed: Callable[[str], bool]) -> Iterator[Recovered]:
        with self._family.holder(joint).hold():
            if joint.fate is None:
                return
            content = joint.read()
            joint.decide("done" if _all_applied(joint, content) and is_committed(joint.txid) else "void")
            forward = joint.fate == "done"
            rescued = self._end(joint)
        yield Recovered(
            txid=joint.txid,
            direction="forward" if forward else "back",
            target_ref=content.target_ref,
            undo_ref=content.undo_ref,
            rescued=rescued,
        )

    @contextlib.contextmanager
    def settled(self) -> Iterator[None]:
        """Hold the locks of several roots, and end what was left; see `settle`."""
        with self._family.held():
            self.settle()
            yield

    def settle(self) -> None:
        """End what needs nobody's word. Raises RefusedError restore_in_progress, restore_unfinished."""
        for joint in self._joints():
            if joint.txid == self._applied:
                raise RefusedError("A restore is in progress here.", code="restore_in_progress", retryable=True)
            with self._family.holder(joint).hold():
                self._settle_one(joint)

    def _settle_one(self, joint: Joint) -> None:
        if joint.fate is None:
            return
        if joint.fate == "open" and _all_applied(joint, joint.read()):
            raise RefusedError(
                f"Restore {joint.txid} was applied, and the program that began it ended before it was final.",
                code="restore_unfinished",
                hint="Start the hub that made it again: it knows whether the restore counts.",
            )
        joint.decide("void")
        went = joint.fate
        self._end(joint)
        log.warning("an unfinished restore of several units was settled", extra={"txid": joint.txid, "went": went})

    def _give_up(self, joint: Joint) -> None:
        joint.decide("void")
        self._end(joint)

    def _end(self, joint: Joint) -> tuple[Kept, ...]:
        """Settle each unit as it was decided, then delete the journal. May be repeated and killed."""
        forward, members = joint.fate == "done", joint.read().members
        kept: list[Kept] = []
        for member in members if forward else reversed(members):
            self._hook(f"joint:end:{show(member.key)}")
            kept += self._end_one(member, joint.txid, forward=forward)
        self._hook("joint:clean")
        joint.end()
        if self._applied == joint.txid:
            self._applied = None
        return tuple(kept)

    def _end_one(self, member: Member, txid: str, *, forward: bool) -> Sequence[Kept]:
        engine = self._family.at(member.top) or self._elsewhere(member)
        if engine is None:
            return [Kept(path=show(member.top), reason=VANISHED)]
        try:
            return kept_in(text(member.key), engine.finish(txid) if forward else engine.abort(txid))
        except NotFoundError:  # not begun yet, or settled before
            if os.path.isdir(member.transaction(txid).folder):
                engine.settle()
            return ()

    def _elsewhere(self, member: Member) -> Engine | None:
        """Return the engine of a further root that this caller has not named, None when it is gone."""
        if not os.path.isdir(member.room) or not os.path.isdir(member.top):
            return None
        stores = Path(os.fsdecode(member.stores)) if member.stores is not None else None
        return self._family.open(Path(os.fsdecode(member.top)), stores)

    def _joint(self, txid: str) -> Joint | None:
        return next((joint for joint in self._joints() if joint.txid == txid), None)

    def _joints(self) -> list[Joint]:
        return [joint for root in self._family.roots for joint in joints(root.room)]


def _all_applied(joint: Joint, content: Content) -> bool:
    return all(member.transaction(joint.txid).is_undecided for member in content.members)
