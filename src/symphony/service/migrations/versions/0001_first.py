"""The journal, what its events refer to, and tokens."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables. Spelled out, not imported from `tables.py`: a migration must not change later."""
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("task", sa.Integer, nullable=False),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("data", sa.Text, nullable=False),
    )
    op.create_index("events_of_a_job", "events", ["job", "id"])
    op.create_table(
        "payloads",
        sa.Column("job", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("shape", sa.Text, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=True),
    )
    op.create_table(
        "outputs",
        sa.Column("job", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("task", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "blobs",
        sa.Column("user", sa.String(100), primary_key=True),
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Double, nullable=False),
    )
    op.create_table(
        "uses",
        sa.Column("job", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("digest", sa.String(64), primary_key=True),
    )
    op.create_index("uses_of_a_blob", "uses", ["digest"])
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("secret", sa.String(64), nullable=False),
        sa.Column("user", sa.String(100), nullable=False),
        sa.Column("scopes", sa.String(100), nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("created", sa.Double, nullable=False),
        sa.Column("expires", sa.Double, nullable=True),
    )
