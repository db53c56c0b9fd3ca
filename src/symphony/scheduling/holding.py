"""How long a ready gang may be held back from a device on which it could start now.

Waiting has one good reason: the gang would finish earlier elsewhere later than it would here now. So a gang may be held
for as long as that gains it, and no longer; then it has lost no more than it could have gained. The core counts for
how long each gang has been held (`Core.held`), whatever else is decided meanwhile; what a policy prefers plays no part.

    gain = finish if it started now, on the best open device        (isolated time · slow-down by what is believed)
         − earliest finish on any device                            (wait until the device is free + isolated time)

    time left = gain − time for which it was held

Transfers and reconfiguration are left aside: for the sake of those alone no device stays idle. Both finishes are
estimated per device kind: on the open device of the kind with the least load, and on the one that is free first.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays
from symphony.scheduling.feasible import open_devices, open_to
from symphony.scheduling.indexing import first_min, take
from symphony.scheduling.instant import demand
from symphony.scheduling.policy import Observation

MIN_WAIT_S = 1e-6  # a wait that is shorter moves the clock by next to nothing
MIN_SHARE = 1 / 64  # of the gain: who has less than this left is not held again for the sake of a rounding error


class Holding(eqx.Module):
    """For how long the gangs in the system may still be held [G]."""

    held: Array  # bool: it is READY and could start now
    gain_s: Array  # f: by how much earlier it might finish if it waits; 0 or more
    left_s: Array  # f: seconds for which it may still be held; inf for those who could not start now
    overdue: Array  # bool: no time is left
    here: Array  # i32: device on which it could start now …
    there: Array  # i32: … and the one where it might finish earlier

    @property
    def allowed(self) -> Array:
        """Whether to wait: everyone who could start now still has time left."""
        return ~self.overdue.any()

    @property
    def wait_s(self) -> Array:
        """How long to wait at most before that is checked again; inf if nobody is held."""
        return self.left_s.min()


def holding(observation: Observation) -> Holding:
    """What the rule above says of every gang in the system."""
    core, t, w = observation.core, observation.topology, observation.workload
    held = open_to(core, t) & observation.candidates
    kernel, work, units = (observation.per_gang(table) for table in (w.kernel, w.work, w.units))
    seconds = (w.time_fixed[kernel] + w.time_work[kernel] * work[:, None]) * units[:, None]
    able = (core.runs_on[:, None] >> jnp.arange(seconds.shape[1])) & 1 > 0
    seconds = jnp.where(able, seconds, jnp.inf)  # [G, Y]

    load = observation.own_load + observation.background
    busiest = jnp.where(t.row_group[t.route_row] >= 0, take(load, t.route_row), 0).max(axis=1)
    least, here = best_of_kind(t, jnp.where(open_devices(core), busiest, jnp.inf))
    wait_s, there = best_of_kind(t, jnp.where(core.up, observation.queue_s, jnp.inf))
    need = demand(t, w, kernel[:, None], work[:, None], here)  # [G, Y, H]
    total = take(load, take(t.route_row, here)) + need
    slow = jnp.where(need > 0, jnp.maximum(total, 1), 1).max(axis=2)

    now_s, kind_now = first_min(jnp.where(jnp.isfinite(least), seconds * slow, jnp.inf))
    later_s, kind_later = first_min(seconds + wait_s)
    gain_s = jnp.where(held, jnp.maximum(now_s - later_s, 0), 0)
    left_s = jnp.where(held, gain_s - core.held.total, jnp.inf)
    overdue = held & (left_s <= jnp.maximum(MIN_SHARE * gain_s, MIN_WAIT_S))
    return Holding(held, gain_s, left_s, overdue, take(here, kind_now), take(there, kind_later))


def best_of_kind(t: TopologyArrays, key: Array) -> tuple[Array, Array]:
    """The least value of a key [D] among the devices of each kind [Y], and the first device that has it."""
    mine = t.device_kind == jnp.arange(t.kind_memory.shape[0])[:, None]
    least, device = first_min(jnp.where(mine & t.exists, key, jnp.inf))
    return least, jnp.minimum(device, key.shape[0] - 1)
