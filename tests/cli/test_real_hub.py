"""`hubctl` and a real hub, end to end, with a scripted model on a real repository."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli import demo_repository as made
from cli.demo_proof import compare, look
from hub.protocol.discovery import decode_record, record_path
from tests.cli.given import command, environment, hubctl, lines
from tests.cli.terminal import Terminal


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One home, and so one hub, for all tests of this file."""
    folder = tmp_path_factory.mktemp("real") / "home"
    yield folder
    hubctl(folder, "stop", "--deadline", "0")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    made.make(tmp_path / "shop")
    return tmp_path / "shop"


def scenario(folder: Path, *turns: dict[str, Any]) -> str:
    return made.write_scenario(folder / f"turns{len([*folder.iterdir()])}.yaml", [*turns])


def edit(old: str, new: str, path: str = "README.md") -> dict[str, Any]:
    return {"name": "editor", "arguments": {"path": path, "old_text": old, "new_text": new}}


def runs_commands(*commands: str) -> dict[str, Any]:
    return {"tool_calls": [{"name": "run_commands", "arguments": {"commands": [*commands]}}]}


def seen(repository: Path) -> Any:
    return look(repository, (), tests_pass=made.tests_pass(repository))


def same(repository: Path, then: Any) -> bool:
    return all(proof.ok for proof in compare("", seen(repository), then))


def test_a_run_that_is_allowed_changes_files(home: Path, repository: Path) -> None:
    model = scenario(repository.parent, {"text": "I edit.", "tool_calls": [edit("Shop", "Store")]}, {"text": "Done."})
    said = hubctl(
        home, "run", "rename it", "-w", str(repository), "--model", model, "--auto-approve", "edits", "--json"
    )
    found = lines(said.stdout)
    assert said.returncode == 0, said.stderr
    assert found[-1]["type"] == "run.completed"
    assert {"session_id", "run_id", "stop_reason", "usage", "cost", "files_changed"} <= set(found[-1])
    assert found[-1]["files_changed"] == ["README.md"]
    assert [line["seq"] for line in found] == sorted(line["seq"] for line in found)
    assert (repository / "README.md").read_text().startswith("# Store")
    shown = json.loads(hubctl(home, "show", found[-1]["session_id"], "--json").stdout)
    assert [run["state"] for run in shown["runs"]] == ["completed"]
    assert shown["messages"][0]["role"] == "user"
    assert json.loads(hubctl(home, "inbox", "--json").stdout) == []


def test_rejected_by_order_leaves_all_as_it_was(home: Path, repository: Path) -> None:
    before = seen(repository)
    model = scenario(repository.parent, {"tool_calls": [edit("Shop", "Store")]}, {"text": "Then not."})
    said = hubctl(home, "run", "rename it", "-w", str(repository), "--model", model, "--on-ask", "reject", "--json")
    assert said.returncode == 8, said.stderr
    assert lines(said.stdout)[-1]["type"] == "run.completed"
    assert same(repository, before)


def test_an_answer_from_another_terminal(home: Path, repository: Path) -> None:
    model = scenario(repository.parent, {"tool_calls": [edit("Shop", "Store")]}, {"text": "Done."})
    running = subprocess.Popen(
        command(home, "run", "rename it", "-w", str(repository), "--model", model),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert running.stdout
    how = next(line for line in running.stdout if "hubctl approve" in line)
    approval = how.split("hubctl approve ")[1].split()[0]
    listed = json.loads(hubctl(home, "approvals", "--json").stdout)
    assert [(one["id"], one["tool"]) for one in listed] == [(approval, "editor")]
    answered = hubctl(home, "approve", approval[-8:], "--json")
    assert json.loads(answered.stdout)["state"] == "allowed"
    assert running.wait(30) == 0
    assert (repository / "README.md").read_text().startswith("# Store")
    assert hubctl(home, "reject", approval).returncode == 6


def test_turned_back_and_undone_from_the_command_line(home: Path, repository: Path) -> None:
    before = seen(repository)
    model = scenario(
        repository.parent,
        {"tool_calls": [edit("Shop", "Store"), edit("Ask Ada", "Ask Bob", "notes.txt")]},
        runs_commands("rm shop/legacy.py", "mv shop/cart.py shop/basket.py", "chmod -x tools/release.sh", "touch new"),
        {"text": "Done."},
    )
    said = hubctl(home, "run", "x", "-w", str(repository), "--model", model, "--auto-approve", "all", "--json")
    assert said.returncode == 0, said.stderr
    after = seen(repository)
    assert not same(repository, before)
    listed = json.loads(hubctl(home, "checkpoint", "list", "--json", cwd=repository).stdout)
    planned = hubctl(home, "checkpoint", "restore", "--dry-run", "--json", cwd=repository)
    assert json.loads(planned.stdout)["dry_run"] is True
    assert same(repository, after)
    restored = json.loads(hubctl(home, "checkpoint", "restore", listed[0]["id"], "--json", cwd=repository).stdout)
    assert restored["deleted"] == ["new", "shop/basket.py"] or set(restored["deleted"]) == {"new", "shop/basket.py"}
    assert same(repository, before)
    assert hubctl(home, "checkpoint", "undo", "--session", lines(said.stdout)[-1]["session_id"]).returncode == 0
    assert same(repository, after)


def test_a_folder_without_a_session(home: Path, repository: Path) -> None:
    made_one = json.loads(hubctl(home, "checkpoint", "create", "--json", cwd=repository).stdout)
    (repository / "notes.txt").unlink()
    diff = json.loads(hubctl(home, "checkpoint", "diff", made_one["id"], "--json", cwd=repository).stdout)
    assert [change["path"] for change in diff["changes"]] == ["notes.txt"]
    assert hubctl(home, "checkpoint", "restore", made_one["id"], cwd=repository).returncode == 0
    assert (repository / "notes.txt").exists()


def test_keys_at_a_terminal(home: Path, repository: Path) -> None:
    model = scenario(repository.parent, runs_commands("echo hello-there"), {"text": "It said hello."})
    with Terminal(home, "run", "x", "-w", str(repository), "--model", model) as screen:
        screen.expect("echo hello-there")
        screen.expect("[a] allow once")
        screen.type("a")
        screen.expect("It said hello.")
        screen.expect("completed")
        assert screen.ends() == 0


def test_ctrl_c_cancels_what_runs(home: Path, repository: Path) -> None:
    model = scenario(repository.parent, runs_commands("sleep 60"), {"text": "late"})
    options = ("-w", str(repository), "--model", model, "--auto-approve", "all")
    with Terminal(home, "run", "x", *options) as screen:
        screen.expect("sleep 60")
        screen.interrupt()
        screen.expect("[c] cancel the run")
        screen.type("c")
        screen.expect("cancelled")
        assert screen.ends() == 130


def test_a_killed_hub_takes_nothing_along(home: Path, repository: Path) -> None:
    counter = repository.parent / "counter"
    model = scenario(
        repository.parent, runs_commands(f"echo once >> {counter}"), runs_commands("true"), {"text": "All done."}
    )
    running = subprocess.Popen(
        command(home, "run", "x", "-w", str(repository), "--model", model, "--json"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert running.stdout
    opened = next(event for line in running.stdout if (event := json.loads(line))["type"] == "approval.opened")
    assert hubctl(home, "approve", opened["approval_id"]).returncode == 0
    again = next(event for line in running.stdout if (event := json.loads(line))["type"] == "approval.opened")
    os.kill(decode_record(record_path(home).read_bytes()).pid, signal.SIGKILL)
    listed = json.loads(hubctl(home, "sessions", "--json").stdout)
    states = {one["id"]: one["state"] for one in listed}
    assert states[again["session_id"]] in ("queued", "running", "waiting")
    assert hubctl(home, "approve", again["approval_id"]).returncode == 0
    last = [json.loads(line) for line in running.stdout][-1]
    assert running.wait(30) == 0
    assert (last["type"], last["run_id"]) == ("run.completed", opened["run_id"])
    assert counter.read_text() == "once\n"


def test_no_model_tells_three_ways(home: Path, repository: Path) -> None:
    said = hubctl(home, "run", "x", "-w", str(repository))
    assert said.returncode in (2, 3)
    assert "no_model" in said.stderr
    assert all(way in said.stderr for way in ("config.toml", "TURNBACK_MODEL", "scripted:"))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("show", "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV"), 5),
        (("attach", "ses_01ARZ3NDEKTSV4RRFFQ69G5FAV", "--json"), 5),
        (("approve", "apr_01ARZ3NDEKTSV4RRFFQ69G5FAV"), 5),
        (("checkpoint", "list", "-w", "/nowhere/at/all"), 2),
    ],
)
def test_what_is_not_there(home: Path, arguments: tuple[str, ...], code: int) -> None:
    said = hubctl(home, *arguments)
    assert said.returncode == code, said.stderr
    assert "Traceback" not in said.stderr


def test_the_demo_proves_all(tmp_path: Path) -> None:
    said = hubctl(tmp_path / "unused", "demo", TMPDIR=str(tmp_path))
    assert said.returncode == 0, said.stdout + said.stderr
    assert "scripted model (no AI)" in said.stdout
    assert "the demo answers in your place" in said.stdout
    assert "21 of 21 proofs held" in said.stdout
    assert [path.name for path in tmp_path.iterdir()] == []
