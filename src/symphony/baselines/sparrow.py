"""Sparrow (Ousterhout, Wendell, Zaharia, Stoica, 2013): low-latency scheduling by random probes.

For a job of m tasks, Sparrow probes d·m workers (d = 2). *Batch sampling* puts the tasks on the m least loaded of them.
With *late binding*, probes leave reservations instead; a worker that reaches a reservation requests a task, and gets
the next unlaunched task of the job. Speeds and data are ignored. Tasks with constraints probe the workers that meet
them.

Differences here: a batch is the ready gangs of a job, so every stage of a graph is probed separately; a kernel without
an implementation for a kind is a constraint. Probes are a hash of the job and gang numbers, so that no reservations
need to be stored. The reservations of a device are served by age of job. A gang of several workers cannot use late
binding, as each worker would wait for the others: it uses batch sampling. If all probed devices of a gang are down, any
device is used.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Int, UInt32

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.graph_tables import devices_by_kind
from symphony.scheduling.indexing import NO_INDEX, IntScalar, first_min, take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, idle_devices, pick_gang, place
from symphony.scheduling.state import PLACING, QUEUED, READY

PROBES = 2  # for each task
Salt = UInt32[Array, ""]


class ProbeTable(eqx.Module):
    """The devices that each gang may probe: those of the kinds that can run it, sorted by kind."""

    by_kind: Int[Array, " devices"]  # all devices, sorted by kind
    upto: Int[Array, "graphs tasks kinds"]  # number of the gang's devices of this kind or an earlier one
    skips: Int[Array, "graphs tasks kinds"]  # number of devices before those of this kind that cannot run the gang


def probe_table(t: TopologyArrays, w: WorkloadArrays) -> ProbeTable:
    count = devices_by_kind(t)
    able = (w.runs_on[..., None] >> jnp.arange(count.shape[0])) & 1 > 0
    by_kind = jnp.argsort(jnp.where(t.exists, t.device_kind, count.shape[0]), stable=True)
    upto = jnp.cumsum(jnp.where(able, count, 0), axis=-1)
    return ProbeTable(by_kind, upto, jnp.cumsum(jnp.where(able, 0, count), axis=-1))


def probes(
    observation: Observation, salt: Salt, slot: Int[Array, " some"], index: Int[Array, " some"]
) -> Int[Array, "some probes"]:
    """The devices probed by some gangs: drawn uniformly from those that can run them."""
    core, table = observation.core, observation.prepared
    graph = take(core.graph, slot)
    upto, skips = table.upto[graph, index][..., None, :], table.skips[graph, index][..., None, :]  # [some, 1, kinds]
    drawn = _hash(salt, take(core.job, slot)[..., None], index[..., None], jnp.arange(PROBES))
    drawn = (drawn % jnp.maximum(upto[..., -1], 1).astype(jnp.uint32)).astype(jnp.int32)
    # The device is of the first kind whose cumulative count exceeds the number drawn.
    skipped = jnp.where(drawn[..., None] < upto, skips, NO_INDEX).min(axis=-1)
    return take(table.by_kind, drawn + skipped)


def _hash(salt: Array, *numbers: Array) -> Array:
    """A hash of these numbers: the finaliser of MurmurHash3, applied to each in turn."""
    mixed = salt.astype(jnp.uint32)
    for number in numbers:
        mixed = (mixed ^ number.astype(jnp.uint32)) * jnp.uint32(0x9E3779B1)
        mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
        mixed ^= mixed >> 16
    return mixed


def batch(observation: Observation, salt: Salt, gang: IntScalar) -> Bool[Array, " devices"]:
    """Devices probed for the gang's job, by all its gangs that are ready or queued."""
    core = observation.core
    tasks = observation.workload.kernel.shape[1]
    index = jnp.arange(tasks)
    slot = jnp.full(tasks, gang // tasks)
    status = take(core.status, slot * tasks + index)
    waits = (status == READY) | (status == PLACING) | (status == QUEUED)
    where = jnp.where(waits[:, None], probes(observation, salt, slot, index), core.up.shape[0])
    return jnp.zeros(core.up.shape, bool).at[where].set(True, mode="drop")


def sample(observation: Observation, salt: Salt, gang: IntScalar) -> IntScalar:
    """Batch sampling: of the devices probed for the gang's job, the one with the fewest workers per slot."""
    core, t = observation.core, observation.topology
    ahead = (core.queued + t.slots - core.lanes_free) / jnp.maximum(t.slots, 1)
    return best_device(observation, gang, jnp.where(batch(observation, salt, gang), -ahead, -jnp.inf))


def _salt(key: Array, state: Salt) -> Salt:
    """The salt of the run, drawn at the first decision."""
    return jnp.where(state == 0, jax.random.bits(key, dtype=jnp.uint32) | 1, state)


class SparrowBatch(Policy):
    """Batch sampling: the oldest gang is placed on the least loaded of two devices probed for each gang of its job."""

    def init(self, topology: TopologyArrays) -> Salt:
        """The salt of the probes; 0 = not drawn yet."""
        return jnp.zeros((), jnp.uint32)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> ProbeTable:
        return probe_table(topology, workload)

    def decide(self, key: Array, state: Salt, observation: Observation) -> tuple[Salt, Action]:
        salt = _salt(key, state)
        gang = pick_gang(observation)
        return salt, place(gang, sample(observation, salt, gang))


class Sparrow(SparrowBatch):
    """Late binding: an idle device that was probed for a job gets its next gang; wide gangs use batch sampling."""

    def decide(self, key: Array, state: Salt, observation: Observation) -> tuple[Salt, Action]:
        salt = _salt(key, state)
        core, t = observation.core, observation.topology
        tasks = observation.workload.kernel.shape[1]
        number = jnp.arange(core.status.shape[0])
        idle = idle_devices(observation)
        probed = probes(observation, salt, number // tasks, number % tasks)  # [gangs, probes]
        lost = ~take(core.up, probed).any(axis=1)
        kinds = jnp.arange(t.kind_memory.shape[0])
        some = ((t.device_kind[:, None] == kinds) & idle[:, None]).any(axis=0)
        anywhere = ((core.runs_on[:, None] >> kinds) & 1 > 0) & some
        placeable = take(idle, probed).any(axis=1) | (lost & anywhere.any(axis=1))
        together = core.workers > 1
        asker = pick_gang(observation, among=placeable | together)

        # The idle device gets the first gang of that job that it can run.
        mine = take(probed, asker)
        _, which = first_min(jnp.where(take(idle, mine), 0, 1))
        device = jnp.where(take(lost, asker), best_device(observation, asker, idle.astype(float)), take(mine, which))
        runs = (core.runs_on >> take(t.device_kind, device)) & 1 > 0
        gang = pick_gang(observation, among=runs & ~together & (number // tasks == asker // tasks) & (asker >= 0))
        alone = take(together, asker)
        gang = jnp.where(alone, asker, gang)
        return salt, place(gang, jnp.where(alone, sample(observation, salt, asker), device))
