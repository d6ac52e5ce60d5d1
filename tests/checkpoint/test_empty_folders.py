"""Empty directories that a restore removes and makes: by whom else they were made or removed, and with which bits."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from hub.checkpoint.restoring.journal import Operation
from hub.checkpoint.restoring.moves import Ground, do, undo

NOBODY = 65534


def as_nobody(act: Callable[[], None]) -> None:
    """Do something in a process without privileges; raise AssertionError if it fails there."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            act()
            status = 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="takes privileges to give them up")
@pytest.mark.parametrize("bits", [0o555, 0o500, 0o755, 0o000])
def test_one_that_its_own_bits_keep_in_place_goes_and_comes_back(bits: int) -> None:
    """Its owner may remove it, but not rename it to another directory without the right to write in it."""
    with tempfile.TemporaryDirectory() as name:  # where anybody may go, unlike pytest's own
        goes_and_comes_back(Path(name), bits)


def goes_and_comes_back(folder: Path, bits: int) -> None:
    root, slots = folder / "root", folder / "slots"
    for place in (folder, root, slots, root / "empty"):
        place.mkdir(exist_ok=True)
        os.chown(place, NOBODY, NOBODY)
    (root / "empty").chmod(bits)
    op = Operation(kind="rmdir", name=b"empty", slot=b"r0", old_mode=bits)
    readable = bits & 0o400

    def act() -> None:
        ground = Ground(os.open(root, os.O_RDONLY), os.open(slots, os.O_RDONLY), "sha1")
        assert do(ground, op)
        assert (root / "empty").exists() != bool(readable), "one that cannot be looked into stays"
        assert not readable or (slots / "r0").stat().st_mode & 0o7777 == bits
        assert undo(ground, op)
        assert (root / "empty").stat().st_mode & 0o7777 == bits

    as_nobody(act)
