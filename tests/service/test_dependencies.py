"""Jobs that wait for others: in order, through failures and restarts."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.engines.engine import Stopped
from symphony.service import running
from tests.service.handmade import ANN, Handmade
from tests.service.kernels import fail, note, one, wait_for
from tests.service.places import SECONDS, Place, place, wait_until


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service")) as found:
        yield found


def test_a_job_starts_when_those_before_it_are_done(here: Place, tmp_path: Path) -> None:
    with here.connect("ann") as ann:
        notes, go = str(tmp_path / "notes"), str(tmp_path / "go")
        first = ann.submit(wait_for, go)
        second = ann.submit(one(note, notes, "second"), after=[first])
        third = ann.submit(one(note, notes, "third"), after=[second.id, first])
        free = ann.submit(note, notes, "free", after=[])
        assert free.result(SECONDS) == "free"
        assert second.status == "waiting" and second.view().after == [first.id]
        assert f"waits for job {first.id}" in second.explain()
        assert f"waits for jobs {first.id}, {second.id}" in third.explain()
        assert f", from ann, after jobs {first.id}, {second.id}" in third.logs().lines[0].text
        Path(go).touch()
        assert third.result(SECONDS) == "third"
        assert Path(notes).read_text().split() == ["free", "second", "third"]
        assert ann.submit(abs, -1, after=[first, third]).result(SECONDS) == 1  # they are done


def test_jobs_after_one_that_fails_are_not_started(here: Place, tmp_path: Path) -> None:
    with here.connect("ann") as ann:
        go = str(tmp_path / "go")
        failing = ann.submit(lambda path: wait_for(path) and fail("x"), go)
        second = ann.submit(one(note, str(tmp_path / "notes"), "x"), after=[failing])
        third = ann.submit(one(note, str(tmp_path / "notes"), "x"), after=[second])
        Path(go).touch()
        with pytest.raises(sy.JobError, match=f"it was not started: job {failing.id}, which it waited for, failed"):
            second.result(SECONDS)
        with pytest.raises(sy.JobError, match=f"it was not started: job {second.id}, which it waited for, failed"):
            third.result(SECONDS)
        assert not (tmp_path / "notes").exists()
        with pytest.raises(sy.InputError, match=f"job {failing.id}, which it is to wait for, is failed"):
            ann.submit(abs, -1, after=[failing])


def test_a_job_that_waits_can_be_cancelled_and_ends_those_after_it(here: Place, tmp_path: Path) -> None:
    with here.connect("ann") as ann:
        first = ann.submit(wait_for, str(tmp_path / "go"))
        second = ann.submit(abs, -1, after=[first])
        third = ann.submit(abs, -1, after=[second])
        second.cancel()
        with pytest.raises(sy.JobError, match="which it waited for, was cancelled"):
            third.result(SECONDS)
        (tmp_path / "go").touch()
        assert first.result(SECONDS) == "came" and second.status == "cancelled"


def test_jobs_of_others_cannot_be_waited_for(here: Place) -> None:
    with here.connect("ann") as ann, here.connect("bob") as bob:
        job = ann.submit(abs, -1)
        with pytest.raises(sy.UnknownJobError, match=f"there is no job {job.id}"):
            bob.submit(abs, -1, after=[job.id])
        with pytest.raises(sy.UnknownJobError, match="there is no job 4711"):
            ann.submit(abs, -1, after=[4711])


def test_a_long_chain_ends_with_its_first_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ended the service, which could not be started again either: each end was within that of the job before."""
    here = Handmade(tmp_path)
    last = here.submit("first")
    for number in range(60):
        last = here.submit(f"job {number}", last)
    deepest, end = 0, running.JobRunner._end_one

    def watched(*about: Any) -> None:
        nonlocal deepest
        deepest = max(deepest, len(inspect.stack(0)))
        end(*about)

    monkeypatch.setattr(running.JobRunner, "_end_one", watched)
    here.service.cancel(ANN, 1)
    here.drive()
    here.engine.news = [Stopped(here.engine.sent[0].number)]
    here.drive()
    assert here.job(1).status == "cancelled" and here.job(last).status == "failed" and not here.service.state.open
    assert deepest - len(inspect.stack(0)) < 20
    here.service.close()


def test_jobs_still_wait_after_a_restart(tmp_path: Path) -> None:
    notes, go = str(tmp_path / "notes"), str(tmp_path / "go")
    with place(tmp_path / "service") as before, before.connect("ann") as ann:
        first = ann.submit(wait_for, go)
        second = ann.submit(one(note, notes, "second"), after=[first])
        wait_until(lambda: first.status == "running")
    with place(tmp_path / "service") as after, after.connect("ann") as ann:
        assert ann.job(second.id).status == "waiting"
        assert ann.submit(note, notes, "new").result(SECONDS) == "new"
        Path(go).touch()
        assert ann.job(second.id).result(SECONDS) == "second"
        assert Path(notes).read_text().split() == ["new", "second"]
