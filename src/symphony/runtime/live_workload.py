"""The workload of a running scheduler, as arrays. Graphs and kernels arrive and leave while it runs.

A graph occupies a row while its job is in the system. Learned arrays (times, sizes of inputs) are separate from the
graphs: they are small and change with every event. Shapes grow when a larger graph arrives, which compiles the
scheduler's program again; the initial shapes are large enough that this is rare.

    A rows   T tasks of a graph   E edges of a graph   N kernels   Y device kinds   Q resource kinds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import jax
import numpy as np

from symphony.problem import limits
from symphony.problem.arrays import (
    KIND_INDEX,
    VOID_KIND,
    TopologyArrays,
    WorkloadArrays,
    topology_arrays,
    workload_arrays,
)
from symphony.problem.speeds import PACKED, BeliefArrays
from symphony.problem.topology import Topology
from symphony.problem.workload import Edge, Gang, Job, Kernel, Profile, Task, TaskGraph, Workload
from symphony.runtime.demand import memory_row
from symphony.runtime.graph import Submission
from symphony.runtime.kernels import RunnableKernel
from symphony.runtime.profiles import GPU_BUSY_FIGURE, PCIE_FIGURE, Profiles
from symphony.scheduling.state import Core
from symphony.training_jobs.live.speed_beliefs import SpeedBeliefs

CPU = "cpu"
DEFAULT_COMPUTE_DEMAND = 1.0  # of a worker: a core, or a whole accelerator until it was observed to use less
MIN_OBSERVED_RUNS = 3  # runs with machine figures before the figures change the demand
MIN_DEMAND_SHARE = 0.05  # of an accelerator or a link; less counts as no demand: there is always other traffic
LINK_ROW_KINDS = ("link", "switch")  # crossed by traffic between a host and an accelerator
JOB_ARRAYS = ("jobs", "arrival_whole", "arrival_part", "graph", "priority", "home")  # only traces have them
KERNEL_ARRAYS = ("time_fixed", "time_work", "demand_fixed", "demand_work", "memory_fixed", "memory_work", "exchange")
# f[N, Y], f[N, Y], f[N, Y, Q], f[A, T] (known bytes of the inputs), f[A, T] (remaining steps), f[A, E]
LEARNED_ARRAYS = ("time_fixed", "time_work", "demand_fixed", "work", "units", "in_bytes")


@dataclass(frozen=True)
class Shapes:
    """Sizes of the arrays."""

    jobs: int = 16
    tasks: int = 64
    edges: int = 256
    kernels: int = 32
    workers: int = 1  # of a gang

    def to_hold(self, tasks: int, edges: int, kernels: int, workers: int = 1) -> Shapes:
        """At least these shapes, and large enough for a graph with these numbers."""
        return Shapes(
            self.jobs,
            max(self.tasks, limits.bucket(tasks)),
            max(self.edges, limits.bucket(edges)),
            max(self.kernels, limits.bucket(kernels)),
            max(self.workers, limits.bucket(workers)),
        )


class LiveWorkload:
    """The arrays of one scheduler: `t` of its topology, `w` of the graphs in its rows."""

    def __init__(
        self, topology: Topology, profiles: Profiles, shapes: Shapes, speeds: SpeedBeliefs | None = None
    ) -> None:
        self.topology, self.profiles, self.shapes = topology, profiles, shapes
        self.speeds = speeds or SpeedBeliefs(topology)
        self.t: TopologyArrays = topology_arrays(topology)
        self.kernels: list[RunnableKernel] = []  # by their number in the arrays
        self.free = list(range(shapes.jobs))  # rows
        self._memory = _memory_bandwidths(topology)
        self._links = _link_bandwidths(topology)
        self._used: dict[int, set[RunnableKernel]] = {}  # kernels of the graph in each occupied row
        self.w = _empty(self.t, shapes)
        self.believed = self._believed_speeds()  # of training jobs
        self.version = 0  # changes with every array that is not learned

    @property
    def learned(self) -> tuple[np.ndarray, ...]:
        """The arrays themselves, in the order of `LEARNED_ARRAYS`. They change in place with every event."""
        return tuple(getattr(self.w, name) for name in LEARNED_ARRAYS)

    def kinds_of(self, kernel: RunnableKernel) -> list[int]:
        """Device kinds with at least one device for which a kernel has an implementation, and enough cores."""
        counts, cores = self.topology.kind_counts, kernel.options.cores
        return [
            k
            for k, kind in enumerate(self.topology.kinds)
            if counts[kind.name] and self.function(kernel, k) is not None and (kind.type != CPU or kind.slots >= cores)
        ]

    def function(self, kernel: RunnableKernel, kind: int) -> str | None:
        """The key of the implementation for a device kind: its name, else its type; None if there is neither."""
        device = self.topology.kinds[kind]
        return next((key for key in (device.name, device.type) if key in kernel.implementations), None)

    def lowered(self, graph: Submission, sizes: Sequence[int]) -> tuple[tuple[Kernel, ...], TaskGraph]:
        """A graph and all kernels, in terms of the problem. `sizes`: bytes of the arguments of each task."""
        kernels = self._with(graph)
        names = _names(kernels)
        lowered = task_graph(graph, names, sizes)
        return tuple(self._kernel(kernel, names[kernel]) for kernel in kernels), lowered

    def simulator_workload(
        self, jobs: Sequence[tuple[Submission, Sequence[int], float]], handling_s: float | None = None
    ) -> Workload:
        """A workload for the simulator. `jobs`: graphs with the sizes of their arguments, and arrivals in seconds.

        With `handling_s`, times include the runtime's own overhead; `handling_s` is used where none was measured.
        """
        kernels = list(dict.fromkeys(call.kernel for graph, _, _ in jobs for call in graph.calls))
        names = _names(kernels)
        graphs = [
            task_graph(graph, names, sizes, f"{graph.name} ({number})") for number, (graph, sizes, _) in enumerate(jobs)
        ]
        arrivals = sorted((arrival, number) for number, (_, _, arrival) in enumerate(jobs))
        profiled = tuple(self._kernel(kernel, names[kernel], handling_s) for kernel in kernels)
        arrived = tuple(Job(number, arrival) for arrival, number in arrivals)
        return Workload("as it ran", profiled, tuple(graphs), arrived)

    def add(self, graph: Submission, sizes: Sequence[int], arrays: WorkloadArrays) -> int:
        """Copy the arrays of a graph into a free row, and return the row. The shapes must be large enough."""
        row = self.free.pop(0)
        self.kernels = self._with(graph)
        self._used[row] = {call.kernel for call in graph.calls}
        w = {}
        for name, big in vars(self.w).items():
            small = getattr(arrays, name)
            if name in JOB_ARRAYS or not isinstance(big, np.ndarray):
                w[name] = big
                continue
            new = big.copy()
            if name in KERNEL_ARRAYS:
                new[tuple(slice(0, n) for n in small.shape)] = small
            else:
                _fill(new, row, small[0], name)
            w[name] = new
        self.w = WorkloadArrays(**w)
        self.believed = self._believed_speeds()
        self.version += 1
        return row

    def remove(self, row: int) -> None:
        """Free a row. New kernels take the numbers of kernels that no row uses."""
        self.free.append(row)
        del self._used[row]

    def refresh(self, kernel: RunnableKernel) -> None:
        """Update times and demands of a kernel from its profiles."""
        if kernel not in self.kernels:
            return
        index = self.kernels.index(kernel)
        for kind in self.kinds_of(kernel):
            self.w.time_fixed[index, kind], self.w.time_work[index, kind] = self._times(kernel, kind)
            demand = self._demand(kernel, self.topology.kinds[kind].name)
            for row in ("compute", "memory", *LINK_ROW_KINDS):
                self.w.demand_fixed[index, kind, KIND_INDEX[row]] = demand.get(row, 0.0)

    def refresh_beliefs(self) -> None:
        """Update the times of training jobs from the learned speeds."""
        self.believed = self._believed_speeds()
        for kernel in self.kernels:
            if kernel.options.training is not None:
                self.refresh(kernel)

    def forbid_preemption(self, row: int, task: int) -> None:
        self.w.preemptible[row, task] = False
        self.version += 1

    def steps_left(self, row: int, task: int, steps: float) -> None:
        """Set the remaining steps of a training job."""
        self.w.units[row, task] = steps

    def expected(self, row: int, task: int, kernel: RunnableKernel, kind: int) -> tuple[float, float]:
        """Expected remaining seconds of a training job, and the standard deviation of their logarithm."""
        number = self.kernels.index(kernel)
        step_s, spread = self.w.time_fixed[number, kind], self.believed.unit_std[number, kind, PACKED]
        return float(step_s * self.w.units[row, task]), float(spread)

    def inputs_known(self, row: int, task: int, sizes: Mapping[int, int], total: int) -> None:
        """Set the sizes of a task's inputs once all exist. `sizes`: bytes by source task. `total`: with arguments."""
        self.w.work[row, task] = total
        for edge in range(self.w.in_start[row, task], self.w.in_start[row, task + 1]):
            self.w.in_bytes[row, edge] = sizes.get(int(self.w.in_source[row, edge]), 0)

    def enlarged(self, shapes: Shapes) -> LiveWorkload:
        """A copy with larger shapes."""
        copy = LiveWorkload(self.topology, self.profiles, shapes, self.speeds)
        copy.kernels, copy.version, copy._used = list(self.kernels), self.version + 1, dict(self._used)
        copy.free = [row for row in range(shapes.jobs) if row not in self._used]
        for name, small in vars(self.w).items():
            big = getattr(copy.w, name)
            if name in JOB_ARRAYS or not isinstance(big, np.ndarray):
                continue
            if name in KERNEL_ARRAYS or big.ndim == 1:
                big[tuple(slice(0, n) for n in small.shape)] = small
            else:
                for row in range(len(small)):
                    _fill(big, row, small[row], name)
        copy.believed = copy._believed_speeds()
        return copy

    def _believed_speeds(self) -> BeliefArrays:
        return self.speeds.beliefs_about(self.kernels, *self.w.time_fixed.shape)

    def _times(self, kernel: RunnableKernel, kind: int) -> tuple[float, float]:
        """Seconds per unit of work (of a training job: per step), and seconds per byte of input."""
        if kernel.options.training is not None:
            return self.speeds.step_s(kernel, kind), 0.0
        timing = self.profiles.timing(kernel.key, self.topology.kinds[kind].name)
        return timing.fixed_s, timing.per_byte_s

    def _with(self, graph: Submission) -> list[RunnableKernel]:
        """Kernels by number after `graph` is added: new ones take the numbers of unused ones."""
        wanted = dict.fromkeys(call.kernel for call in graph.calls)
        used = set(wanted).union(*self._used.values())
        kernels = list(self.kernels)
        idle = [number for number, kernel in enumerate(kernels) if kernel not in used]
        for kernel in wanted:
            if kernel not in kernels and idle:
                kernels[idle.pop(0)] = kernel
            elif kernel not in kernels:
                kernels.append(kernel)
        return kernels

    def _demand(self, kernel: RunnableKernel, device: str) -> dict[str, float]:
        """Demand of a worker, by the kind of the rows on its route.

        To the core, a worker has one slot. One with several cores demands as many: while it and others have more than
        the device, all are expected to take longer. In fact the engine starts it when enough slots are free.
        """
        figures = {
            name: figure.mean
            for name, figure in self.profiles.seen(kernel.key, device).items()
            if figure.runs >= MIN_OBSERVED_RUNS
        }
        busy = figures.get(GPU_BUSY_FIGURE, DEFAULT_COMPUTE_DEMAND)
        demand = {"compute": min(busy, DEFAULT_COMPUTE_DEMAND) if busy > MIN_DEMAND_SHARE else 0.0}
        if self.topology.kind_of[device].type == CPU:
            demand["compute"] *= kernel.options.cores
        memory_share = self.profiles.demand(kernel.key, device).reported_share
        if memory_share and device in self._memory:
            demand["memory"] = memory_share * self._memory[device]
        traffic = figures.get(PCIE_FIGURE, 0.0)
        for row, bandwidth in self._links.get(device, {}).items():
            if traffic > MIN_DEMAND_SHARE * bandwidth:
                demand[row] = min(traffic, bandwidth)
        return demand

    def _kernel(self, kernel: RunnableKernel, name: str, handling_s: float | None = None) -> Kernel:
        profiles = {}
        for kind in self.kinds_of(kernel):
            device = self.topology.kinds[kind].name
            timing, (held_s, per_byte_s) = self.profiles.timing(kernel.key, device), self._times(kernel, kind)
            if handling_s is not None and kernel.options.training is None:
                held_s += timing.around_s if timing.around or timing.behind else handling_s
            main_memory = self.topology.kind_of[device].type == CPU  # accelerators have their own
            memory = kernel.options.memory if main_memory else 0.0
            profiles[device] = Profile(held_s, per_byte_s, demand=self._demand(kernel, device), memory=memory)
        # A kernel that no device can run keeps its implementations: the check of the whole problem reports it.
        return Kernel(name, profiles or {device: Profile(1.0) for device in kernel.implementations})


def _memory_bandwidths(topology: Topology) -> dict[str, float]:
    """Bandwidth of the shared memory of each device kind; the smallest if there are several memories."""
    capacity = {row.name: row.capacity for row in topology.resources}
    bandwidths: dict[str, float] = {}
    for device in topology.devices:
        row = memory_row(topology, device)
        if row is not None:
            bandwidths[device.kind] = min(bandwidths.get(device.kind, np.inf), capacity[row])
    return bandwidths


def _link_bandwidths(topology: Topology) -> dict[str, dict[str, float]]:
    """Bandwidth of the links of each device kind, by the kind of the row; the smallest of several."""
    rows = {row.name: row for row in topology.resources if row.kind in LINK_ROW_KINDS}
    bandwidths: dict[str, dict[str, float]] = {}
    for device in topology.devices:
        for row in (rows[hop.resource] for hop in device.route if hop.resource in rows):
            of_kind = bandwidths.setdefault(device.kind, {})
            of_kind[row.kind] = min(of_kind.get(row.kind, np.inf), row.capacity)
    return bandwidths


def task_graph(
    graph: Submission, names: Mapping[RunnableKernel, str], sizes: Sequence[float], name: str = ""
) -> TaskGraph:
    """A submitted graph as a task graph: a gang for each call, in the same order, with a task for each worker.

    Edges have no bytes, because engines move inputs together with kernels.
    """
    tasks, gangs = [], []
    for call, size in zip(graph.calls, sizes, strict=True):
        options, training = call.kernel.options, call.kernel.options.training
        workers = [call.name, *(f"{call.name}·{rank}" for rank in range(1, options.workers))]
        units = 1.0 if training is None else float(training.steps)
        tasks += [Task(worker, names[call.kernel], size=float(size), units=units) for worker in workers]
        saving = (0.0, 0.0) if training is None else (training.checkpoint_s, training.restore_s)
        if len(workers) > 1 or options.preemptible:
            gangs.append(Gang(call.name, tuple(workers), options.preemptible, *saving))
    edges = [Edge(graph.calls[source].name, call.name) for call in graph.calls for source in call.reads]
    return TaskGraph(name or graph.name, tuple(tasks), tuple(edges), tuple(gangs))


def _names(kernels: Sequence[RunnableKernel]) -> dict[RunnableKernel, str]:
    """Unique names: the second kernel of a name gets its number appended."""
    names: dict[RunnableKernel, str] = {}
    for number, kernel in enumerate(kernels):
        names[kernel] = f"{kernel.name} ({number})" if kernel.name in names.values() else kernel.name
    return names


def problem_arrays(topology: Topology, kernels: Sequence[Kernel], graph: TaskGraph) -> WorkloadArrays:
    """The arrays of one graph. Raises `InfeasibleError` if the topology can never run it."""
    return workload_arrays(topology, Workload(graph.name, tuple(kernels), (graph,), (Job(0, 0.0),)))


def _fill(big: np.ndarray, row: int, small: np.ndarray, name: str) -> None:
    """Copy a row of a smaller table into a row of a larger one."""
    if small.ndim == 0:
        big[row] = small
        return
    big[row][tuple(slice(0, n) for n in small.shape)] = small
    if name in ("in_start", "out_start"):
        big[row, len(small) :] = small[-1]  # padding: gangs without edges


def _empty(t: TopologyArrays, shapes: Shapes) -> WorkloadArrays:
    a, tasks, e, n = shapes.jobs, shapes.tasks, shapes.edges, shapes.kernels
    y, q = t.kind_memory.shape[0], VOID_KIND + 1

    def table(*shape: int, fill: float = 0.0, kind: type = np.float32) -> np.ndarray:
        return np.full(shape, fill, kind)

    def numbers(*shape: int, fill: int = 0) -> np.ndarray:
        return np.full(shape, fill, np.int32)

    return WorkloadArrays(
        time_fixed=table(n, y, fill=np.inf),
        time_work=table(n, y),
        demand_fixed=table(n, y, q),
        demand_work=table(n, y, q),
        memory_fixed=table(n, y),
        memory_work=table(n, y),
        exchange=table(n),
        gangs=numbers(a),
        isolated=table(a, fill=1.0),
        kernel=numbers(a, tasks),
        work=table(a, tasks),
        units=table(a, tasks, fill=1.0),
        workers=numbers(a, tasks),
        runs_on=numbers(a, tasks),
        footprint=numbers(a, tasks, y),
        preemptible=table(a, tasks, kind=bool),
        checkpoint=table(a, tasks),
        restore=table(a, tasks),
        checkpoint_units=table(a, tasks, fill=np.inf),
        rank=table(a, tasks),
        parents=numbers(a, tasks),
        in_start=numbers(a, tasks + 1),
        in_source=numbers(a, e, fill=-1),
        in_bytes=table(a, e),
        out_start=numbers(a, tasks + 1),
        out_target=numbers(a, e),
        **dict.fromkeys(JOB_ARRAYS),
        max_workers=shapes.workers,
        fan=4,
    )


GANG_FIELDS = {"status", "workers", "runs_on", "waiting_for", "sequence", "placed", "device", "lane", "inputs_left"}
GANG_FIELDS |= {"resumed", "leaving", "copies", "copied", "held"}


def enlarged_core(small: Core, big: Core, before: Shapes, after: Shapes) -> Core:
    """Copy the core `small` into the larger, empty core `big`. Gangs get new numbers."""

    def moved(gangs: np.ndarray) -> np.ndarray:
        new_numbers = gangs // before.tasks * after.tasks + gangs % before.tasks
        return np.where(gangs >= 0, new_numbers, gangs)

    def enlarged(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        table = new.reshape(after.jobs, after.tasks, *new.shape[1:]).copy()
        inner = (slice(0, length) for length in old.shape[1:])
        table[: before.jobs, : before.tasks, *inner] = old.reshape(before.jobs, before.tasks, *old.shape[1:])
        return table.reshape(new.shape)

    changed: dict[str, Any] = {}
    for each in fields(Core):
        old, new = jax.tree.map(np.asarray, (getattr(small, each.name), getattr(big, each.name)))
        if each.name in GANG_FIELDS:
            changed[each.name] = jax.tree.map(enlarged, old, new)
        elif each.name in ("lane_holds", "head", "releasing"):
            changed[each.name] = moved(old)
        else:
            changed[each.name] = old
    return replace(big, **changed)
