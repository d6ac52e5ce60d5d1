"""What a plan tells besides its files: staged entries that change, where HEAD stands, what stays as it is."""

import itertools
from collections.abc import Mapping, Sequence

import msgspec

from hub.checkpoint.repository import Repository
from hub.checkpoint.restoring.branches import name_of
from hub.checkpoint.restoring.planning import Draft, IndexPlan
from hub.checkpoint.stores.meta import IndexState, State
from hub.checkpoint.stores.reading import Reader
from hub.checkpoint.stores.trees import differences, differences_of
from hub.checkpoint.values import INCOMPLETE, CheckpointError, HeadMove, Step, show


class Unsaved(Exception):
    """What a restore would replace is not in the store, although it was captured: somebody prunes it. Its path."""


def plan_index(reader: Reader, now: IndexState, target: IndexState, names: frozenset[bytes] | None) -> IndexPlan:
    """Return the plan for the index; `names` narrow it to the entries of these files."""
    if now.digest == target.digest:
        return IndexPlan(restores=False)
    if names is None:
        return IndexPlan(restores=True, changes=_changes(reader.git, now, target))
    if any(state.raw is not None or state.stages for state in (now, target)):
        note = "The index stays as it is: it has conflicts or flags, and only some of its entries would go back."
        return IndexPlan(restores=False, note=note)
    found = tuple(d.name for d in differences(reader, now.tree, target.tree) if d.name in names)
    return IndexPlan(restores=bool(found), changes=tuple(sorted(map(show, found))), names=found)


def _changes(side: Repository, now: IndexState, target: IndexState) -> tuple[str, ...]:
    """Return the paths whose staged entries differ; empty when only flags do."""
    pairs = [(now.tree, target.tree)]
    stages = sorted(now.stages.keys() | target.stages.keys())
    if stages:
        empty = side.line("mktree")
        pairs += [(now.stages.get(stage, empty), target.stages.get(stage, empty)) for stage in stages]
    return tuple(sorted({show(d.name) for found in differences_of(side, pairs) for d in found}))


def with_sizes(reader: Reader, *lists: Sequence[Step]) -> list[list[Step]]:
    """Return the same lists of steps, with the sizes of what is there and of what comes.

    Raises CheckpointError checkpoint_incomplete when the content of what comes is missing, Unsaved when that of what
    goes is.
    """
    sizes = reader.sizes(oid for step in itertools.chain(*lists) for oid in (step.old_oid, step.new_oid) if oid)
    return [[_with_size(step, sizes) for step in steps] for steps in lists]


def _with_size(step: Step, sizes: Mapping[str, int]) -> Step:
    if step.new_oid is not None and step.new_oid not in sizes:
        raise CheckpointError(
            f"The checkpoint is incomplete, nothing was touched: the content of {step.path} is missing.",
            code="checkpoint_incomplete",
            hint=INCOMPLETE,
        )
    if step.old_oid is not None and step.old_oid not in sizes:
        raise Unsaved(step.path)
    return msgspec.structs.replace(step, old_size=sizes.get(step.old_oid or ""), new_size=sizes.get(step.new_oid or ""))


def notes(now: State, target: State, ahead: int, draft: Draft, *, whole: bool) -> list[str]:
    """Return sentences for people about what a restore does not change, and how the branch moves."""
    found = []
    if now.branch != target.branch:
        found.append(f"The checkpoint was taken on {name_of(target.branch)}; you are on {name_of(now.branch)}.")
    if draft.head is not None:
        found.append(_of_head(draft.head))
    elif now.head != target.head:
        found.append(f"HEAD stays where it is; the checkpoint's HEAD does not have {_count(ahead, 'commit')} of it.")
    if not whole:
        found.append("The index stays as it is: only some paths are restored.")
    elif draft.index.note is not None:
        found.append(draft.index.note)
    if draft.reach == "session":
        found.append(
            "What others have changed since stays as it is and is listed as kept; empty folders and the permissions of "
            "folders stay, too."
        )
    if target.uncaptured:
        found.append(f"Not captured at the checkpoint, so left as they are: {_count(len(target.uncaptured), 'path')}.")
    return found


def _of_head(move: HeadMove) -> str:
    name = name_of(move.ref) if move.ref != "HEAD" else "HEAD"
    if move.forward:
        return f"{name} goes forward again: {_commits(move.commits)} on."
    return f"{_commits(move.commits)} off {name}; a ref keeps them, and undo brings them back."


def _commits(number: int) -> str:
    return f"{_count(number, 'commit')} {'comes' if number == 1 else 'come'}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
