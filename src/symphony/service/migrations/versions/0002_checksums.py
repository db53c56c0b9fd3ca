"""Checksums, a table for damaged events, and the row that makes a service the only writer."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Existing rows get no checksums: they may be damaged already."""
    op.add_column("events", sa.Column("follows", sa.BigInteger, nullable=True))
    for name in ("events", "payloads", "outputs"):
        op.add_column(name, sa.Column("checksum", sa.BigInteger, nullable=True))
    op.create_table(
        "damaged_events",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("id", sa.BigInteger, nullable=True),
        sa.Column("at", sa.Double, nullable=True),
        sa.Column("job", sa.BigInteger, nullable=True),
        sa.Column("kind", sa.String(16), nullable=True),
        sa.Column("task", sa.Integer, nullable=True),
        sa.Column("seconds", sa.Double, nullable=True),
        sa.Column("data", sa.Text, nullable=True),
        sa.Column("follows", sa.BigInteger, nullable=True),
        sa.Column("checksum", sa.BigInteger, nullable=True),
        sa.Column("why", sa.Text, nullable=False),
        sa.Column("found", sa.Double, nullable=False),
    )
    journal = op.create_table(
        "journal",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("turn", sa.BigInteger, nullable=False),
        sa.Column("stopped", sa.Boolean, nullable=False),
    )
    op.bulk_insert(journal, [{"id": 1, "epoch": 0, "turn": 0, "stopped": True}])


def downgrade() -> None:
    for name in ("journal", "damaged_events"):
        op.drop_table(name)
    for name in ("events", "payloads", "outputs"):
        op.drop_column(name, "checksum")
    op.drop_column("events", "follows")
