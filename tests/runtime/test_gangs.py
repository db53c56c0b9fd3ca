"""Kernels of several workers, by the core and real processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import symphony as sy
from tests.runtime.machines import machine
from tests.runtime.test_loop import nothing_left
from tests.waiting import SECONDS, wait_until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sy.Cluster]:
    """Two CPU slots and two accelerators."""
    with sy.local(machine(others=2), profiles=tmp_path_factory.mktemp("p") / "profiles.json") as found:
        yield found


def gang(**options):
    """A kernel whose workers wait for one another."""

    @sy.kernel(device="accelerator", workers=2, **options)
    def meet(folder, *before, rank, size):
        import os
        import pathlib
        import time

        (pathlib.Path(folder) / f"{rank}-{os.getpid()}").touch()
        while len({path.name[0] for path in pathlib.Path(folder).iterdir()}) < size:
            time.sleep(0.002)
        return rank, size, *before

    return meet


def test_the_workers_of_a_kernel_run_at_once_each_on_a_device_of_its_own(cluster: sy.Cluster, tmp_path: Path) -> None:
    @sy.kernel(device="accelerator")
    def alone(number):
        return number

    graph, meet = sy.graph("gangs"), gang()
    folders = [tmp_path / name for name in "abc"]
    values = [graph.task(alone, number) for number in range(4)]
    for folder in folders:
        folder.mkdir()
        values.append(graph.task(meet, str(folder), values[-1]))
    graph.output("last", values[-1])
    job = cluster.submit(graph)
    assert job.result(SECONDS) == {"last": (0, 2, (0, 2, (0, 2, 3)))}
    told = job.explain()
    assert "on here/big-0, here/big-1: " in told or "on here/big-1, here/big-0: " in told
    job.trace(tmp_path / "trace.json")
    assert (tmp_path / "trace.json").read_text().count('"name": "meet-0"') == 2  # on both devices
    nothing_left(cluster)


def test_a_gang_whose_worker_is_killed_runs_again_as_a_whole(cluster: sy.Cluster, tmp_path: Path) -> None:
    graph = sy.graph("killed")
    graph.task(waits_once, str(tmp_path))
    job = cluster.submit(graph)
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)
    least_s = time.monotonic() - job._state.runs[0].attempts[0].sent_s
    used = cluster.used_s()
    assert list(used) == [job.id] and used[job.id] >= 2 * least_s  # of two devices
    os.kill(int(next(tmp_path.glob("1-*")).name[2:]), signal.SIGKILL)
    assert job.result(SECONDS) == "the second time"
    assert len(list(tmp_path.iterdir())) == 4
    nothing_left(cluster)
    assert not cluster.used_s()


@sy.kernel(device="accelerator", workers=2)
def waits_once(folder, rank, size):
    import os
    import pathlib
    import time

    first = not list(pathlib.Path(folder).glob(f"{rank}-*"))
    (pathlib.Path(folder) / f"{rank}-{os.getpid()}").touch()
    while first:
        time.sleep(0.01)
    return "the second time"


def test_gangs_that_can_never_start_are_refused(cluster: sy.Cluster) -> None:
    @sy.kernel(device="accelerator", workers=3)
    def three(rank, size):
        pass

    graph = sy.graph("too wide")
    graph.task(three)
    with pytest.raises(sy.InfeasibleError, match=r"'three-0' needs 3 devices.*has too few"):
        cluster.submit(graph)
    for workers in (0, 1.5, 1000):
        with pytest.raises(sy.WorkloadError, match=f"workers is {workers}"):
            sy.kernel(workers=workers)(three)


def test_a_gang_that_has_lost_a_device_fails_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with sy.local(machine(others=2), profiles=tmp_path / "p.json") as cluster:
        engine = cluster._engine
        graph = sy.graph("loses")
        graph.task(waits_once, str(tmp_path / "folder"))
        job = cluster.submit(graph)
        wait_until(lambda: len(list((tmp_path / "folder").iterdir())) == 2)
        cluster._loop.post(lambda: engine._give_up(2, "somebody pulled it out"))
        with pytest.raises(sy.InfeasibleError, match="has 1 of the 2 devices that it needs left"):
            job.result(SECONDS)
        nothing_left(cluster)


@sy.training(steps=3, workers=2, servers=1, device="accelerator")
def roles(job, folder):
    import pathlib
    import time

    (pathlib.Path(folder) / f"{job.rank} of {job.size}{' serves' if job.is_server else ''}").touch()
    while len(list(pathlib.Path(folder).iterdir())) < job.size:
        time.sleep(0.002)
    return sum(job.steps())


def test_the_last_workers_of_a_training_job_are_its_parameter_servers(cluster: sy.Cluster, tmp_path: Path) -> None:
    graph = sy.graph("roles")
    graph.task(roles, str(tmp_path))
    assert cluster.submit(graph).result(SECONDS) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0 of 2", "1 of 2 serves"]
