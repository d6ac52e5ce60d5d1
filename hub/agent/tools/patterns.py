"""Search patterns that mean the same to ripgrep and to Python's `re`.

A query is read as a regular expression in the part that both know, and written out for each: literals, `.`, classes,
groups, alternatives, quantifiers, `^ $ \\b \\B`, `\\w \\d \\s` and their opposites, `(?i)`. What one of them reads
differently is written so that both agree (`{` that is no quantifier is a brace; `$` also stands before a carriage
return); what only one of them has (look-around, back-references, possessive quantifiers, `\\p{…}`) is refused with the
reason. Pure.

Invariant: for any accepted query and any line, both forms match or neither does.
Not promised: equal Unicode tables (which rare letters `\\w` holds), nor that ripgrep accepts a pattern of any size.
"""

import string

import msgspec

from hub.agent.tools.base import ToolFailure

MAX_REPEAT = 1_000
MAX_LENGTH = 2_000  # characters of a query
LETTER_ESCAPES = {"t": "\t", "r": "\r", "f": "\f", "v": "\v", "a": "\a"}
HEX_ESCAPES = {"x": 2, "u": 4, "U": 8}
WHITE = r"\x09\x0b-\x0d\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
NOT_WHITE_TO_RIPGREP = r"\x1c-\x1f"  # white space to `re` only
INVALID = r"\udc80-\udcff"  # how bytes that are not UTF-8 are decoded; ripgrep's `.` and `[^…]` don't match those
POSIX = {
    "alpha": "a-zA-Z",
    "digit": "0-9",
    "alnum": "0-9a-zA-Z",
    "upper": "A-Z",
    "lower": "a-z",
    "xdigit": "0-9A-Fa-f",
    "word": "0-9A-Za-z_",
    "space": r"\x09\x0b-\x0d\x20",
    "blank": r"\x09\x20",
    "punct": r"!-/:-@\x5b-`\x7b-~",
}


EDGES = {"b": (r"\b", r"\b"), "B": (r"\B", r"(?!\b)")}  # `re` finds no \B in an empty line
SHORTHANDS = {
    **{name: (f"\\{name}", f"\\{name}") for name in "wWdD"},
    "s": (WHITE, WHITE),
    "S": (r"\S", rf"\S{NOT_WHITE_TO_RIPGREP}"),
}


class Pattern(msgspec.Struct, frozen=True):
    """A query in both forms. `python` matches a line decoded as UTF-8 with surrogateescape, without its newline."""

    ripgrep: str
    python: str


class _Piece(msgspec.Struct, frozen=True):
    """A part of a pattern in both forms. `repeatable` says whether a quantifier may follow."""

    ripgrep: str
    python: str
    repeatable: bool = True


def portable(query: str) -> Pattern:
    """Return the query in both forms. Raises ToolFailure with what is wrong in it and what to write instead."""
    if len(query) > MAX_LENGTH:
        raise ToolFailure(f"The pattern has {len(query)} characters, more than {MAX_LENGTH}.")
    if "\n" in query or "\0" in query:
        raise ToolFailure("A pattern is matched line by line, so it cannot hold a newline (or a NUL character).")
    return _Reader(query).whole()


class _Reader:
    """Reads one query from left to right."""

    def __init__(self, query: str) -> None:
        self._query = query
        self._at = 0

    def whole(self) -> Pattern:
        prefix = self._leading_flags()
        body = self._alternatives(depth=0)
        if self._at < len(self._query):
            raise self._wrong("a ) without its (")
        return Pattern(prefix + body.ripgrep, prefix + body.python)

    def _leading_flags(self) -> str:
        """Read `(?i)` and its like; only i matters when lines are matched one by one."""
        closing = self._query.find(")")
        flags = self._query[2:closing]
        if not self._query.startswith("(?") or not flags or set(flags) - set("ims"):
            return ""
        self._at = closing + 1
        return "(?i)" if "i" in flags else ""

    def _alternatives(self, depth: int) -> _Piece:
        ripgrep, python = self._sequence(depth)
        while self._peek() == "|":
            self._at += 1
            more = self._sequence(depth)
            ripgrep, python = f"{ripgrep}|{more[0]}", f"{python}|{more[1]}"
        return _Piece(ripgrep, python)

    def _sequence(self, depth: int) -> tuple[str, str]:
        ripgrep, python = "", ""
        while self._at < len(self._query) and self._peek() not in "|)":
            piece = self._quantified(self._atom(depth))
            ripgrep, python = ripgrep + piece.ripgrep, python + piece.python
        return ripgrep, python

    def _atom(self, depth: int) -> _Piece:
        character = self._take()
        if character == "\\":
            return self._escape()
        if character == "[":
            return self._class()
        if character == "(":
            return self._group(depth)
        if character == ".":
            return _Piece(".", f"[^\\n{INVALID}]")
        if character == "^":
            return _Piece("^", r"\A", repeatable=False)
        if character == "$":
            return _Piece(r"(?:\r?$)", r"(?:\r?\Z)", repeatable=False)
        if character in "*+?" or (character == "{" and self._counts(self._at - 1) is not None):
            raise self._wrong(f"{character} with nothing before it to repeat")
        return _literal(character)

    def _group(self, depth: int) -> _Piece:
        opening = self._group_opening()
        if depth >= 50:
            raise self._wrong("groups nested too deep")
        body = self._alternatives(depth + 1)
        if self._peek() != ")":
            raise self._wrong("a ( without its )")
        self._at += 1
        return _Piece(f"{opening}{body.ripgrep})", f"{opening}{body.python})")

    def _group_opening(self) -> str:
        """Read what follows a `(`. Names and numbers of groups don't matter to a search."""
        if self._peek() != "?":
            return "(?:"
        rest = self._query[self._at :]
        for plain in ("?:", "?i:", "?-i:"):
            if rest.startswith(plain):
                self._at += len(plain)
                return f"({plain}"
        start = next((start for start in ("?P<", "?<") if rest.startswith(start)), None)
        name, closed, _ = rest[len(start or "") :].partition(">")
        if start is None or not closed or not name.isidentifier():
            raise self._wrong("look-around, a condition or an unknown kind of group, which searches don't have")
        self._at += len(start) + len(name) + 1
        return "(?:"

    def _quantified(self, piece: _Piece) -> _Piece:
        quantifier = self._quantifier()
        if not quantifier:
            return piece
        if not piece.repeatable:
            raise self._wrong("a quantifier after something that has no length")
        if self._peek() == "?":
            self._at += 1
            quantifier += "?"
        if self._quantifier():
            raise self._wrong("two quantifiers in a row (put the first in a group)")
        return _Piece(piece.ripgrep + quantifier, piece.python + quantifier)

    def _quantifier(self) -> str:
        character = self._peek()
        if character and character in "*+?":
            self._at += 1
            return character
        counts = self._counts(self._at) if character == "{" else None
        if counts is None:
            return ""
        self._at = self._query.index("}", self._at) + 1
        return counts

    def _counts(self, start: int) -> str | None:
        """Return the counts in the braces that open at `start`, as both write them; None if it is just a brace."""
        inside, closed, _ = self._query[start + 1 :].partition("}")
        low, comma, high = inside.partition(",")
        if not closed or not (low or (comma and high)) or not all(_is_count(part) for part in (low, high)):
            return None
        if any(int(part or 0) > MAX_REPEAT for part in (low, high)) or (low and high and int(low) > int(high)):
            raise self._wrong(f"a count above {MAX_REPEAT}, or counts in the wrong order")
        return "{" + (low or "0") + comma + high + "}"

    def _escape(self) -> _Piece:
        character = self._take()
        if character in EDGES:
            return _Piece(*EDGES[character], repeatable=False)
        shorthand = _shorthand(character)
        if shorthand is not None:
            return shorthand
        return _literal(self._escaped(character))

    def _escaped(self, character: str) -> str:
        """Return the character that an escape stands for; the backslash and `character` are read."""
        if character in LETTER_ESCAPES:
            return LETTER_ESCAPES[character]
        if character in HEX_ESCAPES:
            return self._code_point(HEX_ESCAPES[character])
        if character.isascii() and character.isalnum():
            raise self._wrong(f"\\{character}, which searches don't have")
        return character

    def _code_point(self, digits: int) -> str:
        """Read the code of a character: so many digits, or any number of them in braces."""
        rest = self._query[self._at :]
        if rest.startswith("{"):
            text, closed, _ = rest[1:].partition("}")
            whole, length = bool(closed) and 0 < len(text) <= 8, len(text) + 2
        else:
            text = rest[:digits]
            whole, length = len(text) == digits, digits
        if not whole or set(text) - set(string.hexdigits):
            raise self._wrong("a character code that is not whole")
        self._at += length
        value = int(text, 16)
        if value in (0, 10) or value > 0x10FFFF or 0xD800 <= value <= 0xDFFF:
            raise self._wrong("the code of a character that no line can hold")
        return chr(value)

    def _class(self) -> _Piece:
        negated = self._peek() == "^"
        self._at += negated
        ripgrep, python, first = "", "", True
        while first or self._peek() != "]":
            item = self._class_item()
            ripgrep, python, first = ripgrep + item.ripgrep, python + item.python, False
        self._at += 1
        sign = "^" if negated else ""
        return _Piece(f"[{sign}{ripgrep}]", f"(?:(?![{INVALID}])[{sign}{python}])")

    def _class_item(self) -> _Piece:
        if self._query.startswith("[:", self._at):
            return self._posix()
        item = self._class_character()
        if isinstance(item, _Piece):
            return item
        if self._peek() != "-" or self._query[self._at + 1 : self._at + 2] in ("]", ""):
            return _literal(item)
        self._at += 1
        last = self._class_character()
        if isinstance(last, _Piece) or last < item:
            raise self._wrong("a range in a class that has no order")
        return _Piece(f"{_literal(item).ripgrep}-{_literal(last).ripgrep}", f"{_code(item)}-{_code(last)}")

    def _class_character(self) -> _Piece | str:
        character = self._take()
        if character != "\\":
            return character
        character = self._take()
        return _Piece(*SHORTHANDS[character]) if character in SHORTHANDS else self._escaped(character)

    def _posix(self) -> _Piece:
        name, closed, _ = self._query[self._at + 2 :].partition(":]")
        if not closed or name not in POSIX:
            raise self._wrong("an unknown [:class:]")
        self._at += len(name) + 4
        return _Piece(POSIX[name], POSIX[name])

    def _peek(self) -> str:
        return self._query[self._at : self._at + 1]

    def _take(self) -> str:
        if self._at >= len(self._query):
            raise self._wrong("an end in the middle of an escape or a class")
        self._at += 1
        return self._query[self._at - 1]

    def _wrong(self, what: str) -> ToolFailure:
        return ToolFailure(
            f"The pattern {self._query!r} has {what} (at character {self._at}). To search for these characters "
            "themselves, put a backslash before each of them."
        )


def _literal(character: str) -> _Piece:
    """Return one character by itself. Punctuation is written as a code, which no dialect takes for anything else."""
    return _Piece(_code(character), _code(character))


def _code(character: str) -> str:
    value = ord(character)
    if character.isascii() and (character.isalnum() or character == "_"):
        return character
    return f"\\x{value:02x}" if value < 0x80 else character


def _shorthand(character: str) -> _Piece | None:
    if character not in SHORTHANDS:
        return None
    ripgrep, python = SHORTHANDS[character]
    return _Piece(f"[{ripgrep}]", f"(?:(?![{INVALID}])[{python}])")


def _is_count(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and len(text) <= 4)
