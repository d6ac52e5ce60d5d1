"""Which checkpoints are pruned, and why. Decides only; nothing is read or deleted here.

What belongs to one run goes together: the captures before and after it, its steps, its pre-images; and so do an undo
point and the commits that its restore took off a branch. Invariant: never pruned are a session's first checkpoint,
protected and needed ones, all that is of a live session's last run, its undo points, the pre-images of a spared
checkpoint, parts (they go with their whole), and names of a form that is not known here.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from hub.checkpoint.joined.parts import PREFIX as PARTS
from hub.checkpoint.values import Value

RUNS = 50
DAYS = 30.0
BYTES = 5 << 30
_FORM = re.compile(r"(?P<series>.+)/(?P<number>[0-9]+)(?P<letter>|a|s[0-9]+|p[0-9]*|m|u|o)")
_PRE_IMAGE = re.compile(r"p[0-9]*$")
Why = Literal["runs", "age", "size", "purged"]


class Limits(Value, frozen=True, kw_only=True):
    """How much is kept: runs of a session, days since a run, bytes of all; None: without this limit."""

    runs: int | None = RUNS
    days: float | None = DAYS
    bytes: int | None = BYTES


class Held(Value, frozen=True, kw_only=True):
    """A checkpoint there is. `bytes` estimates what only it and older ones keep; `protected`: by `keep`."""

    ref: str
    taken_at: datetime
    bytes: int
    protected: bool = False


class Doomed(Value, frozen=True, kw_only=True):
    """A checkpoint to be pruned: over the number of runs, too old, over the size, or on request."""

    ref: str
    why: Why
    bytes: int


class Pruned(Value, frozen=True, kw_only=True):
    """What was pruned, or would be in a dry run. Bytes are what the checkpoints alone keep on disk: an estimate, which
    counts objects that several of them have to the newest, and that git frees when it cleans up by itself.
    """

    pruned: tuple[Doomed, ...]
    kept: int
    bytes_before: int
    bytes_pruned: int
    dry_run: bool


class Name(Value, frozen=True, kw_only=True):
    """What a ref's name says. `letter` is empty for the capture before a run, else a, s…, p, m, u or o."""

    series: str
    number: int
    letter: str


class Bundle(msgspec.Struct):
    """Checkpoints that go together, and the time of the last of them."""

    name: Name
    rows: list[Held]

    @property
    def taken_at(self) -> datetime:
        return max(row.taken_at for row in self.rows)


def name_of(ref: str) -> Name | None:
    """Return what a ref says, None for a part of another checkpoint and for a name of another form."""
    match = _FORM.fullmatch(ref)
    if match is None or ref.startswith(PARTS):
        return None
    return Name(series=match["series"], number=int(match["number"]), letter=match["letter"])


def prunable(
    held: Sequence[Held],
    limits: Limits,
    *,
    now: datetime,
    live: Collection[str] = (),
    needed: Collection[str] = (),
) -> list[Doomed]:
    """Return what is to be pruned, the oldest first. `live` are series of sessions at work, `needed` refs to spare."""
    bundles = _bundles(held)
    spared = _spared(bundles, held, live, needed)
    doomed = _by_number(bundles, limits.runs) | _by_age(bundles, limits.days, now)
    doomed = _by_size(bundles, spared, doomed, limits.bytes, sum(row.bytes for row in held))
    return [
        Doomed(ref=row.ref, why=doomed[key], bytes=row.bytes)
        for key, bundle in _oldest_first(bundles)
        if key in doomed
        for row in bundle.rows
        if row.ref not in spared
    ]


Key = tuple[str, str, int]


def _bundles(held: Iterable[Held]) -> dict[Key, Bundle]:
    """Return what goes together, by series, kind (run, undo, manual) and number."""
    found: dict[Key, Bundle] = {}
    for row in held:
        name = name_of(row.ref)
        if name is not None:
            key = name.series, _kind(name.letter), name.number
            found.setdefault(key, Bundle(name, [])).rows.append(row)
    return found


def _kind(letter: str) -> str:
    return {"u": "undo", "o": "undo", "m": "manual"}.get(letter, "run")


def _runs(bundles: Mapping[Key, Bundle]) -> dict[str, list[Key]]:
    """Return the runs of each series, the last first."""
    runs: dict[str, list[Key]] = defaultdict(list)
    for key in sorted((key for key in bundles if key[1] == "run"), key=lambda key: key[2], reverse=True):
        runs[key[0]].append(key)
    return runs


def _spared(
    bundles: Mapping[Key, Bundle], held: Iterable[Held], live: Collection[str], needed: Collection[str]
) -> set[str]:
    spared = {row.ref for row in held if row.protected} | set(needed)
    for series, keys in _runs(bundles).items():
        befores = [row.ref for key in reversed(keys) for row in bundles[key].rows if _is_before(row.ref)]
        spared.update(befores[:1])
        if series in live:
            spared.update(row.ref for row in bundles[keys[0]].rows)
    for (series, kind, _), bundle in bundles.items():
        if kind == "undo" and series in live:
            spared.update(row.ref for row in bundle.rows)
    runs_spared = {ref for ref in spared if _is_before(ref)}
    return spared | {row.ref for row in held if _PRE_IMAGE.sub("", row.ref) in runs_spared}


def _is_before(ref: str) -> bool:
    name = name_of(ref)
    return name is not None and name.letter == ""


def _by_number(bundles: Mapping[Key, Bundle], limit: int | None) -> dict[Key, Why]:
    if limit is None:
        return {}
    return {key: "runs" for keys in _runs(bundles).values() for key in keys[limit:]}


def _by_age(bundles: Mapping[Key, Bundle], limit: float | None, now: datetime) -> dict[Key, Why]:
    if limit is None:
        return {}
    oldest = now - timedelta(days=limit)
    return {key: "age" for key, bundle in bundles.items() if bundle.taken_at < oldest}


def _by_size(
    bundles: Mapping[Key, Bundle], spared: Collection[str], doomed: dict[Key, Why], limit: int | None, total: int
) -> dict[Key, Why]:
    """Return what is doomed already and, the oldest first, as much as brings the sum below the limit."""
    found = dict(doomed)

    def freed(bundle: Bundle) -> int:
        return sum(row.bytes for row in bundle.rows if row.ref not in spared)

    left = total - sum(freed(bundles[key]) for key in doomed)
    for key, bundle in _oldest_first(bundles):
        if limit is None or left <= limit:
            break
        if key not in found:
            found[key] = "size"
            left -= freed(bundle)
    return found


def _oldest_first(bundles: Mapping[Key, Bundle]) -> list[tuple[Key, Bundle]]:
    return sorted(bundles.items(), key=lambda item: (item[1].taken_at, item[0]))
