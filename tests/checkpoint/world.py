"""Real repositories for the tests of the checkpoint engine, and the exact state of one as a value to compare."""

import atexit
import functools
import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hub.checkpoint.engine import Engine
from hub.checkpoint.values import Plan

DATE = "2026-01-01T00:00:00Z"
ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    **{f"GIT_{who}_{what}": "Ada" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    **{f"GIT_{who}_DATE": DATE for who in ("AUTHOR", "COMMITTER")},
}
INTENT_TO_ADD = 0x20000000
OPERATION = ("MERGE_", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD", "BISECT_", "rebase-", "sequencer")
_ENTRY = re.compile(rb"([^\0]*)\0  ctime: .*?flags: ([0-9a-f]+)\n", re.DOTALL)


class World:
    """One repository with a worktree at `root`."""

    def __init__(self, root: Path, *init: str) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        if init in ((), ("--object-format=sha256",)) and not (root / ".git").exists():
            shutil.copytree(_template(init), root / ".git")
        else:
            self.git("init", "-q", "-b", "main", *init)

    @classmethod
    def at(cls, root: Path) -> "World":
        """Return the world of a repository that exists."""
        found = cls.__new__(cls)
        found.root = root
        return found

    def copy(self, root: Path) -> "World":
        """Return a copy: other inodes and change times, the same content, modes and modification times."""
        subprocess.run(["cp", "-a", "--", self.root, root], check=True)
        return World.at(root)

    def git(self, *words: str | bytes, stdin: bytes = b"", check: bool = True, cwd: str = ".") -> bytes:
        done = subprocess.run(
            ["git", *words], cwd=self.root / cwd, env=ENVIRONMENT, input=stdin, capture_output=True, check=False
        )
        if check and done.returncode:
            raise AssertionError(f"git {words!r}: {done.stderr.decode()}")
        return done.stdout

    def commit(self, message: str = "base") -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)

    def path(self, name: str | bytes) -> bytes:
        return os.path.join(os.fsencode(self.root), os.fsencode(name))

    def put(self, name: str | bytes, content: str | bytes = "", mode: int | None = None) -> None:
        path = self.path(name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            os.chmod(path, mode)

    def get(self, name: str | bytes) -> bytes:
        with open(self.path(name), "rb") as stream:
            return stream.read()

    def link(self, name: str, target: str) -> None:
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        os.symlink(os.fsencode(target), self.path(name))

    def remove(self, name: str | bytes) -> None:
        os.unlink(self.path(name))

    def exists(self, name: str | bytes) -> bool:
        return os.path.lexists(self.path(name))

    def base(self) -> None:
        """A few committed files: one modified, one deleted, one untracked, one staged and changed again."""
        for name in ("a.txt", "b.txt", "c.txt", "dir/d.txt", "dir/sub/e.txt"):
            self.put(name, f"{name} at base\n")
        self.commit()
        self.put("a.txt", "a modified by the user\n")
        self.remove("b.txt")
        self.put("u.txt", "untracked\n")
        self.put("c.txt", "c staged\n")
        self.git("add", "c.txt")
        self.put("c.txt", "c staged, then edited\n")

    def agent(self) -> None:
        """What an agent does: edits, deletes, creates, stages, changes a mode, renames."""
        self.put("a.txt", "a by the agent\n")
        self.put("b.txt", "b again\n")
        self.put("new/n.txt", "new\n")
        self.put("u.txt", "untracked, edited\n")
        if self.exists("dir/d.txt"):
            os.chmod(self.path("dir/d.txt"), 0o755)
        if self.exists("dir/sub/e.txt"):
            os.rename(self.path("dir/sub/e.txt"), self.path("dir/moved.txt"))
        self.git("add", "new/n.txt", "a.txt", check=False)

    def state(self) -> dict[str, Any]:
        """Return every byte, mode, link and directory of the worktree, and all of git's that a person would miss."""
        return {"files": self.files(), "index": self.index(), **self.surroundings()}

    def files(self) -> dict[bytes, tuple[str, int, bytes]]:
        top = os.fsencode(self.root)
        return {os.path.relpath(path, top): _entry(path) for path in self._paths()}

    def _paths(self) -> list[bytes]:
        found: list[bytes] = []
        top = os.fsencode(self.root)
        for folder, names, files in os.walk(top):
            if b".git" in names and folder == top:
                names.remove(b".git")
            found += [os.path.join(folder, name) for name in (*names, *files)]
        return found

    def blobs(self, algorithm: str = "sha1") -> set[str]:
        """Return the object ids of all readable bytes that are on disk in the worktree or were put aside."""
        aside = [os.path.join(folder, name) for folder, names, files in _rescued(self) for name in (*names, *files)]
        oids = (_oid(path, algorithm) for path in (*self._paths(), *aside))
        return {oid for oid in oids if oid}

    def index(self) -> bytes:
        """Return the entries with stages and flags, without stat data."""
        rows = _ENTRY.findall(self.git("ls-files", "-z", "--stage", "-v", "--debug"))
        return b"\0".join(name + (b" i" if int(flags, 16) & INTENT_TO_ADD else b"") for name, flags in rows)

    def git_dir(self) -> Path:
        """Return the git directory of the worktree."""
        path = self.root / ".git"
        return path if path.is_dir() else self.root / path.read_text().removeprefix("gitdir: ").rstrip("\n")

    def common_dir(self) -> Path:
        """Return the directory that linked worktrees share."""
        git_dir = self.git_dir()
        pointer = git_dir / "commondir"
        return (git_dir / pointer.read_text().rstrip("\n")).resolve() if pointer.exists() else git_dir

    def surroundings(self) -> dict[str, Any]:
        git_dir, common = self.git_dir(), self.common_dir()
        reflog = _texts(common, "logs")
        return {
            "head": (git_dir / "HEAD").read_bytes(),
            "refs": _refs(common),
            "stash": reflog.get("logs/refs/stash", b""),
            "reflog": reflog,
            "config": (common / "config").read_bytes(),
            "operation": _operation(git_dir),
            "locks": [path.name for path in git_dir.glob("*.lock")],
        }

    def engine(self, **options: Any) -> Engine:
        return Engine.open(self.root, **options)


@functools.cache
def _template(init: tuple[str, ...]) -> Path:
    """Return an empty git directory that git made, for copies."""
    folder = Path(tempfile.mkdtemp(prefix="turnback-test-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    command = ["git", "init", "-q", "-b", "main", "--template=", *init, folder]
    subprocess.run(command, env=ENVIRONMENT, check=True)
    return folder / ".git"


def _entry(path: bytes) -> tuple[str, int, bytes]:
    status = os.lstat(path)
    bits = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return "link", 0, os.readlink(path)
    if stat.S_ISDIR(status.st_mode):
        return "folder", bits, b""
    if not stat.S_ISREG(status.st_mode):
        return "special", bits, b""
    with open(path, "rb") as stream:
        return "file", bits, stream.read() if status.st_size < 1 << 20 else _digest(path)


def _digest(path: bytes) -> bytes:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").digest()


def _rescued(w: World) -> list[tuple[bytes, list[bytes], list[bytes]]]:
    return list(os.walk(os.path.join(os.fsencode(w.git_dir()), b"turnback", b"rescue")))


def _oid(path: bytes, algorithm: str) -> str | None:
    """Return git's id of a file's or link's bytes, None for what has none."""
    if os.path.islink(path):
        content = os.readlink(path)
    elif os.path.isfile(path):
        with open(path, "rb") as stream:
            content = stream.read()
    else:
        return None
    return hashlib.new(algorithm, b"blob %d\0" % len(content) + content).hexdigest()


def _refs(common: Path) -> dict[str, str]:
    """Return every ref but ours, as the files backend holds them."""
    packed = common / "packed-refs"
    lines = packed.read_text().splitlines() if packed.exists() else []
    found = {line.split(" ")[1]: line.split(" ")[0] for line in lines if line[0] not in "#^"}
    loose = [path for path in (common / "refs").rglob("*") if path.is_file()]
    found |= {str(path.relative_to(common)): path.read_text().rstrip("\n") for path in loose}
    return {name: oid for name, oid in found.items() if not name.startswith("refs/turnback/")}


def _operation(git_dir: Path) -> dict[str, bytes]:
    found = {}
    for path in sorted(git_dir.iterdir()):
        if path.name.startswith(OPERATION):
            found |= _texts(git_dir, path.name)
    return found


def _texts(base: Path, name: str) -> dict[str, bytes]:
    path = base / name
    files = [path] if path.is_file() else sorted(inner for inner in path.rglob("*") if inner.is_file())
    return {str(file.relative_to(base)): file.read_bytes() for file in files}


def restore(engine: Engine, target: str, undo: str) -> Plan:
    """Plan, apply and finish a restore; return its plan. No byte that was on disk may be lost by it."""
    w = World.at(engine.root)
    plan = engine.plan(target, undo_ref=undo, labels={})
    algorithm = "sha256" if len(plan.undo.commit) == 64 else "sha1"
    before = w.blobs(algorithm)
    engine.apply(plan)
    engine.finish(plan.txid)
    assert lost(w, before, plan.undo.commit, algorithm) == set(), "bytes that undo does not reach"
    return plan


def lost(w: World, before: set[str], undo: str, algorithm: str = "sha1") -> set[str]:
    """Return the blobs that were on disk and are neither there now, nor put aside, nor in the undo checkpoint."""
    missing = before - w.blobs(algorithm)
    if missing:
        rows = w.git("ls-tree", "-r", "-z", undo).decode("utf-8", "replace").split("\0")
        missing -= {row.split("\t")[0].split(" ")[2] for row in rows if row}
    return missing


def differing(old: dict[Any, Any], new: dict[Any, Any]) -> dict[Any, Any]:
    """Return what differs, for a readable failure."""
    return {key: (old.get(key), new.get(key)) for key in old.keys() | new.keys() if old.get(key) != new.get(key)}
