"""Migrations of the database, run by Alembic when a service opens it."""
