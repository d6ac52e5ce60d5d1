"""`hubctl` and a real hub: what a person does with checkpoints, on a real repository."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import demo_repository as made
from tests.cli.conftest import Call
from tests.cli.given import hubctl, lines
from tests.cli.terminal import Terminal


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One home, and so one hub, for all tests of this file."""
    folder = tmp_path_factory.mktemp("real") / "home"
    yield folder
    hubctl(folder, "stop", "--deadline", "0")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository, which is the current directory."""
    made.make(tmp_path / "shop")
    monkeypatch.chdir(tmp_path / "shop")
    return tmp_path / "shop"


def told(call: Call, *arguments: str) -> Any:
    """Return what a command prints as JSON; it must go well."""
    said = call(*arguments, "--json")
    assert said.code == 0, said.err
    return said.json


def works(call: Call, repository: Path) -> str:
    """Let a scripted model write a file and run a command; return the session."""
    calls = [
        {"name": "editor", "arguments": {"path": "made.txt", "new_text": "made\n"}},
        {"name": "run_commands", "arguments": {"commands": ["echo sent >> ../outside"]}},
    ]
    model = made.write_scenario(repository.parent / "turns.yaml", [{"tool_calls": calls}, {"text": "Done."}])
    said = call("run", "x", "--model", model, "--auto-approve", "all", "--json")
    assert said.code == 0, said.err
    return str(lines(said.out)[-1]["session_id"])


def test_a_plan_is_shown_agreed_to_and_taken_back_and_repeated(home: Path, call: Call, repository: Path) -> None:
    session = works(call, repository)
    (repository / "mine.txt").write_text("by hand")
    with Terminal(home, "checkpoint", "restore", "--session", session, "--reach", "session") as screen:
        for words in ("Would turn back", "Delete (1)", "made.txt", "this session", "Keep as they are (1)", "mine.txt"):
            screen.expect(words)
        screen.expect("Not turned back")
        screen.expect("echo sent")
        screen.expect("[y/N]")
        assert (repository / "made.txt").exists()
        screen.type("y")
        screen.expect("Turned back")
        screen.expect("To take it back: hubctl checkpoint undo")
        assert screen.ends() == 0
        assert "undone" not in screen.seen
    assert not (repository / "made.txt").exists()
    assert (repository / "mine.txt").read_text() == "by hand"
    assert (repository.parent / "outside").read_text() == "sent\n"
    assert told(call, "checkpoint", "undo")["created"] == ["made.txt"]
    assert told(call, "checkpoint", "redo")["deleted"] == ["made.txt"]
    assert not (repository / "made.txt").exists()


def test_only_the_named_paths_go_back(call: Call, repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = told(call, "checkpoint", "create")
    assert {"id", "ref", "commit", "files", "uncaptured"} <= set(saved)
    for name in ("shop/cart.py", "shop/legacy.py", "notes.txt"):
        (repository / name).write_text("changed")
    monkeypatch.chdir(repository / "shop")
    options = ("--paths", "cart.py", "--paths", "../notes.txt")
    planned = told(call, "checkpoint", "restore", saved["id"], *options, "--dry-run")
    assert planned["dry_run"] is True
    done = told(call, "checkpoint", "restore", saved["id"], *options)
    assert sorted(done["restored"]) == sorted(planned["restored"]) == ["notes.txt", "shop/cart.py"]
    shape = {"restored", "deleted", "kept", "conflicts", "head_moved", "effects", "undo", "dry_run"}
    assert shape <= set(planned) & set(done)
    assert (repository / "shop/legacy.py").read_text() == "changed"
    assert call("checkpoint", "restore", saved["id"], "--paths", "../../x").code == 2


def test_kept_pruned_proven_and_carried_away(call: Call, repository: Path) -> None:
    first, second = (told(call, "checkpoint", "create", "--note", note) for note in ("one", "two"))
    assert told(call, "checkpoint", "keep", second["id"][-8:])["protected"] is True
    assert "protected · two" in call("checkpoint", "list").out
    found = told(call, "checkpoint", "verify", "--deep")
    assert (found["sound"], found["checkpoints"]) == (True, 2)
    out = told(call, "checkpoint", "export", first["id"], second["id"], "../out.bundle")
    script = "\n".join(out["commands"])
    subprocess.run(script, shell=True, check=True, cwd=repository.parent, capture_output=True)
    assert (repository.parent / "restored/notes.txt").read_bytes() == (repository / "notes.txt").read_bytes()
    assert call("checkpoint", "export", first["id"], "../out.bundle").code == 6
    assert call("checkpoint", "purge").code == 2
    gone = told(call, "checkpoint", "purge", "--yes")
    assert len(gone["pruned"]) == 2
    assert "its files are gone" in call("checkpoint", "list").out
    assert call("checkpoint", "restore", first["id"]).code == 5


def test_a_damaged_checkpoint_is_told_with_exit_code_1(call: Call, repository: Path) -> None:
    (repository / "only here.txt").write_text("nowhere else")
    told(call, "checkpoint", "create")
    blob = subprocess.run(
        ["git", "hash-object", "only here.txt"], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.strip()
    objects = repository / ".git/objects"
    (objects / blob[:2] / blob[2:]).unlink(missing_ok=True)
    for pack in [*objects.glob("pack/pack-*.pack")]:
        pack.unlink()
    said = call("checkpoint", "verify")
    assert said.code == 1
    assert "Not sound" in said.out
    assert "incomplete" in said.out


def test_a_fork_works_in_a_worktree_of_its_own(call: Call, repository: Path) -> None:
    session = works(call, repository)
    at = told(call, "checkpoint", "list", "--session", session)[0]["id"]
    fork = told(call, "session", "fork", session, "--at", at[-8:], "--worktree", "../other")
    assert (fork["forked_from"], fork["workspace"]) == (session, str(repository.parent / "other"))
    assert not (repository.parent / "other/made.txt").exists()
    assert (repository / "made.txt").exists()


def test_a_workspace_says_whether_its_runs_need_a_checkpoint(call: Call, repository: Path) -> None:
    assert told(call, "workspace", "add", "shop", ".", "--checkpoint", "off")["checkpoint"] == "off"
    session = works(call, repository)
    shown = call("show", session).out
    assert "no checkpoint: " in shown
