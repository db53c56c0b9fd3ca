"""Maintenance of a journal that no service uses: inspect, cancel and quarantine jobs, check, salvage, compact.

All of it requires the lock. Requests about jobs are added as events, on which the next service acts.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from symphony.problem.errors import InputError, ServiceError
from symphony.runtime.jobs import DONE
from symphony.service import audit, tables
from symphony.service.audit import CANCELLED, Actor, audit_row
from symphony.service.blobs import Blobs, named_in
from symphony.service.database import Hold, database_errors, engine_of, files_locked, lock_journal, open_database
from symphony.service.journal import checksum, set_aside, value_of
from symphony.service.ledger import Ledger, Transaction
from symphony.service.running import quarantine
from symphony.service.service import forget_jobs
from symphony.service.state import CANCEL, QUARANTINED, ServiceJob

T = TypeVar("T")
PROBED = 100_000  # rows to search for beyond the readable ones, if an end of a table is unreadable; takes seconds


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
    kept: Path  # the old journal
    rows: dict[str, int] = field(default_factory=dict)  # copied, by table
    unreadable: dict[str, int] = field(default_factory=dict)  # ranges of rows that could not be read, by table
    damaged: list[str] = field(default_factory=list)  # events that were copied and set aside


def salvage(url: str, folder: Path) -> Salvaged:
    """Make a new journal from what is readable of this one, and keep the old file. SQLite only."""
    engine = engine_of(url, folder)
    if engine.dialect.name != "sqlite":
        raise InputError(
            "only SQLite files can be salvaged",
            hint="restore PostgreSQL from its backup; single damaged events are set aside at the next start",
        )
    old = Path(str(engine.url.database))
    if not old.exists():
        raise InputError(f"there is no journal {str(old)!r}", hint="use the --state folder of symphony serve")
    new = old.with_name(f"{old.name}.new")
    with files_locked(engine, folder):
        for path in (new, Path(f"{new}-wal"), Path(f"{new}-shm")):
            path.unlink(missing_ok=True)
        made = engine_of(f"sqlite:///{new}", folder)
        result = Salvaged(old.with_name(f"{old.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"))
        try:
            with closing(Hold(made)) as hold:
                _copy(old, new, result)
                ledger = _replayed(hold)
                result.damaged = [str(one) for one in ledger.damaged]
                hold.epoch, hold.turn = _position(made)
                _run(ledger, lambda entry: _set_aside(ledger, entry))
        finally:
            made.dispose()
        _swap(old, new, result.kept)
    return result


def _position(engine: sa.Engine) -> tuple[int, int]:
    with engine.connect() as connection:
        epoch, turn = connection.execute(sa.select(tables.journal.c.epoch, tables.journal.c.turn)).one()
        return epoch, turn


def _copy(old: Path, new: Path, result: Salvaged) -> None:
    with closing(sqlite3.connect(new, isolation_level=None)) as connection:
        try:
            connection.execute("ATTACH ? AS old", (str(old),))
            existing = {
                name for (name,) in connection.execute("SELECT name FROM old.sqlite_master WHERE type = 'table'")
            }
        except sqlite3.DatabaseError as error:
            raise ServiceError(
                f"it is not readable: {error}", where=str(old), hint="restore it from a backup"
            ) from None
        for table in tables.metadata.sorted_tables:
            if table.name not in existing:
                continue  # written by an old version
            present = {row[1] for row in connection.execute(f"PRAGMA old.table_info({table.name})")}
            columns = ", ".join(f'"{column.name}"' for column in table.columns if column.name in present)
            if table.name == "journal":
                _copy_position(connection)
                continue
            copied = _Table(connection, table.name, columns)
            copied.copy()
            result.rows[table.name] = connection.execute(f"SELECT count(*) FROM main.{table.name}").fetchone()[0]
            if copied.unreadable:
                result.unreadable[table.name] = copied.unreadable


def _copy_position(connection: sqlite3.Connection) -> None:
    """Continue the epoch: a process that had the old journal does not have the new one."""
    try:
        row: Any = connection.execute("SELECT epoch + 1, turn, stopped FROM old.journal").fetchone()
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        return
    if row is not None:
        connection.execute("UPDATE main.journal SET epoch = ?, turn = ?, stopped = ?", row)


class _Table:
    """Copies the readable rows of a table."""

    def __init__(self, connection: sqlite3.Connection, name: str, columns: str) -> None:
        self._connection, self._name, self._columns = connection, name, columns
        self.unreadable = 0  # ranges of rows
        self._failed = -1  # the last unreadable row

    def copy(self) -> None:
        """Copy all rows at once; if that fails, bisect the range of rows."""
        if self._try_copy("1"):
            return
        up, down = self._ends("ASC"), self._ends("DESC")
        if not up and not down:
            self.unreadable += 1
            return
        low = min(up) if up else max(min(down) - PROBED, 1)
        self._copy_range(low, max(down) if down else max(up) + PROBED)

    def _ends(self, order: str) -> tuple[int, ...]:
        """The first and the last row readable from one end."""
        first = last = None
        try:
            for (row,) in self._connection.execute(f"SELECT rowid FROM old.{self._name} ORDER BY rowid {order}"):
                first, last = row if first is None else first, row
        except sqlite3.DatabaseError:
            pass
        return () if first is None or last is None else (first, last)

    def _copy_range(self, low: int, high: int) -> None:
        if self._try_copy(f"rowid BETWEEN {low} AND {high}"):
            return
        if low == high:
            self.unreadable += low != self._failed + 1
            self._failed = low
            return
        middle = (low + high) // 2
        self._copy_range(low, middle)
        self._copy_range(middle + 1, high)

    def _try_copy(self, which: str) -> bool:
        columns = self._columns
        try:
            self._connection.execute(
                f"INSERT OR IGNORE INTO main.{self._name} ({columns}) SELECT {columns} FROM old.{self._name} "
                f"WHERE {which} ORDER BY rowid"
            )
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            return False
        return True


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the old file is unreadable. Other errors (a full disk) must not make rows disappear."""
    code = error.sqlite_errorcode
    read = (sqlite3.SQLITE_IOERR_READ, sqlite3.SQLITE_IOERR_SHORT_READ)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or code in read


def _swap(old: Path, new: Path, kept: Path) -> None:
    """Rename the old journal. At any moment there is a journal with the original name, the old or the new one."""
    try:
        with closing(sqlite3.connect(old)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    except sqlite3.DatabaseError:
        pass  # the contents of its log were copied, and the log is kept beside the old file
    os.link(old, kept)
    for suffix in ("-wal", "-shm"):  # or SQLite would use them for the new journal
        if (log := Path(f"{old}{suffix}")).exists():
            log.rename(f"{kept}{suffix}")
    os.replace(new, old)
