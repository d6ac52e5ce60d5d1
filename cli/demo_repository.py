"""The repository that `hubctl demo` works on, and what its scripted model says and does there.

Everything a careful person would hate to lose is in it: a staged change, an unstaged one, an untracked notes file, an
executable script, an ignored build product. It needs git and this Python, nothing else.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hub import settings

FILES = {
    ".gitignore": "build/\n__pycache__/\n",
    "README.md": "# Shop\n\nPrices are in cents.\n",
    "shop/__init__.py": "",
    "shop/prices.py": 'PRICES = {"tea": 450, "pot": 2500}\n',
    "shop/cart.py": (
        "from shop.prices import PRICES\n\n\n"
        "def total(cart):\n"
        '    """Return what a cart costs, in cents."""\n'
        "    return sum(PRICES[name] * count for name, count in cart.items())\n"
    ),
    "shop/legacy.py": "def old_total(cart):\n    return 0\n",
    "tests/__init__.py": "",
    "tests/test_cart.py": (
        "import unittest\n\nfrom shop.cart import total\nfrom shop.legacy import old_total\n\n\n"
        "class CartTest(unittest.TestCase):\n"
        "    def test_total(self):\n"
        '        self.assertEqual(total({"tea": 2, "pot": 1}), 3400)\n\n'
        "    def test_old_total(self):\n"
        '        self.assertEqual(old_total({"tea": 2}), 0)\n'
    ),
    "tools/release.sh": "#!/bin/sh\necho release\n",
}
SCRIPT = "tools/release.sh"
STAGED = ("README.md", "# Shop\n\nPrices are in cents, taxes included.\n")
UNSTAGED = ("shop/prices.py", 'PRICES = {"tea": 450, "pot": 2500, "cup": 600}\n')
UNTRACKED = ("notes.txt", "Ask Ada about the discount before Friday.\n")
IGNORED = ("build/report.html", "<p>took an hour to build</p>\n")
DATE = "2026-01-01T12:00:00Z"


def environment() -> dict[str, str]:
    """Return an environment in which git knows no configuration but a repository's own."""
    kept = {name: value for name, value in settings.environment().items() if not name.startswith("GIT_")}
    return {**kept, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}


def git(repository: Path, *arguments: str, **more: str) -> bytes:
    """Return what a git command prints. Raises CalledProcessError."""
    command = ["git", "--no-optional-locks", *arguments]
    return subprocess.run(
        command,
        cwd=repository,
        env={**environment(), **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    ).stdout


def make(repository: Path) -> None:
    """Make the repository, with work in progress. The folder must not exist."""
    for name, text in FILES.items():
        _write(repository, name, text)
    (repository / SCRIPT).chmod(0o755)
    git(repository, "init", "-q")
    git(repository, "symbolic-ref", "HEAD", "refs/heads/main")
    git(repository, "add", "-A")
    who = {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"}
    who |= {"GIT_COMMITTER_NAME": "Ada", "GIT_COMMITTER_EMAIL": "ada@example.org"}
    git(repository, "commit", "-q", "-m", "A small shop", GIT_AUTHOR_DATE=DATE, GIT_COMMITTER_DATE=DATE, **who)
    _write(repository, *STAGED)
    git(repository, "add", STAGED[0])
    for name, text in (UNSTAGED, UNTRACKED, IGNORED):
        _write(repository, name, text)


def _write(repository: Path, name: str, text: str) -> None:
    path = repository / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def tests_pass(repository: Path) -> bool:
    """Run the repository's tests, leaving no trace there."""
    command = [sys.executable, "-B", "-m", "unittest"]
    done = subprocess.run(command, cwd=repository, env=environment(), stdin=subprocess.DEVNULL, capture_output=True)
    return done.returncode == 0


QUESTION = "What is in this repository?"
PROMPT = "Members get 10 % off. Add that, and remove what is no longer used."


def first_turns() -> list[dict[str, Any]]:
    """Return what the scripted model does when asked about the repository."""
    return [
        {
            "text": "I look.",
            "tool_calls": [{"name": "read_files", "arguments": {"files": [{"path": "README.md"}]}}],
        },
        {"text": "A small shop: prices in cents, a cart that adds them up, and two tests."},
    ]


def second_turns() -> list[dict[str, Any]]:
    """Return what the scripted model does when asked for the change: several edits, a deletion, and failing tests."""
    tests = f"{shlex.quote(sys.executable)} -B -m unittest"
    return [
        {
            "text": "The discount belongs in the cart. I edit three files.",
            "tool_calls": [
                _edit("shop/cart.py", "def total(cart):", "def total(cart, discount=0.1):"),
                _edit("shop/cart.py", "cart.items())", "cart.items()) * (1 - discount)"),
                _edit("README.md", "Prices are in cents, taxes included.", "Members get 10 % off."),
                _edit("notes.txt", UNTRACKED[1].rstrip("\n"), "Done."),
            ],
        },
        {
            "text": "Nothing seems to use shop/legacy.py. I remove it and run the tests.",
            "tool_calls": [
                {
                    "name": "run_commands",
                    "arguments": {"commands": ["rm shop/legacy.py && chmod a-x tools/release.sh", tests]},
                }
            ],
        },
        {"text": "The tests fail now: something did use it, and totals are no whole cents any more."},
    ]


def _edit(path: str, old: str, new: str) -> dict[str, Any]:
    return {"name": "editor", "arguments": {"path": path, "old_text": old, "new_text": new}}


def write_scenario(path: Path, turns: list[dict[str, Any]]) -> str:
    """Write a scenario file (JSON is YAML) and return the model that plays it."""
    path.write_text(json.dumps({"turns": turns}, indent=1), encoding="utf-8")
    return f"scripted:{path}"


def write_model_settings(home: Path, chosen: Mapping[str, Any]) -> None:
    """Give a home the model settings of another, so that a real model can be reached from there."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in chosen.items() if value is not None]
    home.mkdir(mode=0o700, parents=True)
    (home / settings.CONFIG_NAME).write_text("\n".join(["[model]", *lines]) + "\n", encoding="utf-8")
