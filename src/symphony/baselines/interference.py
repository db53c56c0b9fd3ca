"""Two simple policies for shared machines: least interference first, and load balancing.

*Least interference first* (a baseline of Bao, Peng and Wu, 2019, whose Harmony places workers of training jobs)
predicts with a linear model how much those who share a server disturb one another, and picks the server with the least.
*Load balancing* picks the server with the lowest utilisation.

Ours: interference on a device is the sum over the rows of its route of what the gang asks for times what the row
carries already, ours and, as far as the belief tells, that of tenants; differences below 0.05 do not count, and among
equals the fastest device wins. Only devices with a free slot and no queue are looked at; the oldest gang for which
there is one worth taking (`tables.worth_it`) comes first. Where it is told what kernels keep of their speed beside one
another (training jobs, which demand nothing of rows), what a gang and its neighbours lose is added. For load balancing,
the load of a device is that of the busiest row on its route, plus its occupied slots and its queue over its slots; it
looks at no speed.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.speeds import MIN_KEPT_SPEED
from symphony.scheduling.estimate import needs
from symphony.scheduling.graph_tables import count_by_kind, gang_seconds, seconds_now, worthwhile_kinds
from symphony.scheduling.indexing import take
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

INTERFERENCE_RESOLUTION = 0.05  # differences of interference that count
MAX_INTERFERENCE = 1 / MIN_KEPT_SPEED  # interference of two who must not share


def interference(observation: Observation, gang: Array) -> Array:
    """What a gang asks of the rows of each device, times what these carry already [D]."""
    load = take(observation.own_load + observation.background, observation.topology.route_row)
    return (needs(observation, gang) * load).sum(axis=1) + believed_interference(observation, gang)


def believed_interference(observation: Observation, gang: Array) -> Array:
    """How much longer a gang and those who run on each device take beside one another, as it is told [D]."""
    core, t = observation.core, observation.topology
    if observation.believed is None:
        return jnp.zeros(core.up.shape)
    kernel = observation.per_gang(observation.workload.kernel)
    mine, other, kind = take(kernel, gang), take(kernel, core.lane_holds), take(t.device_kind, t.lane_device)
    kept = jnp.asarray(observation.believed.mean.beside)
    slower = sum(1 / jnp.maximum(kept[a, b, kind], MIN_KEPT_SPEED) - 1 for a, b in ((mine, other), (other, mine)))
    return jnp.zeros(core.up.shape).at[t.lane_device].add(jnp.where(core.lane_holds >= 0, slower, 0))


class LeastInterference(Policy):
    """The oldest gang that has a device to go to goes where it meets the least interference."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> Array:
        """Isolated seconds [A, T, Y]."""
        return gang_seconds(topology, workload)

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Oldest gang, least interference, then fastest; or wait."""
        t, idle = observation.topology, idle_devices(observation)
        seconds = seconds_now(observation, observation.prepared)
        worth = worthwhile_kinds(observation, seconds)
        free = count_by_kind(observation, idle)
        enough = (jnp.isfinite(seconds) * free).sum(axis=-1) >= observation.workload.workers
        partly = observation.core.status == PLACING
        found = (worth & (free > 0)).any(axis=-1) & enough
        gang = pick_gang(observation, among=observation.per_gang(found) | partly)

        f = observation.facts(gang)
        here = (idle & take(worth[f.graph, f.index], t.device_kind)) | take(partly, gang)
        met = interference(observation, gang)
        steps = jnp.floor(met / INTERFERENCE_RESOLUTION) + ~idle
        time = observation.seconds(gang)
        score = jnp.where(here & (met < MAX_INTERFERENCE / 2), -(steps + time / (1 + time)), -jnp.inf)
        return state, place(gang, best_device(observation, gang, score))


class LoadBalancing(Policy):
    """The oldest gang goes to the device with the lowest load."""

    def init(self, topology: TopologyArrays) -> None:
        """No state."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        """Oldest gang, least loaded device."""
        core, t = observation.core, observation.topology
        rows = take(observation.own_load + observation.background, t.route_row).max(axis=1)
        workers = (core.queued + t.slots - core.lanes_free) / jnp.maximum(t.slots, 1)
        return state, best_feasible(observation, -(rows + workers))
