"""The captures since a checkpoint, read from the repository: what `authors` needs to say who changed what.

Invariant: a capture that is gone makes its changes nobody's in particular, never a run's; one that is damaged is an
error. The effort is a fixed number of git calls, however many captures there are.
"""

import itertools
import os
from collections.abc import Collection, Sequence

from hub.checkpoint.authors import Author, Interval, authors_of, mark_of, owner_between, since
from hub.checkpoint.meta import State, decode
from hub.checkpoint.records import PREFIX, Found
from hub.checkpoint.side import Store
from hub.checkpoint.trees import changed_names, odd_names
from hub.checkpoint.values import Mark


def authors_since(
    store: Store, target: Found, now: State, history: Sequence[Mark], wanted: Collection[bytes], *, bits: bool
) -> dict[bytes, Author]:
    """Return who changed each of the wanted paths since the target; with `bits` also who changed permission bits."""
    if not wanted:
        return {}
    later = since(history, target.ref)
    trees = _trees(store, [mark.ref for mark in later])
    known = [mark for mark in later if mark.ref in trees]
    marks = [mark_of(history, target.ref), *known, None]
    owners = [owner_between(*pair) for pair in itertools.pairwise(marks)]
    line = [target.state.worktree, *(trees[mark.ref] for mark in known), now.worktree]
    changed = changed_names(store.side, list(itertools.pairwise(line)))
    if bits:
        found = _states(store, [mark.ref for mark in known])
        states = [target.state, *found, now]
        odd = [odd_names(old.permissions, new.permissions) for old, new in itertools.pairwise(states)]
        changed = [names | {os.fsencode(name) for name in some} for names, some in zip(changed, odd, strict=True)]
    return authors_of((Interval(owner, names) for owner, names in zip(owners, changed, strict=True)), wanted)


def _trees(store: Store, refs: Sequence[str]) -> dict[str, str]:
    """Return the captured tree of each checkpoint that is there."""
    if not refs:
        return {}
    names = "".join(f"{PREFIX}{ref}:worktree\n" for ref in refs).encode()
    out = store.user.run("cat-file", "--batch-check", stdin=names).decode().splitlines()
    rows = [(ref, line.split(" ")) for ref, line in zip(refs, out, strict=True)]
    return {ref: words[0] for ref, words in rows if words[1] == "tree"}


def _states(store: Store, refs: Sequence[str]) -> list[State]:
    found = store.user.objects([f"{PREFIX}{ref}:meta.json" for ref in refs])
    return [decode(b"".join(chunks)).state for _, _, chunks in found]
