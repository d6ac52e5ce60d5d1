"""What a shell command line is, as far as policy may reason about it.

A line is `parsed` only when a shell would run exactly one program with exactly the words seen here: no operators,
substitution, redirection, expansion, comments or newlines, and every quote closed. Anything else means doubt, and doubt
means "ask": such a line has no target and is never read-only.

Invariant: two lines with the same target run the same program with the same words, environment and user.
Not promised: that a read-only program reads only inside the workspace, or that the name of a program leads to the
program of that name (PATH decides).
"""

import re
import shlex
from collections.abc import Callable, Mapping

import msgspec

from hub.domain.readonly import reads_only

ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
DURATION = re.compile(r"[0-9]*\.?[0-9]+[smhd]?")
NICENESS = re.compile(r"-[0-9]+")
SYSTEM_FOLDERS = ("/bin/", "/usr/bin/")
# Outside quotes these make a shell do more than split words: operators, redirection, substitution, expansion, comment.
SPECIAL = frozenset(";&|<>()$`*?[]{}")
SPECIAL_AT_START = frozenset("~#")  # of a word, and ~ also behind these:
BEFORE_TILDE = frozenset("=:")
RESERVED = frozenset(
    {"if", "then", "else", "elif", "fi", "case", "esac", "for", "select", "while", "until", "do", "done", "in"}
    | {"function", "coproc", "!"}
)
QUOTING = "'\"\\"
MAX_WRAPPERS = 20


class Analysis(msgspec.Struct, frozen=True):
    """What is known of a command line, which is `text`. `argv` is the program and its words without wrappers; `target`
    is what an exact grant is bound to: `argv`, preceded by what the wrappers change (environment, user). Both are empty
    unless parsed. `reason` says why a line is not parsed."""

    text: str
    parsed: bool
    read_only: bool = False
    argv: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    reason: str = ""


class _Unwrapped(msgspec.Struct, frozen=True):
    """Words still to look at, after the environment changes and the user change that were taken off."""

    words: tuple[str, ...]
    environment: tuple[str, ...] = ()
    user: tuple[str, ...] = ()


class _Doubt(Exception):
    """The line cannot be reasoned about; the text says why."""


def analyse(line: str) -> Analysis:
    """Return what policy may know of the line."""
    try:
        found = _unwrap(_without_assignments(line, _words(line)))
    except _Doubt as doubt:
        return Analysis(line, parsed=False, reason=str(doubt))
    environment = ("env", *found.environment) if found.environment else ()
    plain = not found.environment and not found.user
    return Analysis(
        line,
        parsed=True,
        read_only=plain and reads_only(_program(found.words[0]), found.words[1:]),
        argv=found.words,
        target=(*found.user, *environment, *found.words),
    )


def _words(line: str) -> tuple[str, ...]:
    """Return the words as a shell would split them. Raises _Doubt."""
    _check_characters(line)
    words = tuple(shlex.split(line))
    if not words:
        raise _Doubt("the line is empty")
    return words


def _check_characters(line: str) -> None:
    """Raise _Doubt at the first character that a shell would take for more than a part of a word."""
    quote, at, before = "", 0, " "
    while at < len(line):
        character = line[at]
        if not character.isprintable() and character != "\t":
            raise _Doubt("it holds a newline or another control character")
        if character == "\\" and quote != "'":
            _check_escape(line[at + 1 : at + 2], quote)
            at, before = at + 2, character
            continue
        if character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote = character
        elif _acts(character, before, quote):
            raise _Doubt(f"it holds {character}, which a shell acts on")
        at, before = at + 1, character
    if quote:
        raise _Doubt("a quote is not closed")


def _acts(character: str, before: str, quote: str) -> bool:
    """Say whether a shell does something with the character at this place."""
    if quote:
        return quote == '"' and character in "$`"
    if character in SPECIAL:
        return True
    return character in SPECIAL_AT_START and (before.isspace() or (character == "~" and before in BEFORE_TILDE))


def _check_escape(escaped: str, quote: str) -> None:
    """Inside double quotes only these two escapes mean the same to a shell and to shlex."""
    if not escaped.isprintable() or not escaped:
        raise _Doubt("a backslash stands before a newline or the end")
    if quote == '"' and escaped not in ('"', "\\"):
        raise _Doubt("it holds a backslash inside double quotes")


def _without_assignments(line: str, words: tuple[str, ...]) -> _Unwrapped:
    """Take off the assignments before the program. A quoted name is none: that the words are
    assignments must show in the line itself."""
    count = 0
    while count < len(words) and ASSIGNMENT.match(words[count]):
        count += 1
    if count == len(words):
        raise _Doubt("it only sets variables")
    first, quoted = words[0].partition("=")[0] + "=", any(mark in line for mark in QUOTING)
    if count and (not line.lstrip().startswith(first) or (count > 1 and quoted)):
        raise _Doubt("it sets variables in a way that is not plain")
    return _Unwrapped(words[count:], words[:count])


def _unwrap(found: _Unwrapped) -> _Unwrapped:
    """Take off wrappers until a program is left. Raises _Doubt."""
    for _ in range(MAX_WRAPPERS):
        _check_program(found.words[0])
        program = _program(found.words[0])
        wrapper = WRAPPERS.get(program)
        if wrapper is None:
            return found
        found = wrapper(found)
        if not found.words:
            raise _Doubt(f"{program} has nothing to run")
    raise _Doubt("too many wrappers")


def _check_program(word: str) -> None:
    """Raise _Doubt if the word is, or may be taken for, something else than a program's name."""
    if not word or word in RESERVED or word.startswith("-") or "=" in word:
        raise _Doubt(f"{word!r} is not the name of a program")


def _program(word: str) -> str:
    """Return the program's bare name if it is one, or lies in a folder of the system; else the word as it is."""
    for folder in SYSTEM_FOLDERS:
        name = word.removeprefix(folder)
        if name != word and "/" not in name:
            return name
    return word


def _env(found: _Unwrapped) -> _Unwrapped:
    words, environment = found.words[1:], found.environment
    if found.user:
        raise _Doubt("it sets variables for another user")
    while words and words[0].startswith("-"):
        if words[0] in ("-i", "-", "--ignore-environment"):
            words, environment = words[1:], (*environment, "-i")
        elif words[0] in ("-u", "--unset") and len(words) > 1:
            words, environment = words[2:], (*environment, "-u", words[1])
        elif words[0] == "--":
            words = words[1:]
            break
        else:
            raise _Doubt(f"env has the option {words[0]}")
    while words and "=" in words[0]:
        words, environment = words[1:], (*environment, words[0])
    return _Unwrapped(words, environment, found.user)


def _nice(found: _Unwrapped) -> _Unwrapped:
    words = found.words[1:]
    if words and words[0] in ("-n", "--adjustment"):
        words = _after_value(words, re.compile(r"[-+]?[0-9]+"), "nice")
    elif words and (NICENESS.fullmatch(words[0]) or re.fullmatch(r"(-n|--adjustment=)[-+]?[0-9]+", words[0])):
        words = words[1:]
    return _inner(found, words)


def _timeout(found: _Unwrapped) -> _Unwrapped:
    words = found.words[1:]
    while words and words[0].startswith("-"):
        if words[0] in ("--foreground", "--preserve-status", "-v", "--verbose"):
            words = words[1:]
        elif words[0] in ("-k", "--kill-after"):
            words = _after_value(words, DURATION, "timeout")
        elif words[0] in ("-s", "--signal"):
            words = _after_value(words, re.compile(r"[A-Z0-9]+"), "timeout")
        else:
            raise _Doubt(f"timeout has the option {words[0]}")
    if not words or not DURATION.fullmatch(words[0]):
        raise _Doubt("timeout has no duration")
    return _inner(found, words[1:])


def _nohup(found: _Unwrapped) -> _Unwrapped:
    return _inner(found, found.words[1:])


def _time(found: _Unwrapped) -> _Unwrapped:
    words = found.words[1:]
    return _inner(found, words[1:] if words[:1] == ("-p",) else words)


def _sudo(found: _Unwrapped) -> _Unwrapped:
    """Take off sudo and keep whose rights it gives. Variables set before it are not those of the program."""
    if found.environment:
        raise _Doubt("it sets variables for another user")
    words, user = found.words[1:], [*found.user, "sudo"]
    while words and words[0].startswith("-"):
        if words[0] in ("-n", "--non-interactive"):
            words = words[1:]
        elif words[0] in ("-u", "--user", "-g", "--group") and len(words) > 1:
            user += words[:2]
            words = words[2:]
        elif words[0] == "--":
            words = words[1:]
            break
        else:
            raise _Doubt(f"sudo has the option {words[0]}")
    return _Unwrapped(words, (), tuple(user))


def _inner(found: _Unwrapped, words: tuple[str, ...]) -> _Unwrapped:
    """Return the rest behind a wrapper that changes nothing of what runs."""
    return _Unwrapped(words, found.environment, found.user)


def _after_value(words: tuple[str, ...], form: re.Pattern[str], wrapper: str) -> tuple[str, ...]:
    if len(words) < 2 or not form.fullmatch(words[1]):
        raise _Doubt(f"{wrapper} has the option {words[0]} without a value that is understood")
    return words[2:]


WRAPPERS: Mapping[str, Callable[[_Unwrapped], _Unwrapped]] = {
    "env": _env,
    "nice": _nice,
    "timeout": _timeout,
    "nohup": _nohup,
    "time": _time,
    "sudo": _sudo,
}
