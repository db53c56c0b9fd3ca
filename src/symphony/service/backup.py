"""Backups of the journal and the blobs of a service as one file, while it runs; and their restoration.

A backup is a tar file: `backup.json`, `journal.sqlite` (also of a journal in PostgreSQL), `profiles.json` and `blobs/`.
The journal is copied first, in one read transaction. The service writes a blob before the journal names it, and removes
it after the journal has forgotten it, so every blob that the copy names is there, or has been removed just now: then
the journal is copied again. Hard links keep the blobs while they are written to the file.

Checkpoints and output of jobs are not part of a backup, nor is the serving user's token.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import sqlalchemy as sa

from symphony.problem.errors import DataError, InputError
from symphony.service import tables
from symphony.service.audit import BACKED_UP, RESTORED, audit_row, operator
from symphony.service.blobs import Blobs
from symphony.service.database import database_errors, engine_of, lock_journal, open_database

FORMAT = "symphony-backup-1"
ABOUT, JOURNAL, PROFILES = "backup.json", "journal.sqlite", "profiles.json"
BLOB_NAME = re.compile(r"blobs/([0-9a-f]{2})/(\1[0-9a-f]{62})")
MAX_JOURNAL_COPIES = 5  # of the journal, if blobs are removed at the same time
MAX_ABOUT_BYTES = 1 << 20
CHUNK_BYTES, ROWS = 1 << 20, 1_000


@dataclass(frozen=True)
class BackupSummary:
    format: str
    created_s: float  # seconds since 1970
    version: str  # of Symphony
    journal_sha256: str
    jobs: int
    events: int
    blobs: int
    blob_bytes: int


# --- backup


def backup(url: str, folder: Path, target: Path) -> BackupSummary:
    """Write a backup of the service with this database and state folder. It may run meanwhile."""
    if target.exists():
        raise InputError("it exists already", where=str(target), hint="name a new file")
    engine = open_database(url, folder)
    try:
        with database_errors(engine), tempfile.TemporaryDirectory(dir=folder, prefix="backup-") as place:
            copy, links = Path(place) / JOURNAL, Path(place) / "blobs"
            blobs = _copied(engine, Blobs(folder / "blobs", sweep=False), copy, links)
            summary = _summary(copy, links, blobs)
            _write(target, summary, copy, links, blobs, folder / PROFILES)
            row = audit_row(operator(), BACKED_UP, str(target), jobs=summary.jobs, blobs=summary.blobs)
            with engine.begin() as connection:
                connection.execute(sa.insert(tables.audit).values(row))
    finally:
        engine.dispose()
    return summary


def _copied(engine: sa.Engine, blobs: Blobs, copy: Path, links: Path) -> list[str]:
    """Copy the journal and link the blobs that it names; their digests."""
    for _ in range(MAX_JOURNAL_COPIES):
        copy.unlink(missing_ok=True)
        shutil.rmtree(links, ignore_errors=True)
        _copy_journal(engine, copy)
        links.mkdir()
        with closing(sqlite3.connect(copy)) as connection:
            digests = [digest for (digest,) in connection.execute("SELECT DISTINCT digest FROM blobs ORDER BY digest")]
        if all(_link(blobs.path(digest), links / digest) for digest in digests):
            return digests
    missing = next(digest for digest in digests if not (links / digest).exists())
    raise DataError(f"blob {missing} is missing", where=str(blobs.folder), hint="see symphony repair check")


def _link(source: Path, target: Path) -> bool:
    try:
        os.link(source, target)
    except FileNotFoundError:
        return False
    except OSError:  # a file system without hard links
        try:
            shutil.copyfile(source, target)
        except FileNotFoundError:
            return False
    return True


def _copy_journal(engine: sa.Engine, copy: Path) -> None:
    if engine.dialect.name == "sqlite":
        with closing(sqlite3.connect(str(engine.url.database))) as source, closing(sqlite3.connect(copy)) as target:
            source.execute("PRAGMA busy_timeout=10000")
            source.backup(target)
            target.execute("PRAGMA journal_mode=DELETE")  # one file
        return
    made = open_database(f"sqlite:///{copy}", copy.parent)
    try:
        with engine.connect().execution_options(isolation_level="REPEATABLE READ") as source, made.begin() as target:
            _copy_rows(source, target)
    finally:
        made.dispose()
    with closing(sqlite3.connect(copy)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")


def _copy_rows(source: sa.Connection, target: sa.Connection) -> None:
    """Copy all rows into empty tables."""
    for table in tables.metadata.sorted_tables:
        if table is tables.journal:
            target.execute(sa.delete(table))
        rows = source.execution_options(yield_per=ROWS).execute(sa.select(table)).mappings()
        for part in rows.partitions(ROWS):
            target.execute(sa.insert(table), [dict(row) for row in part])


def _summary(copy: Path, links: Path, blobs: list[str]) -> BackupSummary:
    from importlib.metadata import version

    with closing(sqlite3.connect(copy)) as connection:
        (jobs,) = connection.execute("SELECT count(*) FROM payloads").fetchone()
        (events,) = connection.execute("SELECT count(*) FROM events").fetchone()
    size = sum((links / digest).stat().st_size for digest in blobs)
    digest = _sha256(copy)
    return BackupSummary(
        FORMAT, time.time(), version("symphony-scheduler"), digest, int(jobs), int(events), len(blobs), size
    )


def _write(target: Path, summary: BackupSummary, copy: Path, links: Path, blobs: list[str], profiles: Path) -> None:
    """Write to a temporary name: a backup is complete or not there."""
    part = target.with_name(f"{target.name}.part")
    try:
        with open(os.open(part, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as file:
            with tarfile.open(fileobj=file, mode="w") as archive:
                about = json.dumps(asdict(summary), indent=2).encode()
                entry = tarfile.TarInfo(ABOUT)
                entry.size, entry.mode = len(about), 0o600
                archive.addfile(entry, io.BytesIO(about))
                archive.add(copy, JOURNAL)
                if profiles.is_file():
                    archive.add(profiles, PROFILES)
                for digest in blobs:
                    archive.add(links / digest, f"blobs/{digest[:2]}/{digest}")
            file.flush()
            os.fsync(file.fileno())
        os.link(part, target)  # unlike a rename, refuses to replace a file
    except FileExistsError:
        raise InputError("it exists already", where=str(target), hint="name a new file") from None
    finally:
        part.unlink(missing_ok=True)


# --- restore


def restore(url: str, folder: Path, source: Path) -> BackupSummary:
    """Restore a backup into a state folder, and a database, without jobs and tokens.

    Everything is checked before the journal is written. Running jobs continue when a service is started.
    """
    if not source.is_file():
        raise InputError("there is no such file", where=str(source), hint="name a file that symphony backup wrote")
    _check_empty(url, folder)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=folder, prefix="restore-") as place, _archive(source) as archive:
        summary = _unpack(archive, Path(place), folder)
        _check_copy(Path(place) / JOURNAL, summary, Blobs(folder / "blobs"))
        _fill(url, folder, Path(place) / JOURNAL, source, summary)
    return summary


def _check_empty(url: str, folder: Path) -> None:
    hint = "restore into a new --state folder, and an empty database"
    if not url:
        if (folder / JOURNAL).exists():
            raise InputError("there is a journal already", where=str(folder), hint=hint)
        return
    engine = open_database(url, folder)
    try:
        with database_errors(engine), engine.connect() as connection:
            for table in (tables.events, tables.tokens, tables.blobs):
                if connection.execute(sa.select(sa.literal(1)).select_from(table).limit(1)).first() is not None:
                    raise InputError(f"its table {table.name} is not empty", where="database", hint=hint)
    finally:
        engine.dispose()


@contextmanager
def _archive(source: Path) -> Iterator[tarfile.TarFile]:
    try:
        with tarfile.open(source, "r:") as archive:
            yield archive
    except FileNotFoundError:
        raise InputError("there is no such file", where=str(source), hint="name a file of symphony backup") from None
    except (tarfile.TarError, EOFError, UnicodeError) as error:
        raise _damaged(str(error), source) from None


def _damaged(why: str, where: Path | str) -> DataError:
    return DataError(f"it is not an intact backup: {why}", where=str(where), hint="use another backup")


def _unpack(archive: tarfile.TarFile, place: Path, folder: Path) -> BackupSummary:
    """Unpack the parts with known names only, and check the SHA-256 of each blob."""
    blobs, summary, where = Blobs(folder / "blobs"), None, str(archive.name)
    for entry in archive:
        file = archive.extractfile(entry) if entry.isreg() else None
        found = BLOB_NAME.fullmatch(entry.name)
        if file is None or not (found or entry.name in (ABOUT, JOURNAL, PROFILES)):
            raise _damaged(f"{entry.name!r} does not belong to one", where)
        if entry.name == ABOUT:
            summary = _about(file.read(MAX_ABOUT_BYTES), where)
            continue
        target = place / (found[2] if found else entry.name)
        with open(target, "wb") as out:
            shutil.copyfileobj(file, out, CHUNK_BYTES)
            out.flush()
            os.fsync(out.fileno())
        if found:
            if _sha256(target) != found[2]:
                raise _damaged(f"blob {found[2]} has other contents", where)
            blobs.place(str(target), found[2])
    if summary is None or not (place / JOURNAL).exists():
        raise _damaged("a part is missing", where)
    return summary


def _about(text: bytes, where: Path | str) -> BackupSummary:
    try:
        summary = BackupSummary(**json.loads(text))
    except (TypeError, ValueError) as error:
        raise _damaged(f"{ABOUT}: {error}", where) from None
    if summary.format != FORMAT:
        raise DataError(f"its format is {summary.format!r}", where=str(where), hint="use the version that wrote it")
    return summary


def _check_copy(copy: Path, summary: BackupSummary, blobs: Blobs) -> None:
    if _sha256(copy) != summary.journal_sha256:
        raise _damaged("the journal has other contents", copy.name)
    with closing(sqlite3.connect(copy)) as connection:
        for digest, size in connection.execute("SELECT digest, size FROM blobs"):
            if blobs.size(digest) != size:
                raise _damaged(f"blob {digest} is missing", copy.name)


def _fill(url: str, folder: Path, copy: Path, source: Path, summary: BackupSummary) -> None:
    """Make the copy the journal. The last step is a rename, or a transaction."""
    made = open_database(f"sqlite:///{copy}", copy.parent)  # migrates it, if it is of an older version
    row = audit_row(operator(), RESTORED, str(source), jobs=summary.jobs, backed_up_s=summary.created_s)
    finish = (sa.update(tables.journal).values(stopped=True), sa.insert(tables.audit).values(row))
    if not url:
        with made.begin() as connection:
            for statement in finish:  # `stopped`: it was not the jobs that ended the service
                connection.execute(statement)
        made.dispose()
        with closing(sqlite3.connect(copy)) as file:
            file.execute("PRAGMA journal_mode=DELETE")
        os.replace(copy, folder / JOURNAL)
    else:
        engine = engine_of(url, folder)
        try:
            with (
                lock_journal(engine, folder),
                database_errors(engine),
                made.connect() as rows,
                engine.begin() as connection,
            ):
                _copy_rows(rows, connection)
                continue_numbers(connection)
                for statement in finish:
                    connection.execute(statement)
        finally:
            engine.dispose()
            made.dispose()
    if (copy.parent / PROFILES).exists():
        os.replace(copy.parent / PROFILES, folder / PROFILES)


def continue_numbers(connection: sa.Connection) -> None:
    """Let PostgreSQL's sequences continue after the copied rows."""
    for table in (tables.audit, tables.damaged_events):
        name = next(iter(table.primary_key)).name
        last = f"SELECT COALESCE(max({name}), 0) + 1 FROM {table.name}"
        connection.execute(sa.text(f"SELECT setval(pg_get_serial_sequence('{table.name}', '{name}'), ({last}), false)"))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
