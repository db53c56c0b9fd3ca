"""Large graphs: the core knows a window of their tasks, and users notice nothing of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import symphony as sy
from symphony.runtime.task_window import MAX_WHOLE_TASKS, TaskWindow, places
from tests.runtime.machines import machine
from tests.runtime.test_loop import nothing_left
from tests.waiting import wait_until

MANY = 3 * MAX_WHOLE_TASKS


@sy.kernel
def add(*values):
    return sum(value if isinstance(value, int) else sum(value) for value in values)


@sy.kernel
def other(value):
    return -value


@sy.kernel
def fail(value):
    raise LookupError(value)


@sy.kernel
def wait_for(path):
    import pathlib
    import time

    while not pathlib.Path(path).exists():
        time.sleep(0.01)
    return 1


@pytest.fixture(scope="module", params=["eft-belief", "heft"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    """Of one policy that decides in plain Python, and of one that is compiled."""
    profiles = tmp_path_factory.mktemp("p") / "profiles.json"
    with sy.local(machine(others=1), profiles=profiles, policy=request.param) as found:
        yield found


def test_a_wide_graph_a_chain_and_a_fan_in(cluster: sy.Cluster) -> None:
    wide = sy.graph("wide")
    for number in range(MANY):
        wide.task(other if number % 3 else add, number)
    chain, last = sy.graph("chain"), 0
    for _ in range(MANY):
        last = chain.task(add, last, 1)
    fan = sy.graph("fan")
    fan.task(add, [fan.task(add, number) for number in range(MANY)])
    jobs = [cluster.submit(graph) for graph in (wide, chain, fan)]
    assert list(jobs[0].result(300)) == [-number if number % 3 else number for number in range(MANY)]
    assert jobs[1].result(300) == MANY
    assert jobs[2].result(300) == sum(range(MANY))
    assert cluster._scheduler.workload.shapes.tasks == places(3), "arrays do not grow with the graph"
    assert not cluster.statistics.refused
    nothing_left(cluster)


def test_other_jobs_are_served_meanwhile(cluster: sy.Cluster, tmp_path: Path) -> None:
    """A task of a second job starts although most tasks of the first have not."""
    gate, wide, small = tmp_path / "open", sy.graph("wide"), sy.graph("small")
    for _ in range(MANY):
        wide.task(wait_for, str(gate))
    small.task(add, 1)
    first = cluster.submit(wide)
    wait_until(lambda: first.status == "running", "it does not start")
    second = cluster.submit(small, priority=1)
    wait_until(lambda: second._state.slot >= 0, "it is not admitted")
    assert sum(run.place >= 0 for run in first._state.runs) <= places(3) < MANY
    gate.touch()
    assert second.result(300) == 1 and sum(first.result(300)) == MANY
    assert second._state.ended_s < first._state.ended_s
    nothing_left(cluster)


def test_a_large_graph_fails_and_is_cancelled(cluster: sy.Cluster, tmp_path: Path) -> None:
    broken, cancelled = sy.graph("broken"), sy.graph("cancelled")
    for number in range(MANY):
        broken.task(fail if number == MANY // 2 else add, number)
        cancelled.task(wait_for, str(tmp_path / "never"))
    job, other_job = cluster.submit(broken), cluster.submit(cancelled)
    wait_until(lambda: other_job.status == "running", "it does not start")
    other_job.cancel()
    with pytest.raises(sy.JobError, match=str(MANY // 2)):
        job.result(300)
    with pytest.raises(sy.JobCancelledError):
        other_job.result(300)
    nothing_left(cluster)


def test_a_place_goes_to_a_task_like_the_last_one() -> None:
    window = TaskWindow(4)
    runs: list[Any] = [type("Run", (), {"place": -1})() for _ in range(4)]
    assert [window.enter(run, like) for run, like in zip(runs, "aba", strict=False)] == [1, 2, 3]
    assert not window.free and not window.is_empty
    window.leave(2, "b")
    window.leave(1, "a")
    assert window.enter(runs[3], "b") == 2  # though place 1 was the last to become free
    window.leave(2, "b")
    window.leave(3, "a")
    assert window.is_empty and window.tasks == [None] * 4
