"""Packing by several resources: Tetris and DRF.

Tetris (Grandl, Ananthanarayanan, Kandula, Rao, Akella, 2014) gives a machine with free resources, of the tasks whose
peak demands fit into what is free, the one with the highest alignment: the dot product of the task's demands and the
machine's free resources, each as a share of capacity. To favour short jobs it adds `-ε · remaining work of the job`,
with ε the mean alignment over the mean remaining work. It never places more than fits.

DRF (Ghodsi, Zaharia, Hindman, Konwinski, Shenker, Stoica, 2011) gives the next task to the user with the least dominant
share: the largest share that the user has of any resource of the cluster.

Ours differ. The resources of a device are the rows on its route, so neighbours share some of them, and what hidden
tenants take counts as taken, as far as the belief tells; but where a gang would fit beside our own work, half of what
it asks for is enough, or a machine that others use a little would never have all its slots in use. A device with no
work of ours takes any gang: what tenants leave may never be enough. Devices are unlike, which is beyond both papers:
alignment is multiplied with the speed relative to the gang's fastest kind; a slow device is no choice where waiting
ends earlier (`tables.worth_it`); DRF, which does not say where, takes the fastest kind that has room. Of the devices of
a kind, the least loaded counts. Tetris' penalty of a tenth for remote inputs is left out. To DRF, each job is a user.
Memory footprints bound what fits, and are no resource to align with or have a share of.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.graph_tables import count_by_kind, gang_seconds, seconds_now, worthwhile_kinds
from symphony.scheduling.indexing import first, first_min, take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, idle_devices, pick_gang, place
from symphony.scheduling.state import ABSENT, DONE, PLACING, QUEUED, RUNNING

ROUNDING = 2.0**-12  # of a load: what fits exactly fits


class FreePlacements(eqx.Module):
    """Where gangs could go now: for each device kind, its least loaded device that has a free slot and no queue."""

    device: Array  # i32[Y]
    fits: Array  # bool[A, T, Y]: it is worth its time there, and its demands fit into what is free
    alignment: Array  # f[A, T, Y]: dot product of demands and what is free, as shares of capacity
    seconds: Array  # f[A, T, Y]


def free_placements(observation: Observation, seconds: Array) -> FreePlacements:
    """Look at every gang on every kind, given its seconds there [A, T, Y]; demands are affine in a gang's work, so that
    kernels need looking at only."""
    core, t, w = observation.core, observation.topology, observation.workload
    kinds = jnp.arange(t.kind_memory.shape[0])
    idle = idle_devices(observation)
    own = take(observation.own_load, t.route_row)  # [D, H]
    load = own + take(observation.background, t.route_row)
    crowd = jnp.where(jnp.isfinite(take(t.capacity, t.route_row)), load, 0).sum(axis=1)
    of_kind = (t.device_kind == kinds[:, None]) & idle  # [Y, D]
    least, device = first_min(jnp.where(of_kind, crowd, jnp.inf))

    def of_kernels() -> tuple[Array, Array, Array]:
        """The most work that fits, and the alignment of no work and of one of work [N, Y]."""
        rows = take(t.route_row, device)  # [Y, H]
        free = jnp.maximum(1 - take(load, device), 0)
        enough = jnp.minimum(1 - take(own, device), 2 * free) + ROUNDING
        at = (slice(None), kinds[:, None], take(t.route_kind, device))
        fixed, per_work = (
            w.demand_fixed[at] / take(t.capacity, rows),
            w.demand_work[at] / take(t.capacity, rows),
        )  # [N, Y, H]
        room = jnp.where(per_work > 0, (enough - fixed) / per_work, jnp.where(fixed > enough, -1, jnp.inf)).min(axis=-1)
        empty = take(core.lanes_free, device) == take(t.slots, device)
        return jnp.where(empty, jnp.inf, room), (fixed * free).sum(axis=-1), (per_work * free).sum(axis=-1)

    # If nothing is idle, nothing fits. (And a compiler would work these out anew for every gang, were it not for this.)
    nothing = jnp.zeros((w.exchange.shape[0], kinds.shape[0]))
    room, base, slope = jax.lax.cond(idle.any(), of_kernels, lambda: (nothing, nothing, nothing))

    work, seconds = w.work[..., None], seconds_now(observation, seconds)
    fits = (work <= room[w.kernel]) & (w.footprint <= take(core.memory_free, device))
    open_kinds = ((w.runs_on[..., None] >> kinds) & 1) * count_by_kind(observation, idle)
    fits &= (open_kinds.sum(axis=-1) >= w.workers)[..., None]
    fits &= jnp.isfinite(least) & jnp.isfinite(seconds) & worthwhile_kinds(observation, seconds)
    return FreePlacements(device, fits, base[w.kernel] + work * slope[w.kernel], seconds)


def place_best(observation: Observation, where: FreePlacements, score: Array, gang: Array) -> Action:
    """Place a gang on the opening with the highest score [A, T, Y]; its further workers, where they would end first."""
    f = observation.facts(gang)
    mine = jnp.where(where.fits[f.graph, f.index], score[f.graph, f.index], -jnp.inf)
    device = take(where.device, first(mine == mine.max()))
    partly = take(observation.core.status, gang) == PLACING
    rest = best_device(observation, gang, -(observation.queue_s + observation.seconds(gang)))
    return place(gang, jnp.where(partly, rest, device))


def placeable_gangs(observation: Observation, where: FreePlacements) -> Array:
    """Gangs with an opening, or partly placed [G]."""
    core = observation.core
    # A slot that no job has had yet holds no gangs, whatever graph it names.
    fits = observation.per_gang(where.fits.any(axis=-1)) & (core.runs_on != 0)
    return fits | (core.status == PLACING)


def alignment_scores(where: FreePlacements) -> Array:
    """Alignment times speed relative to the fastest kind [A, T, Y]; no demand aligns a little with everything."""
    speed = where.seconds.min(axis=-1, keepdims=True) / where.seconds
    return jnp.where(where.fits, (where.alignment + 1e-3) * speed, 0)


def gang_work(t: TopologyArrays, w: WorkloadArrays) -> Array:
    """The work of each gang: workers times seconds on its fastest kind [A, T]."""
    seconds = gang_seconds(t, w).min(axis=-1)
    return jnp.where(jnp.isfinite(seconds), seconds * w.workers, 0)


def shortest_first(observation: Observation, go: Array, score: Array, work: Array) -> Array:
    """A score of gangs [G], less the remaining work of their jobs; in the mean, both weigh the same."""
    core, tasks = observation.core, observation.workload.kernel.shape[1]
    there = (core.status != ABSENT) & (core.status != DONE)
    left = jnp.where(there, observation.per_gang(work), 0).reshape(-1, tasks).sum(axis=1)  # [K]
    mean = jnp.where(go, score, 0).sum() / jnp.maximum(go.sum(), 1)
    weight = mean / jnp.maximum(left.sum() / jnp.maximum((left > 0).sum(), 1), 1e-12)
    return score - weight * jnp.repeat(left, tasks)


class Tetris(Policy):
    """Highest alignment of demands with what is free, less the remaining work of the job; nothing that does not fit."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Array, Array]:
        """Isolated seconds [A, T, Y], and the work of each gang [A, T]."""
        return gang_seconds(topology, workload), gang_work(topology, workload)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """The best pair of gang and opening, or wait."""
        seconds, work = observation.prepared
        where = free_placements(observation, seconds)
        alignment, go = alignment_scores(where), placeable_gangs(observation, where)
        score = shortest_first(observation, go, observation.per_gang(alignment.max(axis=-1)), work)
        return state, place_best(observation, where, alignment, pick_gang(observation, score, go))


def dominant_share(observation: Observation) -> Array:
    """The largest share that each job has of any kind of resource in the cluster [K], queued gangs included."""
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
    """The job with the least dominant share first, its gang to the fastest kind that has room."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Array:
        """Isolated seconds [A, T, Y]."""
        return gang_seconds(topology, workload)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Least dominant share among jobs of which something fits, or wait."""
        where = free_placements(observation, observation.prepared)
        share = jnp.repeat(dominant_share(observation), observation.workload.kernel.shape[1])
        gang = pick_gang(observation, -share, placeable_gangs(observation, where))
        return state, place_best(observation, where, -where.seconds, gang)
