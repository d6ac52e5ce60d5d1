"""The branch that moves with a restore: planned, carried out, taken back.

Invariant: a branch moves only along its own history, back to an ancestor or forward again to what a restore took off;
before it goes back its old tip is kept under a ref of ours, so that no commit gets lost. It moves only from the commit
it was planned from; the reflog tells it. Not promised: HEAD's choice of branch; a restore never switches branches.
"""

from hub.checkpoint.capture.operations import distance, head_of
from hub.checkpoint.repository import GitFailed, Repository
from hub.checkpoint.restoring.journal import HeadOperation
from hub.checkpoint.stores.meta import State
from hub.checkpoint.stores.records import PREFIX
from hub.checkpoint.stores.side import Store
from hub.checkpoint.values import HeadMove
from hub.errors import ConflictError, RefusedError, UsageError


def plan_move(user: Repository, now: State, target: State, kept_ref: str | None) -> HeadMove | None:
    """Return how the branch gets to the target's commit, None when it is there.

    Raises RefusedError: head_unknown, other_branch, head_not_ancestor; UsageError without a name to keep the tip.
    """
    if target.head is None or now.head is None:
        if target.head == now.head and target.branch == now.branch:
            return None
        raise RefusedError("There was no commit at the checkpoint, or there is none now.", code="head_unknown")
    if target.branch != now.branch:
        raise RefusedError(
            f"The checkpoint was taken on {name_of(target.branch)}, you are on {name_of(now.branch)}.",
            code="other_branch",
            hint="Switch to that branch first, or restore without moving it.",
        )
    if target.head == now.head:
        return None
    forward = not _is_ancestor(user, target.head, now.head)
    if forward:
        _check_forward(user, now.head, target.head)
    elif kept_ref is None:
        raise UsageError("The commits that come off the branch need a ref that keeps them.", code="invalid_params")
    return HeadMove(
        ref=now.branch or "HEAD",
        old=now.head,
        new=target.head,
        forward=forward,
        commits=distance(user, *((now.head, target.head) if forward else (target.head, now.head))),
        kept_ref=None if forward else kept_ref,
    )


def _check_forward(user: Repository, now: str, target: str) -> None:
    kept = user.run("for-each-ref", "--format=%(refname)", f"--points-at={target}", PREFIX.rstrip("/")).splitlines()
    if not any(ref.endswith(b"o") for ref in kept) or not _is_ancestor(user, now, target):
        raise RefusedError(
            f"The checkpoint's commit {target[:12]} is not part of the present history.",
            code="head_not_ancestor",
            hint="Restore without moving the branch; the commit itself is kept by the checkpoint.",
        )


def _is_ancestor(user: Repository, older: str, newer: str) -> bool:
    try:
        user.run("merge-base", "--is-ancestor", older, newer)
    except GitFailed as failure:
        if failure.status == 1:
            return False
        raise
    return True


def name_of(branch: str | None) -> str:
    """Return a branch's name for people."""
    return branch.removeprefix("refs/heads/") if branch else "no branch"


def move(store: Store, operation: HeadOperation, reason: str) -> None:
    """Keep the old tip, then move the branch. Raises ConflictError head_moved, ref_exists."""
    head, branch = head_of(store.user, store.git_dir, store.common_dir)
    if (head, branch or "HEAD") != (operation.old, operation.ref):
        raise ConflictError("HEAD has moved since the restore was planned.", code="head_moved")
    if operation.kept_ref is not None:
        try:
            _update(store.user, f"create {PREFIX}{operation.kept_ref} {operation.old}", reason)
        except GitFailed as failure:
            raise ConflictError(f"{operation.kept_ref} could not be made: {failure}", code="ref_exists") from failure
    try:
        _update(store.user, f"update {operation.ref} {operation.new} {operation.old}", reason)
    except GitFailed as failure:
        raise ConflictError(f"The branch could not be moved: {failure}", code="head_moved") from failure


def move_back(store: Store, operation: HeadOperation, reason: str) -> bool:
    """Take a move back if it was carried out; False when the branch has been moved elsewhere since."""
    here = store.user.maybe_line("rev-parse", "-q", "--verify", f"{operation.ref}^{{commit}}")
    if here == operation.new:
        _update(store.user, f"update {operation.ref} {operation.old} {operation.new}", reason)
    elif here != operation.old:
        return False
    if operation.kept_ref is not None:
        kept = PREFIX + operation.kept_ref
        if store.user.maybe_line("rev-parse", "-q", "--verify", kept) == operation.old:
            _update(store.user, f"delete {kept} {operation.old}", reason)
    return True


def _update(user: Repository, line: str, reason: str) -> None:
    user.run("update-ref", "--no-deref", "-m", f"turnback: {reason}", "--stdin", stdin=f"{line}\n".encode())
