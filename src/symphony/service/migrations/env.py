"""Alembic runs this file, on the connection of the service and within its transaction."""

from __future__ import annotations

from alembic import context

from symphony.service.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
