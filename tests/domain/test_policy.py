"""Policy: the first rule that speaks wins, plan only narrows, doubt asks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hub.domain.commands import analyse
from hub.domain.policy import Effect, Facts, Rules, arguments_hash, rule, targets

OPEN = Rules(agent_mode="act", preset="default", auto_approve=frozenset(), granted=frozenset())


def facts(effect: Effect, *commands: str, inside: bool = True, paths: tuple[str, ...] = ("/w/a",)) -> Facts:
    shown = tuple(analyse(command) for command in commands)
    return Facts(tool="t", effect=effect, inside=inside, paths=() if commands else paths, commands=shown)


def rules(**changes: object) -> Rules:
    return Rules(**{name: changes.get(name, getattr(OPEN, name)) for name in Rules.__struct_fields__})


@pytest.mark.parametrize(
    ("call", "allowed", "verdict", "source"),
    [
        (facts("read"), OPEN, "allow", "base"),
        (facts("read", inside=False), OPEN, "ask", "base"),
        (facts("workspace"), OPEN, "ask", "base"),
        (facts("external", "make test"), OPEN, "ask", "base"),
        (facts("external", "ls"), OPEN, "ask", "base"),
        (facts("ask"), OPEN, "allow", "base"),
        (facts("finish"), rules(agent_mode="plan"), "allow", "base"),
        (facts("workspace"), rules(auto_approve=frozenset({"edits"})), "allow", "auto-approve:edits"),
        (facts("workspace", inside=False), rules(auto_approve=frozenset({"edits"})), "ask", "base"),
        (facts("external", "rm -rf x"), rules(auto_approve=frozenset({"edits"})), "ask", "base"),
        (facts("external", "rm -rf x"), rules(auto_approve=frozenset({"commands"})), "allow", "auto-approve:commands"),
        (facts("workspace"), rules(auto_approve=frozenset({"commands"})), "ask", "base"),
        (facts("read", inside=False), rules(auto_approve=frozenset({"all"})), "allow", "auto-approve:all"),
        (facts("workspace", inside=False), rules(preset="yolo"), "allow", "preset:yolo"),
        (facts("workspace"), rules(preset="yolo", agent_mode="plan"), "deny", "mode:plan"),
        (facts("external", "make"), rules(auto_approve=frozenset({"all"}), agent_mode="plan"), "deny", "mode:plan"),
        (facts("external", "ls; rm x"), rules(agent_mode="plan"), "deny", "mode:plan"),
        (facts("external", "ls"), rules(agent_mode="plan"), "ask", "base"),
        (facts("external", "ls", "rm x"), rules(agent_mode="plan", preset="yolo"), "deny", "mode:plan"),
    ],
)
def test_rulings(call: Facts, allowed: Rules, verdict: str, source: str) -> None:
    ruling = rule(call, allowed)
    assert (ruling.verdict, ruling.source) == (verdict, source)
    assert ruling.reason


def granted(tool: str, *lines: str) -> Rules:
    return rules(granted=frozenset((tool, target) for target in targets(facts("external", *lines))))


@pytest.mark.parametrize(
    ("allowed", "asked", "verdict"),
    [
        (["make test"], ["make test"], "allow"),
        (["make test"], ["make  'test'"], "allow"),
        (["make test"], ["make"], "ask"),
        (["make test"], ["make test extra"], "ask"),
        (["env ls"], ["env sh -c x"], "ask"),
        (["ls"], ["ls", "rm x"], "ask"),
        (["ls", "rm x"], ["rm x"], "allow"),
        (["echo x | node"], ["echo x | node"], "allow"),
        (["echo x | node"], ["echo x | sh"], "ask"),
        (["a"], ["a; b"], "ask"),
        (["a"], ["A=1 a"], "ask"),
        (["a"], ["$(b)"], "ask"),
        (["a"], ["a\nb"], "ask"),
        (["a"], ["a & b"], "ask"),
    ],
)
def test_a_grant_allows_exactly_its_targets(allowed: list[str], asked: list[str], verdict: str) -> None:
    assert rule(facts("external", *asked), granted("t", *allowed)).verdict == verdict


def test_a_grant_is_bound_to_its_tool() -> None:
    assert rule(facts("external", "ls"), granted("other", "ls")).verdict == "ask"


MODES = st.sampled_from(["act", "plan"])
PRESETS = st.sampled_from(["default", "search", "minimal", "yolo"])
CATEGORIES = st.frozensets(st.sampled_from(["edits", "commands", "all"]))
CALLS = st.sampled_from(
    [
        facts("read"),
        facts("read", inside=False),
        facts("workspace"),
        facts("external", "rm x"),
        facts("external", "a;b"),
    ]
)


@given(call=CALLS, mode=MODES, preset=PRESETS, categories=CATEGORIES)
def test_plan_never_allows_what_act_does_not(call: Facts, mode: str, preset: str, categories: frozenset[str]) -> None:
    order = {"deny": 0, "ask": 1, "allow": 2}
    act = rule(call, rules(preset=preset, auto_approve=categories))
    plan = rule(call, rules(preset=preset, auto_approve=categories, agent_mode="plan"))
    assert order[plan.verdict] <= order[act.verdict]
    if call.effect in ("workspace", "external"):
        assert plan.verdict == "deny"


@given(st.dictionaries(st.text(), st.integers() | st.text() | st.lists(st.text()), max_size=4))
def test_the_hash_does_not_depend_on_the_order_of_keys(arguments: dict[str, object]) -> None:
    turned = dict(reversed(list(arguments.items())))
    assert arguments_hash("t", arguments) == arguments_hash("t", turned)
    assert arguments_hash("t", arguments) != arguments_hash("u", arguments)
    assert arguments_hash("t", {**arguments, "more": 1}) != arguments_hash("t", {**arguments, "more": 2})
