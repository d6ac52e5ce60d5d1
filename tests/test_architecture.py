"""The house's doors are kept: import contracts between rooms, and rules over each file. Failures say why."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import architecture_rules as rules

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "pyproject.toml"
LINT = "import sys; from importlinter import cli; sys.exit(cli.lint_imports(no_cache=True, no_logo=True))"
MODULES = rules.modules(ROOT)
RULES = {rule.name: rule for rule in rules.RULES}

WHY_CONTRACTS = (
    "The floors keep decisions apart from what carries them out, and each room replaceable. Move the code to the room "
    "that may know both, or hand the thing in as a value or a Protocol. The contracts stand in pyproject.toml."
)

# For each rule: a path, a text that breaks it there, and how often.
BREACHES = [
    ("client_side", "cli/x.py", "from hub.store import database", 1),
    ("client_side", "connectors/x.py", "import hub.daemon.app", 1),
    ("client_side", "scheduler/x.py", "from hub import agent", 1),
    ("client_side", "cli/demo.py", "from hub.checkpoint.engine import Engine", 1),
    ("doors", "hub/daemon/runs.py", "import litellm", 1),
    ("doors", "hub/agent/loop.py", "from git import Repo", 1),
    ("doors", "hub/daemon/app.py", "import sqlalchemy as sa\nimport aiosqlite", 2),
    ("doors", "cli/run.py", "from websockets.asyncio.client import connect", 1),
    ("doors", "hub/daemon/app.py", "import typer", 1),
    ("doors", "connectors/slack.py", "import telegram", 1),
    ("doors", "hub/daemon/app.py", "import requests", 1),
    ("doors", "hub/daemon/app.py", "from . import server", 1),
    ("doors", "hub/daemon/app.py", "def late():\n    import apscheduler", 1),
    ("pure_domain", "hub/domain/x.py", "import asyncio\nimport os\nfrom pathlib import Path\nimport time", 4),
    ("pure_domain", "hub/domain/x.py", "from datetime import datetime\nat = datetime.now()", 1),
    ("pure_domain", "hub/domain/x.py", "import datetime\nat = datetime.date.today", 1),
    ("pure_domain", "hub/domain/x.py", "async def wait(): ...", 1),
    ("late_imports", "hub/daemon/x.py", "def f():\n    import json\n    from os import path", 2),
    ("late_imports", "hub/daemon/x.py", "async def f():\n    def g():\n        import json", 1),
    ("late_imports", "hub/daemon/x.py", "import importlib\nm = importlib.import_module('json')", 1),
    ("late_imports", "hub/daemon/x.py", "m = __import__('json')", 1),
    ("late_imports", "hub/agent/worker.py", "def f():\n    import json", 1),
    ("environment", "hub/daemon/x.py", "import os\nhome = os.environ['HOME']", 1),
    ("environment", "cli/x.py", "import os\nhome = os.getenv('HOME')", 1),
    ("environment", "cli/x.py", "from os import environ", 1),
    ("broad_except", "hub/x.py", "try:\n    f()\nexcept Exception as e:\n    print(e)", 1),
    ("broad_except", "hub/x.py", "try:\n    f()\nexcept:\n    pass", 1),
    ("broad_except", "hub/x.py", "try:\n    f()\nexcept (OSError, BaseException):\n    raise ValueError from None", 1),
    ("broad_except", "hub/x.py", "import contextlib\nwith contextlib.suppress(Exception):\n    f()", 1),
    ("broad_except", "hub/store/database.py", "try:\n    f()\nexcept Exception:\n    pass\n" * 3, 3),
    ("sizes", "hub/x.py", "x = 1\n" * 401, 1),
    ("sizes", "hub/x.py", "def f():\n" + "    x = 1\n" * 60, 1),
    ("one_git", "hub/daemon/x.py", "subprocess.run(['git', 'status'])", 1),
    ("one_git", "hub/daemon/x.py", "async def f():\n    await asyncio.create_subprocess_exec('git', 'status')", 1),
    ("one_git", "hub/daemon/x.py", "create_subprocess_shell('git status')", 1),
    ("documented", "hub/x.py", "x = 1", 1),
]

# For each rule: what looks close to a breach and is none.
INNOCENT = [
    (
        "client_side",
        "cli/x.py",
        "from hub import __version__\nfrom hub.protocol.events import Event\nimport hub.client",
    ),
    ("client_side", "hub/daemon/x.py", "from hub.store import database"),
    ("doors", "hub/store/x.py", "import sqlalchemy\nimport sqlite3\nimport msgspec\nfrom hub.errors import AuthError"),
    ("pure_domain", "hub/daemon/x.py", "import asyncio\nfrom datetime import datetime\nat = datetime.now()"),
    ("pure_domain", "hub/domain/x.py", "from datetime import datetime\ndef f(now: datetime): return now"),
    ("late_imports", "hub/agent/worker.py", "def f():\n    import litellm.types\n    from litellm import completion"),
    ("environment", "hub/settings.py", "import os\nhome = os.environ['HOME']"),
    ("environment", "hub/x.py", "def f(environ): return environ['HOME']"),
    ("broad_except", "hub/x.py", "try:\n    f()\nexcept BaseException:\n    g()\n    raise"),
    ("broad_except", "hub/store/database.py", "try:\n    f()\nexcept Exception:\n    pass\n" * 2),
    ("sizes", "hub/x.py", "x = 1\n" * 400),
    ("sizes", "hub/x.py", "def f():\n" + "    x = 1\n" * 59),
    ("one_git", "cli/demo.py", "subprocess.run(['git', 'status'])"),
    ("one_git", "hub/domain/commands.py", "READ_ONLY = {('git', 'status')}\nhint = say('git is missing')"),
    ("documented", "hub/x.py", ""),
]


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Check the contracts of the pyproject.toml in `folder` against the packages there."""
    command = [sys.executable, "-c", LINT]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.name)
def test_rule_holds_in_every_file(rule: rules.Rule) -> None:
    findings = [str(finding) for module in MODULES for finding in rule.check(module)]
    assert not findings, "\n".join([rule.why, *findings])


@pytest.mark.parametrize(("name", "path", "text", "count"), BREACHES)
def test_rule_catches_a_breach(name: str, path: str, text: str, count: int) -> None:
    assert len(list(RULES[name].check(rules.Module.of(path, text)))) == count


@pytest.mark.parametrize(("name", "path", "text"), INNOCENT)
def test_rule_leaves_the_innocent_alone(name: str, path: str, text: str) -> None:
    assert list(RULES[name].check(rules.Module.of(path, text))) == []


def test_every_rule_is_shown_to_catch() -> None:
    assert {name for name, *_ in BREACHES} == set(RULES)


def test_exceptions_are_still_needed() -> None:
    by_path = {module.path: module for module in MODULES}
    unused = [f"LATE {row}" for row in rules.LATE if row[0] in by_path and not _late_row_used(by_path[row[0]], row)]
    for path, (count, _) in rules.BROAD.items():
        if path in by_path and len(rules.broad_handlers(by_path[path])) != count:
            unused.append(f"BROAD {path}: {len(rules.broad_handlers(by_path[path]))} handlers, {count} in the table")
    for path in rules.ENVIRONMENT:
        if path in by_path and not list(rules.environment_uses(by_path[path])):
            unused.append(f"ENVIRONMENT {path}")
    assert not unused, "An exception that nobody needs is an open door. Remove its row:\n" + "\n".join(unused)


def _late_row_used(module: rules.Module, row: tuple[str, str]) -> bool:
    return any(rules.late_row(module.path, name) == row for _, name in rules.late_uses(module))


def test_import_contracts_hold() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, f"{WHY_CONTRACTS}\n{result.stdout}{result.stderr}"


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """An empty house: every room that the contracts name, and the contracts themselves."""
    contracts = tomllib.loads(CONFIG.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    floors = next(contract for contract in contracts if contract["id"] == "floors")["layers"]
    rooms = [room.strip(" ()") for floor in floors for room in floor.split("|")]
    for package in (*rules.PACKAGES, *(f"hub/{room}" for room in rooms)):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(CONFIG.read_text(encoding="utf-8"), encoding="utf-8")
    return tmp_path


def test_contracts_hold_in_an_empty_house(house: Path) -> None:
    (house / "cli/x.py").write_text("import hub.client, hub.protocol, hub.settings\n")
    (house / "hub/daemon/x.py").write_text("import hub.store, hub.checkpoint, hub.agent, hub.protocol, hub.domain\n")
    result = lint_imports(house)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize(
    ("importer", "target"),
    [
        ("hub.domain", "hub.protocol"),
        ("hub.protocol", "hub.settings"),
        ("hub.agent", "hub.store"),
        ("hub.checkpoint", "hub.agent"),
        ("hub.client", "hub.daemon"),
        ("hub.ids", "hub.domain"),
        ("hub.errors", "cli"),
        ("scheduler", "connectors"),
        ("connectors", "hub.store"),
    ],
)
def test_contracts_catch_a_wrong_import(house: Path, importer: str, target: str) -> None:
    (house / importer.replace(".", "/") / "x.py").write_text(f"import {target}\n")
    result = lint_imports(house)
    assert result.returncode == 1
    assert f"{importer}.x -> {target}" in result.stdout


def test_contracts_catch_a_room_that_nobody_planned(house: Path) -> None:
    (house / "hub/gateway.py").touch()
    result = lint_imports(house)
    assert result.returncode == 1
    assert "hub.gateway" in result.stdout
