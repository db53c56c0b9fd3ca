"""The rules of an instant, before time moves: gangs leave, inputs are fetched, gangs start.

The caller applies these rules in turn until none has anything left to do. The simulator adds the effects on its hidden
world; the runtime adds the commands to an engine. Each rule takes one small, bounded step (one gang, one device) and
returns in `when` whether there was anything to do.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem.arrays import TopologyArrays, WorkloadArrays
from symphony.problem.spans import distance
from symphony.problem.topology import LOCAL
from symphony.scheduling import advance
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import GangFacts, candidates, facts, startable
from symphony.scheduling.indexing import (
    NO_INDEX,
    BoolScalar,
    FloatScalar,
    IntScalar,
    compute_once,
    first,
    first_min,
    take,
)
from symphony.scheduling.state import MAX_COPIES, PLACING, QUEUED, Core


def decision_wanted(core: Core, t: TopologyArrays) -> BoolScalar:
    """Whether the policy is to be asked for an action."""
    return (candidates(core, t).any() | core.offered) & ~core.waited


def departure_pending(core: Core) -> BoolScalar:
    """Whether a gang is to leave its devices, or children are to be released."""
    return core.leaving.any() | (core.releasing >= 0)


class DepartedGang(eqx.Module):
    """A gang that left its devices, as it was before."""

    when: BoolScalar  # whether a gang left
    gang: IntScalar
    facts: GangFacts
    status: IntScalar
    devices: Int[Array, " workers"]
    lanes: Int[Array, " workers"]
    slot: IntScalar  # of its job, or of the job whose children were released
    completed: BoolScalar  # that job is complete


def leave(core: Core, t: TopologyArrays, w: WorkloadArrays) -> tuple[Core, DepartedGang]:
    """Take one leaving gang off its devices, and release the next few children of a finished one."""
    when = core.leaving.any() & (core.releasing < 0)
    gang = jnp.where(when, first(core.leaving), 0)
    f = facts(core, w, gang)
    status, devices, lanes = take(core.status, gang), take(core.device, gang), take(core.lane, gang)
    when, gang, f, status, devices, lanes = compute_once((when, gang, f, status, devices, lanes))
    slot = jnp.where(when, f.slot, core.releasing // w.kernel.shape[1])
    before = core.jobs_done
    core = advance.gang_leaves(core, t, w, gang, f, when)
    core = advance.release_children(core, w)
    return core, DepartedGang(when, gang, f, status, devices, lanes, slot, core.jobs_done > before)


class NextFetch(eqx.Module):
    """The next input that a device has to fetch."""

    when: BoolScalar  # an idle fetch engine had inputs to fetch
    goes: BoolScalar  # a transfer is needed
    device: IntScalar
    gang: IntScalar  # that reads the input
    skipped: IntScalar  # inputs that are in the device's memory already
    parent: IntScalar  # gang whose output it is, -1 = the job's input
    source: IntScalar  # device whose memory holds the nearest copy
    bytes: FloatScalar


def next_fetch(
    core: Core, t: TopologyArrays, w: WorkloadArrays, idle: Bool[Array, " devices"]
) -> tuple[Core, NextFetch]:
    """Find the next input of the first gang at a device whose fetch engine is `idle`; skip inputs already present."""
    when = idle.any()
    device = jnp.where(when, first(idle), 0)
    wants = ((core.status == PLACING) | (core.status == QUEUED)) & (core.inputs_left > 0)
    wants &= (core.device[:, 0] == device) & when
    gang = jnp.minimum(first_min(jnp.where(wants, core.sequence, NO_INDEX))[1], wants.shape[0] - 1)
    when, device, gang = compute_once((when, device, gang))
    f = facts(core, w, gang)
    memory = take(t.place, device)[0]

    edges = w.in_start[f.graph, f.index + 1] - take(core.inputs_left, gang) + jnp.arange(w.fan)
    present = edges < w.in_start[f.graph, f.index + 1]
    edges = jnp.minimum(edges, w.in_source.shape[1] - 1)
    number, size = w.in_source[f.graph, edges], w.in_bytes[f.graph, edges]
    parent = jnp.where(number >= 0, f.slot * w.kernel.shape[1] + number, -1)
    home = jnp.where(jnp.arange(MAX_COPIES) == 0, take(core.home, f.slot), -1)
    copies = jnp.where((parent >= 0)[:, None], take(core.copies, parent), home)  # [fan, copies]
    far = jnp.where(copies >= 0, distance(take(t.place, copies), take(t.place, memory)), NO_INDEX // 8)
    v = jnp.arange(MAX_COPIES)
    age = jnp.where(v == 0, 0, 1 + (v - 1 - take(core.copied, parent)[:, None]) % (MAX_COPIES - 1))
    _, nearest = first_min(far * MAX_COPIES + jnp.where(parent[:, None] >= 0, age, v))

    remote = present & (far.min(axis=1) > LOCAL) & (size > 0)
    skipped = jnp.minimum(first(remote), present.sum(dtype=jnp.int32))
    goes = when & remote.any()
    edge = jnp.minimum(skipped, w.fan - 1)
    fetch = NextFetch(when, goes, device, gang, skipped, parent[edge], copies[edge, nearest[edge]], size[edge])
    fetch = compute_once(fetch)
    return advance.inputs_there(core, gang, device, fetch.skipped, when), fetch


class StartedGang(eqx.Module):
    """A gang that started."""

    when: BoolScalar  # whether a gang started
    gang: IntScalar
    facts: GangFacts
    devices: Int[Array, " workers"]
    setup: Float[Array, " workers"]  # seconds of set-up of its lanes


def start(core: Core, t: TopologyArrays, w: WorkloadArrays, now: Amount) -> tuple[Core, StartedGang]:
    """Start the startable gang that was placed first."""
    able, heads = startable(core)
    least, device = first_min(jnp.where(able, take(core.sequence, heads), NO_INDEX))
    when = least < NO_INDEX
    gang = jnp.where(when, take(heads, device), 0)
    when, gang, f, devices = compute_once((when, gang, facts(core, w, gang), take(core.device, gang)))
    core, setup = advance.start_gang(core, t, w, gang, f, now, when)
    return core, StartedGang(when, gang, f, devices, setup)


def demand(
    t: TopologyArrays,
    w: WorkloadArrays,
    kernel: Int[Array, "*#shape"],
    work: Float[Array, "*#shape"],
    devices: Int[Array, "*#shape"],
) -> Float[Array, "*#shape hops"]:
    """Demand of a worker on the rows of its device's route, as a share of their capacity. The inputs broadcast."""
    kinds, resource = take(t.device_kind, devices)[..., None], take(t.route_kind, devices)
    kernel, work = kernel[..., None], work[..., None]
    asked = w.demand_fixed[kernel, kinds, resource] + work * w.demand_work[kernel, kinds, resource]
    return asked / take(t.capacity, take(t.route_row, devices))


def running_load(core: Core, t: TopologyArrays, w: WorkloadArrays) -> Float[Array, " rows"]:
    """Load of running workers on each row by their profiles, without exchange."""
    f = facts(core, w, core.lane_holds)
    asked = jnp.where((core.lane_holds >= 0)[:, None], demand(t, w, f.kernel, f.work, t.lane_device), 0)
    return jnp.zeros(t.capacity.shape).at[take(t.route_row, t.lane_device)].add(asked)
