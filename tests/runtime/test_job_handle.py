"""Waiting for jobs: callbacks, coroutines, and the order in which jobs end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import symphony as sy
from tests.runtime.machines import machine
from tests.waiting import SECONDS


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    with sy.local(machine(), profiles=tmp_path_factory.mktemp("profiles") / "profiles.json") as found:
        yield found


def wait_for(path):
    import pathlib
    import time

    while not pathlib.Path(path).exists():
        time.sleep(0.005)
    return path


def test_jobs_come_in_the_order_in_which_they_end(cluster: sy.Cluster, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    jobs = cluster.map(wait_for, map(str, paths))
    ended = iter(sy.as_completed([*jobs, *jobs]))
    paths[1].touch()
    assert next(ended) is jobs[1]
    paths[0].touch()
    assert list(ended) == [jobs[0]]
    assert set(sy.as_completed(jobs)) == set(jobs)  # also if they have ended before


def test_only_jobs_can_be_waited_for() -> None:
    with pytest.raises(sy.WorkloadError, match="1 is not a job") as refused:
        sy.as_completed([1])  # type: ignore[type-var]
    assert "submit" in refused.value.hint


def test_a_failed_job_is_one_that_has_ended(cluster: sy.Cluster) -> None:
    jobs = cluster.map(lambda x: 1 // x, [1, 0])
    assert sorted(job.status for job in sy.as_completed(jobs)) == ["done", "failed"]


def test_waiting_for_all_of_them_ends_after_a_while(cluster: sy.Cluster, tmp_path: Path) -> None:
    jobs = [cluster.submit(abs, -1), cluster.submit(wait_for, str(tmp_path / "never"))]
    ended = iter(sy.as_completed(jobs, timeout_s=5.0))
    assert next(ended) is jobs[0]
    with pytest.raises(TimeoutError, match=r"1 of 2 jobs have not ended after 5 s"):
        next(ended)

    async def all_of_them() -> list[sy.Job]:
        return [job async for job in sy.as_completed(jobs, timeout_s=0.05)]

    with pytest.raises(TimeoutError, match="1 of 2 jobs"):
        asyncio.run(all_of_them())
    jobs[1].cancel()


def test_coroutines_wait_for_jobs(cluster: sy.Cluster, tmp_path: Path) -> None:
    async def main() -> None:
        async def let_go() -> None:
            (tmp_path / "go").touch()

        waits = cluster.submit(wait_for, str(tmp_path / "go"))
        assert (await asyncio.gather(waits, let_go()))[0] == str(tmp_path / "go")  # the other coroutine can run
        assert await asyncio.gather(*cluster.map(abs, [-1, 2])) == [1, 2]
        assert {job.id async for job in sy.as_completed([waits])} == {waits.id}
        with pytest.raises(sy.KernelError, match="ZeroDivisionError"):
            await cluster.submit(lambda: 1 // 0)

    asyncio.run(main())


def test_a_coroutine_that_no_longer_waits_leaves_its_job_alone(cluster: sy.Cluster, tmp_path: Path) -> None:
    job = cluster.submit(wait_for, str(tmp_path / "go"))

    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await job

    asyncio.run(main())  # its event loop is closed when the job ends
    (tmp_path / "go").touch()
    assert job.result(SECONDS)
    assert cluster.submit(abs, -1).result(SECONDS) == 1


def test_a_callback_that_raises_leaves_the_scheduler_alone(cluster: sy.Cluster, tmp_path: Path) -> None:
    job, called = cluster.submit(wait_for, str(tmp_path / "go")), threading.Event()
    job.add_done_callback(lambda _: 1 // 0)
    job.add_done_callback(lambda ended: called.set() if ended is job else None)
    (tmp_path / "go").touch()
    assert called.wait(SECONDS)
    assert cluster.submit(abs, -2).result(SECONDS) == 2
    with pytest.raises(ZeroDivisionError):  # called at once, so by the user's own thread
        job.add_done_callback(lambda _: 1 // 0)
