"""How the present state of a worktree is found and read."""
