"""The workload of a running scheduler, as arrays. Graphs and kernels arrive and leave while it runs.

A graph occupies a row while its job is in the system. Learned arrays (times, sizes of inputs) are separate from the
graphs: they are small and change with every event. Shapes grow when a larger graph arrives, which compiles the
scheduler's program again; the initial shapes are large enough that this is rare.

    A rows   T tasks of a graph   E edges of a graph   N kernels   Y device kinds   Q resource kinds
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import SimpleNamespace
from typing import Any, ClassVar

import jax
import numpy as np

from symphony.estimation.runs import memory_rows
from symphony.problem import limits
from symphony.problem.arrays import (
    KIND_INDEX,
    VOID_KIND,
    TopologyArrays,
    WorkloadArrays,
    memory_units,
    topology_arrays,
)
from symphony.problem.speeds import PACKED, BeliefArrays
from symphony.problem.topology import DeviceKind, Topology
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
        self._numbers: dict[RunnableKernel, int] = {}  # the inverse
        # Results of `kinds_of` and `function` since the last graph was added.
        self._kinds: dict[RunnableKernel, list[int]] = {}
        self._functions: dict[tuple[RunnableKernel, int], str | None] = {}
        self.free = list(range(shapes.jobs))  # rows
        self._memory = _memory_bandwidths(topology)
        self._links = _link_bandwidths(topology)
        self._used: dict[int, set[RunnableKernel]] = {}  # kernels of the graph in each occupied row
        self.w = _empty(self.t, shapes)
        self._no_memory = [0] * self.w.footprint.shape[2]
        self.tables = SimpleNamespace(
            **vars(self.w)
        )  # the same arrays: reading a field of a module takes a microsecond
        self.believed = self._believed_speeds()  # of training jobs
        self.version = 0  # changes with every array that is not learned

    @property
    def learned(self) -> tuple[np.ndarray, ...]:
        """The arrays themselves, in the order of `LEARNED_ARRAYS`. They change in place with every event."""
        return tuple(getattr(self.w, name) for name in LEARNED_ARRAYS)

    def kinds_of(self, kernel: RunnableKernel) -> list[int]:
        """Device kinds with at least one device for which a kernel has an implementation, enough cores and memory."""
        found = self._kinds.get(kernel)
        if found is None:
            kinds = enumerate(self.topology.kinds)
            found = [k for k, kind in kinds if self.function(kernel, k) is not None and self._holds(kind, kernel)]
            self._kinds[kernel] = found
        return found

    def _holds(self, kind: DeviceKind, kernel: RunnableKernel) -> bool:
        """Whether there is a device of a kind, with the cores and the memory that a kernel asks for."""
        asks = kernel.options
        enough = kind.type != CPU or (kind.slots >= asks.cores and kind.memory >= asks.memory)
        return enough and self.topology.kind_counts[kind.name] > 0

    def kind_bits(self, kernel: RunnableKernel) -> int:
        """The same as bits."""
        return sum(1 << kind for kind in self.kinds_of(kernel))

    def _footprint(self, kernel: RunnableKernel) -> list[int]:
        """Memory that a worker takes on each kind, in the unit of the core. Accelerators have memory of their own."""
        found, asked = list(self._no_memory), kernel.options.memory
        for number, kind in enumerate(self.topology.kinds):
            if kind.type == CPU and np.isfinite(kind.memory):
                found[number] = memory_units(asked, kind)
        return found

    def function(self, kernel: RunnableKernel, kind: int) -> str | None:
        """The key of the implementation for a device kind: its name, else its type; None if there is neither."""
        key = kernel, kind
        if key not in self._functions:
            device, has = self.topology.kinds[kind], kernel.implementations
            self._functions[key] = next((name for name in (device.name, device.type) if name in has), None)
        return self._functions[key]

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
        profiled = tuple(self.profiled(kernel, names[kernel], handling_s) for kernel in kernels)
        arrived = tuple(Job(number, arrival) for arrival, number in arrivals)
        return Workload("as it ran", profiled, tuple(graphs), arrived)

    def add(self, graph: Submission, sizes: Sequence[int]) -> int:
        """Put a graph into a free row, and return the row. The shapes must be large enough.

        `sizes`: bytes of the arguments of each task. Edges have no bytes until their values exist (`inputs_known`).
        """
        row = self._take_row(graph)
        w, n = self.w, len(graph.calls)
        w.gangs[row] = n
        w.work[row, :n], w.in_bytes[row] = sizes, 0.0
        sources = [sorted(call.reads) for call in graph.calls]
        targets: list[list[int]] = [[] for _ in range(n)]
        for target, reads in enumerate(sources):
            for source in reads:
                targets[source].append(target)
        w.parents[row, :n] = [len(reads) for reads in sources]
        for start, table, lists in ((w.in_start, w.in_source, sources), (w.out_start, w.out_target, targets)):
            ends = np.cumsum([len(some) for some in lists])
            start[row, 0], start[row, 1 : n + 1], start[row, n + 1 :] = 0, ends, ends[-1]
            table[row, : ends[-1]] = [one for some in lists for one in some]
        of_kernel = {kernel: self._facts(kernel) for kernel in self._used[row]}
        facts = [of_kernel[call.kernel] for call in graph.calls]
        for name in _KernelFacts.TABLES:
            getattr(w, name)[row, :n] = [getattr(one, name) for one in facts]
        w.rank[row, :n], w.isolated[row] = _paths(facts, sizes, sources, targets)
        w.urgency[row, :n] = w.rank[row, :n]
        return row

    def _take_row(self, graph: Submission) -> int:
        """A free row, with the numbers of the graph's kernels."""
        row = self.free.pop(0)
        self._used[row] = set(call.kernel for call in graph.calls)
        self.kernels = self._with(graph)
        self._numbers = {kernel: number for number, kernel in enumerate(self.kernels)}
        self._kinds.clear()  # implementations may have been added
        self._functions.clear()
        for kernel in self._used[row]:
            number = self._numbers[kernel]
            self.w.time_fixed[number], self.w.time_work[number], self.w.demand_fixed[number] = np.inf, 0.0, 0.0
            self.refresh(kernel)
        self.believed = self._believed_speeds()
        self.version += 1
        return row

    def kernels_with(self, graph: Submission) -> int:
        """How many kernels there will be after `graph` is added."""
        return len(self._with(graph))

    def _facts(self, kernel: RunnableKernel) -> _KernelFacts:
        options, training, kinds = kernel.options, kernel.options.training, self.kinds_of(kernel)
        counts = self.topology.kind_counts
        return _KernelFacts(
            kernel=self._numbers[kernel],
            units=1.0 if training is None else float(training.steps),
            workers=options.workers,
            runs_on=self.kind_bits(kernel),
            footprint=self._footprint(kernel),
            preemptible=options.preemptible,
            checkpoint=0.0 if training is None else training.checkpoint_s,
            restore=0.0 if training is None else training.restore_s,
            times=tuple((*self._times(kernel, kind), counts[self.topology.kinds[kind].name]) for kind in kinds),
        )

    def add_window(self, graph: Submission) -> int:
        """A free row for a graph whose tasks `enter` it one by one, and leave it when they have finished.

        Its first gang waits for a parent that does not exist: it keeps the job in the core while no task is there.
        """
        row = self._take_row(graph)
        self.w.gangs[row], self.w.isolated[row] = 1, 1.0
        for name in ("in_start", "out_start", "runs_on", "workers", "rank", "parents"):
            getattr(self.w, name)[row] = 0
        self.w.parents[row, 0] = self.w.workers[row, 0] = 1
        return row

    def enter(self, row: int, place: int, kernel: RunnableKernel, size: int, kinds: int) -> None:
        """Put a task into a place of a window. `size`: bytes of its inputs. `kinds`: that may run it, as bits."""
        w, number = self.tables, self._numbers[kernel]
        w.work[row, place], w.units[row, place] = size, 1.0
        options = kernel.options
        fixed = (w.kernel, number), (w.runs_on, kinds), (w.workers, options.workers)
        for table, value in (*fixed, (w.preemptible, options.preemptible)):
            if table.item(row, place) != value:
                table[row, place] = value
                self.version += 1
        footprint = self._footprint(kernel) if options.memory else self._no_memory
        if w.footprint[row, place].tolist() != footprint:
            w.footprint[row, place] = footprint
            self.version += 1

    def remove(self, row: int) -> None:
        """Free a row. New kernels take the numbers of kernels that no row uses."""
        self.free.append(row)
        del self._used[row]
        self.w.gangs[row] = self.w.workers[row] = 0  # so that policies do not count it among the graphs
        self.version += 1

    def refresh(self, kernel: RunnableKernel) -> None:
        """Update times and demands of a kernel from its profiles."""
        index = self._numbers.get(kernel)
        if index is None:
            return
        w = self.tables
        for kind in self.kinds_of(kernel):
            w.time_fixed[index, kind], w.time_work[index, kind] = self._times(kernel, kind)
            demand = self.demand(kernel, self.topology.kinds[kind].name)
            for row in ("compute", "memory", *LINK_ROW_KINDS):
                w.demand_fixed[index, kind, KIND_INDEX[row]] = demand.get(row, 0.0)

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
        number = self._numbers[kernel]
        step_s, spread = self.w.time_fixed[number, kind], self.believed.unit_std[number, kind, PACKED]
        return float(step_s * self.w.units[row, task]), float(spread)

    def inputs_known(self, row: int, task: int, sizes: Mapping[int, int], total: int) -> None:
        """Set the sizes of a task's inputs once all exist. `sizes`: bytes by source task. `total`: with arguments."""
        w = self.tables
        w.work[row, task] = total
        for edge in range(w.in_start[row, task], w.in_start[row, task + 1]):
            w.in_bytes[row, edge] = sizes.get(int(w.in_source[row, edge]), 0)

    def enlarged(self, shapes: Shapes) -> LiveWorkload:
        """A copy with larger shapes."""
        copy = LiveWorkload(self.topology, self.profiles, shapes, self.speeds)
        copy.kernels, copy.version, copy._used = list(self.kernels), self.version + 1, dict(self._used)
        copy._numbers = dict(self._numbers)
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
        timing = self.profiles.believed(kernel.key, self.topology.kinds[kind].name)
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

    def demand(self, kernel: RunnableKernel, device: str) -> dict[str, float]:
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

    def profiled(self, kernel: RunnableKernel, name: str, handling_s: float | None = None) -> Kernel:
        """A kernel for the simulator, with its present profiles. `handling_s` as in `simulator_workload`."""
        profiles = {}
        for kind in self.kinds_of(kernel):
            device = self.topology.kinds[kind].name
            timing, (held_s, per_byte_s) = self.profiles.believed(kernel.key, device), self._times(kernel, kind)
            if handling_s is not None and kernel.options.training is None:
                held_s += timing.around_s if timing.around or timing.behind else handling_s
            main_memory = self.topology.kind_of[device].type == CPU  # accelerators have their own
            memory = kernel.options.memory if main_memory else 0.0
            profiles[device] = Profile(held_s, per_byte_s, demand=self.demand(kernel, device), memory=memory)
        # A kernel that no device can run keeps its implementations: the check of the whole problem reports it.
        return Kernel(name, profiles or {device: Profile(1.0) for device in kernel.implementations})


def _memory_bandwidths(topology: Topology) -> dict[str, float]:
    """Bandwidth of the shared memory of each device kind; the smallest if there are several memories."""
    capacity = {row.name: row.capacity for row in topology.resources}
    bandwidths: dict[str, float] = {}
    for device, row in zip(topology.devices, memory_rows(topology), strict=True):
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


@dataclass(frozen=True)
class _KernelFacts:
    """What the tables of a graph say of a task, by its kernel."""

    TABLES: ClassVar = ("kernel", "units", "workers", "runs_on", "footprint", "preemptible", "checkpoint", "restore")
    kernel: int
    units: float
    workers: int
    runs_on: int
    footprint: list[int]
    preemptible: bool
    checkpoint: float
    restore: float
    times: tuple[tuple[float, float, int], ...]  # of each kind: seconds, seconds per byte, devices

    def seconds(self, size: float) -> tuple[float, float]:
        """Isolated seconds: the mean over devices, and of the gang on the fastest devices."""
        times = [((fixed + per_byte * size) * self.units, devices) for fixed, per_byte, devices in self.times]
        mean = sum(seconds * devices for seconds, devices in times) / sum(devices for _, devices in times)
        available = 0
        for seconds, devices in sorted(times):
            available += devices
            if available >= self.workers:
                return mean, seconds
        return mean, np.inf


def _paths(
    facts: Sequence[_KernelFacts], sizes: Sequence[int], sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> tuple[list[float], float]:
    """Upward rank of each task, and the seconds of the longest path on the fastest devices."""
    known: dict[tuple[int, int], tuple[float, float]] = {}
    seconds = []
    for one, size in zip(facts, sizes, strict=True):
        key = one.kernel, size
        if key not in known:
            known[key] = one.seconds(size)
        seconds.append(known[key])
    edges = [(source, target) for target, reads in enumerate(sources) for source in reads]
    order = topological_order(len(facts), edges) if edges else range(len(facts))
    rank, finish = [0.0] * len(facts), [0.0] * len(facts)
    for task in reversed(order):
        rank[task] = seconds[task][0] + max((rank[child] for child in targets[task]), default=0.0)
    for task in order:
        finish[task] = seconds[task][1] + max((finish[parent] for parent in sources[task]), default=0.0)
    return rank, max(finish)


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
        urgency=table(a, tasks),
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
