"""A job that was under way each time the service died is not run for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from symphony.service.running import MAX_DEATHS
from symphony.service.service import Service
from symphony.service.state import ACCEPTED, BEGUN, FINISHED, RESTARTED, JournalEvent, State
from tests.service.handmade import Handmade
from tests.service.test_ledger import JOB


def test_a_job_that_was_under_way_at_several_deaths_is_quarantined_and_the_others_go_on(tmp_path: Path) -> None:
    here = Handmade(tmp_path / "0")
    suspect = here.submit("suspect")
    for life in range(1, MAX_DEATHS + 1):
        assert not here.job(suspect).over
        here = Handmade(here.die(tmp_path / str(life)))
    assert f"the service crashed {MAX_DEATHS} times in a row" in here.message(suspect)
    error = here.job(suspect).error
    assert error is not None and "submit it again" in error["hint"]
    other = here.submit("other")
    here.finish(1)
    here.finish(2)
    assert here.job(other).status == "done" and not here.service.running.queue.under_way
    here.service.close()


def test_a_service_that_is_stopped_has_not_died(tmp_path: Path) -> None:
    for life in range(MAX_DEATHS + 1):
        here = Handmade(tmp_path)
        job = here.submit("job") if life == 0 else 1
        if life % 2:
            here.service.drain(0.0)  # killed while it drains: somebody wanted it to end
            here.drive()
        here.service.close()
    assert here.job(job).deaths == 0 and not here.job(job).over


def test_a_service_that_fails_has_died(tmp_path: Path) -> None:
    here = Handmade(tmp_path)
    job = here.submit("job")
    here.service._fail()
    here.service.close()
    here = Handmade(tmp_path)
    assert here.job(job).deaths == 1
    here.service.close()


def test_a_job_that_waits_has_no_part_in_a_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = Handmade(tmp_path / "0")
    here.service.running.paused = True
    job = here.submit("waits")
    monkeypatch.setattr(Service, "close", lambda self: self._stack.close())
    here = Handmade(here.die(tmp_path / "1"))
    assert here.job(job).deaths == 0 and here.job(job).begun  # it is let in now
    here = Handmade(here.die(tmp_path / "2"))
    assert here.job(job).deaths == 1
    here.service.close()


def test_progress_makes_up_for_deaths() -> None:
    state = State()
    state.apply(JournalEvent(1, 0.0, 1, ACCEPTED, -1, 0.0, {**JOB, "steps": 100}))
    number = 1

    def after(kind: str, task: int = -1, **data: object) -> int:
        nonlocal number
        number += 1
        state.apply(JournalEvent(number, 0.0, 1, kind, task, 0.0, data))
        return state.jobs[1].deaths

    assert after(BEGUN) == 0
    assert [after(RESTARTED, died=True, saved=0) for _ in range(2)] == [1, 2]
    assert after(RESTARTED, died=True, saved=10) == 1  # it has saved some steps since
    assert after(RESTARTED, died=True, saved=10) == 2
    assert after(RESTARTED, died=False, saved=10) == 2
    assert after(FINISHED, 0) == 0
    assert after(RESTARTED, died=True, saved=10) == 1
