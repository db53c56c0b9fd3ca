"""Estimated finish time of a gang on each device, as earliest-finish-time policies use it.

    finish = max(queue, wait for the fetch engine + fetch) + set-up + run · slow-down + exchange
    cost   = finish + harm: extra seconds for other work of ours

It uses the observation only: profiles, queues, where the inputs are, and a background load chosen by the caller: its
mean, and its standard deviation where the load is not known exactly. The slow-down is the expected one, and queues are
slowed like runs. Functions with `devices` estimate for these devices only: in large clusters few devices are evaluated
in detail.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int, Shaped

from symphony.problem.spans import span
from symphony.problem.topology import LOCAL, SPANS
from symphony.scheduling.feasible import facts
from symphony.scheduling.indexing import IntScalar, take
from symphony.scheduling.instant import demand
from symphony.scheduling.policy import Observation, by_device, idle_devices
from symphony.scheduling.state import FREE, MAX_COPIES, PLACING, QUEUED

MAX_WAITING_GANGS = 128  # gangs waiting for inputs that are counted: more are rare, and would cost every decision
SomeDevices = Int[Array, " some"] | None  # None = all devices
RowLoads = Float[Array, " rows"]


def span_bandwidth(observation: Observation, background: RowLoads | None) -> Float[Array, "devices spans"]:
    """Bytes/s for new traffic of each span at each device, given the current loads. None: on idle rows."""
    t = observation.topology
    if background is None:
        return jnp.asarray(t.span_bandwidth)
    load = observation.own_load + background
    # New traffic demands the whole bottleneck row; on a loaded row it gets its share of that.
    free = t.capacity / (1 + load)
    crossed = (t.route_spans[:, :, None] >> jnp.arange(len(SPANS))) & 1 > 0
    return jnp.where(crossed, take(free, t.route_row)[:, :, None], jnp.inf).min(axis=1)


def transfer_s(
    observation: Observation,
    copies: Int[Array, "*#edges copies"],
    size: Float[Array, "*#edges"],
    device: Int[Array, "*#edges"],
    bandwidth: Float[Array, "devices spans"],
) -> Float[Array, "*#edges"]:
    """Seconds to move `size` bytes from the fastest of `copies` (-1 = none) to a device."""
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


def _inputs(
    observation: Observation, gang: Int[Array, "*gang"]
) -> tuple[Int[Array, "*gang fan copies"], Float[Array, "*gang fan"]]:
    """Memories that hold the next few inputs that gangs have yet to fetch, and the sizes of these inputs in bytes."""
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


def holders(observation: Observation, gang: IntScalar) -> Int[Array, " holders"]:
    """Devices that hold an input which the gang has yet to fetch, unordered; -1 = none."""
    copies, size = _inputs(observation, gang)
    return jnp.where((size > 0)[..., None], copies, -1).reshape(-1)


def fetch_s(
    observation: Observation, gang: IntScalar, bandwidth: Float[Array, "devices spans"], devices: SomeDevices = None
) -> Float[Array, " some"]:
    """Seconds to fetch the gang's (largest) inputs to each device, one after the other."""
    copies, size = _inputs(observation, gang)
    where = jnp.arange(observation.core.up.shape[0]) if devices is None else devices
    return transfer_s(observation, copies, size, where[:, None], bandwidth).sum(axis=1)


def engine_s(observation: Observation) -> Float[Array, " devices"]:
    """Seconds of work of each device's fetch engine; a transfer in progress counts with its full size.

    At full bandwidth: pending transfers do not load the rows yet, and those in progress are most of their load.
    """
    core = observation.core
    bandwidth = span_bandwidth(observation, None)
    devices, gangs = core.up.shape[0], core.status.shape[0]
    waits = ((core.status == PLACING) | (core.status == QUEUED)) & (core.inputs_left > 0)
    # Few gangs wait for inputs, so that gathering those alone is much cheaper; -1 fills up.
    some = jnp.nonzero(waits, size=min(gangs, MAX_WAITING_GANGS), fill_value=-1)[0]
    copies, size = _inputs(observation, some)
    device = take(core.device, some)[:, 0]
    seconds = transfer_s(observation, copies, size, device[:, None], bandwidth).sum(axis=1)
    return jnp.zeros(devices).at[jnp.where(some >= 0, device, devices)].add(seconds, mode="drop")


def _of(x: Shaped[Array, "devices ..."], devices: SomeDevices) -> Shaped[Array, "some ..."]:
    return jnp.asarray(x) if devices is None else take(x, devices)


def needs(observation: Observation, gang: IntScalar, devices: SomeDevices = None) -> Float[Array, "some hops"]:
    """Demand of a worker of the gang on the rows of each device's route, as a share of their capacity."""
    t, w = observation.topology, observation.workload
    f = observation.facts(gang)
    return demand(t, w, f.kernel, f.work, jnp.arange(t.exists.shape[0]) if devices is None else devices)


class Moments(eqx.Module):
    """Mean and standard deviation of an uncertain quantity."""

    mean: Float[Array, "*shape"]
    std: Float[Array, "*shape"]


def row_slowdown(load: Float[Array, "*shape"], std: Float[Array, "*shape"]) -> Moments:
    """Slow-down by a row: max(1, L), for a load L that is normally distributed about `load`."""
    above, known = load - 1, std <= 0
    scale = jnp.where(known, 1, std)
    z = above / scale
    chance, density = jax.scipy.stats.norm.cdf(z), jax.scipy.stats.norm.pdf(z)
    excess = above * chance + scale * density  # mean of max(0, L - 1)
    variance = (above**2 + scale**2) * chance + above * scale * density - excess**2
    return Moments(
        jnp.where(known, jnp.maximum(load, 1), 1 + excess),
        jnp.where(known, 0, jnp.sqrt(jnp.where(variance > 0, variance, 0))),
    )


def _bottleneck(
    observation: Observation,
    need: Float[Array, "some hops"],
    added: Float[Array, "some hops"] | float,
    background: RowLoads,
    std: RowLoads | None,
    devices: SomeDevices = None,
) -> Moments:
    """Slow-down by the worst of the rows that a worker needs on each device, with `added` load on them."""
    row = _of(observation.topology.route_row, devices)
    deviation = jnp.zeros(row.shape) if std is None else take(std, row)
    rows = row_slowdown(take(observation.own_load + background, row) + added, deviation)
    mean = jnp.where(need > 0, rows.mean, 1)
    worst = jnp.arange(mean.shape[-1]) == mean.argmax(axis=-1)[..., None]
    return Moments(mean.max(axis=-1), jnp.where(worst & (need > 0), rows.std, 0).sum(axis=-1))


def slowdown(
    observation: Observation,
    gang: IntScalar,
    background: RowLoads,
    std: RowLoads | None = None,
    devices: SomeDevices = None,
) -> Moments:
    """Factor by which contention would slow the gang down on each device."""
    need = needs(observation, gang, devices)
    return _bottleneck(observation, need, need, background, std, devices)


def queue_s(observation: Observation, background: RowLoads, std: RowLoads | None = None) -> Moments:
    """Seconds of work ahead of a new gang on each device, under contention; 0 if it could start at once.

    Running workers go on at the slow-down of the rows that they use now; queued ones, which take their places, at the
    mean of these. Work on one device crosses the same rows, so that its deviations add up.
    """
    core, t, w = observation.core, observation.topology, observation.workload
    f, runs = facts(core, w, core.lane_holds), core.lane_holds >= 0
    need = jnp.where(runs[:, None], demand(t, w, f.kernel, f.work, t.lane_device), 0)
    slow = _bottleneck(observation, need, 0.0, background, std, t.lane_device)
    left = core.lane_estimate * slow.mean - observation.now.minus(core.lane_since)
    open_ = (core.lanes_free > 0) & (core.queued == 0)

    def backlog(excess: Float[Array, " lanes"], left: Float[Array, " lanes"]) -> Float[Array, " devices"]:
        queued = core.queued_s * by_device(jnp.where(runs, excess, 0), t) / jnp.maximum(by_device(1 * runs, t), 1)
        seconds = (queued + by_device(jnp.where(runs, left, 0), t)) / jnp.maximum(t.slots, 1)
        return jnp.where(open_, 0, seconds)

    at_least = jnp.where(open_, 0, core.queued_s / jnp.maximum(t.slots, 1))
    return Moments(
        at_least + backlog(slow.mean - 1, jnp.maximum(left, 0)),
        backlog(slow.std, jnp.where(left > 0, core.lane_estimate * slow.std, 0)),
    )


def harm(
    observation: Observation, gang: IntScalar, background: RowLoads, devices: SomeDevices = None
) -> Float[Array, " some"]:
    """Extra seconds of running work for each second of the gang on each device: over rows, weighted by own load."""
    row = _of(observation.topology.route_row, devices)
    load = take(observation.own_load + background, row)
    slower = jnp.maximum(load + needs(observation, gang, devices), 1) / jnp.maximum(load, 1) - 1
    return (take(observation.own_load, row) * slower).sum(axis=1)


def exchange_s(
    observation: Observation, gang: IntScalar, bandwidth: Float[Array, "devices spans"], devices: SomeDevices = None
) -> Float[Array, " some"]:
    """Seconds of exchange that each device would add, given where the gang's first worker is."""
    core, t = observation.core, observation.topology
    f = observation.facts(gang)
    origin = take(core.device, gang)[0]
    reach = span(take(t.place, origin), take(t.peers, origin), _of(t.place, devices), _of(t.peers, devices))
    at = jnp.arange(len(SPANS)) == reach[:, None]
    speed = jnp.where(at, jnp.minimum(take(bandwidth, origin), _of(bandwidth, devices)), jnp.inf).min(axis=1)
    seconds = observation.workload.exchange[f.kernel] * f.units / speed
    return jnp.where((origin >= 0) & (reach != LOCAL), seconds, 0)


def setup_s(observation: Observation, gang: IntScalar) -> Float[Array, " devices"]:
    """Seconds of reconfiguration before the gang could run on each device.

    Where it could start at once, only free slots count; where it must queue, any slot may be the next to be free.
    """
    core, t = observation.core, observation.topology
    matching = (core.lane_kernel == observation.facts(gang).kernel) & t.lane_exists
    at_once = by_device(1 * (matching & (core.lane_holds == FREE)), t) > 0
    later = by_device(1 * matching, t) > 0
    configured = jnp.where(idle_devices(observation), at_once, later)
    return jnp.where(configured, 0, take(t.kind_reconfigure, t.device_kind))


class EstimateParts(eqx.Module):
    """The terms of an estimate on each device, in seconds. Leading axes may be gangs."""

    queue: Float[Array, "... devices"]  # until the work ahead is done
    fetch: Float[Array, "... devices"]  # until the inputs are there
    setup: Float[Array, "... devices"]  # reconfiguration
    run: Float[Array, "... devices"]  # in isolation
    slow: Float[Array, "... devices"]  # factor on `run` by contention
    exchange: Float[Array, "... devices"]  # with the other workers of the gang
    harm: Float[Array, "... devices"]  # extra seconds for other work of ours while the gang runs
    queue_std: Float[Array, "... devices"]  # deviation of `queue` …
    slow_std: Float[Array, "... devices"]  # … and of `slow` under the belief about the background

    @property
    def finish(self) -> Float[Array, "... devices"]:
        """Seconds from now until the gang would finish."""
        return jnp.maximum(self.queue, self.fetch) + self.setup + self.run * self.slow + self.exchange

    @property
    def std(self) -> Float[Array, "... devices"]:
        """Standard deviation of `finish`. Queue and run cross the same rows, so that theirs add up.

        Transfers count as known: they are estimated at the mean load.
        """
        run = jnp.where(self.slow_std > 0, self.run * self.slow_std, 0)  # not NaN where it cannot run
        return jnp.where(self.queue > self.fetch, self.queue_std, 0) + run

    @property
    def cost(self) -> Float[Array, "... devices"]:
        """Seconds until the gang would finish, and those by which it would delay others."""
        return self.finish + self.harm


def estimate_parts(
    observation: Observation,
    gang: IntScalar,
    background: RowLoads | None = None,
    std: RowLoads | None = None,
    devices: SomeDevices = None,
) -> EstimateParts:
    """The terms of the estimate for a gang. Without a background, contention is ignored; without `std`, it is known."""
    bandwidth = span_bandwidth(observation, background)
    fetches = take(observation.core.inputs_left, gang) > 0
    run = _of(observation.seconds(gang), devices)
    fetch = _of(engine_s(observation), devices) + fetch_s(observation, gang, bandwidth, devices)
    if background is None:
        queue = Moments(observation.queue_s, jnp.zeros(observation.queue_s.shape))
        slow, harm_s = Moments(jnp.ones(run.shape), jnp.zeros(run.shape)), jnp.zeros(run.shape)
    else:
        queue, slow = queue_s(observation, background, std), slowdown(observation, gang, background, std, devices)
        harm_s = jnp.where(jnp.isfinite(run), run * slow.mean, 0) * harm(observation, gang, background, devices)
    return EstimateParts(
        queue=_of(queue.mean, devices),
        fetch=jnp.where(fetches, fetch, 0),
        setup=_of(setup_s(observation, gang), devices),
        run=run,
        slow=slow.mean,
        exchange=exchange_s(observation, gang, bandwidth, devices),
        harm=harm_s,
        queue_std=_of(queue.std, devices),
        slow_std=slow.std,
    )


def finish_s(observation: Observation, gang: IntScalar) -> Float[Array, " devices"]:
    """Seconds from now until the gang would finish on each device, by profiles alone: contention is ignored."""
    return estimate_parts(observation, gang).finish


def cost_s(
    observation: Observation, gang: IntScalar, background: RowLoads, std: RowLoads | None = None
) -> Float[Array, " devices"]:
    """Seconds until the gang would finish on each device, and those by which it would delay others."""
    return estimate_parts(observation, gang, background, std).cost
