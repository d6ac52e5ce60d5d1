"""The scheduler: a process that wakes when an occurrence is due, claims it from the hub, and sees its run through.

Invariant: it is an ordinary client; what is due is planned and stored by the hub, so that an occurrence runs once
however often this process is started. It never touches a workspace or the database.
No scheduler ships yet; it comes with a later release.
"""
