"""What a service keeps, and what it forgets."""

from __future__ import annotations

import gc
import os
import resource
import time
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

import symphony as sy
from symphony.runtime.graph import graph
from symphony.service import tables, views
from symphony.service.database import open_database
from symphony.service.journal import read_events
from symphony.service.service import Limits, Service
from symphony.service.state import FINISHED
from symphony.service.tokens import SUBMIT, Token
from symphony.service.wire import About, Submit
from tests.engines.by_hand import ByHand
from tests.open_files import open_files
from tests.runtime.machines import machine
from tests.service.handmade import Handmade
from tests.service.kernels import add, one, wait_for, zeros
from tests.service.places import SECONDS, place, wait_until
from tests.whole_system.clients import Sender
from tests.whole_system.virtual_time import Clock, keeping_time


def rows(database: sa.Engine, table: sa.Table) -> int:
    with database.connect() as connection:
        return connection.scalar(sa.select(sa.func.count()).select_from(table)) or 0


def test_of_a_job_that_is_over_only_its_result_is_kept(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.connect("ann") as ann:
        sums = graph("sums")
        sums.task(add, sums.task(add, np.ones(20_000)), np.ones(20_000))
        job = ann.submit(sums)
        assert job.result(SECONDS).sum() == 40_000
        database = here.service.database
        assert rows(database, tables.outputs) == rows(database, tables.uses) == 1
        with database.connect() as connection:
            assert connection.scalar(sa.select(tables.payloads.c.body)) is None
        assert ann.job(job.id).result(SECONDS).sum() == 40_000


def test_no_blob_stays_open_for_a_job_that_has_ended_or_waits(tmp_path: Path) -> None:
    """Nor until garbage is collected, which a service does rarely."""
    gc.disable()
    try:
        with place(tmp_path, limits=Limits(at_once=1)) as here, here.connect("ann") as ann:
            first = ann.submit(one(wait_for, str(tmp_path / "gate")))
            jobs = [ann.submit(one(add, np.full(20_000, float(number)))) for number in range(3)]
            wait_until(lambda: first.status == "running")
            wait_until(lambda: not open_files(tmp_path / "blobs"))
            assert len(here.service.state.open) == 4
            (tmp_path / "gate").touch()
            assert [job.result(SECONDS).sum() for job in jobs] == [0.0, 20_000.0, 40_000.0]
            wait_until(lambda: not open_files(tmp_path / "blobs"))
            result = here.service.blobs.found(views.outcome(here.service, here.service.state.jobs[2]).values[0])
            assert len(open_files(tmp_path / "blobs")) == 2  # a descriptor and a mapping
            del result
            assert not open_files(tmp_path / "blobs")
    finally:
        gc.enable()


def test_old_jobs_and_blobs_that_nobody_names_are_forgotten(tmp_path: Path) -> None:
    with place(tmp_path, limits=Limits(keep_s=0.0)) as here, here.connect("ann") as ann:
        service = here.service
        jobs = [ann.submit(one(add, np.ones(20_000)), key=str(number)) for number in range(3)]
        assert all(job.result(SECONDS).sum() == 20_000 for job in jobs)
        with service.database.begin() as connection:  # two hours ago
            connection.execute(sa.update(tables.blobs).values(at=time.time() - 7_200))
        for _ in range(2):  # the blobs of jobs go after them
            swept = service.ledger.post_required(service._sweep)
            swept.result(SECONDS)
            service._remove(swept)
        assert [view.id for view in ann.jobs()] == [jobs[-1].id]
        assert {event.job for event in read_events(service.database)} == {jobs[-1].id}
        assert ann.job(jobs[-1].id).result(SECONDS).sum() == 20_000
        assert ann.submit(one(add, 1), key="0").id == jobs[-1].id + 1


def test_files_of_which_nobody_knows_go_with_the_next_start(tmp_path: Path) -> None:
    with place(tmp_path) as here, here.connect("ann") as ann:
        ann.submit(one(add, np.ones(20_000))).result(SECONDS)
        known = {digest for digest, _ in here.service.blobs.listed()}
        stray = here.service.blobs.put(b"x" * 100)
        os.utime(here.service.blobs.path(stray), (0, 0))
        part = here.service.blobs.folder / "part-1"
        part.touch()
    with place(tmp_path) as again:
        assert {digest for digest, _ in again.service.blobs.listed()} == known and not part.exists()


def test_a_value_whose_file_is_spoilt_by_a_power_cut_is_made_again(tmp_path: Path) -> None:
    go = tmp_path / "go"
    sums = graph("sums")
    sums.task(wait_for, str(go), sums.task(add, np.ones(20_000), np.ones(20_000)))
    with place(tmp_path / "state") as here, here.connect("ann") as ann:
        job = ann.submit(sums)
        wait_until(lambda: job.detail().tasks[1].status == "running")
        [made] = here.service.running._large[job.id][0]
        path = here.service.blobs.path(made)
    path.write_bytes(b"")
    with place(tmp_path / "state") as here, here.connect("ann") as ann:
        go.touch()
        assert ann.job(job.id).result(SECONDS) == "came"
        assert [run.ended for run in ann.job(job.id).detail().tasks[0].runs] == ["done", "done"]


def test_while_there_is_no_room_for_a_value_nobody_hears_of_it(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with place(tmp_path) as here, here.connect("ann") as ann:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, hard))  # of this process: its kernels have others
        try:
            job = ann.submit(one(zeros, 1_000_000))
            wait_until(lambda: here.service.ledger.stuck)
            assert "too large" in here.service.ledger.stuck and job.status == "running"
            with pytest.raises(sy.UnavailableError):
                ann.submit(one(add, 1))
            assert ann._get("/v1/about", About).ready is False
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert job.result(SECONDS).shape == (1_000_000,)
        assert ann.submit(one(add, 1)).result(SECONDS) == 1


def test_what_has_just_finished_is_written_down_before_a_service_ends(tmp_path: Path) -> None:
    """The engine forgets its values when it is closed: the ledger comes first."""
    engine = ByHand(machine())
    service = Service(lambda: engine, tmp_path, threads=False)
    body = Sender().bytes_of(one(add, 1), 0, "")
    token = Token("0" * 8, "ann", (SUBMIT,), 0, 0.0, None)
    service.submit(token, Submit.model_validate_json(body), body, "key")
    service.ledger.step()
    service.cluster.step()
    engine.news = [engine.finished(engine.sent[0].number, 1)]
    service.cluster.step()  # heard, and handed to the ledger
    service.close()
    database = open_database("", tmp_path)
    assert FINISHED in [event.kind for event in read_events(database)]
    database.dispose()


def test_a_policy_that_is_none_is_all_that_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The ledger is closed without a cluster then, to which it could hand a job."""
    with pytest.raises(sy.InputError, match="unknown policy 'nonsense'"):
        Service(lambda: ByHand(machine()), tmp_path, policy="nonsense")
    assert caplog.records == []
    Service(lambda: ByHand(machine()), tmp_path, threads=False).close()  # nobody holds the folder


def test_a_clock_that_is_wrong_for_a_moment_deletes_nothing(tmp_path: Path) -> None:
    clock, month = Clock(), 30 * 86_400.0
    with keeping_time(clock):
        here = Handmade(tmp_path)
        here.submit("first")
        here.finish(1)
        here.finish(1)
        clock.ahead += month
        for _ in range(5):
            clock.now += 61.0
            here.submit("next")
            here.drive()
        assert here.job(1).status == "done"
        clock.now += month / 2  # it is another time: that, too, is reached
        for _ in range(2):
            clock.now += 61.0
            here.submit("next")
            here.drive()
        assert 1 not in here.service.state.jobs
        here.service.close()
