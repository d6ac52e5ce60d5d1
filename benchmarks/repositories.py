"""Generated repositories for the benchmarks of checkpoints, and changes made to them as an agent makes them.

Invariant: the same size gives the same files, packed and with an index that has settled, as in a clone that has been
worked in; nothing of the person's own git settings takes part. A kept repository is used again.
"""

import os
import random
import shutil
import subprocess
import tempfile
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.processes import environment

SIZES = (3_800,)
ALL_SIZES = (3_800, 50_000, 200_000)
FILES_IN_A_FOLDER = 20
FOLDERS_IN_A_FOLDER = 25
SETTLE_S = 1.1
"""After this long git trusts the modification times that its index has."""
IDENTITY = {f"GIT_{who}_{what}": "bench@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
ISOLATION = {"GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
IGNORED = ("build/", "cache/")
DONE = "ready"
WORDS = [f"word{number}" for number in range(400)]


def git(top: Path, *words: str, stdin: bytes = b"", environ: dict[str, str] | None = None) -> bytes:
    """Run git in a repository and return what it prints. Raises CalledProcessError."""
    return subprocess.run(
        ["git", *words],
        cwd=top,
        env=environment() | IDENTITY | ISOLATION | (environ or {}),
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    ).stdout


class Generated:
    """A repository of so many tracked files, with a few ignored ones beside them."""

    def __init__(self, top: Path, files: int) -> None:
        self.top = top
        self.files = files

    def path(self, number: int) -> Path:
        """Return where the tracked file with this number lies."""
        return self.top / _name(number)

    def touched(self, count: int) -> list[Path]:
        """Return this many tracked files, spread over the whole tree."""
        step = max(self.files // count, 1)
        return [self.path((step * number + 7) % self.files) for number in range(count)]

    def loose(self, count: int) -> list[Path]:
        """Return the paths of this many untracked files, each beside tracked ones."""
        step = max(self.files // count, 1)
        return [self.path((step * number + 11) % self.files).with_suffix(".new") for number in range(count)]

    def edit(self, paths: Sequence[Path], word: str) -> None:
        """Give files another content, unlike all earlier ones when `word` is."""
        for path in paths:
            path.write_text(f"{word} {path.name}\n" + text_of(zlib.crc32(path.name.encode())))

    def forget_checkpoints(self) -> None:
        """Remove all that captures have left beside objects."""
        shutil.rmtree(self.top / ".git" / "turnback", ignore_errors=True)
        refs = git(self.top, "for-each-ref", "--format=delete %(refname)", "refs/turnback")
        git(self.top, "update-ref", "--stdin", stdin=refs)

    def reset(self) -> None:
        """Bring back the state of the one commit, without loose objects of earlier rounds."""
        self.forget_checkpoints()
        git(self.top, "reset", "-q", "--hard")
        git(self.top, "clean", "-q", "-f", "-d")
        git(self.top, "reflog", "expire", "--expire=now", "--all")
        git(self.top, "prune", "--expire=now")
        self.settle()

    def settle(self) -> None:
        """Let the index get older than the files it tells of."""
        time.sleep(SETTLE_S)
        git(self.top, "update-index", "-q", "--refresh", "--force-write-index")


def column(files: int) -> int:
    """Return which of three goals holds for so many files: up to 10 k, up to 100 k, above."""
    return 0 if files <= 10_000 else 1 if files <= 100_000 else 2


def text_of(seed: int) -> str:
    """Return 0.2 to 4 KB of text."""
    chance = random.Random(seed)
    return "\n".join(" ".join(chance.choices(WORDS, k=8)) for _ in range(chance.randint(3, 60))) + "\n"


def _name(number: int) -> str:
    folder = number // FILES_IN_A_FOLDER
    return f"part{folder // FOLDERS_IN_A_FOLDER}/unit{folder % FOLDERS_IN_A_FOLDER}/source{number}.py"


@contextmanager
def generated(files: int, kept: Path | None) -> Iterator[Generated]:
    """Hold a repository with this many tracked files. It is made below `kept` and stays there, if that is given."""
    if kept is not None:
        yield _made(kept.resolve() / f"files{files}", files)
        return
    with tempfile.TemporaryDirectory(prefix="turnback-benchmark-") as name:
        yield _made(Path(name).resolve() / f"files{files}", files)


def _made(top: Path, files: int) -> Generated:
    repository = Generated(top, files)
    if not (top / ".git" / DONE).exists():
        shutil.rmtree(top, ignore_errors=True)
        _write(repository)
        git(top, "init", "-q")
        git(top, "-c", "core.bigFileThreshold=1", "add", "-A")  # into one pack, not one file for each object
        git(top, "commit", "-q", "-m", "base")
        git(top, "repack", "-q", "-a", "-d")
        (top / ".git" / DONE).touch()
    repository.reset()
    return repository


def _write(repository: Generated) -> None:
    for number in range(repository.files):
        path = repository.path(number)
        if number % FILES_IN_A_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_text(f"NUMBER = {number}\n" + text_of(number))
    (repository.top / ".gitignore").write_text("".join(f"{name}\n" for name in IGNORED) + "*.log\n")
    for part in range(max(repository.files // 5000, 1)):
        for folder in IGNORED:
            path = repository.top / f"part{part}" / folder
            path.mkdir(parents=True)
            for number in range(50):
                (path / f"{number}.o").write_bytes(os.urandom(100))
