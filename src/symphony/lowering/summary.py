"""Counts and bounds of a workload on a topology, for `symphony workload show`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from symphony.lowering.capacity import jobs_per_second
from symphony.problem.runnable import check_feasible, critical_path_s, first_tasks, gang_seconds, profile_on
from symphony.problem.topology import Topology
from symphony.problem.workload import Kernel, TaskGraph, Workload


@dataclass(frozen=True)
class KernelSummary:
    """One kernel, over all jobs."""

    name: str
    implementations: tuple[str, ...]  # device kinds and types
    tasks: int
    mean_size: float
    seconds: Mapping[str, float]  # device kind present -> isolated time of a unit at the mean size
    exchange_bytes: float


@dataclass(frozen=True)
class Summary:
    """A workload on a topology. Counts are over all jobs."""

    workload: str
    topology: str
    jobs: int
    graphs: int
    tasks: int
    gangs: int
    widest_gang: int
    edges: int
    bytes: float
    tasks_per_job: tuple[int, float, int]  # least, mean, most
    last_arrival_s: float
    rate: float | None  # jobs/s; None: all arrive at once
    capacity: float  # jobs/s that the cluster can sustain at most
    load: float | None  # rate over capacity
    work_s: float  # device-seconds, every gang alone on its best devices
    critical_path_s: tuple[float, float, float]  # least, mean, most over jobs; no transfers, no waiting
    least_jobs_at_once: float | None  # lower bound: rate times a lower bound on the mean time of a job
    kernels: tuple[KernelSummary, ...]


def summarise(topology: Topology, workload: Workload) -> Summary:
    check_feasible(topology, workload)
    kernels = {kernel.name: kernel for kernel in workload.kernels}
    count = Counter(job.graph for job in workload.jobs)
    arriving = [(workload.graphs[index], jobs) for index, jobs in count.items()]

    def total(of: list[float]) -> float:
        return sum(value * jobs for value, (_, jobs) in zip(of, arriving, strict=True))

    def least_mean_most(of: list[float]) -> tuple[float, float, float]:
        return min(of), total(of) / len(workload.jobs), max(of)

    costs = [_costs(topology, kernels, graph) for graph, _ in arriving]
    sizes: list[float] = [len(graph.tasks) for graph, _ in arriving]
    path = least_mean_most([path for _, path in costs])
    slots = sum(topology.kind_of[device.kind].slots for device in topology.devices)
    quickest = least_mean_most([max(path, work / slots) for work, path in costs])
    weights = [float(count[index]) for index in range(len(workload.graphs))]
    capacity = jobs_per_second(topology, workload.graphs, weights, workload.kernels)
    last = workload.jobs[-1].arrival_s
    rate = len(workload.jobs) / last if last > 0 else None
    least, mean, most = least_mean_most(sizes)
    return Summary(
        workload=workload.name,
        topology=topology.name,
        jobs=len(workload.jobs),
        graphs=len(workload.graphs),
        tasks=int(total(sizes)),
        gangs=int(total([len(graph.all_gangs) for graph, _ in arriving])),
        widest_gang=max(len(gang.tasks) for graph, _ in arriving for gang in graph.all_gangs),
        edges=int(total([len(graph.edges) for graph, _ in arriving])),
        bytes=total([sum(edge.bytes for edge in graph.edges) for graph, _ in arriving]),
        tasks_per_job=(int(least), mean, int(most)),
        last_arrival_s=last,
        rate=rate,
        capacity=capacity,
        load=rate / capacity if rate else None,
        work_s=total([work for work, _ in costs]),
        critical_path_s=path,
        least_jobs_at_once=rate * quickest[1] if rate else None,
        kernels=tuple(_kernel(topology, kernel, arriving) for kernel in workload.kernels),
    )


def _kernel(topology: Topology, kernel: Kernel, arriving: list[tuple[TaskGraph, int]]) -> KernelSummary:
    sizes = [(task.size, n) for graph, n in arriving for task in graph.tasks if task.kernel == kernel.name]
    tasks = sum(n for _, n in sizes)
    mean_size = sum(size * n for size, n in sizes) / tasks if tasks else 1.0
    seconds = {}
    for name, devices in topology.kind_counts.items():
        profile = profile_on(kernel, topology.kind_of[name], mean_size)
        if profile and devices:
            seconds[name] = profile.seconds(kernel.work(mean_size))
    return KernelSummary(kernel.name, tuple(kernel.implementations), tasks, mean_size, seconds, kernel.exchange_bytes)


def _costs(topology: Topology, kernels: Mapping[str, Kernel], graph: TaskGraph) -> tuple[float, float]:
    """Device-seconds, and seconds of the longest path, with every gang alone on its best devices."""
    work = sum(
        len(gang.tasks) * gang_seconds(topology, kernels[task.kernel], gang, task) for gang, task in first_tasks(graph)
    )
    return work, critical_path_s(topology, kernels, graph)
