"""Cases worked by hand: seconds per job on the busiest part, at the best split."""

from __future__ import annotations

from dataclasses import replace

import pytest

from symphony.lowering.capacity import _capacities, _use, jobs_per_second
from symphony.problem.errors import InfeasibleError, WorkloadError
from symphony.problem.topologies import topology
from symphony.problem.workload import Gang, Kernel, Profile, Task, TaskGraph
from tests.lowering.small import cluster


def kernel(name: str, **seconds: float) -> Kernel:
    return Kernel(name, {kind: Profile(0.0, time) for kind, time in seconds.items()})


def graph(*kernels: str, units: float = 1.0) -> TaskGraph:
    return TaskGraph("g", tuple(Task(f"t{i}", name, units=units) for i, name in enumerate(kernels)))


def test_one_kernel_on_one_kind() -> None:
    """2 devices of 2 slots, 2 s each: 2 jobs/s."""
    t = cluster({"cpu": 2}, slots={"cpu": 2})
    assert jobs_per_second(t, [graph("a")], [1.0], [kernel("a", cpu=2.0)]) == pytest.approx(2.0)


def test_kinds_add_up() -> None:
    """Half a second on the GPU: 2 jobs/s more."""
    t = cluster({"cpu": 2, "gpu": 1}, slots={"cpu": 2})
    assert jobs_per_second(t, [graph("a")], [1.0], [kernel("a", cpu=2.0, gpu=0.5)]) == pytest.approx(4.0)


def test_a_kernel_is_split_so_that_both_kinds_are_full() -> None:
    """a: 1 s on the CPU; b: 4 s there, 2 s on the GPU. x of it on the CPU: r + 4x = 1 = 2(r - x), r = 0.6."""
    t = cluster({"cpu": 1, "gpu": 1})
    kernels = [kernel("a", cpu=1.0), kernel("b", cpu=4.0, gpu=2.0)]
    assert jobs_per_second(t, [graph("a", "b")], [1.0], kernels) == pytest.approx(0.6)


def test_comparative_advantage_decides() -> None:
    """b gains more from the GPU, so it gets it although a is faster there too."""
    t = cluster({"cpu": 1, "gpu": 1})
    kernels = [kernel("a", cpu=2.0, gpu=1.0), kernel("b", cpu=20.0, gpu=2.0)]
    assert jobs_per_second(t, [graph("a", "b")], [1.0], kernels) == pytest.approx(0.5)


def test_units_workers_and_weights_count() -> None:
    """Half the jobs are gangs of 4 that repeat 0.5 s ten times, half take 4 s: 12 s a job, on 8 devices."""
    gang = TaskGraph(
        "g",
        tuple(Task(f"w{i}", "a", units=10.0) for i in range(4)),
        (),
        (Gang("g", ("w0", "w1", "w2", "w3")),),
    )
    t = cluster({"gpu": 8})
    kernels = [kernel("a", gpu=0.5), kernel("b", gpu=4.0)]
    assert jobs_per_second(t, [gang, graph("b")], [3.0, 3.0], kernels) == pytest.approx(8 / 12)
    assert jobs_per_second(t, [gang, graph("b")], [0.0, 1.0], kernels) == pytest.approx(2.0)


def test_exchange_takes_time_in_a_gang_of_several() -> None:
    """1 GB over 10 GB/s adds 0.1 s to an iteration of 0.5 s; alone, a worker exchanges nothing."""
    a = Kernel("a", {"gpu": Profile(0.5)}, exchange_bytes=1e9)
    pair = TaskGraph("g", (Task("w0", "a"), Task("w1", "a")), (), (Gang("g", ("w0", "w1")),))
    t = cluster({"gpu": 6}, nic=10e9)
    assert jobs_per_second(t, [pair], [1.0], [a]) == pytest.approx(6 / (2 * 0.6))
    assert jobs_per_second(t, [graph("a")], [1.0], [a]) == pytest.approx(6 / 0.5)


def test_a_gang_exchanges_over_the_closest_devices_that_are_enough() -> None:
    """Eight V100 of a fat-tree machine have peer links, 150 GB/s; nine go through PCIe links of 12 GB/s."""
    a = Kernel("a", {"v100": Profile(1e-3)}, exchange_bytes=150e9)
    t = topology("fat-tree:64")
    gangs = [tuple(f"w{i}" for i in range(n)) for n in (8, 9)]
    graphs = [TaskGraph("g", tuple(Task(w, "a") for w in gang), (), (Gang("g", gang),)) for gang in gangs]
    near, far = (len(graph.tasks) * jobs_per_second(t, [graph], [1.0], [a]) for graph in graphs)
    count = t.kind_counts["v100"]
    assert near == pytest.approx(count / 1.001) and far == pytest.approx(count / 12.501)


def test_a_gang_exchanges_at_the_pace_of_its_slowest_worker() -> None:
    """Of three NICs of 10, 5 and 1 GB/s, two workers take the first two."""
    a = Kernel("a", {"gpu": Profile(1e-3)}, exchange_bytes=10e9)
    t = cluster({"gpu": 3}, nic=10e9)
    capacities = {"gpu-0/nic": 10e9, "gpu-1/nic": 5e9, "gpu-2/nic": 1e9}
    t = replace(t, resources=tuple(replace(r, capacity=capacities[r.name]) for r in t.resources))
    for workers, seconds in ((2, 2.001), (3, 10.001)):
        names = tuple(f"w{i}" for i in range(workers))
        gang = TaskGraph("g", tuple(Task(name, "a") for name in names), (), (Gang("g", names),))
        assert workers * jobs_per_second(t, [gang], [1.0], [a]) == pytest.approx(3 / seconds)


def test_a_saturated_row_bounds_the_rate_whatever_slots_are_free() -> None:
    """A worker takes 0.8 of the socket's memory bandwidth for a second: 1.25 jobs/s, on 2 slots or on 10."""
    a = Kernel("a", {"cpu": Profile(1.0, demand={"memory": 80e9})})
    for slots in (2, 10):
        t = cluster({"cpu": 1}, slots={"cpu": slots}, host_memory=100e9)
        assert jobs_per_second(t, [graph("a")], [1.0], [a]) == pytest.approx(1.25)
    t = cluster({"cpu": 1}, slots={"cpu": 1}, host_memory=100e9)
    assert jobs_per_second(t, [graph("a")], [1.0], [a]) == pytest.approx(1.0)


def test_what_does_not_fit_a_memory_runs_elsewhere() -> None:
    a = Kernel("a", {"cpu": Profile(4.0), "gpu": Profile(0.0, 1.0, memory_per_work=6e9)})
    t = cluster({"cpu": 1, "gpu": 1}, memory={"gpu": 10e9})
    small = TaskGraph("s", (Task("t", "a", size=1.0),))
    large = TaskGraph("l", (Task("t", "a", size=2.0),))
    assert jobs_per_second(t, [small], [1.0], [a]) == pytest.approx(1.25)
    assert jobs_per_second(t, [large], [1.0], [a]) == pytest.approx(0.25)


@pytest.mark.parametrize("factor", [1e-7, 1e-3, 1e3, 1e7])
def test_the_unit_of_time_does_not_matter(factor: float) -> None:
    t = cluster({"cpu": 1, "gpu": 1})
    kernels = [kernel("a", cpu=1.0 * factor), kernel("b", cpu=4.0 * factor, gpu=2.0 * factor)]
    assert jobs_per_second(t, [graph("a", "b")], [1.0], kernels) == pytest.approx(0.6 / factor)


def test_a_kernel_that_no_kind_runs_is_named() -> None:
    t = cluster({"gpu": 2, "fpga": 1})
    with pytest.raises(InfeasibleError, match=r"'a' .*gpu, fpga") as caught:
        jobs_per_second(t, [graph("a")], [1.0], [kernel("a", cpu=1.0)])
    assert "cpu" in caught.value.hint


def test_weights_and_work_must_make_sense() -> None:
    t = cluster({"cpu": 1})
    for weights in ([], [0.0], [-1.0]):
        with pytest.raises(WorkloadError, match="weights"):
            jobs_per_second(t, [graph("a")], weights, [kernel("a", cpu=1.0)])
    idle = TaskGraph("g", (Task("t", "a", size=0.0),))
    with pytest.raises(WorkloadError, match="no job takes any time"):
        jobs_per_second(t, [idle], [1.0], [kernel("a", cpu=1.0)])


def test_rows_are_used_in_the_order_of_the_profile_so_that_processes_agree_to_the_last_bit() -> None:
    t = topology("machine")
    rows = ("memory", "cache", "compute", "interconnect")
    profile = Profile(1.0, demand=dict.fromkeys(rows, 0.1))
    used = _use(t, Kernel("a", {"cpu": profile}), 1.0, _capacities(t))
    assert [row for _, row in used["xeon"]] == ["", *rows]
