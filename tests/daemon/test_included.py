"""What `checkpoint.include` may say, and which files it names."""

from pathlib import Path

import pytest

from hub.daemon.included import included
from hub.errors import UsageError
from hub.settings import parse_config


def test_patterns_name_files_of_the_worktree_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    for path in (
        root / ".env.local",
        root / "sub/.env.test",
        root / "keep/deep/file",
        root / ".git/config",
        outside / "x",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("text")
    (root / "link").symlink_to(outside)
    (root / "keep" / "dangling").symlink_to("nowhere")
    assert included(root, [".env.local", "missing"]) == [".env.local"]
    assert included(root, ["**/.env.*"]) == [".env.local", "sub/.env.test"]
    assert included(root, ["keep"]) == ["keep/dangling", "keep/deep/file"]
    assert included(root, ["link", "link/x", "link/**"]) == ["link"]
    assert included(root, [".git", ".git/*"]) == []


@pytest.mark.parametrize("pattern", ["/etc/passwd", "../x", "a/../../x", "a/..", ""])
def test_a_pattern_that_leads_out_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_config(f"[checkpoint]\ninclude = ['{pattern}']\n", Path("config.toml"))
    assert caught.value.code == "config_invalid"
