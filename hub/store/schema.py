"""The tables. Instants are UTC milliseconds, durations seconds, structured values JSON text.

States are checked by the database against the same tables the code reads (`hub.domain.states`). The migrations make
this schema; a test compares the two.
"""

import sqlalchemy as sa

from hub.domain.states import APPROVAL, DELIVERY, PROMPT, QUESTION, RUN, TOOL_CALL
from hub.store.columns import count, id_column, instant, json, reference, state_columns, text

metadata = sa.MetaData()


meta = sa.Table("meta", metadata, sa.Column("key", sa.Text, primary_key=True), text("value"))

tokens = sa.Table(
    "tokens",
    metadata,
    id_column(),
    sa.Column("hash", sa.Text, nullable=False, unique=True),
    text("name"),
    text("kind"),
    json("scopes"),
    instant("created_at", nullable=False),
    instant("revoked_at"),
)

workspaces = sa.Table(
    "workspaces",
    metadata,
    id_column(),
    sa.Column("name", sa.Text, nullable=False, unique=True),
    text("path"),
    text("checkpoint", nullable=True),
    instant("created_at", nullable=False),
)

sessions = sa.Table(
    "sessions",
    metadata,
    id_column(),
    text("workspace"),
    text("worktree"),
    text("title"),
    count("run_count"),
    count("message_count"),
    text("head_message_id", nullable=True),
    text("forked_from", nullable=True),
    instant("archived_at"),
    instant("created_at", nullable=False),
    instant("updated_at", nullable=False),
)
sa.Index("sessions_recent", sessions.c.updated_at)
sa.Index("sessions_worktree", sessions.c.worktree)

prompts = sa.Table(
    "prompts",
    metadata,
    id_column(),
    reference("session_id", "sessions.id"),
    *state_columns(PROMPT),
    text("mode"),
    sa.Column("position", sa.Float, nullable=False),
    text("text"),
    text("author"),
    sa.Column("author_may_approve", sa.Boolean, nullable=False),
    text("address"),
    json("options"),
    text("run_id", nullable=True),
    instant("created_at", nullable=False),
    instant("taken_at"),
)
sa.Index("prompts_pending", prompts.c.session_id, prompts.c.position, sqlite_where=prompts.c.state == "pending")

runs = sa.Table(
    "runs",
    metadata,
    id_column(),
    reference("session_id", "sessions.id"),
    reference("prompt_id", "prompts.id", nullable=True),
    text("worktree"),
    sa.Column("run_count", sa.Integer, nullable=False),
    *state_columns(RUN),
    text("stop_reason", nullable=True),
    text("error", nullable=True),
    json("spec"),
    text("holder", nullable=True),
    count("generation"),
    count("crashes"),
    text("open_message_id"),
    count("turns"),
    count("tool_calls"),
    json("usage"),
    sa.Column("cost", sa.Float, nullable=True),
    sa.Column("active_s", sa.Float, nullable=False, server_default="0"),
    json("files_changed"),
    text("checkpoint_id", nullable=True),
    text("after_checkpoint_id", nullable=True),
    text("no_checkpoint", nullable=True),
    text("cancel_by", nullable=True),
    sa.Column("superseded", sa.Boolean, nullable=False, server_default="0"),
    instant("created_at", nullable=False),
    instant("started_at"),
    instant("ended_at"),
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
    id_column(),
    reference("session_id", "sessions.id"),
    reference("run_id", "runs.id", nullable=True),
    sa.Column("position", sa.Integer, nullable=False),
    text("parent_id", nullable=True),
    sa.Column("active", sa.Boolean, nullable=False, server_default="1"),
    text("role"),
    json("parts"),
    instant("created_at", nullable=False),
    sa.UniqueConstraint("session_id", "position"),
)
sa.Index("messages_run", messages.c.run_id)

tool_calls = sa.Table(
    "tool_calls",
    metadata,
    id_column(),
    reference("session_id", "sessions.id"),
    reference("run_id", "runs.id"),
    text("message_id"),
    sa.Column("ordinal", sa.Integer, nullable=False),
    text("batch_id"),
    *state_columns(TOOL_CALL),
    text("name"),
    text("effect"),
    text("summary"),
    json("arguments"),
    text("arguments_hash"),
    text("verdict"),
    text("source"),
    text("reason"),
    text("executed_hash", nullable=True),
    text("result", nullable=True),
    text("display", nullable=True),
    json("paths"),
    instant("created_at", nullable=False),
    instant("started_at"),
    instant("ended_at"),
)
sa.Index("tool_calls_run", tool_calls.c.run_id)
sa.Index("tool_calls_executing", tool_calls.c.state, sqlite_where=tool_calls.c.state == "executing")

approvals = sa.Table(
    "approvals",
    metadata,
    id_column(),
    reference("session_id", "sessions.id"),
    reference("run_id", "runs.id"),
    reference("call_id", "tool_calls.id"),
    text("batch_id"),
    *state_columns(APPROVAL),
    text("tool"),
    text("summary"),
    json("arguments"),
    text("arguments_hash"),
    json("targets"),
    text("cwd"),
    text("reason"),
    text("preview", nullable=True),
    json("fingerprint"),
    instant("created_at", nullable=False),
    instant("expires_at", nullable=False),
    text("decision", nullable=True),
    text("decided_by", nullable=True),
    instant("decided_at"),
    text("message", nullable=True),
)
sa.Index("approvals_open", approvals.c.expires_at, sqlite_where=approvals.c.state == "open")
sa.Index("approvals_call", approvals.c.call_id)

questions = sa.Table(
    "questions",
    metadata,
    id_column(),
    reference("session_id", "sessions.id"),
    reference("run_id", "runs.id"),
    reference("call_id", "tool_calls.id"),
    *state_columns(QUESTION),
    text("question"),
    json("options"),
    instant("created_at", nullable=False),
    instant("expires_at", nullable=False),
    text("answer", nullable=True),
    text("answered_by", nullable=True),
    instant("answered_at"),
)
sa.Index("questions_open", questions.c.expires_at, sqlite_where=questions.c.state == "open")
sa.Index("questions_call", questions.c.call_id)

grants = sa.Table(
    "grants",
    metadata,
    id_column(),
    text("actor"),
    text("tool"),
    text("target"),
    text("scope"),
    reference("session_id", "sessions.id", nullable=True),
    text("workspace"),
    text("approval_id"),
    instant("created_at", nullable=False),
    instant("expires_at"),
    instant("revoked_at"),
)
sa.Index("grants_match", grants.c.workspace, grants.c.tool, grants.c.target)

checkpoints = sa.Table(
    "checkpoints",
    metadata,
    id_column(),
    reference("session_id", "sessions.id", nullable=True),
    text("run_id", nullable=True),
    sa.Column("run_count", sa.Integer, nullable=True),
    text("worktree"),
    text("kind"),
    text("ref"),
    text("commit_oid"),
    sa.Column("files", sa.Integer, nullable=False),
    json("uncaptured"),
    text("head", nullable=True),
    text("branch", nullable=True),
    text("note"),
    text("message_id", nullable=True),
    sa.Column("protected", sa.Boolean, nullable=False, server_default="0"),
    instant("pruned_at"),
    instant("created_at", nullable=False),
    sa.UniqueConstraint("worktree", "ref"),
)
sa.Index("checkpoints_session", checkpoints.c.session_id, checkpoints.c.created_at)
sa.Index("checkpoints_worktree", checkpoints.c.worktree, checkpoints.c.created_at)

restores = sa.Table(
    "restores",
    metadata,
    id_column(),
    reference("session_id", "sessions.id", nullable=True),
    text("worktree"),
    reference("checkpoint_id", "checkpoints.id"),
    text("undo_id", nullable=True),
    text("only", nullable=True),
    text("direction"),
    text("state"),
    text("previous_head", nullable=True),
    text("undone_by", nullable=True),
    text("txid", nullable=True),
    json("summary"),
    json("scope"),
    instant("created_at", nullable=False),
    instant("committed_at"),
    sa.CheckConstraint("state IN ('applying', 'committed', 'rolled_back')"),
)
sa.Index("restores_worktree", restores.c.worktree, restores.c.created_at)

suspensions = sa.Table(
    "suspensions",
    metadata,
    reference("restore_id", "restores.id"),
    text("kind"),
    text("item_id"),
    text("told"),
    sa.PrimaryKeyConstraint("restore_id", "kind", "item_id"),
)

notices = sa.Table(
    "notices",
    metadata,
    id_column(),
    reference("session_id", "sessions.id"),
    reference("restore_id", "restores.id"),
    text("text"),
    text("message_id", nullable=True),
    instant("created_at", nullable=False),
)
sa.Index("notices_untold", notices.c.session_id, sqlite_where=notices.c.message_id.is_(None))

children = sa.Table(
    "children",
    metadata,
    sa.Column("pid", sa.Integer, nullable=False),
    sa.Column("start_time", sa.Float, nullable=False),
    sa.Column("process_group", sa.Integer, nullable=False),
    text("kind"),
    text("run_id", nullable=True),
    text("call_id", nullable=True),
    text("boot_id"),
    instant("started_at", nullable=False),
    instant("ended_at"),
    sa.PrimaryKeyConstraint("pid", "start_time"),
)
sa.Index("children_alive", children.c.pid, sqlite_where=children.c.ended_at.is_(None))

deliveries = sa.Table(
    "deliveries",
    metadata,
    id_column(),
    reference("session_id", "sessions.id"),
    reference("run_id", "runs.id", nullable=True),
    text("address"),
    *state_columns(DELIVERY),
    text("text"),
    text("receipt", nullable=True),
    instant("created_at", nullable=False),
    instant("sent_at"),
    sa.UniqueConstraint("run_id", "address"),
)
sa.Index("deliveries_due", deliveries.c.address, sqlite_where=deliveries.c.state == "pending")

events = sa.Table(
    "events",
    metadata,
    sa.Column("seq", sa.Integer, primary_key=True),
    sa.Column("prev_seq", sa.Integer, nullable=False),
    text("session_id", nullable=True),
    text("run_id", nullable=True),
    text("type"),
    instant("at", nullable=False),
    text("data"),
)
sa.Index("events_session", events.c.session_id, events.c.seq)

idempotency = sa.Table(
    "idempotency",
    metadata,
    text("actor"),
    text("key"),
    text("method"),
    text("digest"),
    text("answer"),
    instant("created_at", nullable=False),
    sa.PrimaryKeyConstraint("actor", "key"),
)
sa.Index("idempotency_age", idempotency.c.created_at)
