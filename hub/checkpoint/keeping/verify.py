"""What is found when checkpoints are looked after: a value that a table can be printed from.

Invariant: nothing is removed but what is proven to be ours and of no use: never a byte of a worktree, never a
checkpoint that can be read, never a lock of somebody else. Not promised: that what was sound stays so; the user's git
and disk go on.
"""

from typing import Literal

from hub.checkpoint.values import Value

Kind = Literal[
    "incomplete",
    "corrupt",
    "points_at_nothing",
    "no_checkpoint",
    "unfinished_restore",
    "journal",
    "protection",
    "transaction",
    "slots",
    "lock_file",
    "temporary_file",
    "index_lock",
    "rescued",
]
DAMAGE = frozenset({"incomplete", "corrupt", "points_at_nothing", "journal"})


class Finding(Value, frozen=True, kw_only=True):
    """One thing found. `name` is a ref below `refs/turnback/` or an absolute path, `text` says what and what to do.

    `incomplete`: objects are missing. `corrupt`: an object is not what its name says. `points_at_nothing`: the commit
    is missing. `no_checkpoint`: a ref of ours to something else. `unfinished_restore`: a restore was begun and not
    ended. `journal`: one that cannot be read. `protection`: it protects a checkpoint whose ref is gone. `transaction`,
    `slots`, `lock_file`, `temporary_file`: leftovers of ours. `index_lock`: a lock of git's that is in our way.
    `rescued`: what a restore put aside; it is for people to look through.
    """

    kind: Kind
    name: str
    text: str
    repaired: bool = False


class Verified(Value, frozen=True, kw_only=True):
    """The outcome: how many checkpoints there are and how many are complete, and all that was found besides.

    `deep`: the content of every object was read and compared with its name.
    """

    checkpoints: int
    complete: int
    deep: bool
    findings: tuple[Finding, ...]

    @property
    def is_sound(self) -> bool:
        """True when no checkpoint is damaged and no restore waits; leftovers and rescued files do not count."""
        return not any(
            row.kind in DAMAGE or row.kind == "unfinished_restore" for row in self.findings if not row.repaired
        )
