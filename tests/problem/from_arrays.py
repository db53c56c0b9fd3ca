"""The inverse of `problem/arrays.py`, to test that the array form loses nothing. Names come from the original."""

from __future__ import annotations

import numpy as np

from symphony.problem.arrays import KIB, TopologyArrays, WorkloadArrays
from symphony.problem.topology import RESOURCE_KINDS, SPANS, Device, DeviceKind, Hop, Resource, Topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload

RESOURCES = list(RESOURCE_KINDS)


def topology_from_arrays(a: TopologyArrays, original: Topology) -> Topology:
    """Sizes of memories come from the original, too: arrays hold them rounded."""
    t, count = original, len(original.devices)
    levels = ("switch", "socket", "machine", "rack")
    names = [
        {int(a.place[index, level]): getattr(device, attribute) for index, device in enumerate(t.devices)}
        for level, attribute in enumerate(levels, start=1)
    ]
    peers = {int(a.peers[index]): device.peers for index, device in enumerate(t.devices)}
    groups = {int(a.row_group[row]): resource.group for row, resource in enumerate(t.resources)}
    devices = []
    for index in range(count):
        home, *numbers = (int(number) for number in a.place[index])
        switch, socket, machine, rack = (names[level][number] for level, number in enumerate(numbers))
        route = tuple(
            Hop(t.resources[row].name, tuple(s for s in range(len(SPANS)) if spans >> s & 1))
            for row, spans in zip(a.route_row[index], a.route_spans[index], strict=True)
            if row < len(t.resources)
        )
        devices.append(
            Device(
                t.devices[index].name,
                t.kinds[int(a.device_kind[index])].name,
                machine,
                rack,
                socket,
                switch,
                route,
                home="" if home == index else t.devices[home].name,
                peers=peers[int(a.peers[index])],
            )
        )
    kinds = tuple(
        DeviceKind(kind.name, kind.type, kind.slots, kind.memory, float(a.kind_reconfigure[index]))
        for index, kind in enumerate(t.kinds)
    )
    resources = tuple(
        Resource(resource.name, RESOURCES[a.row_kind[row]], float(a.capacity[row]), groups[int(a.row_group[row])])
        for row, resource in enumerate(t.resources)
    )
    return Topology(t.name, kinds, resources, tuple(devices), tuple(float(x) for x in a.latency))


def workload_from_arrays(a: WorkloadArrays, topology: Topology, original: Workload) -> Workload:
    """Up to what arrays do not hold.

    Implementations come back by device kind, sizes as the kernel's work (exponent 1), homes as device numbers, and
    data edges between gangs join their first tasks.
    """
    kernels = tuple(
        Kernel(kernel.name, _profiles(a, index, topology), exchange_bytes=float(a.exchange[index]))
        for index, kernel in enumerate(original.kernels)
    )
    graphs = tuple(_graph(a, index, original) for index in range(len(original.graphs)))
    jobs = tuple(
        Job(
            int(a.graph[j]),
            float(a.arrival_whole[j]) + float(a.arrival_part[j]),
            int(a.priority[j]),
            int(a.home[j]),
        )
        for j in range(int(a.jobs))
    )
    return Workload(original.name, kernels, graphs, jobs)


def _profiles(a: WorkloadArrays, kernel: int, topology: Topology) -> dict[str, Profile]:
    profiles = {}
    for k, kind in enumerate(topology.kinds):
        if np.isfinite(a.time_fixed[kernel, k]):
            fixed, per_work = a.demand_fixed[kernel, k], a.demand_work[kernel, k]
            profiles[kind.name] = Profile(
                fixed_s=float(a.time_fixed[kernel, k]),
                per_work_s=float(a.time_work[kernel, k]),
                demand={RESOURCES[x]: float(fixed[x]) for x in np.flatnonzero(fixed)},
                demand_per_work={RESOURCES[x]: float(per_work[x]) for x in np.flatnonzero(per_work)},
                memory=float(a.memory_fixed[kernel, k]) * KIB,
                memory_per_work=float(a.memory_work[kernel, k]) * KIB,
            )
    return profiles


def _graph(a: WorkloadArrays, i: int, original: Workload) -> TaskGraph:
    named = original.graphs[i]
    members = [gang.tasks for gang in named.all_gangs]
    gangs, tasks, edges = [], {}, []
    for j, gang_tasks in enumerate(members):
        kernel = original.kernels[int(a.kernel[i, j])].name
        for task in gang_tasks:
            tasks[task] = Task(task, kernel, float(a.work[i, j]), float(a.units[i, j]))
        gang = Gang(
            named.all_gangs[j].name,
            gang_tasks,
            bool(a.preemptible[i, j]),
            float(a.checkpoint[i, j]),
            float(a.restore[i, j]),
            float(a.checkpoint_units[i, j]),
        )
        if gang != Gang(gang_tasks[0], gang_tasks[:1]):
            gangs.append(gang)
        for k in range(a.in_start[i, j], a.in_start[i, j + 1]):
            source = int(a.in_source[i, k])
            edges.append(Edge(None if source < 0 else members[source][0], gang_tasks[0], float(a.in_bytes[i, k])))
    return TaskGraph(named.name, tuple(tasks[task.name] for task in named.tasks), tuple(edges), tuple(gangs))
