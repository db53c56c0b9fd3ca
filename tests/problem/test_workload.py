"""Work: graphs of gangs, and every kind of wrong input."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from symphony.problem import limits
from symphony.problem.arrays import workload_arrays
from symphony.problem.errors import CycleError, InfeasibleError, LimitError, WorkloadError
from symphony.problem.topology import Device, DeviceKind, Topology
from symphony.problem.workload import (
    Edge,
    Gang,
    Job,
    Kernel,
    Profile,
    Task,
    TaskGraph,
    Workload,
    topological_order,
)

KERNEL = Kernel("k", {"cpu": Profile(1.0)})
CHAIN = (Task("a", "k"), Task("b", "k"), Task("c", "k"))


def workload(**parts: Any) -> Workload:
    graph = TaskGraph("g", CHAIN)
    return Workload(**({"name": "w", "kernels": (KERNEL,), "graphs": (graph,), "jobs": (Job(0, 0.0),)} | parts))


# -------------------------------------------------------------------- what a graph holds


def test_tasks_in_no_gang_are_gangs_of_one_in_the_order_of_their_first_task() -> None:
    tasks = tuple(Task(name, "k") for name in "abcde")
    graph = TaskGraph("g", tasks, gangs=(Gang("late", ("e", "b")), Gang("pair", ("c", "d"))))
    assert [gang.name for gang in graph.all_gangs] == ["a", "late", "pair"]
    assert graph.gang_index == {"a": 0, "b": 1, "e": 1, "c": 2, "d": 2}
    assert graph.all_gangs[0] == Gang("a", ("a",))


def test_edges_between_gangs_add_up_largest_first_and_within_a_gang_vanish() -> None:
    tasks = tuple(Task(name, "k") for name in "abcd")
    edges = (
        Edge("a", "c", 1.0),
        Edge("a", "d", 2.0),  # parallel to the first: c and d are one gang
        Edge("b", "c", 5.0),
        Edge("c", "d", 9.0),
        Edge(None, "c", 4.0),
        Edge(None, "a", 7.0),
    )
    graph = TaskGraph("g", tasks, edges, (Gang("cd", ("c", "d")),))
    assert graph.gang_edges == ((-1, 0, 7.0), (1, 2, 5.0), (-1, 2, 4.0), (0, 2, 3.0))
    assert graph.order == (0, 1, 2)


def test_the_name_of_a_device_kind_wins_over_its_type() -> None:
    fast, slow = Profile(1.0), Profile(9.0)
    kernel = Kernel("k", {"gpu": slow, "v100": fast})
    assert kernel.on(DeviceKind("v100", "gpu")) is fast
    assert kernel.on(DeviceKind("k80", "gpu")) is slow
    assert kernel.on(DeviceKind("xeon", "cpu")) is None


def test_costs_are_affine_in_work() -> None:
    kernel = Kernel("k", {"cpu": Profile(1.0)}, exponent=2.0)
    profile = Profile(1.0, 0.5, memory=100.0, memory_per_work=10.0)
    assert kernel.work(3.0) == 9.0
    assert profile.seconds(9.0) == 5.5
    assert profile.memory_bytes(9.0) == 190.0


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=16))
def test_topological_order_is_complete_unless_there_is_a_cycle(count: int, pairs: list[tuple[int, int]]) -> None:
    edges = [(a, b) for a, b in pairs if a < b < count]
    order = topological_order(count, edges)
    assert sorted(order) == list(range(count))
    assert all(order.index(a) < order.index(b) for a, b in edges)
    if edges:
        (a, b), *_ = edges
        assert {a, b}.isdisjoint(topological_order(count, [*edges, (b, a)]))


# -------------------------------------------------------------------- bad input


def test_cycles_are_named() -> None:
    with pytest.raises(CycleError, match=r"graph 'g': task 'a' reads from itself"):
        TaskGraph("g", CHAIN, (Edge("a", "a"),))
    with pytest.raises(CycleError, match=r"graph 'g': these wait for one another: b, c") as caught:
        TaskGraph("g", CHAIN, (Edge("a", "b"), Edge("b", "c"), Edge("c", "b")))
    assert "remove an edge" in caught.value.hint
    ring = tuple(Task(f"t{i}", "k") for i in range(9))
    with pytest.raises(CycleError, match=r"t0, t1, t2, t3 …"):
        TaskGraph("g", ring, tuple(Edge(f"t{i}", f"t{(i + 1) % 9}") for i in range(9)))


def test_gangs_can_close_a_cycle_that_tasks_do_not() -> None:
    """a → b → c is a chain; with a and c in one gang, the gang waits for b and b for the gang."""
    edges = (Edge("a", "b"), Edge("b", "c"))
    assert TaskGraph("g", CHAIN, edges).order == (0, 1, 2)
    with pytest.raises(CycleError, match="gangs count as one vertex"):
        TaskGraph("g", CHAIN, edges, (Gang("ac", ("a", "c")),))


@pytest.mark.parametrize(
    ("parts", "message", "where", "hint"),
    [
        ({"tasks": ()}, "it has no task", "graph 'g'", "add a task"),
        ({"tasks": (*CHAIN, CHAIN[0])}, "task 'a' is defined twice", "graph 'g'", "rename"),
        ({"edges": (Edge("a", "z"),)}, "an edge names 'z', which is not a task", "graph 'g'", "add the task"),
        ({"edges": (Edge("z", "a"),)}, "an edge names 'z', which is not a task", "graph 'g'", "add the task"),
        ({"gangs": (Gang("x", ()),)}, "it has no task", "gang 'x'", "name its tasks"),
        ({"gangs": (Gang("x", ("z",)),)}, "it names 'z', which is not a task", "gang 'x'", "add the task"),
        ({"gangs": (Gang("x", ("a", "b")), Gang("y", ("b",)))}, "task 'b' is in gang 'x' too", "gang 'y'", "one gang"),
        ({"gangs": (Gang("x", ("a", "a")),)}, "task 'a' is in gang 'x' too", "gang 'x'", "one gang"),
        (
            {"tasks": (Task("a", "k"), Task("b", "k", 2.0)), "gangs": (Gang("x", ("a", "b")),)},
            "'a' and 'b' differ in kernel, size or units",
            "gang 'x'",
            "same kernel on the same size",
        ),
    ],
)
def test_bad_graphs(parts: dict[str, Any], message: str, where: str, hint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        TaskGraph(**({"name": "g", "tasks": CHAIN} | parts))
    assert message in caught.value.message
    assert where in caught.value.where
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("parts", "message", "where", "hint"),
    [
        ({"jobs": ()}, "no job arrives", "workload 'w'", "at least one job"),
        ({"kernels": (KERNEL, KERNEL)}, "two kernels have the same name", "workload 'w'", "rename"),
        ({"kernels": (replace(KERNEL, name="kk"),)}, "task 'a' of graph 'g' names the unknown kernel 'k'", "'w'", "kk"),
        ({"kernels": ()}, "unknown kernel 'k'", "workload 'w'", "define it"),
        ({"jobs": (Job(1, 0.0),)}, "graph index 1 is out of range", "job 0", "last graph"),
        ({"jobs": (Job(-1, 0.0),)}, "graph index -1 is out of range", "job 0", "last graph"),
        (
            {"jobs": (Job(0, 2.0), Job(0, 1.0))},
            "it arrives at 1.0 s, and should arrive at a finite time from 2.0 s on",
            "job 1",
            "sort jobs",
        ),
        ({"jobs": (Job(0, 0.0, priority=2**40),)}, "priority is 1099511627776", "job 0", "whole number"),
        ({"jobs": (Job(0, 0.0, home=1.5),)}, "home is 1.5", "job 0", "machine"),  # type: ignore[arg-type]
    ],
)
def test_bad_workloads(parts: dict[str, Any], message: str, where: str, hint: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        workload(**parts)
    assert message in caught.value.message
    assert where in caught.value.where
    assert hint in caught.value.hint


NUMBERS: dict[str, Any] = {
    "fixed_s": lambda x: Kernel("k", {"cpu": Profile(x)}),
    "per_work_s": lambda x: Kernel("k", {"cpu": Profile(1.0, x)}),
    "memory": lambda x: Kernel("k", {"cpu": Profile(1.0, memory=x)}),
    "memory_per_work": lambda x: Kernel("k", {"cpu": Profile(1.0, memory_per_work=x)}),
    "demand of nic": lambda x: Kernel("k", {"cpu": Profile(1.0, demand={"nic": x})}),
    "demand of cache": lambda x: Kernel("k", {"cpu": Profile(1.0, demand_per_work={"cache": x})}),
    "exponent": lambda x: Kernel("k", {"cpu": Profile(1.0)}, exponent=x),
    "exchange_bytes": lambda x: Kernel("k", {"cpu": Profile(1.0)}, exchange_bytes=x),
    "size": lambda x: TaskGraph("g", (Task("a", "k", size=x),)),
    "units": lambda x: TaskGraph("g", (Task("a", "k", units=x),)),
    "bytes": lambda x: TaskGraph("g", CHAIN, (Edge("a", "b", x),)),
    "checkpoint_s": lambda x: TaskGraph("g", CHAIN, gangs=(Gang("x", ("a",), checkpoint_s=x),)),
    "restore_s": lambda x: TaskGraph("g", CHAIN, gangs=(Gang("x", ("a",), restore_s=x),)),
    "arrives at": lambda x: workload(jobs=(Job(0, x),)),
}


@pytest.mark.parametrize("value", [None, "3", math.nan, math.inf, -1.0, True])
@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_is_checked(name: str, value: object) -> None:
    with pytest.raises(WorkloadError, match=name) as caught:
        NUMBERS[name](value)
    assert repr(value) in caught.value.message
    assert caught.value.where and caught.value.hint


@pytest.mark.parametrize("value", [None, "3", math.nan, 0.0, -1.0])
def test_periodic_checkpoints_are_apart(value: Any) -> None:
    with pytest.raises(WorkloadError, match="checkpoint_units is") as caught:
        TaskGraph("g", CHAIN, gangs=(Gang("x", ("a",), checkpoint_units=value),))
    assert "infinity" in caught.value.hint


def test_kernels_that_cannot_be() -> None:
    with pytest.raises(WorkloadError, match=r"kernel 'k': it has no implementation"):
        Kernel("k", {})
    with pytest.raises(WorkloadError, match=r"kernel 'k' on 'cpu': it takes no time") as caught:
        Kernel("k", {"cpu": Profile()})
    assert "above 0" in caught.value.hint
    with pytest.raises(WorkloadError, match=r"unknown resource kind 'magic'") as caught:
        Kernel("k", {"cpu": Profile(1.0, demand={"magic": 1.0})})
    assert "memory" in caught.value.hint


def test_a_size_that_leaves_no_work_takes_no_time() -> None:
    """It would divide by zero: rates and slow-downs are over the isolated time."""
    kernel = Kernel("k", {"cpu": Profile(per_work_s=1.0)})
    graph = TaskGraph("g", (Task("a", "k", size=0.0),))
    with pytest.raises(WorkloadError, match=r"graph 'g': kernel 'k' on size 0.0: it takes no time on 'cpu'"):
        workload(kernels=(kernel,), graphs=(graph,))
    with pytest.raises(WorkloadError, match="units is 0"):
        TaskGraph("g", (Task("a", "k", units=0.0),))


@pytest.mark.parametrize(
    ("kernel", "task", "message"),
    [
        (Kernel("k", {"cpu": Profile(1.0)}, exponent=5.0), Task("a", "k", 1e300), "is too large"),
        (Kernel("k", {"cpu": Profile(1e9)}), Task("a", "k", units=2.0), "time on 'cpu' in seconds is 2,000,000,000"),
        (Kernel("k", {"cpu": Profile(1.0, 1.0)}), Task("a", "k", 1e12), "time on 'cpu' in seconds"),
    ],
)
def test_absurd_times_are_beyond_a_limit(kernel: Kernel, task: Task, message: str) -> None:
    with pytest.raises(LimitError, match=message) as caught:
        workload(kernels=(kernel,), graphs=(TaskGraph("g", (task,)),))
    assert "graph 'g': kernel 'k'" in caught.value.where
    assert caught.value.hint


def test_absurd_sizes_are_beyond_a_limit() -> None:
    with pytest.raises(LimitError, match="number of tasks is 32,768"):
        TaskGraph("g", tuple(Task(f"t{i}", "k") for i in range(limits.TASKS_PER_GRAPH + 1)))
    with pytest.raises(LimitError, match="number of edges is 131,073"):
        TaskGraph("g", CHAIN, (Edge("a", "b"),) * (limits.EDGES_PER_GRAPH + 1))
    workers = tuple(f"w{i}" for i in range(limits.WORKERS_PER_GANG + 1))
    with pytest.raises(LimitError, match=r"gang 'x': number of workers is 257"):
        TaskGraph("g", tuple(Task(name, "k") for name in workers), gangs=(Gang("x", workers),))
    with pytest.raises(LimitError, match="number of kernels is 513"):
        workload(kernels=tuple(replace(KERNEL, name=f"k{i}") for i in range(limits.KERNELS + 1)))
    with pytest.raises(LimitError, match=r"job 0: arrival is 2,000,000,000"):
        workload(jobs=(Job(0, 2e9),))
    with pytest.raises(LimitError, match="bytes is"):
        TaskGraph("g", CHAIN, (Edge("a", "b", 1e16),))


def test_a_gang_larger_than_the_cluster_is_refused_with_the_cluster() -> None:
    """A workload alone may be fine; on a topology it is checked before anything runs."""
    names = tuple(f"w{i}" for i in range(3))
    graph = TaskGraph("g", tuple(Task(name, "k") for name in names), gangs=(Gang("wide", names),))
    devices = tuple(Device(f"d{i}", "cpu", "m", "r", "s", "w", ()) for i in range(2))
    small = Topology("small", (DeviceKind("cpu", "cpu"),), (), devices)
    with pytest.raises(InfeasibleError, match=r"gang 'wide' needs 3 devices for kernel 'k'; 'small'") as caught:
        workload_arrays(small, workload(graphs=(graph,)))
    assert "at most 2" in caught.value.hint


def test_a_kernel_that_no_device_can_run_is_refused_with_the_cluster() -> None:
    fpga = Topology("fpga", (DeviceKind("vu9p", "fpga"),), (), (Device("d", "vu9p", "m", "r", "s", "w", ()),))
    with pytest.raises(InfeasibleError, match="vu9p cannot run it") as caught:
        workload_arrays(fpga, workload())
    assert "cpu" in caught.value.hint
