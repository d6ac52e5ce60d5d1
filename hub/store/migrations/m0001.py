# ruff: noqa: E501
"""The first schema: sessions, prompts, runs, transcripts, approvals, checkpoints, events."""

import sqlalchemy as sa

STATEMENTS = (
    """
    CREATE TABLE children (
        pid INTEGER NOT NULL,
        start_time FLOAT NOT NULL,
        process_group INTEGER NOT NULL,
        kind TEXT NOT NULL,
        run_id TEXT,
        call_id TEXT,
        boot_id TEXT NOT NULL,
        started_at BIGINT NOT NULL,
        ended_at BIGINT,
        PRIMARY KEY (pid, start_time)
    )
    """,
    """
    CREATE INDEX children_alive ON children (pid) WHERE ended_at IS NULL
    """,
    """
    CREATE TABLE events (
        seq INTEGER NOT NULL,
        prev_seq INTEGER NOT NULL,
        session_id TEXT,
        run_id TEXT,
        type TEXT NOT NULL,
        at BIGINT NOT NULL,
        data TEXT NOT NULL,
        PRIMARY KEY (seq)
    )
    """,
    """
    CREATE INDEX events_session ON events (session_id, seq)
    """,
    """
    CREATE TABLE idempotency (
        actor TEXT NOT NULL,
        "key" TEXT NOT NULL,
        method TEXT NOT NULL,
        digest TEXT NOT NULL,
        answer TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        PRIMARY KEY (actor, "key")
    )
    """,
    """
    CREATE INDEX idempotency_age ON idempotency (created_at)
    """,
    """
    CREATE TABLE meta (
        "key" TEXT NOT NULL,
        value TEXT NOT NULL,
        PRIMARY KEY ("key")
    )
    """,
    """
    CREATE TABLE sessions (
        id TEXT NOT NULL,
        workspace TEXT NOT NULL,
        worktree TEXT NOT NULL,
        title TEXT NOT NULL,
        run_count INTEGER DEFAULT '0' NOT NULL,
        message_count INTEGER DEFAULT '0' NOT NULL,
        head_message_id TEXT,
        forked_from TEXT,
        archived_at BIGINT,
        created_at BIGINT NOT NULL,
        updated_at BIGINT NOT NULL,
        PRIMARY KEY (id)
    )
    """,
    """
    CREATE INDEX sessions_recent ON sessions (updated_at)
    """,
    """
    CREATE INDEX sessions_worktree ON sessions (worktree)
    """,
    """
    CREATE TABLE tokens (
        id TEXT NOT NULL,
        hash TEXT NOT NULL,
        name TEXT NOT NULL,
        kind TEXT NOT NULL,
        scopes TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        revoked_at BIGINT,
        PRIMARY KEY (id),
        UNIQUE (hash)
    )
    """,
    """
    CREATE TABLE workspaces (
        id TEXT NOT NULL,
        name TEXT NOT NULL,
        path TEXT NOT NULL,
        checkpoint TEXT,
        created_at BIGINT NOT NULL,
        PRIMARY KEY (id),
        UNIQUE (name)
    )
    """,
    """
    CREATE TABLE checkpoints (
        id TEXT NOT NULL,
        session_id TEXT,
        run_id TEXT,
        run_count INTEGER,
        worktree TEXT NOT NULL,
        kind TEXT NOT NULL,
        ref TEXT NOT NULL,
        commit_oid TEXT NOT NULL,
        files INTEGER NOT NULL,
        uncaptured TEXT NOT NULL,
        head TEXT,
        branch TEXT,
        note TEXT NOT NULL,
        message_id TEXT,
        protected BOOLEAN DEFAULT '0' NOT NULL,
        pruned_at BIGINT,
        created_at BIGINT NOT NULL,
        PRIMARY KEY (id),
        UNIQUE (worktree, ref),
        FOREIGN KEY(session_id) REFERENCES sessions (id)
    )
    """,
    """
    CREATE INDEX checkpoints_session ON checkpoints (session_id, created_at)
    """,
    """
    CREATE INDEX checkpoints_worktree ON checkpoints (worktree, created_at)
    """,
    """
    CREATE TABLE grants (
        id TEXT NOT NULL,
        actor TEXT NOT NULL,
        tool TEXT NOT NULL,
        target TEXT NOT NULL,
        scope TEXT NOT NULL,
        session_id TEXT,
        workspace TEXT NOT NULL,
        approval_id TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        expires_at BIGINT,
        revoked_at BIGINT,
        PRIMARY KEY (id),
        FOREIGN KEY(session_id) REFERENCES sessions (id)
    )
    """,
    """
    CREATE INDEX grants_match ON grants (workspace, tool, target)
    """,
    """
    CREATE TABLE prompts (
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        state TEXT NOT NULL,
        mode TEXT NOT NULL,
        position FLOAT NOT NULL,
        text TEXT NOT NULL,
        author TEXT NOT NULL,
        author_may_approve BOOLEAN NOT NULL,
        address TEXT NOT NULL,
        options TEXT NOT NULL,
        run_id TEXT,
        created_at BIGINT NOT NULL,
        taken_at BIGINT,
        PRIMARY KEY (id),
        CHECK (state IN ('pending', 'suspended', 'taken', 'removed')),
        FOREIGN KEY(session_id) REFERENCES sessions (id)
    )
    """,
    """
    CREATE INDEX prompts_pending ON prompts (session_id, position) WHERE state = 'pending'
    """,
    """
    CREATE TABLE restores (
        id TEXT NOT NULL,
        session_id TEXT,
        worktree TEXT NOT NULL,
        checkpoint_id TEXT NOT NULL,
        undo_id TEXT,
        only TEXT,
        direction TEXT NOT NULL,
        state TEXT NOT NULL,
        previous_head TEXT,
        undone_by TEXT,
        txid TEXT,
        summary TEXT NOT NULL,
        scope TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        committed_at BIGINT,
        PRIMARY KEY (id),
        CHECK (state IN ('applying', 'committed', 'rolled_back')),
        FOREIGN KEY(session_id) REFERENCES sessions (id),
        FOREIGN KEY(checkpoint_id) REFERENCES checkpoints (id)
    )
    """,
    """
    CREATE INDEX restores_worktree ON restores (worktree, created_at)
    """,
    """
    CREATE TABLE runs (
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        prompt_id TEXT,
        worktree TEXT NOT NULL,
        run_count INTEGER NOT NULL,
        state TEXT NOT NULL,
        stop_reason TEXT,
        error TEXT,
        spec TEXT NOT NULL,
        holder TEXT,
        generation INTEGER DEFAULT '0' NOT NULL,
        crashes INTEGER DEFAULT '0' NOT NULL,
        open_message_id TEXT NOT NULL,
        turns INTEGER DEFAULT '0' NOT NULL,
        tool_calls INTEGER DEFAULT '0' NOT NULL,
        usage TEXT NOT NULL,
        cost FLOAT,
        active_s FLOAT DEFAULT '0' NOT NULL,
        files_changed TEXT NOT NULL,
        checkpoint_id TEXT,
        after_checkpoint_id TEXT,
        no_checkpoint TEXT,
        cancel_by TEXT,
        superseded BOOLEAN DEFAULT '0' NOT NULL,
        created_at BIGINT NOT NULL,
        started_at BIGINT,
        ended_at BIGINT,
        PRIMARY KEY (id),
        CHECK (state IN ('queued', 'running', 'waiting', 'interrupted', 'completed', 'failed', 'cancelled')),
        UNIQUE (session_id, run_count),
        FOREIGN KEY(session_id) REFERENCES sessions (id),
        FOREIGN KEY(prompt_id) REFERENCES prompts (id)
    )
    """,
    """
    CREATE UNIQUE INDEX runs_one_active ON runs (session_id) WHERE state IN ('queued', 'running', 'waiting')
    """,
    """
    CREATE TABLE deliveries (
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        run_id TEXT,
        address TEXT NOT NULL,
        state TEXT NOT NULL,
        text TEXT NOT NULL,
        receipt TEXT,
        created_at BIGINT NOT NULL,
        sent_at BIGINT,
        PRIMARY KEY (id),
        CHECK (state IN ('pending', 'sending', 'unknown', 'sent', 'failed', 'expired', 'suppressed')),
        UNIQUE (run_id, address),
        FOREIGN KEY(session_id) REFERENCES sessions (id),
        FOREIGN KEY(run_id) REFERENCES runs (id)
    )
    """,
    """
    CREATE INDEX deliveries_due ON deliveries (address) WHERE state = 'pending'
    """,
    """
    CREATE TABLE messages (
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        run_id TEXT,
        position INTEGER NOT NULL,
        parent_id TEXT,
        active BOOLEAN DEFAULT '1' NOT NULL,
        role TEXT NOT NULL,
        parts TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        PRIMARY KEY (id),
        UNIQUE (session_id, position),
        FOREIGN KEY(session_id) REFERENCES sessions (id),
        FOREIGN KEY(run_id) REFERENCES runs (id)
    )
    """,
    """
    CREATE INDEX messages_run ON messages (run_id)
    """,
    """
    CREATE TABLE tool_calls (
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        message_id TEXT NOT NULL,
        ordinal INTEGER NOT NULL,
        batch_id TEXT NOT NULL,
        state TEXT NOT NULL,
        name TEXT NOT NULL,
        effect TEXT NOT NULL,
        summary TEXT NOT NULL,
        arguments TEXT NOT NULL,
        arguments_hash TEXT NOT NULL,
        verdict TEXT NOT NULL,
        source TEXT NOT NULL,
        reason TEXT NOT NULL,
        executed_hash TEXT,
        result TEXT,
        display TEXT,
        paths TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        started_at BIGINT,
        ended_at BIGINT,
        PRIMARY KEY (id),
        CHECK (state IN ('proposed', 'waiting', 'executing', 'completed', 'failed', 'denied', 'skipped', 'cancelled', 'unknown')),
        FOREIGN KEY(session_id) REFERENCES sessions (id),
        FOREIGN KEY(run_id) REFERENCES runs (id)
    )
    """,
    """
    CREATE INDEX tool_calls_executing ON tool_calls (state) WHERE state = 'executing'
    """,
    """
    CREATE INDEX tool_calls_run ON tool_calls (run_id)
    """,
    """
    CREATE TABLE approvals (
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        call_id TEXT NOT NULL,
        batch_id TEXT NOT NULL,
        state TEXT NOT NULL,
        tool TEXT NOT NULL,
        summary TEXT NOT NULL,
        arguments TEXT NOT NULL,
        arguments_hash TEXT NOT NULL,
        targets TEXT NOT NULL,
        cwd TEXT NOT NULL,
        reason TEXT NOT NULL,
        preview TEXT,
        fingerprint TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        expires_at BIGINT NOT NULL,
        decision TEXT,
        decided_by TEXT,
        decided_at BIGINT,
        message TEXT,
        PRIMARY KEY (id),
        CHECK (state IN ('open', 'suspended', 'allowed', 'rejected', 'expired', 'cancelled')),
        FOREIGN KEY(session_id) REFERENCES sessions (id),
        FOREIGN KEY(run_id) REFERENCES runs (id),
        FOREIGN KEY(call_id) REFERENCES tool_calls (id)
    )
    """,
    """
    CREATE INDEX approvals_call ON approvals (call_id)
    """,
    """
    CREATE INDEX approvals_open ON approvals (expires_at) WHERE state = 'open'
    """,
    """
    CREATE TABLE questions (
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        run_id TEXT NOT NULL,
        call_id TEXT NOT NULL,
        state TEXT NOT NULL,
        question TEXT NOT NULL,
        options TEXT NOT NULL,
        created_at BIGINT NOT NULL,
        expires_at BIGINT NOT NULL,
        answer TEXT,
        answered_by TEXT,
        answered_at BIGINT,
        PRIMARY KEY (id),
        CHECK (state IN ('open', 'suspended', 'answered', 'expired', 'cancelled')),
        FOREIGN KEY(session_id) REFERENCES sessions (id),
        FOREIGN KEY(run_id) REFERENCES runs (id),
        FOREIGN KEY(call_id) REFERENCES tool_calls (id)
    )
    """,
    """
    CREATE INDEX questions_call ON questions (call_id)
    """,
    """
    CREATE INDEX questions_open ON questions (expires_at) WHERE state = 'open'
    """,
)


def upgrade(conn: sa.Connection) -> None:
    """Make the tables."""
    for statement in STATEMENTS:
        conn.exec_driver_sql(statement)
