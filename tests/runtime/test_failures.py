"""Kernels that run again: after which failures, how often, and when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import symphony as sy
from symphony.engines.engine import RAISED, Failed
from symphony.runtime.kernels import exception_names
from tests.runtime.machines import machine
from tests.waiting import SECONDS, wait_until


class Flaky(ConnectionError):
    """An error of this module."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    with sy.local(machine(), profiles=tmp_path_factory.mktemp("profiles") / "profiles.json") as found:
        yield found


def fails(path, times, error=ConnectionResetError):
    """Raises the first times that it is called; returns the times of all calls."""
    import pathlib
    import time

    with open(path, "a") as file:
        file.write(f"{time.monotonic()}\n")
    calls = [float(line) for line in pathlib.Path(path).read_text().split()]
    if len(calls) <= times:
        raise error(f"call {len(calls)}")
    return calls


def test_a_kernel_runs_again_after_what_it_names(cluster: sy.Cluster, tmp_path: Path) -> None:
    kernel = sy.kernel(retries=3, retry_on=ConnectionError)(fails)  # a subclass is raised
    job = cluster.submit(kernel, str(tmp_path / "x"), 3)
    assert len(job.result(SECONDS)) == 4
    lines = job.explain().splitlines()[1:]
    assert [f"raised ConnectionResetError: call {k}" in line for k, line in enumerate(lines, 1)] == [True] * 3 + [False]
    own = sy.kernel(retries=1, retry_on=(OSError, Flaky))(fails)
    assert len(cluster.submit(own, str(tmp_path / "y"), 1, Flaky).result(SECONDS)) == 2


def test_it_fails_after_its_last_retry_and_after_other_errors(cluster: sy.Cluster, tmp_path: Path) -> None:
    kernel = sy.kernel(retries=2, retry_on=(ConnectionError,))(fails)
    with pytest.raises(sy.KernelError, match=r"raised ConnectionResetError: call 3 \(3 times\)"):
        cluster.submit(kernel, str(tmp_path / "x"), 9).result(SECONDS)
    with pytest.raises(sy.KernelError, match="raised ValueError: call 1"):
        cluster.submit(kernel, str(tmp_path / "y"), 9, ValueError).result(SECONDS)
    with pytest.raises(sy.KernelError, match="raised ConnectionResetError: call 1"):  # nothing is named
        cluster.submit(fails, str(tmp_path / "z"), 9).result(SECONDS)


def test_others_run_while_a_kernel_waits_for_its_next_try(cluster: sy.Cluster, tmp_path: Path) -> None:
    kernel = sy.kernel(retries=1, retry_on=Exception, retry_delay_s=1.0)(fails)
    waiting = [cluster.submit(kernel, str(tmp_path / str(k)), 1) for k in range(2)]  # as many as there are slots
    wait_until(lambda: all("is tried again (1 of 1 retries) in" in job.explain() for job in waiting))
    assert cluster.submit(abs, -3).result(SECONDS) == 3
    assert all(job.status == "running" for job in waiting)
    for job in waiting:
        first, second = job.result(SECONDS)
        assert second - first >= 1.0


def test_a_delayed_job_can_be_cancelled(cluster: sy.Cluster, tmp_path: Path) -> None:
    job = cluster.submit(sy.kernel(retry_on="Exception", retry_delay_s=3600.0)(fails), str(tmp_path / "x"), 1)
    wait_until(lambda: "is tried again" in job.explain())
    job.cancel()
    with pytest.raises(sy.JobCancelledError):
        job.result(SECONDS)
    assert cluster.submit(abs, -3).result(SECONDS) == 3


def test_many_short_kernels_that_fail_all_keep_their_delay(cluster: sy.Cluster, tmp_path: Path) -> None:
    """Short kernels are sent ahead of the core's own start."""

    @sy.kernel(retries=1, retry_on=KeyError, retry_delay_s=0.3)
    def short(path, fail):
        if fail:
            calls = fails(path, 1, KeyError)
            return calls[1] - calls[0]
        return 0.0

    for _ in range(3):
        assert all(job.result(SECONDS) == 0.0 for job in cluster.map(short, [""] * 20, [False] * 20))
    graph = sy.graph("burst")
    for number in range(24):
        graph.task(short, str(tmp_path / str(number)), number % 2 == 0)
    assert all(gap >= 0.3 for gap in cluster.submit(graph).result(SECONDS)[::2])


def test_names_of_exceptions() -> None:
    assert exception_names(ConnectionError) == ("ConnectionError",)
    assert exception_names((Flaky, "builtins.OSError", "a.b")) == (f"{__name__}.Flaky", "OSError", "a.b")
    with pytest.raises(sy.WorkloadError, match="which is not an exception"):
        exception_names((int,))  # type: ignore[arg-type]
    for bad in ({"retry_delay_s": -1.0}, {"retry_delay_s": True}, {"retry_on": ("two words",)}, {"retries": -1}):
        with pytest.raises(sy.WorkloadError, match=f"{next(iter(bad))} is"):
            sy.kernel(**bad)(fails)  # type: ignore[call-overload]
    assert Failed(1, RAISED, "x").classes == frozenset()
