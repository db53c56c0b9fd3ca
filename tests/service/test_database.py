"""SQLite and PostgreSQL: tables that are brought up to date, and a service that forgets nothing on either."""

from __future__ import annotations

import itertools
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import symphony as sy
from symphony.service import database as database_module
from symphony.service import service as service_module
from symphony.service import tables, tokens
from symphony.service.database import Hold, engine_of, files_locked, lock_journal, open_database
from symphony.service.journal import read_events, replay
from symphony.service.ledger import Ledger, Transaction
from symphony.service.state import ACCEPTED, FINISHED
from tests.service.kernels import add, fail, note, one, wait_for
from tests.service.places import SECONDS, Postgres, place, postgres, postgres_server, wait_until
from tests.service.test_journal import BEFORE
from tests.service.test_ledger import JOB


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("server") if request.param == "postgresql" else ""


def test_the_steps_lead_to_the_tables_that_are_used(url: str, tmp_path: Path) -> None:
    for _ in range(2):  # the second time there is nothing to do
        database = open_database(url, tmp_path)
        with database.connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, tables.metadata) == []
        database.dispose()


def test_databases_are_opened_side_by_side(tmp_path: Path) -> None:
    """By threads of one process, as whoever tests several services does."""

    def opened(number: int) -> int:
        engine = open_database("", tmp_path / str(number))
        with engine.connect() as connection:
            found = len(sa.inspect(connection).get_table_names())
        engine.dispose()
        return found

    with ThreadPoolExecutor(8) as threads:
        assert set(threads.map(opened, range(24))) == {opened(24)}


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(sy.InputError, match="file cannot be created: File exists") as refused:
        open_database("", tmp_path / "file")
    assert "--state" in refused.value.hint


def test_a_service_goes_on_where_another_stopped(url: str, tmp_path: Path) -> None:
    ran, go = tmp_path / "ran", tmp_path / "go"
    graph = sy.graph("two halves")
    first = graph.task(note, str(ran), "first")
    graph.task(note, str(ran), "second", graph.task(wait_for, str(go), first))
    with place(tmp_path / "state", url) as before, before.connect("ann") as ann:
        job, broken = ann.submit(graph), ann.submit(one(fail, "no"))
        done = ann.submit(one(add, np.arange(40_000)))
        assert broken.wait(SECONDS) and len(done.result(SECONDS)) == 40_000
        wait_until(lambda: job.detail().tasks[1].status == "running")
        with pytest.raises(sy.ServiceError, match="another service"), lock_journal(before.service.database, tmp_path):
            pass
    with place(tmp_path / "state", url) as after, after.connect("ann") as ann:
        assert not ann.job(job.id).wait(0.0)
        go.touch()
        assert ann.job(job.id).result(SECONDS) == "second"
        told = list(ann.job(job.id).follow())
        assert told[0].text.startswith("accepted") and told[-1].text == "done" and len(told) == 6
        assert len(ann.job(done.id).result(SECONDS)) == 40_000
        with pytest.raises(sy.KernelError, match="no"):
            ann.job(broken.id).result(SECONDS)
    assert ran.read_text() == "first\nsecond\n"


def test_connections_that_are_cut_are_made_anew(server: str, tmp_path: Path) -> None:
    cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE state = 'idle' AND pid <> pg_backend_pid()"
    with place(tmp_path / "state", server) as here, here.connect("cut") as ann:
        assert ann.submit(one(add, 1)).result(SECONDS) == 1
        other = open_database(server, tmp_path)
        with other.connect() as connection:
            assert connection.execute(sa.text(cut)).rowcount > 0
        other.dispose()
        assert ann.submit(one(add, 2)).result(SECONDS) == 2


# -------------------------------------------------------------------- PostgreSQL is killed, and comes back


@pytest.fixture
def lazy() -> Iterator[Postgres]:
    """It writes to the disk only what it is made to: all the rest is lost when it is killed."""
    with postgres_server("-c", "wal_writer_delay=10000ms", "-c", "autovacuum=off") as found:
        yield found


def accept(entry: Transaction) -> int:
    entry.durable = True
    job = entry.state.last_job + 1
    entry.add(ACCEPTED, job, **JOB)
    return job


def finish(ledger: Ledger, *tasks: int) -> None:
    for task in tasks:  # a transaction each
        ledger.post_required(lambda entry, task=task: entry.add(FINISHED, 1, task, seconds=1.0)).result(SECONDS)


def kinds(url: str, folder: Path) -> list[tuple[str, int]]:
    database = open_database(url, folder)
    found = [(event.kind, event.task) for event in read_events(database)]
    assert not replay(database).damaged
    database.dispose()
    return found


def test_what_a_database_loses_when_it_is_killed_is_written_again(lazy: Postgres, tmp_path: Path) -> None:
    database = open_database(lazy.url, tmp_path)
    with lock_journal(database, tmp_path) as hold:
        ledger = Ledger(hold, lambda jobs: None, lambda: None)
        ledger.replay()
        ledger.start()
        ledger.post_required(accept).result(SECONDS)
        finish(ledger, 0, 1, 2)
        lazy.kill()
        lazy.start()
        assert kinds(lazy.url, tmp_path) == [(ACCEPTED, -1)]  # it has lost them
        finish(ledger, 3)
        assert kinds(lazy.url, tmp_path) == [(ACCEPTED, -1), *((FINISHED, task) for task in range(4))]
        with pytest.raises(sy.ServiceError, match="another service"):
            Hold(database)  # and the lock is held again
        ledger.close()
    database.dispose()


def test_a_service_does_not_write_on_past_what_a_database_has_lost(
    lazy: Postgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed: list[bool] = []
    database = open_database(lazy.url, tmp_path)
    with lock_journal(database, tmp_path) as hold:
        ledger = Ledger(hold, lambda jobs: None, lambda: failed.append(True))
        ledger.replay()
        ledger.start()
        ledger.post_required(accept).result(SECONDS)
        finish(ledger, 0, 1)
        ledger._unsynced.clear()  # as if it had been synced, and a backup from before was restored
        lazy.kill()
        lazy.start()
        with pytest.raises(sy.ServiceError, match="has stopped"):
            finish(ledger, 2)
        ledger.close()
    assert failed and any("lost transactions 2 to 3" in record.message for record in caplog.records)
    assert kinds(lazy.url, tmp_path) == [(ACCEPTED, -1)]
    database.dispose()


def test_a_journal_with_two_names_has_one_lock(tmp_path: Path) -> None:
    """A link to it in the folder of another service."""
    database = open_database("", tmp_path / "first")
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "journal.sqlite").symlink_to(tmp_path / "first" / "journal.sqlite")
    linked = open_database("", tmp_path / "second")
    with (
        lock_journal(database, tmp_path / "first"),
        pytest.raises(sy.ServiceError, match="another service"),
        lock_journal(linked, tmp_path / "second"),
    ):
        pass
    database.dispose()
    linked.dispose()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_journal_needs_a_file(url: str, tmp_path: Path) -> None:
    with pytest.raises(sy.InputError, match="names no file"):
        open_database(url, tmp_path)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_service_whose_journal_another_has_taken_over_stops(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lazy: Postgres | None = request.getfixturevalue("lazy") if kind == "postgresql" else None
    url = lazy.url if lazy is not None else ""
    failed: list[bool] = []
    database = open_database(url, tmp_path)
    with lock_journal(database, tmp_path) as hold:
        ledger = Ledger(hold, lambda jobs: None, lambda: failed.append(True))
        ledger.replay()
        ledger.start()
        ledger.post_required(accept).result(SECONDS)
        if lazy is not None:
            lazy.kill()
            lazy.start()
        other = Hold(open_database(url, tmp_path))  # by now nobody has the lock; that of a file cannot be lost
        with pytest.raises(sy.ServiceError, match="has stopped"):
            finish(ledger, 0)
        ledger.close()
        second = Ledger(other, lambda jobs: None, lambda: None)
        second.replay()
        second.post_required(accept)
        second.step()
        other.close()
        other.engine.dispose()
    assert failed and any("has taken over the journal" in record.message for record in caplog.records)
    assert kinds(url, tmp_path) == [(ACCEPTED, -1), (ACCEPTED, -1)]
    database.dispose()


def test_an_idle_service_takes_its_lock_again(lazy: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "CHECK_S", 0.0)
    database = open_database(lazy.url, tmp_path)

    def is_taken() -> bool:
        with database.connect() as connection:
            return bool(connection.scalar(sa.text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")))

    with place(tmp_path / "state", lazy.url) as here:
        assert is_taken()
        lazy.kill()
        lazy.start()
        assert not is_taken()
        here.service.check_lock()
        wait_until(is_taken)
        assert not here.service.failed.is_set()
    assert not is_taken()
    database.dispose()


def test_killing_the_database_during_submissions_loses_no_job_and_no_result(lazy: Postgres, tmp_path: Path) -> None:
    rng, keys = random.Random(3), itertools.count()
    with place(tmp_path / "state", lazy.url) as here, here.connect("ann") as ann:
        jobs: dict[int, int] = {}
        enough = threading.Event()

        def submit() -> None:
            while not enough.is_set():
                key = next(keys)
                while key not in jobs:
                    try:
                        jobs[key] = ann.submit(one(add, key), key=str(key)).id
                    except sy.ServiceError:  # the database is away
                        time.sleep(0.05)

        with ThreadPoolExecutor(2) as threads:
            running = [threads.submit(submit) for _ in range(2)]
            for _ in range(3):
                seen = len(jobs)
                wait_until(lambda seen=seen: len(jobs) > seen + 5)
                time.sleep(rng.uniform(0.0, 0.3))
                lazy.kill()
                lazy.start()
            wait_until(lambda: not here.service.ledger.stuck)
            enough.set()
            for future in running:
                future.result(SECONDS)
        assert {key: ann.job(number).result(SECONDS) for key, number in jobs.items()} == {key: key for key in jobs}
        assert not replay(here.service.database).damaged and not here.service.failed.is_set()
        assert len(set(jobs.values())) == len(jobs)


# -------------------------------------------------------------------- tables are changed under the lock


def test_tables_are_not_changed_beside_a_service(tmp_path: Path) -> None:
    old(tmp_path)
    with (
        files_locked(engine_of("", tmp_path), tmp_path),
        pytest.raises(sy.ServiceError, match="another service is using it"),
    ):
        open_database("", tmp_path)
    database = open_database("", tmp_path)
    with lock_journal(database, tmp_path):
        open_database("", tmp_path).dispose()  # up to date: whoever makes tokens is let in
    database.dispose()


def test_a_change_of_tables_that_is_cut_off_is_made_anew(tmp_path: Path) -> None:
    old(tmp_path)
    with mock.patch("alembic.op.bulk_insert", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        open_database("", tmp_path)
    database = open_database("", tmp_path)
    assert len(list(read_events(database))) == 10
    database.dispose()


REVISIONS = ("0001", "0002", "0003", "0004", "0005")  # all; the first was released


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_journal_of_every_earlier_schema_is_upgraded_and_can_go_back(revision: str, url: str, tmp_path: Path) -> None:
    """With the rows of a journal that the first version wrote."""
    made = engine_of(at_revision(revision, url, tmp_path), tmp_path)
    database = open_database(str(made.url.render_as_string(hide_password=False)), tmp_path)
    before = list(read_events(database))
    assert len(before) == 10 and not replay(database).damaged
    assert tokens.create(database, "ann", (tokens.READ,), days=None)
    with database.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), tables.metadata) == []
    for step in reversed(REVISIONS[:-1]):
        with database.begin() as connection:
            alembic(connection, command.downgrade, step)
    database.dispose()
    database = open_database(str(made.url.render_as_string(hide_password=False)), tmp_path)
    assert [event[:7] for event in read_events(database)] == [event[:7] for event in before]
    database.dispose()
    made.dispose()


def at_revision(revision: str, server: str, folder: Path) -> str:
    """The address of a new database of an earlier schema, with the rows of `BEFORE`."""
    old(folder)
    source = engine_of("", folder)
    with source.begin() as connection:
        alembic(connection, command.upgrade, revision)
    if not server:
        source.dispose()
        return f"sqlite:///{folder / 'journal.sqlite'}"
    name = f"from_{revision}"
    admin = engine_of(server, folder)
    with admin.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    admin.dispose()
    url = sa.make_url(server).set(database=name).render_as_string(hide_password=False)
    target, found = engine_of(url, folder), sa.MetaData()
    found.reflect(source)
    with target.begin() as connection:
        alembic(connection, command.upgrade, revision)
    with target.begin() as connection, source.connect() as rows:
        for table in found.sorted_tables:
            if table.name not in ("alembic_version", "journal") and (
                all_rows := [dict(row) for row in rows.execute(sa.select(table)).mappings()]
            ):
                connection.execute(sa.insert(table), all_rows)
    for engine in (source, target):
        engine.dispose()
    return url


def alembic(connection: sa.Connection, how: Callable[..., None], revision: str) -> None:
    config = database_module._config()
    config.attributes["connection"] = connection
    how(config, revision)


def old(folder: Path) -> None:
    with sqlite3.connect(folder / "journal.sqlite") as connection:
        connection.executescript(BEFORE.read_text())
    connection.close()


def test_addresses_of_databases_that_do_not_work_are_told_of(tmp_path: Path) -> None:
    with pytest.raises(sy.InputError, match="mysql"):
        open_database("mysql://x/y", tmp_path)
    with pytest.raises(sy.InputError, match="is invalid"):
        open_database("nonsense", tmp_path)
    with pytest.raises(sy.ServiceError, match="the database failed") as caught:
        open_database("postgresql://ann:secret@127.0.0.1:9/x", tmp_path)
    assert "secret" not in str(caught.value)


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    database = open_database("", tmp_path)
    with database.begin() as connection:
        connection.execute(sa.text("UPDATE alembic_version SET version_num = 'from the future'"))
    database.dispose()
    with pytest.raises(sy.ServiceError, match="another version"):
        open_database("", tmp_path)


def test_commits_reach_the_disk_ahead_of_the_tables(tmp_path: Path) -> None:
    database = open_database("", tmp_path)
    with database.connect() as connection:
        assert connection.scalar(sa.text("PRAGMA journal_mode")) == "wal"
        assert connection.scalar(sa.text("PRAGMA synchronous")) == 2  # FULL
    database.dispose()
