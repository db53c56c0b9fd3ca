"""What the scheduler knows. The core has no clock of its own, does no I/O, and does not know who sends the events.

K job slots   G = K*T gangs (gang i of the job in slot k is k*T + i)   W workers per gang
D devices     L lanes (slots of all devices)                            V remembered copies of an output
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.clock import Amount

# A gang's life. The order matters: statuses from PLACING to SAVING hold devices.
ABSENT, WAITING, READY, PLACING, QUEUED, RUNNING, SAVING, FINISHED, SAVED, DONE = range(10)
MAX_COPIES = 4
FREE, RECONFIGURING = -1, -2  # what a lane may hold beside a gang
UNCONFIGURED = -1


class Core(eqx.Module):
    """The scheduler's state."""

    # jobs in the system [K]
    job: Array  # i32: number in the trace, -1 = free slot
    graph: Array  # i32
    home: Array  # i32: device whose memory holds the inputs
    priority: Array  # i32
    arrived: Amount
    unfinished: Array  # i32: gangs not yet done; of a dropped job, those that still hold devices
    dropped: Array  # bool: nothing of it is placed again
    # gangs [G]
    status: Array  # i8
    workers: Array  # i16: how many it has
    runs_on: Array  # i8 or i32: bit y set = device kind y can run it
    waiting_for: Array  # i16: parents not yet done
    sequence: Array  # i32: order in the queues
    placed: Array  # i16: workers that have a device
    device: Array  # i16[G, W]
    lane: Array  # i16[G, W], or i32 for many lanes: while it holds lanes
    inputs_left: Array  # i16: inputs still to be fetched
    resumed: Array  # bool: its next start must restore a checkpoint
    leaving: Array  # bool: to be taken off its devices before anything else happens
    copies: Array  # i16[G, V]: memories that hold its output, -1 = none; the first is the original
    copied: Array  # i16: copies made
    held: Amount  # seconds for which it was READY though it could have started: see `feasible.open_to`
    # devices [D]
    up: Array  # bool
    memory_free: Array  # i32, in the unit of `kind_memory`
    lanes_free: Array  # i32
    head: Array  # i32: gang at the head of the queue, -1 = empty
    head_needs: Array  # i32, in the unit of `kind_memory`: memory that the head of the queue needs here
    queued: Array  # i32: workers in the queue
    queued_s: Array  # f: their isolated seconds
    fetches: Array  # i32: gangs in the queue whose inputs this device has yet to fetch
    # lanes [L]
    lane_holds: Array  # i32: gang, FREE or RECONFIGURING
    lane_kernel: Array  # i32: what it is configured for
    lane_setup: Array  # bool: reconfiguring, restoring or saving
    lane_since: Amount  # when its worker started
    lane_estimate: Array  # f: isolated seconds of its worker
    # scalars
    jobs_seen: Array  # i32
    jobs_done: Array  # i32
    next_sequence: Array  # i32
    releasing: Array  # i32: gang whose children are being told, -1 = none
    release_from: Array  # i32: its next child
    now: Amount  # the time that it was last told
    waited: Array  # bool: the policy asked to wait …
    wake_s: Array  # f: … so many seconds at most; inf = until the next event
    offered: Array  # bool: a decision is offered though no gang may be ready
    decisions: Array  # i32
    refused: Array  # i32
    # counter readings [R]
    reading: Array  # f: mean load of each row in the last window, without noise
    own_reading: Array  # f: what Symphony's own work contributed to it
    windows: Array  # i32: windows so far


def empty(topology: TopologyArrays, workload: WorkloadArrays, job_slots: int) -> Core:
    """The state before the first event."""
    t, w = topology, workload
    k, tasks, workers = job_slots, w.kernel.shape[1], w.max_workers
    g, d, lanes, r = k * tasks, t.device_kind.shape[0], t.lane_device.shape[0], t.capacity.shape[0]

    def ints(*shape: int, fill: int = 0, dtype: type = jnp.int32) -> Array:
        return jnp.full(shape, fill, dtype)

    def shorts(*shape: int, fill: int = 0) -> Array:
        return ints(*shape, fill=fill, dtype=jnp.int16)

    def floats(*shape: int) -> Array:
        return jnp.zeros(shape)

    def bools(*shape: int) -> Array:
        return jnp.zeros(shape, bool)

    return Core(
        job=ints(k, fill=-1),
        graph=ints(k),
        home=ints(k),
        priority=ints(k),
        arrived=Amount(ints(k), floats(k)),
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
        held=Amount(ints(g), floats(g)),
        up=jnp.asarray(t.exists),
        memory_free=jnp.asarray(t.kind_memory)[jnp.asarray(t.device_kind)],
        lanes_free=jnp.asarray(t.slots),
        head=ints(d, fill=-1),
        head_needs=ints(d),
        queued=ints(d),
        queued_s=floats(d),
        fetches=ints(d),
        lane_holds=jnp.where(jnp.asarray(t.lane_exists), ints(fill=FREE), ints(fill=RECONFIGURING)),
        lane_kernel=ints(lanes, fill=UNCONFIGURED),
        lane_setup=bools(lanes),
        lane_since=Amount(ints(lanes), floats(lanes)),
        lane_estimate=floats(lanes),
        jobs_seen=ints(),
        jobs_done=ints(),
        next_sequence=ints(),
        releasing=ints(fill=-1),
        release_from=ints(),
        now=Amount(ints(), floats()),
        waited=jnp.asarray(False),
        wake_s=jnp.asarray(jnp.inf, float),
        offered=jnp.asarray(False),
        decisions=ints(),
        refused=ints(),
        reading=floats(r),
        own_reading=floats(r),
        windows=ints(),
    )
