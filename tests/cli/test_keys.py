"""What keys mean while a question stands: only a single one, pressed at it, answers."""

import pytest

from cli.keys import AFTER_S, BEFORE_S, Entered, Key, Pressed, Typing

SINGLE = "asArd?"
SHOWN = 100.0


def played(*keys: Key, before: tuple[Key, ...] = ()) -> tuple[list[Pressed | Entered], str]:
    """Return what the keys complete, where those `before` came before the question, and the text that is left."""
    typing, done = Typing(), []
    for key in before:
        typing.key(key, ())
    typing.asked(SHOWN)
    for key, after in zip(keys, (*keys[1:], None), strict=True):
        done.append(typing.key(key, SINGLE))
        if after is None or after.at - key.at > AFTER_S:
            done.append(typing.quiet(key))
    return [one for one in done if one], typing.text


def typed(text: str, at: float, gap: float = 0.1) -> tuple[Key, ...]:
    return tuple(Key(char, at + number * gap) for number, char in enumerate(text))


@pytest.mark.parametrize("char", SINGLE)
def test_a_single_key_answers(char: str) -> None:
    assert played(Key(char, SHOWN + 1)) == ([Pressed(char)], "")


def test_enter_after_a_single_key_answers_at_once() -> None:
    assert played(Key("a", SHOWN + 1), Key("\n", SHOWN + 1.1)) == ([Pressed("a")], "")


def test_keys_one_after_another_each_answer() -> None:
    assert played(*typed("?da", SHOWN + 1, BEFORE_S + 0.1)) == ([Pressed("?"), Pressed("d"), Pressed("a")], "")


@pytest.mark.parametrize("text", ["all of it", "read it", "Aa", "ss"])
def test_typing_is_text(text: str) -> None:
    assert played(*typed(text, SHOWN + 1)) == ([], text)
    assert played(*typed(text + "\n", SHOWN + 1)) == ([Entered(text, earlier=False)], "")


def test_keys_at_once_are_text() -> None:
    pasted = [Key(char, SHOWN + 1, burst=True) for char in "a\n"]
    assert played(*pasted) == ([Entered("a", earlier=False)], "")


def test_a_line_begun_before_the_question_goes_on() -> None:
    assert played(*typed("a", SHOWN + 2), before=typed("us", SHOWN - 9)) == ([], "usa")
    done, _ = played(*typed("e it\n", SHOWN + 2), before=typed("us", SHOWN - 9))
    assert done == [Entered("use it", earlier=True)]


def test_a_key_right_after_others_is_text() -> None:
    assert played(Key("a", SHOWN + 0.1), before=typed("go\n", SHOWN - 0.4)) == ([], "a")


def test_a_key_older_than_the_question_is_text() -> None:
    assert played(Key("a", SHOWN - 0.1), Key("a", SHOWN + 5)) == ([], "aa")


def test_a_held_key_does_not_answer_the_next_question() -> None:
    typing = Typing()
    typing.asked(SHOWN)
    key = Key("a", SHOWN + 1)
    assert typing.key(key, SINGLE) is None
    typing.asked(SHOWN + 1.1)
    assert typing.quiet(key) is None
    assert (typing.text, typing.empty) == ("a", False)


def test_what_was_typed_can_be_erased_and_then_a_key_answers() -> None:
    keys = (*typed("xy", SHOWN + 1), *typed("\x7f\x7f", SHOWN + 2), Key("a", SHOWN + 3))
    assert played(*keys) == ([Pressed("a")], "")
    assert played(*typed("xy", SHOWN + 1), Key("\x15", SHOWN + 2), Key("a", SHOWN + 3)) == ([Pressed("a")], "")
