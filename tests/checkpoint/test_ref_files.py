"""Refs that are written without git: whole, never over another one, and as git would have them."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hub.checkpoint.stores.ref_files import RefFiles
from hub.errors import TurnbackError
from tests.checkpoint.world import World


@pytest.fixture
def w(tmp_path: Path) -> World:
    world = World(tmp_path / "w")
    world.base()
    world.engine().capture("s/1", labels={})
    return world


def files_of(w: World) -> RefFiles:
    git_dir = os.fsencode(w.root / ".git")
    return RefFiles(git_dir, os.path.join(git_dir, b"turnback"))


def refs(w: World) -> dict[str, str]:
    rows = w.git("for-each-ref", "--format=%(refname) %(objectname)", "refs/turnback").decode().splitlines()
    return dict(row.split(" ") for row in rows)


def test_git_has_it_as_its_own(w: World) -> None:
    head = w.git("rev-parse", "HEAD").decode().strip()
    assert files_of(w).create("s/2", head)
    assert refs(w)["refs/turnback/s/2"] == head
    assert w.git("fsck", "--strict", "--no-dangling") == b""
    w.git("pack-refs", "--all")
    w.git("update-ref", "-d", "refs/turnback/s/2", head)
    assert "refs/turnback/s/2" not in refs(w)
    assert os.listdir(w.root / ".git/turnback").count("new-ref") == 0


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("name", ["s/1", "s", "s/1/2"])
def test_it_never_takes_the_place_of_another(w: World, name: str, packed: bool) -> None:
    """The same name, a name that is a directory of it, and the other way round: git would refuse them all."""
    if packed:
        w.git("pack-refs", "--all", "--prune")
    before = refs(w)
    head = w.git("rev-parse", "HEAD").decode().strip()
    assert not files_of(w).create(name, head)
    assert refs(w) == before
    with pytest.raises(TurnbackError):
        w.engine().capture(name, labels={})
    assert refs(w) == before


def test_a_ref_that_git_is_about_to_write_is_left_to_git(w: World) -> None:
    lock = w.root / ".git/refs/turnback/s/2.lock"
    lock.touch()
    assert not files_of(w).create("s/2", "0" * 40)
    assert sorted(refs(w)) == ["refs/turnback/s/1"]


def test_what_a_killed_process_left_is_no_way_into_its_ref(w: World) -> None:
    """Killed between making the ref and tidying up: the file that it was linked from is not written again."""
    before = refs(w)
    os.link(w.root / ".git/refs/turnback/s/1", w.root / ".git/turnback/new-ref")
    head = w.git("rev-parse", "HEAD").decode().strip()
    assert files_of(w).create("s/2", head)
    assert refs(w) == before | {"refs/turnback/s/2": head}


def test_of_many_at_once_one_makes_it(w: World) -> None:
    w.put("other", "x")
    w.commit()
    commits = w.git("rev-list", "HEAD").decode().split()
    rooms = [os.fsencode(w.root / ".git" / f"room{number}") for number in range(8)]
    for room in rooms:
        os.mkdir(room)
    with ThreadPoolExecutor(8) as pool:
        made = list(
            pool.map(
                lambda row: RefFiles(os.fsencode(w.root / ".git"), row[1]).create("s/9", commits[row[0] % 2]),
                enumerate(rooms),
            )
        )
    assert made.count(True) == 1
    assert refs(w)["refs/turnback/s/9"] == commits[made.index(True) % 2]


def test_in_a_shared_repository_git_writes_them(w: World) -> None:
    """Permissions of refs and their directories follow core.sharedRepository; git sees to that."""
    w.git("config", "core.sharedRepository", "group")
    w.engine().capture("t/1", labels={})
    status = os.stat(w.root / ".git/refs/turnback/t/1")
    assert status.st_mode & 0o060 == 0o060


def test_without_links_git_writes_them(w: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("this file system has no hard links")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", refused)
        taken = w.engine().capture("s/2", labels={})
    assert refs(w)["refs/turnback/s/2"] == taken.commit
