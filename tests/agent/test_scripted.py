"""The scripted model: what a scenario says is streamed, what it says wrongly is refused with its place."""

from pathlib import Path

import pytest

from hub.agent.model import CallDelta, Finish, ModelError, ReasoningDelta, TextDelta, UsageReport
from hub.agent.retry import ask
from hub.agent.scripted import ScriptedModel
from hub.errors import UsageError
from tests.agent.given import parts_of, request


def scripted(folder: Path, text: str) -> ScriptedModel:
    path = folder / "scene.yaml"
    path.write_text(text)
    return ScriptedModel.load(path)


async def test_each_turn_is_streamed_in_its_place(tmp_path: Path) -> None:
    model = scripted(
        tmp_path,
        """
        turns:
          - text: abcdefg
            chunks: 3
            reasoning: hm
            usage: {input_tokens: 5, cost: 0.5}
            tool_calls:
              - name: read_files
                arguments: {paths: [a.py], at: 2026-01-01}
              - name: run_commands
                arguments: '{"commands": ["l'
          - text: done
            delay_s: 0.01
            finish: length
          - tool_calls: [{name: submit_and_exit}]
        """,
    )
    assert model.name == "scripted:scene.yaml"
    assert await parts_of(model, request(turn=0)) == [
        ReasoningDelta("hm"),
        *(TextDelta("ab"), TextDelta("cd"), TextDelta("efg")),
        CallDelta(0, "read_files", '{"paths":["a.py"],"at":"2026-01-01"}'),
        CallDelta(1, "run_commands", '{"commands": ["l'),
        UsageReport(input_tokens=5, cost=0.5),
        Finish("tool_calls"),
    ]
    assert await parts_of(model, request(turn=1)) == [TextDelta("done"), Finish("length")]
    assert await parts_of(model, request(turn=2)) == [CallDelta(0, "submit_and_exit", "{}"), Finish("tool_calls")]


async def test_usage_that_is_not_given_is_unknown(tmp_path: Path) -> None:
    answer = await ask(scripted(tmp_path, "turns: [{text: hi}]"), request(), lambda part: None)
    assert answer.usage == UsageReport()


async def test_more_pieces_than_characters(tmp_path: Path) -> None:
    parts = await parts_of(scripted(tmp_path, "turns: [{text: ab, chunks: 9}]"), request())
    assert parts == [TextDelta("a"), TextDelta("b"), Finish("stop")]


async def test_behind_the_last_turn_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has 1 turns and was asked for one more") as caught:
        await parts_of(scripted(tmp_path, "turns: [{text: hi}]"), request(turn=1))
    assert caught.value.kind == "invalid"


async def test_a_turn_that_fails_always(tmp_path: Path) -> None:
    model = scripted(tmp_path, "turns: [{fail: quota}]")
    for _ in range(3):
        with pytest.raises(ModelError, match="scenario says so") as caught:
            await parts_of(model, request())
        assert caught.value.kind == "quota"


async def test_a_turn_that_fails_so_many_times(tmp_path: Path) -> None:
    model = scripted(
        tmp_path, "turns: [{text: fine, fail: {kind: retry, message: busy, times: 2, retry_after_s: 0}}, {text: done}]"
    )
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    answer = await ask(model, request(), lambda part: None, sleep=sleep)
    assert (answer.text, answer.attempts, waits) == ("fine", 3, [1.0, 2.0])


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("turns:\n- text: hi\n  txt: ho\n", 3, "unknown field `txt`"),
        ("turns:\n- text: hi\n- tool_calls:\n  - arguments: {}\n", 4, "missing required field `name`"),
        ("turns:\n- text: hi\n- text: [1]\n", 3, "Expected `str`"),
        ("turns:\n- fail: sometimes\n", 2, "Invalid"),
        ("turns:\n- fail: {kind: retry, times: 0}\n", 2, ">= 1"),
        ("turns:\n- delay_s: -1\n", 2, ">= 0"),
        ("turns:\n- text: hi\n  usage: {tokens: 3}\n", 3, "unknown field `tokens`"),
        ("turns: hi\n", 1, "Expected `array`"),
        ("- text: hi\n", 1, "Expected `object`"),
        ("", 1, "Expected `object`"),
        ("turns:\n- text: 'hi\n", 2, "not YAML"),
        ("turns: [\n", 1, "not YAML"),
        ("turns: !!python/object:os.system []\n", 1, "not YAML"),
        ("turns:\n- text: {a: b\n- x\n", 3, "not YAML"),
    ],
)
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, text: str, line: int, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        scripted(tmp_path, text)
    assert caught.value.code == "scenario_invalid"
    assert f"scene.yaml:{line}: " in caught.value.message
    assert problem in caught.value.message
    assert "turns" in (caught.value.hint or "")


@pytest.mark.parametrize("arguments", ["{a: {? [1, 2] : 3}}", '{a: "\\ud800"}', "{a: {? null : 3, ? {b: 1} : 2}}"])
def test_what_json_cannot_hold_is_refused(tmp_path: Path, arguments: str) -> None:
    with pytest.raises(UsageError, match=r"scene\.yaml"):
        scripted(tmp_path, f"turns:\n- tool_calls: [{{name: a, arguments: {arguments}}}]\n")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        ScriptedModel.load(tmp_path / "none.yaml")
    assert caught.value.code == "scenario_invalid"


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_bytes(b"turns: \xff\xfe")
    with pytest.raises(UsageError, match="cannot be read"):
        ScriptedModel.load(tmp_path / "x.yaml")
