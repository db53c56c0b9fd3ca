"""Where a service keeps what it must not forget: SQLite in its own folder, or PostgreSQL by URL."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.util import CommandError

from symphony.problem.errors import InputError, ServiceError
from symphony.problem.extras import needs_extra

PYTHON_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
LOCK = 0x53796D70686F6E79  # of PostgreSQL's advisory locks: "Symphony"
MIGRATING = Lock()  # Alembic keeps what it is at in module globals: one thread of a process at a time


def open_database(url: str, folder: Path) -> sa.Engine:
    """Connect, and bring the tables up to date. `url` may be "": SQLite, in the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be made: {error.strerror}", hint="name one that can be written (--state)"
        ) from None
    try:
        found = sa.make_url(url) if url else sa.URL.create("sqlite", database=str(folder / "journal.sqlite"))
        found = found.set(drivername=PYTHON_DRIVERS.get(found.drivername, found.drivername))
        backend = found.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise InputError(f"{backend} is no database for a service", hint="use sqlite:///… or postgresql://…")
        with needs_extra("postgres", "a journal in PostgreSQL"):
            engine = sa.create_engine(found, pool_pre_ping=backend != "sqlite")
    except sa.exc.ArgumentError:
        raise InputError("the address of the database is none", hint="write postgresql://user@host/name") from None
    if backend == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
    try:
        with engine.begin() as connection:
            _migrate(connection)
    except sa.exc.SQLAlchemyError as error:
        engine.dispose()
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        where = found.render_as_string(hide_password=True)
        raise ServiceError(
            f"the database does not work: {reason}", where=where, hint="is it there, and yours?"
        ) from None
    return engine


def _prepare_sqlite(connection: sa.engine.interfaces.DBAPIConnection, _: object) -> None:
    """A log that is written ahead: who reads does not wait for who writes, and a commit is one write."""
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()


def be_durable(connection: sa.Connection, durable: bool) -> None:
    """Whether the next transaction is to survive a power cut, too; a killed process never loses one.

    Before it begins, for SQLite; within it, for PostgreSQL.
    """
    if connection.dialect.name == "sqlite":
        if connection.info.get("durable", True) != durable:
            cursor = connection.connection.cursor()
            cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            cursor.close()
            connection.info["durable"] = durable
    elif not durable:
        connection.exec_driver_sql("SET LOCAL synchronous_commit = off")


def _migrate(connection: sa.Connection) -> None:
    config = Config()
    config.set_main_option("script_location", "symphony.service:migrations")
    config.attributes["connection"] = connection
    try:
        with MIGRATING:
            command.upgrade(config, "head")
    except CommandError as error:
        raise ServiceError(
            f"its tables are of another version: {error}", where="database", hint="it was used by a newer Symphony"
        ) from None


@contextmanager
def only_one(engine: sa.Engine, folder: Path) -> Iterator[None]:
    """Two services with one journal would each overlook what the other does: the second is refused."""
    with ExitStack() as stack:
        files = [folder / "lock"]  # which has the blobs …
        if engine.dialect.name == "sqlite":
            files.append(Path(f"{engine.url.database}.lock"))  # … and the journal
        for file in files:
            try:
                fcntl.flock(stack.enter_context(open(file, "w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise _taken(str(file.parent)) from None
        if engine.dialect.name == "postgresql":
            held = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            stack.callback(held.close)
            stack.callback(held.invalidate)  # the lock goes with the connection
            if not held.scalar(sa.text("SELECT pg_try_advisory_lock(:lock)"), {"lock": LOCK}):
                raise _taken(engine.url.render_as_string(hide_password=True))
        yield


def _taken(where: str) -> ServiceError:
    return ServiceError("another service is using it", where=where, hint="stop that one, or give another --state")
