"""Events that are damaged or missing are named and set aside, and everything else goes on."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from symphony.engines.engine import LOST, Failed
from symphony.problem.errors import JobLostError, ServiceError
from symphony.service import journal, tables, views
from symphony.service.database import open_database
from symphony.service.guard import refusal
from symphony.service.journal import read_events, row_of
from symphony.service.state import ACCEPTED, JournalEvent
from tests.service.handmade import ANN, Handmade, change
from tests.service.places import postgres

BEFORE = Path(__file__).parent / "journals" / "before_checksums.sql"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with postgres() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[sa.Engine]:
    found = open_database(request.getfixturevalue("server") if request.param == "postgresql" else "", tmp_path)
    yield found
    found.dispose()


@pytest.fixture
def three(tmp_path: Path) -> Path:
    """Of three jobs, the first is done, the second half done and the third waits. The service was killed."""
    here = Handmade(tmp_path / "first")
    assert here.submit("done") == 1
    here.finish(1)
    here.finish(2)
    assert here.job(1).status == "done" and here.submit("half") == 2
    here.finish(3)
    assert here.submit("waits") == 3
    return here.die(tmp_path / "state")


def number(folder: Path, job: int, kind: str) -> int:
    with sqlite3.connect(folder / "journal.sqlite") as connection:
        return connection.execute("SELECT min(id) FROM events WHERE job = ? AND kind = ?", (job, kind)).fetchone()[0]


def aside(service: Handmade) -> list[tuple[int, int, str]]:
    rows = tables.damaged_events.c
    with service.service.database.connect() as connection:
        return [tuple(row) for row in connection.execute(sa.select(rows.id, rows.job, rows.why))]


def test_an_event_is_read_as_it_was_written(database: sa.Engine) -> None:
    event = JournalEvent(1, 1_234.1 / 3.0, 7, "lost", -1, 0.1 + 0.2, {"text": "é\x00\n", "n": 1e-300}, 0)
    with database.begin() as connection:
        connection.execute(sa.insert(tables.events), [row_of(event)])
    assert list(read_events(database, 7)) == [event]
    assert not journal.replay(database).damaged
    with database.begin() as connection:
        connection.execute(sa.update(tables.events).values(seconds=0.3))
    damaged: list[journal.Damage] = []
    assert not list(read_events(database, 7, damaged=damaged)) and damaged[0].id == 1


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET data = replace(data, 'here', 'hexe') WHERE id = ?",
        "UPDATE events SET data = CAST(X'7BFF7D' AS TEXT) WHERE id = ?",  # no UTF-8
        "UPDATE events SET kind = 'ended' WHERE id = ?",
        "UPDATE events SET at = at + 1 WHERE id = ?",
        "UPDATE events SET task = 1 WHERE id = ?",
        "UPDATE events SET checksum = checksum + 1 WHERE id = ?",
    ],
)
def test_a_job_whose_event_is_damaged_fails_with_the_reason_and_the_others_go_on(
    three: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    event = number(three, 2, "finished")
    change(three, damage, event)
    here = Handmade(three)
    assert f"event {event} (job 2): its checksum is wrong" in here.message(2)
    assert any(f"event {event} (job 2)" in record.message for record in caplog.records)
    assert aside(here) == [(event, 2, "its checksum is wrong")]
    assert here.job(1).status == "done" and len(views.outcome(here.service, here.job(1)).values) == 1
    here.finish(1)
    here.finish(2)
    assert here.job(3).status == "done"
    here.service.close()
    caplog.clear()
    again = Handmade(three)  # nothing is found a second time
    assert not again.service.ledger.damaged and again.job(2).status == "failed" and not again.service.state.open
    again.service.close()


def test_an_event_that_is_missing_is_noticed_by_the_next_one_of_its_job(three: Path) -> None:
    event = number(three, 2, "begun")
    change(three, "DELETE FROM events WHERE id = ?", event)
    here = Handmade(three)
    assert f"event {event} (job 2): it is missing" in here.message(2)
    assert not here.job(3).over and here.job(1).status == "done"
    here.service.close()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET data = substr(data, 2) WHERE job = ? AND kind = 'accepted'",
        "UPDATE events SET kind = 'ended' WHERE job = ? AND kind = 'accepted'",
        "DELETE FROM events WHERE job = ? AND kind = 'accepted'",
    ],
)
@pytest.mark.parametrize("job", [2, 3])
def test_a_damaged_acceptance_is_restored_from_its_copy(three: Path, damage: str, job: int) -> None:
    """Of a job that is half done, and of one that waits and has no other event."""
    change(three, "DELETE FROM events WHERE job = 3 AND kind != ?", ACCEPTED)
    event = number(three, job, ACCEPTED)
    change(three, damage, job)
    here = Handmade(three)
    assert sorted(here.service.state.jobs) == [1, 2, 3] and not here.service.state.lost
    assert len(aside(here)) == (0 if damage.startswith("DELETE") else 1)
    assert here.job(job).key and here.submit("next") == 4
    for _ in range(5):
        here.finish(1)
    assert {here.job(n).status for n in range(1, 5)} == {"done"}
    here.service.close()
    again = Handmade(three)
    assert not again.service.ledger.damaged and number(three, job, ACCEPTED) == event
    again.service.close()


def test_a_job_without_acceptance_and_copy_is_lost_by_name_and_its_number_is_not_given_again(
    three: Path, caplog: pytest.LogCaptureFixture
) -> None:
    change(three, "UPDATE events SET data = substr(data, 2) WHERE job = 3 AND kind = ?", ACCEPTED)
    change(three, "UPDATE payloads SET accepted = replace(accepted, 'ann', 'bob') WHERE job = 3")
    for expected in (4, 5):  # also at the next start
        here = Handmade(three)
        assert 3 not in here.service.state.jobs and [job for _, job, _ in aside(here)] == [3, 3]
        with pytest.raises(JobLostError, match=r"\(job 3\): its checksum is wrong") as caught:
            here.service.job(ANN, 3)
        assert refusal(caught.value).status_code == 410 and here.submit(f"next {expected}") == expected
        here.service.close()
    assert any("(job 3): its checksum is wrong; the job is lost" in record.message for record in caplog.records)


def test_a_job_that_waits_for_one_that_is_lost_is_not_started(tmp_path: Path) -> None:
    """As if that were done. That it was forgotten, as jobs are that ended long ago, is another thing."""
    here = Handmade(tmp_path / "one")
    first = here.submit("first")
    second = here.submit("second", first)
    folder = here.die(tmp_path / "two")
    change(folder, "UPDATE events SET data = substr(data, 2) WHERE job = ? AND kind = ?", first, ACCEPTED)
    change(folder, "UPDATE payloads SET accepted = NULL WHERE job = ?", first)
    here = Handmade(folder)
    assert f"it was not started: job {first}, which it waited for, was destroyed" in here.message(second)
    assert not here.engine.sent
    here.service.close()


def test_a_damaged_event_of_a_job_that_is_over_changes_nothing_about_it(three: Path) -> None:
    change(three, "UPDATE events SET seconds = 9 WHERE id = ?", number(three, 1, "finished"))
    here = Handmade(three)
    assert here.job(1).status == "done" and len(aside(here)) == 1
    assert not here.job(2).over and not here.job(3).over
    here.service.close()


def test_a_damaged_value_is_made_again_and_a_damaged_result_is_told_of(three: Path) -> None:
    change(three, "UPDATE outputs SET body = CAST(replace(body, 'gAV', 'gAX') AS BLOB)")
    here = Handmade(three)
    assert here.job(2).done == set()
    with pytest.raises(views.JobEnded) as caught:
        views.outcome(here.service, here.job(1))
    assert "damaged or lost" in caught.value.problem.message and "submit it again" in caught.value.problem.hint
    here.service.close()


def test_a_job_whose_submission_is_damaged_fails_and_the_others_go_on(three: Path) -> None:
    change(three, "UPDATE payloads SET body = substr(body, 5) WHERE job = 2")
    here = Handmade(three)
    error = here.job(2).error
    assert error is not None and "the submitted graph is damaged" in error["message"]
    assert not here.job(3).over
    here.service.close()


@pytest.mark.parametrize(
    "damage", ["UPDATE payloads SET shape = '1.5'", "UPDATE payloads SET job = X'00FF' WHERE job = 3"]
)
def test_a_payload_that_makes_no_sense_does_not_keep_the_service_from_starting(three: Path, damage: str) -> None:
    """Found by `tests/fuzz.py`."""
    change(three, damage)
    here = Handmade(three)
    here.finish(1)
    assert sorted(here.service.state.jobs) == [1, 2, 3] and here.job(2).status == "done"
    here.service.close()


def test_a_file_that_sqlite_cannot_read_names_the_command_that_salvages_it(three: Path) -> None:
    path = three / "journal.sqlite"
    with path.open("r+b") as file:
        for page in range(1, path.stat().st_size // 4096):
            file.seek(page * 4096)
            file.write(b"\x00" * 64)
    with pytest.raises(ServiceError, match="malformed") as caught:
        Handmade(three)
    assert "symphony repair salvage" in caught.value.hint


def test_a_table_that_becomes_unreadable_while_a_service_runs_is_named(tmp_path: Path) -> None:
    """Found by `tests/fuzz.py`: the error of SQLite reached the user."""
    here = Handmade(tmp_path / "first")
    here.submit("done")
    here.finish(1)
    here.finish(2)
    state = here.die(tmp_path / "state")
    path = state / "journal.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
        page = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'outputs'").fetchone()[0]
    connection.close()
    with path.open("r+b") as file:
        file.seek((page - 1) * 4096)
        file.write(b"\xff" * 64)
    here = Handmade(state)
    with pytest.raises(ServiceError, match=r"journal\.sqlite: the database failed: .*malformed") as caught:
        views.outcome(here.service, here.job(1))
    assert "symphony repair salvage" in caught.value.hint and refusal(caught.value).status_code == 503
    here.service.close()


def test_a_schema_that_is_not_even_text_is_named(three: Path) -> None:
    """Found by `tests/fuzz.py`: Python cannot decode the message of SQLite, which quotes the schema."""
    with sqlite3.connect(three / "journal.sqlite") as connection:
        connection.execute("PRAGMA writable_schema=ON")
        connection.execute("UPDATE sqlite_master SET name = CAST(X'65AE' AS TEXT), sql = 'x' WHERE name = 'events'")
    connection.close()
    with pytest.raises(ServiceError, match="schema is malformed") as caught:
        Handmade(three)
    assert "symphony repair salvage" in caught.value.hint


def test_a_task_whose_lost_input_is_damaged_in_the_journal_fails(three: Path) -> None:
    here = Handmade(three)
    change(three, "UPDATE outputs SET body = X'00' WHERE job = 2")
    assert here.job(2).done == {0} and len(here.engine.sent) == 2
    here.engine.news = [Failed(work.number, LOST, "its input was lost") for work in here.engine.sent]
    here.drive()
    assert here.job(2).status == "failed" and not here.service.failed.is_set()
    here.service.close()


# -------------------------------------------------------------------- journals of older versions


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A job that is done, one that was cancelled, one half done and one that waits."""
    with sqlite3.connect(tmp_path / "journal.sqlite") as connection:
        connection.executescript(BEFORE.read_text())
    connection.close()
    return tmp_path


def test_a_journal_without_checksums_is_brought_up_to_date_and_goes_on(old: Path) -> None:
    here = Handmade(old)
    assert [job.status for job in list(here.service.state.jobs.values())[:2]] == ["done", "cancelled"]
    assert len(views.outcome(here.service, here.job(1)).values) == 1
    assert here.job(3).done == {0} and here.job(3).deaths == 0 and not here.service.ledger.damaged
    last = here.service.state.events
    while here.service.state.open:
        here.finish(1)
    assert {here.job(number).status for number in (3, 4)} == {"done"}
    here.service.close()
    with sqlite3.connect(old / "journal.sqlite") as connection:
        wrong = "SELECT count(*) FROM events WHERE (id <= 10) != (checksum IS NULL)"
        assert connection.execute(wrong).fetchone() == (0,) and last > 10
    again = Handmade(old)
    assert not again.service.ledger.damaged and again.submit("next") == 5
    again.service.close()


@pytest.mark.parametrize("data", ["{", '{"user": "ann"}', "[]", "7"])
def test_what_older_versions_wrote_is_damaged_if_it_cannot_be_read(old: Path, data: str) -> None:
    change(old, "UPDATE events SET data = ? WHERE id = 8", data)  # job 3 was accepted
    here = Handmade(old)
    assert sorted(here.service.state.jobs) == [1, 2, 4] and [row[:2] for row in aside(here)] == [(8, 3), (9, 3)]
    here.service.close()
