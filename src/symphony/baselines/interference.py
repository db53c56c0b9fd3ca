"""Two simple policies for shared machines: least interference first, and load balancing.

*Least interference first* (a baseline of Bao, Peng and Wu, 2019, whose Harmony places workers of training jobs)
predicts the interference of jobs on the same server with a linear model, and picks the server with the least. *Load
balancing* picks the server with the lowest utilisation.

Here, interference on a device is the sum over the rows of its route of the gang's demand times the present load (own
load and the belief mean of the background); differences below 0.05 are ignored, and ties go to the fastest device. Only
devices with a free slot and an empty queue are considered; the oldest gang with a worthwhile device
(`worthwhile_kinds`) is placed first. Where there are beliefs about co-location (training jobs, which have no demands on
rows), the predicted slow-down of the gang and its neighbours is added. For load balancing, the load of a device is that
of the busiest row on its route, plus its occupied slots and its queue over its slots; speeds are ignored.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.speeds import MIN_KEPT_SPEED
from symphony.scheduling.estimate import needs
from symphony.scheduling.graph_tables import count_by_kind, gang_seconds, seconds_now, worthwhile_kinds
from symphony.scheduling.indexing import IntScalar, take
from symphony.scheduling.policy import (
    Action,
    Observation,
    Policy,
    best_device,
    best_feasible,
    idle_devices,
    pick_gang,
    place,
)
from symphony.scheduling.state import PLACING

INTERFERENCE_RESOLUTION = 0.05  # smaller differences are ignored
MAX_INTERFERENCE = 1 / MIN_KEPT_SPEED  # of two kernels that must not share a device


def interference(observation: Observation, gang: IntScalar) -> Float[Array, " devices"]:
    """Demand of a gang on the rows of each device, times their present load, plus `believed_interference`."""
    load = take(observation.own_load + observation.background, observation.topology.route_row)
    return (needs(observation, gang) * load).sum(axis=1) + believed_interference(observation, gang)


def believed_interference(observation: Observation, gang: IntScalar) -> Float[Array, " devices"]:
    """Relative slow-down of a gang and of the gangs on each device by one another, by the beliefs about co-location."""
    core, t = observation.core, observation.topology
    if observation.believed is None:
        return jnp.zeros(core.up.shape)
    kernel = observation.per_gang(observation.workload.kernel)
    mine, other, kind = take(kernel, gang), take(kernel, core.lane_holds), take(t.device_kind, t.lane_device)
    kept = jnp.asarray(observation.believed.mean.beside)
    slower = sum(1 / jnp.maximum(kept[a, b, kind], MIN_KEPT_SPEED) - 1 for a, b in ((mine, other), (other, mine)))
    return jnp.zeros(core.up.shape).at[t.lane_device].add(jnp.where(core.lane_holds >= 0, slower, 0))


def oldest_placeable(
    observation: Observation, seconds: Float[Array, "graphs tasks kinds"]
) -> tuple[IntScalar, Bool[Array, " devices"]]:
    """The oldest gang with enough idle devices, one of a worthwhile kind, and its worthwhile idle devices.

    `seconds` decide which kinds are worthwhile, and are inf where a gang cannot run. All devices are allowed for a gang
    of which some workers were placed.
    """
    idle = idle_devices(observation)
    worth, free = worthwhile_kinds(observation, seconds), count_by_kind(observation, idle)
    enough = (jnp.isfinite(seconds) * free).sum(axis=-1) >= observation.workload.workers
    partly = observation.core.status == PLACING
    placeable = (worth & (free > 0)).any(axis=-1) & enough
    gang = pick_gang(observation, among=observation.per_gang(placeable) | partly)
    f = observation.facts(gang)
    return gang, (idle & take(worth[f.graph, f.index], observation.topology.device_kind)) | take(partly, gang)


class LeastInterference(Policy):
    """The oldest gang with a worthwhile idle device is placed where interference is least; ties: the fastest device."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Float[Array, "graphs tasks kinds"]:
        return gang_seconds(topology, workload)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang, here = oldest_placeable(observation, seconds_now(observation, observation.prepared))
        met = interference(observation, gang)
        steps = jnp.floor(met / INTERFERENCE_RESOLUTION) + ~idle_devices(observation)
        time = observation.seconds(gang)
        score = jnp.where(here & (met < MAX_INTERFERENCE / 2), -(steps + time / (1 + time)), -jnp.inf)
        return state, place(gang, best_device(observation, gang, score))


class LoadBalancing(Policy):
    """The oldest gang is placed on the device with the lowest load."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        core, t = observation.core, observation.topology
        rows = take(observation.own_load + observation.background, t.route_row).max(axis=1)
        workers = (core.queued + t.slots - core.lanes_free) / jnp.maximum(t.slots, 1)
        return state, best_feasible(observation, -(rows + workers))
