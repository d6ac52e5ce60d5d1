"""Two hubs, or two sessions, restore in one worktree at once: they take turns, and whoever cannot wait is told."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hub.checkpoint.engine import Engine
from hub.errors import ConflictError, RefusedError
from tests.checkpoint.world import World, differing

ROUNDS = 2
OWNERS = ("session one", "session two")


@pytest.fixture
def children() -> Iterator[list[int]]:
    pids: list[int] = []
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def in_child(act: Callable[[], None]) -> int:
    """Carry out an act in a forked process; return its pid. It ends with 0 when the act raised nothing."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        act()
        status = 0
    finally:
        if status:
            traceback.print_exc(file=sys.__stderr__)
        os._exit(status)


def restore_again_and_again(root: Path, target: str, owner: str) -> None:
    """Restore a target some times; when the other one came between plan and restore, plan anew."""
    engine = Engine.open(root, lock_wait_s=60.0, owner=owner)
    done = tries = 0
    while done < ROUNDS:
        tries += 1
        plan = engine.plan(f"{target}/0", undo_ref=f"{target}/{tries}u", labels={})
        try:
            engine.apply(plan)
        except ConflictError:
            continue
        engine.finish(plan.txid)
        done += 1


def test_c66_two_processes_restore_at_once_and_never_interleave(tmp_path: Path, children: list[int]) -> None:
    w = World(tmp_path / "w")
    w.base()
    engine = w.engine(lock_wait_s=60.0)
    states = [w.state()]
    digests = {engine.capture("one/0", labels={}).tree_digest}
    w.agent()
    states.append(w.state())
    digests.add(engine.capture("two/0", labels={}).tree_digest)
    for target, owner in zip(("one", "two"), OWNERS, strict=True):
        children.append(in_child(lambda t=target, o=owner: restore_again_and_again(w.root, t, o)))  # type: ignore[misc]
    seen, told, impatient = set(), set(), w.engine(lock_wait_s=0.0)
    while children:
        pid, status = os.waitpid(children[0], os.WNOHANG)
        if pid:
            assert os.waitstatus_to_exitcode(status) == 0
            children.pop(0)
        try:
            seen.add(impatient.capture(f"seen/{len(seen)}{len(told)}{os.urandom(4).hex()}", labels={}).tree_digest)
        except RefusedError as busy:
            told.add((busy.code, busy.message))
            time.sleep(0.01)
    assert seen <= digests
    assert {code for code, _ in told} == {"workspace_busy"}
    assert {message for _, message in told if not any(owner in message for owner in OWNERS)} == set()
    assert any(differing(state, w.state()) == {} for state in states)
