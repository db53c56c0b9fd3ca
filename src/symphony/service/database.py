"""The database of a service: SQLite in its folder, or PostgreSQL by URL.

One process writes a journal. It holds a lock and knows the epoch of the journal: each process that takes the lock
increments the epoch, and a transaction with an old epoch fails. So a process that has lost its lock without noticing
(PostgreSQL was restarted) cannot write any more.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from symphony.problem.errors import InputError, ServiceError
from symphony.problem.extras import needs_extra
from symphony.service import tables

PYTHON_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg"}
ADVISORY_LOCK = 0x53796D70686F6E79  # PostgreSQL's number for it: "Symphony"
MAX_OVERFLOW = 45  # connections beyond 5: as many as there are threads for requests, and some
POOL_TIMEOUT_S = 5.0  # for which a request waits for a connection
DAMAGE_STATES = ("XX001", "XX002", "58P01")  # of PostgreSQL: data or an index is damaged, a file is missing
MIGRATION_LOCK = Lock()  # Alembic has global state: one thread at a time


# Made once: to make a statement takes longer than to execute it.
_ADVANCE = (
    sa.update(tables.journal)
    .where(tables.journal.c.epoch == sa.bindparam("mine"), tables.journal.c.turn == sa.bindparam("last"))
    .values(turn=sa.bindparam("next"))
)


class DamagedDatabaseError(ServiceError):
    """The database cannot read its own file or table."""


class LockHeldError(OSError):
    """The database still gives the lock to a connection that is gone. Try again."""


def open_database(url: str, folder: Path) -> sa.Engine:
    """Connect, and migrate the tables if necessary. With `url` "", SQLite in the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be created: {error.strerror}", hint="use a writable one (--state)"
        ) from None
    engine = engine_of(url, folder)
    try:
        with database_errors(engine):
            with engine.connect() as connection:
                current = _is_current(connection)
            if not current:
                with lock_journal(engine, folder):
                    pass
    except BaseException:
        engine.dispose()
        raise
    return engine


def engine_of(url: str, folder: Path) -> sa.Engine:
    """The SQLAlchemy engine; does not connect yet."""
    try:
        target = sa.make_url(url) if url else sa.URL.create("sqlite", database=str(folder / "journal.sqlite"))
        target = target.set(drivername=PYTHON_DRIVERS.get(target.drivername, target.drivername))
        backend = target.get_backend_name()
        if backend not in ("sqlite", "postgresql"):
            raise InputError(f"{backend} databases are not supported", hint="use sqlite:///… or postgresql://…")
        if backend == "sqlite":
            if target.database in (None, "", ":memory:"):
                raise InputError("the URL of the database names no file", hint="write sqlite:///journal.sqlite")
            target = target.set(database=os.path.realpath(str(target.database)))  # one name, and so one lock
        with needs_extra("postgres", "a journal in PostgreSQL"):
            engine = sa.create_engine(
                target, pool_pre_ping=backend != "sqlite", max_overflow=MAX_OVERFLOW, pool_timeout=POOL_TIMEOUT_S
            )
    except sa.exc.ArgumentError:
        raise InputError("the URL of the database is invalid", hint="write postgresql://user@host/name") from None
    if backend == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
    sa.event.listen(engine, "handle_error", _name_damage)
    return engine


@contextmanager
def database_errors(engine: sa.Engine) -> Iterator[None]:
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        raise ServiceError(
            f"the database failed: {_reason(getattr(error, 'orig', None) or error)}",
            where=engine.url.render_as_string(hide_password=True),
            hint="check that it exists and is yours",
        ) from None


def _name_damage(context: sa.ExceptionContext) -> None:
    """Called for every error of a database: damage is named, wherever it was met."""
    error = context.original_exception
    reason = _reason(error)
    is_damage = getattr(error, "sqlstate", None) in DAMAGE_STATES
    if is_damage or any(text in reason for text in ("malformed", "not a database", "no such")):
        where = context.engine.url.render_as_string(hide_password=True) if context.engine is not None else ""
        raise DamagedDatabaseError(
            f"the database failed: {reason}",
            where=where,
            hint="recover what is readable: stop the service, then symphony repair salvage",
        )


def _reason(error: BaseException) -> str:
    if isinstance(error, UnicodeDecodeError):  # in a message of SQLite, which quotes the file
        return "the database schema is malformed"
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _prepare_sqlite(connection: Any, _: object) -> None:
    """Use a write-ahead log: readers do not wait for writers, and a commit is one write.

    Invalid UTF-8 is read as surrogates, so that a damaged row can be named.
    """
    connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA journal_mode=WAL")
    except UnicodeDecodeError as error:  # SQLAlchemy passes on only errors of SQLite from here
        raise sqlite3.DatabaseError(_reason(error)) from None
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "symphony.service:migrations")
    return config


@cache  # it reads the files of all migrations
def _head() -> str | None:
    return ScriptDirectory.from_config(_config()).get_current_head()


def _is_current(connection: sa.Connection) -> bool:
    with MIGRATION_LOCK:
        return MigrationContext.configure(connection).get_current_revision() == _head()


def migrate(connection: sa.Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    try:
        with MIGRATION_LOCK:
            command.upgrade(config, "head")
    except CommandError as error:
        raise ServiceError(
            f"its schema is of another version: {error}",
            where="database",
            hint="install the newer Symphony that wrote it",
        ) from None


class Hold:
    """The exclusive right to write a journal, and the connection for it.

    PostgreSQL's lock belongs to a connection: if this one breaks, the next one takes the lock before it writes.
    """

    def __init__(self, engine: sa.Engine) -> None:
        """Take the lock, migrate the tables, begin an epoch."""
        self.engine = engine
        self.epoch, self.turn = -1, 0  # turn: number of the last committed transaction
        self._connection: sa.Connection | None = self._connect()
        try:
            self._begin_epoch(self._connection)
        except BaseException:
            self.close()
            raise

    def _begin_epoch(self, connection: sa.Connection) -> None:
        if not _is_current(connection):
            connection.rollback()  # end the transaction of `_is_current`
            with connection.begin():
                if self._is_sqlite:  # Python's driver begins no transaction for CREATE TABLE
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                migrate(connection)
        connection.rollback()
        rows = tables.journal.c
        with connection.begin():
            connection.execute(sa.update(tables.journal).values(epoch=rows.epoch + 1))
            found = connection.execute(sa.select(rows.epoch, rows.turn)).one()
        self.epoch, self.turn = found

    @property
    def _is_sqlite(self) -> bool:
        return self.engine.dialect.name == "sqlite"

    def _connect(self) -> sa.Connection:
        connection = self.engine.connect()
        try:
            if not self._is_sqlite:
                if not connection.scalar(sa.select(sa.func.pg_try_advisory_lock(ADVISORY_LOCK))):
                    self._refuse(connection)
                connection.commit()
        except BaseException:
            connection.invalidate()
            connection.close()
            raise
        return connection

    def _refuse(self, connection: sa.Connection) -> None:
        where = self.engine.url.render_as_string(hide_password=True)
        if self.epoch < 0:
            raise taken(where)
        if connection.scalar(sa.select(tables.journal.c.epoch)) != self.epoch:
            raise taken_over(where)
        raise LockHeldError("the database still holds the lock of a connection that is gone")

    @contextmanager
    def transaction(self, durable: bool = True) -> Iterator[sa.Connection]:
        """A transaction that survives a power cut or, if not `durable`, only the end of this process."""
        if self._connection is None:
            self._connection = self._connect()
        connection = self._connection
        try:
            if self._is_sqlite and connection.info.get("durable", True) != durable:
                cursor = connection.connection.cursor()
                cursor.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
                cursor.close()
                connection.info["durable"] = durable
            with connection.begin():
                if not self._is_sqlite and not durable:
                    connection.exec_driver_sql("SET LOCAL synchronous_commit = off")
                yield connection
        finally:
            if connection.invalidated:  # SQLAlchemy would reconnect by itself, without the lock
                self._connection = None
                connection.close()

    def advance(self, connection: sa.Connection, turn: int) -> int:
        """Number this transaction `turn`, as a part of it; the number of the last one that the database has.

        Raises if another process has taken over the journal.
        """
        rows = tables.journal.c
        if connection.execute(_ADVANCE, {"mine": self.epoch, "last": turn - 1, "next": turn}).rowcount:
            return turn - 1
        mine = sa.update(tables.journal).where(rows.epoch == self.epoch)
        row = connection.execute(sa.select(rows.epoch, rows.turn)).first()
        if row is None or row.epoch != self.epoch:
            raise taken_over(self.engine.url.render_as_string(hide_password=True))
        if row.turn < turn:
            connection.execute(mine.values(turn=turn))
        return int(row.turn)

    def close(self) -> None:
        """Release the lock explicitly: PostgreSQL would notice the closed connection only later."""
        if self._connection is None:
            return
        with suppress(sa.exc.SQLAlchemyError):
            if not self._is_sqlite:
                self._connection.rollback()
                self._connection.scalar(sa.select(sa.func.pg_advisory_unlock(ADVISORY_LOCK)))
        self._connection.invalidate()
        self._connection.close()
        self._connection = None


@contextmanager
def lock_journal(engine: sa.Engine, folder: Path) -> Iterator[Hold]:
    """Lock the journal: a second service with it would corrupt it, and is refused."""
    with files_locked(engine, folder):
        with database_errors(engine):
            hold = Hold(engine)
        with closing(hold):
            yield hold


@contextmanager
def files_locked(engine: sa.Engine, folder: Path) -> Iterator[None]:
    """Lock only the files, which needs no working database."""
    with ExitStack() as stack:
        paths = [folder / "lock"]  # for the blobs
        if engine.dialect.name == "sqlite":
            paths.append(Path(f"{engine.url.database}.lock"))  # for the journal
        for path in paths:
            _lock(path, stack)
        yield


def _lock(path: Path, stack: ExitStack) -> None:
    file = stack.enter_context(path.open("w"))
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise taken(str(path.parent)) from None


def taken(where: str) -> ServiceError:
    return ServiceError("another service is using it", where=where, hint="stop that service, or use another --state")


def taken_over(where: str) -> ServiceError:
    return ServiceError(
        "another service has taken over the journal; this one stops", where=where, hint="run one service for a database"
    )
