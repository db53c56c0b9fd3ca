"""Schedulers of StarPU (Augonnet, Thibault, Namyst, Wacrenier, 2011): dm, dmda, dmdas, and heteroprio.

*dm* assigns a task, when it becomes ready, to the worker with the earliest end by its performance model: the worker's
queue and the task, without transfers. *dmda* ("data-aware") minimises `alpha · end + beta · transfer`, both 1 by
default. The transfer is added even where it would overlap with the queue; data in transfer to a memory, for a task
assigned to a worker there, counts as present. *dmdas* assigns as dmda, and keeps each worker's queue sorted by
priority.

*heteroprio* (Agullo, Bramas, Coulaud, Darve, Messner, Takahashi, 2016) keeps ready tasks in buckets, one for each type
of task. A worker without tasks takes from the first non-empty bucket: CPUs in order of increasing acceleration, GPUs
of decreasing. A worker that is slower at a bucket than another kind by a factor f skips it until the bucket holds f
tasks for each worker of the fastest kind.

Differences here: a worker is a device, whose queue serves all its slots. Set-up of an FPGA is part of the length of a
task; exchange between the workers of a gang is part of dmda's transfer. Priorities are upward ranks, where StarPU
leaves them to the programmer. A queue cannot be reordered once gangs are in it; so dmdas holds back assigned gangs, and
puts the one of highest priority into a device's queue when fewer than two wait there. That is enough to fetch inputs in
time. In heteroprio, acceleration on a device kind is the mean time on the devices of all other kinds over the time
there, which for two kinds is the original. A slower kind skips a gang until so much is ready for the fastest kind, over
all kernels, that the slower one finishes it first (`worthwhile_kinds`): with more than two kinds, several of them
nearly as fast, single buckets seldom hold enough. One gang may wait at each device, so that it can fetch its inputs;
there is no work stealing, which would have to remove gangs from queues. Of several devices of a kind without work, the
one with the most free slots is served first; if none has any, the one that will be free first.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.estimate import exchange_s, setup_s, span_bandwidth, transfer_s
from symphony.scheduling.graph_tables import count_by_kind, devices_by_kind, gang_seconds, seconds_now, worthwhile_kinds
from symphony.scheduling.indexing import FloatScalar, IntScalar, first, put, take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, pick_gang, place
from symphony.scheduling.state import MAX_COPIES, PLACING, QUEUED, READY

MAX_QUEUED_GANGS = 2  # in the queue of a device; with as many, dmdas holds back further gangs assigned to it
WAITING_GANGS_EXAMINED = 64  # gangs waiting for inputs that are considered, or as many as there are devices
MAX_ASSIGNED_GANGS = 16_384  # gangs whose assignment dmdas can store; those beyond are queued at once
PerDevice = Float[Array, " devices"]
Assignment = Int[Array, " gangs"]  # device of gangs that are assigned and not queued yet, -1 = none


def end_s(observation: Observation, gang: IntScalar, pending_s: PerDevice | float = 0.0) -> PerDevice:
    """Seconds until the gang would finish on each device, without transfers."""
    return observation.queue_s + pending_s + setup_s(observation, gang) + observation.seconds(gang)


def inputs_of(
    observation: Observation, gang: Int[Array, "*gang"]
) -> tuple[Int[Array, "*gang fan"], Float[Array, "*gang fan"]]:
    """Parents whose outputs gangs read, the largest few, and the bytes; -1 = none, or the job's own input."""
    core, w = observation.core, observation.workload
    tasks = w.kernel.shape[1]
    slot, index = gang // tasks, gang % tasks
    graph = take(core.graph, slot)
    edges = w.in_start[graph, index][..., None] + jnp.arange(w.fan)
    exists = edges < w.in_start[graph, index + 1][..., None]
    edges = jnp.minimum(edges, w.in_source.shape[1] - 1)
    source, size = w.in_source[graph[..., None], edges], w.in_bytes[graph[..., None], edges]
    parent = jnp.where(exists & (source >= 0), slot[..., None] * tasks + source, -1)
    return parent, jnp.where(exists, size, 0)


def inputs_in_flight(
    observation: Observation, gang: IntScalar, assigned: Assignment | None = None
) -> Bool[Array, "fan devices"]:
    """Inputs of the gang that a gang waiting at a device will fetch into its memory."""
    core, t = observation.core, observation.topology
    gangs, devices = core.status.shape[0], core.up.shape[0]
    device = core.device[:, 0].astype(jnp.int32)
    waits = ((core.status == PLACING) | (core.status == QUEUED)) & (core.inputs_left > 0)
    if assigned is not None:
        device, waits = jnp.where(assigned >= 0, assigned, device), waits | (assigned >= 0)
    # Few gangs wait for inputs, so that gathering those alone is much cheaper; -1 fills up.
    some = jnp.nonzero(waits, size=min(gangs, max(WAITING_GANGS_EXAMINED, devices)), fill_value=-1)[0]
    mine, _ = inputs_of(observation, gang)
    theirs = jnp.where((some >= 0)[:, None], inputs_of(observation, some)[0], -1)
    asked = (theirs[:, :, None] == mine).any(axis=1) & (mine >= 0)
    home = t.place[:, 0]
    memory = take(home, take(device, some))
    return jnp.zeros((mine.shape[0], devices), bool).at[:, memory].max(asked.T, mode="drop")[:, home]


def transfers_s(observation: Observation, gang: IntScalar, assigned: Assignment | None = None) -> PerDevice:
    """Uncontended seconds of transfers for the gang on each device."""
    core = observation.core
    bandwidth = span_bandwidth(observation, None)
    parent, size = inputs_of(observation, gang)
    home = jnp.where(jnp.arange(MAX_COPIES) == 0, take(core.home, gang // observation.workload.kernel.shape[1]), -1)
    copies = jnp.where((parent >= 0)[:, None], take(core.copies, parent), home)  # [fan, copies]
    devices = jnp.arange(core.up.shape[0])[:, None]
    seconds = transfer_s(observation, copies, size, devices, bandwidth)  # [devices, fan]
    missing = ~inputs_in_flight(observation, gang, assigned).T
    return jnp.where(missing, seconds, 0).sum(axis=1) + exchange_s(observation, gang, bandwidth)


class Dm(Policy):
    """Oldest gang first, on the device with the least queue plus run time; transfers and contention are ignored."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang = pick_gang(observation)
        return state, place(gang, best_device(observation, gang, -end_s(observation, gang)))


class Dmda(Policy):
    """As `Dm`, with the time of transfers added."""

    alpha: FloatScalar = eqx.field(default=1.0, converter=jnp.asarray)  # weight of the end
    beta: FloatScalar = eqx.field(default=1.0, converter=jnp.asarray)  # weight of transfers

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang = pick_gang(observation)
        cost = self.alpha * end_s(observation, gang) + self.beta * transfers_s(observation, gang)
        return state, place(gang, best_device(observation, gang, -cost))


class Dmdas(Policy):
    """Assigns as `Dmda` when gangs become ready; the queue of a device is filled by highest upward rank."""

    alpha: FloatScalar = eqx.field(default=1.0, converter=jnp.asarray)
    beta: FloatScalar = eqx.field(default=1.0, converter=jnp.asarray)

    def init(self, topology: TopologyArrays) -> Assignment:
        """The device to which each ready gang has been assigned, or -1."""
        return jnp.full(MAX_ASSIGNED_GANGS, -1, jnp.int16)

    def decide(self, key: Array, state: Assignment, observation: Observation) -> tuple[Assignment, Action]:
        core = observation.core
        gangs = core.status.shape[0]
        stored = min(gangs, MAX_ASSIGNED_GANGS)
        mine = jnp.pad(state[:stored], (0, gangs - stored), constant_values=-1)
        mine = jnp.where((core.status == READY) & take(core.up, mine), mine, -1)
        number, partly = jnp.arange(gangs), core.status == PLACING
        fresh = observation.candidates & (core.status == READY) & (number < stored)
        # At most decisions all gangs are assigned already, and only the queues are to be filled.
        assigns = ((fresh & (mine < 0)) | partly | (observation.candidates & (number >= stored))).any()

        def assign(carry: tuple[Array, Array]) -> tuple[Array, Array]:
            mine, pending_s = carry
            gang = pick_gang(observation, among=fresh & (mine < 0))
            device = best_device(observation, gang, -self._cost(observation, gang, pending_s, mine))
            slots = jnp.maximum(take(observation.topology.slots, device), 1)
            more_s = take(observation.seconds(gang), device) / slots
            return put(mine, gang, device), put(pending_s, device, take(pending_s, device) + more_s)

        def assign_all(mine: Array) -> tuple[Array, Array]:
            start = (mine, _pending_s(observation, mine))
            return jax.lax.while_loop(lambda c: (fresh & (c[0] < 0)).any(), assign, start)

        mine, pending_s = jax.lax.cond(assigns, assign_all, lambda mine: (mine, jnp.zeros(core.up.shape)), mine)
        wanted = (mine >= 0) & (take(core.queued, mine) < MAX_QUEUED_GANGS)
        rank = observation.per_gang(observation.workload.rank)
        gang = pick_gang(observation, rank, wanted | partly | (number >= stored))
        best = jax.lax.cond(
            assigns,
            lambda: best_device(observation, gang, -self._cost(observation, gang, pending_s, mine)),
            lambda: jnp.zeros_like(gang),
        )
        device = jnp.where(take(mine, gang) >= 0, take(mine, gang), best)
        return state.at[:stored].set(put(mine, gang, -1, gang >= 0)[:stored]), place(gang, device)

    def _cost(self, observation: Observation, gang: IntScalar, pending_s: PerDevice, assigned: Assignment) -> PerDevice:
        return self.alpha * end_s(observation, gang, pending_s) + self.beta * transfers_s(observation, gang, assigned)


def _pending_s(observation: Observation, assigned: Assignment) -> PerDevice:
    """Seconds of the gangs assigned to each device and not in its queue, over its slots."""
    t, w = observation.topology, observation.workload
    kernel, work, units = (observation.per_gang(table) for table in (w.kernel, w.work, w.units))
    kind = take(t.device_kind, assigned)
    seconds = (w.time_fixed[kernel, kind] + w.time_work[kernel, kind] * work) * units
    seconds = jnp.where(assigned >= 0, seconds, 0)
    total = jnp.zeros(t.slots.shape).at[assigned].add(seconds, mode="drop")
    return total / jnp.maximum(t.slots, 1)


def acceleration(
    seconds: Float[Array, "graphs tasks kinds"], devices: Int[Array, " kinds"]
) -> Float[Array, "graphs tasks kinds"]:
    """Mean seconds on the devices of other kinds over the seconds on each kind. `devices`: their number by kind."""
    able = jnp.isfinite(seconds)
    weight = jnp.where(able, devices, 0)
    total = jnp.where(able, seconds * weight, 0)
    others = weight.sum(axis=-1, keepdims=True) - weight
    elsewhere = (total.sum(axis=-1, keepdims=True) - total) / jnp.maximum(others, 1)
    return jnp.where(others > 0, elsewhere / seconds, jnp.inf)  # only this kind can run it


class Heteroprio(Policy):
    """A device takes the ready gang that it accelerates most against other kinds; slow kinds wait for a backlog."""

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> tuple[Array, Array]:
        """Isolated seconds, and acceleration while all devices are up [graphs, tasks, kinds]."""
        seconds = gang_seconds(topology, workload)
        return seconds, acceleration(seconds, devices_by_kind(topology))

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        core, t = observation.core, observation.topology
        seconds, faster = observation.prepared
        seconds = seconds_now(observation, seconds)
        wants = core.up & (core.queued == 0)

        takes = worthwhile_kinds(observation, seconds) & jnp.isfinite(seconds) & (count_by_kind(observation, wants) > 0)
        up = count_by_kind(observation, core.up)
        faster = jax.lax.cond((core.up == t.exists).all(), lambda: faster, lambda: acceleration(seconds, up))
        faster = jnp.where(takes, faster, -1)

        partly = core.status == PLACING
        score, among = observation.per_gang(faster.max(axis=-1)), observation.per_gang(takes.any(axis=-1))
        gang = pick_gang(observation, score, among | partly)
        f = observation.facts(gang)
        mine = faster[f.graph, f.index]
        kind = first(mine == mine.max())
        free = core.lanes_free / jnp.maximum(t.slots, 1)
        queue = jnp.where(take(partly, gang) | (free == 0), -observation.running_s - observation.queue_s, free)
        here = wants & (t.device_kind == kind) | take(partly, gang)
        return state, place(gang, best_device(observation, gang, jnp.where(here, queue, -jnp.inf)))
