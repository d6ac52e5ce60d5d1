"""The checkpoint engine: captures a worktree byte by byte and brings it back as a transaction.

A library of its own: synchronous, one worktree at a time, knows nothing of sessions; owners and labels are opaque.
"""
