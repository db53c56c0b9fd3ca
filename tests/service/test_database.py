"""SQLite and PostgreSQL: tables that are brought up to date, and a service that forgets nothing on either."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

import symphony as sy
from symphony.service import tables
from symphony.service.database import only_one, open_database
from tests.service.kernels import add, fail, note, one, wait_for
from tests.service.places import SECONDS, place, postgres, wait_until


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
    with pytest.raises(sy.InputError, match="file cannot be made: File exists") as refused:
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
        with pytest.raises(sy.ServiceError, match="another service"), only_one(before.service.database, tmp_path):
            pass
    with place(tmp_path / "state", url) as after, after.connect("ann") as ann:
        assert not ann.job(job.id).wait(0.0)
        go.touch()
        assert ann.job(job.id).result(SECONDS) == "second"
        told = list(ann.job(job.id).follow())
        assert told[0].text.startswith("accepted") and told[-1].text == "done" and len(told) == 5
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


def test_addresses_of_databases_that_do_not_work_are_told_of(tmp_path: Path) -> None:
    with pytest.raises(sy.InputError, match="mysql"):
        open_database("mysql://x/y", tmp_path)
    with pytest.raises(sy.InputError, match="is none"):
        open_database("nonsense", tmp_path)
    with pytest.raises(sy.ServiceError, match="does not work") as caught:
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
