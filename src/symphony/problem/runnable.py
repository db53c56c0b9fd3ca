"""Whether a topology can run a workload, and how fast in isolation."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from symphony.problem import units
from symphony.problem.errors import InfeasibleError
from symphony.problem.texts import did_you_mean
from symphony.problem.topology import DeviceKind, Topology
from symphony.problem.workload import Gang, Kernel, Profile, Task, TaskGraph, Workload

USUAL_TYPES = ("cpu", "gpu", "fpga")  # of devices; a kernel that names one of them is not misspelt


def profile_on(kernel: Kernel, kind: DeviceKind, size: float) -> Profile | None:
    """The profile of the kernel on a device kind; None if it is not implemented or `size` does not fit the memory."""
    profile = kernel.on(kind)
    if profile is None or profile.memory_bytes(kernel.work(size)) > kind.memory:
        return None
    return profile


def first_tasks(graph: TaskGraph) -> tuple[tuple[Gang, Task], ...]:
    """Every gang with its first task. All tasks of a gang have the same kernel, size and units."""
    tasks = {task.name: task for task in graph.tasks}
    return tuple((gang, tasks[gang.tasks[0]]) for gang in graph.all_gangs)


def check_graphs(topology: Topology, kernels: Iterable[Kernel], graphs: Iterable[TaskGraph]) -> None:
    """Raise `InfeasibleError` for a gang with more workers than there are devices that can run it."""
    by_name = {kernel.name: kernel for kernel in kernels}
    able: dict[tuple[str, float], int] = {}
    for graph in graphs:
        for gang, task in first_tasks(graph):
            kernel, key = by_name[task.kernel], (task.kernel, task.size)
            if key not in able:
                able[key] = _devices_for(topology, kernel, task.size)
            if able[key] < len(gang.tasks):
                why, hint = _why(topology, kernel, task.size, len(gang.tasks))
                devices = "a device" if len(gang.tasks) == 1 else f"{len(gang.tasks)} devices"
                raise InfeasibleError(
                    f"gang {gang.name!r} needs {devices} for kernel {kernel.name!r}; {topology.name!r} has"
                    f" too few: {why}",
                    where=f"graph {graph.name!r}",
                    hint=hint,
                )


def check_feasible(topology: Topology, workload: Workload) -> None:
    """Raise `InfeasibleError` for a gang that can never start on this topology."""
    check_graphs(topology, workload.kernels, workload.graphs)


def gang_seconds(topology: Topology, kernel: Kernel, gang: Gang, task: Task) -> float:
    """Time of a gang alone on the fastest devices, without exchange; the slowest of those devices decides."""
    work = kernel.work(task.size)
    kinds = []
    for name, devices in topology.kind_counts.items():
        profile = profile_on(kernel, topology.kind_of[name], task.size)
        if profile and devices:
            kinds.append((profile.seconds(work), devices))
    available = 0
    for seconds, devices in sorted(kinds):
        available += devices
        if available >= len(gang.tasks):
            return seconds * task.units
    return math.inf


def critical_path_s(topology: Topology, kernels: Mapping[str, Kernel], graph: TaskGraph) -> float:
    """Seconds of the longest path, every gang alone on its best devices, without transfers: a lower bound."""
    finish = [gang_seconds(topology, kernels[task.kernel], gang, task) for gang, task in first_tasks(graph)]
    children: dict[int, list[int]] = {}
    for source, target, _ in graph.gang_edges:
        children.setdefault(source, []).append(target)
    begin = [0.0] * len(finish)
    for gang in graph.order:
        finish[gang] += begin[gang]
        for child in children.get(gang, ()):
            begin[child] = max(begin[child], finish[gang])
    return max(finish)


def _devices_for(topology: Topology, kernel: Kernel, size: float) -> int:
    kinds = topology.kind_counts.items()
    return sum(count for kind, count in kinds if profile_on(kernel, topology.kind_of[kind], size))


def _why(topology: Topology, kernel: Kernel, size: float, workers: int) -> tuple[str, str]:
    """Why there are too few devices, by kind, and a hint."""
    present = [topology.kind_of[name] for name, count in topology.kind_counts.items() if count]
    absent = [kind.name for kind in present if kernel.on(kind) is None]
    implemented = ", ".join(kernel.implementations)
    reasons = [f"{', '.join(absent)} cannot run it (it is implemented for {implemented})"] if absent else []
    for kind in present:
        profile = kernel.on(kind)
        if profile and not profile_on(kernel, kind, size):
            wanted = units.show(profile.memory_bytes(kernel.work(size)), "bytes")
            reasons.append(f"it needs {wanted} of memory and {kind.name} has {units.show(kind.memory, 'bytes')}")
    able = _devices_for(topology, kernel, size)
    if able:
        reasons.append(f"{able} device{'s' if able > 1 else ''} can run it")
        return "; ".join(reasons), f"use gangs of at most {able}, or a topology with {workers} such devices"
    if len(absent) == len(present):
        known = [*USUAL_TYPES, *(word for kind in present for word in (kind.name, kind.type))]
        meant = "".join(did_you_mean(name, known) for name in kernel.implementations if name not in USUAL_TYPES)
        return "; ".join(reasons), f"{meant}use a topology with a device of kind or type {implemented}"
    return "; ".join(reasons), "use smaller inputs, or a topology whose devices have more memory"
