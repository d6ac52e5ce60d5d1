"""What the documents say is so: links lead somewhere, commands and exit codes exist, samples are read as they stand.

Prose is not checked. The protocol reference is generated and has its own check.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import TABLE
from hub.errors import ExitCode
from hub.settings import Config, parse_config
from tests import architecture_rules as rules

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
COMMAND = re.compile(r"\bhubctl ([a-z]+)")


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield each fenced block of a language: the page's name and the text, without its indentation."""
    for page in PAGES:
        for indent, text in re.findall(
            rf"^( *)```{language}\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.M | re.S
        ):
            yield page.name, re.sub(rf"^{indent}", "", text, flags=re.M)


def test_links_lead_somewhere() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in LINK.findall(page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert not broken


def test_every_command_that_is_named_exists() -> None:
    named = {(page.name, name) for page in PAGES for name in COMMAND.findall(page.read_text(encoding="utf-8"))}
    assert named
    assert {(page, name) for page, name in named if name not in TABLE} == set()


def test_every_command_is_in_the_readme() -> None:
    readme = text_of("README.md")
    assert {name for name in TABLE if not re.search(rf"[` ]{name}\b", readme)} == set()


def test_exit_codes_are_those_of_the_program() -> None:
    table = re.findall(r"^\| (\d+) \|", text_of("README.md"), re.M)
    assert {int(code) for code in table} == {int(code) for code in ExitCode}


def test_samples_of_the_configuration_are_read() -> None:
    samples = list(blocks("toml"))
    assert len(samples) >= 2
    for page, text in samples:
        assert parse_config(text, Path(page)) != Config()


def test_every_dependency_has_a_reason() -> None:
    record = text_of("docs/decisions/0002-dependencies.md")
    reasons = {name for row in re.findall(r"^\| ([^|]+) \|", record, re.M) for name in row.lower().split(", ")}
    declared = tomllib.loads(text_of("pyproject.toml"))["project"]["dependencies"]
    assert {re.split(r"[^A-Za-z0-9._-]", line)[0].lower() for line in declared} <= reasons


def test_every_room_is_in_the_architecture() -> None:
    page = text_of("docs/architecture.md")
    contracts = {
        row["id"]: row for row in tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    }
    rooms = [room.strip(" ()") for floor in contracts["floors"]["layers"] for room in floor.split("|")]
    assert [room for room in rooms if f"`hub.{room}`" not in page] == []


def test_every_client_side_room_is_in_the_architecture() -> None:
    page = text_of("docs/architecture.md")
    assert [room for room in rules.CLIENT_SIDE if room != "hub.__version__" and f"`{room}`" not in page] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_decisions_are_numbered_without_holes(page: Path) -> None:
    if page.parent.name != "decisions":
        assert page.read_text(encoding="utf-8").startswith("# ")
        return
    numbers = sorted(int(path.name[:4]) for path in page.parent.glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))
    assert page.read_text(encoding="utf-8").startswith(f"# {page.name[:4]} ")
