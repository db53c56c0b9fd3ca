"""How long a ready gang may be held back from a device on which it could start now.

Waiting has one good reason: the gang would finish earlier on another device later than on this one now. So a gang may
be held for as long as that gains it, and no longer; it then loses no more than it could have gained. The core counts
for how long each gang has been held (`Core.held`), whatever else is decided meanwhile. The rule does not depend on the
policy.

    gain = finish if it started now, on the best open device        (isolated time · slow-down under the belief)
         − earliest finish on any device                            (wait until the device is free + isolated time)

    time left = gain − time for which it was held

Transfers and reconfiguration are not considered: no device stays idle for those alone. Both finishes are estimated per
device kind: on the open device of the kind with the least load, and on the one that is free first.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem.arrays import TopologyArrays
from symphony.scheduling.feasible import open_devices, open_to
from symphony.scheduling.indexing import BoolScalar, FloatScalar, first_min, take
from symphony.scheduling.instant import demand
from symphony.scheduling.policy import Observation

MIN_WAIT_S = 1e-6  # a shorter wait moves the clock by next to nothing
MIN_SHARE = 1 / 64  # of the gain: with less than this left, a gang is not held again because of a rounding error


class Holding(eqx.Module):
    """For how long the gangs in the system may still be held back."""

    held: Bool[Array, " gangs"]  # it is READY and could start now
    gain_s: Float[Array, " gangs"]  # how much earlier it might finish if it waits; 0 or more
    left_s: Float[Array, " gangs"]  # seconds for which it may still be held; inf if it could not start now
    overdue: Bool[Array, " gangs"]  # no time is left
    here: Int[Array, " gangs"]  # device on which it could start now …
    there: Int[Array, " gangs"]  # … and the one where it might finish earlier

    @property
    def allowed(self) -> BoolScalar:
        """Whether to wait is allowed: no gang is overdue."""
        return ~self.overdue.any()

    @property
    def wait_s(self) -> FloatScalar:
        """Seconds after which the rule must be checked again; inf if no gang is held."""
        return self.left_s.min()


def holding(observation: Observation) -> Holding:
    """Apply the rule above to every gang in the system."""
    core, t, w = observation.core, observation.topology, observation.workload
    held = open_to(core, t) & observation.candidates
    kernel, work, units = (observation.per_gang(table) for table in (w.kernel, w.work, w.units))
    seconds = (w.time_fixed[kernel] + w.time_work[kernel] * work[:, None]) * units[:, None]
    able = (core.runs_on[:, None] >> jnp.arange(seconds.shape[1])) & 1 > 0
    seconds = jnp.where(able, seconds, jnp.inf)  # [gangs, kinds]

    load = observation.own_load + observation.background
    busiest = jnp.where(t.row_group[t.route_row] >= 0, take(load, t.route_row), 0).max(axis=1)
    least, here = best_of_kind(t, jnp.where(open_devices(core), busiest, jnp.inf))
    wait_s, there = best_of_kind(t, jnp.where(core.up, observation.queue_s, jnp.inf))
    need = demand(t, w, kernel[:, None], work[:, None], here)  # [gangs, kinds, hops]
    total = take(load, take(t.route_row, here)) + need
    slow = jnp.where(need > 0, jnp.maximum(total, 1), 1).max(axis=2)

    now_s, kind_now = first_min(jnp.where(jnp.isfinite(least), seconds * slow, jnp.inf))
    later_s, kind_later = first_min(seconds + wait_s)
    gain_s = jnp.where(held, jnp.maximum(now_s - later_s, 0), 0)
    left_s = jnp.where(held, gain_s - core.held.total, jnp.inf)
    overdue = held & (left_s <= jnp.maximum(MIN_SHARE * gain_s, MIN_WAIT_S))
    return Holding(held, gain_s, left_s, overdue, take(here, kind_now), take(there, kind_later))


def best_of_kind(
    t: TopologyArrays, key: Float[Array, " devices"]
) -> tuple[Float[Array, " kinds"], Int[Array, " kinds"]]:
    """The least key among the devices of each kind, and the first device that has it."""
    mine = t.device_kind == jnp.arange(t.kind_memory.shape[0])[:, None]
    least, device = first_min(jnp.where(mine & t.exists, key, jnp.inf))
    return least, jnp.minimum(device, key.shape[0] - 1)
