"""Who wrote what: derived from captures before and after runs, never from what a tool says.

What differs from a capture before a run to the one after it is that run's; what differs between runs, or where one of
the two captures is missing, is the user's or others'. A path that is again as it was at an earlier capture, by a
restore or by hand, counts as changed by those only who had changed it by then. Invariant: in doubt a change is not a
run's. Not promised: that a run changed a path alone; whoever else wrote while it ran is taken for it. Pure: no git,
no disk.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

import msgspec

from hub.checkpoint.values import Mark, Reach


class Interval(msgspec.Struct, frozen=True):
    """The paths that changed from one capture to the next: what each is then, in any form that tells it apart.

    `owner` says whose changes these are (None: the user or others).
    """

    owner: str | None
    contents: Mapping[bytes, Hashable]


class Author(msgspec.Struct, frozen=True):
    """Whose the present content of a path is, which run changed it last, and all who changed it since a checkpoint.

    None stands for the user or others; a path that no interval has is theirs.
    """

    last: str | None
    last_run: str | None
    owners: frozenset[str | None]

    @property
    def as_left(self) -> bool:
        """Whether the path is still as the last run left it."""
        return self.last is not None


NOBODY_KNOWN = Author(None, None, frozenset({None}))


def since(history: Sequence[Mark], target_ref: str) -> list[Mark]:
    """Return the captures after the target; all of them when it is not among them."""
    places = [number for number, mark in enumerate(history) if mark.ref == target_ref]
    return list(history[places[-1] + 1 :]) if places else list(history)


def mark_of(history: Sequence[Mark], ref: str) -> Mark | None:
    """Return the last mark of a ref."""
    return next((mark for mark in reversed(history) if mark.ref == ref), None)


def owner_between(earlier: Mark | None, later: Mark | None) -> str | None:
    """Return whose the changes between two neighbouring captures are."""
    if earlier is None or later is None or (earlier.kind, later.kind) != ("before", "after"):
        return None
    return earlier.owner if earlier.owner == later.owner else None


def authors_of(
    start: Mapping[bytes, Hashable], intervals: Iterable[Interval], wanted: Collection[bytes]
) -> dict[bytes, Author]:
    """Return who changed each of the wanted paths, from what they were at the start, through intervals in order."""
    lines: dict[bytes, list[tuple[Hashable, str | None]]] = {name: [(start.get(name), None)] for name in wanted}
    for interval in intervals:
        for name in interval.contents.keys() & lines.keys():
            _advance(lines[name], interval.contents[name], interval.owner)
    return {name: _author([owner for _, owner in line[1:]]) for name, line in lines.items()}


def _advance(line: list[tuple[Hashable, str | None]], content: Hashable, owner: str | None) -> None:
    """Note a new content; one that was there before takes back all that came after it."""
    for number, (earlier, _) in enumerate(line):
        if earlier == content:
            del line[number + 1 :]
            return
    line.append((content, owner))


def _author(owners: Sequence[str | None]) -> Author:
    if not owners:
        return NOBODY_KNOWN
    runs = [owner for owner in owners if owner is not None]
    return Author(owners[-1], runs[-1] if runs else None, frozenset(owners))


def is_only(author: Author, owner: str | None) -> bool:
    """Return whether an owner alone changed a path, so that going back loses nobody else's change."""
    return owner is not None and author.owners == {owner}


def choose_reach(wanted: Reach | None, owner: str | None, authors: Iterable[Author]) -> Reach:
    """Return how far a restore goes: what was asked for, else the whole tree unless others have changed it, too."""
    if wanted is not None:
        return wanted
    return "tree" if owner is None or all(is_only(author, owner) for author in authors) else "session"


def why_kept(author: Author, owner: str | None) -> str:
    """Return why a restore of an owner's changes leaves a path alone."""
    if author.last is None and author.last_run is None:
        return "changed by the user or another program"
    if author.last is None:
        return f"changed by the user or another program after {author.last_run}"
    if author.last != owner:
        return f"changed by {author.last}"
    return f"changed by others, too, before {author.last} wrote it last"
