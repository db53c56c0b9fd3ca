"""Feasibility: which gangs may be placed, on which devices, and which may start."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int, Shaped

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.indexing import IntScalar, compute_once, take
from symphony.scheduling.state import PLACING, QUEUED, READY, Core


class GangFacts(eqx.Module):
    """What the workload says of one gang, or of several."""

    slot: Int[Array, "*gang"]  # job slot
    index: Int[Array, "*gang"]  # number within its graph
    graph: Int[Array, "*gang"]
    kernel: Int[Array, "*gang"]
    work: Float[Array, "*gang"]
    units: Float[Array, "*gang"]
    workers: Int[Array, "*gang"]


def facts(core: Core, w: WorkloadArrays, gang: Int[Array, "*gang"]) -> GangFacts:
    tasks = w.kernel.shape[1]
    slot, index = gang // tasks, gang % tasks
    graph = take(core.graph, slot)
    return GangFacts(
        slot=slot,
        index=index,
        graph=graph,
        kernel=w.kernel[graph, index],
        work=w.work[graph, index],
        units=w.units[graph, index],
        workers=take(core.workers, gang),
    )


def per_gang(core: Core, table: Shaped[Array, "graphs tasks"]) -> Shaped[Array, " gangs"]:
    """A table of the graphs, for the gangs in the system."""
    return table[core.graph].reshape(-1)


def seconds_by_kind(w: WorkloadArrays, f: GangFacts) -> Float[Array, " kinds"]:
    """Isolated seconds of the whole gang on each device kind, without exchange; inf where it cannot run."""
    return (w.time_fixed[f.kernel] + w.time_work[f.kernel] * f.work) * f.units


def memory_by_kind(w: WorkloadArrays, f: GangFacts) -> Int[Array, " kinds"]:
    """Memory footprint of one worker on each device kind, in the unit of `kind_memory`."""
    return w.footprint[f.graph, f.index]


def _enough(core: Core, t: TopologyArrays, devices: Bool[Array, " devices"]) -> Bool[Array, " gangs"]:
    """Whether, among these devices, at least as many can run each gang as it has workers."""
    kinds = jnp.arange(t.kind_memory.shape[0])
    count = compute_once((devices[:, None] & (t.device_kind[:, None] == kinds)).sum(axis=0, dtype=jnp.int32))
    able = (core.runs_on[:, None] >> kinds) & 1
    return (able * count).sum(axis=1, dtype=jnp.int32) >= core.workers


def candidates(core: Core, t: TopologyArrays) -> Bool[Array, " gangs"]:
    """Gangs that the next decision may place: the partly placed one if there is one, else all that could be placed."""
    placing = core.status == PLACING
    return jnp.where(placing.any(), placing, (core.status == READY) & _enough(core, t, core.up))


def fits(core: Core, t: TopologyArrays, gang: IntScalar) -> Bool[Array, " devices"]:
    """Devices that may take the next worker of a gang."""
    able = (take(core.runs_on, gang) >> t.device_kind) & 1 > 0
    taken = (take(core.device, gang)[None, :] == jnp.arange(core.up.shape[0])[:, None]).any(axis=1)
    return core.up & able & ~taken


def open_devices(core: Core) -> Bool[Array, " devices"]:
    """Devices on which a gang that is placed now could start at once: up, with a free slot and an empty queue."""
    return core.up & (core.lanes_free > 0) & (core.queued == 0)


def open_to(core: Core, t: TopologyArrays) -> Bool[Array, " gangs"]:
    """READY gangs that could start at once if they were placed: enough open devices can run them.

    Transfers of inputs and free memory are not considered.
    """
    return (core.status == READY) & _enough(core, t, open_devices(core))


def startable(core: Core) -> tuple[Bool[Array, " devices"], Int[Array, " devices"]]:
    """Devices at which a gang could start, and which gang that is.

    A gang appears at each of its devices. It can start once it is the head of all their queues, that is, at as many
    devices as it has workers.
    """
    able = core.up & (core.lanes_free > 0) & (core.memory_free >= core.head_needs)
    head = compute_once(jnp.where(able, core.head, -1))
    if core.device.shape[1] == 1:
        together = jnp.ones(head.shape, core.workers.dtype)
    elif head.shape[0] <= 256:
        together = (head[:, None] == head).sum(axis=1, dtype=core.workers.dtype)
    else:
        gangs = core.status.shape[0]
        counts = jnp.zeros(gangs, core.workers.dtype).at[jnp.where(head < 0, gangs, head)].add(1, mode="drop")
        together = take(counts, head)
    ready = (core.status == QUEUED) & (core.inputs_left == 0)
    return (head >= 0) & take(ready, head) & (together == take(core.workers, head)), head
