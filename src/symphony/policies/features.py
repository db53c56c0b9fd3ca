"""What the learned policy looks at: numbers about rows, devices, gangs and pairs, free of units and of names.

Times are compared with the typical time of a gang, mostly as logarithms, and kernels appear only through their
profiles. So a cluster that is faster, a workload a thousand times longer or a kernel that nobody has seen looks like
something known.

K gangs that may be placed are looked at, and for each the M devices on which it would finish first. The rest of what is
ready waits its turn: gangs of a job that lie further from its critical path, and jobs that have more left to do. If any
gang is overdue (`scheduling/holding.py`: it could start now, and may be held no longer), one such gang is always looked
at, and only placing is allowed. Beside these, X actions that place nothing: to preempt one of the running gangs that
have the most left to do, or to configure a free slot for one of the most critical gangs that will soon be ready.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.clock import Amount
from symphony.scheduling.estimate import EstimateParts, engine_s, estimate_parts, harm, holders, slowdown
from symphony.scheduling.graph_tables import (
    DataEdges,
    data_edges,
    fixed_point,
    gang_rows,
    gang_seconds,
    max_over_edges,
    reading_gangs,
    seconds_per_byte,
)
from symphony.scheduling.holding import holding
from symphony.scheduling.indexing import first, first_min, smallest, take
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

ROW_FEATURES, DEVICE_FEATURES, GANG_FEATURES, PAIR_FEATURES, OTHER_ACTION_FEATURES, SCENE_FEATURES, NODE_FEATURES = (
    3,
    12,
    18,
    13,
    4,
    8,
    10,
)  # numbers for each
REGRET, QUEUE, FETCH, UNCERTAINTY = 0, 3, 4, 9  # where the prior finds what it weighs: of a pair, …
LOG_FINISH, LOG_ISOLATED = 2, 6  # of a pair: when it would be done, and how long it runs alone, as logarithms
LOG_SLOWDOWN, LOG_HARM = 8, 10  # of a pair: by how much others slow it, and it others, as logarithms
NON_ESTIMATES = (6, 7, 12)  # of a pair, what is no estimate: how long it runs alone, and whether the device is idle
REMAINING, CRITICAL = 0, 1  # … and of a gang
MAX_DEVICES_PER_GANG = (
    64  # devices that are looked at closely for a gang: where there are more, a rough look picks so many
)
MAX_LOG = 8.0  # beyond which a logarithm tells nothing more


class GraphTables(eqx.Module):
    """What can be told of graphs before the first decision. A graphs, T gangs each."""

    scale: Array  # f[]: typical isolated seconds of a gang
    best: Array  # f[A, T]: isolated seconds on the fastest kind
    fastest: Array  # i32[A, T]: that kind
    speed: Array  # f[Y]: how far each kind is behind the fastest, on average, as a logarithm
    choice: Array  # f[A, T]: log of how much longer the next kind takes
    tail: Array  # f[A, T]: seconds from the gang's start to the end of its graph, on fastest kinds
    bytes_s: Array  # f[A, T]: seconds that its inputs take over a middling link
    links: DataEdges
    nodes: Array  # f[A, T, NODE]


class Candidates(eqx.Module):
    """Gangs that are looked at [K]."""

    number: Array  # i32, -1 = none
    graph: Array  # i32
    task: Array  # i32: its number in the graph
    features: Array  # f[K, GANG]

    @property
    def there(self) -> Array:
        """Which of them are gangs."""
        return self.number >= 0


class OtherActions(eqx.Module):
    """Actions that place nothing [X]: first those that preempt, then those that configure."""

    gangs: Candidates  # to be preempted; to be configured for
    device: Array  # i32: that runs it; to be configured
    kernel: Array  # i32: of the gang
    saves: Array  # bool: it preempts
    features: Array  # f[X, ASIDE]
    allowed: Array  # bool


class Features(eqx.Module):
    """One decision, as the network sees it."""

    rows: Array  # f[R, ROW]
    devices: Array  # f[D, DEVICE]
    gangs: Candidates  # [K]
    pairs: Array  # f[K, M, PAIR]
    device: Array  # i32[K, M]
    allowed: Array  # bool[K, M]
    other_actions: OtherActions
    scene: Array  # f[SCENE]
    may_wait: Array  # bool[]
    wait_s: Array  # f[]: for how long at most

    def perturbed(self, bend: FeatureJacobian, factors: Array) -> Features:
        """What would be seen if the filter's factors [F] were other by so much. Leading axes may be decisions."""

        def moved(name: str) -> Array:
            along = getattr(bend, name)  # [..., F, …]
            return getattr(self, name) + (along * factors.reshape(-1, *[1] * (getattr(self, name).ndim - lead))).sum(
                lead
            )

        lead = self.scene.ndim - 1
        return replace(self, rows=moved("rows"), pairs=moved("pairs"), scene=moved("scene"))


class FeatureJacobian(eqx.Module):
    """By how much what is seen changes with each of the filter's factors."""

    rows: Array  # f[F, R, ROW]
    pairs: Array  # f[F, K, M, PAIR]
    scene: Array  # f[F, SCENE]


def graph_tables(t: TopologyArrays, w: WorkloadArrays) -> GraphTables:
    """Work out what is told of graphs."""
    tasks = w.kernel.shape[1]
    seconds = gang_seconds(t, w)
    there = jnp.arange(tasks) < jnp.asarray(w.gangs)[:, None]
    two = jnp.sort(seconds, axis=-1)[..., :2]
    best = jnp.where(there & jnp.isfinite(two[..., 0]), two[..., 0], 0)
    choice = jnp.clip(jnp.log(two[..., -1] / jnp.maximum(best, 1e-12)), 0, MAX_LOG)
    scale = best.sum() / jnp.maximum(there.sum(), 1)
    behind = jnp.clip(jnp.log(seconds / jnp.maximum(best, 1e-12)[..., None]), 0, MAX_LOG)
    able = jnp.isfinite(seconds) & there[..., None]
    speed = jnp.where(able, behind, 0).sum(axis=(0, 1)) / jnp.maximum(able.sum(axis=(0, 1)), 1)
    edges = data_edges(t, w)

    def upward(tail: Array) -> Array:
        return best + max_over_edges(edges.source, gang_rows(tail, edges.target) + edges.seconds, tasks)

    def downward(head: Array) -> Array:
        return max_over_edges(edges.target, gang_rows(head + best, edges.source) + edges.seconds, tasks)

    tail, head = fixed_point(upward, best, tasks), fixed_point(downward, jnp.zeros_like(best), tasks)
    children = jnp.diff(jnp.asarray(w.out_start))
    size = jax.vmap(lambda at, x: jnp.zeros(tasks + 1).at[at].add(x, mode="drop")[:tasks])(reading_gangs(w), w.in_bytes)
    bytes_s = size * seconds_per_byte(t)
    nodes = jnp.stack(
        [
            log_time(best, scale),
            choice / MAX_LOG,
            log_time(tail, scale),
            log_time(head, scale),
            tail / jnp.maximum(tail.max(axis=1, keepdims=True), 1e-12),
            jnp.log1p(w.parents),
            jnp.log1p(children),
            log1p_time(bytes_s, scale),
            jnp.log(jnp.maximum(w.workers, 1)),
            1.0 * w.preemptible,
        ],
        axis=-1,
    )
    return GraphTables(
        scale=scale,
        best=best,
        fastest=first(seconds == two[..., :1]),
        speed=speed,
        choice=choice,
        tail=tail,
        bytes_s=bytes_s,
        links=edges,
        nodes=jnp.where(there[..., None], nodes, 0),
    )


def log_time(seconds: Array, scale: Array) -> Array:
    """A time as a logarithm, for times that are never 0."""
    return jnp.clip(jnp.log(jnp.maximum(seconds, 1e-12) / scale), -MAX_LOG, MAX_LOG)


def log1p_time(seconds: Array, scale: Array) -> Array:
    """A time as a logarithm that is 0 at 0."""
    return jnp.minimum(jnp.log1p(jnp.maximum(seconds, 0) / scale), MAX_LOG)


class JobFeatures(eqx.Module):
    """Jobs in the system, by slot [S]."""

    there: Array  # bool
    left_s: Array  # isolated seconds of all gangs that are not done
    path_s: Array  # the longest path through them
    age_s: Array
    ready: Array  # gangs that are
    unfinished: Array  # gangs that are


def job_features(observation: Observation, g: GraphTables) -> JobFeatures:
    """What is left of each job."""
    core = observation.core
    status = core.status.reshape(core.job.shape[0], -1)
    open_ = (status != ABSENT) & (status != DONE) & (status != FINISHED)
    there = core.job >= 0
    graph = core.graph
    return JobFeatures(
        there=there,
        left_s=jnp.where(open_, g.best[graph], 0).sum(axis=1),
        path_s=jnp.where(open_, g.tail[graph], 0).max(axis=1),
        age_s=jnp.where(there, observation.now.minus(core.arrived), 0),
        ready=((status == READY) | (status == PLACING)).sum(axis=1),
        unfinished=core.unfinished,
    )


def shortlist(observation: Observation, g: GraphTables, j: JobFeatures, count: int, overdue: Array) -> Array:
    """Gangs to look at [K], -1 = none: of the highest priority, each job's most critical first, shortest job first.

    If there are any that are `overdue` [G], the last is one of those, unless one comes before it anyway.
    """
    core = observation.core
    allowed = observation.candidates.reshape(core.job.shape[0], -1)
    allowed &= (core.priority == jnp.where(allowed.any(axis=1), core.priority, -(2**31)).max())[:, None]
    tail = jnp.where(allowed, g.tail[core.graph], 0)
    behind = 1 - tail / jnp.maximum(tail.max(axis=1, keepdims=True), 1e-12)  # 0 for a job's most critical
    short = j.path_s / (j.path_s + g.scale)  # below 1, and less for shorter jobs
    key = jnp.where(allowed, behind + 0.5 * short[:, None], jnp.inf).reshape(-1)
    chosen = smallest(key, count)
    least, urgent = first_min(jnp.where(overdue, key, jnp.inf))
    missing = jnp.isfinite(least) & ~(take(overdue, chosen) & (chosen >= 0)).any()
    return chosen.at[-1].set(jnp.where(missing, urgent, chosen[-1]))


def candidate_features(observation: Observation, g: GraphTables, j: JobFeatures, gang: Array) -> Candidates:
    """Numbers about gangs [K]."""
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
    columns = [
        log_time(path, g.scale),  # REMAINING
        tail / jnp.maximum(path, 1e-12),  # CRITICAL
        log_time(best, g.scale),
        of(g.choice) / MAX_LOG,
        log_time(tail, g.scale),
        log_time(left, g.scale),
        log1p_time(age, g.scale),
        jnp.clip(jnp.log(jnp.maximum(age + path, 1e-12) / isolated), -MAX_LOG, MAX_LOG),
        shorter,
        jnp.log1p(take(j.ready, slot)),
        jnp.log1p(take(j.unfinished, slot)),
        log1p_time(jnp.where(take(core.inputs_left, gang) > 0, of(g.bytes_s), 0), g.scale),
        jnp.log(jnp.maximum(take(core.workers, gang), 1)),
        take(core.placed, gang) / jnp.maximum(take(core.workers, gang), 1),
        1.0 * take(core.resumed, gang),
        1.0 * of(w.preemptible),
        log1p_time(take(core.waiting_for, gang), jnp.ones(())),
        jnp.log1p(jnp.asarray(w.out_start)[graph, index + 1] - jnp.asarray(w.out_start)[graph, index]),
    ]
    return Candidates(gang, graph, index, jnp.where(there[:, None], jnp.stack(columns, axis=-1), 0))


def device_features(observation: Observation, g: GraphTables, engine: Array) -> Array:
    """Numbers about devices [D, DEVICE]."""
    core, t = observation.core, observation.topology
    slots = jnp.maximum(t.slots, 1)
    memory = take(t.kind_memory, t.device_kind)
    kinds = jnp.arange(t.kind_memory.shape[0])
    # How much of what is ready would rather run on devices of this kind, for each slot that there is of it.
    ready_s = jnp.where(core.status == READY, observation.per_gang(g.best), 0)
    there = observation.per_gang(g.fastest)[:, None] == kinds
    lanes = jnp.where((t.device_kind[:, None] == kinds) & core.up[:, None], t.slots[:, None], 0).sum(axis=0)
    asked = jnp.where(there, ready_s[:, None], 0).sum(axis=0) / jnp.maximum(lanes, 1)
    columns = [
        log1p_time(observation.queue_s, g.scale),
        log1p_time(observation.running_s / slots, g.scale),
        log1p_time(engine, g.scale),
        log1p_time(take(asked, t.device_kind), g.scale),
        core.lanes_free / slots,
        jnp.log1p(core.queued / slots),
        jnp.log(slots),
        core.memory_free / jnp.maximum(memory, 1),
        1.0 * idle_devices(observation),
        1.0 * core.up,
        log1p_time(take(t.kind_reconfigure, t.device_kind), g.scale),
        take(g.speed, t.device_kind),
    ]
    return jnp.where(core.up[:, None], jnp.stack(columns, axis=-1), 0)


def likely_devices(observation: Observation, gang: Array, able: Array, count: int) -> Array:
    """Devices where a gang may finish early, and those that hold its inputs [count], -1 = none: by a rough look.

    It leaves out transfers, and takes the busiest row of a device to slow all that runs there.
    """
    t = observation.topology
    load = jnp.where(t.row_group >= 0, observation.own_load + observation.background, 0)
    slow = jnp.maximum(take(load, t.route_row).max(axis=1), 1)
    finish = jnp.maximum(observation.queue_s, engine_s(observation)) + observation.seconds(gang) * slow
    at = holders(observation, gang)
    finish = finish.at[jnp.where(at >= 0, at, finish.shape[0])].set(0, mode="drop")
    return smallest(jnp.where(able, finish, jnp.inf), count)


def pair_features(observation: Observation, g: GraphTables, gang: Array, count: int) -> tuple[Array, Array, Array]:
    """Devices to look at for each gang [K, M], which of them may take it, and numbers about the pairs [K, M, PAIR]."""
    there, deviation = observation.background, observation.background_std
    closely = max(MAX_DEVICES_PER_GANG, count)
    all_ = observation.core.up.shape[0] <= closely

    def of(gang: Array) -> tuple[Array, Array, Array]:
        able = observation.feasible(gang)
        some = None if all_ else likely_devices(observation, gang, able, closely)
        p: EstimateParts = estimate_parts(observation, gang, there, some)
        able = able if some is None else (some >= 0) & take(able, some)
        at = smallest(jnp.where(able, p.finish, jnp.inf), count)
        p = jax.tree.map(lambda x: take(x, at), p)
        device = at if some is None else jnp.where(at >= 0, take(some, at), -1)
        finish = jnp.where(at >= 0, p.finish, jnp.inf)
        allowed = jnp.isfinite(finish) & (gang >= 0)
        finish = jnp.where(allowed, finish, 0)
        least = jnp.where(allowed, finish, jnp.inf).min()
        unsure = slowdown(observation, gang, there + deviation, device)
        alone = jnp.where(allowed, p.run, jnp.inf)
        columns = [
            jnp.log1p(jnp.maximum(finish / jnp.maximum(least, 1e-12) - 1, 0)),  # REGRET
            log1p_time(finish - least, g.scale),
            log_time(finish, g.scale),
            log1p_time(p.queue, g.scale),  # QUEUE
            log1p_time(p.fetch, g.scale),  # FETCH
            log1p_time(p.setup, g.scale),
            log_time(alone, g.scale),
            jnp.log(alone / alone.min()),
            jnp.log(p.slow),
            jnp.log(unsure / p.slow),  # UNSURE
            log1p_time(harm(observation, gang, there, device), jnp.ones(())),
            log1p_time(p.exchange, g.scale),
            1.0 * take(idle_devices(observation), device),
        ]
        return device, allowed, jnp.where(allowed[:, None], jnp.stack(columns, axis=-1), 0)

    return jax.vmap(of)(gang)


def worth_saving(observation: Observation) -> Array:
    """Running gangs that have run for longer than it takes to save and restore them [G].

    So at least half of a device's time is work, however often a policy preempts.
    """
    core, w = observation.core, observation.workload
    lane = core.lane[:, 0]
    ran = observation.now.minus(Amount(take(core.lane_since.whole, lane), take(core.lane_since.part, lane)))
    restore = observation.per_gang(w.restore)
    return ran > observation.per_gang(w.checkpoint) + restore * (1 + core.resumed)


def preemptible_gangs(observation: Observation, g: GraphTables, count: int) -> tuple[Array, Array]:
    """Running gangs that might be preempted [X], the most left to do first, and the seconds that they have left."""
    per_unit = observation.per_gang(g.best / jnp.maximum(jnp.asarray(observation.workload.units), 1e-12))
    left_s = observation.units_left * per_unit
    needed = (observation.core.status == READY).any()  # otherwise there is nobody to make room for
    able = movable(observation) & worth_saving(observation) & needed
    gang = smallest(jnp.where(able, -left_s, jnp.inf), count)
    return gang, take(left_s, gang)


def upcoming_gangs(observation: Observation, g: GraphTables, count: int) -> tuple[Array, Array]:
    """Gangs that wait for one parent [X], most critical first, and a device to be configured for each; -1 = none.

    Only those that are fastest on a kind that takes time to configure, and that no slot of that kind is ready for.
    A kind that a ready gang could use is not configured ahead: that gang would be held meanwhile.
    """
    core, t = observation.core, observation.topology
    slow = take(t.kind_reconfigure, observation.per_gang(g.fastest)) > 0
    waits = (core.status == WAITING) & (core.waiting_for == 1) & slow
    gang = smallest(jnp.where(waits, -observation.per_gang(g.tail), jnp.inf), count)
    free = (core.lane_holds == FREE) & t.lane_exists
    used = by_device(1.0 * (free & (core.lane_kernel != UNCONFIGURED)), t)  # what is configured may be of use yet
    wanted = jnp.bitwise_or.reduce(jnp.where(observation.candidates, core.runs_on, 0))

    def device(gang: Array) -> Array:
        f = observation.facts(gang)
        there = core.up & (t.device_kind == g.fastest[f.graph, f.index]) & ((wanted >> t.device_kind) & 1 == 0)
        ready = (core.lane_kernel == f.kernel) & (free | core.lane_setup) & take(there, t.lane_device)
        least, best = first_min(jnp.where(there & (core.lanes_free > 0), used, jnp.inf))
        return jnp.where(jnp.isfinite(least) & ~ready.any() & (gang >= 0), best, -1)

    device_of = jax.vmap(device)(gang)
    return jnp.where(device_of >= 0, gang, -1), device_of


def other_actions(
    observation: Observation, g: GraphTables, j: JobFeatures, preempts: int, configures: int, allowed: Array
) -> OtherActions:
    """What could be done instead of placing a gang, if that is `allowed`."""
    core, t, w = observation.core, observation.topology, observation.workload
    victim, left_s = preemptible_gangs(observation, g, preempts)
    next_, slot = upcoming_gangs(observation, g, configures)
    gangs = candidate_features(observation, g, j, jnp.concatenate([victim, next_]))
    there = gangs.there & allowed
    device = jnp.concatenate([take(core.device, victim)[:, 0].astype(jnp.int32), slot])
    saves = jnp.arange(preempts + configures) < preempts
    cost = jnp.asarray(w.checkpoint)[gangs.graph, gangs.task] + jnp.asarray(w.restore)[gangs.graph, gangs.task]
    setup = take(t.kind_reconfigure, take(t.device_kind, device))
    columns = [
        1.0 * saves,
        log1p_time(jnp.concatenate([left_s, jnp.zeros(configures)]), g.scale),
        log1p_time(jnp.where(saves, cost, setup), g.scale),
        take(core.lanes_free, device) / jnp.maximum(take(t.slots, device), 1),
    ]
    return OtherActions(
        gangs=gangs,
        device=device,
        kernel=jnp.asarray(w.kernel)[gangs.graph, gangs.task],
        saves=saves,
        features=jnp.where(there[:, None], jnp.stack(columns, axis=-1), 0),
        allowed=there,
    )


def feature_jacobian(observation: Observation, *counts: int) -> FeatureJacobian:
    """How what is seen follows what is believed, along the slopes of the belief.

    `counts`: as for `extract_features`.
    """

    def told(mean: Array, deviation: Array) -> tuple[Array, Array, Array]:
        seen = extract_features(replace(observation, background=mean, background_std=deviation), *counts)
        return seen.rows, seen.pairs, seen.scene

    def along(slope: Array) -> tuple[Array, Array, Array]:
        here = observation.background, observation.background_std
        return jax.jvp(told, here, (slope[:, 0], slope[:, 1]))[1]

    return FeatureJacobian(*jax.vmap(along)(jnp.asarray(observation.background_slope)))


def extract_features(observation: Observation, gangs: int, devices: int, preempts: int, configures: int) -> Features:
    """Everything that the network is told for one decision. `observation.prepared` holds the graphs."""
    core = observation.core
    g: GraphTables = observation.prepared.graphs
    most = core.status.shape[0]
    j = job_features(observation, g)
    hold = holding(observation)
    gang = shortlist(observation, g, j, min(gangs, most), hold.overdue)
    optional = hold.allowed & ~(core.status == PLACING).any()  # nothing need be placed now
    device, allowed, pairs = pair_features(observation, g, gang, min(devices, core.up.shape[0]))
    rows = jnp.stack([observation.own_load, observation.background, observation.background_std], axis=-1)
    busy = (core.status == QUEUED) | (core.status == RUNNING)
    scene = jnp.stack(
        [
            jnp.log1p(j.there.sum()),
            jnp.log1p(observation.candidates.sum()),
            jnp.log1p(busy.sum()),
            log1p_time(j.left_s.sum() / jnp.maximum(observation.topology.slots.sum(), 1), g.scale),
            log1p_time(jnp.where(j.there, j.path_s, 0).sum() / jnp.maximum(j.there.sum(), 1), g.scale),
            jnp.mean(1.0 * idle_devices(observation)),
            jnp.mean(observation.background),
            jnp.mean(observation.background_std),
        ]
    )
    return Features(
        rows=jnp.minimum(jnp.log1p(rows), MAX_LOG),
        devices=device_features(observation, g, engine_s(observation)),
        gangs=candidate_features(observation, g, j, gang),
        pairs=pairs,
        device=device,
        allowed=allowed,
        other_actions=other_actions(observation, g, j, min(preempts, most), min(configures, most), optional),
        scene=scene,
        may_wait=(busy.any() & optional) | ~allowed.any(),
        wait_s=hold.wait_s,
    )
