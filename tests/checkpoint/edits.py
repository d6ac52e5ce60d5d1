"""Edits that a person or an agent makes, each on whatever state it finds; what makes no sense there does nothing."""

import os
import shutil
import stat
from collections.abc import Callable

from tests.checkpoint.world import World

PARTS = [b"a", b"b", b"dir", b"\xe9", b"x y", b".dot", b"-n"]
MODES = [0o644, 0o600, 0o755, 0o750]
TARGETS = [b"a", b"dir", b"/etc", b"nowhere"]


def clear(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def make_way(w: World, name: bytes) -> bytes:
    """Remove what stands at a name or where its directories must be; make the directories."""
    parts = name.split(b"/")
    for depth in range(1, len(parts)):
        folder = w.path(b"/".join(parts[:depth]))
        if os.path.islink(folder) or not os.path.isdir(folder):
            clear(folder)
            os.mkdir(folder)
    clear(w.path(name))
    return w.path(name)


def _real(w: World, name: bytes) -> bool:
    """Return whether a name exists without a link on its way."""
    parts = name.split(b"/")
    folders = [w.path(b"/".join(parts[:depth])) for depth in range(1, len(parts))]
    return w.exists(name) and not any(os.path.islink(folder) for folder in folders)


def write(w: World, name: bytes, content: bytes, mode: int) -> None:
    make_way(w, name)
    w.put(name, content, mode)


def link(w: World, name: bytes, target: bytes) -> None:
    os.symlink(target, make_way(w, name))


def folder(w: World, name: bytes, mode: int) -> None:
    path = make_way(w, name)
    os.mkdir(path)
    os.chmod(path, mode)


def remove(w: World, name: bytes) -> None:
    if _real(w, name):
        clear(w.path(name))


def rename(w: World, old: bytes, new: bytes) -> None:
    if _real(w, old) and not (new + b"/").startswith(old + b"/") and not old.startswith(new + b"/"):
        os.rename(w.path(old), make_way(w, new))


def chmod(w: World, name: bytes, mode: int) -> None:
    if _real(w, name) and not os.path.islink(w.path(name)):
        os.chmod(w.path(name), mode | stat.S_IXUSR if os.path.isdir(w.path(name)) else mode)


def stage(w: World) -> None:
    w.git("add", "-A")


def stage_one(w: World, name: bytes) -> None:
    w.git("--literal-pathspecs", "add", "-A", "--", name, check=False)


def unstage(w: World, name: bytes) -> None:
    w.git("--literal-pathspecs", "rm", "-rq", "--cached", "--", name, check=False)


ACTS: dict[str, Callable[..., None]] = {
    act.__name__: act for act in (write, link, folder, remove, rename, chmod, stage, stage_one, unstage)
}


def edit(w: World, edits: list[tuple[object, ...]]) -> None:
    for act, *words in edits:
        ACTS[str(act)](w, *words)
