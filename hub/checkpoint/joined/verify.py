"""Several units looked after together: each by itself, and whether every checkpoint still has its parts. Reads only.

A part whose repository is gone, or was replaced by another, is no damage here: a restore leaves it out and says so.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import msgspec

from hub.checkpoint.engine import Engine
from hub.checkpoint.joined.discovery import Family
from hub.checkpoint.joined.parts import part_ref
from hub.checkpoint.keeping.verify import Finding, Verified
from hub.checkpoint.stores.meta import raw


def look(family: Family, units: Sequence[Engine], *, repair: bool, deep: bool) -> Verified:
    """Return what is found in all units, the first of which speaks for the whole; its checkpoints are counted."""
    found = [unit.verify(repair=repair, deep=deep) for unit in units]
    findings = [_placed(units[0], unit, row) for unit, done in zip(units, found, strict=True) for row in done.findings]
    lacking = {unit: list(_lacking(family, unit)) for unit in units}
    findings += [_placed(units[0], unit, row) for unit, rows in lacking.items() for row in rows]
    damaged = {row.name for row in found[0].findings if row.kind in ("incomplete", "corrupt")}
    fewer = len({row.name for row in lacking[units[0]]} - damaged)
    return msgspec.structs.replace(found[0], complete=found[0].complete - fewer, findings=tuple(findings))


def _lacking(family: Family, unit: Engine) -> Iterator[Finding]:
    """Yield the checkpoints of a unit that lack a part, although its repository is there."""
    names: dict[Path, Collection[str]] = {}
    for ref, key, part in unit.parts_of_all():
        child = family.at(os.path.join(os.fsencode(unit.root), raw(key)))
        if child is None or child.identity() != part.root:
            continue
        if child.root not in names:
            names[child.root] = child.names()
        name = part_ref(part.mark, ref)
        if name not in names[child.root]:
            text = f"Its part in {key} is missing there: {name}. Without it the checkpoint cannot be restored whole."
            yield Finding(kind="incomplete", name=ref, text=text)


def _placed(first: Engine, unit: Engine, row: Finding) -> Finding:
    """Return a finding whose name says in which unit it is; paths say so already."""
    inside = unit is first or row.name.startswith("/")
    return row if inside else msgspec.structs.replace(row, name=f"{unit.root}: {row.name}")
