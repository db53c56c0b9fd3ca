"""Graphene (Grandl, Kandula, Rao, Akella, Kulkarni, 2016): troublesome tasks first.

For every graph, Graphene finds the tasks that a greedy scheduler would leave to the end or fail to pack: long tasks,
and tasks of stages that leave resources unused when packed by themselves. It closes that set under paths between its
members, places it first in a virtual schedule, then the other tasks around it: ancestors backwards in time, unrelated
tasks, descendants forwards. At run time a task's position in that order multiplies its packing score (the dot product
of demands and free resources), and the remaining work of its job is subtracted.

Differences here: the virtual schedule is reduced to its order: troublesome gangs and their ancestors, then unrelated
gangs, then descendants; by upward rank within each. Graphene tries several thresholds in virtual schedules and keeps
the best; here they are fixed: a gang is troublesome if it takes at least half as long as the longest of its graph, or
if a device of its fastest kind, packed with that kernel alone, is at most half full. Packing is that of `packing`.
Fairness between jobs is not implemented.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.baselines.packing import (
    alignment_scores,
    free_placements,
    gang_work,
    place_best,
    placeable_gangs,
    shortest_first,
)
from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.graph_tables import DataEdges, data_edges, fixed_point, gang_rows, gang_seconds, max_over_edges
from symphony.scheduling.indexing import first
from symphony.scheduling.policy import Action, Observation, Policy, pick_gang

MIN_LONG_SHARE = 0.5  # of the longest gang of the graph
MIN_HARD_TO_PACK_SHARE = 0.5  # of the bottleneck row
GangMask = Bool[Array, "graphs tasks"]
EdgeEnds = Int[Array, "graphs edges"]
KindTable = Float[Array, "graphs tasks kinds"]


def fullness(t: TopologyArrays, w: WorkloadArrays) -> KindTable:
    """Load of the bottleneck row of a device of each kind, packed with one gang's kernel alone."""
    kinds = jnp.arange(t.kind_memory.shape[0])
    device = first((t.device_kind == kinds[:, None]) & t.exists)  # a representative of each kind
    rows, resources = t.route_row.at[device].get(mode="clip"), t.route_kind.at[device].get(mode="clip")  # [Y, H]
    at = (slice(None), kinds[:, None], resources)
    share = (w.demand_fixed[at][w.kernel] + w.work[..., None, None] * w.demand_work[at][w.kernel]) / t.capacity[rows]
    most_used = share.max(axis=-1)
    slots = t.slots.at[device].get(mode="clip")
    workers = jnp.clip(jnp.floor(1 / jnp.maximum(most_used, 1e-9) + 1e-6), 1, slots)
    return jnp.minimum(workers * most_used, 1)


def troublesome(t: TopologyArrays, w: WorkloadArrays, edges: DataEdges) -> GangMask:
    """Gangs that are long or hard to pack, and all gangs on paths between them."""
    seconds, tasks = gang_seconds(t, w), w.kernel.shape[1]
    exists = jnp.arange(tasks) < w.gangs[:, None]
    least = jnp.where(exists, seconds.min(axis=-1), 0)
    packed = jnp.take_along_axis(fullness(t, w), seconds.argmin(axis=-1)[..., None], axis=-1)[..., 0]
    seeds = exists & (
        (least >= MIN_LONG_SHARE * least.max(axis=1, keepdims=True))
        | ((packed > 0) & (packed <= MIN_HARD_TO_PACK_SHARE))
    )
    return seeds | (
        gangs_on_paths_to(edges.source, edges.target, seeds) & gangs_on_paths_to(edges.target, edges.source, seeds)
    )


def gangs_on_paths_to(start: EdgeEnds, end: EdgeEnds, seeds: GangMask) -> GangMask:
    """Gangs from which a path of edges, each from its `start` to its `end`, leads to one of the seeds."""
    tasks = seeds.shape[1]
    marks = seeds.astype(jnp.float32)

    def relax(reached: Array) -> Array:
        beyond = jnp.where(end < tasks, gang_rows(jnp.maximum(reached, marks), end), 0)
        return max_over_edges(start, beyond, tasks)

    return fixed_point(relax, jnp.zeros(seeds.shape), tasks) > 0


def placement_class(t: TopologyArrays, w: WorkloadArrays) -> Int[Array, "graphs tasks"]:
    """2 for troublesome gangs and their ancestors, 1 for unrelated gangs, 0 for descendants."""
    edges = data_edges(t, w)
    trouble = troublesome(t, w, edges)
    needed = trouble | gangs_on_paths_to(edges.source, edges.target, trouble)
    follows = gangs_on_paths_to(edges.target, edges.source, trouble) & ~needed
    return jnp.where(needed, 2, jnp.where(follows, 0, 1))


class Graphene(Policy):
    """Troublesome gangs and their ancestors first, packed where demands align best with free resources."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Array, Array, Array]:
        """Order in the graph (1 = first) [graphs, tasks], isolated seconds [graphs, tasks, kinds], and work."""
        rank = workload.rank / jnp.maximum(workload.rank.max(axis=1, keepdims=True), 1e-30)
        order = (placement_class(topology, workload) + rank) / 3
        return order, gang_seconds(topology, workload), gang_work(topology, workload)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        order, seconds, work = observation.prepared
        where = free_placements(observation, seconds)
        alignment, go = alignment_scores(where), placeable_gangs(observation, where)
        score = observation.per_gang(order * alignment.max(axis=-1))
        gang = pick_gang(observation, shortest_first(observation, go, score, work), go)
        return state, place_best(observation, where, alignment, gang)
