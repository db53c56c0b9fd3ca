"""Schedulers of StarPU (Augonnet, Thibault, Namyst, Wacrenier, 2011): dm, dmda, dmdas, and heteroprio.

*dm* assigns a task, when it becomes ready, to the worker with the earliest end by its performance model: the worker's
queue and the task, without transfers. *dmda* ("data-aware") minimises `alpha · end + beta · transfer`, both 1 by
default. Transfers overlap with the queue (the later of both counts for the end), and are added all the same; they are
expected to take as long as if all accelerators of the machine had one in each direction. What the queue does not hide
of a transfer is part of the queue for those that come after. Data in transfer to a memory, for a task assigned to a
worker there, counts as present. *dmdas* assigns as dmda, and keeps each worker's queue sorted by priority.

*heteroprio* (Agullo, Bramas, Coulaud, Darve, Messner, Takahashi, 2016) keeps ready tasks in buckets, one for each type
of task. A worker without tasks takes from the first non-empty bucket: CPUs in order of increasing acceleration, GPUs
of decreasing. A worker that is slower at a bucket than another kind by a factor f skips it until the bucket holds f
tasks for each worker of the fastest kind.

Differences here: a worker is a device, whose queue serves all its slots. Set-up of an FPGA is part of the length of a
task; exchange between the workers of a gang is part of dmda's transfer. In graphs without priorities, dmdas takes
upward ranks. Every task in a queue can be overtaken, where StarPU's GPUs take the next one early.
In heteroprio, acceleration on a device kind is the mean time on the devices of all other kinds over the time
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
from symphony.problem.topology import LOCAL, MACHINE, PEER, SPANS
from symphony.scheduling.estimate import exchange_s, setup_s, span_bandwidth, transfer_s
from symphony.scheduling.graph_tables import count_by_kind, devices_by_kind, gang_seconds, seconds_now, worthwhile_kinds
from symphony.scheduling.indexing import FloatScalar, IntScalar, first, put, take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, pick_gang, place
from symphony.scheduling.state import MAX_COPIES, PLACING, QUEUED

WAITING_GANGS_EXAMINED = 256  # gangs waiting for inputs that are considered, or as many as there are devices
MAX_STORED_GANGS = 16_384  # gangs whose exposed transfers can be stored; those of others count as 0
PerDevice = Float[Array, " devices"]
ExposedTransfers = Float[Array, " gangs"]  # seconds of each gang's transfers that its queue was not expected to hide


def end_s(observation: Observation, gang: IntScalar, start_s: PerDevice) -> PerDevice:
    """Seconds until the gang would finish on each device, if it starts after `start_s`."""
    return start_s + setup_s(observation, gang) + observation.seconds(gang)


def shared_bandwidth(observation: Observation) -> Float[Array, "devices spans"]:
    """Bytes/s that StarPU expects within a machine, where every accelerator sends and receives at the same time."""
    t = observation.topology
    owns_memory = t.exists & (t.place[:, LOCAL] == jnp.arange(t.exists.shape[0]))
    machine = t.place[:, MACHINE]
    memories = take(jnp.zeros(machine.shape).at[machine].add(owns_memory), machine)
    sharers = 2 * jnp.maximum(memories - 1, 1)  # all but main memory, in two directions
    inside = (jnp.arange(len(SPANS)) <= MACHINE) | (jnp.arange(len(SPANS)) == PEER)
    return t.span_bandwidth / jnp.where(inside, sharers[:, None], 1)


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


def inputs_in_flight(observation: Observation, gang: IntScalar) -> Bool[Array, "fan devices"]:
    """Inputs of the gang that a gang waiting at a device will fetch into its memory."""
    core, t = observation.core, observation.topology
    gangs, devices = core.status.shape[0], core.up.shape[0]
    waits = ((core.status == PLACING) | (core.status == QUEUED)) & (core.inputs_left > 0)
    # Few gangs wait for inputs, so that gathering those alone is much cheaper; -1 fills up.
    some = jnp.nonzero(waits, size=min(gangs, max(WAITING_GANGS_EXAMINED, devices)), fill_value=-1)[0]
    mine, _ = inputs_of(observation, gang)
    theirs = jnp.where((some >= 0)[:, None], inputs_of(observation, some)[0], -1)
    asked = (theirs[:, :, None] == mine).any(axis=1) & (mine >= 0)
    home = t.place[:, 0]
    memory = take(home, take(core.device[:, 0], some))
    return jnp.zeros((mine.shape[0], devices), bool).at[:, memory].max(asked.T, mode="drop")[:, home]


def transfers_s(observation: Observation, gang: IntScalar) -> PerDevice:
    """Seconds of transfers that StarPU expects for the gang on each device."""
    core = observation.core
    bandwidth = shared_bandwidth(observation)
    parent, size = inputs_of(observation, gang)
    home = jnp.where(jnp.arange(MAX_COPIES) == 0, take(core.home, gang // observation.workload.kernel.shape[1]), -1)
    copies = jnp.where((parent >= 0)[:, None], take(core.copies, parent), home)  # [fan, copies]
    devices = jnp.arange(core.up.shape[0])[:, None]
    seconds = transfer_s(observation, copies, size, devices, bandwidth)  # [devices, fan]
    missing = ~inputs_in_flight(observation, gang).T
    return jnp.where(missing, seconds, 0).sum(axis=1) + exchange_s(observation, gang, span_bandwidth(observation, None))


class Dm(Policy):
    """Oldest gang first, on the device with the least queue plus run time; transfers and contention are ignored."""

    def decide(self, key: Array, state: Any, observation: Observation) -> tuple[Any, Action]:
        gang = pick_gang(observation)
        return state, place(gang, best_device(observation, gang, -end_s(observation, gang, observation.queue_s)))


def assign(
    observation: Observation, exposed: ExposedTransfers, alpha: FloatScalar, beta: FloatScalar
) -> tuple[ExposedTransfers, IntScalar, IntScalar]:
    """The oldest gang, and the device that dmda assigns it to."""
    gang = pick_gang(observation)
    backlog_s = observation.queue_s + _exposed_s(observation, exposed)
    moved_s = transfers_s(observation, gang)
    cost = alpha * end_s(observation, gang, jnp.maximum(backlog_s, moved_s)) + beta * moved_s
    device = best_device(observation, gang, -cost)
    more_s = jnp.maximum(take(moved_s - backlog_s, device), 0)
    return put(exposed, gang, jnp.where(jnp.isfinite(more_s), more_s, 0), gang >= 0), gang, device


class Dmda(Policy):
    """As `Dm`, with the time of transfers added."""

    alpha: FloatScalar = eqx.field(default=1.0, converter=jnp.asarray)  # weight of the end
    beta: FloatScalar = eqx.field(default=1.0, converter=jnp.asarray)  # weight of transfers

    def init(self, topology: TopologyArrays) -> ExposedTransfers:
        return jnp.zeros(MAX_STORED_GANGS)

    def decide(self, key: Array, state: ExposedTransfers, observation: Observation) -> tuple[ExposedTransfers, Action]:
        state, gang, device = assign(observation, state, self.alpha, self.beta)
        return state, place(gang, device)


class Dmdas(Dmda):
    """As `Dmda`; queues are in the order of the priorities of jobs, then of tasks (or upward ranks, without any)."""

    def decide(self, key: Array, state: ExposedTransfers, observation: Observation) -> tuple[ExposedTransfers, Action]:
        state, gang, device = assign(observation, state, self.alpha, self.beta)
        f = observation.facts(gang)
        # The bits of floats that are not negative are in the order of the floats; the upper 25 suffice.
        urgency = observation.workload.urgency[f.graph, f.index].astype(jnp.float32)
        bits = jax.lax.bitcast_convert_type(urgency, jnp.int32) >> 6
        job = jnp.clip(take(observation.core.priority, f.slot), -32, 31) + 32
        return state, place(gang, device, -1 - (job << 25) - bits)


def _exposed_s(observation: Observation, exposed: ExposedTransfers) -> PerDevice:
    """Seconds of exposed transfers in the queue of each device, over its slots."""
    core, t = observation.core, observation.topology
    stored = min(core.status.shape[0], MAX_STORED_GANGS)
    waits = ((core.status == PLACING) | (core.status == QUEUED))[:stored]
    device = jnp.where(waits, core.device[:stored, 0], t.slots.shape[0])
    return jnp.zeros(t.slots.shape).at[device].add(exposed[:stored], mode="drop") / jnp.maximum(t.slots, 1)


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
