"""What the hub remembers about itself: its own ids, tokens, workspaces by name, children, answered keys."""

from datetime import datetime, timedelta
from typing import Any, get_args

import msgspec
import sqlalchemy as sa

from hub.clock import iso
from hub.domain.values import CheckpointMode, Scope
from hub.errors import ConflictError, NotFoundError
from hub.ids import new_id
from hub.protocol.events import WorkspaceChanged
from hub.protocol.views import WorkspaceView
from hub.store.database import Transaction
from hub.store.rows import insert
from hub.store.schema import children, idempotency, meta, tokens, workspaces

KEY_DAYS = 7
"""Days for which a repeated idempotency key gives the stored answer."""


_ANSWERED = sa.select(idempotency).where(
    idempotency.c.actor == sa.bindparam("actor"), idempotency.c.key == sa.bindparam("key")
)


_REMEMBER = sa.insert(idempotency).prefix_with("OR REPLACE")
_MODES = sa.select(workspaces.c.checkpoint).where(workspaces.c.path == sa.bindparam("path"))


def identity(tx: Transaction, key: str, kind: str) -> str:
    """Return an id that the database keeps for life, made at the first call."""
    found = tx.conn.execute(sa.select(meta.c.value).where(meta.c.key == key)).scalar()
    if found is not None:
        return str(found)
    made = new_id(kind)
    insert(tx, meta, key=key, value=made)
    return made


class TokenGrant(msgspec.Struct, frozen=True):
    """Who a token stands for and what it may do."""

    name: str
    kind: str
    scopes: tuple[Scope, ...]


def set_token(tx: Transaction, digest: str, grant: TokenGrant) -> None:
    """Make `digest` the only token of this name."""
    tx.conn.execute(sa.delete(tokens).where(tokens.c.name == grant.name, tokens.c.hash != digest))
    insert = sa.insert(tokens).prefix_with("OR IGNORE")
    tx.conn.execute(
        insert.values(
            id=new_id("token"),
            hash=digest,
            name=grant.name,
            kind=grant.kind,
            scopes=list(grant.scopes),
            created_at=tx.now,
        )
    )


def live_tokens(conn: sa.Connection) -> dict[str, TokenGrant]:
    """Return what each token's digest grants."""
    query = sa.select(tokens).where(tokens.c.revoked_at.is_(None))
    return {row.hash: TokenGrant(row.name, row.kind, tuple(row.scopes)) for row in conn.execute(query)}


def add_workspace(tx: Transaction, name: str, path: str, checkpoint: CheckpointMode | None) -> WorkspaceView:
    """Register a directory, or change its mode. Raises ConflictError with code name_taken when it is another one."""
    found = tx.conn.execute(sa.select(workspaces).where(workspaces.c.name == name)).one_or_none()
    if found is not None and found.path != path:
        raise ConflictError(f"Workspace {name!r} is {found.path} already; remove it first.", code="name_taken")
    if found is None:
        insert(tx, workspaces, id=new_id("workspace"), name=name, path=path, created_at=tx.now)
    tx.conn.execute(sa.update(workspaces).where(workspaces.c.name == name).values(checkpoint=checkpoint))
    if found is None or found.checkpoint != checkpoint:
        tx.emit("workspace.added", WorkspaceChanged(name=name, path=path))
    return workspace(tx.conn, name)


def workspace(conn: sa.Connection, name: str) -> WorkspaceView:
    """Return a registered workspace. Raises NotFoundError with code unknown_workspace."""
    row = conn.execute(sa.select(workspaces).where(workspaces.c.name == name)).one_or_none()
    if row is None:
        raise NotFoundError(
            f"There is no workspace named {name!r}.",
            code="unknown_workspace",
            hint="Register one with `hubctl workspace add NAME DIR`, or give an absolute path.",
        )
    return _workspace(row)


def checkpoint_mode(conn: sa.Connection, path: str) -> CheckpointMode | None:
    """Return the mode that a directory's name was given; the strictest, when it has several names."""
    modes = set(conn.execute(_MODES, {"path": path}).scalars())
    return next((mode for mode in get_args(CheckpointMode) if mode in modes), None)


def workspace_listing(conn: sa.Connection) -> list[WorkspaceView]:
    """Return registered workspaces by name."""
    return [_workspace(row) for row in conn.execute(sa.select(workspaces).order_by(workspaces.c.name))]


def remove_workspace(tx: Transaction, name: str) -> WorkspaceView:
    """Forget a name. Raises NotFoundError."""
    found = workspace(tx.conn, name)
    tx.conn.execute(sa.delete(workspaces).where(workspaces.c.name == name))
    tx.emit("workspace.removed", WorkspaceChanged(name=name, path=found.path))
    return found


def _workspace(row: Any) -> WorkspaceView:
    return WorkspaceView(
        id=row.id, name=row.name, path=row.path, checkpoint=row.checkpoint, created_at=iso(row.created_at)
    )


class Child(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the hub's. `start_time` (seconds since 1970) tells it from a later one with the same pid."""

    pid: int
    start_time: float
    process_group: int
    kind: str
    run_id: str | None
    call_id: str | None
    boot_id: str


def child_started(tx: Transaction, child: Child) -> None:
    """Store a child before it executes anything."""
    insert = sa.insert(children).prefix_with("OR REPLACE")
    tx.conn.execute(insert.values(started_at=tx.now, **msgspec.structs.asdict(child)))


def child_ended(tx: Transaction, pid: int, start_time: float) -> None:
    """Note that a child is gone."""
    where = (children.c.pid == pid, children.c.start_time == start_time)
    tx.conn.execute(sa.update(children).where(*where).values(ended_at=tx.now))


def children_alive(conn: sa.Connection) -> list[Child]:
    """Return the children whose end was not seen."""
    query = sa.select(children).where(children.c.ended_at.is_(None))
    names = Child.__struct_fields__
    return [Child(**{name: getattr(row, name) for name in names}) for row in conn.execute(query)]


def answered(conn: sa.Connection, actor: str, key: str, method: str, digest: str) -> bytes | None:
    """Return the stored answer to a key. Raises ConflictError with code key_reused when it meant another call."""
    row = conn.execute(_ANSWERED, {"actor": actor, "key": key}).one_or_none()
    if row is None:
        return None
    if row.method != method or row.digest != digest:
        raise ConflictError("This idempotency key was used for another call; make a fresh one.", code="key_reused")
    return bytes(row.answer.encode())


def remember_answer(tx: Transaction, actor: str, key: str, method: str, digest: str, answer: bytes) -> None:
    """Store the answer to a key, in the transaction of its effect. What a call adds to its own answer replaces it."""
    values = {"actor": actor, "key": key, "method": method, "digest": digest, "answer": answer.decode()}
    tx.conn.execute(_REMEMBER, {**values, "created_at": tx.now})


def forget_answers(tx: Transaction) -> int:
    """Delete answers older than 7 days; return how many."""
    limit: datetime = tx.now - timedelta(days=KEY_DAYS)
    return tx.conn.execute(sa.delete(idempotency).where(idempotency.c.created_at < limit)).rowcount
