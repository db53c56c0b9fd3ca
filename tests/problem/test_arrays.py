"""The array form of problems: there and back again, padding, and how far traffic goes."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symphony.lowering.family import workload as family_workload
from symphony.problem import limits, spans
from symphony.problem.arrays import (
    KIB,
    KIND_INDEX,
    VOID_KIND,
    WorkloadArrays,
    split_seconds,
    topology_arrays,
    workload_arrays,
)
from symphony.problem.topologies import topology
from symphony.problem.topology import LOCAL, PEER, RACK, Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from tests.problem.from_arrays import topology_from_arrays, workload_from_arrays
from tests.simulator.strategies import random_scenario

BUILT_IN = ("machine", "paper", "gpu24", "fat-tree:70")
SEEDS = st.integers(0, 2**31 - 1)


# -------------------------------------------------------------------- there and back again


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_topologies_come_back(name: str) -> None:
    made = topology(name)
    assert topology_from_arrays(topology_arrays(made), made) == made


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_random_topologies_come_back(seed: int) -> None:
    made = random_scenario(seed).topology
    assert topology_from_arrays(topology_arrays(made), made) == made


def test_equal_names_on_two_machines_stay_two_parts() -> None:
    kind = DeviceKind("cpu", "cpu")
    devices = tuple(Device(f"d{i}", "cpu", f"m{i % 2}", f"r{i // 2}", "socket", "switch", ()) for i in range(4))
    made = Topology("t", (kind,), (), devices)
    arrays = topology_arrays(made)
    assert topology_from_arrays(arrays, made) == made
    assert len(set(arrays.place[:4, 2])) == 4


def as_arrays_hold_it(w: Workload, t: Topology) -> Workload:
    """A workload with everything taken out that its array form does not hold."""
    kernels = []
    for kernel in w.kernels:
        written = {kind.name: profile for kind in t.kinds if (profile := kernel.on(kind))}
        kernels.append(Kernel(kernel.name, written, exchange_bytes=kernel.exchange_bytes))
    by_name = {kernel.name: kernel for kernel in w.kernels}
    graphs = []
    for graph in w.graphs:
        first = [gang.tasks[0] for gang in graph.all_gangs]
        tasks = tuple(replace(task, size=by_name[task.kernel].work(task.size)) for task in graph.tasks)
        edges = tuple(Edge(None if s < 0 else first[s], first[target], size) for s, target, size in graph.gang_edges)
        gangs = tuple(gang for gang in graph.all_gangs if gang != Gang(gang.tasks[0], gang.tasks[:1]))
        graphs.append(TaskGraph(graph.name, tasks, edges, gangs))
    owner = {device.name: index for index, device in enumerate(t.devices)}
    home = [next(owner[d.home or d.name] for d in t.devices if d.machine == machine) for machine in t.machines]
    jobs = tuple(replace(job, home=home[job.home % len(home)]) for job in w.jobs)
    return Workload(w.name, tuple(kernels), tuple(graphs), jobs)


def close(a: Workload, b: Workload) -> None:
    """Equal, but for the last bit of arrival times, which are kept in two parts."""
    exact = [replace(job, arrival_s=0.0) for job in a.jobs]
    assert exact == [replace(job, arrival_s=0.0) for job in b.jobs]
    np.testing.assert_allclose([x.arrival_s for x in a.jobs], [x.arrival_s for x in b.jobs], rtol=1e-15)
    assert a.graphs == b.graphs
    for ours, theirs in zip(a.kernels, b.kernels, strict=True):
        assert ours == theirs


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_random_workloads_come_back(seed: int) -> None:
    scenario = random_scenario(seed)
    cluster, drawn = scenario.topology, scenario.workload
    close(workload_from_arrays(workload_arrays(cluster, drawn), cluster, drawn), as_arrays_hold_it(drawn, cluster))


@pytest.mark.parametrize(("name", "where"), [("variant-calling", "paper"), ("training", "gpu24"), ("lu:4", "machine")])
def test_families_come_back(name: str, where: str) -> None:
    cluster = topology(where)
    drawn = family_workload(f"{name}?jobs=5", cluster, 3)
    close(workload_from_arrays(workload_arrays(cluster, drawn), cluster, drawn), as_arrays_hold_it(drawn, cluster))


def test_what_came_back_has_the_same_arrays() -> None:
    scenario = random_scenario(3)
    arrays = workload_arrays(scenario.topology, scenario.workload)
    again = workload_arrays(scenario.topology, workload_from_arrays(arrays, scenario.topology, scenario.workload))
    for field, ours in vars(arrays).items():
        if field != "home":  # comes back as the number of a device, and is read as that of a machine
            np.testing.assert_array_equal(ours, getattr(again, field), err_msg=field)


# -------------------------------------------------------------------- padding and indices, by hand


@pytest.fixture
def cluster() -> Topology:
    """Three CPUs with two slots each and a GPU; the CPUs share a NIC, at rack distance."""
    cpu, gpu = DeviceKind("cpu", "cpu", slots=2, memory=2048.0), DeviceKind("gpu", "gpu", memory=1024.0)
    rows = (Resource("nic", "nic", 10.0, "m"), Resource("mem", "memory", 40.0, "m"))
    route = (Hop("mem"), Hop("nic", (RACK,)))
    devices = [Device(f"c{i}", "cpu", "m", "r", "s", f"w{i}", route) for i in range(3)]
    gpus = [Device("g", "gpu", "m", "r", "s", "w3", (Hop("mem", (RACK, PEER)),), peers="ring")]
    return Topology("t", (cpu, gpu), rows, (*devices, *gpus, replace(gpus[0], name="h")))


def test_padded_devices_rows_and_slots(cluster: Topology) -> None:
    a = topology_arrays(cluster)
    assert a.exists.tolist() == [True] * 5 + [False]
    assert a.slots.tolist() == [2, 2, 2, 1, 1, 0]
    assert a.lane_device.tolist() == [0, 0, 1, 1, 2, 2, 3, 4]
    assert a.lane_exists.all()
    assert a.capacity.tolist() == [10.0, 40.0, np.inf]  # the last is the void row
    assert a.row_kind.tolist() == [KIND_INDEX["nic"], KIND_INDEX["memory"], VOID_KIND]
    assert a.row_group.tolist() == [0, 0, -1]
    assert a.route_row.tolist() == [[1, 0]] * 3 + [[1, 2]] * 2 + [[2, 2]]
    assert a.route_spans.tolist() == [[0, 1 << RACK]] * 3 + [[1 << RACK | 1 << PEER, 0]] * 2 + [[0, 0]]
    assert (a.route_kind == a.row_kind[a.route_row]).all()
    assert a.peers.tolist() == [-1, -1, -1, 0, 0, -1]
    assert a.kind_memory.tolist() == [2, 1]
    assert a.span_bandwidth[:, RACK].tolist() == [10.0] * 3 + [40.0] * 2 + [np.inf]
    assert np.isinf(a.span_bandwidth[:3, PEER]).all() and (a.span_bandwidth[3:5, PEER] == 40.0).all()


def test_padded_slots_do_not_exist(cluster: Topology) -> None:
    a = topology_arrays(replace(cluster, devices=(*cluster.devices[:2], cluster.devices[3])))
    assert a.lane_device.tolist() == [0, 0, 1, 1, 2, 2]  # the last is padding, and points at the last device
    assert a.lane_exists.tolist() == [True] * 5 + [False]


def example() -> Workload:
    """A diamond with a gang at the bottom, and a single task; three jobs."""
    near = Kernel("near", {"cpu": Profile(1.0, 2.0, {"memory": 5.0}, {"nic": 3.0}, 512.0, 256.0)}, exponent=2.0)
    wide = Kernel("wide", {"cpu": Profile(4.0), "gpu": Profile(1.0)}, exchange_bytes=7.0)
    tasks = (
        Task("a", "near", 2.0),
        Task("b", "wide"),
        Task("c", "wide"),
        Task("d0", "wide", units=3.0),
        Task("d1", "wide", units=3.0),
    )
    edges = (
        Edge("a", "b", 10.0),
        Edge("a", "c", 20.0),
        Edge("b", "d0", 1.0),
        Edge("c", "d1", 2.0),
        Edge(None, "d0", 9.0),
    )
    gang = Gang("d", ("d0", "d1"), preemptible=True, checkpoint_s=0.5, restore_s=0.25, checkpoint_units=1.5)
    graphs = (TaskGraph("diamond", tasks, edges, (gang,)), TaskGraph("dot", (Task("x", "near"),)))
    jobs = (Job(0, 0.25), Job(1, 1e8 + 0.5, priority=2, home=0), Job(0, 2e8, home=5))
    return Workload("w", (near, wide), graphs, jobs)


def test_kernels_graphs_and_jobs_by_hand(cluster: Topology) -> None:
    a = workload_arrays(cluster, example())
    assert a.time_fixed.tolist() == [[1.0, np.inf], [4.0, 1.0]]
    assert a.time_work.tolist() == [[2.0, 0.0], [0.0, 0.0]]
    assert a.demand_fixed[0, 0, KIND_INDEX["memory"]] == 5.0 and a.demand_work[0, 0, KIND_INDEX["nic"]] == 3.0
    assert a.demand_fixed[..., VOID_KIND].max() == 0
    assert a.memory_fixed[0, 0] == 512.0 / KIB and a.memory_work[0, 0] == 256.0 / KIB
    assert a.exchange.tolist() == [0.0, 7.0]
    assert a.gangs.tolist() == [4, 1]
    assert a.kernel[0].tolist() == [0, 1, 1, 1]
    assert a.work[0].tolist() == [4.0, 1.0, 1.0, 1.0]  # 2 ** 2
    assert a.units[0].tolist() == [1.0, 1.0, 1.0, 3.0]
    assert a.workers.tolist() == [[1, 1, 1, 2], [1, 0, 0, 0]]  # a padded gang has no worker
    assert a.runs_on[0].tolist() == [0b01, 0b11, 0b11, 0b11]
    assert a.preemptible[0].tolist() == [False, False, False, True]
    assert (a.checkpoint[0, 3], a.restore[0, 3], a.checkpoint_units[0, 3]) == (0.5, 0.25, 1.5)
    assert np.isinf(a.checkpoint_units[1]).all()
    # Inputs by target, the largest first; -1 is the home machine.
    assert a.in_start[0].tolist() == [0, 0, 1, 2, 5]
    assert a.in_source[0, :5].tolist() == [0, 0, -1, 2, 1]
    assert a.in_bytes[0, :5].tolist() == [10.0, 20.0, 9.0, 2.0, 1.0]
    assert a.parents.tolist() == [[0, 1, 1, 2], [0, 0, 0, 0]]
    assert a.out_start[0].tolist() == [0, 2, 3, 4, 4]
    assert a.out_target[0, :4].tolist() == [1, 2, 3, 3]
    assert a.in_start[1].tolist() == a.out_start[1].tolist() == [0] * 5
    assert int(a.jobs) == 3
    assert a.arrival_whole.tolist() == [0, 10**8, 2 * 10**8]
    assert a.arrival_part.tolist() == [0.25, 0.5, 0.0]
    assert a.graph.tolist() == [0, 1, 0] and a.priority.tolist() == [0, 2, 0] and a.home.tolist() == [0, 0, 0]
    assert (a.max_workers, a.fan) == (2, 3)


def test_critical_path_and_upward_rank_by_hand(cluster: Topology) -> None:
    """a: 1 + 2·4 = 9 s on a CPU. b, c: 1 s on a GPU, (3·4 + 2·1)/5 on average. d: both workers on GPUs, 3 units."""
    a = workload_arrays(cluster, example())
    assert a.isolated.tolist() == pytest.approx([9.0 + 1.0 + 3.0, 3.0])
    bandwidth = 25.0  # the median of the rows that carry data
    d = 3 * 14 / 5
    b, c = 14 / 5 + d + 1 / bandwidth, 14 / 5 + d + 2 / bandwidth
    top = 9.0 + max(b + 10 / bandwidth, c + 20 / bandwidth)
    assert a.rank[0].tolist() == pytest.approx([top, b, c, d])
    assert a.rank[1].tolist() == pytest.approx([3.0, 0.0, 0.0, 0.0])


def test_urgency_is_the_priority_that_tasks_have_or_else_the_upward_rank(cluster: Topology) -> None:
    w = example()
    first = replace(w.graphs[0], tasks=(replace(w.graphs[0].tasks[0], priority=2.5), *w.graphs[0].tasks[1:]))
    a = workload_arrays(cluster, replace(w, graphs=(first, *w.graphs[1:])))
    assert a.urgency[0].tolist() == [2.5, 0.0, 0.0, 0.0]
    assert a.urgency[1].tolist() == a.rank[1].tolist()


def test_padded_jobs_never_arrive(cluster: Topology) -> None:
    w = example()
    a = workload_arrays(cluster, replace(w, jobs=tuple(replace(w.jobs[0], arrival_s=float(i)) for i in range(5))))
    assert a.arrival_whole.tolist() == [0, 1, 2, 3, 4, np.iinfo(np.int32).max]
    assert int(a.jobs) == 5


def test_padded_kernels_run_nowhere(cluster: Topology) -> None:
    w = example()
    more = tuple(Kernel(f"more{i}", {"cpu": Profile(1.0)}) for i in range(3))
    a = workload_arrays(cluster, replace(w, kernels=(*w.kernels, *more)))
    assert a.time_fixed.shape == (6, 2)
    assert np.isinf(a.time_fixed[5]).all()


def test_a_footprint_too_large_for_a_kind_does_not_run_on_it(cluster: Topology) -> None:
    kernel = Kernel("k", {"cpu": Profile(1.0, memory=1500.0), "gpu": Profile(1.0, memory=1500.0)})
    w = Workload("w", (kernel,), (TaskGraph("g", (Task("a", "k"),)),), (Job(0, 0.0),))
    a = workload_arrays(cluster, w)
    assert a.runs_on.tolist() == [[0b01]]


def test_problems_of_one_bucket_have_equal_shapes() -> None:
    """So that they share a compiled program."""

    def shapes(arrays: WorkloadArrays) -> list[tuple[int, ...]]:
        return [*map(np.shape, jax.tree.leaves(arrays)), (arrays.max_workers, arrays.fan)]

    machine = topology("machine")
    a, b = (workload_arrays(machine, family_workload(f"layered?jobs={n}&tasks=8", machine, n)) for n in (13, 16))
    assert limits.bucket(13) == limits.bucket(16)
    assert shapes(a) == shapes(b)


@given(st.floats(0, 1e9))
def test_split_seconds_keeps_the_small_change(seconds: float) -> None:
    whole, part = split_seconds(np.asarray([seconds]))
    assert whole.dtype == np.int32 and 0 <= part[0] < 1
    assert float(whole[0]) + float(part[0]) == seconds


# -------------------------------------------------------------------- how far traffic goes


@jax.jit
def all_pairs(place: jax.Array, peers: jax.Array) -> tuple[jax.Array, jax.Array]:
    near, far = place[:, None], place[None, :]
    return spans.distance(near, far), spans.span(near, peers[:, None], far, peers[None, :])


def check_pairs(t: Topology, size: int) -> None:
    a = topology_arrays(t)
    place, peers = np.zeros((size, 5), np.int32), np.full(size, -1, np.int32)
    count = len(t.devices)
    place[:count], peers[:count] = a.place[:count], a.peers[:count]
    distance, span = (np.asarray(x)[:count, :count] for x in all_pairs(place, peers))
    assert distance.tolist() == [[t.distance(x, y) for y in t.devices] for x in t.devices]
    assert span.tolist() == [[t.span(x, y) for y in t.devices] for x in t.devices]


@pytest.mark.parametrize("name", BUILT_IN)
def test_spans_of_all_pairs_agree_with_the_built_in_topologies(name: str) -> None:
    check_pairs(topology(name), 96)


@given(SEEDS)
@settings(max_examples=40, deadline=None)
def test_spans_of_all_pairs_agree_with_random_topologies(seed: int) -> None:
    check_pairs(random_scenario(seed).topology, 24)


def widest(t: Topology, gang: list[Device]) -> int:
    """The span of a gang, as the rules say it."""
    if len({device.home or device.name for device in gang}) == 1:
        return LOCAL
    if gang[0].peers and len({device.peers for device in gang}) == 1:
        return PEER
    return max(t.distance(a, b) for a, b in combinations(gang, 2))


@given(SEEDS, st.data())
@settings(max_examples=80, deadline=None)
def test_the_span_of_a_gang_is_its_widest_pair(seed: int, data: st.DataObject) -> None:
    t = random_scenario(seed).topology
    a = topology_arrays(t)
    numbers = st.integers(0, len(t.devices) - 1)
    chosen = data.draw(st.lists(numbers, min_size=1, max_size=6, unique=True))
    padding = data.draw(st.lists(numbers, min_size=6 - len(chosen), max_size=6 - len(chosen)))
    rows = np.asarray([*chosen, *padding])
    member = np.arange(6) < len(chosen)
    found = jitted_gang_span(a.place[rows], a.peers[rows], member)
    assert int(found) == widest(t, [t.devices[d] for d in chosen])


jitted_gang_span = jax.jit(spans.gang_span)
