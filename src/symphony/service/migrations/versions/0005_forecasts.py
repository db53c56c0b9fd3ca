"""Forecasts with their outcomes, and what futures need of submitted graphs."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("payloads", sa.Column("kernels", sa.Text, nullable=True))
    op.create_table(
        "forecasts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("job", sa.BigInteger, nullable=False),
        sa.Column("user", sa.String(100), nullable=False),
        sa.Column("what", sa.String(8), nullable=False),
        sa.Column("at", sa.Double, nullable=False),
        *(sa.Column(name, sa.Double, nullable=True) for name in ("low", "mid", "high")),
        *(sa.Column(f"shown_{name}", sa.Double, nullable=True) for name in ("low", "mid", "high")),
        sa.Column("actual", sa.Double, nullable=True),
    )
    op.create_index("forecasts_of_a_job", "forecasts", ["job"])


def downgrade() -> None:
    op.drop_table("forecasts")
    op.drop_column("payloads", "kernels")
