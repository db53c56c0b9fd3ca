"""What an operator does to a journal: jobs are stopped, damage is found, what can be read is salvaged."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

import symphony as sy
from symphony.service import repair, tables, views
from symphony.service.database import open_database
from symphony.service.journal import read_events
from tests.service.handmade import Handmade, change
from tests.service.kernels import add, one
from tests.service.places import SECONDS, place, postgres, postgres_server


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A job that is done, and two that are not."""
    here = Handmade(tmp_path / "first")
    here.submit("done")
    here.finish(1)
    here.finish(2)
    here.submit("second")
    here.submit("third")
    return here.die(tmp_path / "state")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


def test_jobs_are_cancelled_and_quarantined_and_end_with_the_next_start(state: Path) -> None:
    with repair.opened("", state) as ledger:
        assert sorted(ledger.state.open) == [2, 3]
        assert [job.id for job in repair.cancel(ledger, [2], "ann")] == [2]
        assert [job.id for job in repair.quarantine_jobs(ledger, [3], "ann")] == [3]
    here = Handmade(state)
    assert here.job(2).status == "cancelled" and "ann requested it" in here.message(3)
    assert not here.engine.sent
    here.service.close()


def test_of_several_jobs_all_are_stopped_or_none(state: Path) -> None:
    with repair.opened("", state) as ledger:
        for number, text in ((1, "done already"), (9, "no job 9")):
            with pytest.raises(sy.InputError, match=text):
                repair.cancel(ledger, [2, number], "ann")
        assert not ledger.state.jobs[2].cancelled


def test_a_journal_that_a_service_uses_is_left_alone(tmp_path: Path) -> None:
    here = Handmade(tmp_path)
    with pytest.raises(sy.ServiceError, match="another service is using it"), repair.opened("", tmp_path):
        pass
    with pytest.raises(sy.ServiceError, match="another service is using it"):
        repair.salvage("", tmp_path)
    here.service.close()


def test_a_death_is_remembered_although_somebody_looks_at_the_journal(state: Path) -> None:
    with repair.opened("", state):
        pass
    here = Handmade(state)
    assert here.job(2).deaths == 1
    here.service.close()


def test_a_job_with_a_damaged_event_fails_also_after_a_repair(state: Path) -> None:
    change(state, "UPDATE events SET at = 0 WHERE job = 3 AND kind = 'begun'")
    with repair.opened("", state) as ledger:
        repair.cancel(ledger, [2], "ann")
    with repair.opened("", state) as ledger:
        assert len(ledger.damaged) == 1
    here = Handmade(state)
    assert here.job(2).status == "cancelled" and "its checksum is wrong" in here.message(3)
    here.service.close()


@pytest.mark.parametrize(
    ("statement", "text"),
    [
        (
            "UPDATE events SET at = 0 WHERE job = 2 AND kind = 'accepted'",
            "(job 2): its checksum is wrong; it was restored",
        ),
        ("UPDATE events SET at = 0 WHERE job = 1 AND kind = 'ended'", "(job 1): its checksum is wrong"),
        ("DELETE FROM events WHERE job = 1 AND task = 0", "(job 1): it is missing"),
        ("DELETE FROM outputs WHERE job = 1", "job 1: the value of task 1 is missing or damaged"),
        ("UPDATE outputs SET checksum = 7 WHERE job = 1", "job 1: the value of task 1 is missing or damaged"),
        ("UPDATE payloads SET checksum = 7 WHERE job = 2", "job 2: the submitted graph is damaged"),
        ("DELETE FROM payloads WHERE job = 3", "job 3: the submitted graph is missing"),
    ],
)
def test_a_check_says_what_is_wrong(state: Path, statement: str, text: str) -> None:
    with repair.opened("", state) as ledger:
        assert repair.check(ledger, state) == []
    change(state, statement)
    for _ in range(2):  # nothing was changed by it
        with repair.opened("", state) as ledger:
            assert text in "\n".join(repair.check(ledger, state))


def test_a_check_misses_files(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.connect("ann") as ann:
        ann.submit(one(add, np.ones(20_000))).result(SECONDS)
    with repair.opened("", tmp_path) as ledger:
        assert repair.check(ledger, tmp_path) == []
    for path in (tmp_path / "blobs").glob("*/*"):
        path.unlink()
    with repair.opened("", tmp_path) as ledger:
        assert "the value of task 0 is missing" in "\n".join(repair.check(ledger, tmp_path))


# -------------------------------------------------------------------- salvage


def spoil(folder: Path, table: str, which: int) -> None:
    """A page of a table that can be read no more, of those that hold rows."""
    with sqlite3.connect(folder / "journal.sqlite") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()[0]
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    connection.close()
    with (folder / "journal.sqlite").open("r+b") as file:
        file.seek((root - 1) * size)
        page = file.read(size)
        assert page[0] == 5, "the table has more than one page"
        cells = int.from_bytes(page[3:5], "big")
        at = [int.from_bytes(page[12 + 2 * k : 14 + 2 * k], "big") for k in range(cells)]
        leaf = int.from_bytes(page[at[which] : at[which] + 4], "big")
        file.seek((leaf - 1) * size)
        file.write(b"\xff" * size)


def many(folder: Path) -> int:
    """A journal of several pages; how many jobs it has."""
    here = Handmade(folder / "first")
    for number in range(60):
        here.submit(f"job {number}")
    here.die(folder / "state")
    return 60


@pytest.mark.parametrize("which", [0, 1, -1])
def test_what_can_be_read_of_a_broken_file_is_salvaged(tmp_path: Path, which: int) -> None:
    jobs, state = many(tmp_path), tmp_path / "state"
    spoil(state, "events", which)
    before = (state / "journal.sqlite").read_bytes()
    found = repair.salvage("", state)
    assert Path(found.kept).read_bytes() == before and found.unreadable["events"] == 1
    assert found.rows["payloads"] == jobs and found.rows["events"] > jobs / 2
    assert sorted(path.name for path in state.glob("journal*")) == [
        "journal.sqlite",
        Path(found.kept).name,
        "journal.sqlite.lock",
    ]
    here = Handmade(state)
    states = here.service.state.jobs.values()
    failed = [job for job in states if job.status == "failed"]
    assert jobs / 2 < len(states) and len(failed) < jobs / 2
    assert all(job.error is not None and "the journal is damaged" in job.error["message"] for job in failed)
    assert here.submit("next") == jobs + 1
    here.service.close()


def test_a_whole_journal_is_salvaged_as_it_is_and_its_epoch_goes_on(state: Path) -> None:
    def rows() -> dict[str, list]:
        with sqlite3.connect(state / "journal.sqlite") as connection:
            return {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables.metadata.tables}

    before = rows()
    found = repair.salvage("", state)
    after = rows()
    [(_, epoch, turn, stopped)], [(_, new_epoch, new_turn, new_stopped)] = before.pop("journal"), after.pop("journal")
    assert before == after and not found.unreadable and not found.damaged
    assert new_epoch > epoch and new_turn >= turn and stopped == new_stopped == 0


def test_a_file_of_which_nothing_can_be_read_stays_as_it_is(state: Path) -> None:
    (state / "journal.sqlite").write_bytes(b"nothing" * 1_000)
    with pytest.raises(sy.ServiceError, match="it is not readable"):
        repair.salvage("", state)
    assert (state / "journal.sqlite").read_bytes() == b"nothing" * 1_000
    with pytest.raises(sy.InputError, match="no journal"):
        repair.salvage("", state / "elsewhere")


@pytest.mark.parametrize(
    ("damage", "salvaged"),
    [
        ("ALTER TABLE journal RENAME COLUMN epoch TO epocx", True),
        ("UPDATE sqlite_master SET name = CAST(X'CFFF' AS TEXT), sql = 'CREATE' WHERE name = 'uses'", False),
    ],
)
def test_a_schema_that_makes_no_sense_is_named_as_damage(state: Path, damage: str, salvaged: bool) -> None:
    """Found by `tests/fuzz.py`. SQLite's message about the second one is not UTF-8."""
    with sqlite3.connect(state / "journal.sqlite") as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute(damage)
    connection.close()
    with pytest.raises(sy.ServiceError, match="the database failed") as caught:
        Handmade(state)
    assert "symphony repair salvage" in caught.value.hint
    if not salvaged:
        with pytest.raises(sy.ServiceError, match="it is not readable"):
            repair.salvage("", state)
        return
    assert not repair.salvage("", state).unreadable
    here = Handmade(state)
    assert sorted(here.service.state.open) == [2, 3]
    here.service.close()


def test_a_full_disk_is_no_reason_to_leave_rows_out() -> None:
    with sqlite3.connect(":memory:") as connection:
        connection.execute("CREATE TABLE t (x)")
        connection.execute("PRAGMA max_page_count=2")
        with pytest.raises(sqlite3.OperationalError) as caught:
            connection.execute("INSERT INTO t VALUES (zeroblob(100000))")
    assert not repair._is_damage(caught.value)


# -------------------------------------------------------------------- compact, and PostgreSQL


def test_compacting_forgets_what_ended_long_ago_and_nothing_else(state: Path) -> None:
    with repair.opened("", state) as ledger:
        assert repair.compact(ledger, 1.0).jobs == []
        found = repair.compact(ledger, 0.0)
        assert found.jobs == [1] and found.bytes_after <= found.bytes_before
        assert {event.job for event in read_events(ledger.engine)} == {2, 3}
        assert repair.check(ledger, state) == []
    here = Handmade(state)
    assert not here.job(2).over and not here.job(3).over
    here.service.close()


def test_a_journal_in_postgresql_is_checked_and_compacted(server: str, tmp_path: Path) -> None:
    with place(tmp_path, server) as here, here.connect("ann") as ann:
        jobs = [ann.submit(one(add, number)) for number in range(2)]
        assert [job.result(SECONDS) for job in jobs] == [0, 1]
    with repair.opened(server, tmp_path) as ledger:
        assert repair.check(ledger, tmp_path) == []
        assert repair.compact(ledger, 0.0).jobs == [1]
    database = open_database(server, tmp_path)
    with database.begin() as connection:
        connection.execute(sa.update(tables.events).where(tables.events.c.kind == "ended").values(data="{"))
    database.dispose()
    with repair.opened(server, tmp_path) as ledger:
        assert "(job 2): its checksum is wrong" in "\n".join(repair.check(ledger, tmp_path))
    with place(tmp_path, server) as here:
        problem = here.service.state.jobs[2].view().error
        assert problem is not None and "the journal is damaged" in problem.message
        with pytest.raises(views.JobEnded):
            views.outcome(here.service, here.service.state.jobs[2])


def _garble_page(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(8_192)
        file.write(b"\xff" * 8_192)


@pytest.mark.parametrize(
    ("damage", "named"), [(_garble_page, "invalid page"), (Path.unlink, "could not open file")], ids=["page", "file"]
)
def test_what_can_be_read_of_broken_tables_of_postgresql_is_salvaged(
    damage: Callable[[Path], None], named: str, tmp_path: Path
) -> None:
    """A page of events is garbage, or all are gone; the jobs in it go on, from the copies in their payloads."""
    with postgres_server() as own:
        here = Handmade(tmp_path, own.url)
        for number in range(60):
            here.submit(f"job {number}")
        with here.service.database.connect() as connection:
            path = connection.scalar(sa.text("SELECT pg_relation_filepath('events')"))
        here.service.close()
        own.stop()
        damage(own.data / str(path))
        own.start()
        with pytest.raises(sy.ServiceError, match=named) as caught:
            Handmade(tmp_path, own.url)
        assert "symphony repair salvage" in caught.value.hint
        found = repair.salvage(own.url, tmp_path)
        assert found.unreadable == {"events": 1} and found.rows["payloads"] == 60
        assert len([line for line in found.damaged if "it was restored" in line]) > 10
        here = Handmade(tmp_path, own.url)
        assert sorted(here.service.state.open) == list(range(1, 61)) and here.submit("next") == 61
        with here.service.database.connect() as connection:
            assert connection.scalar(sa.text(f'SELECT count(*) FROM "{found.kept}".payloads')) == 60
        here.service.close()
