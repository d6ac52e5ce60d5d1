"""Random histories of a workspace with several units, against a plain copy of what each unit held.

Units come and go, are hidden by ignore rules, lie inside each other. One that is there at a checkpoint and at the
restore is as it was; one that came since is untouched; one that went stays away.
"""

import os
import random
import shutil
from pathlib import Path

import pytest

from hub.checkpoint.units import Units
from hub.checkpoint.values import Plan
from tests.checkpoint.world import World

PLACES = ("lib", "lib/deep/inner", "dir/tool", "vendor")
NAMES = ("a.txt", "b.txt", "dir/c.txt", "dir/sub/d.txt", "link", "src/run")
Content = dict[str, tuple[int, bytes]]


class History:
    """One workspace, what was captured of it, and which repository stands where (by a number of ours)."""

    def __init__(self, base: Path, seed: int, *, plain: bool) -> None:
        self.dice = random.Random(seed)
        self.top, self.other, self.stores = base / "w", base / "other", base / "home"
        self.plain = plain
        self.born: dict[Path, int] = {}
        self.made = 0
        self.saved: dict[str, dict[Path, tuple[int, Content, bytes]]] = {}
        for root in (self.top, self.other):
            root.mkdir(parents=True)
            self.create(root, git=root is self.other or not plain)
        self.log: list[str] = []

    def units(self) -> Units:
        return Units.open([self.top, self.other], shadow=self.stores)

    def create(self, place: Path, *, git: bool = True) -> None:
        if git:
            World(place)
        self.made += 1
        self.born[place] = self.made
        for name in NAMES[:3]:
            self.write(place, name)

    def write(self, place: Path, name: str) -> None:
        path = place / name
        if any((folder / ".git").exists() for folder in path.parents if folder != place and place in folder.parents):
            return  # it would be another unit's
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink():
            path.unlink()
        if name == "link":
            path.unlink(missing_ok=True)
            path.symlink_to(f"nowhere{self.dice.randrange(9)}")
            return
        path.write_text(f"{self.dice.randrange(1000)}\n" * self.dice.randrange(1, 4))
        path.chmod(self.dice.choice((0o644, 0o755, 0o600)))

    def step(self) -> None:
        """Do one thing that a person or an agent might do."""
        place = self.dice.choice(sorted(self.born))
        what = self.dice.choice(("write",) * 5 + ("delete", "delete", "stage", "commit", "come", "go", "hide"))
        self.log.append(f"{what} {place.relative_to(self.top.parent)}")
        if what == "write":
            self.write(place, self.dice.choice(NAMES))
        elif what == "delete":
            (place / self.dice.choice(NAMES)).unlink(missing_ok=True)
        elif what in ("stage", "commit") and (place / ".git").exists():
            self.stage(World.at(place), what)
        elif what == "come":
            self.come()
        elif what == "go" and place not in (self.top, self.other):
            self.go(place)
        elif what == "hide" and not (place / ".gitignore").exists():
            (place / ".gitignore").write_text(self.dice.choice(("vendor/\n", "/lib/\n", "*.log\n")))
        elif what == "hide":
            (place / ".gitignore").unlink()

    def stage(self, world: World, what: str) -> None:
        names = [name for name in NAMES if world.exists(name)]
        world.git("add", "--force", *names, check=False)
        if what == "commit":
            world.git("commit", "-q", "-m", "one", check=False)

    def come(self) -> None:
        place = self.top / self.dice.choice(PLACES)
        if place not in self.born and not place.exists():
            place.mkdir(parents=True)
            self.create(place)

    def go(self, place: Path) -> None:
        shutil.rmtree(place)
        self.born = {unit: number for unit, number in self.born.items() if unit != place and place not in unit.parents}

    def content(self, place: Path) -> Content:
        """Return every file and link of a unit, but what lies in repositories inside it."""
        found: Content = {}
        for folder, names, files in os.walk(place):
            names[:] = [name for name in names if name != ".git" and not (Path(folder, name) / ".git").exists()]
            for name in (*files, *(name for name in names if Path(folder, name).is_symlink())):
                path = Path(folder, name)
                bits = 0 if path.is_symlink() else path.stat().st_mode
                content = os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes()
                found[str(path.relative_to(place))] = bits, content
        return found

    def state(self) -> dict[Path, tuple[int, Content, bytes]]:
        return {
            place: (number, self.content(place), World.at(place).index() if (place / ".git").exists() else b"")
            for place, number in self.born.items()
        }

    def hidden(self, place: Path) -> bool:
        """Return whether a unit lies where its surroundings ignore it."""
        for outer in (unit for unit in self.born if unit in place.parents):
            rules = outer / ".gitignore"
            first = place.relative_to(outer).parts[0]
            if rules.exists() and rules.read_text().strip().strip("/") == first:
                return True
        return False

    def capture(self, ref: str) -> None:
        self.log.append(f"capture {ref}")
        state = {place: facts for place, facts in self.state().items() if not self.hidden(place)}
        self.units().capture(ref, labels={})
        self.saved[ref] = state

    def restore(self, ref: str, undo: str) -> None:
        """Restore, compare with what was captured, and note what undo must bring back."""
        self.log.append(f"restore {ref}")
        before = self.state()
        units = self.units()
        target = self.saved[ref]
        visible = {place for place in before if not self.hidden(place)}
        plan = units.plan(ref, undo_ref=undo, labels={})
        units.apply(plan)
        if self.dice.random() < 0.2:
            units.abort(plan.txid)
            assert self.state() == before, self.told(plan)
        else:
            units.finish(plan.txid)
            self.compare(before, target, plan)
        met = {place for place in before if place in visible or before[place][0] == target.get(place, (0,))[0]}
        self.saved[undo] = {place: before[place] for place in met}

    def compare(
        self,
        before: dict[Path, tuple[int, Content, bytes]],
        target: dict[Path, tuple[int, Content, bytes]],
        plan: Plan,
    ) -> None:
        now = self.state()
        assert now.keys() == before.keys(), self.told(plan)
        for place, facts in now.items():
            wanted = target[place] if place in target and target[place][0] == facts[0] else before[place]
            assert facts == wanted, f"{place}\n{self.told(plan)}"
        gone = {place for place, facts in target.items() if before.get(place, (0,))[0] != facts[0]}
        named = {row.path.rstrip("/") for row in plan.kept}
        for place in gone:
            if not any(outer in gone for outer in place.parents):
                assert str(place.relative_to(self.top)) in named, self.told(plan)

    def told(self, plan: Plan) -> str:
        return "\n".join((*self.log, *(f"kept {row.path}: {row.reason}" for row in plan.kept)))


def run(base: Path, seed: int) -> None:
    history = History(base, seed, plain=seed % 3 == 0)
    for number in range(6):
        history.capture(f"ses/{number}")
        for _ in range(history.dice.randrange(1, 7)):
            history.step()
        if history.dice.random() < 0.6:
            history.restore(history.dice.choice(sorted(history.saved)), f"ses/{number}u")


def run_some(tmp_path: Path, count: int) -> None:
    first = random.randrange(1 << 32)
    for seed in range(first, first + count):
        print(f"seed {seed}")
        run(tmp_path / str(seed), seed)
        shutil.rmtree(tmp_path / str(seed))


def test_random_histories_of_several_units(tmp_path: Path) -> None:
    run_some(tmp_path, 1)


@pytest.mark.slow
def test_many_random_histories_of_several_units(tmp_path: Path) -> None:
    run_some(tmp_path, 60)
