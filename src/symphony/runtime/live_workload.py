"""The workload of a running scheduler, as arrays: graphs and kernels come and go while it runs.

A graph has a row for as long as its job is in the system. What runs teach (times, sizes of inputs) is kept apart from
what a graph is: it changes with every event, and is small. Shapes grow when something larger comes, which compiles the
scheduler's program anew; they are large enough to begin with that this is rare.

    A rows   T tasks of a graph   E edges of a graph   N kernels   Y device kinds
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
from symphony.runtime.profiles import Profiles
from symphony.runtime.run_figures import GPU_BUSY_FIGURE, PCIE_FIGURE
from symphony.scheduling.state import Core
from symphony.training_jobs.live.speed_beliefs import SpeedBeliefs

# A worker asks for a core, or for the whole of an accelerator until it was seen to use less of it; what it asks of
# memory is learned.
DEFAULT_COMPUTE_DEMAND = 1.0
MIN_OBSERVED_RUNS = 3  # of which the machine has told, before policies are
MIN_DEMAND_SHARE = 0.05  # share of an accelerator or a link that counts as none: something else always passes, too
LINK_ROW_KINDS = ("link", "switch")  # rows that traffic between a host and an accelerator crosses
JOB_ARRAYS = ("jobs", "arrival_whole", "arrival_part", "graph", "priority", "home")  # of traces only
KERNEL_ARRAYS = ("time_fixed", "time_work", "demand_fixed", "demand_work", "memory_fixed", "memory_work", "exchange")
# f[N, Y] twice, f[N, Y, Q], f[A, T] twice (bytes of the inputs, as far as they are known; steps that are left), f[A, E]
LEARNED_ARRAYS = ("time_fixed", "time_work", "demand_fixed", "work", "units", "in_bytes")


@dataclass(frozen=True)
class Shapes:
    """How much there is room for."""

    jobs: int = 16
    tasks: int = 64
    edges: int = 256
    kernels: int = 32
    workers: int = 1  # of a gang

    def to_hold(self, tasks: int, edges: int, kernels: int, workers: int = 1) -> Shapes:
        """Shapes that hold as much, and no less than these."""
        return Shapes(
            self.jobs,
            max(self.tasks, limits.bucket(tasks)),
            max(self.edges, limits.bucket(edges)),
            max(self.kernels, limits.bucket(kernels)),
            max(self.workers, limits.bucket(workers)),
        )


class LiveWorkload:
    """The arrays of one scheduler."""

    def __init__(
        self, topology: Topology, profiles: Profiles, shapes: Shapes, speeds: SpeedBeliefs | None = None
    ) -> None:
        self.topology, self.profiles, self.shapes = topology, profiles, shapes
        self.speeds = speeds or SpeedBeliefs(topology)
        self.t: TopologyArrays = topology_arrays(topology)
        self.kernels: list[RunnableKernel] = []  # by their number in the arrays
        self.free = list(range(shapes.jobs))  # rows
        self._memory = _memories(topology)
        self._links = _links(topology)
        self._used: dict[int, set[RunnableKernel]] = {}  # by the graph in each row that is not free
        self.w = _empty(self.t, shapes)
        self.believed = self._believed_speeds()  # what is believed of training jobs
        self.version = 0  # of everything but what is learned

    @property
    def learned(self) -> tuple[np.ndarray, ...]:
        """What runs have taught so far, in the order of LEARNED: it changes with every event, and is the books' own."""
        tables = vars(self.w)
        return tuple(tables[name] for name in LEARNED_ARRAYS)

    def kinds_of(self, kernel: RunnableKernel) -> list[int]:
        """Device kinds, of which there is a device, that a kernel has an implementation for."""
        counts, kinds = self.topology.kind_counts, enumerate(self.topology.kinds)
        return [k for k, kind in kinds if counts[kind.name] and self.function(kernel, k) is not None]

    def function(self, kernel: RunnableKernel, kind: int) -> str | None:
        """The key of the implementation for a device kind: that of its name, else that of its type."""
        named, both = self.topology.kinds[kind], kernel.implementations
        return named.name if named.name in both else named.type if named.type in both else None

    def lowered(self, graph: Submission, sizes: Sequence[int]) -> tuple[tuple[Kernel, ...], TaskGraph]:
        """A graph and all kernels known, as a problem; `sizes` are the bytes of what each task is called with."""
        kernels = self._with(graph)
        names = _names(kernels)
        lowered = task_graph(graph, names, sizes)
        return tuple(self._kernel(kernel, names[kernel]) for kernel in kernels), lowered

    def workload(
        self, jobs: Sequence[tuple[Submission, Sequence[int], float]], handling_s: float | None = None
    ) -> Workload:
        """Graphs, with sizes as above and arrivals in seconds, as a problem for the simulator.

        With `handling_s`, kernels take as long as they hold a slot; those of which that is not known, as long as that.
        """
        kernels = list(dict.fromkeys(call.kernel for graph, _, _ in jobs for call in graph.calls))
        names = _names(kernels)
        graphs = [
            task_graph(graph, names, sizes, f"{graph.name} ({number})") for number, (graph, sizes, _) in enumerate(jobs)
        ]
        arrivals = sorted((arrival, number) for number, (_, _, arrival) in enumerate(jobs))
        known = tuple(self._kernel(kernel, names[kernel], handling_s) for kernel in kernels)
        return Workload("as it ran", known, tuple(graphs), tuple(Job(number, arrival) for arrival, number in arrivals))

    def add(self, graph: Submission, sizes: Sequence[int], arrays: WorkloadArrays) -> int:
        """Give a graph a row, from the arrays of its problem; there must be a free one, and room."""
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
        """A row is free again; kernels that no other row uses give their numbers to the next that come."""
        self.free.append(row)
        del self._used[row]

    def refresh(self, kernel: RunnableKernel) -> None:
        """Read the times of a kernel afresh."""
        if kernel not in self.kernels:
            return
        index = self.kernels.index(kernel)
        for kind in self.kinds_of(kernel):
            self.w.time_fixed[index, kind], self.w.time_work[index, kind] = self._times(kernel, kind)
            demand = self._demand(kernel, self.topology.kinds[kind].name)
            for row in ("compute", "memory", *LINK_ROW_KINDS):
                self.w.demand_fixed[index, kind, KIND_INDEX[row]] = demand.get(row, 0.0)

    def refresh_beliefs(self) -> None:
        """Read afresh what is believed of training jobs."""
        self.believed = self._believed_speeds()
        for kernel in self.kernels:
            if kernel.options.training is not None:
                self.refresh(kernel)

    def forbid_preemption(self, row: int, task: int) -> None:
        """A task may not be preempted any more."""
        self.w.preemptible[row, task] = False
        self.version += 1

    def steps_left(self, row: int, task: int, steps: float) -> None:
        """A training job has so many steps to go."""
        self.w.units[row, task] = steps

    def expected(self, row: int, task: int, kernel: RunnableKernel, kind: int) -> tuple[float, float]:
        """Seconds that a training job is believed to take yet, and the deviation of their logarithm."""
        number = self.kernels.index(kernel)
        step_s, spread = self.w.time_fixed[number, kind], self.believed.unit_std[number, kind, PACKED]
        return float(step_s * self.w.units[row, task]), float(spread)

    def inputs_known(self, row: int, task: int, sizes: Mapping[int, int], total: int) -> None:
        """All that a task reads has been made: bytes by the task that made them, and in all."""
        self.w.work[row, task] = total
        for edge in range(self.w.in_start[row, task], self.w.in_start[row, task + 1]):
            self.w.in_bytes[row, edge] = sizes.get(int(self.w.in_source[row, edge]), 0)

    def enlarged(self, shapes: Shapes) -> LiveWorkload:
        """The same books, with room for more."""
        books = LiveWorkload(self.topology, self.profiles, shapes, self.speeds)
        books.kernels, books.version, books._used = list(self.kernels), self.version + 1, dict(self._used)
        taken = set(range(self.shapes.jobs)) - set(self.free)
        books.free = [row for row in range(shapes.jobs) if row not in taken]
        for name, small in vars(self.w).items():
            big = getattr(books.w, name)
            if name in JOB_ARRAYS or not isinstance(big, np.ndarray):
                continue
            if name in KERNEL_ARRAYS or big.ndim == 1:
                big[tuple(slice(0, n) for n in small.shape)] = small
            else:
                for row in range(len(small)):
                    _fill(big, row, small[row], name)
        books.believed = books._believed_speeds()
        return books

    def _believed_speeds(self) -> BeliefArrays:
        return self.speeds.beliefs_about(self.kernels, *self.w.time_fixed.shape)

    def _times(self, kernel: RunnableKernel, kind: int) -> tuple[float, float]:
        """Seconds of a unit on a device kind, and of each byte of its input. Units of a training job are its steps."""
        if kernel.options.training is not None:
            return self.speeds.step_s(kernel, kind), 0.0
        timing = self.profiles.timing(kernel.key, self.topology.kinds[kind].name)
        return timing.fixed_s, timing.per_byte_s

    def _with(self, graph: Submission) -> list[RunnableKernel]:
        """All kernels by number, once a graph is there: new ones take the numbers of those that nobody uses."""
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
        """What a worker asks of the rows on its route."""
        asks, found = self.profiles.demand(kernel.key, device), {"compute": DEFAULT_COMPUTE_DEMAND}
        seen = {
            name: figure.mean
            for name, figure in self.profiles.seen(kernel.key, device).items()
            if figure.runs >= MIN_OBSERVED_RUNS
        }
        if GPU_BUSY_FIGURE in seen:
            found["compute"] = (
                min(seen[GPU_BUSY_FIGURE], DEFAULT_COMPUTE_DEMAND) if seen[GPU_BUSY_FIGURE] > MIN_DEMAND_SHARE else 0.0
            )
        if asks.reported_share and device in self._memory:
            found["memory"] = asks.reported_share * self._memory[device]
        links, moved = self._links.get(device, {}), seen.get(PCIE_FIGURE, 0.0)
        return found | {row: min(moved, most) for row, most in links.items() if moved > MIN_DEMAND_SHARE * most}

    def _kernel(self, kernel: RunnableKernel, name: str, handling_s: float | None = None) -> Kernel:
        """A kernel as a problem has it; with `handling_s`, its times are those for which it holds a slot."""
        profiles = {}
        for kind in self.kinds_of(kernel):
            device = self.topology.kinds[kind].name
            timing, (held_s, per_byte_s) = self.profiles.timing(kernel.key, device), self._times(kernel, kind)
            if handling_s is not None and kernel.options.training is None:
                held_s += timing.around_s if timing.around or timing.behind else handling_s
            profiles[device] = Profile(held_s, per_byte_s, demand=self._demand(kernel, device))
        # One that no device can run is still a kernel: the check of the whole problem says what is wrong with it.
        return Kernel(name, profiles or {device: Profile(1.0) for device in kernel.implementations})


def _memories(topology: Topology) -> dict[str, float]:
    """Bandwidth of the memory that devices of each kind share with others; the least, if there are several."""
    capacity = {row.name: row.capacity for row in topology.resources}
    found: dict[str, float] = {}
    for device in topology.devices:
        row = memory_row(topology, device)
        if row is not None:
            found[device.kind] = min(found.get(device.kind, np.inf), capacity[row])
    return found


def _links(topology: Topology) -> dict[str, dict[str, float]]:
    """What crosses the links of accelerators of each kind at most, by the kind of the row; the least of several."""
    rows = {row.name: row for row in topology.resources if row.kind in LINK_ROW_KINDS}
    found: dict[str, dict[str, float]] = {}
    for device in topology.devices:
        for row in (rows[hop.resource] for hop in device.route if hop.resource in rows):
            mine = found.setdefault(device.kind, {})
            mine[row.kind] = min(mine.get(row.kind, np.inf), row.capacity)
    return found


def task_graph(
    graph: Submission, names: Mapping[RunnableKernel, str], sizes: Sequence[float], name: str = ""
) -> TaskGraph:
    """A graph as a problem has it: a gang for each call, in the same order, with a task for each of its workers.

    Engines move inputs together with kernels: edges have no bytes.
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
    """What each is called; those that are called alike have a number, too."""
    names: dict[RunnableKernel, str] = {}
    for number, kernel in enumerate(kernels):
        names[kernel] = f"{kernel.name} ({number})" if kernel.name in names.values() else kernel.name
    return names


def problem_arrays(topology: Topology, kernels: Sequence[Kernel], graph: TaskGraph) -> WorkloadArrays:
    """The arrays of one graph. Refuses one that the topology can never run."""
    return workload_arrays(topology, Workload(graph.name, tuple(kernels), (graph,), (Job(0, 0.0),)))


def _fill(big: np.ndarray, row: int, small: np.ndarray, name: str) -> None:
    """Write the row of a smaller table into a larger one."""
    if small.ndim == 0:
        big[row] = small
        return
    big[row][tuple(slice(0, n) for n in small.shape)] = small
    if name in ("in_start", "out_start"):
        big[row, len(small) :] = small[-1]  # gangs that are not there have no edges


def _empty(t: TopologyArrays, shapes: Shapes) -> WorkloadArrays:
    """Room for graphs, and none there."""
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
    """A core with room for more tasks: `big` is an empty one. Gangs have other numbers there."""

    def moved(gangs: np.ndarray) -> np.ndarray:
        there = gangs // before.tasks * after.tasks + gangs % before.tasks
        return np.where(gangs >= 0, there, gangs)

    def roomier(old: np.ndarray, new: np.ndarray) -> np.ndarray:
        room = new.reshape(after.jobs, after.tasks, *new.shape[1:]).copy()
        inner = (slice(0, length) for length in old.shape[1:])
        room[: before.jobs, : before.tasks, *inner] = old.reshape(before.jobs, before.tasks, *old.shape[1:])
        return room.reshape(new.shape)

    changed: dict[str, Any] = {}
    for each in fields(Core):
        old, new = jax.tree.map(np.asarray, (getattr(small, each.name), getattr(big, each.name)))
        if each.name in GANG_FIELDS:
            changed[each.name] = jax.tree.map(roomier, old, new)
        elif each.name in ("lane_holds", "head", "releasing"):
            changed[each.name] = moved(old)
        else:
            changed[each.name] = old
    return replace(big, **changed)
