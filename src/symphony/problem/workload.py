"""Work: kernels with implementations, task graphs with gangs, and jobs that arrive.

This is the human form: names and SI units. `symphony.problem.arrays` makes the array form of it.

The gang is the unit of scheduling. A kernel invocation is a gang of one task; a training job is a gang of n workers
that exchange data after every unit of work (an iteration). Both are one type, and are placed by one kind of action.
"""

from __future__ import annotations

import heapq
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from symphony.problem import limits, units
from symphony.problem.errors import CycleError, LimitError, WorkloadError
from symphony.problem.topology import RESOURCE_KINDS, DeviceKind


@dataclass(frozen=True)
class Profile:
    """Costs of one implementation, affine in the work `w` of a task (see `Kernel.work`)."""

    fixed_s: float = 0.0
    per_work_s: float = 0.0  # isolated time of one unit: fixed_s + per_work_s * w
    demand: Mapping[str, float] = field(default_factory=dict)  # resource kind -> use while running (unit of its kind)
    demand_per_work: Mapping[str, float] = field(default_factory=dict)  # added to it, times w
    memory: float = 0.0  # bytes of device memory
    memory_per_work: float = 0.0

    def seconds(self, work: float) -> float:
        """Isolated time of one unit."""
        return self.fixed_s + self.per_work_s * work

    def memory_bytes(self, work: float) -> float:
        """Device memory in use while it runs."""
        return self.memory + self.memory_per_work * work


@dataclass(frozen=True)
class Kernel:
    """A named compute function with one implementation for each device kind that can run it."""

    name: str
    implementations: Mapping[str, Profile]  # device kind name ("v100"), or type ("gpu"), -> profile; the name wins
    exponent: float = 1.0
    exchange_bytes: float = 0.0  # sent by each worker of a gang after every unit

    def work(self, size: float) -> float:
        """Work of an input of `size`: size ** exponent."""
        return size**self.exponent

    def on(self, kind: DeviceKind) -> Profile | None:
        """The implementation for a device kind, if there is one."""
        return self.implementations.get(kind.name) or self.implementations.get(kind.type)

    def __post_init__(self) -> None:
        where = f"kernel {self.name!r}"
        if not self.implementations:
            raise WorkloadError("it has no implementation", where=where, hint="give a profile for a device kind")
        _check_number(where, "exponent", self.exponent)
        _check_number(where, "exchange_bytes", self.exchange_bytes, limits.TRANSFER_BYTES)
        for device, profile in self.implementations.items():
            at = f"{where} on {device!r}"
            _check_number(at, "fixed_s", profile.fixed_s, limits.SECONDS)
            _check_number(at, "per_work_s", profile.per_work_s, limits.SECONDS)
            _check_number(at, "memory", profile.memory)
            _check_number(at, "memory_per_work", profile.memory_per_work)
            if profile.fixed_s + profile.per_work_s <= 0:
                raise WorkloadError("it takes no time", where=at, hint="give fixed_s or per_work_s above 0")
            for kind, amount in [*profile.demand.items(), *profile.demand_per_work.items()]:
                if kind not in RESOURCE_KINDS:
                    raise WorkloadError(
                        f"unknown resource kind {kind!r}", where=at, hint=f"use one of {', '.join(RESOURCE_KINDS)}"
                    )
                _check_number(at, f"demand of {kind}", amount)


@dataclass(frozen=True)
class Task:
    """A vertex of a task graph: one invocation of a kernel."""

    name: str
    kernel: str
    size: float = 1.0  # input size, in the kernel's own unit
    units: float = 1.0  # number of repetitions (iterations of a training job)
    priority: float = 0.0  # of the application, for policies that sort queues by it; larger is more urgent


@dataclass(frozen=True)
class Edge:
    """Data that one task writes and another reads. `source` None: it is on the job's home machine at arrival."""

    source: str | None
    target: str
    bytes: float = 0.0


@dataclass(frozen=True)
class Gang:
    """Tasks that start together, each on a device of its own. They have the same kernel, size and units."""

    name: str
    tasks: tuple[str, ...]
    preemptible: bool = False
    checkpoint_s: float = 0.0  # time to write a checkpoint when preempted; it keeps its devices meanwhile
    restore_s: float = 0.0  # time to read it back before it continues
    checkpoint_units: float = math.inf  # units between periodic checkpoints: a failure loses the work since the last


@dataclass(frozen=True)
class TaskGraph:
    """Tasks, data edges and a partition into gangs; a task in no gang is a gang of one. The constructor checks it."""

    name: str
    tasks: tuple[Task, ...]
    edges: tuple[Edge, ...] = ()
    gangs: tuple[Gang, ...] = ()

    def __post_init__(self) -> None:
        _check_graph(self)

    @cached_property
    def all_gangs(self) -> tuple[Gang, ...]:
        """Every gang, those of one task included, in the order of their first task."""
        gang_of = {task: gang for gang in self.gangs for task in gang.tasks}
        singles = {task.name: Gang(task.name, (task.name,)) for task in self.tasks}
        return tuple(dict.fromkeys(gang_of.get(task.name, singles[task.name]) for task in self.tasks))

    @cached_property
    def gang_index(self) -> Mapping[str, int]:
        """Index into `all_gangs` of the gang of each task."""
        return {task: index for index, gang in enumerate(self.all_gangs) for task in gang.tasks}

    @cached_property
    def gang_edges(self) -> tuple[tuple[int, int, float], ...]:
        """Edges between gangs as (source or -1, target, bytes), parallel edges added up, sorted by target.

        The edges of a target are sorted by bytes, the largest first, then by source. There are none within a gang: the
        exchange of its workers is the kernel's `exchange_bytes`.
        """
        total: dict[tuple[int, int], float] = {}
        for edge in self.edges:
            source = -1 if edge.source is None else self.gang_index[edge.source]
            target = self.gang_index[edge.target]
            if source != target:
                total[source, target] = total.get((source, target), 0.0) + edge.bytes
        return tuple(sorted(((s, t, b) for (s, t), b in total.items()), key=lambda e: (e[1], -e[2], e[0])))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Gang indices in topological order."""
        return topological_order(len(self.all_gangs), [(s, t) for s, t, _ in self.gang_edges if s >= 0])


@dataclass(frozen=True)
class Job:
    """A task graph that arrives."""

    graph: int  # index into Workload.graphs
    arrival_s: float
    priority: int = 0  # larger is more urgent
    home: int = 0  # index of the machine that has its inputs (modulo the number of machines)


@dataclass(frozen=True)
class Workload:
    """Kernels, the graphs that use them, and the jobs that arrive. The constructor checks it."""

    name: str
    kernels: tuple[Kernel, ...]
    graphs: tuple[TaskGraph, ...]
    jobs: tuple[Job, ...]

    def __post_init__(self) -> None:
        _check_workload(self)

    @cached_property
    def kernel_index(self) -> Mapping[str, int]:
        """Index into `kernels` by name."""
        return {kernel.name: index for index, kernel in enumerate(self.kernels)}

    @cached_property
    def preemptible(self) -> bool:
        """Whether any gang may be preempted."""
        return any(gang.preemptible for graph in self.graphs for gang in graph.gangs)


def topological_order(count: int, edges: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    """Indices 0 … count-1, sources before targets, the lowest index first; shorter than `count` if there is a cycle."""
    children: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for source, target in edges:
        children[source].append(target)
        waiting[target] += 1
    ready = [index for index in range(count) if waiting[index] == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for child in children[index]:
            waiting[child] -= 1
            if waiting[child] == 0:
                heapq.heappush(ready, child)
    return tuple(order)


def _check_number(where: str, name: str, value: float, bound: float = limits.NUMBER) -> None:
    if not units.is_number(value) or value == math.inf:
        raise WorkloadError(f"{name} is {value!r}", where=where, hint="write a finite number, 0 or more")
    limits.check(name, value, bound, where=where)


def _check_graph(g: TaskGraph) -> None:
    where = f"graph {g.name!r}"
    if not g.tasks:
        raise WorkloadError("it has no task", where=where, hint="add a task")
    limits.check("number of tasks", len(g.tasks), limits.TASKS_PER_GRAPH, where=where)
    limits.check("number of edges", len(g.edges), limits.EDGES_PER_GRAPH, where=where)
    tasks: dict[str, Task] = {}
    for task in g.tasks:
        if task.name in tasks:
            raise WorkloadError(f"task {task.name!r} is defined twice", where=where, hint="rename one of them")
        tasks[task.name] = task
        _check_number(f"{where}: task {task.name!r}", "size", task.size)
        _check_number(f"{where}: task {task.name!r}", "units", task.units, limits.SECONDS)
        _check_number(f"{where}: task {task.name!r}", "priority", task.priority)
        if task.units <= 0:
            raise WorkloadError("units is 0", where=f"{where}: task {task.name!r}", hint="write units above 0")
    for edge in g.edges:
        for end in (edge.source, edge.target):
            if end is not None and end not in tasks:
                raise WorkloadError(f"an edge names {end!r}, which is not a task", where=where, hint="add the task")
        if edge.source == edge.target:
            raise CycleError(f"task {edge.target!r} reads from itself", where=where, hint="remove that edge")
        _check_number(f"{where}: edge to {edge.target!r}", "bytes", edge.bytes, limits.TRANSFER_BYTES)
    member: dict[str, str] = {}
    for gang in g.gangs:
        at = f"{where}: gang {gang.name!r}"
        if not gang.tasks:
            raise WorkloadError("it has no task", where=at, hint="name its tasks")
        limits.check("number of workers", len(gang.tasks), limits.WORKERS_PER_GANG, where=at)
        _check_number(at, "checkpoint_s", gang.checkpoint_s, limits.SECONDS)
        _check_number(at, "restore_s", gang.restore_s, limits.SECONDS)
        if not units.is_number(gang.checkpoint_units) or gang.checkpoint_units == 0:
            raise WorkloadError(
                f"checkpoint_units is {gang.checkpoint_units!r}", where=at, hint="write a number above 0, or infinity"
            )
        for name in gang.tasks:
            if name not in tasks:
                raise WorkloadError(f"it names {name!r}, which is not a task", where=at, hint="add the task")
            if name in member:
                raise WorkloadError(
                    f"task {name!r} is in gang {member[name]!r} too", where=at, hint="a task is in one gang only"
                )
            member[name] = gang.name
        first = tasks[gang.tasks[0]]
        for name in gang.tasks[1:]:
            other = tasks[name]
            if (other.kernel, other.size, other.units) != (first.kernel, first.size, first.units):
                raise WorkloadError(
                    f"{first.name!r} and {name!r} differ in kernel, size or units",
                    where=at,
                    hint="workers of a gang run the same kernel on the same size",
                )
    if len(g.order) != len(g.all_gangs):
        stuck = sorted(set(range(len(g.all_gangs))) - set(g.order))
        names = [g.all_gangs[index].name for index in stuck[:4]]
        raise CycleError(
            f"these wait for one another: {', '.join(names)}{' …' if len(stuck) > 4 else ''}",
            where=where,
            hint="remove an edge of the cycle (gangs count as one vertex)",
        )


def _check_workload(w: Workload) -> None:
    where = f"workload {w.name!r}"
    limits.check("number of kernels", len(w.kernels), limits.KERNELS, where=where)
    limits.check("number of graphs", len(w.graphs), limits.GRAPHS_PER_WORKLOAD, where=where)
    limits.check("number of jobs", len(w.jobs), limits.JOBS_PER_WORKLOAD, where=where)
    if not w.jobs:
        raise WorkloadError("no job arrives", where=where, hint="ask for at least one job")
    if len(w.kernel_index) != len(w.kernels):
        raise WorkloadError("two kernels have the same name", where=where, hint="rename one of them")
    for graph in w.graphs:
        for task in graph.tasks:
            if task.kernel not in w.kernel_index:
                raise WorkloadError(
                    f"task {task.name!r} of graph {graph.name!r} names the unknown kernel {task.kernel!r}",
                    where=where,
                    hint=f"define it, or use one of {', '.join(sorted(w.kernel_index)[:12])}",
                )
    for graph in w.graphs:
        for kernel, size, repeats in {(task.kernel, task.size, task.units) for task in graph.tasks}:
            _check_time(w.kernels[w.kernel_index[kernel]], size, repeats, f"{where}: graph {graph.name!r}")
    previous = 0.0
    for number, job in enumerate(w.jobs):
        at = f"{where}: job {number}"
        if not units.is_whole(job.graph, 0, len(w.graphs) - 1):
            raise WorkloadError(f"graph index {job.graph!r} is out of range", where=at, hint="0 to the last graph")
        if not units.is_whole(job.priority, -limits.PRIORITY, limits.PRIORITY):
            raise WorkloadError(
                f"priority is {job.priority!r}",
                where=at,
                hint=f"write a whole number from -{limits.PRIORITY:,} to {limits.PRIORITY:,}",
            )
        if not units.is_whole(job.home, -sys.maxsize, sys.maxsize):
            raise WorkloadError(f"home is {job.home!r}", where=at, hint="write the number of a machine")
        if not units.is_number(job.arrival_s, previous) or job.arrival_s == math.inf:
            raise WorkloadError(
                f"it arrives at {job.arrival_s!r} s, and should arrive at a finite time from {previous} s on",
                where=at,
                hint="sort jobs by their arrival times, which are 0 or more",
            )
        limits.check("arrival", job.arrival_s, limits.SECONDS, where=at)
        previous = job.arrival_s


def _check_time(kernel: Kernel, size: float, repeats: float, where: str) -> None:
    """Refuse a task whose time on one of its kernel's implementations is 0 or beyond `limits.SECONDS`."""
    where = f"{where}: kernel {kernel.name!r} on size {size}"
    try:
        work = kernel.work(size)
    except OverflowError:
        work = math.inf
    if work == math.inf:
        raise LimitError(f"its work, size ** {kernel.exponent}, is too large", where=where, hint="reduce size")
    for device, profile in kernel.implementations.items():
        seconds = profile.seconds(work) * repeats
        if seconds <= 0:
            raise WorkloadError(f"it takes no time on {device!r}", where=where, hint="give fixed_s, or a size, above 0")
        limits.check(f"time on {device!r} in seconds", seconds, limits.SECONDS, where=where)
