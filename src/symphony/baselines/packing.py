"""Multi-resource packing and fairness: Tetris and DRF.

Tetris (Grandl, Ananthanarayanan, Kandula, Rao, Akella, 2014) assigns to a machine, of the tasks whose peak demands fit
into its free resources, the task with the highest alignment: the dot product of the task's demands and the machine's
free resources, each as a share of capacity. To favour short jobs it adds `-ε · remaining work of the job`, with ε the
mean alignment over the mean remaining work. It never overcommits.

DRF (Ghodsi, Zaharia, Hindman, Konwinski, Shenker, Stoica, 2011) schedules the next task of the user with the least
dominant share: the largest share that the user has of any resource of the cluster.

Differences here: the resources of a device are the rows on its route, so that neighbours share some of them, and the
belief mean of the background load counts as used. Where a gang would fit beside Symphony's own work, half of its demand
is enough; otherwise a machine with little background load would never have all its slots in use. An empty device
accepts any gang, because the background may never leave enough. Devices are heterogeneous, which neither paper covers:
alignment is multiplied by the speed relative to the gang's fastest kind; a slow device is not used where waiting
finishes earlier (`worthwhile_kinds`); DRF, which does not define placement, uses the fastest kind with room. Each
kind is represented by its least loaded device. Tetris' penalty of a tenth for remote inputs is not implemented. For
DRF, each job is a user. Memory footprints limit what fits, but are not part of alignment or shares.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.graph_tables import count_by_kind, gang_seconds, seconds_now, worthwhile_kinds
from symphony.scheduling.indexing import IntScalar, first, first_min, take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, idle_devices, pick_gang, place
from symphony.scheduling.state import ABSENT, DONE, PLACING, QUEUED, RUNNING

ROUNDING = 2.0**-12  # of a load: an exact fit is a fit
KindTable = Float[Array, "graphs tasks kinds"]


class FreePlacements(eqx.Module):
    """Possible placements on each device kind: on its least loaded device with a free slot and an empty queue."""

    device: Int[Array, " kinds"]
    fits: Bool[Array, "graphs tasks kinds"]  # the kind is worthwhile, and demands fit into the free resources
    alignment: KindTable  # dot product of demands and free resources, as shares of capacity
    seconds: KindTable


def free_placements(observation: Observation, seconds: KindTable) -> FreePlacements:
    """Placements of every gang on every kind. Demands are affine in a gang's work, so they are computed per kernel."""
    core, t, w = observation.core, observation.topology, observation.workload
    kinds = jnp.arange(t.kind_memory.shape[0])
    idle = idle_devices(observation)
    own = take(observation.own_load, t.route_row)  # [devices, hops]
    load = own + take(observation.background, t.route_row)
    crowd = jnp.where(jnp.isfinite(take(t.capacity, t.route_row)), load, 0).sum(axis=1)
    of_kind = (t.device_kind == kinds[:, None]) & idle  # [kinds, devices]
    least, device = first_min(jnp.where(of_kind, crowd, jnp.inf))

    def of_kernels() -> tuple[Array, Array, Array]:
        """The largest work that fits, and offset and slope of the alignment by work [kernels, kinds]."""
        rows = take(t.route_row, device)  # [kinds, hops]
        free = jnp.maximum(1 - take(load, device), 0)
        enough = jnp.minimum(1 - take(own, device), 2 * free) + ROUNDING
        at = (slice(None), kinds[:, None], take(t.route_kind, device))
        fixed, per_work = (x[at] / take(t.capacity, rows) for x in (w.demand_fixed, w.demand_work))
        room = jnp.where(per_work > 0, (enough - fixed) / per_work, jnp.where(fixed > enough, -1, jnp.inf)).min(axis=-1)
        empty = take(core.lanes_free, device) == take(t.slots, device)
        return jnp.where(empty, jnp.inf, room), (fixed * free).sum(axis=-1), (per_work * free).sum(axis=-1)

    # If no device is idle, nothing fits. (The condition also keeps the compiler from repeating this for every gang.)
    nothing = jnp.zeros((w.exchange.shape[0], kinds.shape[0]))
    room, base, slope = jax.lax.cond(idle.any(), of_kernels, lambda: (nothing, nothing, nothing))

    work, seconds = w.work[..., None], seconds_now(observation, seconds)
    fits = (work <= room[w.kernel]) & (w.footprint <= take(core.memory_free, device))
    open_kinds = ((w.runs_on[..., None] >> kinds) & 1) * count_by_kind(observation, idle)
    fits &= (open_kinds.sum(axis=-1) >= w.workers)[..., None]
    fits &= jnp.isfinite(least) & jnp.isfinite(seconds) & worthwhile_kinds(observation, seconds)
    return FreePlacements(device, fits, base[w.kernel] + work * slope[w.kernel], seconds)


def place_best(observation: Observation, where: FreePlacements, score: KindTable, gang: IntScalar) -> Action:
    """Place a gang on the kind with the highest score; its further workers by earliest finish."""
    f = observation.facts(gang)
    mine = jnp.where(where.fits[f.graph, f.index], score[f.graph, f.index], -jnp.inf)
    device = take(where.device, first(mine == mine.max()))
    partly = take(observation.core.status, gang) == PLACING
    rest = best_device(observation, gang, -(observation.queue_s + observation.seconds(gang)))
    return place(gang, jnp.where(partly, rest, device))


def placeable_gangs(observation: Observation, where: FreePlacements) -> Bool[Array, " gangs"]:
    """Gangs that fit on a kind, or are partly placed."""
    core = observation.core
    # A job slot that was never used holds no gangs, whatever its graph is.
    fits = observation.per_gang(where.fits.any(axis=-1)) & (core.runs_on != 0)
    return fits | (core.status == PLACING)


def alignment_scores(where: FreePlacements) -> KindTable:
    """Alignment times speed relative to the fastest kind; a small constant gives gangs without demands a score."""
    speed = where.seconds.min(axis=-1, keepdims=True) / where.seconds
    return jnp.where(where.fits, (where.alignment + 1e-3) * speed, 0)


def gang_work(t: TopologyArrays, w: WorkloadArrays) -> Float[Array, "graphs tasks"]:
    """The work of each gang: workers times seconds on its fastest kind."""
    seconds = gang_seconds(t, w).min(axis=-1)
    return jnp.where(jnp.isfinite(seconds), seconds * w.workers, 0)


def shortest_first(
    observation: Observation,
    go: Bool[Array, " gangs"],
    score: Float[Array, " gangs"],
    work: Float[Array, "graphs tasks"],
) -> Float[Array, " gangs"]:
    """A score less the remaining work of the gang's job, weighted so that both have the same mean."""
    core, tasks = observation.core, observation.workload.kernel.shape[1]
    there = (core.status != ABSENT) & (core.status != DONE)
    left = jnp.where(there, observation.per_gang(work), 0).reshape(-1, tasks).sum(axis=1)  # [jobs]
    mean = jnp.where(go, score, 0).sum() / jnp.maximum(go.sum(), 1)
    weight = mean / jnp.maximum(left.sum() / jnp.maximum((left > 0).sum(), 1), 1e-12)
    return score - weight * jnp.repeat(left, tasks)


class Tetris(Policy):
    """Highest alignment of demands with free resources, less the remaining work of the job; never overcommits."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Array, Array]:
        """Isolated seconds [graphs, tasks, kinds], and the work of each gang [graphs, tasks]."""
        return gang_seconds(topology, workload), gang_work(topology, workload)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        seconds, work = observation.prepared
        where = free_placements(observation, seconds)
        alignment, go = alignment_scores(where), placeable_gangs(observation, where)
        score = shortest_first(observation, go, observation.per_gang(alignment.max(axis=-1)), work)
        return state, place_best(observation, where, alignment, pick_gang(observation, score, go))


def dominant_share(observation: Observation) -> Float[Array, " jobs"]:
    """The largest share that each job has of any kind of resource in the cluster, queued gangs included."""
    core, t, w = observation.core, observation.topology, observation.workload
    tasks = w.kernel.shape[1]
    resources = jnp.arange(w.demand_fixed.shape[2])
    total = jnp.where(
        jnp.isfinite(t.capacity)[:, None] & (t.row_kind[:, None] == resources), t.capacity[:, None], 0
    ).sum(axis=0)
    kernel, work = observation.per_gang(w.kernel), observation.per_gang(w.work)[:, None]
    kind = take(t.device_kind, core.device[:, 0])
    demand = (w.demand_fixed[kernel, kind] + work * w.demand_work[kernel, kind]) * core.workers[:, None]
    holds = (core.status == RUNNING) | (core.status == QUEUED)
    used = jnp.where(holds[:, None], demand, 0).reshape(-1, tasks, resources.shape[0]).sum(axis=1)
    return jnp.where(total > 0, used / jnp.maximum(total, 1e-30), 0).max(axis=1)


class Drf(Policy):
    """The job with the least dominant share first, on the fastest kind with room."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> KindTable:
        return gang_seconds(topology, workload)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        where = free_placements(observation, observation.prepared)
        share = jnp.repeat(dominant_share(observation), observation.workload.kernel.shape[1])
        gang = pick_gang(observation, -share, placeable_gangs(observation, where))
        return state, place_best(observation, where, -where.seconds, gang)
