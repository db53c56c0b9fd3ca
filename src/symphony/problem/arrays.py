"""The array form of problems: indices, masks, padding. The only place that makes it from the human form.

Sizes are padded to buckets (`limits.bucket`), so that problems of similar size share one compiled program:

    D devices   L slots of all devices ("lanes")   R resource rows   H hops of a route
    Y device kinds   Q resource kinds   N kernels   A graphs   T gangs per graph   E edges per graph   J jobs
    G groups (machines, racks)   S rows of a group   F flows of a group

A padded hop has the index of the last row, which has infinite capacity; a padded device is never up; a padded gang has
no worker. Times that can grow large are split (whole seconds, fraction): a float32 counter of seconds loses
milliseconds after a few hours.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np

from symphony.problem import limits
from symphony.problem.flows import Flow, flows
from symphony.problem.runnable import check_feasible, critical_path_s, first_tasks, profile_on
from symphony.problem.topology import LOCAL, MACHINE, RACK, RESOURCE_KINDS, SOCKET, SPANS, SWITCH, DeviceKind, Topology
from symphony.problem.workload import Workload

KIND_INDEX = {kind: index for index, kind in enumerate(RESOURCE_KINDS)}
VOID_KIND = len(RESOURCE_KINDS)  # the resource kind of padded rows
KIB = 1024.0
NO_LIMIT = 2**30  # `kind_memory` of a kind without a stated memory
Numeric = Any  # NumPy arrays on the host, JAX arrays inside programs


class TopologyArrays(eqx.Module):
    """A cluster."""

    # devices
    device_kind: Numeric  # i32[D]
    exists: Numeric  # bool[D]
    slots: Numeric  # i32[D]
    place: Numeric  # i32[D, 5]; column LOCAL: home device; SWITCH, SOCKET, MACHINE, RACK: numbers of these
    peers: Numeric  # i32[D], -1 = no peer links
    route_row: Numeric  # i32[D, H]
    route_kind: Numeric  # i32[D, H]: kind of that row
    route_spans: Numeric  # i32[D, H]: bit s set = crossed by traffic of span s
    span_bandwidth: Numeric  # f[D, 7]: least capacity that traffic of each span meets at this end; inf = none
    # slots of all devices
    lane_device: Numeric  # i32[L]; padding points at the last device
    lane_exists: Numeric  # bool[L]
    # resource rows
    capacity: Numeric  # f[R]
    row_kind: Numeric  # i32[R]
    row_group: Numeric  # i32[R]; -1 for padding
    row_slot: Numeric  # i32[R]: its number among the rows of its group
    # machines and racks
    group_row: Numeric  # i32[G, S]; padding points at the last row
    group_device: Numeric  # i32[G, M]: devices of a machine, -1 = none
    hop_slot: Numeric  # i32[D, H]: row_slot of each row of a route; -1 for rows of another group than its machine
    flow_load: Numeric  # f[G, S, F]: load of each row of a group at level 1 of each of its flows (`problem.flows`)
    # device kinds
    kind_memory: Numeric  # i32[Y], KiB, or coarser for kinds with more than 1 TiB
    kind_reconfigure: Numeric  # f[Y], seconds; 0 = not reconfigurable
    latency: Numeric  # f[7], seconds for each span


class WorkloadArrays(eqx.Module):
    """Kernels, graphs and jobs, for the device kinds of one topology."""

    # kernels on device kinds
    time_fixed: Numeric  # f[N, Y], seconds; inf where the kind has no implementation
    time_work: Numeric  # f[N, Y]
    demand_fixed: Numeric  # f[N, Y, Q + 1], in the unit of the resource kind
    demand_work: Numeric  # f[N, Y, Q + 1]
    memory_fixed: Numeric  # f[N, Y], KiB
    memory_work: Numeric  # f[N, Y]
    exchange: Numeric  # f[N], bytes for each worker and unit
    # graphs
    gangs: Numeric  # i32[A]
    isolated: Numeric  # f[A], seconds: the critical path on best devices
    kernel: Numeric  # i32[A, T]
    work: Numeric  # f[A, T]
    units: Numeric  # f[A, T]
    workers: Numeric  # i32[A, T]
    runs_on: Numeric  # i32[A, T]: bit y set = device kind y can run it
    footprint: Numeric  # i32[A, T, Y], of a worker on each device kind, in the unit of `kind_memory`
    preemptible: Numeric  # bool[A, T]
    checkpoint: Numeric  # f[A, T], seconds
    restore: Numeric  # f[A, T], seconds
    checkpoint_units: Numeric  # f[A, T]
    rank: Numeric  # f[A, T], seconds: upward rank (mean over devices)
    urgency: Numeric  # f[A, T]: the application's priorities, or the upward rank in graphs without any
    parents: Numeric  # i32[A, T]: gangs to wait for
    in_start: Numeric  # i32[A, T + 1]
    in_source: Numeric  # i32[A, E]: gang, or -1 for the home machine
    in_bytes: Numeric  # f[A, E]
    out_start: Numeric  # i32[A, T + 1]
    out_target: Numeric  # i32[A, E]
    # jobs, in order of arrival
    jobs: Numeric  # i32[]
    arrival_whole: Numeric  # i32[J]
    arrival_part: Numeric  # f[J]
    graph: Numeric  # i32[J]
    priority: Numeric  # i32[J]
    home: Numeric  # i32[J]: the device whose memory holds the job's inputs
    # bounds of this bucket
    max_workers: int = eqx.field(static=True)
    fan: int = eqx.field(static=True)  # edges processed in one step


def _pad(values: list | np.ndarray, shape: tuple[int, ...], fill: float, dtype: type) -> np.ndarray:
    out: np.ndarray = np.full(shape, fill, dtype)
    array: np.ndarray = np.asarray(values, dtype)
    if array.size:
        out[tuple(slice(0, n) for n in array.shape)] = array
    return out


def _numbers(keys: list) -> list[int]:
    """The number of each key, in order of first appearance."""
    index: dict = {}
    return [index.setdefault(key, len(index)) for key in keys]


def memory_units(amount: float, kind: DeviceKind) -> int:
    """Bytes in the unit of `kind_memory`: KiB or, for a kind with more than 1 TiB, coarser, so that 32 bits suffice.

    Footprint and memory are both rounded down, so that a footprint that fits exactly still does.
    """
    if not np.isfinite(kind.memory):
        return NO_LIMIT
    return int(min(amount, kind.memory * 2) // max(KIB, kind.memory / NO_LIMIT))


def split_seconds(seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    whole = np.floor(seconds)
    return whole.astype(np.int32), (seconds - whole).astype(float)


def topology_arrays(topology: Topology) -> TopologyArrays:
    """The array form of a topology. Devices, kinds and rows keep their order; groups are numbered as they occur."""
    t = topology
    kind_of = {kind.name: index for index, kind in enumerate(t.kinds)}
    row_of = {resource.name: index for index, resource in enumerate(t.resources)}
    device_of = {device.name: index for index, device in enumerate(t.devices)}
    d, y = limits.bucket(len(t.devices)), limits.bucket(len(t.kinds))
    r = limits.bucket(len(t.resources) + 1)  # one more, for padded hops
    h = limits.bucket(max((len(device.route) for device in t.devices), default=1) or 1)
    capacity = _pad([resource.capacity for resource in t.resources], (r,), np.inf, float)
    row_kind = _pad([KIND_INDEX[resource.kind] for resource in t.resources], (r,), VOID_KIND, np.int32)
    groups = _numbers([resource.group for resource in t.resources])
    row_slot = _slots(groups)
    group_row, flow_load = _flow_arrays(t, groups, row_slot, r)

    route_row = np.full((d, h), r - 1, np.int32)
    route_spans = np.zeros((d, h), np.int32)
    for index, device in enumerate(t.devices):
        for k, hop in enumerate(device.route):
            route_row[index, k] = row_of[hop.resource]
            route_spans[index, k] = sum(1 << span for span in hop.spans)
    device_group = {resource.group: group for resource, group in zip(t.resources, groups, strict=True)}
    hop_slot = np.full((d, h), -1, np.int32)
    for index, device in enumerate(t.devices):
        for k, hop in enumerate(device.route):
            row = row_of[hop.resource]
            if t.resources[row].group == device.machine:
                hop_slot[index, k] = row_slot[row]
    crossed = (route_spans[:, :, None] >> np.arange(len(SPANS))) & 1 > 0
    span_bandwidth = np.where(crossed, capacity[route_row][:, :, None], np.inf).min(axis=1)

    place = np.zeros((d, 5), np.int32)
    place[: len(t.devices), LOCAL] = [device_of[device.home or device.name] for device in t.devices]
    # A socket's key includes its machine, so that equal names on two machines are two sockets.
    levels: tuple[list, ...] = (
        [(x.rack, x.machine, x.socket, x.switch) for x in t.devices],
        [(x.rack, x.machine, x.socket) for x in t.devices],
        [(x.rack, x.machine) for x in t.devices],
        [(x.rack,) for x in t.devices],
    )
    for column, keys in zip((SWITCH, SOCKET, MACHINE, RACK), levels, strict=True):
        place[: len(t.devices), column] = _numbers(keys)
    peers = np.full(d, -1, np.int32)
    linked = [index for index, device in enumerate(t.devices) if device.peers]
    peers[linked] = _numbers([t.devices[index].peers for index in linked])

    slots = _pad([t.kind_of[device.kind].slots for device in t.devices], (d,), 0, np.int32)
    lane_device = np.repeat(np.arange(d), slots)
    lanes = limits.bucket(len(lane_device))
    return TopologyArrays(
        device_kind=_pad([kind_of[device.kind] for device in t.devices], (d,), 0, np.int32),
        exists=np.arange(d) < len(t.devices),
        slots=slots,
        place=place,
        peers=peers,
        route_row=route_row,
        route_kind=row_kind[route_row],
        route_spans=route_spans,
        span_bandwidth=span_bandwidth,
        lane_device=_pad(lane_device, (lanes,), d - 1, np.int32),
        lane_exists=np.arange(lanes) < len(lane_device),
        capacity=capacity,
        row_kind=row_kind,
        row_group=_pad(groups, (r,), -1, np.int32),
        row_slot=_pad(row_slot, (r,), 0, np.int32),
        group_row=group_row,
        group_device=_members([device_group.get(device.machine, -1) for device in t.devices], group_row.shape[0]),
        hop_slot=hop_slot,
        flow_load=flow_load,
        kind_memory=_pad([memory_units(kind.memory, kind) for kind in t.kinds], (y,), 0, np.int32),
        kind_reconfigure=_pad([kind.reconfigure_s for kind in t.kinds], (y,), 0.0, float),
        latency=np.asarray(t.latency_s, float),
    )


def _slots(groups: list[int]) -> list[int]:
    """The number of each row among the rows of its group."""
    seen: dict[int, int] = {}
    numbers = []
    for group in groups:
        numbers.append(seen.get(group, 0))
        seen[group] = numbers[-1] + 1
    return numbers


def _members(group_of: list[int], groups: int) -> np.ndarray:
    """The devices of each group i32[G, M], -1 = none."""
    members = [[device for device, of in enumerate(group_of) if of == group] for group in range(groups)]
    return (
        _pad([], (groups, 1), -1, np.int32)
        if not any(members)
        else np.stack([_pad(some, (limits.bucket(max(map(len, members))),), -1, np.int32) for some in members])
    )


def _flow_arrays(t: Topology, groups: list[int], slots: list[int], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of each group [G, S], and loads of these rows by the group's flows [G, S, F]."""
    of_group: dict[str, list[Flow]] = {}
    for flow in flows(t):
        of_group.setdefault(flow.group, []).append(flow)
    g, s = limits.bucket(len(set(groups))), limits.bucket(max(slots, default=0) + 1)
    group_row = np.full((g, s), rows - 1, np.int32)
    flow_load = np.zeros((g, s, limits.bucket(max(map(len, of_group.values()), default=1))))
    slot_of = {}
    for row, (resource, group, slot) in enumerate(zip(t.resources, groups, slots, strict=True)):
        group_row[group, slot] = row
        slot_of[resource.name] = group, slot
    for of_one in of_group.values():
        for number, flow in enumerate(of_one):
            for name, load in flow.weights:
                flow_load[(*slot_of[name], number)] += load
    return group_row, flow_load


def workload_arrays(topology: Topology, workload: Workload) -> WorkloadArrays:
    """The array form of a workload on a topology. Refuses gangs that can never run there."""
    w = workload
    check_feasible(topology, w)
    kernels = {kernel.name: kernel for kernel in w.kernels}
    y, q, n = limits.bucket(len(topology.kinds)), VOID_KIND + 1, limits.bucket(len(w.kernels))
    shape = (n, y)
    time_fixed, time_work = np.full(shape, np.inf), np.zeros(shape)
    demand_fixed, demand_work = np.zeros((n, y, q)), np.zeros((n, y, q))
    memory_fixed, memory_work = np.zeros(shape), np.zeros(shape)
    for i, kernel in enumerate(w.kernels):
        for k, kind in enumerate(topology.kinds):
            profile = kernel.on(kind)
            if profile is None:
                continue
            time_fixed[i, k], time_work[i, k] = profile.fixed_s, profile.per_work_s
            memory_fixed[i, k], memory_work[i, k] = profile.memory / KIB, profile.memory_per_work / KIB
            for resource, amount in profile.demand.items():
                demand_fixed[i, k, KIND_INDEX[resource]] = amount
            for resource, amount in profile.demand_per_work.items():
                demand_work[i, k, KIND_INDEX[resource]] = amount

    a = limits.bucket(len(w.graphs))
    t = limits.bucket(max(len(graph.all_gangs) for graph in w.graphs))
    e = limits.bucket(max(1, *(len(graph.gang_edges) for graph in w.graphs)))
    count = np.asarray([topology.kind_counts[kind.name] for kind in topology.kinds])
    bandwidth = _typical_bandwidth(topology)
    g: dict[str, np.ndarray] = {
        "kernel": np.zeros((a, t), np.int32),
        "work": np.zeros((a, t)),
        "units": np.ones((a, t)),
        "workers": np.zeros((a, t), np.int32),
        "runs_on": np.zeros((a, t), np.int32),
        "footprint": np.zeros((a, t, y), np.int32),
        "preemptible": np.zeros((a, t), bool),
        "checkpoint": np.zeros((a, t)),
        "restore": np.zeros((a, t)),
        "checkpoint_units": np.full((a, t), np.inf),
        "rank": np.zeros((a, t)),
        "urgency": np.zeros((a, t)),
        "parents": np.zeros((a, t), np.int32),
        "in_start": np.zeros((a, t + 1), np.int32),
        "in_source": np.full((a, e), -1, np.int32),
        "in_bytes": np.zeros((a, e)),
        "out_start": np.zeros((a, t + 1), np.int32),
        "out_target": np.zeros((a, e), np.int32),
    }
    gangs = np.zeros(a, np.int32)
    isolated = np.ones(a)
    for i, graph in enumerate(w.graphs):
        gangs[i] = len(graph.all_gangs)
        mean = np.zeros(len(graph.all_gangs))
        for j, (gang, task) in enumerate(first_tasks(graph)):
            index = w.kernel_index[task.kernel]
            work = w.kernels[index].work(task.size)
            seconds = (time_fixed[index] + time_work[index] * work)[: len(count)] * task.units
            able = np.asarray([profile_on(w.kernels[index], kind, task.size) is not None for kind in topology.kinds])
            g["kernel"][i, j], g["work"][i, j], g["units"][i, j] = index, work, task.units
            g["workers"][i, j] = len(gang.tasks)
            needs = memory_fixed[index] + memory_work[index] * work
            for k, kind in enumerate(topology.kinds):
                g["footprint"][i, j, k] = memory_units(needs[k] * KIB, kind) if np.isfinite(kind.memory) else 0
            g["runs_on"][i, j] = sum(1 << k for k in np.flatnonzero(able))
            g["preemptible"][i, j] = gang.preemptible
            g["checkpoint"][i, j], g["restore"][i, j] = gang.checkpoint_s, gang.restore_s
            g["checkpoint_units"][i, j] = gang.checkpoint_units
            g["urgency"][i, j] = task.priority
            mean[j] = np.average(seconds[able], weights=count[able])
        ins = graph.gang_edges  # sorted by target
        outs = sorted((s, target) for s, target, _ in ins if s >= 0)
        g["in_source"][i, : len(ins)] = [s for s, _, _ in ins]
        g["in_bytes"][i, : len(ins)] = [size for _, _, size in ins]
        g["out_target"][i, : len(outs)] = [target for _, target in outs]
        g["in_start"][i] = np.searchsorted([target for _, target, _ in ins], np.arange(t + 1))
        g["out_start"][i] = np.searchsorted([s for s, _ in outs], np.arange(t + 1))
        g["parents"][i, : gangs[i]] = np.bincount([target for _, target in outs], minlength=gangs[i])[: gangs[i]]
        rank = g["rank"][i]
        for j in reversed(graph.order):
            rank[j] += mean[j]
            for k in range(g["in_start"][i, j], g["in_start"][i, j + 1]):
                s = g["in_source"][i, k]
                if s >= 0:
                    rank[s] = max(rank[s], rank[j] + g["in_bytes"][i, k] / bandwidth)
        if not g["urgency"][i].any():
            g["urgency"][i] = rank
        isolated[i] = critical_path_s(topology, kernels, graph)

    machine_home = _machine_homes(topology)
    whole, part = split_seconds(np.asarray([job.arrival_s for job in w.jobs]))
    j = limits.bucket(len(w.jobs))
    degree = max(int(np.diff(g["in_start"]).max()), int(np.diff(g["out_start"]).max()), 1)
    return WorkloadArrays(
        time_fixed=time_fixed,
        time_work=time_work,
        demand_fixed=demand_fixed,
        demand_work=demand_work,
        memory_fixed=memory_fixed,
        memory_work=memory_work,
        exchange=_pad([kernel.exchange_bytes for kernel in w.kernels], (n,), 0.0, float),
        gangs=gangs,
        isolated=isolated,
        **g,
        jobs=np.int32(len(w.jobs)),
        arrival_whole=_pad(whole, (j,), np.iinfo(np.int32).max, np.int32),
        arrival_part=_pad(part, (j,), 0.0, float),
        graph=_pad([job.graph for job in w.jobs], (j,), 0, np.int32),
        priority=_pad([job.priority for job in w.jobs], (j,), 0, np.int32),
        home=_pad([machine_home[job.home % len(machine_home)] for job in w.jobs], (j,), 0, np.int32),
        max_workers=limits.bucket(int(g["workers"].max())),
        fan=min(limits.bucket(degree), 4),
    )


def _machine_homes(topology: Topology) -> list[int]:
    """For each machine, the index of the device whose memory holds inputs: the home of its first device."""
    device_of = {device.name: index for index, device in enumerate(topology.devices)}
    homes: dict[str, int] = {}
    for device in topology.devices:
        homes.setdefault(device.machine, device_of[device.home or device.name])
    return list(homes.values())


def _typical_bandwidth(topology: Topology) -> float:
    """Bytes/s of a transfer, as the median over rows; used for upward ranks only."""
    rows = [x.capacity for x in topology.resources if x.kind in ("link", "switch", "nic", "memory", "peer")]
    return float(np.median(rows)) if rows else 10e9
