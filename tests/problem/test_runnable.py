from __future__ import annotations

import pytest

from symphony.lowering.family import workload
from symphony.problem.errors import InfeasibleError
from symphony.problem.runnable import check_feasible, check_graphs
from symphony.problem.topologies import topology
from symphony.problem.workload import Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from tests.lowering.small import cluster


def one_gang(kernel: Kernel, workers: int = 1, size: float = 1.0) -> Workload:
    names = tuple(f"w{i}" for i in range(workers))
    graph = TaskGraph("graph", tuple(Task(name, "k", size) for name in names), (), (Gang("all", names),))
    return Workload("w", (kernel,), (graph,), (Job(0, 0.0),))


def test_a_gang_as_wide_as_the_devices_is_fine_and_one_wider_is_not() -> None:
    t = cluster({"cpu": 3, "gpu": 2, "fpga": 9})
    kernel = Kernel("k", {"cpu": Profile(1.0), "gpu": Profile(1.0)})
    check_feasible(t, one_gang(kernel, workers=5))
    with pytest.raises(InfeasibleError) as caught:
        check_feasible(t, one_gang(kernel, workers=6))
    for word in ("'all'", "'k'", "6 devices", "5 devices can run it", "fpga cannot", "'graph'"):
        assert word in str(caught.value)
    assert "at most 5" in caught.value.hint


def test_slots_do_not_help_a_gang() -> None:
    """Each worker needs a device of its own."""
    t = cluster({"cpu": 1}, slots={"cpu": 8})
    with pytest.raises(InfeasibleError, match="2 devices"):
        check_feasible(t, one_gang(Kernel("k", {"cpu": Profile(1.0)}), workers=2))


def test_memory_counts_and_the_message_says_how_much() -> None:
    t = cluster({"gpu": 2}, memory={"gpu": 16e9})
    kernel = Kernel("k", {"gpu": Profile(1.0, memory=1e9, memory_per_work=5e9)})
    check_feasible(t, one_gang(kernel, size=3.0))
    with pytest.raises(InfeasibleError, match=r"21 GB of memory and gpu has 16 GB") as caught:
        check_feasible(t, one_gang(kernel, size=4.0))
    assert "memory" in caught.value.hint


@pytest.mark.parametrize("where", ["gpu24", "fat-tree:64"])
@pytest.mark.parametrize("name", ["variant-calling", "mixed"])
def test_indel_realignment_needs_a_cpu(where: str, name: str) -> None:
    with pytest.raises(InfeasibleError, match=r"realign.*IndelRealignment.*v100") as caught:
        workload(name, topology(where), 0)
    assert "cpu" in caught.value.hint


@pytest.mark.parametrize(
    ("named", "meant"), [("cpuu", "did you mean 'cpu'? "), ("GPU", "did you mean 'gpu'? "), ("fpga", ""), ("tpu9", "")]
)
def test_a_misspelt_device_kind_is_guessed(named: str, meant: str) -> None:
    kernel = Kernel("k", {named: Profile(1.0)})
    graph = TaskGraph("g", (Task("t", "k"),))
    with pytest.raises(InfeasibleError, match="too few") as raised:
        check_graphs(cluster({"cpu": 1}), [kernel], [graph])
    assert raised.value.hint == f"{meant}use a topology with a device of kind or type {named}"
