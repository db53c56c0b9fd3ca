"""Waiting for many jobs of a service at once, over HTTP."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import symphony as sy
from symphony.service import tokens
from symphony.service.job_watcher import JobWatcher
from symphony.service.wire import EndedJobs, JobView
from tests.service.kernels import fail, sleep, wait_for
from tests.service.places import SECONDS, Place, place


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("service")) as found:
        yield found


def view(job: int, change: int, ended_s: float | None) -> JobView:
    return JobView(
        id=job,
        user="ann",
        name="x",
        queue="",
        priority=0,
        status="done",
        tasks=1,
        finished=1,
        accepted_s=0.0,
        ended_s=ended_s,
        seconds=0.0,
        error=None,
        change=change,
    )


def test_functions_run_on_a_service(here: Place) -> None:
    with here.connect("ann") as ann:
        assert ann.submit(divmod, 7, 2, queue="night").result(SECONDS) == (3, 1)
        jobs = ann.map(lambda x, y: x * y, [1, 2, 3], [4, 5, 6], queue="night")
        assert [job.result(SECONDS) for job in jobs] == [4, 10, 18]
        assert jobs[0].view().queue == "night"


def test_jobs_of_a_service_come_in_the_order_in_which_they_end(here: Place, tmp_path: Path) -> None:
    with here.connect("ann") as ann:
        failed = ann.submit(fail, "x")
        jobs = [ann.submit(wait_for, str(tmp_path / name)) for name in "ab"]  # in both slots
        ended = iter(sy.as_completed([*jobs, failed], timeout_s=SECONDS))
        assert next(ended).status == "failed"
        (tmp_path / "b").touch()
        assert next(ended) is jobs[1]
        (tmp_path / "a").touch()
        assert list(ended) == [jobs[0]]
        assert {job.id for job in sy.as_completed(ann.job(job.id) for job in jobs)} == {job.id for job in jobs}


def test_a_job_is_not_missed_that_ended_before_it_was_watched(here: Place, tmp_path: Path) -> None:
    with here.connect("ann") as ann:
        early = ann.submit(abs, -1)
        waits = ann.submit(wait_for, str(tmp_path / "go"))
        ended: queue.SimpleQueue[sy.RemoteJob] = queue.SimpleQueue()
        assert ann.job(early.id).wait(SECONDS)  # which `early` does not know
        waits.add_done_callback(ended.put)
        early.add_done_callback(ended.put)
        assert ended.get(timeout=SECONDS) is early
        (tmp_path / "go").touch()
        assert ended.get(timeout=SECONDS) is waits


def test_coroutines_wait_for_jobs_of_a_service(here: Place) -> None:
    with here.connect("ann") as ann:

        async def main() -> list[int]:
            with pytest.raises(sy.KernelError, match="LookupError"):
                await ann.submit(fail, "x")
            return await asyncio.gather(*ann.map(abs, [-1, 2, -3]))

        assert asyncio.run(main()) == [1, 2, 3]


def test_an_administrator_waits_for_the_jobs_of_others(here: Place) -> None:
    with here.connect("ann") as ann, here.connect("root", tokens.READ, tokens.SUBMIT, tokens.ADMIN) as root:
        job = ann.submit(sleep)
        seen = iter(sy.as_completed([root.job(job.id)], timeout_s=SECONDS))
        threading.Timer(0.2, job.cancel).start()
        assert next(seen).status == "cancelled"


def test_users_see_only_the_ends_of_their_own_jobs(here: Place) -> None:
    with here.connect("ann") as ann, here.connect("bob") as bob:
        assert ann.submit(abs, -1).result(SECONDS) == 1
        assert bob._get("/v1/ended", EndedJobs, {"after": 0}).jobs == []
        mine = ann._get("/v1/ended", EndedJobs, {"after": 0})
        assert mine.jobs and {job.user for job in mine.jobs} == {"ann"}
        assert ann._get("/v1/ended", EndedJobs, {"after": mine.next}).jobs == []


def test_a_service_that_cannot_be_reached_ends_the_waiting() -> None:
    asked, ended = threading.Event(), queue.SimpleQueue[JobView | None]()

    def ask(after: int) -> EndedJobs:
        assert asked.wait(SECONDS)
        raise sy.ServiceError("it is gone")

    watcher = JobWatcher(ask)
    watcher.watch(1, 5, ended.put, lambda: view(1, 5, None))
    watcher.watch(2, 6, ended.put, lambda: view(2, 6, None))
    asked.set()
    assert [ended.get(timeout=SECONDS), ended.get(timeout=SECONDS)] == [None, None]


def test_one_thread_waits_for_all_jobs_and_ends_with_the_last() -> None:
    pages: queue.SimpleQueue[EndedJobs] = queue.SimpleQueue()
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    ended: queue.SimpleQueue[JobView | None] = queue.SimpleQueue()

    def ask(after: int) -> EndedJobs:
        asked.put(after)
        return pages.get(timeout=SECONDS)

    watcher = JobWatcher(ask)
    for job in (1, 2):
        watcher.watch(job, 5, ended.put, lambda: view(1, 5, None))
    pages.put(EndedJobs(jobs=[view(2, 8, 1.0), view(7, 9, 1.0)], next=9))  # job 7 is not watched
    assert ended.get(timeout=SECONDS) == view(2, 8, 1.0)
    pages.put(EndedJobs(jobs=[view(1, 11, 1.0)], next=11))
    assert ended.get(timeout=SECONDS) == view(1, 11, 1.0)
    watcher.watch(3, 20, ended.put, lambda: view(3, 20, None))  # with a new thread
    pages.put(EndedJobs(jobs=[view(3, 21, 1.0)], next=21))
    assert ended.get(timeout=SECONDS) == view(3, 21, 1.0)
    assert [asked.get(timeout=SECONDS) for _ in range(3)] == [5, 9, 20]
