"""A scenario with full knowledge: the true times of all gangs; and whether the exact model covers it.

N gangs of all jobs   D devices   M memories (a device's own, or that of its home)   R resources
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from symphony.problem.errors import InputError
from symphony.problem.topology import LOCAL
from symphony.problem.workload import TaskGraph
from symphony.scheduling.state import MAX_COPIES
from symphony.simulator.contention import LOAD_UNIT, MAX_BANDWIDTH, MAX_LOAD, Bottleneck, ContentionModel, Serial
from symphony.simulator.scenarios import Scenario, ScenarioArrays, scenario_arrays

FULL_LOAD = round(1 / LOAD_UNIT)  # load of a fully used resource
MAX_PAIR_ROWS = 50_000_000  # pairs of memories times resources


@dataclass(frozen=True)
class Input:
    """Data that a gang reads: from another gang (an index), or from its job's home memory (-1)."""

    source: int
    bytes: float


@dataclass(frozen=True)
class Instance:
    """Everything that determines how long a schedule takes."""

    scenario: Scenario
    arrays: ScenarioArrays
    who: tuple[tuple[int, int], ...]  # [N] job, gang within its graph
    arrival_s: np.ndarray  # f[N]: of the gang's job
    workers: np.ndarray  # i[N]
    seconds: np.ndarray  # f[N, D]: true isolated time of all its work; inf where it cannot run
    footprint: np.ndarray  # i[N, D], in the unit of `room`
    inputs: tuple[tuple[Input, ...], ...]  # [N], in the order in which they are fetched
    home: np.ndarray  # i[N]: the memory that holds the job's inputs
    slots: np.ndarray  # i[D]
    room: np.ndarray  # i[D]: memory for footprints
    memory_of: np.ndarray  # i[D]: which memory a device works in
    bandwidth: np.ndarray  # f[M, M], bytes/s from one memory to another; inf within one
    latency_s: np.ndarray  # f[M, M]
    crossed: np.ndarray  # i[M, M, R]: load of a transfer on each resource
    demanded: np.ndarray  # i[D, R]: the largest load on each resource by workers that fill a device's slots

    def __len__(self) -> int:
        return len(self.who)

    @cached_property
    def index(self) -> Mapping[tuple[int, int], int]:
        """The gang with a job and a gang number within the job's graph."""
        return {who: index for index, who in enumerate(self.who)}

    @cached_property
    def line(self) -> np.ndarray:
        """Each gang's row in tables over all jobs and the gangs of the largest graph [N]."""
        gangs = self.arrays.workload.kernel.shape[1]
        return np.asarray([job * gangs + gang for job, gang in self.who])

    @cached_property
    def parents(self) -> tuple[tuple[int, ...], ...]:
        """Of each gang [N]."""
        return tuple(tuple(x.source for x in inputs if x.source >= 0) for inputs in self.inputs)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Of each gang [N]."""
        found: list[list[int]] = [[] for _ in self.who]
        for gang, parents in enumerate(self.parents):
            for parent in parents:
                found[parent].append(gang)
        return tuple(map(tuple, found))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """All gangs in topological order."""
        base = np.cumsum([0, *(len(self._graph(j).all_gangs) for j in range(len(self.scenario.workload.jobs)))])
        return tuple(
            int(base[job] + gang) for job in range(len(self.scenario.workload.jobs)) for gang in self._graph(job).order
        )

    @cached_property
    def best_s(self) -> np.ndarray:
        """Least isolated time of each gang on as many devices as it has workers [N]."""
        ranked = np.sort(self.seconds, axis=1)
        return ranked[np.arange(len(self)), self.workers - 1]

    def transfer_s(self, size: float, source: int, target: int) -> float:
        """Seconds to move data from one memory to another without contention."""
        if source == target or size <= 0:
            return 0.0
        return float(self.latency_s[source, target] + size / self.bandwidth[source, target])

    def least_bytes(self, x: Input) -> float:
        """The fewest bytes that make a copy: a sibling that reads less of the same output may fetch it."""
        if x.source < 0:
            return x.bytes
        return min(y.bytes for c in self.children[x.source] for y in self.inputs[c] if y.source == x.source and y.bytes)

    def _graph(self, job: int) -> TaskGraph:
        workload = self.scenario.workload
        return workload.graphs[workload.jobs[job].graph]


def instance(scenario: Scenario) -> Instance:
    """The instance of a scenario, as NumPy arrays."""
    # More job slots than jobs only enlarge the simulator's state.
    scenario = replace(scenario, job_slots=min(scenario.job_slots, len(scenario.workload.jobs)))
    s = scenario_arrays(scenario)
    t, w, topology = s.topology, s.workload, scenario.topology
    count, rows = len(topology.devices), len(topology.resources)
    kinds = np.asarray(t.device_kind)[:count]
    owners, memory_of = np.unique(np.asarray(t.place)[:count, 0], return_inverse=True)
    memories = {int(owner): number for number, owner in enumerate(owners)}
    if len(owners) ** 2 * rows > MAX_PAIR_ROWS:
        raise InputError(
            f"{topology.name!r} has {len(owners):,} memories and {rows:,} resources, too many for the oracle",
            hint="plan for a part of the cluster, such as one rack",
        )

    who: list[tuple[int, int]] = []
    graph_of, inputs, arrivals, homes, noise = [], [], [], [], []
    for number, job in enumerate(scenario.workload.jobs):
        graph = scenario.workload.graphs[job.graph]
        base = len(who)
        incoming: list[list[Input]] = [[] for _ in graph.all_gangs]
        for source, target, size in graph.gang_edges:
            incoming[target].append(Input(base + source if source >= 0 else -1, size))
        for index, edges in enumerate(incoming):
            who.append((number, index))
            graph_of.append(job.graph)
            inputs.append(tuple(edges))
            arrivals.append(job.arrival_s)
            homes.append(memories[int(w.home[number])])
            noise.append(scenario.work_noise[(31 * number + index) % len(scenario.work_noise)])
    at = (np.asarray(graph_of), np.asarray([index for _, index in who]))
    kernel, work = w.kernel[at], w.work[at]
    seconds = (w.time_fixed[kernel] + w.time_work[kernel] * work[:, None])[:, kinds]
    seconds = seconds * (w.units[at] * np.asarray(noise))[:, None]
    able = (w.runs_on[at][:, None] >> kinds) & 1 > 0

    route_row, route_spans = np.asarray(t.route_row)[:count], np.asarray(t.route_spans)[:count]
    bandwidth = np.full((len(owners), len(owners)), np.inf)
    latency = np.zeros((len(owners), len(owners)))
    crossed = np.zeros((len(owners), len(owners), rows + 1), np.int64)
    for i, a in enumerate(owners):
        for j, b in enumerate(owners):
            span = topology.span(topology.devices[a], topology.devices[b])
            if span == LOCAL:
                continue
            bandwidth[i, j] = min(t.span_bandwidth[a, span], t.span_bandwidth[b, span], MAX_BANDWIDTH)
            latency[i, j] = t.latency[span]
            for end in (a, b):
                here = np.zeros(rows + 1, np.int64)
                for row, spans in zip(route_row[end], route_spans[end], strict=True):
                    if spans >> span & 1:
                        here[min(row, rows)] += _load(bandwidth[i, j] / t.capacity[row])
                crossed[i, j] = np.where(crossed[i, j] > 0, crossed[i, j], here)  # the source's route counts
    demanded = np.zeros((count, rows + 1), np.int64)
    for device in range(count):
        on = able[:, device]
        if not on.any():
            continue
        for row, kind in zip(route_row[device], np.asarray(t.route_kind)[device], strict=True):
            y = kinds[device]
            demand = w.demand_fixed[kernel[on], y, kind] + work[on] * w.demand_work[kernel[on], y, kind]
            demanded[device, min(row, rows)] += int(t.slots[device]) * _load(demand.max() / t.capacity[row])
    return Instance(
        scenario=scenario,
        arrays=s,
        who=tuple(who),
        arrival_s=np.asarray(arrivals),
        workers=w.workers[at].astype(int),
        seconds=np.where(able, seconds, np.inf),
        footprint=w.footprint[at][:, kinds].astype(int),
        inputs=tuple(inputs),
        home=np.asarray(homes),
        slots=np.asarray(t.slots)[:count].astype(int),
        room=np.asarray(t.kind_memory)[kinds].astype(int),
        memory_of=memory_of,
        bandwidth=bandwidth,
        latency_s=latency,
        crossed=crossed[:, :, :rows],
        demanded=demanded[:, :rows],
    )


def _load(fraction: float) -> int:
    return round(min(float(fraction), MAX_LOAD) / LOAD_UNIT)


ONE_AT_A_TIME = "among plans that move one input at a time"


@dataclass(frozen=True)
class Subset:
    """Whether the exact model equals the simulator on an instance; if not, why not."""

    outside: tuple[str, ...]  # features that the model omits; () = none
    moves: bool  # transfers take time, over one bus
    relaxed: bool  # the omitted features only cost time, so that the bound without the bus holds for all policies

    @property
    def exact(self) -> bool:
        """Whether a proof in the model is a proof in the simulator."""
        return not self.outside

    @property
    def scope(self) -> str:
        """The class of plans in which an optimum is optimal; "" = all schedules of any policy.

        In the simulator, transfers can share a resource. A short urgent transfer that joins a long one can be faster
        than any plan without sharing.
        """
        return ONE_AT_A_TIME if self.moves else ""


def subset(i: Instance, contention: ContentionModel | None = None) -> Subset:
    """Check each condition under which the exact model equals the simulator (docs/concepts/oracle.md)."""
    s = i.scenario
    used = np.isfinite(i.seconds).any(axis=0)
    reconfigurable = [kind.name for kind in s.topology.kinds if kind.reconfigurable]
    needs_setup = [s.topology.devices[d].kind in reconfigurable for d in np.flatnonzero(used)]
    gangs = [gang for graph in s.workload.graphs for gang in graph.all_gangs]
    remote = _moves(i)
    bus = _bus(i) if remote else True
    # At most one transfer at a time beside the largest load by work.
    traffic = i.crossed.max(axis=(0, 1)) if remote else 0
    full = ((i.demanded[used].sum(axis=0) > 0) & (i.demanded[used].sum(axis=0) + traffic > FULL_LOAD)).any()
    checks = (
        (bool(s.phases), "hidden tenants load resources"),
        (bool(s.failures), "devices fail"),
        (s.disturbances.latency_s > 0, "the scheduler's decisions take time"),
        (bool((i.workers > 1).any()), "gangs have several workers"),
        (any(gang.preemptible for gang in gangs), "gangs can be preempted"),
        (any(needs_setup), "devices are reconfigured"),
        (s.job_slots < len(s.workload.jobs), "there are fewer job slots than jobs"),
        (bool(full), "work may ask for more of a resource than there is"),
        (not bus, "transfers go over several links, or at unlike speeds"),
        (remote and len(i.bandwidth) > MAX_COPIES, f"data may lie in more than {MAX_COPIES} memories"),
        (type(contention) not in (type(None), Bottleneck, Serial), "the contention model is not one of Symphony's own"),
    )
    kept = any(np.isfinite(gang.checkpoint_units) for gang in gangs) and bool(s.failures)
    relaxed = not (kept or (i.workers > 1).any() or any(gang.preemptible for gang in gangs))
    return Subset(tuple(words for outside, words in checks if outside), remote, relaxed)


def _moves(i: Instance) -> bool:
    """Whether any transfer could take time."""
    for gang, inputs in enumerate(i.inputs):
        here = set(i.memory_of[np.isfinite(i.seconds[gang])])
        for x in inputs:
            there = {i.home[gang]} if x.source < 0 else set(i.memory_of[np.isfinite(i.seconds[x.source])])
            if x.bytes > 0 and len(here | there) > 1:
                return True
    return False


def _bus(i: Instance) -> bool:
    """Whether one resource is the bottleneck of all transfers, and all sources are equally fast."""
    apart = ~np.eye(len(i.bandwidth), dtype=bool)
    shared = (i.crossed[apart] == FULL_LOAD).all(axis=0).any()
    ways = [column[np.isfinite(column)] for column in (i.bandwidth + 0 * i.latency_s).T]
    waits = [i.latency_s[apart[:, target], target] for target in range(len(apart))]
    return bool(shared and all(np.ptp(x) == 0 for x in (*ways, *waits) if len(x)))
