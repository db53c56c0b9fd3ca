"""Sparrow (Ousterhout, Wendell, Zaharia, Stoica, 2013): decide fast, by asking a few workers at random.

For a job of m tasks, Sparrow probes d·m workers (d = 2). *Batch sampling* puts the tasks on the m least loaded of them.
With *late binding*, probes leave reservations instead; a worker that comes to one asks for a task, and gets the next of
the job that has not been launched, so that tasks go to whoever is first. It looks at no speeds and no data. Tasks with
constraints are probed for among the workers that meet them.

Ours differ: the batch is what is ready of a job, so every stage of a graph is probed for anew; that a kernel has no
implementation for a kind is a constraint. Probes are drawn from the numbers of job and gang, which makes them the same
each time that they are asked for: no reservations need to be kept. Those of one device are served by age of job. A gang
of several workers cannot be bound late, as each worker would wait for the others: it uses batch sampling. If all that a
gang has probed are down, any device will do.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.graph_tables import devices_by_kind
from symphony.scheduling.indexing import NO_INDEX, first_min, take
from symphony.scheduling.policy import Action, Observation, Policy, best_device, idle_devices, pick_gang, place
from symphony.scheduling.state import PLACING, QUEUED, READY

PROBES = 2  # for each task


class ProbeTable(eqx.Module):
    """The devices that each gang may probe: those of the kinds that can run it, in order of kinds."""

    by_kind: Array  # i32[D]: all devices in that order
    upto: Array  # i32[A, T, Y]: how many of a gang's are of this kind or one before
    skips: Array  # i32[A, T, Y]: how many devices before those of this kind cannot run the gang


def probe_table(t: TopologyArrays, w: WorkloadArrays) -> ProbeTable:
    """Whom gangs may probe."""
    count = devices_by_kind(t)
    able = (w.runs_on[..., None] >> jnp.arange(count.shape[0])) & 1 > 0
    by_kind = jnp.argsort(jnp.where(t.exists, t.device_kind, count.shape[0]), stable=True)
    upto = jnp.cumsum(jnp.where(able, count, 0), axis=-1)
    return ProbeTable(by_kind, upto, jnp.cumsum(jnp.where(able, 0, count), axis=-1))


def probes(observation: Observation, salt: Array, slot: Array, index: Array) -> Array:
    """The devices that gangs [...] have probed [..., PROBES]: any that can run them, each as likely as the other."""
    core, among = observation.core, observation.prepared
    graph = take(core.graph, slot)
    upto, skips = among.upto[graph, index][..., None, :], among.skips[graph, index][..., None, :]  # [..., 1, Y]
    drawn = _hash(salt, take(core.job, slot)[..., None], index[..., None], jnp.arange(PROBES))
    drawn = (drawn % jnp.maximum(upto[..., -1], 1).astype(jnp.uint32)).astype(jnp.int32)
    # The first kind that reaches beyond the number drawn is the device's.
    skipped = jnp.where(drawn[..., None] < upto, skips, NO_INDEX).min(axis=-1)
    return take(among.by_kind, drawn + skipped)


def _hash(salt: Array, *numbers: Array) -> Array:
    """Numbers that look random and depend on nothing but these (the finaliser of MurmurHash3, once for each)."""
    mixed = salt.astype(jnp.uint32)
    for number in numbers:
        mixed = (mixed ^ number.astype(jnp.uint32)) * jnp.uint32(0x9E3779B1)
        mixed = (mixed ^ (mixed >> 16)) * jnp.uint32(0x85EBCA6B)
        mixed = (mixed ^ (mixed >> 13)) * jnp.uint32(0xC2B2AE35)
        mixed ^= mixed >> 16
    return mixed


def batch(observation: Observation, salt: Array, gang: Array) -> Array:
    """Devices that were probed for the gang's job [D]: by all its gangs that are ready or wait in queues."""
    core = observation.core
    tasks = observation.workload.kernel.shape[1]
    index = jnp.arange(tasks)
    slot = jnp.full(tasks, gang // tasks)
    status = take(core.status, slot * tasks + index)
    waits = (status == READY) | (status == PLACING) | (status == QUEUED)
    where = jnp.where(waits[:, None], probes(observation, salt, slot, index), core.up.shape[0])
    return jnp.zeros(core.up.shape, bool).at[where].set(True, mode="drop")


def sample(observation: Observation, salt: Array, gang: Array) -> Array:
    """Of the devices probed for the gang's job, the one with the fewest workers for each slot."""
    core, t = observation.core, observation.topology
    ahead = (core.queued + t.slots - core.lanes_free) / jnp.maximum(t.slots, 1)
    return best_device(observation, gang, jnp.where(batch(observation, salt, gang), -ahead, -jnp.inf))


def _salt(key: Array, state: Array) -> Array:
    """Drawn at the first decision, and kept."""
    return jnp.where(state == 0, jax.random.bits(key, dtype=jnp.uint32) | 1, state)


class SparrowBatch(Policy):
    """Batch sampling alone: the oldest gang goes to the least loaded of two devices probed for each gang of its job."""

    def init(self, topology: TopologyArrays) -> Array:
        """What probes are drawn from; 0 = not yet."""
        return jnp.zeros((), jnp.uint32)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> ProbeTable:
        """Whom gangs may probe."""
        return probe_table(topology, workload)

    def decide(self, key: Array, state: Array, observation: Observation) -> tuple[Array, Action]:
        """Oldest gang, least loaded of the sample."""
        salt = _salt(key, state)
        gang = pick_gang(observation)
        return salt, place(gang, sample(observation, salt, gang))


class Sparrow(Policy):
    """Batch sampling and late binding: a device that was probed for a job takes its next gang when it is idle."""

    def init(self, topology: TopologyArrays) -> Array:
        """What probes are drawn from; 0 = not yet."""
        return jnp.zeros((), jnp.uint32)

    def prepare(self, topology: TopologyArrays, workload: WorkloadArrays) -> ProbeTable:
        """Whom gangs may probe."""
        return probe_table(topology, workload)

    def decide(self, key: Array, state: Array, observation: Observation) -> tuple[Array, Action]:
        """The oldest job with an idle device among its probes; or wait."""
        salt = _salt(key, state)
        core, t = observation.core, observation.topology
        tasks = observation.workload.kernel.shape[1]
        number = jnp.arange(core.status.shape[0])
        idle = idle_devices(observation)
        probed = probes(observation, salt, number // tasks, number % tasks)  # [G, PROBES]
        lost = ~take(core.up, probed).any(axis=1)
        kinds = jnp.arange(t.kind_memory.shape[0])
        some = ((t.device_kind[:, None] == kinds) & idle[:, None]).any(axis=0)
        anywhere = ((core.runs_on[:, None] >> kinds) & 1 > 0) & some
        found = take(idle, probed).any(axis=1) | (lost & anywhere.any(axis=1))
        together = core.workers > 1
        asker = pick_gang(observation, among=found | together)

        # The device that asks; it gets the first gang of that job that it can run.
        mine = take(probed, asker)
        _, which = first_min(jnp.where(take(idle, mine), 0, 1))
        device = jnp.where(take(lost, asker), best_device(observation, asker, idle.astype(float)), take(mine, which))
        runs = (core.runs_on >> take(t.device_kind, device)) & 1 > 0
        gang = pick_gang(observation, among=runs & ~together & (number // tasks == asker // tasks) & (asker >= 0))
        alone = take(together, asker)
        gang = jnp.where(alone, asker, gang)
        return salt, place(gang, jnp.where(alone, sample(observation, salt, asker), device))
