"""What learned policies may not choose, whatever their weights (how long they may wait: `scheduling/holding.py`).

**Placement.** A gang may go to a device if its estimated cost there (`scheduling/estimate.py`: seconds until it
finishes, and those by which it delays others) is at most

    (1 + MAX_REGRET) · least cost on any device

in the mean under the belief. Two terms are corrected. A worker that has run for longer than estimated would seem to be
done at once: here it counts with OVERRUN of the time for which it has run. And loads of our own would seem to last for
as long as the gang runs: here they last for as long as all work in the system would take on all slots, and only so long
can the gang delay others. Otherwise short gangs, gone in a second, would send a gang of minutes to a far slower device.

**Order.** A job is overdue once its slow-down, if it went on alone from now, is MAX_DELAY times the mean of the others
in the system. While an overdue job has gangs to place, only those may be placed. Slow-downs grow alike under load: so
jobs may overtake others at any load, but not for ever.

**Queues.** A gang that is placed is due after DUE times the time that its job still needs: its longest path, or if that
is longer, all its gangs on all slots together. Queues are in order of that. So gangs of short jobs do not wait behind
those of long ones, and a gang is overtaken only by gangs that are placed before it is due, by none of its own job, and
by none of lower priority.

**Next.** A gang that would be first in the queue of its best device, ahead of others, is placed next, and not held:
otherwise those others would start before it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.scheduling.estimate import EstimateParts, SomeDevices, estimate_parts, slowdown
from symphony.scheduling.feasible import open_devices
from symphony.scheduling.indexing import FloatScalar, IntScalar, take
from symphony.scheduling.policy import Observation
from symphony.scheduling.state import QUEUED, Core

MAX_REGRET, MAX_DELAY, DUE = 0.5, 32.0, 4.0  # chosen; docs/lab/harmless.md
OVERRUN = 0.1  # about the error of a profile
TICKS_PER_S = 1000.0  # of the times by which queues are ordered
FIRST_ORDER = -(2**31)  # as far from 0 as 24 days; what is due later is first in, first out


def trusted(
    observation: Observation,
    gang: IntScalar,
    able: Bool[Array, " some"],
    work_s: FloatScalar,
    devices: SomeDevices = None,
) -> Bool[Array, " some"]:
    """Devices among the `able` ones that a gang may be placed on: the best one, and those not far behind it.

    `work_s`: seconds after which loads of our own are gone.
    """
    parts = estimate_parts(observation, gang, observation.background, observation.background_std, devices)
    parts = passing_loads(observation, gang, parts, work_s, devices)
    wait_s = overrun_s(observation)
    parts = replace(parts, queue=jnp.maximum(parts.queue, wait_s if devices is None else take(wait_s, devices)))
    able &= jnp.isfinite(parts.cost)
    return able & (parts.cost <= (1 + MAX_REGRET) * jnp.where(able, parts.cost, jnp.inf).min())


def passing_loads(
    observation: Observation, gang: IntScalar, parts: EstimateParts, work_s: FloatScalar, devices: SomeDevices = None
) -> EstimateParts:
    """The same terms if loads of our own last for `work_s`: only others slow the rest of the run."""
    alone = replace(observation, own_load=jnp.zeros(observation.own_load.shape))
    others = slowdown(alone, gang, observation.background, observation.background_std, devices).mean
    run_s = parts.run * parts.slow
    share = jnp.where(run_s > work_s, work_s / run_s, 1)  # of the run, under loads of our own
    return replace(parts, slow=share * parts.slow + (1 - share) * others, harm=share * parts.harm)


def overrun_s(observation: Observation) -> Float[Array, " devices"]:
    """Seconds until a slot of each device is free, at least, by how long its workers have run; 0 if one is free."""
    core, t = observation.core, observation.topology
    ran = jnp.where(core.lane_holds >= 0, observation.now.minus(core.lane_since), 0)
    least = jax.ops.segment_min(jnp.where(t.lane_exists, ran, jnp.inf), t.lane_device, t.exists.shape[0])
    return jnp.where(open_devices(core) | ~jnp.isfinite(least), 0, OVERRUN * least)


def overdue_jobs(
    there: Bool[Array | np.ndarray, " jobs"], slow: Float[Array | np.ndarray, " jobs"], xp: Any = jnp
) -> Bool[Array | np.ndarray, " jobs"]:
    """Jobs that are `there` and whose slow-down is far above the mean of the others. `xp`: jax.numpy or numpy."""
    slow = xp.where(there, slow, 0)
    others = xp.maximum(there.sum() - 1, 1)
    return there & (slow > MAX_DELAY * xp.maximum((slow.sum() - slow) / others, 1))


def queue_order(
    observation: Observation, job: Int[Array, " some"], need_s: Float[Array, " some"]
) -> Int[Array, " some"]:
    """Sequence numbers for candidates that are placed now: below 0, or 0 = behind all others.

    `job`, `need_s`: the slot of the job of each, and the time that it still needs at least.
    """
    core, tasks = observation.core, observation.workload.kernel.shape[1]
    ticks = (observation.now.total + DUE * need_s) * TICKS_PER_S
    order = jnp.where(ticks < float(-FIRST_ORDER), ticks.astype(jnp.int32) + FIRST_ORDER, 0)
    last = jnp.where(core.status == QUEUED, core.sequence, FIRST_ORDER).reshape(-1, tasks).max(axis=1)  # of each job
    mine = jnp.where(observation.candidates, jnp.repeat(core.priority, tasks), FIRST_ORDER).max()  # no other is placed
    higher = jnp.where(core.priority > mine, last, FIRST_ORDER).max()
    return jnp.maximum(order, jnp.maximum(take(last, job), higher) + 1)


def first_in_queue(core: Core, order: Int[Array, " some"], device: Int[Array, " some"]) -> Bool[Array, " some"]:
    """Whether gangs with these sequence numbers (`queue_order`) would be ahead of all others in a device's queue."""
    head = take(core.head, device)
    return (order < 0) & (head >= 0) & (order < take(core.sequence, head))
