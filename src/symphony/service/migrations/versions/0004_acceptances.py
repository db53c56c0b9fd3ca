"""A copy of the event with which a job began, so that damage to the event does not lose the job."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Existing jobs get no copy: their events may be damaged already."""
    op.add_column("payloads", sa.Column("accepted", sa.Text, nullable=True))


def downgrade() -> None:
    op.drop_column("payloads", "accepted")
