"""Random task graphs of three shapes, over random kernels whose speeds on device kinds are unrelated.

Unrelated speeds make placement hard: if one device were twice as fast as another for all kernels, any list scheduler
would come close to the best schedule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping

import numpy as np

from symphony.lowering.templates import Templates, check_size
from symphony.problem.runnable import profile_on
from symphony.problem.topology import LOCAL, Topology
from symphony.problem.workload import Edge, Kernel, Profile, Task, TaskGraph, topological_order

GraphEdges = list[tuple[int, int]]  # edges between tasks 0 … n-1, each from a lower number to a higher

_MEDIAN_S = 0.2  # of a kernel's base time
_LOG_SPREAD = 0.7  # standard deviation of the logarithm of base times, sizes and bytes
_MISSING_CHANCE = 0.15  # chance that a kernel has no implementation for a device type
_HEAVY_CHANCE = 0.25  # chance that a kernel is heavy on a resource
_DEMANDED_ROWS = ("compute", "cache", "memory", "device_memory", "link", "switch")  # that random kernels may demand
_LOCAL_BANDWIDTH = 10e9  # bytes/s, used for the sizes of data if no transfer leaves a memory


def layered(rng: np.random.Generator, tasks: int, degree: int) -> GraphEdges:
    """About √tasks layers of random width; a task reads from at most `degree` tasks of the layer before."""
    depth = round(tasks**0.5)
    # One task for every layer; the layers of the others are random.
    layer = np.sort(np.concatenate([np.arange(depth), rng.integers(0, depth, tasks - depth)]))
    first = np.searchsorted(layer, np.arange(depth + 1))
    edges: GraphEdges = []
    for task in range(int(first[1]), tasks):
        low, high = first[layer[task] - 1], first[layer[task]]
        parents = low + rng.choice(high - low, rng.integers(1, min(degree, high - low) + 1), replace=False)
        edges += [(int(parent), task) for parent in np.sort(parents)]
    return edges


def fork_join(rng: np.random.Generator, tasks: int, degree: int) -> GraphEdges:
    """A chain of fork-joins: a task forks into at most `degree` tasks that join in one, which forks again."""
    edges: GraphEdges = []
    fork = 0
    while (left := tasks - 1 - fork) > 0:
        widest = min(degree, left - 1)
        width = int(rng.integers(min(2, widest), widest + 1))
        join = fork + width + 1
        for branch in range(fork + 1, join):
            edges += [(fork, branch), (branch, join)]
        if width == 0:  # one task is left
            edges.append((fork, join))
        fork = join
    return edges


def series_parallel(rng: np.random.Generator, tasks: int, degree: int) -> GraphEdges:
    """Grown from one edge: a new task splits an edge in two or is put in parallel to it, up to `degree` at each end."""
    if tasks < 2:
        return []
    edges, leaving, entering = [(0, 1)], [0] * tasks, [0] * tasks
    leaving[0] = entering[1] = 1
    for task in range(2, tasks):
        pick = int(rng.integers(len(edges)))
        source, target = edges[pick]
        if leaving[source] < degree and entering[target] < degree and rng.random() < 0.5:
            edges.append((source, task))
            leaving[source] += 1
            entering[target] += 1
        else:
            edges[pick] = (source, task)
        edges.append((task, target))
        leaving[task] = entering[task] = 1
    rank = {task: number for number, task in enumerate(topological_order(tasks, edges))}
    return sorted((rank[source], rank[target]) for source, target in edges)


SHAPES: Mapping[str, Callable[[np.random.Generator, int, int], GraphEdges]] = {
    "layered": layered,
    "fork-join": fork_join,
    "series-parallel": series_parallel,
}


def random_graphs(
    rng: np.random.Generator,
    topology: Topology,
    *,
    shape: str,
    graphs: int,
    tasks: int,
    degree: int,
    ccr: float,
    heterogeneity: float,
    kernels: int,
) -> Templates:
    """Graphs of a shape over `kernels` random kernels.

    `ccr`: time to transfer all data of a graph, at a bandwidth typical of the topology, over the time of all its tasks
    on their best devices. `heterogeneity`: standard deviation of the logarithm of a kernel's times across device kinds.
    """
    check_size(graphs, tasks, where=shape)
    pool = random_kernels(rng, topology, kernels, heterogeneity)
    best_s = {kernel.name: _best_seconds(topology, kernel) for kernel in pool}
    bandwidth = _typical_bandwidth(rng, topology)
    made = []
    for number in range(graphs):
        pairs = SHAPES[shape](rng, tasks, degree)
        picks = rng.integers(len(pool), size=tasks)
        sizes = _around(rng, 1.0, tasks)
        work = [
            Task(f"t{t}", pool[pick].name, float(size)) for t, (pick, size) in enumerate(zip(picks, sizes, strict=True))
        ]
        total_bytes = ccr * bandwidth * sum(best_s[task.kernel] * task.size for task in work)
        entries = sorted(set(range(tasks)) - {target for _, target in pairs})
        data = _around(rng, 1.0, len(pairs) + len(entries))
        data *= total_bytes / data.sum()
        ends = [(f"t{source}", f"t{target}") for source, target in pairs] + [(None, f"t{task}") for task in entries]
        edges = [Edge(source, target, float(size)) for (source, target), size in zip(ends, data, strict=True)]
        made.append(TaskGraph(f"{shape}-{number}", tuple(work), tuple(edges)))
    return pool, tuple(made)


def _around(rng: np.random.Generator, median: float, count: int) -> np.ndarray:
    return median * rng.lognormal(0.0, _LOG_SPREAD, count)


def random_kernels(
    rng: np.random.Generator, topology: Topology, count: int, heterogeneity: float
) -> tuple[Kernel, ...]:
    """Kernels, each implemented for most device types that are present, and every kind of those types."""
    present = [topology.kind_of[kind] for kind, number in topology.kind_counts.items() if number]
    rows = _rows(topology)
    types = list(dict.fromkeys(kind.type for kind in present))
    pool = []
    for number in range(count):
        base = float(_around(rng, _MEDIAN_S, 1)[0])
        dropped = {name for name in types if rng.random() < _MISSING_CHANCE} - {types[int(rng.integers(len(types)))]}
        # Load of each row if this kernel runs in every slot of every device on the row.
        share = {
            row: rng.uniform(0.8, 2.0) if rng.random() < _HEAVY_CHANCE else rng.uniform(0.0, 0.5)
            for row in _DEMANDED_ROWS
        }
        implementations = {}
        for kind in present:
            # One slot of many is slower than a whole device, or CPUs would always be best.
            seconds = base * kind.slots**0.5 * float(np.exp(rng.normal(0.0, heterogeneity)))
            demand = {
                row: min(1.0, share[row] / slots) * capacity for row, (capacity, slots) in rows[kind.name].items()
            }
            memory = 0.0 if np.isinf(kind.memory) else float(rng.uniform(0.0, 0.2)) * kind.memory / kind.slots
            if kind.type not in dropped:
                implementations[kind.name] = Profile(0.0, seconds, demand, memory=memory)
        pool.append(Kernel(f"k{number}", implementations))
    return tuple(pool)


def _rows(topology: Topology) -> dict[str, dict[str, tuple[float, int]]]:
    """Device kind -> kind of row -> the smallest such row on its routes: (capacity, slots that share it)."""
    resources = {resource.name: resource for resource in topology.resources}
    slots: dict[str, int] = defaultdict(int)
    for device in topology.devices:
        for hop in device.route:
            slots[hop.resource] += topology.kind_of[device.kind].slots
    smallest: dict[str, dict[str, tuple[float, int]]] = {kind.name: {} for kind in topology.kinds}
    for device in topology.devices:
        for hop in device.route:
            row, here = resources[hop.resource], smallest[device.kind]
            if row.kind in _DEMANDED_ROWS and (row.kind not in here or row.capacity < here[row.kind][0]):
                here[row.kind] = (row.capacity, slots[row.name])
    return smallest


def _best_seconds(topology: Topology, kernel: Kernel) -> float:
    """Time at size 1 on the fastest device kind."""
    profiles = [profile_on(kernel, topology.kind_of[name], 1.0) for name in kernel.implementations]
    return min(profile.seconds(1.0) for profile in profiles if profile)


def _typical_bandwidth(rng: np.random.Generator, topology: Topology) -> float:
    """Median over random pairs of devices of the bandwidth between them, divided by the slots of the second.

    A device fetches one input at a time for all its slots.
    """
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    bandwidths = []
    for first, second in rng.integers(len(topology.devices), size=(64, 2)):
        a, b = topology.devices[first], topology.devices[second]
        span = topology.span(a, b)
        rows = [capacity[hop.resource] for end in (a, b) for hop in end.route if span in hop.spans]
        if span != LOCAL and rows:
            bandwidths.append(min(rows) / topology.kind_of[b.kind].slots)
    return float(np.median(bandwidths)) if bandwidths else _LOCAL_BANDWIDTH
