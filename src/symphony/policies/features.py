"""Features of the learned policy: of rows, devices, gangs and pairs, independent of units and of names.

Times are relative to the typical time of a gang, mostly as logarithms, and kernels appear only through their profiles.
So the features of a faster cluster, a workload a thousand times longer or a new kernel are in the same range.

A decision considers a shortlist of candidate gangs, and for each the devices (`choices`) on which it would finish
first. Gangs further from the critical path of their job, and jobs with more work left, are considered later. If a gang
is overdue (`scheduling/holding.py`: it could start now, and may not be held any longer), one such gang is always a
candidate, and only placements are allowed. Further actions (`others`) place nothing: preempt one of the running gangs
with the most work left, or configure a free slot for one of the most critical gangs that will soon be ready.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import IntEnum
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Num

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.objective import MEAN_ONLY
from symphony.scheduling.estimate import (
    EstimateParts,
    SomeDevices,
    engine_s,
    estimate_parts,
    harm,
    holders,
    slowdown,
)
from symphony.scheduling.graph_tables import (
    DataEdges,
    data_edges,
    fixed_point,
    gang_rows,
    gang_seconds,
    max_over_edges,
    reading_gangs,
    seconds_per_byte,
    sum_over_edges,
)
from symphony.scheduling.guard import first_in_queue, overdue_jobs, queue_order, trusted
from symphony.scheduling.holding import holding
from symphony.scheduling.indexing import BoolScalar, FloatScalar, IntScalar, first, first_min, namespace, smallest, take
from symphony.scheduling.policy import Observation, by_device, idle_devices, movable
from symphony.scheduling.state import (
    ABSENT,
    DONE,
    FINISHED,
    FREE,
    PLACING,
    QUEUED,
    READY,
    RUNNING,
    UNCONFIGURED,
    WAITING,
)

MAX_DEVICES_PER_GANG = 64  # evaluated in detail for a gang; in larger clusters a cheap estimate selects as many
MAX_LOG = 8.0  # logarithms are clipped to it

# Columns of the features. Saved weights depend on their order.
RowColumn = IntEnum("RowColumn", "OWN_LOAD BACKGROUND BACKGROUND_STD", start=0)
DeviceColumn = IntEnum(
    "DeviceColumn",
    "QUEUE RUNNING FETCH_ENGINE READY_WORK FREE_SLOTS QUEUED SLOTS FREE_MEMORY IDLE UP RECONFIGURATION SLOWER_KIND",
    start=0,
)
GangColumn = IntEnum(
    "GangColumn",
    "REMAINING CRITICAL ISOLATED NEXT_KIND TAIL JOB_WORK AGE SLOWDOWN SHORTER_JOBS READY UNFINISHED INPUTS WORKERS "
    "PLACED RESUMED PREEMPTIBLE WAITING_FOR CHILDREN",
    start=0,
)
PairColumn = IntEnum(
    "PairColumn",
    "REGRET DELAY FINISH QUEUE FETCH SETUP ISOLATED SLOWER_DEVICE SLOWDOWN UNCERTAINTY HARM EXCHANGE IDLE",
    start=0,
)
OtherColumn = IntEnum("OtherColumn", "PREEMPTS WORK_LEFT COST FREE_SLOTS", start=0)
SceneColumn = IntEnum("SceneColumn", "JOBS READY BUSY WORK PATH IDLE BACKGROUND BACKGROUND_STD", start=0)
NodeColumn = IntEnum(
    "NodeColumn",
    "ISOLATED NEXT_KIND TAIL HEAD CRITICAL PARENTS CHILDREN INPUTS WORKERS PREEMPTIBLE",
    start=0,
)
Column = TypeVar("Column", bound=IntEnum)


def stack_columns(columns: Mapping[Column, Array]) -> Float[Array, "*shape columns"]:
    """Features as one array, with the columns of an enumeration along the last axis."""
    (kind,) = {type(column) for column in columns}
    found = [columns[column] for column in kind]
    return namespace(*found).stack(found, axis=-1)


class GraphTables(eqx.Module):
    """Properties of the graphs, computed before the first decision."""

    scale: FloatScalar  # typical isolated seconds of a gang
    best: Float[Array, "graphs tasks"]  # isolated seconds on the fastest kind
    fastest: Int[Array, "graphs tasks"]  # that kind
    speed: Float[Array, " kinds"]  # log of the time on each kind over that on the fastest, mean over gangs
    choice: Float[Array, "graphs tasks"]  # log of the time on the second fastest kind over that on the fastest
    tail: Float[Array, "graphs tasks"]  # seconds from the gang's start to the end of its graph, on fastest kinds
    bytes_s: Float[Array, "graphs tasks"]  # seconds to transfer its inputs over a link of median bandwidth
    share_s: Float[Array, "graphs tasks"]  # seconds on all slots together
    links: DataEdges
    nodes: Float[Array, "graphs tasks node_columns"]


class Candidates(eqx.Module):
    """Candidate gangs of a decision. Leading axes may be decisions."""

    number: Int[Array, "*batch candidates"]  # -1 = none
    graph: Int[Array, "*batch candidates"]
    task: Int[Array, "*batch candidates"]  # index in the graph
    features: Float[Array, "*batch candidates gang_columns"]

    @property
    def there(self) -> Bool[Array, "*batch candidates"]:
        """Mask of the entries that are gangs, not padding."""
        return self.number >= 0


class OtherActions(eqx.Module):
    """Actions that place nothing: first preemptions, then reconfigurations."""

    gangs: Candidates  # to be preempted; to be configured for
    device: Int[Array, "*batch others"]  # that runs it; to be configured
    kernel: Int[Array, "*batch others"]  # of the gang
    saves: Bool[Array, "*batch others"]  # it is a preemption
    features: Float[Array, "*batch others other_columns"]
    allowed: Bool[Array, "*batch others"]  # action mask


class Features(eqx.Module):
    """The input of the network for one decision. Leading axes may be decisions."""

    rows: Float[Array, "*batch rows row_columns"]
    devices: Float[Array, "*batch devices device_columns"]
    gangs: Candidates
    pairs: Float[Array, "*batch candidates choices pair_columns"]
    device: Int[Array, "*batch candidates choices"]
    allowed: Bool[Array, "*batch candidates choices"]  # action mask
    order: Int[Array, "*batch candidates"]  # in queues: see `scheduling.guard`
    other_actions: OtherActions
    scene: Float[Array, "*batch scene_columns"]  # of the whole system
    may_wait: Bool[Array, "*batch"]
    wait_s: Float[Array, "*batch"]  # longest wait
    objective: Float[Array, "*batch objectives"]  # weights: see `problem.objective`

    def perturbed(self, jacobian: FeatureJacobian, factors: Float[Array, " factors"]) -> Features:
        """The features after a change of the filter's factors, to first order."""
        batch = self.scene.ndim - 1

        def moved(name: str) -> Array:
            value = getattr(self, name)
            step = factors.reshape(-1, *[1] * (value.ndim - batch))
            return value + (getattr(jacobian, name) * step).sum(batch)

        return replace(self, rows=moved("rows"), pairs=moved("pairs"), scene=moved("scene"))


class FeatureJacobian(eqx.Module):
    """Derivative of the features by the filter's factors."""

    rows: Float[Array, "*batch factors rows row_columns"]
    pairs: Float[Array, "*batch factors candidates choices pair_columns"]
    scene: Float[Array, "*batch factors scene_columns"]


def graph_tables(t: TopologyArrays, w: WorkloadArrays, xp: Any = jnp) -> GraphTables:
    """`xp`: numpy outside of compiled programs, for NumPy arrays."""
    tasks = w.kernel.shape[1]
    seconds = gang_seconds(t, w, xp)
    there = xp.arange(tasks) < xp.asarray(w.gangs)[:, None]
    two = xp.sort(seconds, axis=-1)[..., :2]
    best = xp.where(there & xp.isfinite(two[..., 0]), two[..., 0], 0)
    choice = xp.clip(xp.log(two[..., -1] / xp.maximum(best, 1e-12)), 0, MAX_LOG)
    scale = best.sum() / xp.maximum(there.sum(), 1)
    behind = xp.clip(xp.log(seconds / xp.maximum(best, 1e-12)[..., None]), 0, MAX_LOG)
    able = xp.isfinite(seconds) & there[..., None]
    speed = xp.where(able, behind, 0).sum(axis=(0, 1)) / xp.maximum(able.sum(axis=(0, 1)), 1)
    edges = data_edges(t, w, xp)

    def upward(tail: Array) -> Array:
        return best + max_over_edges(edges.source, gang_rows(tail, edges.target) + edges.seconds, tasks)

    def downward(head: Array) -> Array:
        return max_over_edges(edges.target, gang_rows(head + best, edges.source) + edges.seconds, tasks)

    tail, head = fixed_point(upward, best, tasks), fixed_point(downward, xp.zeros_like(best), tasks)
    children = xp.diff(xp.asarray(w.out_start))
    size = sum_over_edges(reading_gangs(w, xp), xp.asarray(w.in_bytes), tasks)
    bytes_s = size * seconds_per_byte(t, xp)
    nodes = stack_columns(
        {
            NodeColumn.ISOLATED: log_time(best, scale),
            NodeColumn.NEXT_KIND: choice / MAX_LOG,
            NodeColumn.TAIL: log_time(tail, scale),
            NodeColumn.HEAD: log_time(head, scale),
            NodeColumn.CRITICAL: tail / xp.maximum(tail.max(axis=1, keepdims=True), 1e-12),
            NodeColumn.PARENTS: xp.log1p(w.parents),
            NodeColumn.CHILDREN: xp.log1p(children),
            NodeColumn.INPUTS: log1p_time(bytes_s, scale),
            NodeColumn.WORKERS: xp.log(xp.maximum(w.workers, 1)),
            NodeColumn.PREEMPTIBLE: 1.0 * w.preemptible,
        }
    )
    return GraphTables(
        scale=scale,
        best=best,
        fastest=first(seconds == two[..., :1]),
        speed=speed,
        choice=choice,
        tail=tail,
        bytes_s=bytes_s,
        share_s=seconds_together(t, w, seconds, xp),
        links=edges,
        nodes=xp.where(there[..., None], nodes, 0),
    )


def seconds_together(
    t: TopologyArrays, w: WorkloadArrays, seconds: Float[Array, "graphs tasks kinds"], xp: Any = jnp
) -> Float[Array, "graphs tasks"]:
    """Seconds that each gang would take if all slots shared it, each kind at its own speed."""
    slots = xp.where(t.device_kind == xp.arange(seconds.shape[-1])[:, None], xp.where(t.exists, t.slots, 0), 0)
    speed = (slots.sum(axis=1) / xp.maximum(seconds, 1e-12)).sum(axis=-1)  # 0 for padding
    return xp.where(speed > 0, w.workers / xp.maximum(speed, 1e-12), 0)


def log_time(seconds: Float[Array, "*shape"], scale: FloatScalar) -> Float[Array, "*shape"]:
    """Logarithm of a time relative to `scale`, for times above 0."""
    xp = namespace(seconds, scale)
    return xp.clip(xp.log(xp.maximum(seconds, 1e-12) / scale), -MAX_LOG, MAX_LOG)


def log1p_time(seconds: Num[Array, "*shape"], scale: FloatScalar) -> Float[Array, "*shape"]:
    """`log(1 + time / scale)`, for times that may be 0."""
    xp = namespace(seconds, scale)
    return xp.minimum(xp.log1p(xp.maximum(seconds, 0) / scale), MAX_LOG)


class JobFeatures(eqx.Module):
    """Remaining work of the jobs in the system."""

    there: Bool[Array, " jobs"]  # the slot holds a job
    left_s: Float[Array, " jobs"]  # isolated seconds of all unfinished gangs
    path_s: Float[Array, " jobs"]  # the longest path through them
    need_s: Float[Array, " jobs"]  # the longer of that path, and all of them on all slots together
    age_s: Float[Array, " jobs"]
    ready: Int[Array, " jobs"]  # number of ready gangs
    unfinished: Int[Array, " jobs"]  # number of unfinished gangs


def job_features(observation: Observation, g: GraphTables) -> JobFeatures:
    core = observation.core
    status = core.status.reshape(core.job.shape[0], -1)
    open_ = (status != ABSENT) & (status != DONE) & (status != FINISHED)
    there = core.job >= 0
    graph = core.graph
    path_s = jnp.where(open_, g.tail[graph], 0).max(axis=1)
    return JobFeatures(
        there=there,
        left_s=jnp.where(open_, g.best[graph], 0).sum(axis=1),
        path_s=path_s,
        need_s=jnp.maximum(path_s, jnp.where(open_, g.share_s[graph], 0).sum(axis=1)),
        age_s=jnp.where(there, observation.now.minus(core.arrived), 0),
        ready=((status == READY) | (status == PLACING)).sum(axis=1),
        unfinished=core.unfinished,
    )


def shortlist(
    observation: Observation, g: GraphTables, j: JobFeatures, count: int, overdue: Bool[Array, " gangs"]
) -> Int[Array, " candidates"]:
    """Candidate gangs, -1 = none: of the highest priority, each job's most critical first, shortest job first.

    If any gangs are `overdue` and none is among the first, the last candidate is one of these.
    """
    core = observation.core
    allowed = observation.candidates.reshape(core.job.shape[0], -1)
    allowed &= (core.priority == jnp.where(allowed.any(axis=1), core.priority, -(2**31)).max())[:, None]
    slow = (j.age_s + j.path_s) / take(observation.workload.isolated, core.graph)
    late = allowed & overdue_jobs(j.there, slow)[:, None]
    allowed = jnp.where(late.any(), late, allowed)
    overdue &= allowed.reshape(-1)
    tail = jnp.where(allowed, g.tail[core.graph], 0)
    behind = 1 - tail / jnp.maximum(tail.max(axis=1, keepdims=True), 1e-12)  # 0 for a job's most critical gang
    short = j.path_s / (j.path_s + g.scale)  # below 1, and less for shorter jobs
    key = jnp.where(allowed, behind + 0.5 * short[:, None], jnp.inf).reshape(-1)
    chosen = smallest(key, count)
    least, urgent = first_min(jnp.where(overdue, key, jnp.inf))
    missing = jnp.isfinite(least) & ~(take(overdue, chosen) & (chosen >= 0)).any()
    return chosen.at[-1].set(jnp.where(missing, urgent, chosen[-1]))


def candidate_features(
    observation: Observation, g: GraphTables, j: JobFeatures, gang: Int[Array, " candidates"]
) -> Candidates:
    core, w = observation.core, observation.workload
    tasks = w.kernel.shape[1]
    slot, index = gang // tasks, gang % tasks
    graph = take(core.graph, slot)

    def of(table: Array) -> Array:
        return jnp.asarray(table)[graph, index]

    best, tail = of(g.best), of(g.tail)
    left, path, age = take(j.left_s, slot), take(j.path_s, slot), take(j.age_s, slot)
    isolated = jnp.asarray(w.isolated)[graph]
    there = gang >= 0
    shorter = ((path[:, None] > path) & there).sum(axis=1) / jnp.maximum(there.sum(), 1)
    children = jnp.asarray(w.out_start)[graph, index + 1] - jnp.asarray(w.out_start)[graph, index]
    columns = {
        GangColumn.REMAINING: log_time(path, g.scale),
        GangColumn.CRITICAL: tail / jnp.maximum(path, 1e-12),
        GangColumn.ISOLATED: log_time(best, g.scale),
        GangColumn.NEXT_KIND: of(g.choice) / MAX_LOG,
        GangColumn.TAIL: log_time(tail, g.scale),
        GangColumn.JOB_WORK: log_time(left, g.scale),
        GangColumn.AGE: log1p_time(age, g.scale),
        GangColumn.SLOWDOWN: jnp.clip(jnp.log(jnp.maximum(age + path, 1e-12) / isolated), -MAX_LOG, MAX_LOG),
        GangColumn.SHORTER_JOBS: shorter,
        GangColumn.READY: jnp.log1p(take(j.ready, slot)),
        GangColumn.UNFINISHED: jnp.log1p(take(j.unfinished, slot)),
        GangColumn.INPUTS: log1p_time(jnp.where(take(core.inputs_left, gang) > 0, of(g.bytes_s), 0), g.scale),
        GangColumn.WORKERS: jnp.log(jnp.maximum(take(core.workers, gang), 1)),
        GangColumn.PLACED: take(core.placed, gang) / jnp.maximum(take(core.workers, gang), 1),
        GangColumn.RESUMED: 1.0 * take(core.resumed, gang),
        GangColumn.PREEMPTIBLE: 1.0 * of(w.preemptible),
        GangColumn.WAITING_FOR: log1p_time(take(core.waiting_for, gang), jnp.ones(())),
        GangColumn.CHILDREN: jnp.log1p(children),
    }
    return Candidates(gang, graph, index, jnp.where(there[:, None], stack_columns(columns), 0))


def device_features(
    observation: Observation, g: GraphTables, engine: Float[Array, " devices"]
) -> Float[Array, "devices device_columns"]:
    core, t = observation.core, observation.topology
    slots = jnp.maximum(t.slots, 1)
    memory = take(t.kind_memory, t.device_kind)
    kinds = jnp.arange(t.kind_memory.shape[0])
    # Ready work whose fastest kind this is, for each slot of the kind.
    ready_s = jnp.where(core.status == READY, observation.per_gang(g.best), 0)
    there = observation.per_gang(g.fastest)[:, None] == kinds
    lanes = jnp.where((t.device_kind[:, None] == kinds) & core.up[:, None], t.slots[:, None], 0).sum(axis=0)
    asked = jnp.where(there, ready_s[:, None], 0).sum(axis=0) / jnp.maximum(lanes, 1)
    columns = {
        DeviceColumn.QUEUE: log1p_time(observation.queue_s, g.scale),
        DeviceColumn.RUNNING: log1p_time(observation.running_s / slots, g.scale),
        DeviceColumn.FETCH_ENGINE: log1p_time(engine, g.scale),
        DeviceColumn.READY_WORK: log1p_time(take(asked, t.device_kind), g.scale),
        DeviceColumn.FREE_SLOTS: core.lanes_free / slots,
        DeviceColumn.QUEUED: jnp.log1p(core.queued / slots),
        DeviceColumn.SLOTS: jnp.log(slots),
        DeviceColumn.FREE_MEMORY: core.memory_free / jnp.maximum(memory, 1),
        DeviceColumn.IDLE: 1.0 * idle_devices(observation),
        DeviceColumn.UP: 1.0 * core.up,
        DeviceColumn.RECONFIGURATION: log1p_time(take(t.kind_reconfigure, t.device_kind), g.scale),
        DeviceColumn.SLOWER_KIND: take(g.speed, t.device_kind),
    }
    return jnp.where(core.up[:, None], stack_columns(columns), 0)


def likely_devices(
    observation: Observation, gang: IntScalar, able: Bool[Array, " devices"], count: int
) -> Int[Array, " some"]:
    """Devices where a gang may finish early, and those that hold its inputs, -1 = none: by a cheap estimate.

    It ignores transfers, and applies the load of the busiest row of a device to everything that runs there.
    """
    t = observation.topology
    load = jnp.where(t.row_group >= 0, observation.own_load + observation.background, 0)
    slow = jnp.maximum(take(load, t.route_row).max(axis=1), 1)
    finish = jnp.maximum(observation.queue_s, engine_s(observation)) + observation.seconds(gang) * slow
    at = holders(observation, gang)
    finish = finish.at[jnp.where(at >= 0, at, finish.shape[0])].set(0, mode="drop")
    return smallest(jnp.where(able, finish, jnp.inf), count)


def trained_parts(
    observation: Observation, gang: IntScalar, background: Float[Array, " rows"], devices: SomeDevices = None
) -> EstimateParts:
    """The estimate that the weights were trained with: the queue in isolated seconds, the load taken as known."""
    parts = estimate_parts(observation, gang, background, devices=devices)
    queue = observation.queue_s if devices is None else take(observation.queue_s, devices)
    return replace(parts, queue=queue, queue_std=jnp.zeros(queue.shape))


def pair_features(
    observation: Observation, g: GraphTables, gang: Int[Array, " candidates"], count: int, work_s: FloatScalar
) -> tuple[
    Int[Array, "candidates choices"], Bool[Array, "candidates choices"], Float[Array, "candidates choices pair_columns"]
]:
    """For each gang, the devices with the earliest finish times, the action mask, and the features of the pairs.

    `work_s`: seconds that all work in the system would take on all slots.
    """
    mean, std = observation.background, observation.background_std
    evaluated = max(MAX_DEVICES_PER_GANG, count)
    every_device = observation.core.up.shape[0] <= evaluated

    def of(gang: IntScalar) -> tuple[Array, Array, Array]:
        able = observation.feasible(gang)
        some = None if every_device else likely_devices(observation, gang, able, evaluated)
        p = trained_parts(observation, gang, mean, some)
        able = able if some is None else (some >= 0) & take(able, some)
        able = trusted(observation, gang, able, work_s, some)
        at = smallest(jnp.where(able, p.finish, jnp.inf), count)
        p = jax.tree.map(lambda x: take(x, at), p)
        device = at if some is None else jnp.where(at >= 0, take(some, at), -1)
        finish = jnp.where(at >= 0, p.finish, jnp.inf)
        allowed = jnp.isfinite(finish) & (gang >= 0)
        finish = jnp.where(allowed, finish, 0)
        least = jnp.where(allowed, finish, jnp.inf).min()
        slow_high = slowdown(observation, gang, mean + std, devices=device).mean
        isolated = jnp.where(allowed, p.run, jnp.inf)
        columns = {
            PairColumn.REGRET: jnp.log1p(jnp.maximum(finish / jnp.maximum(least, 1e-12) - 1, 0)),
            PairColumn.DELAY: log1p_time(finish - least, g.scale),
            PairColumn.FINISH: log_time(finish, g.scale),
            PairColumn.QUEUE: log1p_time(p.queue, g.scale),
            PairColumn.FETCH: log1p_time(p.fetch, g.scale),
            PairColumn.SETUP: log1p_time(p.setup, g.scale),
            PairColumn.ISOLATED: log_time(isolated, g.scale),
            PairColumn.SLOWER_DEVICE: jnp.log(isolated / isolated.min()),
            PairColumn.SLOWDOWN: jnp.log(p.slow),
            PairColumn.UNCERTAINTY: jnp.log(slow_high / p.slow),
            PairColumn.HARM: log1p_time(harm(observation, gang, mean, device), jnp.ones(())),
            PairColumn.EXCHANGE: log1p_time(p.exchange, g.scale),
            PairColumn.IDLE: 1.0 * take(idle_devices(observation), device),
        }
        return device, allowed, jnp.where(allowed[:, None], stack_columns(columns), 0)

    return jax.vmap(of)(gang)


def worth_saving(observation: Observation) -> Bool[Array, " gangs"]:
    """Running gangs that have run for longer than it takes to save and restore them.

    So at least half of a device's time is work, however often a policy preempts.
    """
    core, w = observation.core, observation.workload
    ran = observation.now.minus(core.lane_since.take(core.lane[:, 0]))
    restore = observation.per_gang(w.restore)
    return ran > observation.per_gang(w.checkpoint) + restore * (1 + core.resumed)


def preemptible_gangs(
    observation: Observation, g: GraphTables, count: int
) -> tuple[Int[Array, " preempts"], Float[Array, " preempts"]]:
    """Running gangs that may be preempted, the most work left first, and the seconds that they have left."""
    per_unit = observation.per_gang(g.best / jnp.maximum(jnp.asarray(observation.workload.units), 1e-12))
    left_s = observation.units_left * per_unit
    needed = (observation.core.status == READY).any()  # otherwise no gang needs the room
    able = movable(observation) & worth_saving(observation) & needed
    gang = smallest(jnp.where(able, -left_s, jnp.inf), count)
    return gang, take(left_s, gang)


def upcoming_gangs(
    observation: Observation, g: GraphTables, count: int
) -> tuple[Int[Array, " configures"], Int[Array, " configures"]]:
    """Gangs that wait for one parent, most critical first, and a device to be configured for each; -1 = none.

    Only gangs whose fastest kind takes time to configure and has no slot configured for them. A kind that a ready gang
    could use is not configured ahead: that gang would be held in the meantime.
    """
    core, t = observation.core, observation.topology
    slow = take(t.kind_reconfigure, observation.per_gang(g.fastest)) > 0
    waits = (core.status == WAITING) & (core.waiting_for == 1) & slow
    gang = smallest(jnp.where(waits, -observation.per_gang(g.tail), jnp.inf), count)
    free = (core.lane_holds == FREE) & t.lane_exists
    used = by_device(1.0 * (free & (core.lane_kernel != UNCONFIGURED)), t)  # prefer unconfigured slots
    wanted = jnp.bitwise_or.reduce(jnp.where(observation.candidates, core.runs_on, 0))

    def device(gang: IntScalar) -> IntScalar:
        f = observation.facts(gang)
        there = core.up & (t.device_kind == g.fastest[f.graph, f.index]) & ((wanted >> t.device_kind) & 1 == 0)
        ready = (core.lane_kernel == f.kernel) & (free | core.lane_setup) & take(there, t.lane_device)
        least, best = first_min(jnp.where(there & (core.lanes_free > 0), used, jnp.inf))
        return jnp.where(jnp.isfinite(least) & ~ready.any() & (gang >= 0), best, -1)

    device_of = jax.vmap(device)(gang)
    return jnp.where(device_of >= 0, gang, -1), device_of


def other_actions(
    observation: Observation, g: GraphTables, j: JobFeatures, preempts: int, configures: int, allowed: BoolScalar
) -> OtherActions:
    """Actions other than placing a gang, if these are `allowed`."""
    core, t, w = observation.core, observation.topology, observation.workload
    victim, left_s = preemptible_gangs(observation, g, preempts)
    next_, slot = upcoming_gangs(observation, g, configures)
    gangs = candidate_features(observation, g, j, jnp.concatenate([victim, next_]))
    there = gangs.there & allowed
    device = jnp.concatenate([take(core.device, victim)[:, 0].astype(jnp.int32), slot])
    saves = jnp.arange(preempts + configures) < preempts
    cost = jnp.asarray(w.checkpoint)[gangs.graph, gangs.task] + jnp.asarray(w.restore)[gangs.graph, gangs.task]
    setup = take(t.kind_reconfigure, take(t.device_kind, device))
    columns = {
        OtherColumn.PREEMPTS: 1.0 * saves,
        OtherColumn.WORK_LEFT: log1p_time(jnp.concatenate([left_s, jnp.zeros(configures)]), g.scale),
        OtherColumn.COST: log1p_time(jnp.where(saves, cost, setup), g.scale),
        OtherColumn.FREE_SLOTS: take(core.lanes_free, device) / jnp.maximum(take(t.slots, device), 1),
    }
    return OtherActions(
        gangs=gangs,
        device=device,
        kernel=jnp.asarray(w.kernel)[gangs.graph, gangs.task],
        saves=saves,
        features=jnp.where(there[:, None], stack_columns(columns), 0),
        allowed=there,
    )


def feature_jacobian(observation: Observation, *counts: int) -> FeatureJacobian:
    """Derivative of the features by the filter's parameters, from the slopes of the belief.

    `counts`: as for `extract_features`.
    """

    def features(mean: Array, std: Array) -> tuple[Array, Array, Array]:
        seen = extract_features(replace(observation, background=mean, background_std=std), *counts)
        return seen.rows, seen.pairs, seen.scene

    def along(slope: Array) -> tuple[Array, Array, Array]:
        here = observation.background, observation.background_std
        return jax.jvp(features, here, (slope[:, 0], slope[:, 1]))[1]

    return FeatureJacobian(*jax.vmap(along)(jnp.asarray(observation.background_slope)))


def extract_features(
    observation: Observation, gangs: int, devices: int, preempts: int, configures: int, *, by_due: bool = True
) -> Features:
    """The input of the network for one decision. `observation.prepared.graphs` holds the `GraphTables`.

    `by_due`: queues are in order of due times; else first in, first out.
    """
    core = observation.core
    g: GraphTables = observation.prepared.graphs
    most = core.status.shape[0]
    j = job_features(observation, g)
    hold = holding(observation)
    gang = shortlist(observation, g, j, min(gangs, most), hold.overdue)
    job = gang // observation.workload.kernel.shape[1]
    work_s = j.left_s.sum() / jnp.maximum(observation.topology.slots.sum(), 1)
    device, allowed, pairs = pair_features(observation, g, gang, min(devices, core.up.shape[0]), work_s)
    order = queue_order(observation, job, take(j.need_s, job)) if by_due else jnp.zeros_like(job)
    next_ = allowed[:, 0] & first_in_queue(core, order, device[:, 0])
    allowed &= next_[:, None] | ~next_.any()
    optional = hold.allowed & ~next_.any() & ~(core.status == PLACING).any()  # placing is not required
    rows = stack_columns(
        {
            RowColumn.OWN_LOAD: observation.own_load,
            RowColumn.BACKGROUND: observation.background,
            RowColumn.BACKGROUND_STD: observation.background_std,
        }
    )
    busy = (core.status == QUEUED) | (core.status == RUNNING)
    mean_path_s = jnp.where(j.there, j.path_s, 0).sum() / jnp.maximum(j.there.sum(), 1)
    scene = stack_columns(
        {
            SceneColumn.JOBS: jnp.log1p(j.there.sum()),
            SceneColumn.READY: jnp.log1p(observation.candidates.sum()),
            SceneColumn.BUSY: jnp.log1p(busy.sum()),
            SceneColumn.WORK: log1p_time(work_s, g.scale),
            SceneColumn.PATH: log1p_time(mean_path_s, g.scale),
            SceneColumn.IDLE: jnp.mean(1.0 * idle_devices(observation)),
            SceneColumn.BACKGROUND: jnp.mean(observation.background),
            SceneColumn.BACKGROUND_STD: jnp.mean(observation.background_std),
        }
    )
    return Features(
        rows=jnp.minimum(jnp.log1p(rows), MAX_LOG),
        devices=device_features(observation, g, engine_s(observation)),
        gangs=candidate_features(observation, g, j, gang),
        pairs=pairs,
        device=device,
        allowed=allowed,
        order=order,
        other_actions=other_actions(observation, g, j, min(preempts, most), min(configures, most), optional),
        scene=scene,
        may_wait=(busy.any() & optional) | ~allowed.any(),
        wait_s=hold.wait_s,
        objective=jnp.asarray(MEAN_ONLY, float),
    )
