"""The largest rate of jobs that a cluster can sustain, to which `load` is relative.

A linear programme in the fluid limit. It chooses, for every kernel, the fraction that runs on each device kind, so that
the utilisation of the busiest part of the cluster is as small as possible; at full load that part is the bottleneck.
Parts are the slots of each device kind, and the resource rows on the routes of a kind: two kernels that together demand
more memory bandwidth than there is keep a socket busy for longer, also if slots are free. Gangs exchange at the
bandwidth of the closest devices that are enough for them. All sizes of a kernel are split alike. Transfers,
reconfiguration and dependencies are ignored, so the rate is optimistic: most schedules sustain less.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from symphony.problem.errors import InfeasibleError, WorkloadError
from symphony.problem.runnable import first_tasks, profile_on
from symphony.problem.topology import CLUSTER, LOCAL, MACHINE, PEER, RACK, SOCKET, SWITCH, Device, Topology
from symphony.problem.workload import Kernel, TaskGraph

# A part of the cluster: (device kind, "" for its slots or the kind of resource row).
ClusterPart = tuple[str, str]


def jobs_per_second(
    topology: Topology, graphs: Sequence[TaskGraph], weights: Sequence[float], kernels: Sequence[Kernel]
) -> float:
    """The largest rate of jobs, drawn from `graphs` by `weights`, that the cluster can sustain."""
    if len(weights) != len(graphs) or not all(weight >= 0 for weight in weights) or not sum(weights) > 0:
        raise WorkloadError(
            f"{len(graphs)} graphs have weights {list(weights)[:8]}",
            where="capacity",
            hint="give one weight for each graph, 0 or more, not all 0",
        )
    capacity, by_name = _capacities(topology), {kernel.name: kernel for kernel in kernels}
    bandwidth = cache(lambda kind, workers: _exchange_bandwidth(topology, kind, workers))
    # use[kernel, kinds that can run it][kind][part]: seconds of the part per mean job if the kernel runs on the kind
    use: dict[tuple[str, tuple[str, ...]], dict[str, dict[ClusterPart, float]]] = {}
    for (name, size, workers), amount in _demand(graphs, weights).items():
        kernel = by_name[name]
        per_kind = _use(topology, kernel, size, capacity)
        if workers > 1 and kernel.exchange_bytes:
            for kind, parts in per_kind.items():
                parts[kind, ""] += kernel.exchange_bytes / bandwidth(kind, workers) / capacity[kind, ""]
        if not per_kind:
            present = ", ".join(kind for kind, count in topology.kind_counts.items() if count)
            raise InfeasibleError(
                f"kernel {name!r} (size {size:.4g}) runs on none of the device kinds present: {present}",
                where=topology.name,
                hint=f"add a {' or '.join(kernel.implementations)} device with enough memory",
            )
        total = use.setdefault((name, tuple(per_kind)), {kind: defaultdict(float) for kind in per_kind})
        for kind, parts in per_kind.items():
            for part, seconds in parts.items():
                total[kind][part] += amount * seconds
    return 1.0 / _bottleneck_seconds(use)


def _demand(graphs: Sequence[TaskGraph], weights: Sequence[float]) -> dict[tuple[str, float, int], float]:
    """Worker-units of each (kernel, size, workers of the gang) in a mean job."""
    demand: dict[tuple[str, float, int], float] = defaultdict(float)
    total = sum(weights)
    for graph, weight in zip(graphs, weights, strict=True):
        for gang, task in first_tasks(graph):
            demand[task.kernel, task.size, len(gang.tasks)] += weight / total * len(gang.tasks) * task.units
    return demand


def _capacities(topology: Topology) -> dict[ClusterPart, float]:
    """Slots of each device kind, and the total capacity of each kind of row on the routes of a device kind.

    It is divided by the number of rows of that kind on a route, because a worker loads each of them.
    """
    resources = {resource.name: resource for resource in topology.resources}
    capacity: dict[ClusterPart, float] = {
        (kind, ""): count * topology.kind_of[kind].slots for kind, count in topology.kind_counts.items()
    }
    rows: dict[ClusterPart, dict[str, float]] = defaultdict(dict)
    touches: dict[ClusterPart, int] = defaultdict(int)
    for device in topology.devices:
        for hop in device.route:
            row = resources[hop.resource]
            rows[device.kind, row.kind][row.name] = row.capacity
            touches[device.kind, row.kind] += 1
    for part, capacities in rows.items():
        capacity[part] = sum(capacities.values()) * topology.kind_counts[part[0]] / touches[part]
    return capacity


def _use(
    topology: Topology, kernel: Kernel, size: float, capacity: dict[ClusterPart, float]
) -> dict[str, dict[ClusterPart, float]]:
    """For each kind that can run it: seconds for which one unit of one worker keeps each part of the kind busy."""
    work = kernel.work(size)
    use: dict[str, dict[ClusterPart, float]] = {}
    for kind, count in topology.kind_counts.items():
        profile = profile_on(kernel, topology.kind_of[kind], size)
        if profile is None or not count:
            continue
        seconds = profile.seconds(work)
        use[kind] = {(kind, ""): seconds / capacity[kind, ""]}
        # Not a set, which has another order in each process.
        for row in dict.fromkeys((*profile.demand, *profile.demand_per_work)):
            demand = profile.demand.get(row, 0.0) + work * profile.demand_per_work.get(row, 0.0)
            if demand > 0 and (kind, row) in capacity:
                use[kind][kind, row] = seconds * demand / capacity[kind, row]
    return use


def _exchange_bandwidth(topology: Topology, kind: str, workers: int) -> float:
    """Bandwidth of a gang's exchange on the closest devices of a kind that are enough for it."""
    capacity = {resource.name: resource.capacity for resource in topology.resources}
    devices = [device for device in topology.devices if device.kind == kind]
    groups: dict[int, Callable[[Device], str]] = {
        LOCAL: lambda device: device.home,
        PEER: lambda device: device.peers,
        SWITCH: lambda device: device.switch,
        SOCKET: lambda device: device.socket,
        MACHINE: lambda device: device.machine,
        RACK: lambda device: device.rack,
    }

    def enough(group_of: Callable[[Device], str]) -> bool:
        sizes = Counter(group_of(device) for device in devices if group_of(device))
        return max(sizes.values(), default=0) >= workers

    span = next((span for span, group_of in groups.items() if enough(group_of)), CLUSTER)
    crossed = ([capacity[hop.resource] for hop in device.route if span in hop.spans] for device in devices)
    fastest_first = sorted((min(rows, default=math.inf) for rows in crossed), reverse=True)
    return fastest_first[min(workers, len(devices)) - 1]


def _bottleneck_seconds(use: dict[tuple[str, tuple[str, ...]], dict[str, dict[ClusterPart, float]]]) -> float:
    """Seconds per job of the busiest part, for the best split of every kernel over device kinds."""
    from scipy.optimize import linprog  # takes a third of a second to import
    from scipy.sparse import csr_array

    # Columns: one fraction for each (kernel, kind), then the utilisation that is minimised.
    columns = [(row, parts) for row, per_kind in enumerate(use.values()) for parts in per_kind.values()]
    part_index = {part: i for i, part in enumerate(dict.fromkeys(part for _, parts in columns for part in parts))}
    # Seconds span many orders of magnitude and the solver's tolerances are absolute: scale the answer to about 1.
    scale = max(min(max(parts.values()) for parts in per_kind.values()) for per_kind in use.values())
    if not scale > 0:
        raise WorkloadError("no job takes any time", where="capacity", hint="give a task a size above 0")
    busy = [(part_index[part], c, v / scale) for c, (_, parts) in enumerate(columns) for part, v in parts.items()]
    busy += [(i, len(columns), -1.0) for i in part_index.values()]
    i, j, v = zip(*busy, strict=True)
    upper = csr_array((v, (i, j)), shape=(len(part_index), len(columns) + 1))
    whole = csr_array(
        (np.ones(len(columns)), ([row for row, _ in columns], range(len(columns)))),
        shape=(len(use), len(columns) + 1),
    )
    cost = np.zeros(len(columns) + 1)
    cost[-1] = 1.0
    result = linprog(cost, A_ub=upper, b_ub=np.zeros(len(part_index)), A_eq=whole, b_eq=np.ones(len(use)))
    return float(result.fun) * scale
