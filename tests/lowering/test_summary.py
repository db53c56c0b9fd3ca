from __future__ import annotations

import pytest

from symphony.lowering.family import workload
from symphony.lowering.summary import summarise
from symphony.problem.errors import InfeasibleError
from symphony.problem.topologies import topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from tests.lowering.small import cluster

A = Kernel("a", {"cpu": Profile(0.0, 2.0), "gpu": Profile(0.0, 0.5)})
B = Kernel("b", {"cpu": Profile(3.0)})
# a feeds b and a pair of a's that repeat ten times, which feeds another b.
CHAIN = TaskGraph(
    "chain",
    (
        Task("t0", "a"),
        Task("t1", "b"),
        Task("w0", "a", 1.0, 10.0),
        Task("w1", "a", 1.0, 10.0),
        Task("t2", "b"),
    ),
    (Edge(None, "t0", 5.0), Edge("t0", "t1", 10.0), Edge("t0", "w0", 20.0), Edge("w1", "t2", 1.0)),
    (Gang("pair", ("w0", "w1")),),
)
SINGLE = TaskGraph("single", (Task("t0", "a", size=3.0),))


def test_counts_by_hand() -> None:
    jobs = (Job(0, 1.0), Job(1, 2.0), Job(0, 5.0))
    s = summarise(cluster({"cpu": 4, "gpu": 1}), Workload("w", (A, B), (CHAIN, SINGLE), jobs))
    assert (s.jobs, s.graphs, s.tasks, s.gangs, s.edges, s.bytes) == (3, 2, 11, 9, 8, 72.0)
    assert s.tasks_per_job == (1, pytest.approx(11 / 3), 5)
    assert (s.widest_gang, s.last_arrival_s, s.rate) == (2, 5.0, pytest.approx(0.6))
    # t0 on the GPU: 0.5. The pair needs a CPU too and goes at its pace: 10 × 2. b: 3.
    assert s.critical_path_s == pytest.approx((1.5, (23.5 + 1.5 + 23.5) / 3, 23.5))
    assert s.work_s == pytest.approx(2 * (0.5 + 3 + 2 * 20 + 3) + 1.5)
    assert s.load == pytest.approx(s.rate / s.capacity)
    assert s.least_jobs_at_once == pytest.approx(0.6 * s.critical_path_s[1])
    a, b = s.kernels
    assert (a.name, a.tasks, a.mean_size) == ("a", 7, pytest.approx(9 / 7))
    assert a.seconds == {"cpu": pytest.approx(2 * 9 / 7), "gpu": pytest.approx(0.5 * 9 / 7)}
    assert b.seconds == {"cpu": 3.0}


def test_a_batch_has_no_rate() -> None:
    s = summarise(cluster({"cpu": 1}), Workload("w", (A, B), (SINGLE,), (Job(0, 0.0), Job(0, 0.0))))
    assert s.rate is None and s.load is None and s.least_jobs_at_once is None
    assert s.kernels[1].tasks == 0


def test_the_load_is_near_the_one_asked_for() -> None:
    t = topology("paper")
    s = summarise(t, workload("mixed?jobs=2000&load=0.5", t, 0))
    assert s.load == pytest.approx(0.5, rel=0.12)


def test_an_infeasible_workload_has_no_summary() -> None:
    with pytest.raises(InfeasibleError):
        summarise(cluster({"gpu": 1}), Workload("w", (A, B), (CHAIN,), (Job(0, 0.0),)))
