"""Open questions, about a tool call or of the agent: how they are shown, and what answers them. No I/O."""

from rich.text import Text

from cli import prompting, render
from hub.protocol.views import ApprovalView, QuestionView

Ask = ApprovalView | QuestionView

SINGLE_KEYS = frozenset(prompting.DECISIONS) | frozenset(prompting.APPROVAL_ACTIONS)
"""Keys that answer an approval alone."""


def card(ask: Ask, keys: str = "") -> list[Text]:
    """Return the question as it is put; `keys` is the line of keys of an approval."""
    return render.approval_card(ask, keys) if isinstance(ask, ApprovalView) else render.question_card(ask)


def how_to_answer(ask: Ask) -> list[Text]:
    """Return what a person may type elsewhere to answer."""
    if isinstance(ask, ApprovalView):
        words = f"  waiting: hubctl approve {ask.id}   or   hubctl reject {ask.id} --reason TEXT"
    else:
        words = f"  waiting: hubctl answer {ask.id} TEXT"
    return [Text(words, style="yellow")]


def is_answer(text: str) -> bool:
    """Return whether a line of a pipe is a key of an approval."""
    key, _, rest = text.partition(" ")
    return key == "r" or (not rest and (key in prompting.DECISIONS or key in prompting.APPROVAL_ACTIONS))


def chosen(ask: QuestionView, text: str) -> str:
    """Return the answer that a text means: an option by its number, else the text."""
    number = int(text) if text.isdecimal() else 0
    return ask.options[number - 1] if 1 <= number <= len(ask.options) else text
