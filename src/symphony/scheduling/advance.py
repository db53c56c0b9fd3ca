"""Event handlers and actions: how each changes the scheduler's state.

Every function is `(core, …, when) -> core`. It changes nothing where `when` is false, so that one compiled step can
serve scenarios that are at different points. Each touches one gang or one device.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import GangFacts, candidates, facts, fits, memory_by_kind, open_to, seconds_by_kind
from symphony.scheduling.indexing import (
    NO_INDEX,
    BoolScalar,
    IntScalar,
    add_all,
    compute_once,
    first,
    first_min,
    put,
    put_all,
    take,
)
from symphony.scheduling.policy import PLACE, PREEMPT, RECONFIGURE, WAIT, Action
from symphony.scheduling.state import (
    ABSENT,
    DONE,
    FINISHED,
    FREE,
    MAX_COPIES,
    PLACING,
    QUEUED,
    READY,
    RECONFIGURING,
    RUNNING,
    SAVED,
    SAVING,
    UNCONFIGURED,
    WAITING,
    Core,
)


class Arrival(eqx.Module):
    """A job that arrives."""

    graph: IntScalar
    home: IntScalar  # device whose memory holds its inputs
    priority: IntScalar
    at: Amount


def time_moved(core: Core, t: TopologyArrays, now: Amount) -> Core:
    """Set the clock. READY gangs that could have started in the meantime were held for that time."""
    passed = jnp.where(open_to(core, t), now.minus(core.now), 0)
    return replace(core, now=now, held=core.held.plus(passed))


def woken(core: Core, when: BoolScalar) -> Core:
    """An event has happened, or the time to wait has passed: the policy may be asked again."""
    return replace(core, waited=core.waited & ~when)


def job_arrived(core: Core, w: WorkloadArrays, when: BoolScalar) -> Core:
    """Admit the next job of the trace."""
    number = core.jobs_seen
    at = Amount(w.arrival_whole, w.arrival_part).take(number)
    return admit(core, w, Arrival(take(w.graph, number), take(w.home, number), take(w.priority, number), at), when)


def admit(core: Core, w: WorkloadArrays, job: Arrival, when: BoolScalar) -> Core:
    """Put a job into the first free job slot; there must be one. Jobs are numbered in order of admission."""
    number = core.jobs_seen
    slot, graph = compute_once((first(core.job < 0), job.graph))
    tasks = w.kernel.shape[1]
    mine = ((jnp.arange(core.job.shape[0]) == slot) & when)[:, None]

    def fill(old: Array, new: Array) -> Array:
        return jnp.where(mine, new.astype(old.dtype), old.reshape(-1, tasks)).reshape(-1)

    parents = w.parents[graph]
    inputs = w.in_start[graph, 1:] - w.in_start[graph, :-1]
    fresh = jnp.where(parents > 0, WAITING, READY)
    exists = jnp.arange(tasks) < w.gangs[graph]
    return replace(
        core,
        job=put(core.job, slot, number, when),
        graph=put(core.graph, slot, graph, when),
        home=put(core.home, slot, job.home, when),
        priority=put(core.priority, slot, job.priority, when),
        arrived=core.arrived.put(slot, job.at, when),
        unfinished=put(core.unfinished, slot, w.gangs[graph], when),
        dropped=put(core.dropped, slot, False, when),
        status=fill(core.status, jnp.where(exists, fresh, ABSENT)),
        workers=fill(core.workers, w.workers[graph]),
        runs_on=fill(core.runs_on, w.runs_on[graph]),
        waiting_for=fill(core.waiting_for, parents),
        inputs_left=fill(core.inputs_left, inputs),
        placed=fill(core.placed, jnp.zeros(tasks, jnp.int32)),
        copied=fill(core.copied, jnp.zeros(tasks, jnp.int32)),
        held=Amount(fill(core.held.whole, jnp.zeros(tasks)), fill(core.held.part, jnp.zeros(tasks))),
        resumed=fill(core.resumed, jnp.zeros(tasks, bool)),
        jobs_seen=core.jobs_seen + when,
    )


def gang_entered(core: Core, w: WorkloadArrays, gang: IntScalar, when: BoolScalar) -> Core:
    """A gang without missing parents joins a job that is in the system, in a place that no other gang has now."""
    slot, index = gang // w.kernel.shape[1], gang % w.kernel.shape[1]
    graph = take(core.graph, slot)
    when = when & (take(core.job, slot) >= 0) & ~take(core.dropped, slot)
    zero = Amount(jnp.zeros((), jnp.int32), jnp.zeros(()))
    return replace(
        core,
        unfinished=put(core.unfinished, slot, take(core.unfinished, slot) + 1, when),
        status=put(core.status, gang, READY, when),
        workers=put(core.workers, gang, w.workers[graph, index], when),
        runs_on=put(core.runs_on, gang, w.runs_on[graph, index], when),
        inputs_left=put(core.inputs_left, gang, 0, when),
        copied=put(core.copied, gang, 0, when),
        held=core.held.put(gang, zero, when),
        resumed=put(core.resumed, gang, False, when),
    )


def job_dropped(core: Core, w: WorkloadArrays, slot: IntScalar, when: BoolScalar) -> Core:
    """Give up a job: queued gangs leave, running gangs leave when they have stopped, and none starts again.

    To be called between instants, when no children are being released.
    """
    when = when & (take(core.job, slot) >= 0) & ~take(core.dropped, slot)
    mine = (jnp.arange(core.status.shape[0]) // w.kernel.shape[1] == slot) & when
    holds = (core.status >= PLACING) & (core.status < DONE)
    held = (mine & holds).sum(dtype=jnp.int32)
    gone = when & (held == 0)
    return replace(
        core,
        job=put(core.job, slot, -1, gone),
        jobs_done=core.jobs_done + gone,
        unfinished=put(core.unfinished, slot, held, when),
        dropped=put(core.dropped, slot, True, when),
        status=jnp.where(mine & ~holds, jnp.int8(ABSENT), core.status),
        leaving=core.leaving | (mine & ((core.status == PLACING) | (core.status == QUEUED))),
    )


def place_worker(
    core: Core,
    t: TopologyArrays,
    w: WorkloadArrays,
    gang: IntScalar,
    f: GangFacts,
    device: IntScalar,
    when: BoolScalar,
    order: IntScalar | int = 0,
) -> Core:
    """Put the next worker of a gang into a device's queue: at its end, or where `order` (below 0) says."""
    worker = take(core.placed, gang)
    kind = take(t.device_kind, device)
    seconds = take(seconds_by_kind(w, f), kind)
    needs = take(memory_by_kind(w, f), kind)
    sequence = jnp.where(jnp.asarray(order) < 0, order, core.next_sequence).astype(core.sequence.dtype)
    sequence = jnp.where(worker == 0, sequence, take(core.sequence, gang))
    head = take(core.head, device)
    behind = take(core.sequence, head)
    first_there = (head < 0) | (sequence < behind) | ((sequence == behind) & (gang < head))
    fetches = when & (worker == 0) & (take(core.inputs_left, gang) > 0)  # the first worker's device fetches the inputs
    row = jnp.where(jnp.arange(core.device.shape[1]) == worker, device, take(core.device, gang))
    last = worker + 1 == f.workers
    return replace(
        core,
        sequence=put(core.sequence, gang, sequence, when & (worker == 0)),
        next_sequence=core.next_sequence + (when & (worker == 0)),
        device=put(core.device, gang, row, when),
        placed=put(core.placed, gang, worker + 1, when),
        status=put(core.status, gang, jnp.where(last, QUEUED, PLACING), when),
        held=core.held.put(gang, Amount(jnp.zeros((), jnp.int32), jnp.zeros(())), when & last),
        head=put(core.head, device, gang, when & first_there),
        head_needs=put(core.head_needs, device, needs, when & first_there),
        queued=put(core.queued, device, take(core.queued, device) + 1, when),
        queued_s=put(core.queued_s, device, take(core.queued_s, device) + seconds, when),
        fetches=put(core.fetches, device, take(core.fetches, device) + 1, fetches),
    )


def _leave_queues(
    core: Core, t: TopologyArrays, w: WorkloadArrays, f: GangFacts, devices: Int[Array, " workers"], when: BoolScalar
) -> Core:
    """Remove a gang, whose status has changed already, from the queues of its devices and find their new heads."""
    mine = (devices >= 0) & when
    waiting = (core.status == PLACING) | (core.status == QUEUED)
    here = (core.device[None, :, :] == devices[:, None, None]).any(axis=2) & waiting & mine[:, None]
    key = jnp.where(here, core.sequence, NO_INDEX)
    least, heads = first_min(key)
    occupied = least < NO_INDEX
    heads = jnp.where(occupied, heads, -1)
    tasks = w.kernel.shape[1]
    graph, index = take(core.graph, heads // tasks), heads % tasks
    kinds = take(t.device_kind, devices)
    needs = w.footprint[graph, index, kinds]
    seconds = take(seconds_by_kind(w, f), kinds)
    left = take(core.queued, devices) - 1
    # An empty queue holds exactly 0 seconds, without rounding errors.
    rest = jnp.where(left > 0, jnp.maximum(take(core.queued_s, devices) - seconds, 0), 0)
    heads, needs, left, rest = compute_once((heads, jnp.where(occupied, needs, 0), left, rest))
    return replace(
        core,
        head=put_all(core.head, devices, heads, mine),
        head_needs=put_all(core.head_needs, devices, needs, mine),
        queued=put_all(core.queued, devices, left, mine),
        queued_s=put_all(core.queued_s, devices, rest, mine),
    )


def start_gang(
    core: Core, t: TopologyArrays, w: WorkloadArrays, gang: IntScalar, f: GangFacts, now: Amount, when: BoolScalar
) -> tuple[Core, Float[Array, " workers"]]:
    """Give a startable gang a lane and memory on each of its devices. Also returns each lane's set-up time."""
    devices = take(core.device, gang)
    mine = (devices >= 0) & when
    kinds = take(t.device_kind, devices)
    reconfigure = take(t.kind_reconfigure, kinds)
    other = (core.lane_kernel != f.kernel)[None, :] & (reconfigure > 0)[:, None]
    free = (t.lane_device[None, :] == devices[:, None]) & (core.lane_holds == FREE)[None, :]
    lane_count = core.lane_holds.shape[0]
    number = jnp.arange(lane_count, dtype=jnp.int32)
    lanes = compute_once(jnp.where(free, number + lane_count * other, NO_INDEX).min(axis=1) % lane_count)
    fresh = take(core.lane_kernel, lanes) != f.kernel
    setup = jnp.where(fresh, reconfigure, 0) + jnp.where(take(core.resumed, gang), w.restore[f.graph, f.index], 0)
    memory = take(memory_by_kind(w, f), kinds)
    core = replace(
        core,
        status=put(core.status, gang, RUNNING, when),
        lane=put(core.lane, gang, jnp.where(mine, lanes, -1), when),
        lane_holds=put_all(core.lane_holds, lanes, gang, mine),
        lane_kernel=put_all(core.lane_kernel, lanes, f.kernel, mine),
        lane_setup=put_all(core.lane_setup, lanes, setup > 0, mine),
        lane_since=core.lane_since.put_all(lanes, now, mine),
        lane_estimate=put_all(core.lane_estimate, lanes, take(seconds_by_kind(w, f), kinds), mine),
        lanes_free=put_all(core.lanes_free, devices, take(core.lanes_free, devices) - 1, mine),
        memory_free=put_all(core.memory_free, devices, take(core.memory_free, devices) - memory, mine),
    )
    return _leave_queues(core, t, w, f, devices, when), setup


def gang_leaves(
    core: Core, t: TopologyArrays, w: WorkloadArrays, gang: IntScalar, f: GangFacts, when: BoolScalar
) -> Core:
    """Take a gang marked `leaving` off its devices: it has finished, has been saved, or must be placed again."""
    before = take(core.status, gang)
    devices, lanes = take(core.device, gang), take(core.lane, gang)
    held = when & (before >= RUNNING)  # RUNNING, SAVING, FINISHED or SAVED
    mine = (devices >= 0) & held
    memory = take(memory_by_kind(w, f), take(t.device_kind, devices))
    done = before == FINISHED
    over = done | take(core.dropped, f.slot)  # it will not be placed again
    unfetched = when & (devices[0] >= 0) & (take(core.inputs_left, gang) > 0)
    inputs = w.in_start[f.graph, f.index + 1] - w.in_start[f.graph, f.index]
    output = jnp.where(jnp.arange(MAX_COPIES) == 0, take(t.place, devices[0])[0], -1)
    core = replace(
        core,
        status=put(core.status, gang, jnp.where(done, DONE, jnp.where(over, ABSENT, READY)), when),
        leaving=put(core.leaving, gang, False, when),
        placed=put(core.placed, gang, 0, when),
        device=put(core.device, gang, -1, when),
        lane=put(core.lane, gang, -1, when),
        resumed=put(core.resumed, gang, take(core.resumed, gang) | (before >= RUNNING), when),
        inputs_left=put(core.inputs_left, gang, inputs, when),
        fetches=put(core.fetches, devices[0], take(core.fetches, devices[0]) - 1, unfetched),
        copies=put(core.copies, gang, output, when & done),
        unfinished=put(core.unfinished, f.slot, take(core.unfinished, f.slot) - 1, when & over),
        releasing=jnp.where(when & over, gang, core.releasing),
        release_from=jnp.where(when & over, w.out_start[f.graph, f.index], core.release_from),
        lane_holds=put_all(core.lane_holds, lanes, FREE, mine),
        lane_setup=put_all(core.lane_setup, lanes, False, mine),
        lanes_free=put_all(core.lanes_free, devices, take(core.lanes_free, devices) + 1, mine),
        memory_free=put_all(core.memory_free, devices, take(core.memory_free, devices) + memory, mine),
    )
    return _leave_queues(core, t, w, f, devices, when & (before < RUNNING))


def release_children(core: Core, w: WorkloadArrays) -> Core:
    """Decrement the parent counts of the next few children of the finished gang; free the slot of a complete job."""
    active = core.releasing >= 0
    tasks = w.kernel.shape[1]
    slot, index = core.releasing // tasks, core.releasing % tasks
    graph = take(core.graph, slot)
    end = w.out_start[graph, index + 1]
    edges = core.release_from + jnp.arange(w.fan)
    valid = active & (edges < end)
    targets = slot * tasks + w.out_target[graph, jnp.minimum(edges, w.out_target.shape[1] - 1)]
    less = jnp.where(valid, -1, 0).astype(core.waiting_for.dtype)
    waiting_for = add_all(core.waiting_for, jnp.where(valid, targets, -1), less)
    status = jnp.where((core.status == WAITING) & (waiting_for == 0), jnp.int8(READY), core.status)
    complete = active & (take(core.unfinished, slot) == 0)
    gone = complete & (jnp.arange(status.shape[0]) // tasks == slot)
    return replace(
        core,
        waiting_for=waiting_for,
        status=jnp.where(gone, jnp.int8(ABSENT), status),
        release_from=core.release_from + w.fan,
        releasing=jnp.where(complete | (edges[-1] + 1 >= end), -1, core.releasing),
        job=put(core.job, slot, -1, complete),
        jobs_done=core.jobs_done + complete,
    )


def inputs_there(core: Core, gang: IntScalar, device: IntScalar, count: IntScalar, when: BoolScalar) -> Core:
    """`count` more inputs of a gang are in the memory of `device`, where its first worker is."""
    left = take(core.inputs_left, gang) - count.astype(core.inputs_left.dtype)
    return replace(
        core,
        inputs_left=put(core.inputs_left, gang, left, when),
        fetches=put(core.fetches, device, take(core.fetches, device) - 1, when & (left == 0)),
    )


def copy_made(core: Core, source: IntScalar, memory: IntScalar, when: BoolScalar) -> Core:
    """Record one more memory that holds the output of a gang (-1 = no gang)."""
    copied, copies = take(core.copied, source), take(core.copies, source)
    # Another device with the same memory may have fetched it meanwhile.
    new = when & (source >= 0) & ~(copies == memory).any()
    row = jnp.where(jnp.arange(MAX_COPIES) == 1 + copied % (MAX_COPIES - 1), memory, copies)
    return replace(
        core,
        copies=put(core.copies, source, row, new),
        copied=put(core.copied, source, copied + 1, new),
    )


def gang_finished(core: Core, gang: IntScalar, when: BoolScalar) -> Core:
    return replace(core, status=put(core.status, gang, FINISHED, when), leaving=put(core.leaving, gang, True, when))


def gang_stopped(core: Core, gang: IntScalar, when: BoolScalar) -> Core:
    """A gang stopped before it had finished: it must be placed again, unless its job was dropped."""
    held = when & ((take(core.status, gang) == RUNNING) | (take(core.status, gang) == SAVING))
    return replace(core, leaving=put(core.leaving, gang, True, held))


def gang_recalled(core: Core, gang: IntScalar, when: BoolScalar) -> Core:
    """Take a queued gang back, to be placed again: a better device may be available now."""
    return replace(core, leaving=put(core.leaving, gang, True, when & (take(core.status, gang) == QUEUED)))


def setup_ended(core: Core, t: TopologyArrays, lane: IntScalar, when: BoolScalar) -> Core:
    """The set-up of a lane ended. A SAVING gang with no other lane in set-up is saved."""
    in_setup = put(core.lane_setup, lane, False, when)
    holds = take(core.lane_holds, lane)
    lanes = take(core.lane, holds)
    saved = when & (holds >= 0) & (take(core.status, holds) == SAVING) & ~(take(in_setup, lanes) & (lanes >= 0)).any()
    device = take(t.lane_device, lane)
    reconfigured = when & (holds == RECONFIGURING)
    return replace(
        core,
        status=put(core.status, holds, SAVED, saved),
        leaving=put(core.leaving, holds, True, saved),
        lane_setup=in_setup,
        lane_holds=put(core.lane_holds, lane, FREE, reconfigured),
        lanes_free=put(core.lanes_free, device, take(core.lanes_free, device) + 1, reconfigured),
    )


def device_failed(core: Core, t: TopologyArrays, device: IntScalar, when: BoolScalar) -> Core:
    """A device went down: its gangs leave, and its lanes lose their configuration."""
    holding = (core.status >= PLACING) & (core.status <= SAVING)
    hit = (core.device == device).any(axis=1) & holding & when
    here = (t.lane_device == device) & t.lane_exists & when
    dropped = here & (core.lane_holds == RECONFIGURING)
    return replace(
        core,
        up=put(core.up, device, False, when),
        leaving=core.leaving | hit,
        lane_holds=jnp.where(dropped, FREE, core.lane_holds),
        lane_setup=core.lane_setup & ~dropped,
        lane_kernel=jnp.where(here, UNCONFIGURED, core.lane_kernel),
        lanes_free=put(core.lanes_free, device, take(core.lanes_free, device) + dropped.sum(dtype=jnp.int32), when),
    )


def device_repaired(core: Core, device: IntScalar, when: BoolScalar) -> Core:
    return replace(core, up=put(core.up, device, True, when))


def window_ended(
    core: Core, reading: Float[Array, " rows"], own: Float[Array, " rows"], offer: BoolScalar, when: BoolScalar
) -> Core:
    """A counter window ended: `reading` is the mean load of each row, `own` Symphony's own part of it."""
    return replace(
        core,
        reading=jnp.where(when, reading, core.reading),
        own_reading=jnp.where(when, own, core.own_reading),
        windows=core.windows + when,
        offered=core.offered | (when & offer),
    )


class Commands(eqx.Module):
    """Commands to the engine after a decision; -1 = none."""

    save: IntScalar  # gang to preempt
    reconfigure: IntScalar  # lane to configure


def apply(
    core: Core, t: TopologyArrays, w: WorkloadArrays, action: Action, when: BoolScalar
) -> tuple[Core, Commands, BoolScalar]:
    """Carry out a policy's action, or refuse it. Returns the new state, commands, and whether it was accepted."""
    gang = jnp.clip(action.gang, 0, core.status.shape[0] - 1)
    device = jnp.clip(action.device, 0, core.up.shape[0] - 1)
    gang_exists, device_exists = gang == action.gang, device == action.device
    f = facts(core, w, gang)
    status = take(core.status, gang)
    partly = (core.status == PLACING).any()

    places = (action.kind == PLACE) & gang_exists & device_exists & take(candidates(core, t), gang)
    places &= take(fits(core, t, gang), device)
    lanes = take(core.lane, gang)
    saves = (action.kind == PREEMPT) & gang_exists & (status == RUNNING) & w.preemptible[f.graph, f.index]
    saves &= ~partly & ~(take(core.lane_setup, lanes) & (lanes >= 0)).any()
    free = (t.lane_device == device) & (core.lane_holds == FREE)
    configures = (action.kind == RECONFIGURE) & device_exists & take(core.up, device) & free.any() & ~partly
    configures &= take(t.kind_reconfigure, take(t.device_kind, device)) > 0
    runs = jnp.isfinite(w.time_fixed[action.kernel, take(t.device_kind, device)])
    configures &= (action.kernel >= 0) & (action.kernel < w.exchange.shape[0]) & runs
    waits = (action.kind == WAIT) & ~partly
    accepted = when & (places | saves | configures | waits)
    places, saves, configures, accepted, f = compute_once((places & when, saves & when, configures & when, accepted, f))

    core = place_worker(core, t, w, gang, f, device, places, action.order)
    lane = first(free)
    idle = when & ~(places | saves | configures)
    core = replace(
        core,
        status=put(core.status, gang, SAVING, saves),
        lane_holds=put(core.lane_holds, lane, RECONFIGURING, configures),
        lane_kernel=put(core.lane_kernel, lane, action.kernel, configures),
        lane_setup=put_all(put(core.lane_setup, lane, True, configures), lanes, True, saves & (lanes >= 0)),
        lanes_free=put(core.lanes_free, device, take(core.lanes_free, device) - 1, configures),
        leaving=core.leaving | (core.status == PLACING) & when & ~accepted,
        waited=core.waited | idle,
        wake_s=jnp.where(idle, jnp.where(accepted & (action.seconds > 0), action.seconds, jnp.inf), core.wake_s),
        offered=core.offered & ~idle,
        decisions=core.decisions + when,
        refused=core.refused + (when & ~accepted),
    )
    return core, Commands(jnp.where(saves, gang, -1), jnp.where(configures, lane, -1)), accepted
