"""What people and agents do to a folder, at random. What makes no sense where it is done, does nothing.

`ACT` is one act of any kind, `FILE_ACT` one that leaves git alone; `act` carries them out.
"""

import os
import shutil
import stat
from collections.abc import Iterable

from hypothesis import strategies as st

from tests.checkpoint.world import World

PARTS = [b"a", b"b", b"dir", b"\xe9", b"x y", b".dot", b"-n", b"n\nl", b"x.log"]
OFTEN = [b"a", b"b", b"dir", b"dir/a", b"dir/b", b"dir/b/dir", b"x.log", b"dir/x.log", b"\xe9", b"x y/a"]
NAMES = st.one_of(st.sampled_from(OFTEN), st.lists(st.sampled_from(PARTS), min_size=1, max_size=3).map(b"/".join))
CONTENTS = st.one_of(st.binary(max_size=30), st.sampled_from([b"one\r\ntwo\r\n", b"one\ntwo\n", b"one\r\ntwo\n", b""]))
MODES = st.sampled_from([0o644, 0o600, 0o755, 0o750])
TARGETS = st.sampled_from([b"a", b"dir", b"/etc", b"nowhere"])
IGNORING = st.sampled_from([b".gitignore", b"dir/.gitignore", b".git/info/exclude"])
RULES = st.sampled_from([b"", b"*.log\n", b"dir/\n", b"b\n", b"*\n!a\n!.gitignore\n", b"x y\n/a/\n", b"**/dir/b\n"])
BRANCHES = st.sampled_from(["main", "one", "two"])
FLAGS = st.sampled_from(["skip-worktree", "no-skip-worktree", "assume-unchanged", "no-assume-unchanged"])
JOINS = st.sampled_from(["merge -q -m merged", "cherry-pick", "rebase -q"])
ENDS = st.sampled_from(["merge --abort", "cherry-pick --abort", "rebase --abort", "merge --quit", "commit -qam ended"])
STASHES = st.sampled_from(["push -q -u", "push -q", "pop -q --index", "pop -q", "drop -q"])

Act = tuple[object, ...]
Table = dict[str, tuple[st.SearchStrategy[object], ...]]

FILE_ACTS: Table = {
    "write": (NAMES, CONTENTS, MODES),
    "link": (NAMES, TARGETS),
    "folder": (NAMES, st.sampled_from([0o755, 0o700])),
    "remove": (NAMES,),
    "rename": (NAMES, NAMES),
    "chmod": (NAMES, MODES),
    "rewrite": (NAMES,),
    "replace": (NAMES, CONTENTS),
    "touch": (NAMES,),
    "stage": (),
    "stage_one": (NAMES,),
    "unstage": (NAMES,),
}
GIT_ACTS: Table = {
    "ignore": (IGNORING, RULES),
    "convert": (st.sampled_from(["true", "input", "false"]),),
    "announce": (NAMES,),
    "reset": (NAMES,),
    "flag": (st.sampled_from([b"a", b"b", b"dir/a"]), FLAGS),
    "commit": (st.sampled_from([["-a"], []]),),
    "switch": (BRANCHES, st.sampled_from([["-B"], []])),
    "join": (BRANCHES, JOINS),
    "end": (ENDS,),
    "stash": (STASHES,),
    "diverge": (JOINS, CONTENTS),
    "nest": (NAMES, st.booleans()),
    "unnest": (NAMES,),
    "clean_up": (),
}


def _acts(table: Table) -> st.SearchStrategy[Act]:
    return st.one_of(*(st.tuples(st.just(name), *words) for name, words in table.items()))


FILE_ACT = _acts(FILE_ACTS)
ACT = _acts(FILE_ACTS | GIT_ACTS)
CONFLICT = _acts({"diverge": GIT_ACTS["diverge"]})


def act(w: World, acts: Iterable[Act]) -> None:
    """Carry acts out."""
    for name, *words in acts:
        globals()[f"_{name}"](w, *words)


def _clear(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _make_way(w: World, name: bytes) -> bytes:
    """Remove what stands at a name or where its directories must be; make the directories."""
    parts = name.split(b"/")
    for depth in range(1, len(parts)):
        folder = w.path(b"/".join(parts[:depth]))
        if os.path.islink(folder) or not os.path.isdir(folder):
            _clear(folder)
            os.mkdir(folder)
    _clear(w.path(name))
    return w.path(name)


def _real(w: World, name: bytes) -> bool:
    """Return whether a name exists without a link on its way."""
    parts = name.split(b"/")
    folders = [w.path(b"/".join(parts[:depth])) for depth in range(1, len(parts))]
    return w.exists(name) and not any(os.path.islink(folder) for folder in folders)


def _write(w: World, name: bytes, content: bytes, mode: int) -> None:
    _make_way(w, name)
    w.put(name, content, mode)


def _link(w: World, name: bytes, target: bytes) -> None:
    os.symlink(target, _make_way(w, name))


def _folder(w: World, name: bytes, mode: int) -> None:
    path = _make_way(w, name)
    os.mkdir(path)
    os.chmod(path, mode)


def _remove(w: World, name: bytes) -> None:
    if _real(w, name):
        _clear(w.path(name))


def _rename(w: World, old: bytes, new: bytes) -> None:
    if _real(w, old) and not (new + b"/").startswith(old + b"/") and not old.startswith(new + b"/"):
        os.rename(w.path(old), _make_way(w, new))


def _chmod(w: World, name: bytes, mode: int) -> None:
    if _real(w, name) and not os.path.islink(w.path(name)):
        os.chmod(w.path(name), mode | stat.S_IXUSR if os.path.isdir(w.path(name)) else mode)


def _rewrite(w: World, name: bytes) -> None:
    """Other bytes of the same length, and the old modification time."""
    if _real(w, name) and os.path.isfile(w.path(name)) and not os.path.islink(w.path(name)):
        times = os.stat(w.path(name))
        w.put(name, bytes(255 - byte for byte in w.get(name)))
        os.utime(w.path(name), ns=(times.st_atime_ns, times.st_mtime_ns))


def _replace(w: World, name: bytes, content: bytes) -> None:
    """A new file, complete before it takes the name, as editors save."""
    if _real(w, name) and not os.path.isdir(w.path(name)):
        w.put(name + b"~", content, 0o644)
        os.rename(w.path(name + b"~"), w.path(name))


def _touch(w: World, name: bytes) -> None:
    if _real(w, name):
        os.utime(w.path(name), follow_symlinks=False)


def _nest(w: World, name: bytes, committed: bool) -> None:
    """A repository of its own, made where a folder is or may be."""
    if not (_real(w, name) and os.path.isdir(w.path(name)) and not os.path.islink(w.path(name))):
        os.mkdir(_make_way(w, name))
    if not w.exists(name + b"/.git"):
        nested = World(w.root / os.fsdecode(name))
        if committed:
            nested.git("commit", "-q", "--allow-empty", "-m", "nested")


def _unnest(w: World, name: bytes) -> None:
    if _real(w, name + b"/.git"):
        shutil.rmtree(w.path(name + b"/.git"))


def _git(w: World, *words: str | bytes) -> None:
    w.git("--literal-pathspecs", *words, check=False)


def _stage(w: World) -> None:
    _git(w, "add", "-A")


def _stage_one(w: World, name: bytes) -> None:
    _git(w, "add", "-A", "--", name)


def _unstage(w: World, name: bytes) -> None:
    _git(w, "rm", "-rq", "--cached", "--", name)


def _ignore(w: World, where: bytes, rules: bytes) -> None:
    _write(w, where, rules, 0o644)


def _convert(w: World, value: str) -> None:
    _git(w, "config", "core.autocrlf", value)


def _announce(w: World, name: bytes) -> None:
    _git(w, "add", "-N", "--", name)


def _reset(w: World, name: bytes) -> None:
    _git(w, "reset", "-q", "--", name)


def _flag(w: World, name: bytes, flag: str) -> None:
    _git(w, "update-index", f"--{flag}", "--", name)


def _commit(w: World, options: list[str]) -> None:
    _git(w, "commit", "-q", "--allow-empty", *options, "-m", "some")


def _switch(w: World, name: str, options: list[str]) -> None:
    _git(w, "checkout", "-q", *options, name)


def _join(w: World, name: str, how: str) -> None:
    _git(w, *how.split(" "), name)


def _diverge(w: World, how: str, content: bytes) -> None:
    """Two branches that change the same file differently, and are joined: mostly a conflict."""
    _git(w, "add", "-A")
    _git(w, "commit", "-q", "--allow-empty", "-m", "before")
    for switch, text in ((["-B", "theirs"], b"theirs\n" + content), (["-"], content + b"ours\n")):
        _git(w, "checkout", "-q", *switch)
        _write(w, b"a", text, 0o644)
        _git(w, "add", "-f", "a")
        _git(w, "commit", "-q", "-m", "diverged")
    _git(w, *how.split(" "), "theirs")


def _end(w: World, how: str) -> None:
    _git(w, *how.split(" "))


def _stash(w: World, how: str) -> None:
    _git(w, "stash", *how.split(" "))


def _clean_up(w: World) -> None:
    _git(w, "gc", "-q", "--prune=now")
