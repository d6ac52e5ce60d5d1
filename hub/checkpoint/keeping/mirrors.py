"""Which remotes would be sent the checkpoints by a plain `git push`, and what keeps them at home. Reads only.

Checkpoints may hold what was never meant to leave the machine. Not promised: anything about `git push --mirror` typed
by hand, or about a remote that fetches `refs/*` from here by itself, unless `transfer.hideRefs` hides them from it.
"""

import os
import shlex
from collections.abc import Iterable, Sequence

from hub.checkpoint.repository import Repository
from hub.checkpoint.stores.records import PREFIX
from hub.checkpoint.values import Value

SETTINGS = r"^(remote\..*\.(mirror|push)|transfer\.hiderefs|uploadpack\.hiderefs)$"
EXAMPLE = PREFIX + "session/1"
EXCLUDE = f"^{PREFIX}*"
HIDE = f"git config --add transfer.hideRefs {PREFIX.rstrip('/')}"
_TRUE = ("true", "yes", "on", "1", "")


class Mirror(Value, frozen=True, kw_only=True):
    """A remote to which `git push` would publish the checkpoints, why, and the command lines that end it."""

    remote: str
    why: str
    remedy: tuple[str, ...]


class Mirrors(Value, frozen=True, kw_only=True):
    """All such remotes. `hidden`: whoever fetches from here is not shown the checkpoints; `hide` is the line for it."""

    remotes: tuple[Mirror, ...]
    hidden: bool
    hide: str


def mirrors(user: Repository) -> Mirrors:
    """Return what the user's settings would publish. Raises GitFailed."""
    out = user.run("config", "-z", "--get-regexp", SETTINGS, allow=(0, 1))
    rows = [os.fsdecode(row).partition("\n") for row in out.split(b"\0")[:-1]]
    pairs = [(key, value) for key, _, value in rows]
    names = sorted({_remote(key) for key, _ in pairs if key.startswith("remote.")})
    found = [_mirror(name, pairs) for name in names]
    hidden = _hidden([value for key, value in pairs if key.endswith(".hiderefs")])
    return Mirrors(remotes=tuple(mirror for mirror in found if mirror is not None), hidden=hidden, hide=HIDE)


def _remote(key: str) -> str:
    return key.removeprefix("remote.").rpartition(".")[0]


def _mirror(name: str, pairs: Sequence[tuple[str, str]]) -> Mirror | None:
    quoted = shlex.quote(f"remote.{name}.push")
    exclude = f"git config --add {quoted} {shlex.quote(EXCLUDE)}"
    if _is_true([value for key, value in pairs if key == f"remote.{name}.mirror"]):
        off = f"git config {shlex.quote(f'remote.{name}.mirror')} false"
        all_others = f"git config --add {quoted} '+refs/*:refs/*'"
        return Mirror(remote=name, why="mirror = true", remedy=(off, all_others, exclude))
    specs = [value for key, value in pairs if key == f"remote.{name}.push"]
    excluded = any(_matches(spec[1:]) for spec in specs if spec.startswith("^"))
    wide = [spec for spec in specs if _matches(spec) and not (excluded and _is_plain(spec))]
    if not wide:
        return None
    remedy = [f"git config --fixed-value --unset {quoted} {shlex.quote(s)}" for s in wide if not _is_plain(s)]
    remedy += [exclude] if any(_is_plain(spec) for spec in wide) else []
    return Mirror(remote=name, why=" and ".join(f"push = {spec}" for spec in wide), remedy=tuple(remedy))


def _is_plain(spec: str) -> bool:
    """Return whether refs keep their names; an exclusion is not compared with the same name by every git otherwise."""
    source, _, target = spec.removeprefix("+").partition(":")
    return target in ("", source)


def _is_true(values: Sequence[str]) -> bool:
    return bool(values) and values[-1].lower() in _TRUE


def _matches(spec: str) -> bool:
    """Return whether the left side of a refspec takes in a checkpoint."""
    start, star, end = spec.removeprefix("+").partition(":")[0].partition("*")
    if not star:
        return start.startswith(PREFIX)
    return EXAMPLE.startswith(start) and EXAMPLE.endswith(end)


def _hidden(values: Iterable[str]) -> bool:
    """Return whether hideRefs covers the checkpoints; the last setting that names them counts."""
    hidden = False
    for value in values:
        name = value.removeprefix("!").removeprefix("^").rstrip("/")
        if f"{EXAMPLE}/".startswith(f"{name}/"):
            hidden = not value.startswith("!")
    return hidden
