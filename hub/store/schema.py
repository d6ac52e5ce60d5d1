"""The tables. Instants are UTC milliseconds, durations seconds, structured values JSON text.

States are checked by the database against the same tables the code reads (`hub.domain.states`). The migrations make
this schema; a test compares the two.
"""

from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa

from hub.domain.states import APPROVAL, DELIVERY, PROMPT, QUESTION, RUN, TOOL_CALL, Machine

metadata = sa.MetaData()


class Instant(sa.types.TypeDecorator[datetime]):
    """An aware UTC datetime, kept as whole milliseconds since 1970."""

    impl = sa.BigInteger
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: sa.Dialect) -> int | None:
        return None if value is None else round(value.timestamp() * 1000)

    def process_result_value(self, value: int | None, dialect: sa.Dialect) -> datetime | None:
        return None if value is None else datetime.fromtimestamp(value / 1000, UTC)


class Json(sa.types.TypeDecorator[Any]):
    """Any JSON value or msgspec struct, kept as compact JSON text; read back as plain values."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: sa.Dialect) -> Any:
        return None if value is None else msgspec.json.decode(value)


def _id() -> sa.Column[str]:
    return sa.Column("id", sa.Text, primary_key=True)


def _state(machine: Machine) -> tuple[sa.Column[str], sa.CheckConstraint]:
    allowed = ", ".join(f"'{state}'" for state in machine.states)
    return sa.Column("state", sa.Text, nullable=False), sa.CheckConstraint(f"state IN ({allowed})")


def _ref(name: str, target: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, sa.ForeignKey(target), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _count(name: str, default: int = 0) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default=str(default))


def _json(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, Json, nullable=nullable)


def _at(name: str, *, nullable: bool = True) -> sa.Column[datetime]:
    return sa.Column(name, Instant, nullable=nullable)


meta = sa.Table("meta", metadata, sa.Column("key", sa.Text, primary_key=True), _text("value"))

tokens = sa.Table(
    "tokens",
    metadata,
    _id(),
    sa.Column("hash", sa.Text, nullable=False, unique=True),
    _text("name"),
    _text("kind"),
    _json("scopes"),
    _at("created_at", nullable=False),
    _at("revoked_at"),
)

workspaces = sa.Table(
    "workspaces",
    metadata,
    _id(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    _text("path"),
    _text("checkpoint", nullable=True),
    _at("created_at", nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    _id(),
    _text("workspace"),
    _text("worktree"),
    _text("title"),
    _count("run_count"),
    _count("message_count"),
    _text("head_message_id", nullable=True),
    _text("forked_from", nullable=True),
    _at("archived_at"),
    _at("created_at", nullable=False),
    _at("updated_at", nullable=False),
)
sa.Index("sessions_recent", sessions.c.updated_at)
sa.Index("sessions_worktree", sessions.c.worktree)

prompts = sa.Table(
    "prompts",
    metadata,
    _id(),
    _ref("session_id", "sessions.id"),
    *_state(PROMPT),
    _text("mode"),
    sa.Column("position", sa.Float, nullable=False),
    _text("text"),
    _text("author"),
    sa.Column("author_may_approve", sa.Boolean, nullable=False),
    _text("address"),
    _json("options"),
    _text("run_id", nullable=True),
    _at("created_at", nullable=False),
    _at("taken_at"),
)
sa.Index("prompts_pending", prompts.c.session_id, prompts.c.position, sqlite_where=prompts.c.state == "pending")

runs = sa.Table(
    "runs",
    metadata,
    _id(),
    _ref("session_id", "sessions.id"),
    _ref("prompt_id", "prompts.id", nullable=True),
    _text("worktree"),
    sa.Column("run_count", sa.Integer, nullable=False),
    *_state(RUN),
    _text("stop_reason", nullable=True),
    _text("error", nullable=True),
    _json("spec"),
    _text("holder", nullable=True),
    _count("generation"),
    _count("crashes"),
    _text("open_message_id"),
    _count("turns"),
    _count("tool_calls"),
    _json("usage"),
    sa.Column("cost", sa.Float, nullable=True),
    sa.Column("active_s", sa.Float, nullable=False, server_default="0"),
    _json("files_changed"),
    _text("checkpoint_id", nullable=True),
    _text("after_checkpoint_id", nullable=True),
    _text("no_checkpoint", nullable=True),
    _text("cancel_by", nullable=True),
    sa.Column("superseded", sa.Boolean, nullable=False, server_default="0"),
    _at("created_at", nullable=False),
    _at("started_at"),
    _at("ended_at"),
    sa.UniqueConstraint("session_id", "run_count"),
)
sa.Index(
    "runs_one_active",
    runs.c.session_id,
    unique=True,
    sqlite_where=sa.text("state IN ('queued', 'running', 'waiting')"),
)

messages = sa.Table(
    "messages",
    metadata,
    _id(),
    _ref("session_id", "sessions.id"),
    _ref("run_id", "runs.id", nullable=True),
    sa.Column("position", sa.Integer, nullable=False),
    _text("parent_id", nullable=True),
    sa.Column("active", sa.Boolean, nullable=False, server_default="1"),
    _text("role"),
    _json("parts"),
    _at("created_at", nullable=False),
    sa.UniqueConstraint("session_id", "position"),
)
sa.Index("messages_run", messages.c.run_id)

tool_calls = sa.Table(
    "tool_calls",
    metadata,
    _id(),
    _ref("session_id", "sessions.id"),
    _ref("run_id", "runs.id"),
    _text("message_id"),
    sa.Column("ordinal", sa.Integer, nullable=False),
    _text("batch_id"),
    *_state(TOOL_CALL),
    _text("name"),
    _text("effect"),
    _text("summary"),
    _json("arguments"),
    _text("arguments_hash"),
    _text("verdict"),
    _text("source"),
    _text("reason"),
    _text("executed_hash", nullable=True),
    _text("result", nullable=True),
    _text("display", nullable=True),
    _json("paths"),
    _at("created_at", nullable=False),
    _at("started_at"),
    _at("ended_at"),
)
sa.Index("tool_calls_run", tool_calls.c.run_id)
sa.Index("tool_calls_executing", tool_calls.c.state, sqlite_where=tool_calls.c.state == "executing")

approvals = sa.Table(
    "approvals",
    metadata,
    _id(),
    _ref("session_id", "sessions.id"),
    _ref("run_id", "runs.id"),
    _ref("call_id", "tool_calls.id"),
    _text("batch_id"),
    *_state(APPROVAL),
    _text("tool"),
    _text("summary"),
    _json("arguments"),
    _text("arguments_hash"),
    _json("targets"),
    _text("cwd"),
    _text("reason"),
    _text("preview", nullable=True),
    _json("fingerprint"),
    _at("created_at", nullable=False),
    _at("expires_at", nullable=False),
    _text("decision", nullable=True),
    _text("decided_by", nullable=True),
    _at("decided_at"),
    _text("message", nullable=True),
)
sa.Index("approvals_open", approvals.c.expires_at, sqlite_where=approvals.c.state == "open")
sa.Index("approvals_call", approvals.c.call_id)

questions = sa.Table(
    "questions",
    metadata,
    _id(),
    _ref("session_id", "sessions.id"),
    _ref("run_id", "runs.id"),
    _ref("call_id", "tool_calls.id"),
    *_state(QUESTION),
    _text("question"),
    _json("options"),
    _at("created_at", nullable=False),
    _at("expires_at", nullable=False),
    _text("answer", nullable=True),
    _text("answered_by", nullable=True),
    _at("answered_at"),
)
sa.Index("questions_open", questions.c.expires_at, sqlite_where=questions.c.state == "open")
sa.Index("questions_call", questions.c.call_id)

grants = sa.Table(
    "grants",
    metadata,
    _id(),
    _text("actor"),
    _text("tool"),
    _text("target"),
    _text("scope"),
    _ref("session_id", "sessions.id", nullable=True),
    _text("workspace"),
    _text("approval_id"),
    _at("created_at", nullable=False),
    _at("expires_at"),
    _at("revoked_at"),
)
sa.Index("grants_match", grants.c.workspace, grants.c.tool, grants.c.target)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    _id(),
    _ref("session_id", "sessions.id", nullable=True),
    _text("run_id", nullable=True),
    sa.Column("run_count", sa.Integer, nullable=True),
    _text("worktree"),
    _text("kind"),
    _text("ref"),
    _text("commit_oid"),
    sa.Column("files", sa.Integer, nullable=False),
    _json("uncaptured"),
    _text("head", nullable=True),
    _text("branch", nullable=True),
    _text("note"),
    _text("message_id", nullable=True),
    sa.Column("protected", sa.Boolean, nullable=False, server_default="0"),
    _at("pruned_at"),
    _at("created_at", nullable=False),
    sa.UniqueConstraint("worktree", "ref"),
)
sa.Index("checkpoints_session", checkpoints.c.session_id, checkpoints.c.created_at)
sa.Index("checkpoints_worktree", checkpoints.c.worktree, checkpoints.c.created_at)

restores = sa.Table(
    "restores",
    metadata,
    _id(),
    _ref("session_id", "sessions.id", nullable=True),
    _text("worktree"),
    _ref("checkpoint_id", "checkpoints.id"),
    _text("undo_id", nullable=True),
    _text("only", nullable=True),
    _text("direction"),
    _text("state"),
    _text("previous_head", nullable=True),
    _text("undone_by", nullable=True),
    _text("txid", nullable=True),
    _json("summary"),
    _json("scope"),
    _at("created_at", nullable=False),
    _at("committed_at"),
    sa.CheckConstraint("state IN ('applying', 'committed', 'rolled_back')"),
)
sa.Index("restores_worktree", restores.c.worktree, restores.c.created_at)

suspensions = sa.Table(
    "suspensions",
    metadata,
    _ref("restore_id", "restores.id"),
    _text("kind"),
    _text("item_id"),
    _text("told"),
    sa.PrimaryKeyConstraint("restore_id", "kind", "item_id"),
)

notices = sa.Table(
    "notices",
    metadata,
    _id(),
    _ref("session_id", "sessions.id"),
    _ref("restore_id", "restores.id"),
    _text("text"),
    _text("message_id", nullable=True),
    _at("created_at", nullable=False),
)
sa.Index("notices_untold", notices.c.session_id, sqlite_where=notices.c.message_id.is_(None))

children = sa.Table(
    "children",
    metadata,
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("start_time", sa.Float, nullable=False),
    sa.Column("process_group", sa.Integer, nullable=False),
    _text("kind"),
    _text("run_id", nullable=True),
    _text("call_id", nullable=True),
    _text("boot_id"),
    _at("started_at", nullable=False),
    _at("ended_at"),
    sa.PrimaryKeyConstraint("pid", "start_time"),
)
sa.Index("children_alive", children.c.pid, sqlite_where=children.c.ended_at.is_(None))

deliveries = sa.Table(
    "deliveries",
    metadata,
    _id(),
    _ref("session_id", "sessions.id"),
    _ref("run_id", "runs.id", nullable=True),
    _text("address"),
    *_state(DELIVERY),
    _text("text"),
    _text("receipt", nullable=True),
    _at("created_at", nullable=False),
    _at("sent_at"),
    sa.UniqueConstraint("run_id", "address"),
)
sa.Index("deliveries_due", deliveries.c.address, sqlite_where=deliveries.c.state == "pending")

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("prev_seq", sa.Integer, nullable=False),
    _text("session_id", nullable=True),
    _text("run_id", nullable=True),
    _text("type"),
    _at("at", nullable=False),
    _text("data"),
)
sa.Index("events_session", events.c.session_id, events.c.seq)

idempotency = sa.Table(
    "idempotency",
    metadata,
    _text("actor"),
    _text("key"),
    _text("method"),
    _text("digest"),
    _text("answer"),
    _at("created_at", nullable=False),
    sa.PrimaryKeyConstraint("actor", "key"),
)
sa.Index("idempotency_age", idempotency.c.created_at)
