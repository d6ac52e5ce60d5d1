"""Checkpoints that leave the repository: on purpose as a bundle, or by a remote that mirrors."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from hub.errors import TurnbackError
from tests.checkpoint.world import ENVIRONMENT, World


def fill(world: World) -> World:
    """Give a repository what conversions would spoil, and three checkpoints."""
    world.base()
    engine = world.engine()
    world.put(".gitattributes", "*.txt text eol=lf export-ignore\n")
    world.put("dir/crlf.txt", b"one\r\ntwo\n")
    world.put(b"caf\xe9", "odd name\n")
    world.link("link", "a.txt")
    os.chmod(world.path("u.txt"), 0o755)
    engine.capture("ses/1", labels={})
    engine.capture("ses/1a", labels={})
    world.put("dir/crlf.txt", b"three\r\n")
    engine.capture("ses/2", labels={})
    return world


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> World:
    return fill(World(tmp_path_factory.mktemp("once") / "w"))


@pytest.fixture
def w(once: World, tmp_path: Path) -> World:
    return once.copy(tmp_path / "w")


def code_of(call: object, *words: object, **options: object) -> str:
    with pytest.raises(TurnbackError) as raised:
        call(*words, **options)  # type: ignore[operator]
    return raised.value.code


def shell(lines: tuple[str, ...], folder: Path) -> None:
    subprocess.run(["sh", "-ec", "\n".join(lines)], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)


@pytest.mark.parametrize("algorithm", ["sha1", pytest.param("sha256", marks=pytest.mark.slow)])
def test_plain_git_reads_what_was_exported(tmp_path: Path, algorithm: str) -> None:
    w = fill(World(tmp_path / "w", f"--object-format={algorithm}"))
    engine = w.engine()
    w.put("dir/crlf.txt", b"one\r\ntwo\n")
    file = tmp_path / "check points.bundle"
    done = engine.export(["ses/1", "ses/1a", "ses/2"], file)
    assert (done.refs, done.bytes) == (("ses/1", "ses/1a", "ses/2"), file.stat().st_size)
    w.git("bundle", "verify", str(file))
    shell(done.commands, tmp_path)
    restored = World.at(tmp_path / "restored")
    assert {name: (kind, content) for name, (kind, _, content) in restored.files().items()} == {
        name: (kind, content) for name, (kind, _, content) in w.files().items()
    }
    assert os.access(restored.path("u.txt"), os.X_OK)
    assert restored.git("show", "refs/turnback/ses/2:worktree/dir/crlf.txt") == b"three\r\n"
    assert restored.git("show", "refs/turnback/ses/1:index/c.txt") == b"c staged\n"
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(("tmp", "lock"))] == []


def test_an_existing_file_is_overwritten_only_when_told_so(w: World, tmp_path: Path) -> None:
    engine = w.engine()
    file = tmp_path / "out.bundle"
    file.write_text("mine")
    assert code_of(engine.export, ["ses/1"], file) == "file_exists"
    assert file.read_text() == "mine"
    engine.export(["ses/1"], file, overwrite=True)
    w.git("bundle", "verify", str(file))


def test_what_cannot_be_exported_leaves_no_file(w: World, tmp_path: Path) -> None:
    engine = w.engine()
    before = sorted(os.listdir(tmp_path))
    assert code_of(engine.export, ["ses/1", "ses/9"], tmp_path / "x") == "checkpoint_not_found"
    assert code_of(engine.export, [], tmp_path / "x") == "bad_ref"
    assert code_of(engine.export, ["ses/1"], tmp_path / "none" / "x") == "not_a_directory"
    assert code_of(engine.export, ["ses/1"], Path("x")) == "not_a_directory"
    oid = w.git("rev-parse", "refs/turnback/ses/2:worktree/dir/crlf.txt").decode().strip()
    Path(w.root, ".git/objects", oid[:2], oid[2:]).unlink()
    assert code_of(engine.export, ["ses/2"], tmp_path / "x") == "export_failed"
    assert sorted(os.listdir(tmp_path)) == before
    assert engine.export(["ses/1"], tmp_path / "x").bytes > 0


def remote(w: World, tmp_path: Path, *settings: tuple[str, str]) -> World:
    bare = World.at(tmp_path / "remote.git")
    subprocess.run(["git", "init", "-q", "--bare", str(bare.root)], check=True, env=ENVIRONMENT)
    w.git("remote", "add", "far", str(bare.root))
    for key, value in settings:
        w.git("config", "--add", f"remote.far.{key}", value)
    return bare


PUBLISHING = [
    [("mirror", "true")],
    pytest.param([("push", "refs/*:refs/*")], marks=pytest.mark.slow),
    [("push", "+refs/*:refs/*")],
    pytest.param([("push", "refs/heads/*"), ("push", "refs/turnback/*:refs/x/*")], marks=pytest.mark.slow),
    [("push", "refs/heads/*"), ("push", "^refs/turnback/*"), ("push", "+refs/t*:refs/x/*")],
]


@pytest.mark.parametrize("settings", PUBLISHING)
def test_a_remote_that_would_publish_is_named_and_the_remedy_works(
    w: World, tmp_path: Path, settings: list[tuple[str, str]]
) -> None:
    """What is said is compared with what a real push does, before and after the lines that are offered."""
    engine = w.engine()
    far = remote(w, tmp_path, *settings)
    w.git("push", "-q", "far")
    assert far.git("for-each-ref", "refs/turnback", "refs/x") != b""
    [mirror] = engine.remotes_that_mirror().remotes
    assert mirror.remote == "far"
    shell(mirror.remedy, w.root)
    assert engine.remotes_that_mirror().remotes == ()
    again = remote_again(w, tmp_path)
    w.git("push", "-q", "far")
    assert again.git("for-each-ref", "refs/turnback", "refs/x") == b""
    assert b"refs/heads/main" in again.git("for-each-ref")


def remote_again(w: World, tmp_path: Path) -> World:
    fresh = World.at(tmp_path / "again.git")
    subprocess.run(["git", "init", "-q", "--bare", str(fresh.root)], check=True, env=ENVIRONMENT)
    w.git("config", "remote.far.url", str(fresh.root))
    return fresh


def test_other_remotes_are_not_named(w: World, tmp_path: Path) -> None:
    engine = w.engine()
    far = remote(w, tmp_path)
    for key, value in ((None, ""), ("mirror", "false"), ("push", "refs/heads/*"), ("push", ":"), ("push", "refs/x*")):
        if key is not None:
            w.git("config", "--add", f"remote.far.{key}", value)
        assert engine.remotes_that_mirror().remotes == ()
    w.git("push", "-q", "far", check=False)
    assert far.git("for-each-ref", "refs/turnback") == b""


def test_whoever_fetches_is_not_shown_hidden_refs(w: World) -> None:
    engine = w.engine()
    assert b"refs/turnback" in w.git("ls-remote", ".")
    told = engine.remotes_that_mirror()
    assert not told.hidden
    w.git(*shlex.split(told.hide)[1:])
    assert engine.remotes_that_mirror().hidden
    assert b"refs/turnback" not in w.git("ls-remote", ".")
    w.git("config", "--add", "transfer.hideRefs", "!refs/turnback")
    assert not engine.remotes_that_mirror().hidden
