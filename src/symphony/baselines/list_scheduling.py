"""List scheduling of graphs: PEFT and CPOP. (HEFT is in `earliest_finish`.)

PEFT (Arabnejad and Barbosa, 2014) computes an optimistic cost table: for a task on a processor, the longest path from
there to the exit task if every later task had its best processor, with mean transfer times. The task of the highest
mean cost comes first; it is assigned to the processor with the least finish time plus optimistic cost.

CPOP (Topcuoglu, Hariri, Wu, 2002) orders tasks by the sum of upward and downward rank. The tasks whose sum equals that
of the entry task form the critical path; all of them are assigned to the processor that runs the path fastest. Other
tasks go to the processor with the earliest finish time.

Here both decide when gangs become ready, because jobs arrive unannounced; so they append to queues and never insert.
Costs are per device kind, which equals per device where devices of a kind are alike. For CPOP the kind is chosen for
each graph (gangs of the path that it cannot run count with their mean time; set-up of FPGAs counts), and the job number
picks a device of that kind, so that jobs do not all use the same one.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.estimate import finish_s
from symphony.scheduling.graph_tables import (
    DataEdges,
    data_edges,
    device_mean,
    devices_by_kind,
    fixed_point,
    gang_rows,
    gang_seconds,
    max_over_edges,
)
from symphony.scheduling.indexing import take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, pick_gang, place

GangTimes = Float[Array, "graphs tasks"]  # seconds


def optimistic_cost(t: TopologyArrays, w: WorkloadArrays) -> Float[Array, "graphs tasks kinds"]:
    """PEFT's table: seconds from a gang's finish on a device kind to the end of its graph, at best."""
    edges, seconds, tasks = data_edges(t, w), gang_seconds(t, w), w.kernel.shape[1]

    def relax(cost: Array) -> Array:
        child = gang_rows(cost + seconds, edges.target)  # [graphs, edges, kinds]
        # A child stays on the same device, or runs on its best device after the transfer.
        away = child.min(axis=-1) + edges.seconds
        return max_over_edges(edges.source, jnp.minimum(child, away[..., None]), tasks)

    return fixed_point(relax, jnp.zeros(seconds.shape), tasks)


class Peft(Policy):
    """Highest mean optimistic cost first, to the device with the least finish time plus optimistic cost."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Array, Array]:
        """The optimistic cost table [graphs, tasks, kinds], and its mean over devices [graphs, tasks]."""
        cost = optimistic_cost(topology, workload)
        return cost, device_mean(topology, cost, jnp.isfinite(gang_seconds(topology, workload)))

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        cost, rank = observation.prepared
        gang = pick_gang(observation, observation.per_gang(rank))
        f = observation.facts(gang)
        rest = take(cost[f.graph, f.index], observation.topology.device_kind)
        return state, place(gang, best_device(observation, gang, -(finish_s(observation, gang) + rest)))


def downward_rank(t: TopologyArrays, w: WorkloadArrays, edges: DataEdges) -> GangTimes:
    """Seconds of the longest path from the start of a graph to each gang, means over devices and links."""
    seconds = gang_seconds(t, w)
    mean = device_mean(t, seconds, jnp.isfinite(seconds))

    def relax(rank: Array) -> Array:
        return max_over_edges(edges.target, gang_rows(rank + mean, edges.source) + edges.seconds, mean.shape[1])

    return fixed_point(relax, jnp.zeros(mean.shape), mean.shape[1])


def critical_path(w: WorkloadArrays, edges: DataEdges, priority: GangTimes) -> Bool[Array, "graphs tasks"]:
    """The gangs of one longest path of every graph. `priority`: length of the longest path through each gang."""
    tasks = w.kernel.shape[1]
    numbers = jnp.arange(tasks)
    entry = (w.parents == 0) & (numbers < w.gangs[:, None])

    def walk(carry: tuple[Array, Array]) -> tuple[Array, Array]:
        at, path = carry
        path |= numbers == at[:, None]
        length = jnp.where((edges.source == at[:, None]) & (at < tasks)[:, None], gang_rows(priority, edges.target), -1)
        child = jnp.take_along_axis(edges.target, length.argmax(axis=1)[:, None], axis=1)[:, 0]
        return jnp.where(length.max(axis=1) >= 0, child, tasks).astype(at.dtype), path

    start = jnp.where(entry, priority, -1).argmax(axis=1).astype(edges.target.dtype)
    return jax.lax.while_loop(lambda c: (c[0] < tasks).any(), walk, (start, jnp.zeros(priority.shape, bool)))[1]


class CriticalPaths(eqx.Module):
    """What CPOP prepares for every graph."""

    priority: GangTimes  # the longest path through each gang
    critical: Bool[Array, "graphs tasks"]  # on the critical path
    kind: Int[Array, " graphs"]  # the device kind for the critical path


class Cpop(Policy):
    """Longest path through a gang first; the critical path on one device, other gangs by earliest finish time."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> CriticalPaths:
        edges, seconds = data_edges(topology, workload), gang_seconds(topology, workload)
        priority = workload.rank + downward_rank(topology, workload, edges)
        critical = critical_path(workload, edges, priority)
        # Gangs that a kind cannot run count with their mean time, so that no kind wins by running nothing.
        able = jnp.isfinite(seconds)
        mean = device_mean(topology, seconds, able)[..., None]
        cost = jnp.where(able, seconds + topology.kind_reconfigure, mean)
        cost = jnp.where(critical[..., None], cost, 0).sum(axis=1)
        kind = jnp.where(devices_by_kind(topology) > 0, cost, jnp.inf).argmin(axis=-1)
        return CriticalPaths(priority, critical, kind)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        paths, t = observation.prepared, observation.topology
        gang = pick_gang(observation, observation.per_gang(paths.priority))
        f = observation.facts(gang)
        alike = (t.device_kind == paths.kind[f.graph]) & t.exists
        turn = take(observation.core.job, f.slot) % jnp.maximum(alike.sum(), 1)
        chosen = alike & (jnp.cumsum(alike) - 1 == turn) & paths.critical[f.graph, f.index]
        score = jnp.where(chosen, jnp.inf, -finish_s(observation, gang))
        return state, place(gang, best_device(observation, gang, score))
