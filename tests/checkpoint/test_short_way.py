"""A capture that looks only where something may have changed finds what a survey of everything finds."""

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hub.checkpoint.capture import adding
from hub.checkpoint.capture.adding import Adder
from hub.checkpoint.capture.finding import Finder
from hub.checkpoint.engine import Engine
from tests.checkpoint.world import World, restore

STEPS = 25
FOLDERS = ("", "dir/", "dir/sub/", "new/", "new/deep/er/", "logs/", "build/")
NAMES = ("a.txt", "b.txt", "n.py", "x.log", "keep.o", "odd \n\"name'")


@pytest.fixture
def w(tmp_path: Path) -> World:
    world = World(tmp_path / "w")
    world.put(".gitignore", "build/\n*.log\n")
    world.base()
    return world


class Steps:
    """Random edits of one world, each legal in every state."""

    def __init__(self, w: World, seed: int) -> None:
        self.w = w
        self.chance = random.Random(seed)

    def name(self) -> str:
        return self.chance.choice(FOLDERS) + self.chance.choice(NAMES)

    def any(self) -> None:
        step = self.chance.choice(
            [self.put, self.put, self.replace, self.remove, self.chmod, self.rules, self.stage, self.unstage,
             self.move, self.link, self.folder, self.nested, self.exclude, self.commit, self.fifo, self.tree]
        )  # fmt: skip
        step()

    def put(self) -> None:
        name = self.name()
        self._clear(name)
        self.w.put(name, f"{self.chance.random()}\n")

    def replace(self) -> None:
        """As editors save: a new file takes the name, of equal length and time."""
        name = self.name()
        if self.w.exists(name) and os.path.isfile(self.w.path(name)) and not os.path.islink(self.w.path(name)):
            status = os.stat(self.w.path(name))
            content = bytes(self.chance.randrange(97, 122) for _ in range(status.st_size))
            self.w.put(name + ".tmp", content)
            os.utime(self.w.path(name + ".tmp"), ns=(status.st_atime_ns, status.st_mtime_ns))
            os.rename(self.w.path(name + ".tmp"), self.w.path(name))

    def remove(self) -> None:
        self._remove(self.w.path(self.name()))

    def chmod(self) -> None:
        name = self.chance.choice([self.name(), self.chance.choice(FOLDERS).rstrip("/")])
        if name and self.w.exists(name) and not os.path.islink(self.w.path(name)):
            bits = (0o755, 0o700) if os.path.isdir(self.w.path(name)) else (0o644, 0o600, 0o755)
            os.chmod(self.w.path(name), self.chance.choice(bits))

    def rules(self) -> None:
        folder = self.chance.choice(["", "dir/", "new/"])
        if folder == "" or os.path.isdir(self.w.path(folder)):
            self.w.put(
                folder + ".gitignore", self.chance.choice(["", "*.log\n", "build/\n", "n.py\nsub/\n", "!x.log\n"])
            )

    def exclude(self) -> None:
        self.w.put(".git/info/exclude", self.chance.choice(["", "b.txt\n", "deep/\n"]))

    def stage(self) -> None:
        self.w.git("add", "-f", "--", self.name(), check=False)

    def unstage(self) -> None:
        self.w.git("rm", "-q", "--cached", "-f", "--", self.name(), check=False)

    def commit(self) -> None:
        self.w.git("commit", "-q", "--allow-empty", "-m", "step")

    def move(self) -> None:
        old, new = self.w.path(self.chance.choice(FOLDERS[1:])), self.w.path(self.chance.choice(FOLDERS[1:]))
        free = not os.path.lexists(new) and os.path.isdir(os.path.dirname(new.rstrip(b"/")))
        if free and os.path.isdir(old) and not new.startswith(old):
            os.rename(old, new.rstrip(b"/"))

    def link(self) -> None:
        name = self.name()
        self._clear(name)
        self._remove(self.w.path(name))
        self.w.link(name, self.chance.choice(["a.txt", "nowhere", "dir"]))

    def folder(self) -> None:
        name = self.name()
        self._clear(name)
        self._remove(self.w.path(name))
        os.makedirs(self.w.path(name + "/empty"))

    def tree(self) -> None:
        self._remove(self.w.path(self.chance.choice(FOLDERS[1:]).rstrip("/")))

    def fifo(self) -> None:
        name = self.name()
        self._clear(name)
        self._remove(self.w.path(name))
        os.makedirs(os.path.dirname(self.w.path(name)), exist_ok=True)
        os.mkfifo(self.w.path(name))

    def nested(self) -> None:
        folder = self.chance.choice(["new/", "dir/sub/", "nest/"])
        path = self.w.path(folder + ".git")
        if os.path.isdir(path):
            shutil.rmtree(path)
        elif os.path.isdir(self.w.path(folder)):
            World(self.w.root / folder)

    def _clear(self, name: str) -> None:
        """Take away what stands where a directory must be, and a directory where the file must be."""
        parts = name.split("/")
        for depth in range(1, len(parts)):
            path = self.w.path("/".join(parts[:depth]))
            if os.path.lexists(path) and (os.path.islink(path) or not os.path.isdir(path)):
                os.unlink(path)
        if not os.path.isfile(self.w.path(name)) or os.path.islink(self.w.path(name)):
            self._remove(self.w.path(name))

    def _remove(self, path: bytes) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        elif os.path.lexists(path):
            os.unlink(path)


def same_as_anew(w: World, engine: Engine, number: int) -> tuple[object, object]:
    """Return what a capture says, and what one says that knows nothing."""
    taken = engine.capture(f"s/{number}", labels={})
    room = Path(w.root, ".git/turnback")
    aside = room.with_name("aside")
    shutil.copytree(room, aside)
    for name in ("index", "known"):
        (room / name).unlink()
    anew = w.engine().capture(f"n/{number}", labels={})
    shutil.rmtree(room)
    aside.rename(room)
    return (taken.tree_digest, taken.files, taken.uncaptured), (anew.tree_digest, anew.files, anew.uncaptured)


@pytest.mark.parametrize(("seed", "beside"), [(1, 200), (2, 2), (3, 6), (4, 0)])
def test_the_same_as_a_survey_of_everything(w: World, seed: int, beside: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "BESIDE", beside)
    compare(w, seed, STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 120))
def test_the_same_over_long_histories(w: World, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adding, "BESIDE", (0, 2, 6, 200)[seed % 4])
    compare(w, seed, 120)


def compare(w: World, seed: int, steps: int) -> None:
    edits, engine = Steps(w, seed), w.engine()
    engine.capture("s/first", labels={})
    done = []
    for number in range(steps):
        for _ in range(edits.chance.randrange(1, 4)):
            edits.any()
        short, anew = same_as_anew(w, engine, number)
        done.append(number)
        assert short == anew, f"seed {seed}, after {done}"


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way each capture took."""
    taken: list[str] = []
    short, long = Finder.what_changed, Finder.everything

    def told(name: str, way: Callable[..., object]) -> Callable[..., object]:
        def wrapper(*words: object) -> object:
            found = way(*words)
            taken.append(name if found is not None else "doubt")
            return found

        return wrapper

    monkeypatch.setattr(Finder, "what_changed", told("short", short))
    monkeypatch.setattr(Finder, "everything", told("long", long))
    return taken


def test_edits_take_the_short_way(w: World, ways: list[str]) -> None:
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("a.txt", "edited\n")
    w.put("new/deep/file.txt", "new\n")
    w.put("dir/x.log", "ignored\n")
    w.remove("dir/d.txt")
    engine.capture("s/2", labels={})
    w.git("add", "new", "a.txt")
    w.git("commit", "-q", "-m", "work")
    engine.capture("s/3", labels={})
    assert ways == ["long", "short", "short"]


def test_ignore_rules_that_change_take_the_long_way(w: World, ways: list[str]) -> None:
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("dir/.gitignore", "e.txt\n")
    w.put(".git/info/exclude", "u.txt\n")
    engine.capture("s/2", labels={})
    assert ways[-1] == "long"


def test_a_damaged_memory_is_no_harm(w: World, ways: list[str]) -> None:
    first = w.engine().capture("s/1", labels={})
    Path(w.root, ".git/turnback/known").write_bytes(b"\xff damaged")
    assert w.engine().capture("s/2", labels={}).tree_digest == first.tree_digest
    Path(w.root, ".git/turnback/index").write_bytes(b"DIRC damaged")
    assert w.engine().capture("s/3", labels={}).tree_digest == first.tree_digest
    assert ways[0] == ways[1] == ways[-1] == "long"


def test_an_idle_capture_writes_nothing_but_its_ref(w: World) -> None:
    engine = w.engine()
    engine.capture("s/1", labels={})
    engine.capture("s/2", labels={})
    before = stamps(w)
    engine.capture("s/3", labels={})
    written = {path for path, stamp in stamps(w).items() if before.get(path) != stamp}
    written -= {path for path in written if "sharedindex" in path and before[path][0] == stamps(w)[path][0]}  # its time
    room = ".git/turnback/"
    assert {path for path in written if not path.startswith(room)} == {".git/refs/turnback/s/3"}
    assert written & {f"{room}index", f"{room}user-index"} == set()
    assert not any(path.startswith((f"{room}incoming/", f"{room}side.git/")) for path in written)


def test_a_restore_touches_exactly_its_paths(w: World) -> None:
    """Modification time, inode and status time of all other files stay."""
    for number in range(200):
        w.put(f"many/part{number % 10}/file{number}.txt", f"{number}\n")
    engine = w.engine()
    engine.capture("s/1", labels={})
    mine = [f"many/part{number % 10}/file{number}.txt" for number in range(0, 200, 10)]
    for name in mine[:15]:
        w.put(name, "by the agent\n")
    for name in mine[15:]:
        w.remove(name)
    before = stamps(w, w.root)
    plan = restore(engine, "s/1", "s/1u")
    assert {step.path for step in (*plan.writes, *plan.creations)} == set(mine)
    touched = {path for path, stamp in stamps(w, w.root).items() if before.get(path) != stamp}
    assert {path for path in touched if not path.startswith(".git/")} == set(mine)


def stamps(w: World, top: Path | None = None) -> dict[str, tuple[int, ...]]:
    """Return inode and times of every file below the worktree's top."""
    found = {}
    for folder, _, names in os.walk(top or w.root):
        for name in names:
            status = os.lstat(os.path.join(folder, name))
            path = os.path.relpath(os.path.join(folder, name), w.root)
            found[path] = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
    return found


def test_a_file_that_was_changing_and_then_goes(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """C45: it is captured as it was read; when it has gone, the next capture does not have it."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("dir/log.txt", "being written\n")
    with monkeypatch.context() as patch:
        patch.setattr(
            Adder, "_moved", lambda _, before: {name: before[name] for name in before if name == b"dir/log.txt"}
        )
        second = engine.capture("s/2", labels={})
    assert [(row.path, row.why) for row in second.uncaptured] == [("dir/log.txt", "changing")]
    assert w.git("show", f"{second.commit}:worktree/dir/log.txt") == b"being written\n"
    w.remove("dir/log.txt")
    third = engine.capture("s/3", labels={})
    assert (third.files, third.uncaptured) == (second.files - 1, ())
    assert b"log.txt" not in w.git("ls-tree", "-r", "--name-only", f"{third.commit}:worktree")


def test_few_changes_leave_the_private_index_to_itself(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was read beside it is right whatever becomes of it, and git is told of all when it is many."""
    monkeypatch.setattr(adding, "BESIDE", 8)
    engine, index = w.engine(), Path(w.root, ".git/turnback/index")
    engine.capture("s/1", labels={})
    before = index.stat()
    w.put("a.txt", "edited\n")
    w.put("new.txt", "new\n")
    w.remove("dir/d.txt")
    taken = engine.capture("s/2", labels={})
    assert listed(w, taken.commit) == captured(w)
    assert index.stat() == before
    w.remove("new.txt")
    w.put("dir/d.txt", "again\n")
    os.utime(w.path("a.txt"), ns=(1, 1))
    again = w.engine().capture("s/3", labels={})  # another process knows of them, too
    assert listed(w, again.commit) == captured(w)
    assert index.stat() == before
    for number in range(6):
        w.put(f"more{number}.txt", "more\n")
    many = engine.capture("s/4", labels={})
    assert index.stat() != before
    assert listed(w, many.commit) == captured(w)
    assert engine.capture("s/5", labels={}).commit == many.commit
    Path(w.root, ".git/turnback/known").unlink()
    assert w.engine().capture("s/6", labels={}).tree_digest == many.tree_digest


def test_what_is_too_large_all_of_a_sudden_leaves_the_tree(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was captured beside the index, then grew; when git is told of all, it does not come back."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("new.txt", "small\n")
    engine.capture("s/2", labels={})
    monkeypatch.setattr("hub.checkpoint.capture.worktree.FILE_BYTES", 100)
    w.put("new.txt", "large" * 100)
    third = engine.capture("s/3", labels={})
    assert [(row.path, row.why) for row in third.uncaptured] == [("new.txt", "too_large")]
    assert b"new.txt" not in listed(w, third.commit)
    monkeypatch.setattr(adding, "BESIDE", 0)
    w.put("a.txt", "edited\n")
    fourth = engine.capture("s/4", labels={})
    assert b"new.txt" not in listed(w, fourth.commit)
    assert listed(w, fourth.commit) == captured(w) - {b"new.txt"}


def test_a_change_that_no_time_tells_is_seen(w: World) -> None:
    """C45: edited again within the same tick, to the same length, right after it was read beside the index."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    for number in range(40):
        w.put("a.txt", f"edit {number:02}\n")
        taken = engine.capture(f"s/{number + 2}", labels={})
        assert w.git("show", f"{taken.commit}:worktree/a.txt") == f"edit {number:02}\n".encode()


def listed(w: World, commit: str) -> set[bytes]:
    return set(w.git("ls-tree", "-r", "-z", "--name-only", f"{commit}:worktree").split(b"\0")[:-1])


def captured(w: World) -> set[bytes]:
    """Return what git itself takes for the files of a worktree."""
    out = w.git("ls-files", "-z", "--cached", "--others", "--exclude-standard").split(b"\0")[:-1]
    return {name for name in out if w.exists(name)}


def test_what_a_machine_left_that_stopped_is_not_trusted(w: World) -> None:
    """Objects that no sync has reached may be torn: they are dropped, and every file is read anew."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("a.txt", "previewed, not captured\n")
    engine.preview("s/1")
    incoming = Path(w.root, ".git/turnback/incoming")
    left = [path for path in incoming.rglob("*") if path.suffix in (".pack", ".idx")]
    assert len(left) == 2
    for path in left:
        path.write_bytes(b"")
    (incoming / "boot").write_text("another boot\n")
    taken = w.engine().capture("s/2", labels={})
    assert w.git("show", f"{taken.commit}:worktree/a.txt") == b"previewed, not captured\n"
    assert w.git("fsck", "--full", "--strict") == b""
    assert [path for path in incoming.rglob("*") if path.is_file()] == [incoming / "boot"]


def test_what_a_killed_process_began_to_write_is_swept(w: World) -> None:
    engine = w.engine()
    engine.capture("s/1", labels={})
    unfinished = Path(w.root, ".git/objects/ab", "tmp_obj_" + "0" * 38)
    unfinished.parent.mkdir(exist_ok=True)
    unfinished.write_bytes(b"half")
    Path(w.root, ".git/turnback/incoming/settling").touch()
    engine.capture("s/2", labels={})
    assert not unfinished.exists()


def test_new_objects_are_those_that_git_would_make(w: World) -> None:
    """Contents and trees made ahead of git: git finds them sound, and its own tree is the same."""
    engine = w.engine()
    engine.capture("s/1", labels={})
    w.put("dir/new/deep.txt", "deep\n", 0o755)
    w.put(b"caf\xe9", "name\n")
    w.link("dir/link", "a.txt")
    w.remove("a.txt")
    w.put("a.txt/now/a/folder", "x\n")
    shutil.rmtree(w.path("dir/sub"))
    taken = engine.capture("s/2", labels={})
    assert w.git("fsck", "--full", "--strict") == b""
    w.git("add", "-A")
    assert w.git("write-tree") == w.git("rev-parse", f"{taken.commit}:worktree")


def test_a_name_that_looks_like_an_option_is_read_again_and_removed(tmp_path: Path) -> None:
    """Changes within one second, and a removal beside an addition, are told to git as words of its command line."""
    w = World(tmp_path / "repo")
    w.put("--stdin", "1\n")
    w.put("-x", "1\n")
    engine = Engine.open(w.root)
    engine.capture("ses/1", labels={})
    w.put("--stdin", "2\n")
    os.unlink(w.path("-x"))
    engine.capture("ses/2", labels={})
    w.put("--stdin", "3\n")
    engine.capture("ses/3", labels={})
    changes = {change.path: change.kind for change in engine.diff("ses/1", "ses/2")}
    assert changes == {"--stdin": "modified", "-x": "deleted"}
    assert [change.path for change in engine.diff("ses/2", "ses/3")] == ["--stdin"]
