"""The scheduler's state. It has no clock of its own, does no I/O, and does not depend on where events come from.

Names of dimensions, here and in all array code (those of problems: `problem/arrays.py`):

    jobs     job slots                       gangs    jobs * tasks: gang i of the job in slot k is k * tasks + i
    tasks    gangs of a graph                workers  of a gang, at most
    devices                                  lanes    slots of all devices
    rows     resource rows                   hops     rows on the route of a device
    kinds    device kinds                    copies   memories remembered to hold an output
    kernels  graphs  edges                   spans    how far traffic goes, see `problem.topology`
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.clock import Amount
from symphony.scheduling.indexing import BoolScalar, FloatScalar, IntScalar

# Status of a gang. The order matters: statuses from PLACING to SAVING hold devices.
ABSENT, WAITING, READY, PLACING, QUEUED, RUNNING, SAVING, FINISHED, SAVED, DONE = range(10)
MAX_COPIES = 4
FREE, RECONFIGURING = -1, -2  # what a lane may hold beside a gang
UNCONFIGURED = -1


class Core(eqx.Module):
    """The scheduler's state."""

    # jobs in the system
    job: Int[Array, " jobs"]  # number in the trace, -1 = free slot
    graph: Int[Array, " jobs"]
    home: Int[Array, " jobs"]  # device whose memory holds the inputs
    priority: Int[Array, " jobs"]
    arrived: Amount  # [jobs]
    unfinished: Int[Array, " jobs"]  # gangs not yet done; of a dropped job, those that still hold devices
    dropped: Bool[Array, " jobs"]  # none of its gangs is placed again
    # gangs
    status: Int[Array, " gangs"]
    workers: Int[Array, " gangs"]
    runs_on: Int[Array, " gangs"]  # bit y set = device kind y can run it
    waiting_for: Int[Array, " gangs"]  # parents not yet done
    sequence: Int[Array, " gangs"]  # order in the queues
    placed: Int[Array, " gangs"]  # workers that have a device
    device: Int[Array, "gangs workers"]
    lane: Int[Array, "gangs workers"]  # while it holds lanes
    inputs_left: Int[Array, " gangs"]  # inputs still to be fetched
    resumed: Bool[Array, " gangs"]  # its next start must restore a checkpoint
    leaving: Bool[Array, " gangs"]  # to be taken off its devices before the next event
    copies: Int[Array, "gangs copies"]  # memories that hold its output, -1 = none; the first is the original
    copied: Int[Array, " gangs"]  # copies made
    held: Amount  # [gangs], seconds for which it was READY though it could have started: see `feasible.open_to`
    # devices
    up: Bool[Array, " devices"]
    memory_free: Int[Array, " devices"]  # in the unit of `kind_memory`
    lanes_free: Int[Array, " devices"]
    head: Int[Array, " devices"]  # gang at the head of the queue, -1 = empty
    head_needs: Int[Array, " devices"]  # memory that the head of the queue needs here, in the unit of `kind_memory`
    queued: Int[Array, " devices"]  # workers in the queue
    queued_s: Float[Array, " devices"]  # their isolated seconds
    fetches: Int[Array, " devices"]  # gangs in the queue whose inputs this device has yet to fetch
    # lanes
    lane_holds: Int[Array, " lanes"]  # gang, FREE or RECONFIGURING
    lane_kernel: Int[Array, " lanes"]  # kernel that it is configured for
    lane_setup: Bool[Array, " lanes"]  # reconfiguring, restoring or saving
    lane_since: Amount  # [lanes], when its worker started
    lane_estimate: Float[Array, " lanes"]  # isolated seconds of its worker
    # scalars
    jobs_seen: IntScalar
    jobs_done: IntScalar
    next_sequence: IntScalar
    releasing: IntScalar  # gang whose children are being released, -1 = none
    release_from: IntScalar  # its next child
    now: Amount  # time of the last event
    waited: BoolScalar  # the policy asked to wait …
    wake_s: FloatScalar  # … so many seconds at most; inf = until the next event
    offered: BoolScalar  # a decision is offered though no gang may be ready
    decisions: IntScalar
    refused: IntScalar
    # counter readings
    reading: Float[Array, " rows"]  # mean load of each row in the last window, without noise
    own_reading: Float[Array, " rows"]  # Symphony's own part of it
    windows: IntScalar  # windows so far


def empty(topology: TopologyArrays, workload: WorkloadArrays, job_slots: int, xp: Any = jnp) -> Core:
    """A core without jobs; `xp` is jax.numpy, or numpy outside of programs, where nothing is compiled then."""
    t, w = topology, workload
    k, tasks, workers = job_slots, w.kernel.shape[1], w.max_workers
    g, d, lanes, r = k * tasks, t.device_kind.shape[0], t.lane_device.shape[0], t.capacity.shape[0]

    def ints(*shape: int, fill: int = 0, dtype: type = jnp.int32) -> Array:
        return xp.full(shape, fill, dtype)

    def shorts(*shape: int, fill: int = 0) -> Array:
        return ints(*shape, fill=fill, dtype=jnp.int16)

    def bools(*shape: int) -> Array:
        return xp.zeros(shape, bool)

    return Core(
        job=ints(k, fill=-1),
        graph=ints(k),
        home=ints(k),
        priority=ints(k),
        arrived=Amount(ints(k), xp.zeros(k)),
        unfinished=ints(k),
        dropped=bools(k),
        status=ints(g, fill=ABSENT, dtype=jnp.int8),
        workers=shorts(g),
        runs_on=ints(g, dtype=jnp.int8 if t.kind_memory.shape[0] < 8 else jnp.int32),
        waiting_for=shorts(g),
        sequence=ints(g),
        placed=shorts(g),
        device=shorts(g, workers, fill=-1),
        lane=ints(g, workers, fill=-1, dtype=jnp.int16 if lanes < 2**15 else jnp.int32),
        inputs_left=shorts(g),
        resumed=bools(g),
        leaving=bools(g),
        copies=shorts(g, MAX_COPIES, fill=-1),
        copied=shorts(g),
        held=Amount(ints(g), xp.zeros(g)),
        up=xp.asarray(t.exists),
        memory_free=xp.asarray(t.kind_memory)[xp.asarray(t.device_kind)],
        lanes_free=xp.asarray(t.slots),
        head=ints(d, fill=-1),
        head_needs=ints(d),
        queued=ints(d),
        queued_s=xp.zeros(d),
        fetches=ints(d),
        lane_holds=xp.where(xp.asarray(t.lane_exists), ints(fill=FREE), ints(fill=RECONFIGURING)),
        lane_kernel=ints(lanes, fill=UNCONFIGURED),
        lane_setup=bools(lanes),
        lane_since=Amount(ints(lanes), xp.zeros(lanes)),
        lane_estimate=xp.zeros(lanes),
        jobs_seen=ints(),
        jobs_done=ints(),
        next_sequence=ints(),
        releasing=ints(fill=-1),
        release_from=ints(),
        now=Amount(ints(), xp.zeros(())),
        waited=xp.asarray(False),
        wake_s=xp.asarray(xp.inf, float),
        offered=xp.asarray(False),
        decisions=ints(),
        refused=ints(),
        reading=xp.zeros(r),
        own_reading=xp.zeros(r),
        windows=ints(),
    )
