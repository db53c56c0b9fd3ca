"""What may be done: which gangs may be placed, where, and which may start."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.scheduling.indexing import compute_once, take
from symphony.scheduling.state import PLACING, QUEUED, READY, Core


class GangFacts(eqx.Module):
    """What the workload says of one gang (scalars)."""

    slot: Array  # i32: job slot
    index: Array  # i32: number within its graph
    graph: Array  # i32
    kernel: Array  # i32
    work: Array  # f
    units: Array  # f
    workers: Array  # i32


def facts(core: Core, w: WorkloadArrays, gang: Array) -> GangFacts:
    """Look one gang up."""
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


def per_gang(core: Core, table: Array) -> Array:
    """A table [A, T] of the graphs, for the gangs in the system [G]."""
    return table[core.graph].reshape(-1)


def seconds_by_kind(w: WorkloadArrays, f: GangFacts) -> Array:
    """Isolated seconds of the whole gang on each device kind [Y], exchange left aside; inf where it cannot run."""
    return (w.time_fixed[f.kernel] + w.time_work[f.kernel] * f.work) * f.units


def memory_by_kind(w: WorkloadArrays, f: GangFacts) -> Array:
    """Memory footprint of one worker on each device kind [Y], in the unit of `kind_memory`."""
    return w.footprint[f.graph, f.index]


def enough_devices(core: Core, t: TopologyArrays) -> Array:
    """Whether as many devices are up that can run each gang as it has workers [G]."""
    kinds = jnp.arange(t.kind_memory.shape[0])
    up = compute_once((core.up[:, None] & (t.device_kind[:, None] == kinds)).sum(axis=0, dtype=jnp.int32))
    able = (core.runs_on[:, None] >> kinds) & 1
    return (able * up).sum(axis=1, dtype=jnp.int32) >= core.workers


def candidates(core: Core, t: TopologyArrays) -> Array:
    """Gangs that the next decision may place [G]: the one partly placed if there is one, else all actionable ones."""
    placing = core.status == PLACING
    actionable = (core.status == READY) & enough_devices(core, t)
    return jnp.where(placing.any(), placing, actionable)


def fits(core: Core, t: TopologyArrays, gang: Array) -> Array:
    """Devices that may take the next worker of a gang [D]."""
    able = (take(core.runs_on, gang) >> t.device_kind) & 1 > 0
    taken = (take(core.device, gang)[None, :] == jnp.arange(core.up.shape[0])[:, None]).any(axis=1)
    return core.up & able & ~taken


def open_devices(core: Core) -> Array:
    """Devices on which a gang that is placed now could start at once [D]: up, a free slot, nobody before it."""
    return core.up & (core.lanes_free > 0) & (core.queued == 0)


def open_to(core: Core, t: TopologyArrays) -> Array:
    """READY gangs that could start at once, were they placed [G]: as many open devices run them as they have workers.

    Inputs that are elsewhere and memory that is taken are left aside.
    """
    kinds = jnp.arange(t.kind_memory.shape[0])
    open_ = compute_once((open_devices(core)[:, None] & (t.device_kind[:, None] == kinds)).sum(axis=0, dtype=jnp.int32))
    able = (core.runs_on[:, None] >> kinds) & 1
    return (core.status == READY) & ((able * open_).sum(axis=1, dtype=jnp.int32) >= core.workers)


def startable(core: Core) -> tuple[Array, Array]:
    """Devices at which a gang could start [D], and which gang that is [D].

    A gang appears at each of its devices. It is the head of all their queues when as many devices are open to it as it
    has workers.
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
