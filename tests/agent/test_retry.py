"""Answers with bounded retries: what is asked again, after how long, what is shown, what it all took."""

import pytest

from hub.agent.model import CallDelta, Finish, ModelError, ModelPart, Notice, ReasoningDelta, TextDelta, UsageReport
from hub.agent.retry import Answer, Draft, ask
from tests.agent.given import ListedModel, request, said

EMPTY: list[ModelPart | ModelError] = [Finish("stop")]


class Asked:
    """One question with everything that happens around it written down in order."""

    def __init__(self, model: ListedModel, *, discards: bool = True) -> None:
        self.model = model
        self.log: list[object] = []
        self._discards = discards

    async def answer(self) -> Answer:
        return await ask(
            self.model,
            request(),
            lambda part: self.log.append(part.text if isinstance(part, TextDelta) else part),
            on_discard=self._discard if self._discards else None,
            sleep=self._sleep,
        )

    async def _discard(self, reason: str) -> None:
        self.log.append(f"discard: {reason}")

    async def _sleep(self, seconds: float) -> None:
        self.log.append(seconds)

    @property
    def waits(self) -> list[object]:
        return [entry for entry in self.log if isinstance(entry, float)]


def retry(message: str = "busy", after_s: float | None = None) -> ModelError:
    return ModelError("retry", message, retry_after_s=after_s)


async def test_an_answer_is_assembled_from_its_parts() -> None:
    model = ListedModel(
        [
            ReasoningDelta("hm "),
            TextDelta("I "),
            ReasoningDelta("well"),
            CallDelta(0, "a", '{"x"'),
            TextDelta("read"),
            CallDelta(1, "b"),
            CallDelta(0, "", ":1}"),
            CallDelta(1, "", "{}"),
            UsageReport(7, 3, 2, 0.5),
            Finish("tool_calls"),
        ]
    )
    answer = await Asked(model).answer()
    calls = [("a", '{"x":1}'), ("b", "{}")]
    assert answer == Answer("I read", "hm well", calls, "tool_calls", UsageReport(7, 3, 2, 0.5), 1)
    assert model.closed == 1


async def test_empty_answers_are_asked_for_again_and_their_usage_is_added() -> None:
    empty: list[ModelPart | ModelError] = [
        ReasoningDelta("…"),
        TextDelta(" \n"),
        UsageReport(10, 1, 0, 0.1),
        Finish("stop"),
    ]
    asked = Asked(
        ListedModel(empty, [UsageReport(10, 0, 0, 0.25), Finish("other")], [UsageReport(10, 2, 0, 0.5), *said("yes")])
    )
    answer = await asked.answer()
    assert (answer.text, answer.attempts, answer.usage) == ("yes", 3, UsageReport(30, 3, 0, 0.85))
    assert asked.waits == [0.25, 0.25]
    assert "discard: The model answered with nothing." in asked.log


async def test_three_empty_answers_are_an_error() -> None:
    asked = Asked(ListedModel(EMPTY))
    with pytest.raises(ModelError, match=r"nothing.*3 times") as caught:
        await asked.answer()
    assert (caught.value.kind, asked.model.asked) == ("incomplete", 3)


async def test_an_answer_that_was_cut_before_its_first_word_is_not_empty() -> None:
    answer = await Asked(ListedModel([ReasoningDelta("long"), Finish("length")])).answer()
    assert (answer.text, answer.finish, answer.attempts) == ("", "length", 1)


async def test_a_call_without_a_word_is_not_empty() -> None:
    answer = await Asked(ListedModel([CallDelta(0, "a"), Finish("tool_calls")])).answer()
    assert answer.calls == [("a", "")]


async def test_passing_failures_are_retried_with_back_off() -> None:
    asked = Asked(ListedModel([retry()], [retry()], [retry()], said("there")))
    answer = await asked.answer()
    assert (answer.text, answer.attempts, asked.waits) == ("there", 4, [1.0, 2.0, 4.0])
    assert Notice("listed: busy Asking again in 4 s.") in asked.log


async def test_the_fourth_failure_in_a_row_is_final() -> None:
    asked = Asked(ListedModel([retry()]))
    with pytest.raises(ModelError, match=r"busy \(asked 4 times\)") as caught:
        await asked.answer()
    assert (caught.value.kind, asked.model.asked) == ("retry", 4)


@pytest.mark.parametrize(("wish", "waits"), [(0.2, [1.0]), (7.5, [7.5]), (120.0, [120.0])])
async def test_a_wish_of_the_server_is_honoured(wish: float, waits: list[float]) -> None:
    asked = Asked(ListedModel([retry(after_s=wish)], said("x")))
    await asked.answer()
    assert asked.waits == waits


async def test_a_wish_that_is_too_long_ends_it() -> None:
    asked = Asked(ListedModel([retry(after_s=3600)], said("x")))
    with pytest.raises(ModelError) as caught:
        await asked.answer()
    assert (caught.value.retry_after_s, asked.waits) == (3600, [])


@pytest.mark.parametrize("kind", ["overflow", "auth", "quota", "invalid", "cancelled", "unknown"])
async def test_other_failures_are_final(kind: str) -> None:
    asked = Asked(ListedModel([ModelError(kind, "no")], said("x")))  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"^no$") as caught:
        await asked.answer()
    assert (caught.value.kind, asked.model.asked) == (kind, 1)


@pytest.mark.parametrize("shown", [TextDelta("half"), CallDelta(0, "rm"), ReasoningDelta("hm")])
async def test_what_was_shown_is_not_repeated_unless_it_can_be_discarded(shown: ModelPart) -> None:
    broken = [shown, ModelError("incomplete", "cut")]
    silent = Asked(ListedModel(broken, said("whole")), discards=False)
    with pytest.raises(ModelError, match="cut"):
        await silent.answer()
    assert silent.model.asked == 1
    asked = Asked(ListedModel(broken, said("whole")))
    answer = await asked.answer()
    assert (answer.text, answer.calls, answer.reasoning) == ("whole", [], "")
    assert asked.log.index("discard: cut") < asked.log.index("whole")


async def test_a_stream_without_an_end_is_incomplete() -> None:
    asked = Asked(ListedModel([TextDelta("half")], said("whole")))
    assert (await asked.answer()).text == "whole"


async def test_nothing_behind_the_end_counts() -> None:
    model = ListedModel([TextDelta("all"), Finish("stop"), TextDelta("more")])
    assert (await Asked(model).answer()).text == "all"
    assert model.closed == 1


@pytest.mark.parametrize(
    ("first", "total"),
    [
        ([retry()], UsageReport(5, 5, 5, 0.5)),
        ([TextDelta("x"), retry()], UsageReport()),
        ([TextDelta("x"), UsageReport(1, 1, 1, None), retry()], UsageReport(6, 6, 6, None)),
        (EMPTY, UsageReport()),
    ],
)
async def test_what_an_attempt_took(first: list[ModelPart | ModelError], total: UsageReport) -> None:
    asked = Asked(ListedModel(first, [UsageReport(5, 5, 5, 0.5), *said("x")]))
    assert (await asked.answer()).usage == total


async def test_a_fallback_is_asked_when_the_model_has_failed_for_good() -> None:
    second = ListedModel(said("from the second"), name="second")
    asked = Asked(ListedModel([TextDelta("half"), ModelError("quota", "empty purse")], name="first", fallback=second))
    answer = await asked.answer()
    assert (answer.text, answer.attempts) == ("from the second", 2)
    assert asked.log == [
        "half",
        "discard: first: empty purse",
        Notice("first failed (quota); asking second"),
        "from the second",
        Finish("stop"),
    ]


async def test_a_fallback_is_not_asked_what_no_model_can_answer() -> None:
    second = ListedModel(said("x"))
    asked = Asked(ListedModel([ModelError("invalid", "no")], fallback=second))
    with pytest.raises(ModelError, match="no"):
        await asked.answer()
    assert second.asked == 0


def test_a_draft_keeps_calls_in_the_order_of_their_numbers() -> None:
    draft = Draft()
    for part in (
        CallDelta(1, "b"),
        CallDelta(0, "a"),
        CallDelta(1, "", "2"),
        CallDelta(0, "late", "1"),
        Finish("stop"),
    ):
        draft.add(part)
    assert draft.answer(UsageReport(), 1).calls == [("a", "1"), ("b", "2")]
