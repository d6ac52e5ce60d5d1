"""The benchmarks of checkpoints run in a small repository and tell every row. No time is asserted."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from benchmarks.repositories import generated, git

ROOT = Path(__file__).parents[1]
CAPTURES = {"status", "dirty", "idle", "first", "stash", "shadow", "shadow_idle", "rss"}
RESTORES = {"status", "restore", "plan", "apply", "finish", "preview", "stash", "shadow"}


@pytest.mark.parametrize(
    ("name", "words", "keys"),
    [
        ("bench_checkpoint", ["--runs", "1", "--first-runs", "1"], CAPTURES),
        ("bench_restore", ["--runs", "1"], RESTORES),
    ],
)
def test_every_row_is_told(name: str, words: list[str], keys: set[str]) -> None:
    command = [sys.executable, "-m", f"benchmarks.{name}", *words, "--files", "200", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = msgspec.json.decode(done.stdout)
    assert {row["key"] for row in told["rows"]} == {f"{key}_0.2k" for key in keys}
    assert all(
        row["yardstick"] == "status_0.2k" for row in told["rows"] if row["key"] not in ("status_0.2k", "rss_0.2k")
    )


def test_a_kept_repository_is_used_again_as_it_was_made(tmp_path: Path) -> None:
    with generated(60, tmp_path) as first:
        made = git(first.top, "rev-parse", "HEAD")
        first.edit([*first.touched(3), *first.loose(3)], "edited")
        assert len(git(first.top, "status", "--porcelain", "-uall").splitlines()) == 6
    with generated(60, tmp_path) as again:
        assert (again.top, git(again.top, "rev-parse", "HEAD")) == (first.top, made)
        assert git(again.top, "status", "--porcelain", "-uall") == b""
