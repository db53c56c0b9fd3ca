"""List scheduling of graphs: PEFT and CPOP. (HEFT is in `earliest_finish`.)

PEFT (Arabnejad and Barbosa, 2014) computes an optimistic cost table: for a task on a processor, the longest path from
there to the end if every later task had the processor that suits it best, transfers at their mean. The task of the
highest mean cost comes first; it goes to the processor with the least finish time plus optimistic cost.

CPOP (Topcuoglu, Hariri, Wu, 2002) adds upward and downward rank. The tasks whose sum equals that of the entry task form
the critical path; all of it goes to the one processor that runs it fastest. Other tasks go where they finish first, all
in order of that sum.

Ours decide when gangs become ready, because jobs arrive unannounced; so they append to queues and never insert. Costs
are per device kind, which is the same as per device where devices of a kind are alike. For CPOP the kind is chosen for
each graph (what it cannot run of the path counts with its mean time; set-up of FPGAs counts), and the number of the job
picks a device of that kind, so that jobs do not all choose the same one.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

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


def optimistic_cost(t: TopologyArrays, w: WorkloadArrays) -> Array:
    """PEFT's table: seconds from a gang's end on a device kind to the end of its graph, at best [A, T, Y]."""
    edges, seconds, tasks = data_edges(t, w), gang_seconds(t, w), w.kernel.shape[1]

    def relax(cost: Array) -> Array:
        child = gang_rows(cost + seconds, edges.target)  # [A, E, Y]
        # A child stays on the same device, or goes to the best of all and waits for the transfer.
        away = child.min(axis=-1) + edges.seconds
        return max_over_edges(edges.source, jnp.minimum(child, away[..., None]), tasks)

    return fixed_point(relax, jnp.zeros(seconds.shape), tasks)


class Peft(Policy):
    """Highest mean optimistic cost first, to the device with the least finish time plus optimistic cost."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Array, Array]:
        """The optimistic cost table [A, T, Y], and its mean over devices [A, T]."""
        cost = optimistic_cost(topology, workload)
        return cost, device_mean(topology, cost, jnp.isfinite(gang_seconds(topology, workload)))

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Highest rank; least finish plus what is to come."""
        cost, rank = observation.prepared
        gang = pick_gang(observation, observation.per_gang(rank))
        f = observation.facts(gang)
        to_come = take(cost[f.graph, f.index], observation.topology.device_kind)
        return state, place(gang, best_device(observation, gang, -(finish_s(observation, gang) + to_come)))


def downward_rank(t: TopologyArrays, w: WorkloadArrays, edges: DataEdges) -> Array:
    """Seconds of the longest path from the start of a graph to each gang, means over devices and links [A, T]."""
    seconds = gang_seconds(t, w)
    mean = device_mean(t, seconds, jnp.isfinite(seconds))

    def relax(rank: Array) -> Array:
        return max_over_edges(edges.target, gang_rows(rank + mean, edges.source) + edges.seconds, mean.shape[1])

    return fixed_point(relax, jnp.zeros(mean.shape), mean.shape[1])


def critical_path(w: WorkloadArrays, edges: DataEdges, priority: Array) -> Array:
    """The gangs of one longest path of every graph [A, T], given the length of the longest path through each gang."""
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

    priority: Array  # f[A, T], seconds: the longest path through each gang
    critical: Array  # bool[A, T]: on the critical path
    kind: Array  # i32[A]: the device kind for it


class Cpop(Policy):
    """Longest path through a gang first; the critical path goes to one device, the rest where it finishes first."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> CriticalPaths:
        """Priorities, critical paths, and the kind that runs each fastest."""
        edges, seconds = data_edges(topology, workload), gang_seconds(topology, workload)
        priority = workload.rank + downward_rank(topology, workload, edges)
        critical = critical_path(workload, edges, priority)
        # What a kind cannot run will run elsewhere: it counts with its mean, so that no kind wins by running nothing.
        able = jnp.isfinite(seconds)
        mean = device_mean(topology, seconds, able)[..., None]
        cost = jnp.where(able, seconds + topology.kind_reconfigure, mean)
        cost = jnp.where(critical[..., None], cost, 0).sum(axis=1)
        kind = jnp.where(devices_by_kind(topology) > 0, cost, jnp.inf).argmin(axis=-1)
        return CriticalPaths(priority, critical, kind)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Highest priority, to its job's device if critical, else least estimated finish."""
        paths, t = observation.prepared, observation.topology
        gang = pick_gang(observation, observation.per_gang(paths.priority))
        f = observation.facts(gang)
        alike = (t.device_kind == paths.kind[f.graph]) & t.exists
        turn = take(observation.core.job, f.slot) % jnp.maximum(alike.sum(), 1)
        chosen = alike & (jnp.cumsum(alike) - 1 == turn) & paths.critical[f.graph, f.index]
        score = jnp.where(chosen, jnp.inf, -finish_s(observation, gang))
        return state, place(gang, best_device(observation, gang, score))
