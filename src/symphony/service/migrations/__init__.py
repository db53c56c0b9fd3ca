"""Steps from one form of the database to the next, run by Alembic when a service opens it."""
