"""Distinct id types: a prefix that says what it names, then 26 characters that sort by creation time."""

import os
import threading
import time
from typing import NewType

SessionId = NewType("SessionId", str)
PromptId = NewType("PromptId", str)
RunId = NewType("RunId", str)
MessageId = NewType("MessageId", str)
ToolCallId = NewType("ToolCallId", str)
ApprovalId = NewType("ApprovalId", str)
QuestionId = NewType("QuestionId", str)
GrantId = NewType("GrantId", str)
CheckpointId = NewType("CheckpointId", str)
RestoreId = NewType("RestoreId", str)
WorkspaceId = NewType("WorkspaceId", str)
DeliveryId = NewType("DeliveryId", str)
TokenId = NewType("TokenId", str)

PREFIXES: dict[str, str] = {
    "session": "ses",
    "prompt": "prm",
    "run": "run",
    "message": "msg",
    "tool_call": "call",
    "approval": "apr",
    "question": "qst",
    "grant": "grt",
    "checkpoint": "ckp",
    "restore": "rst",
    "notice": "ntc",
    "workspace": "wsp",
    "delivery": "dlv",
    "token": "tok",
    "boot": "boot",
    "hub": "hub",
    "log": "log",
    "batch": "bat",
}

_ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"  # Crockford base 32: no I, L, O, U
_RANDOM_BITS = 80
_lock = threading.Lock()
_last = 0


def new_id(kind: str) -> str:
    """Return a fresh id such as `run_01K...`: 48 bits of milliseconds and 80 random bits.

    Ids made by one process sort in the order in which they were made. Raises KeyError for an unknown kind.
    """
    global _last
    prefix = PREFIXES[kind]
    fresh = (time.time_ns() // 1_000_000 << _RANDOM_BITS) | int.from_bytes(os.urandom(10), "big")
    with _lock:
        _last = value = max(fresh, _last + 1)
    return f"{prefix}_{_base32(value)}"


def _base32(value: int) -> str:
    return "".join(_ALPHABET[value >> shift & 31] for shift in range(125, -1, -5))
