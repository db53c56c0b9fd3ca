"""What is entered is written down before anybody is told, in one transaction for all that came meanwhile."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

import symphony as sy
from symphony.service import tables
from symphony.service.database import Hold, lock_journal, open_database
from symphony.service.journal import read_events
from symphony.service.ledger import Ledger, Transaction
from symphony.service.state import ACCEPTED, ENDED, FINISHED
from tests.service.places import SECONDS, wait_until

JOB = {"user": "ann", "name": "g", "queue": "", "priority": 0, "tasks": 2, "outputs": [1], "names": []}
JOB |= {"key": "", "digest": ""}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sa.Engine]:
    found = open_database("", tmp_path)
    yield found
    found.dispose()


@pytest.fixture
def hold(database: sa.Engine, tmp_path: Path) -> Iterator[Hold]:
    with lock_journal(database, tmp_path) as found:
        yield found


def ledger(hold: Hold, settled=lambda jobs: None) -> Ledger:
    found = Ledger(hold, settled, lambda: None)
    found.replay()
    found.start()
    return found


def accept(entry: Transaction) -> int:
    job = entry.state.last_job + 1
    entry.add(ACCEPTED, job, **JOB)
    return job


def test_what_is_answered_is_in_the_journal_and_a_replay_gives_the_same_state(database: sa.Engine, hold: Hold) -> None:
    settled: list[set[int]] = []
    first = ledger(hold, settled.append)
    assert first.post(accept).result(SECONDS) == 1
    assert [event.kind for event in read_events(database)] == [ACCEPTED]
    first.post(lambda entry: entry.add(FINISHED, 1, 0, seconds=2.0)).result(SECONDS)
    first.post(lambda entry: entry.add(ENDED, 1, status="done")).result(SECONDS)
    first.close()
    assert [jobs for jobs in settled if jobs] == [{1}, {1}, {1}]
    again = ledger(hold)
    assert again.state.jobs == first.state.jobs and again.state.counts == first.state.counts
    assert again.state.users == first.state.users and not again.state.open
    assert again.post(accept).result(SECONDS) == 2
    again.close()


def test_commands_that_come_together_share_a_transaction(database: sa.Engine, hold: Hold) -> None:
    found = ledger(hold)
    go, began = threading.Event(), threading.Event()

    def slow(entry: Transaction) -> None:
        began.set()
        go.wait(SECONDS)

    found.post(slow)
    began.wait(SECONDS)
    commits: list[object] = []
    sa.event.listen(database, "commit", commits.append)
    futures = [found.post(accept) for _ in range(50)]
    go.set()
    assert [future.result(SECONDS) for future in futures] == list(range(1, 51))
    assert len(commits) == 1
    found.close()


def test_a_command_that_refuses_does_not_concern_the_others(database: sa.Engine, hold: Hold) -> None:
    found = ledger(hold)

    def refuse(entry: Transaction) -> None:
        raise sy.InputError("no")

    before, wrong, after = found.post(accept), found.post(refuse), found.post(accept)
    with pytest.raises(sy.InputError):
        wrong.result(SECONDS)
    assert (before.result(SECONDS), after.result(SECONDS)) == (1, 2)
    found.close()


def test_while_the_disk_is_full_nothing_is_answered_and_afterwards_nothing_is_lost(
    database: sa.Engine, hold: Hold
) -> None:
    found = ledger(hold)
    found.post(accept).result(SECONDS)
    pages = {"most": 1}

    @sa.event.listens_for(database, "begin")
    def bound(connection: sa.Connection) -> None:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages['most']}")

    def large(entry: Transaction) -> int:
        entry.insert(tables.payloads, {"job": 2, "shape": "", "body": b"x" * 100_000})
        return accept(entry)

    future = found.post(large)
    wait_until(lambda: found.stuck)
    assert "full" in found.stuck and not future.done()
    with pytest.raises(sy.UnavailableError, match="cannot be written"):
        found.post(accept).result(SECONDS)
    has_happened = found.post_required(accept)
    pages["most"] = 1_000_000
    assert (future.result(SECONDS), has_happened.result(SECONDS)) == (2, 3)
    assert not found.stuck and [event.job for event in read_events(database)] == [1, 2, 3]
    found.close()


def test_a_transaction_whose_answer_was_lost_is_not_written_twice(database: sa.Engine, hold: Hold) -> None:
    found = ledger(hold)
    lose = {"answers": 1}

    @sa.event.listens_for(database, "commit")
    def commit(connection: sa.Connection) -> None:
        if lose["answers"]:
            lose["answers"] -= 1
            connection.connection.commit()
            raise sa.exc.OperationalError("COMMIT", None, Exception("the connection was lost"))

    assert found.post(accept).result(SECONDS) == 1
    found.close()
    assert [event.job for event in read_events(database)] == [1]


def test_a_second_service_with_the_same_journal_is_refused(database: sa.Engine, tmp_path: Path) -> None:
    with (
        lock_journal(database, tmp_path),
        pytest.raises(sy.ServiceError, match="another service"),
        lock_journal(database, tmp_path),
    ):
        pass
    with lock_journal(database, tmp_path):
        pass


def test_when_it_ends_by_itself_whoever_waits_is_told(database: sa.Engine, hold: Hold) -> None:
    failed: list[bool] = []
    found = Ledger(hold, lambda jobs: None, lambda: failed.append(True))

    def half(entry: Transaction) -> None:
        entry.add(ACCEPTED, 1, **JOB)
        raise RuntimeError("half of it is in the state")

    waiting = [found.post(half), found.post_required(accept)]
    found.step()
    waiting += [found.post(accept), found.post_required(accept)]
    assert failed == [True] and not list(read_events(database))
    for future in waiting:
        with pytest.raises(sy.ServiceError, match="has stopped"):
            future.result(0.0)


def test_what_is_posted_while_it_ends_is_answered(database: sa.Engine, hold: Hold) -> None:
    """It has taken its last command, and then comes one more."""
    found = Ledger(hold, lambda jobs: None, lambda: None)

    class Late(queue.SimpleQueue):
        def put(self, item) -> None:
            found._ended = True
            super().put(item)

    found._commands = Late()
    for future in (found.post(accept), found.post_required(accept)):
        with pytest.raises(sy.ServiceError, match="has stopped"):
            future.result(0.0)
