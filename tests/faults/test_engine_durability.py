"""What SIGKILL cannot show: contents and journal are on the disk before the first name of the worktree changes."""

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.checkpoint.world import World

CALLS = "trace=fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,symlinkat,mkdirat,fchmod"
SCRIPT = """
import sys, msgspec
from pathlib import Path
from hub.checkpoint.engine import Engine
from hub.checkpoint.values import Plan
plan = msgspec.json.decode(Path(sys.argv[2]).read_bytes(), type=Plan)
engine = Engine.open(Path(sys.argv[1]))
engine.apply(plan)
engine.finish(plan.txid)
"""


def traced(w: World, tmp_path: Path) -> tuple[str, list[str]]:
    """Return the id of a restore and the system calls by which it was carried out, in order."""
    plan = w.engine().plan("ses/1", undo_ref="ses/1u", labels={})
    (tmp_path / "plan").write_bytes(msgspec.json.encode(plan))
    trace = tmp_path / "trace"
    strace = ["strace", "-f", "-y", "-s", "4096", "-e", CALLS, "-o", str(trace)]
    command = [*strace, sys.executable, "-c", SCRIPT, str(w.root), str(tmp_path / "plan")]
    done = subprocess.run(command, capture_output=True, check=False, cwd=Path(__file__).parents[2])
    if b"PTRACE" in done.stderr or b"Operation not permitted" in done.stderr:
        pytest.skip("strace may not look at a process here")
    assert done.returncode == 0, done.stderr.decode()
    return plan.txid, [line for line in whole(trace.read_text().splitlines()) if " = -1 " not in line]


def whole(lines: list[str]) -> Iterator[str]:
    """Yield one line for each call: where it ended for a sync, where it began for any other."""
    begun: dict[str, str] = {}
    for line in lines:
        process = line.split(" ")[0]
        if line.endswith("<unfinished ...>"):
            begun[process] = line.removesuffix(" <unfinished ...>")
            if "sync(" not in line:
                yield begun[process]
        elif "resumed>" not in line:
            yield line
        elif "sync(" in begun[process]:
            yield begun[process] + line.split("resumed>")[1]


def positions(lines: list[str], pattern: str) -> list[int]:
    return [number for number, line in enumerate(lines) if re.search(pattern, line)]


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_contents_and_journal_are_synced_before_the_first_rename(tmp_path: Path) -> None:
    w = World(tmp_path / "w")
    w.base()
    w.engine().capture("ses/1", labels={})
    w.agent()
    txid, lines = traced(w, tmp_path)
    top = re.escape(str(w.root))
    folder = rf"{top}/\.git/turnback/txn/{txid}"
    changes = positions(lines, rf"(rename|link|mkdir)\w*\(.*<{top}(/(?!\.git)[^>]*)?>, \"[^/\"]*\"")
    index = positions(lines, rf"rename\w*\(.*\.git/index\.lock\", .*\"{top}/\.git/index\"")
    assert len(changes) >= 7
    assert len(index) == 1
    first, last = min(changes), max(*changes, *index)
    slots = {re.search(rf"<{folder}/slots/(\w+)>", lines[n]) for n in positions(lines[:first], r"f(data)?sync\(")}
    assert len({match.group(1) for match in slots if match}) >= 4, "contents"
    for what in (f"{folder}/slots", folder, f"{folder}/index.new", rf"{folder}/plan\.json\.tmp"):
        assert positions(lines[:first], rf"sync\(\d+<{what}>\)"), what
    journal = positions(lines[:first], r"rename\w*\(.*plan\.json\.tmp\".*plan\.json\"")
    assert len(journal) == 1
    assert positions(lines[journal[0] : first], rf"sync\(\d+<{folder}>\)")
    done = positions(lines, r"rename\w*\(.*plan\.json\".*done\.json\"")
    assert len(done) == 1
    for what in (top, f"{top}/dir", f"{top}/dir/sub", rf"{top}/\.git"):
        assert positions(lines[last : done[0]], rf"sync\(\d+<{what}>\)"), what
