"""The generated reference: current, deterministic, complete, and true in its examples."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import hub
from hub.domain.states import MACHINES
from hub.protocol import docs
from hub.protocol.connection import HelloReceived, ServerConnection
from hub.protocol.envelope import Notification, decode_call, decode_from_hub
from hub.protocol.events import EVENTS, LIVE
from hub.protocol.methods import METHODS, NOTIFICATIONS
from hub.protocol.schema import contract, words

PACKAGE = Path(hub.__file__).parent


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return contract()


@pytest.fixture(scope="module")
def page(schema: dict[str, Any]) -> str:
    return docs.markdown(schema)


def test_the_committed_reference_is_current() -> None:
    assert docs.main(["--check"]) == 0, f"run `{docs.COMMAND}` and commit the result"


def test_a_stale_file_is_named_with_the_way_to_mend_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--folder", str(tmp_path)]
    assert docs.main([*folder, "--check"]) == 1
    assert list(tmp_path.iterdir()) == []
    assert docs.main(folder) == 0
    assert docs.main([*folder, "--check"]) == 0
    capsys.readouterr()
    with (tmp_path / "protocol.md").open("a") as file:
        file.write("by hand")
    assert docs.main([*folder, "--check"]) == 1
    told = capsys.readouterr().err
    assert "protocol.md" in told
    assert docs.COMMAND in told
    assert "schema.json" not in told


@pytest.mark.parametrize("seed", ["1", "2"])
def test_the_same_tables_give_the_same_bytes(seed: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hub.protocol.docs", "--folder", str(tmp_path)]
    subprocess.run(command, check=True, env={"PYTHONHASHSEED": seed}, cwd=PACKAGE.parent)
    for path, text in docs.pages(tmp_path).items():
        assert path.read_text(encoding="utf-8") == text


def test_every_row_of_every_table_is_told(page: str, schema: dict[str, Any]) -> None:
    headings = set(re.findall(r"^### (.+)$", page, re.MULTILINE))
    assert headings >= {*METHODS, *EVENTS, *LIVE, *(f"State machine: {machine.name}" for machine in MACHINES)}
    assert all(f"| `{name}` |" in page for name in NOTIFICATIONS)
    assert list(schema["methods"]) == list(METHODS)
    assert set(schema["events"]) == set(EVENTS)


def test_every_move_is_drawn(page: str) -> None:
    for machine in MACHINES:
        part = page.split(f"### State machine: {machine.name}\n")[1].split("### ")[0]
        drawn = set(re.findall(r"^    (\w+) --> (\w+)$", part, re.MULTILINE))
        assert drawn == {(old, new) for old, following in machine.moves.items() for new in following}


def test_links_and_references_lead_somewhere(page: str, schema: dict[str, Any]) -> None:
    anchors = [re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.+)$", page, re.M)]
    assert len(anchors) == len(set(anchors))
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) <= set(anchors)
    references = re.findall(r'"#/\$defs/(\w+)"', json.dumps(schema))
    assert set(references) == set(schema["$defs"])


def test_the_examples_are_frames_of_the_protocol(page: str) -> None:
    frames = [line for block in re.findall(r"```json\n(.+?)```", page, re.DOTALL) for line in block.splitlines()]
    assert len(frames) > 8
    connection = ServerConnection()
    for frame in frames:
        if '"method"' in frame and '"id"' in frame:
            if decode_call(frame).method == "hub.hello":
                assert isinstance(connection.receive(frame), HelloReceived)
                connection.accept(["read", "prompt"])
            else:
                assert not hasattr(connection.receive(frame), "error")
            continue
        message = decode_from_hub(frame)
        if isinstance(message, Notification):
            msgspec.json.decode(message.params, type=NOTIFICATIONS[message.method])


def codes_in(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.keyword) and node.arg == "code" and isinstance(node.value, ast.Constant):
            found.add(node.value.value)
        if isinstance(node, ast.Assign) and any(getattr(t, "id", "") == "default_code" for t in node.targets):
            found.add(ast.literal_eval(node.value))
    return found


def test_the_codes_told_are_the_codes_in_use() -> None:
    hub_side = codes_in(PACKAGE / "protocol/connection.py") | codes_in(PACKAGE / "protocol/envelope.py")
    client_files = ("client.py", "subscription.py", "protocol/frames.py", "protocol/cursor.py")
    client_side = set().union(*(codes_in(PACKAGE / name) for name in client_files))
    assert set(docs.CODES) == hub_side
    assert set(docs.CLIENT_CODES) == client_side - hub_side


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        ({"$ref": "#/$defs/RunView"}, "[RunView](#runview)"),
        ({"type": "string", "minLength": 1, "pattern": "a|b"}, "string (length ≥ 1, `a\\|b`)"),
        ({"anyOf": [{"type": "integer", "minimum": 0}, {"type": "null"}]}, "integer (≥ 0) \\| null"),
        ({"enum": ["a", None]}, '`"a"` \\| `null`'),
        ({"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}}, "array of number (> 0)"),
        ({"type": "object", "additionalProperties": {"type": "string"}}, "object of string"),
        ({"type": "object"}, "object"),
        ({}, "any"),
    ],
)
def test_types_in_words(schema: dict[str, Any], told: str) -> None:
    assert words(schema) == told
