"""What a restore puts aside, and what the model is to be told after one."""

import sqlalchemy as sa

STATEMENTS = (
    """
    CREATE TABLE notices (
        id TEXT NOT NULL,
        session_id TEXT NOT NULL,
        restore_id TEXT NOT NULL,
        text TEXT NOT NULL,
        message_id TEXT,
        created_at BIGINT NOT NULL,
        PRIMARY KEY (id),
        FOREIGN KEY(session_id) REFERENCES sessions (id),
        FOREIGN KEY(restore_id) REFERENCES restores (id)
    )
    """,
    """
    CREATE INDEX notices_untold ON notices (session_id) WHERE message_id IS NULL
    """,
    """
    CREATE TABLE suspensions (
        restore_id TEXT NOT NULL,
        kind TEXT NOT NULL,
        item_id TEXT NOT NULL,
        told TEXT NOT NULL,
        PRIMARY KEY (restore_id, kind, item_id),
        FOREIGN KEY(restore_id) REFERENCES restores (id)
    )
    """,
)


def upgrade(conn: sa.Connection) -> None:
    """Make the tables."""
    for statement in STATEMENTS:
        conn.exec_driver_sql(statement)
