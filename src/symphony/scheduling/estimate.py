"""When would a gang finish on each device? The estimate that earliest-finish policies share.

    finish = max(queue, wait for the fetch engine + fetch) + set-up + run · slow-down + exchange

All from the observation: profiles, queues, where the inputs lie, and a background load that the caller believes in.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from symphony.problem.spans import span
from symphony.problem.topology import LOCAL, SPANS
from symphony.scheduling.indexing import take
from symphony.scheduling.instant import demand
from symphony.scheduling.policy import Observation, by_device, idle_devices
from symphony.scheduling.state import FREE, MAX_COPIES, PLACING, QUEUED

MAX_WAITING_GANGS = 128  # gangs that wait for inputs and are looked at: more are rare, and would cost every decision


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


def transfer_s(observation: Observation, copies: Array, size: Array, device: Array, bandwidth: Array) -> Array:
    """Seconds to move `size` [...] bytes from the quickest of `copies` [..., V] (-1 = none) to a device [...]."""
    t = observation.topology
    reach = span(
        take(t.place, copies),
        take(t.peers, copies),
        take(t.place, device)[..., None, :],
        take(t.peers, device)[..., None],
    )
    of_span, spans = bandwidth.reshape(-1), len(SPANS)
    speed = jnp.minimum(take(of_span, copies * spans + reach), take(of_span, device[..., None] * spans + reach))
    seconds = jnp.where(reach == LOCAL, 0, size[..., None] / speed + take(t.latency, reach))
    return jnp.where(size > 0, jnp.where(copies >= 0, seconds, jnp.inf).min(axis=-1), 0)


def _inputs(observation: Observation, gang: Array) -> tuple[Array, Array]:
    """Where the next few inputs that gangs [...] have yet to fetch lie [..., fan, V], and their bytes [..., fan]."""
    core, w = observation.core, observation.workload
    tasks = w.kernel.shape[1]
    slot, index = gang // tasks, gang % tasks
    graph = take(core.graph, slot)
    end = w.in_start[graph, index + 1]
    edges = (end - take(core.inputs_left, gang))[..., None] + jnp.arange(w.fan)
    size = jnp.where(
        edges < end[..., None], w.in_bytes[graph[..., None], jnp.minimum(edges, w.in_source.shape[1] - 1)], 0
    )
    number = w.in_source[graph[..., None], jnp.minimum(edges, w.in_source.shape[1] - 1)]
    home = jnp.where(jnp.arange(MAX_COPIES) == 0, take(core.home, slot)[..., None], -1)
    made = take(core.copies, slot[..., None] * tasks + number)
    return jnp.where((number >= 0)[..., None], made, home[..., None, :]), size


def holders(observation: Observation, gang: Array) -> Array:
    """Devices that hold an input which the gang has yet to fetch, -1 = none, in no order [fan · V]."""
    copies, size = _inputs(observation, gang)
    return jnp.where((size > 0)[..., None], copies, -1).reshape(-1)


def fetch_s(observation: Observation, gang: Array, bandwidth: Array, devices: Array | None = None) -> Array:
    """Seconds to fetch the gang's (largest) inputs to each device [D], one after the other."""
    copies, size = _inputs(observation, gang)
    where = jnp.arange(observation.core.up.shape[0]) if devices is None else devices
    return transfer_s(observation, copies, size, where[:, None], bandwidth).sum(axis=1)


def engine_s(observation: Observation) -> Array:
    """Seconds for which each device's fetch engine has work [D]; a transfer under way is counted whole.

    At full bandwidth: what waits is not yet there to load the rows, and what is under way is most of their load.
    """
    core = observation.core
    bandwidth = span_bandwidth(observation, None)
    devices, gangs = core.up.shape[0], core.status.shape[0]
    waits = ((core.status == PLACING) | (core.status == QUEUED)) & (core.inputs_left > 0)
    # Few gangs wait for inputs, so that looking at those alone is much cheaper; -1 fills up.
    some = jnp.nonzero(waits, size=min(gangs, MAX_WAITING_GANGS), fill_value=-1)[0]
    copies, size = _inputs(observation, some)
    device = take(core.device, some)[:, 0]
    seconds = transfer_s(observation, copies, size, device[:, None], bandwidth).sum(axis=1)
    return jnp.zeros(devices).at[jnp.where(some >= 0, device, devices)].add(seconds, mode="drop")


def _of(x: Array, devices: Array | None) -> Array:
    return jnp.asarray(x) if devices is None else take(x, devices)


def needs(observation: Observation, gang: Array, devices: Array | None = None) -> Array:
    """What a worker of the gang asks of the rows on the route of each device, as a share of their capacity [D, H].

    On all devices or, as below, on those that are asked for: where there are hundreds, few are looked at closely.
    """
    t, w = observation.topology, observation.workload
    f = observation.facts(gang)
    return demand(t, w, f.kernel, f.work, jnp.arange(t.exists.shape[0]) if devices is None else devices)


def slowdown(observation: Observation, gang: Array, background: Array, devices: Array | None = None) -> Array:
    """How much slower than alone the gang would run on each device [D], with everything else going on."""
    need = needs(observation, gang, devices)
    load = take(observation.own_load + background, _of(observation.topology.route_row, devices)) + need
    return jnp.where(need > 0, jnp.maximum(load, 1), 1).max(axis=1)


def harm(observation: Observation, gang: Array, background: Array, devices: Array | None = None) -> Array:
    """By how much the gang would slow those who run already, on each device: summed over rows and their loads [D]."""
    row = _of(observation.topology.route_row, devices)
    load = take(observation.own_load + background, row)
    slower = jnp.maximum(load + needs(observation, gang, devices), 1) / jnp.maximum(load, 1) - 1
    return (take(observation.own_load, row) * slower).sum(axis=1)


def exchange_s(observation: Observation, gang: Array, bandwidth: Array, devices: Array | None = None) -> Array:
    """Seconds of exchange that each device would add, given where the gang's first worker is [D]."""
    core, t = observation.core, observation.topology
    f = observation.facts(gang)
    origin = take(core.device, gang)[0]
    reach = span(take(t.place, origin), take(t.peers, origin), _of(t.place, devices), _of(t.peers, devices))
    at = jnp.arange(len(SPANS)) == reach[:, None]
    speed = jnp.where(at, jnp.minimum(take(bandwidth, origin), _of(bandwidth, devices)), jnp.inf).min(axis=1)
    seconds = observation.workload.exchange[f.kernel] * f.units / speed
    return jnp.where((origin >= 0) & (reach != LOCAL), seconds, 0)


def setup_s(observation: Observation, gang: Array) -> Array:
    """Seconds of reconfiguration before the gang could run on each device [D].

    Where it could start at once it gets a free slot, so only those count; where it must queue, any slot may be next.
    """
    core, t = observation.core, observation.topology
    matching = (core.lane_kernel == observation.facts(gang).kernel) & t.lane_exists
    at_once = by_device(1 * (matching & (core.lane_holds == FREE)), t) > 0
    later = by_device(1 * matching, t) > 0
    configured = jnp.where(idle_devices(observation), at_once, later)
    return jnp.where(configured, 0, take(t.kind_reconfigure, t.device_kind))


class EstimateParts(eqx.Module):
    """What an estimate is made of, on each device, in seconds [D]."""

    queue: Array  # until those ahead are done
    fetch: Array  # until the inputs are there
    setup: Array  # reconfiguration
    run: Array  # alone
    slow: Array  # factor on `run`, with everything else going on
    exchange: Array  # with the other workers of the gang

    @property
    def finish(self) -> Array:
        """Seconds from now until the gang would finish."""
        return jnp.maximum(self.queue, self.fetch) + self.setup + self.run * self.slow + self.exchange


def estimate_parts(
    observation: Observation, gang: Array, background: Array | None = None, devices: Array | None = None
) -> EstimateParts:
    """The estimate for a gang on each device, or on some, in parts. Without a background, contention is ignored."""
    bandwidth = span_bandwidth(observation, background)
    fetches = take(observation.core.inputs_left, gang) > 0
    run = _of(observation.seconds(gang), devices)
    fetch = _of(engine_s(observation), devices) + fetch_s(observation, gang, bandwidth, devices)
    return EstimateParts(
        queue=_of(observation.queue_s, devices),
        fetch=jnp.where(fetches, fetch, 0),
        setup=_of(setup_s(observation, gang), devices),
        run=run,
        slow=jnp.ones_like(run) if background is None else slowdown(observation, gang, background, devices),
        exchange=exchange_s(observation, gang, bandwidth, devices),
    )


def finish_s(observation: Observation, gang: Array, background: Array | None = None) -> Array:
    """Seconds from now until the gang would finish on each device [D]. Without a background, contention is ignored."""
    return estimate_parts(observation, gang, background).finish
