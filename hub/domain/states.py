"""One transition table per state machine. Code, SQL CHECK constraints, docs and tests read these tables.

An illegal move raises IllegalMove and changes nothing.
"""

from collections.abc import Mapping

import msgspec

from hub.errors import ConflictError


class IllegalMove(ConflictError):
    """The thing is not in a state from which it may go there."""

    default_code = "illegal_state"


class Machine(msgspec.Struct, frozen=True):
    """A state machine: its name, the state things begin in, and which states may follow which."""

    name: str
    initial: str
    moves: Mapping[str, frozenset[str]]

    @property
    def states(self) -> tuple[str, ...]:
        return tuple(self.moves)

    @property
    def final(self) -> frozenset[str]:
        return frozenset(state for state, following in self.moves.items() if not following)

    @property
    def live(self) -> tuple[str, ...]:
        """The states that are not final, in table order."""
        return tuple(state for state in self.moves if state not in self.final)

    def may(self, old: str, new: str) -> bool:
        """Return whether the move is in the table."""
        return new in self.moves.get(old, frozenset())

    def check(self, old: str, new: str) -> str:
        """Return `new`. Raises IllegalMove when the table has no such move."""
        if not self.may(old, new):
            raise IllegalMove(f"This {self.name} is {old} and cannot become {new}.")
        return new

    def before(self, new: str) -> tuple[str, ...]:
        """Return the states from which `new` can be reached in one move."""
        return tuple(state for state, following in self.moves.items() if new in following)


def _machine(name: str, moves: Mapping[str, str]) -> Machine:
    table = {state: frozenset(following.split()) for state, following in moves.items()}
    unknown = {target for following in table.values() for target in following} - set(table)
    if unknown:
        raise ValueError(f"{name}: unknown states {sorted(unknown)}")
    return Machine(name, next(iter(table)), table)


RUN = _machine(
    "run",
    {
        "queued": "running cancelled failed",
        "running": "waiting queued completed failed cancelled interrupted",
        "waiting": "running queued failed cancelled interrupted",
        "interrupted": "queued cancelled",
        "completed": "",
        "failed": "",
        "cancelled": "",
    },
)

PROMPT = _machine(
    "prompt",
    {"pending": "taken removed suspended", "suspended": "pending removed", "taken": "pending", "removed": ""},
)

TOOL_CALL = _machine(
    "tool call",
    {
        "proposed": "waiting executing denied skipped cancelled failed completed",
        "waiting": "proposed executing denied skipped cancelled failed completed",
        "executing": "completed failed cancelled unknown",
        "completed": "",
        "failed": "",
        "denied": "",
        "skipped": "",
        "cancelled": "",
        "unknown": "",
    },
)

APPROVAL = _machine(
    "approval",
    {
        "open": "allowed rejected expired cancelled suspended",
        "suspended": "open expired cancelled",
        "allowed": "",
        "rejected": "",
        "expired": "",
        "cancelled": "",
    },
)

QUESTION = _machine(
    "question",
    {
        "open": "answered expired cancelled suspended",
        "suspended": "open expired cancelled",
        "answered": "",
        "expired": "",
        "cancelled": "",
    },
)

DELIVERY = _machine(
    "delivery",
    {
        "pending": "sending sent failed expired suppressed",
        "sending": "sent failed unknown pending",
        "unknown": "pending sent failed",
        "sent": "",
        "failed": "",
        "expired": "",
        "suppressed": "",
    },
)

MACHINES: tuple[Machine, ...] = (RUN, PROMPT, TOOL_CALL, APPROVAL, QUESTION, DELIVERY)
