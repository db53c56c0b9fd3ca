"""Where a service keeps what it must not forget: SQLite in its own folder, or PostgreSQL by URL.

One process writes a journal. It holds a lock, and the journal's epoch: each process that takes the lock adds one to
the epoch, and no transaction goes through whose epoch is not the journal's. So a process that has lost its lock
without noticing (PostgreSQL was restarted) writes nothing beside the one that has it now.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
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
ADVISORY_LOCK = 0x53796D70686F6E79  # of PostgreSQL's advisory locks: "Symphony"
MIGRATION_LOCK = Lock()  # Alembic keeps what it is at in module globals: one thread of a process at a time


class LockHeldError(OSError):
    """A connection that is gone still has the lock, as far as the database knows. Try again."""


def open_database(url: str, folder: Path) -> sa.Engine:
    """Connect, and bring the tables up to date, under the lock. `url` may be "": SQLite, in the folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(
            f"the folder {folder} cannot be made: {error.strerror}", hint="name one that can be written (--state)"
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
    """Where the database is; nothing is read yet."""
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
    return engine


@contextmanager
def database_errors(engine: sa.Engine) -> Iterator[None]:
    """Errors of the database, as a user can read them."""
    try:
        yield
    except sa.exc.SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error).strip().splitlines()[0]
        broken = "malformed" in reason or "not a database" in reason
        raise ServiceError(
            f"the database does not work: {reason}",
            where=engine.url.render_as_string(hide_password=True),
            hint="symphony repair salvage keeps what can be read" if broken else "is it there, and yours?",
        ) from None


def _prepare_sqlite(connection: Any, _: object) -> None:
    """A log that is written ahead: who reads does not wait for who writes, and a commit is one write.

    Bytes that are no UTF-8 are read, not refused: only then can it be said which row is damaged.
    """
    connection.text_factory = _text
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=10000")
    cursor.close()


def _text(raw: bytes) -> str:
    return raw.decode(errors="surrogateescape")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "symphony.service:migrations")
    return config


def _is_current(connection: sa.Connection) -> bool:
    """Whether the tables are those that this version uses."""
    with MIGRATION_LOCK:
        head = ScriptDirectory.from_config(_config()).get_current_head()
        return MigrationContext.configure(connection).get_current_revision() == head


def _migrate(connection: sa.Connection) -> None:
    config = _config()
    config.attributes["connection"] = connection
    try:
        with MIGRATION_LOCK:
            command.upgrade(config, "head")
    except CommandError as error:
        raise ServiceError(
            f"its tables are of another version: {error}", where="database", hint="it was used by a newer Symphony"
        ) from None


class Hold:
    """The right to write a journal, and the connection that it is written by.

    PostgreSQL gives a lock to a connection: when this one breaks, the next one takes the lock again before it writes.
    """

    def __init__(self, engine: sa.Engine) -> None:
        """Take the lock; bring the tables up to date; begin an epoch."""
        self.engine = engine
        self.epoch, self.turn = -1, 0  # turn: the last transaction that was answered
        self._connection: sa.Connection | None = self._connect()
        try:
            self._begin_epoch(self._connection)
        except BaseException:
            self.close()
            raise

    def _begin_epoch(self, connection: sa.Connection) -> None:
        if not _is_current(connection):
            connection.rollback()  # ends the transaction that looking has begun
            with connection.begin():
                if self._is_sqlite:  # Python's driver begins none for statements that make tables
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                _migrate(connection)
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
            raise _taken(where)
        if connection.scalar(sa.select(tables.journal.c.epoch)) != self.epoch:
            raise taken_over(where)
        raise LockHeldError("the database has not noticed yet that a connection is gone")

    @contextmanager
    def transaction(self, durable: bool = True) -> Iterator[sa.Connection]:
        """One that is to survive a power cut, too, or (not `durable`) only the end of this process."""
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
            if connection.invalidated:  # used once more, it would connect again by itself, without the lock
                self._connection = None
                connection.close()

    def advance(self, connection: sa.Connection, turn: int) -> int:
        """Count a transaction, as a part of it; which one was the last that the database has.

        Raises if another process has taken the journal over.
        """
        rows = tables.journal.c
        mine = sa.update(tables.journal).where(rows.epoch == self.epoch)
        if connection.execute(mine.where(rows.turn == turn - 1).values(turn=turn)).rowcount:
            return turn - 1
        found = connection.execute(sa.select(rows.epoch, rows.turn)).first()
        if found is None or found.epoch != self.epoch:
            raise taken_over(self.engine.url.render_as_string(hide_password=True))
        if found.turn < turn:
            connection.execute(mine.values(turn=turn))
        return int(found.turn)

    def close(self) -> None:
        """Let go of it. A lock goes with its connection, but not at once, and the next one should not find it held."""
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
    """Two services with one journal would each overlook what the other does: the second is refused."""
    with files_locked(engine, folder):
        with database_errors(engine):
            hold = Hold(engine)
        with closing(hold):
            yield hold


@contextmanager
def files_locked(engine: sa.Engine, folder: Path) -> Iterator[None]:
    """The part of it that needs no database that works."""
    with ExitStack() as stack:
        files = [folder / "lock"]  # which has the blobs …
        if engine.dialect.name == "sqlite":
            files.append(Path(f"{engine.url.database}.lock"))  # … and the journal
        for file in files:
            _lock(file, stack)
        yield


def _lock(file: Path, stack: ExitStack) -> None:
    opened = stack.enter_context(file.open("w"))
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise _taken(str(file.parent)) from None


def _taken(where: str) -> ServiceError:
    return ServiceError("another service is using it", where=where, hint="stop that one, or give another --state")


def taken_over(where: str) -> ServiceError:
    """What a service is told whose journal another one writes by now."""
    return ServiceError(
        "another service has taken the journal over, and this one stops",
        where=where,
        hint="have one service use a database",
    )
