"""The captures since a checkpoint, read from the repository: what `authors` needs to say who changed what.

Invariant: a capture that is gone makes its changes nobody's in particular, never a run's; one that is damaged is an
error. The effort is a fixed number of git calls, however many captures there are.
"""

import itertools
from collections.abc import Collection, Hashable, Iterator, Sequence

from hub.checkpoint.restoring.authors import Author, Interval, authors_of, mark_of, owner_between, since
from hub.checkpoint.stores.meta import State, decode, text
from hub.checkpoint.stores.records import PREFIX, Found
from hub.checkpoint.stores.side import Store
from hub.checkpoint.stores.trees import Difference, differences_of
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
    changed = differences_of(store.side, list(itertools.pairwise(line)))
    states = [target.state, *_states(store, [mark.ref for mark in known]), now] if bits else []
    first, *later_contents = _contents(changed, states, frozenset(wanted))
    intervals = [Interval(owner, contents) for owner, contents in zip(owners, later_contents, strict=True)]
    return authors_of(first, intervals, wanted)


def _contents(
    changed: Sequence[Sequence[Difference]], states: Sequence[State], wanted: frozenset[bytes]
) -> Iterator[dict[bytes, Hashable]]:
    """Yield what the wanted paths are in each state, where it may differ from the state before.

    `states` are given when permission bits count.
    """
    begin = {d.name: (d.old_mode, d.old_oid) for found in reversed(changed) for d in reversed(found)}
    trees = [begin, *({d.name: (d.new_mode, d.new_oid) for d in found} for found in changed)]
    tree: dict[bytes, tuple[int, str]] = {}
    for number, step in enumerate(trees):
        tree |= step
        bits = states[number].permissions.files if states else {}
        names = wanted if states or not number else wanted & step.keys()
        yield {name: (tree.get(name), bits.get(text(name))) for name in names}


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
