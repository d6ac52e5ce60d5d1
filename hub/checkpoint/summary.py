"""What a plan tells besides its files: staged entries that change, where HEAD stands, what stays as it is."""

from hub.checkpoint.meta import State
from hub.checkpoint.repository import Repository
from hub.checkpoint.trees import differences
from hub.checkpoint.values import show


def index_changes(side: Repository, now: State, target: State) -> tuple[str, ...]:
    """Return the paths whose staged entries differ; empty when only flags do."""
    pairs = [(now.index.tree, target.index.tree)]
    empty = side.line("mktree")
    stages = sorted(now.index.stages.keys() | target.index.stages.keys())
    pairs += [(now.index.stages.get(stage, empty), target.index.stages.get(stage, empty)) for stage in stages]
    return tuple(sorted({show(d.name) for old, new in pairs for d in differences(side, old, new)}))


def notes(now: State, target: State, ahead: int, *, whole: bool) -> tuple[str, ...]:
    """Return sentences for people about what a restore does not change."""
    found = []
    if now.branch != target.branch:
        found.append(f"The checkpoint was taken on {_branch(target)}; you are on {_branch(now)} and stay there.")
    if now.head != target.head:
        found.append(f"HEAD stays where it is: it has {ahead} commit(s) that the checkpoint's HEAD does not have.")
    if not whole:
        found.append("The index stays as it is: only some paths are restored.")
    if target.uncaptured:
        found.append(f"{len(target.uncaptured)} path(s) were not captured at the checkpoint and stay as they are.")
    return tuple(found)


def _branch(state: State) -> str:
    return state.branch.removeprefix("refs/heads/") if state.branch else "no branch"
