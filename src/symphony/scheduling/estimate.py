"""When would a gang finish on each device? The estimate that earliest-finish policies share.

    finish = max(queue, fetch) + set-up + run · slow-down + exchange

All from the observation: profiles, queues, where the inputs lie, and a background load that the caller believes in.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from symphony.problem.spans import span
from symphony.problem.topology import LOCAL, SPANS
from symphony.scheduling.indexing import take
from symphony.scheduling.policy import Observation, idle_devices
from symphony.scheduling.state import COPIES, FREE


def span_bandwidth(observation: Observation, background: Array | None) -> Array:
    """Bytes/s that a device's end gives to new traffic of each span [D, spans], given what else loads its rows."""
    t = observation.topology
    if background is None:
        return jnp.asarray(t.span_bandwidth)
    load = observation.own_load + background
    # New traffic asks for the whole of the scarcest row; on a busy row it gets its share of that.
    free = t.capacity / (1 + load)
    crossed = (t.route_spans[:, :, None] >> jnp.arange(len(SPANS))) & 1 > 0
    return jnp.where(crossed, take(free, t.route_row)[:, :, None], jnp.inf).min(axis=1)


def fetch_s(observation: Observation, gang: Array, bandwidth: Array) -> Array:
    """Seconds to fetch the gang's (largest) inputs to each device [D], one after the other."""
    core, t, w = observation.core, observation.topology, observation.workload
    f = observation.facts(gang)
    edges = w.in_start[f.graph, f.index] + jnp.arange(w.fan)
    present = edges < w.in_start[f.graph, f.index + 1]
    edges = jnp.minimum(edges, w.in_source.shape[1] - 1)
    number, size = w.in_source[f.graph, edges], jnp.where(present, w.in_bytes[f.graph, edges], 0)
    parent = f.slot * w.kernel.shape[1] + number
    home = jnp.where(jnp.arange(COPIES) == 0, take(core.home, f.slot), -1)
    copies = jnp.where((number >= 0)[:, None], take(core.copies, parent), home)  # [fan, V]
    reach = span(  # [fan, V, D]
        take(t.place, copies)[:, :, None, :], take(t.peers, copies)[:, :, None], t.place, t.peers
    )
    out = take(bandwidth, copies)[:, :, None, :]  # [fan, V, 1, spans]
    speed = jnp.minimum(out, bandwidth)  # [fan, V, D, spans]
    at = jnp.arange(len(SPANS)) == reach[..., None]
    speed = jnp.where(at, speed, jnp.inf).min(axis=-1)
    seconds = jnp.where(reach == LOCAL, 0, size[:, None, None] / speed)
    seconds = jnp.where((copies >= 0)[:, :, None], seconds, jnp.inf).min(axis=1)
    return jnp.where((size > 0)[:, None], seconds, 0).sum(axis=0)


def slowdown(observation: Observation, gang: Array, background: Array) -> Array:
    """How much slower than alone the gang would run on each device [D], with everything else going on."""
    t, w = observation.topology, observation.workload
    f = observation.facts(gang)
    kinds = t.device_kind[:, None]
    demand = w.demand_fixed[f.kernel][kinds, t.route_kind] + f.work * w.demand_work[f.kernel][kinds, t.route_kind]
    need = demand / take(t.capacity, t.route_row)
    load = take(observation.own_load + background, t.route_row) + need
    return jnp.where(need > 0, jnp.maximum(load, 1), 1).max(axis=1)


def exchange_s(observation: Observation, gang: Array, bandwidth: Array) -> Array:
    """Seconds of exchange that each device would add, given where the gang's first worker is [D]."""
    core, t = observation.core, observation.topology
    f = observation.facts(gang)
    origin = take(core.device, gang)[0]
    reach = span(take(t.place, origin), take(t.peers, origin), t.place, t.peers)
    at = jnp.arange(len(SPANS)) == reach[:, None]
    speed = jnp.where(at, jnp.minimum(take(bandwidth, origin), bandwidth), jnp.inf).min(axis=1)
    seconds = observation.workload.exchange[f.kernel] * f.units / speed
    return jnp.where((origin >= 0) & (reach != LOCAL), seconds, 0)


def setup_s(observation: Observation, gang: Array) -> Array:
    """Seconds of reconfiguration before the gang could run on each device [D].

    Where it could start at once it gets a free slot, so only those count; where it must queue, any slot may be next.
    """
    core, t = observation.core, observation.topology
    matching = (core.lane_kernel == observation.facts(gang).kernel) & t.lane_exists
    here = t.lane_device[None, :] == jnp.arange(t.device_kind.shape[0])[:, None]
    at_once = (here & matching & (core.lane_holds == FREE)).any(axis=1)
    later = (here & matching).any(axis=1)
    configured = jnp.where(idle_devices(observation), at_once, later)
    return jnp.where(configured, 0, take(t.kind_reconfigure, t.device_kind))


def finish_s(observation: Observation, gang: Array, background: Array | None = None) -> Array:
    """Seconds from now until the gang would finish on each device [D]. Without a background, contention is ignored."""
    bandwidth = span_bandwidth(observation, background)
    begin = jnp.maximum(observation.queue_s, fetch_s(observation, gang, bandwidth))
    run = observation.seconds(gang)
    if background is not None:
        run = run * slowdown(observation, gang, background)
    return begin + setup_s(observation, gang) + run + exchange_s(observation, gang, bandwidth)
