"""Maintenance of a journal that no service uses: inspect, cancel and quarantine jobs, check, salvage, compact.

All of it requires the lock. Requests about jobs are added as events, on which the next service acts.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from symphony.problem.errors import InputError, ServiceError
from symphony.runtime.jobs import DONE
from symphony.service import audit, tables
from symphony.service.audit import CANCELLED, Actor, audit_row
from symphony.service.backup import continue_numbers
from symphony.service.blobs import Blobs, named_in
from symphony.service.database import (
    ADVISORY_LOCK,
    DamagedDatabaseError,
    Hold,
    database_errors,
    engine_of,
    files_locked,
    lock_journal,
    migrate,
    open_database,
    taken,
)
from symphony.service.journal import checksum, set_aside, value_of
from symphony.service.ledger import Ledger, Transaction
from symphony.service.running import quarantine
from symphony.service.service import forget_jobs
from symphony.service.state import CANCEL, QUARANTINED, ServiceJob

T = TypeVar("T")
PROBED = 100_000  # rows to search for beyond the readable ones, if an end of a table is unreadable; takes seconds
UNREADABLE_FILE = (sqlite3.DatabaseError, UnicodeDecodeError)  # the latter in messages, which quote the file
AUDIT_TRIGGER = "symphony_audit_refuses"  # function of migration 0003
PAGE_ROWS = 1_024  # above the rows of a page of PostgreSQL
DAMAGE_CLASSES = ("XX", "58", "22")  # classes of its errors: damage, errors of the disk, values that are none


@contextmanager
def opened(url: str, folder: Path) -> Iterator[Ledger]:
    """The replayed journal, under its lock; refused while a service runs."""
    engine = open_database(url, folder)
    try:
        with lock_journal(engine, folder) as hold, database_errors(engine):
            yield _replayed(hold)
    finally:
        engine.dispose()


def _replayed(hold: Hold) -> Ledger:
    ledger = Ledger(hold, lambda jobs: None, lambda: None)
    ledger.replay()
    return ledger


def _run(ledger: Ledger, command: Callable[[Transaction], T]) -> T:
    future = ledger.post_required(command)
    ledger.step()
    return future.result()


def cancel(ledger: Ledger, numbers: list[int], by: str) -> list[ServiceJob]:
    """Cancel jobs; all of them, or none if one cannot be."""

    def stop(entry: Transaction, job: ServiceJob) -> None:
        entry.add(CANCEL, job.id, by=by)
        entry.insert(tables.audit, audit_row(Actor(by), CANCELLED, f"job {job.id}", user=job.user))

    return _stop(ledger, numbers, stop)


def quarantine_jobs(ledger: Ledger, numbers: list[int], by: str) -> list[ServiceJob]:
    """Quarantine jobs, which then fail instead of running again; all of them, or none if one cannot be."""

    def stop(entry: Transaction, job: ServiceJob) -> None:
        error = quarantine(job, f"{by} requested it with symphony repair")
        entry.add(QUARANTINED, job.id, error=error.model_dump(mode="json", exclude_defaults=True))
        entry.insert(tables.audit, audit_row(Actor(by), audit.QUARANTINED, f"job {job.id}", user=job.user))

    return _stop(ledger, numbers, stop)


def _stop(ledger: Ledger, numbers: list[int], stop: Callable[[Transaction, ServiceJob], None]) -> list[ServiceJob]:
    def command(entry: Transaction) -> list[ServiceJob]:
        jobs = [_open_job(ledger, number) for number in numbers]
        _set_aside(ledger, entry)
        entry.durable = True
        for job in jobs:
            stop(entry, job)
        return jobs

    return _run(ledger, command)


def _open_job(ledger: Ledger, number: int) -> ServiceJob:
    job = ledger.state.jobs.get(number)
    if job is None:
        raise InputError(f"there is no job {number}", hint="symphony repair list shows unfinished jobs")
    if job.over:
        raise InputError(f"job {number} is {job.status} already", hint="symphony repair list shows unfinished jobs")
    return job


def _set_aside(ledger: Ledger, entry: Transaction) -> None:
    """Set damaged events aside; new events continue after the readable ones."""
    for statement in set_aside(ledger.damaged):
        entry.do(statement)
    ledger.damaged = []


def check(ledger: Ledger, folder: Path) -> list[str]:
    """What is wrong with a journal, in sentences. Changes nothing."""
    engine = ledger.engine
    problems = [str(one) for one in ledger.damaged]
    problems += [f"job {number} is lost: {why}" for number, why in ledger.state.lost.items()]
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            lines = connection.scalars(sa.text("PRAGMA integrity_check")).all()
            problems += [f"SQLite: {line}" for line in lines if line != "ok"]
        problems += _wrong_payloads(connection, ledger)
        problems += _wrong_outputs(connection, ledger, Blobs(folder / "blobs"))
    return problems


def _wrong_payloads(connection: sa.Connection, ledger: Ledger) -> Iterator[str]:
    rows = tables.payloads.c
    for number in ledger.state.open:
        row = connection.execute(sa.select(rows.body, rows.checksum).where(rows.job == number)).first()
        if row is None or row.body is None:
            yield f"job {number}: the submitted graph is missing"
        elif row.checksum not in (None, checksum(row.body)):
            yield f"job {number}: the submitted graph is damaged"


def _wrong_outputs(connection: sa.Connection, ledger: Ledger, blobs: Blobs) -> Iterator[str]:
    """Check the results of jobs that are done, and the values that others have so far."""
    rows, intact = tables.outputs.c, dict[tuple[int, int], bool]()
    for number, task, body, known in connection.execute(sa.select(rows.job, rows.task, rows.body, rows.checksum)):
        value = value_of(body, known, f"task {task} of job {number}")
        intact[number, task] = value is not None and all(blobs.size(name) >= 0 for name in named_in([value]))
    for job in ledger.state.jobs.values():
        wanted = set(job.outputs) if job.status == DONE else job.done or set()
        for task in sorted(wanted):
            if not intact.get((job.id, task), False):
                yield f"job {job.id}: the value of task {task} is missing or damaged"


@dataclass
class Compacted:
    jobs: list[int]
    bytes_before: int = 0  # size of the database file; 0 = PostgreSQL
    bytes_after: int = 0


def compact(ledger: Ledger, days: float) -> Compacted:
    """Forget jobs that ended more than `days` ago, and shrink the database."""
    engine, since = ledger.engine, time.time() - days * 86_400.0
    before, forgotten = _size(engine), list[int]()
    while more := _run(ledger, lambda entry: forget_jobs(entry, since)):
        forgotten += more
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("VACUUM")
        if engine.dialect.name == "sqlite":
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    return Compacted(forgotten, before, _size(engine))


def _size(engine: sa.Engine) -> int:
    path = engine.url.database if engine.dialect.name == "sqlite" else None
    return os.path.getsize(path) if path else 0


# --- salvage


@dataclass
class Salvaged:
    kept: str  # the old journal: a file, or a schema of PostgreSQL
    rows: dict[str, int] = field(default_factory=dict)  # copied, by table
    unreadable: dict[str, int] = field(default_factory=dict)  # ranges of rows that could not be read, by table
    damaged: list[str] = field(default_factory=list)  # events that were copied and set aside


def salvage(url: str, folder: Path) -> Salvaged:
    """Make a new journal from what is readable of this one, and keep the old one."""
    engine = engine_of(url, folder)
    suffix = f"damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    if engine.dialect.name == "sqlite":
        return _salvage_file(engine, folder, suffix)
    try:
        with files_locked(engine, folder), database_errors(engine):
            result = Salvaged(f"symphony_{suffix}")
            with engine.begin() as connection:
                _copy_tables(connection, result)
            with closing(Hold(engine)) as hold:
                _set_damaged_aside(hold, result)
            return result
    finally:
        engine.dispose()


def _set_damaged_aside(hold: Hold, result: Salvaged) -> None:
    ledger = _replayed(hold)
    result.damaged = [str(one) for one in ledger.damaged]
    _run(ledger, lambda entry: _set_aside(ledger, entry))


class _Bisection:
    """Copies the readable ones of numbered rows. `copy(low, high)` copies a range; False: one of it is unreadable."""

    def __init__(self, copy: Callable[[int, int], bool]) -> None:
        self._copy = copy
        self.unreadable = 0  # ranges of rows
        self._failed = -2  # the last unreadable row

    def run(self, low: int, high: int) -> None:
        if self._copy(low, high):
            return
        if low == high:
            self.unreadable += low != self._failed + 1
            self._failed = low
            return
        middle = (low + high) // 2
        self.run(low, middle)
        self.run(middle + 1, high)


# --- salvage of a file of SQLite


def _salvage_file(engine: sa.Engine, folder: Path, suffix: str) -> Salvaged:
    old = Path(str(engine.url.database))
    if not old.exists():
        raise InputError(f"there is no journal {str(old)!r}", hint="use the --state folder of symphony serve")
    new, kept = old.with_name(f"{old.name}.new"), old.with_name(f"{old.name}.{suffix}")
    with files_locked(engine, folder):
        for path in (new, Path(f"{new}-wal"), Path(f"{new}-shm")):
            path.unlink(missing_ok=True)
        made = engine_of(f"sqlite:///{new}", folder)
        result = Salvaged(str(kept))
        try:
            with closing(Hold(made)) as hold:
                _copy_file(old, new, result)
                with made.connect() as connection:
                    row = connection.execute(sa.select(tables.journal.c.epoch, tables.journal.c.turn)).one()
                hold.epoch, hold.turn = row
                _set_damaged_aside(hold, result)
        finally:
            made.dispose()
        _swap(old, new, kept)
    return result


def _copy_file(old: Path, new: Path, result: Salvaged) -> None:
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        connection.text_factory = lambda raw: raw.decode(errors="surrogateescape")
        try:
            connection.execute("ATTACH ? AS old", (str(old),))
            existing = {
                name for (name,) in connection.execute("SELECT name FROM old.sqlite_master WHERE type = 'table'")
            }
        except UNREADABLE_FILE as error:
            raise ServiceError(
                f"it is not readable: {error}", where=str(old), hint="restore it from a backup"
            ) from None
        for table in tables.metadata.sorted_tables:
            if table.name not in existing:
                continue  # written by an old version
            present = {row[1] for row in connection.execute(f"PRAGMA old.table_info({table.name})")}
            if table.name == "journal":
                _copy_position(connection)
                continue
            _copy_rows(connection, table.name, _columns(table, present), result)
            result.rows[table.name] = connection.execute(f"SELECT count(*) FROM main.{table.name}").fetchone()[0]


def _columns(table: sa.Table, present: Collection[str]) -> str:
    return ", ".join(f'"{column.name}"' for column in table.columns if column.name in present)


def _copy_position(connection: sqlite3.Connection) -> None:
    """Continue the epoch: a process that had the old journal does not have the new one."""
    try:
        row: Any = connection.execute("SELECT epoch + 1, turn, stopped FROM old.journal").fetchone()
    except UNREADABLE_FILE as error:
        if not _is_damage(error):
            raise
        return
    if row is not None:
        connection.execute("UPDATE main.journal SET epoch = ?, turn = ?, stopped = ?", row)


def _copy_rows(connection: sqlite3.Connection, name: str, columns: str, result: Salvaged) -> None:
    """Copy all rows of a table at once; if that fails, bisect the range of rows."""

    def copy(which: str) -> bool:
        try:
            connection.execute(
                f"INSERT OR IGNORE INTO main.{name} ({columns}) SELECT {columns} FROM old.{name} "
                f"WHERE {which} ORDER BY rowid"
            )
        except UNREADABLE_FILE as error:
            if not _is_damage(error):
                raise
            return False
        return True

    if copy("1"):
        return
    up, down = _ends(connection, name, "ASC"), _ends(connection, name, "DESC")
    bisection = _Bisection(lambda low, high: copy(f"rowid BETWEEN {low} AND {high}"))
    if up or down:
        low = min(up) if up else max(min(down) - PROBED, 1)
        bisection.run(low, max(down) if down else max(up) + PROBED)
    result.unreadable[name] = bisection.unreadable or 1


def _ends(connection: sqlite3.Connection, name: str, order: str) -> tuple[int, ...]:
    """The first and the last row readable from one end."""
    first = last = None
    try:
        for (row,) in connection.execute(f"SELECT rowid FROM old.{name} ORDER BY rowid {order}"):
            first, last = row if first is None else first, row
    except UNREADABLE_FILE:
        pass
    return () if first is None or last is None else (first, last)


def _is_damage(error: sqlite3.DatabaseError | UnicodeDecodeError) -> bool:
    """Whether the old file is unreadable. Other errors (a full disk) must not make rows disappear."""
    if isinstance(error, UnicodeDecodeError):
        return True
    code = error.sqlite_errorcode
    read = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)
    # SQLITE_ERROR: the name of a column or a table has changed.
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR) or code in read


def _swap(old: Path, new: Path, kept: Path) -> None:
    """Rename the old journal. At any moment there is a journal with the original name, the old or the new one."""
    try:
        with closing(sqlite3.connect(old)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except UNREADABLE_FILE:
        pass  # the contents of its log were copied, and the log is kept beside the old file
    os.link(old, kept)
    for suffix in ("-wal", "-shm"):  # or SQLite would use them for the new journal
        if (log := Path(f"{old}{suffix}")).exists():
            log.rename(f"{kept}{suffix}")
    os.replace(new, old)


# --- salvage of a database of PostgreSQL


def _copy_tables(connection: sa.Connection, result: Salvaged) -> None:
    """Move the tables to another schema, make new ones, and copy the readable rows, all in one transaction."""
    if not connection.scalar(sa.select(sa.func.pg_try_advisory_xact_lock(ADVISORY_LOCK))):
        raise taken(connection.engine.url.render_as_string(hide_password=True))
    found = sa.inspect(connection)
    present = {name: [column["name"] for column in found.get_columns(name)] for name in found.get_table_names()}
    if "events" not in present:
        raise InputError("the database has no journal", hint="use the --database of symphony serve")
    old = f'"{result.kept}"'
    connection.exec_driver_sql(f"CREATE SCHEMA {old}")
    for name in ({*tables.metadata.tables, "alembic_version"}) & present.keys():
        connection.exec_driver_sql(f"ALTER TABLE {name} SET SCHEMA {old}")
    if "audit" in present:
        connection.exec_driver_sql(f"ALTER FUNCTION {AUDIT_TRIGGER}() SET SCHEMA {old}")
    migrate(connection)
    for table in tables.metadata.sorted_tables:
        if table.name not in present:
            continue  # written by an old version
        if table is tables.journal:
            connection.execute(sa.delete(table))
        _copy_pages(connection, old, table.name, _columns(table, present[table.name]), result)
        result.rows[table.name] = connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0
    rows = tables.journal.c
    if connection.execute(sa.update(tables.journal).values(epoch=rows.epoch + 1)).rowcount == 0:
        connection.execute(sa.insert(tables.journal).values(id=1, epoch=int(time.time()), turn=0, stopped=False))
    continue_numbers(connection)


def _copy_pages(connection: sa.Connection, old: str, name: str, columns: str, result: Salvaged) -> None:
    """Copy rows by their place: page and number in the page, which no index is needed for."""

    def copy(low: int, high: int) -> bool:
        first, last = (f"'({place // PAGE_ROWS},{place % PAGE_ROWS})'::tid" for place in (low, high))
        text = (
            f"INSERT INTO {name} ({columns}) SELECT {columns} FROM {old}.{name} WHERE ctid BETWEEN {first} AND {last}"
        )
        try:
            with connection.begin_nested():
                connection.exec_driver_sql(f"{text} ON CONFLICT DO NOTHING")
        except DamagedDatabaseError:
            return False
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated or getattr(error.orig, "sqlstate", "")[:2] not in DAMAGE_CLASSES:
                raise
            return False
        return True

    pages = connection.scalar(sa.text(f"SELECT pg_relation_size('{old}.{name}') / current_setting('block_size')::int"))
    bisection = _Bisection(copy)
    bisection.run(0, max(pages or 0, 1) * PAGE_ROWS - 1)  # a file that is missing has no pages, and cannot be read
    if bisection.unreadable:
        result.unreadable[name] = bisection.unreadable
