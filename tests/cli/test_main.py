"""The command line itself: what help costs, and that the table tells the truth."""

import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from cli import errors
from cli.main import TABLE, app, load
from hub.errors import ExitCode, TurnbackError
from tests.cli.conftest import Call
from tests.cli.given import ROOT, environment

HEAVY = ("msgspec", "pydantic", "websockets", "rich", "asyncio", "sqlalchemy", "git", "litellm", "psutil", "yaml")
NEVER = (
    "litellm",
    "sqlalchemy",
    "git",
    "slack_bolt",
    "telegram",
    "apscheduler",
    "hub.store",
    "hub.daemon",
    "hub.agent",
)


def imported_by(code: str) -> set[str]:
    """Return the names of the modules that a program has imported when it ends."""
    program = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit:\n    pass\nsys.stderr.write('\\n' + ' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment(), cwd=ROOT, check=True
    )
    return set(done.stderr.rpartition("\n")[2].split())


def test_help_imports_nothing_of_weight() -> None:
    found = imported_by("from cli.main import main; main(['--help'])")
    assert found & set(HEAVY) == set()
    assert not any(module.startswith(("hub.protocol", "hub.client")) for module in found)


def test_a_plain_command_does_not_pay_for_coercion(home: Path) -> None:
    found = imported_by(f"from cli.main import main; main(['--home', {str(home)!r}, 'status'])")
    assert "pydantic" not in found
    assert "rich" in found


def test_no_command_imports_the_daemon() -> None:
    modules = ", ".join(sorted({row.module for row in TABLE.values()}))
    assert imported_by(f"import {modules}") & set(NEVER) == set()


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_table_says_what_the_command_says(name: str) -> None:
    command = load(TABLE[name])
    first = (command.help or "").split("\n\n")[0].replace("\n", " ").strip()
    assert first == TABLE[name].help


def test_help_lists_every_command(call: Call) -> None:
    said = call("--help")
    assert said.code == 0
    for name, row in TABLE.items():
        assert name in said.out
        assert row.help.split(";")[0][:30] in said.out
    assert get_command(app).list_commands(None) == list(TABLE)


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_command_has_help_and_the_global_options(call: Call, name: str) -> None:
    said = call(name, "--help")
    assert said.code == 0
    assert "--json" in said.out
    assert "--home" in said.out


def test_version(call: Call) -> None:
    said = call("--version")
    assert (said.code, said.out) == (0, "0.1.0\n")


def test_no_command_is_help(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        from_main([])
    assert left.value.code == 0
    assert "Commands:" in capfd.readouterr().out


def from_main(arguments: list[str]) -> None:
    from cli.main import main

    main(arguments)


def test_an_unexpected_exception_is_not_hidden() -> None:
    with pytest.raises(TypeError):
        errors.failure_of(ValueError("a defect"))


def test_expected_exceptions_have_codes() -> None:
    assert errors.failure_of(KeyboardInterrupt()).exit_code == ExitCode.CANCELLED
    failure = errors.failure_of(PermissionError(13, "Permission denied", "/x"))
    assert (failure.code, failure.message) == ("io_error", "/x: Permission denied")
    assert errors.failure_of(TurnbackError("x", code="odd")).code == "odd"


def test_a_reader_that_goes_away_is_no_stack_trace(home: Path) -> None:
    shown = subprocess.run(
        f"{sys.executable} -m cli.main --help | true", shell=True, capture_output=True, text=True, env=environment()
    )
    assert "Traceback" not in shown.stderr
