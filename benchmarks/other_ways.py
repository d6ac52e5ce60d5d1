"""Other ways to save and bring back a worktree, as sequences of git commands: yardsticks for the checkpoint engine.

They are the ways that are in use: a stash commit with the untracked files as a further parent, and a repository of its
own beside the worktree. Invariant: what they leave in the repository is under `refs/bench/`.
"""

from pathlib import Path

from benchmarks.repositories import git


def stash_capture(top: Path, name: str) -> str:
    """Save tracked changes with `stash create`, untracked files in a tree of their own; return the commit."""
    git(top, "rev-parse", "--is-inside-work-tree")
    head = git(top, "rev-parse", "HEAD").decode().strip()
    stash = git(top, "stash", "create", "bench").decode().strip() or head
    untracked = git(top, "ls-files", "--others", "--exclude-standard", "-z")
    commit = stash
    if untracked:
        index = top / ".git" / "bench-index"
        index.unlink(missing_ok=True)
        own = {"GIT_INDEX_FILE": str(index)}
        git(top, "add", "--force", "--pathspec-from-file=-", "--pathspec-file-nul", stdin=untracked, environ=own)
        tree = git(top, "write-tree", environ=own).decode().strip()
        loose = git(top, "commit-tree", tree, "-m", "untracked").decode().strip()
        worktree = git(top, "rev-parse", f"{stash}^{{tree}}").decode().strip()
        parents = [word for parent in (head, head, loose) for word in ("-p", parent)]
        commit = git(top, "commit-tree", worktree, *parents, "-m", "bench").decode().strip()
    git(top, "update-ref", f"refs/bench/{name}", commit)
    git(top, "rev-parse", "--verify", f"refs/bench/{name}")
    return commit


def stash_restore(top: Path, commit: str) -> None:
    """Sweep the present state into the stash, go back to the commit, drop what was swept."""
    git(top, "rev-parse", "--verify", commit)
    git(top, "stash", "push", "--include-untracked", "-m", "bench")
    git(top, "update-ref", "refs/bench/before", "refs/stash")
    git(top, "stash", "drop")
    git(top, "reset", "--hard", f"{commit}^1")
    git(top, "clean", "-f", "-d")
    git(top, "stash", "apply", commit)
    git(top, "update-ref", "-d", "refs/bench/before")


class Shadow:
    """A repository of its own beside the worktree, into which everything is added and committed."""

    def __init__(self, top: Path, git_dir: Path) -> None:
        self._top = top
        self._environ = {"GIT_DIR": str(git_dir), "GIT_WORK_TREE": str(top)}
        if not git_dir.exists():
            git(top, "init", "-q", environ=self._environ)

    def capture(self) -> str:
        """Add all and commit; return the commit."""
        git(self._top, "add", "-A", environ=self._environ)
        git(self._top, "commit", "-q", "--allow-empty", "--no-verify", "-m", "bench", environ=self._environ)
        return git(self._top, "rev-parse", "HEAD", environ=self._environ).decode().strip()

    def restore(self, commit: str) -> None:
        """Bring the files of a commit back and remove all others that are not ignored."""
        git(self._top, "clean", "-f", "-d", "-q", environ=self._environ)
        git(self._top, "reset", "-q", "--hard", commit, environ=self._environ)
