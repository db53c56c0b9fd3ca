"""Alembic runs this file; the connection is the service's own, within whose transaction every step is made."""

from __future__ import annotations

from alembic import context

from symphony.service.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
