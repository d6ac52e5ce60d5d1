"""The scripted server as a program, and how it chooses its replies."""

import http.client
import json
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.stub_openai import turn_of

SCENARIO = """
by_turn: true
replies:
  - text: I look.
    pieces: 2
    gap_s: 0.01
    reasoning: hm
    tool_calls: [{name: read_files, arguments: {paths: [a]}}, {name: b}]
  - text: done
    usage: null
    delay_s: 0.01
  - status: 429
    headers: {retry_after: "3"}
    body: {error: {message: slow down}}
  - steps:
      - {type: raw, text: "data: odd\\n\\n"}
      - {type: cut}
"""
ROOT = Path(__file__).resolve().parents[2]


def ask(api_base: str, *roles: str) -> list[Any]:
    """Return the events of one answer."""
    body = json.dumps({"messages": [{"role": role, "content": "x"} for role in roles]}).encode()
    with urllib.request.urlopen(f"{api_base}/chat/completions", body, timeout=20) as answer:
        lines = answer.read().decode().split("\n\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_it_serves_a_scenario_by_turns(tmp_path: Path) -> None:
    file = tmp_path / "scene.yaml"
    file.write_text(SCENARIO)
    command = [sys.executable, "-m", "tests.stub_openai", "--scenario", str(file)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            base = process.stdout.readline().strip()
            second = ask(base, "user", "assistant", "tool")
            first = [event["choices"][0]["delta"] for event in ask(base, "user") if event["choices"]]
            assert ask(base, "user", "assistant", "user") == ask(base, "user")
            with pytest.raises(urllib.error.HTTPError) as refused:
                ask(base, "user", *["assistant"] * 2)
            assert (refused.value.code, refused.value.headers["retry-after"]) == (429, "3")
            with pytest.raises(http.client.IncompleteRead):
                ask(base, "user", *["assistant"] * 3)
        finally:
            process.terminate()
    assert [event["choices"][0]["delta"] for event in second if event["choices"]][1] == {"content": "done"}
    assert not any("usage" in event for event in second)
    assert "".join(delta.get("content", "") for delta in first) == "I look."
    pieces = [piece for delta in first for piece in delta.get("tool_calls", ())]
    assert [piece["function"].get("name") for piece in pieces] == ["read_files", None, None, "b", None, None]
    assert "".join(piece["function"]["arguments"] for piece in pieces) == '{"paths": ["a"]}{}'


@pytest.mark.parametrize(
    ("roles", "turn"),
    [
        (["system", "user"], 0),
        (["user", "assistant", "tool", "assistant", "tool"], 2),
        (["user", "assistant", "user"], 0),
        ([], 0),
    ],
)
def test_the_turn_of_a_request(roles: list[str], turn: int) -> None:
    assert turn_of({"messages": [{"role": role} for role in roles]}) == turn
