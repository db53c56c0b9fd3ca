"""Effects of the rules of an instant (`scheduling/instant.py`) on the hidden world.

Each function advances the world by one small, bounded step: one gang, one device. The rules are described in
`docs/concepts/simulation.md`.
"""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.problem.spans import gang_span, span
from symphony.problem.speeds import PACKED, SPREAD
from symphony.problem.topology import CLUSTER, RACK
from symphony.scheduling import advance, instant
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import GangFacts, facts, per_gang, startable
from symphony.scheduling.indexing import BoolScalar, FloatScalar, IntScalar, add_all, compute_once, put, put_all, take
from symphony.scheduling.policy import Action
from symphony.scheduling.state import ABSENT, DONE, FINISHED, RUNNING, SAVED, Core
from symphony.simulator.contention import MAX_BANDWIDTH, to_load
from symphony.simulator.hidden_demands import add_load, true_demand
from symphony.simulator.scenarios import ScenarioArrays
from symphony.simulator.world import IDLE, World


def fetchable(world: World) -> Bool[Array, " devices"]:
    """Devices with inputs to fetch and an idle fetch engine."""
    return (world.core.fetches > 0) & (world.fetch_gang == IDLE)


def unsettled(world: World) -> BoolScalar:
    """Whether a rule other than a decision must be applied before time moves."""
    core = world.core
    return instant.departure_pending(core) | (world.closing >= 0) | fetchable(world).any() | startable(core)[0].any()


class DepartureLog(eqx.Module):
    """The departure of a gang."""

    gang: IntScalar  # -1 = none
    status: IntScalar  # before it left
    slot: IntScalar  # job slot
    completed: BoolScalar  # its job is complete


def leave(world: World, s: ScenarioArrays) -> tuple[World, DepartureLog]:
    """Take one leaving gang off its devices, and release the next few children of a finished one."""
    t, w = s.topology, s.workload
    core, left = instant.leave(world.core, t, w)
    gang, f, status, devices, lanes = left.gang, left.facts, left.status, left.devices, left.lanes

    held = left.when & (status >= RUNNING)
    rows = take(t.route_row, devices)
    compute, exchange = (
        jnp.where(((lanes >= 0) & held)[:, None], take(x, lanes), 0) for x in (world.compute_load, world.exchange_load)
    )
    burden = compute + exchange
    # A failure loses the work since the last periodic checkpoint.
    failed = held & (status != FINISHED) & (status != SAVED)
    every = w.checkpoint_units[f.graph, f.index]
    total = _true_units(s, world.core, f.slot, f.index, f.units)
    units = world.lane_left.take(lanes[0]).total / take(world.pace_s, lanes[0])
    kept = jnp.where(jnp.isfinite(every), jnp.floor((total - units) / every) * every, 0)
    reset = Amount.of(jnp.where(failed, total - kept, units))
    fetching = left.when & (take(world.fetch_gang, devices[0]) == gang) & (devices[0] >= 0)
    rows, burden, held, reset, fetching = compute_once((rows, burden, held, reset, fetching))

    # A run without set-up shows by its time how busy the rows were that it used.
    device, lane = devices[0], lanes[0]
    run_s = world.now.minus(world.core.lane_since.take(lane))
    expected_s = take(world.core.lane_estimate, lane)
    shows = held & (status == FINISHED) & (take(world.core.workers, gang) == 1) & (expected_s > 0)
    shows &= ~take(world.core.resumed, gang) & (take(t.kind_reconfigure, take(t.device_kind, device)) == 0)
    slow = run_s / jnp.where(shows, expected_s, 1.0)

    spent = jnp.where(left.completed, world.now.minus(core.arrived.take(left.slot)), 0)
    isolated = w.isolated[take(core.graph, left.slot)]
    return (
        replace(
            world,
            core=core,
            load=add_all(world.load, rows.reshape(-1), -burden.reshape(-1)),
            kernel_load=add_load(world.kernel_load, s, f.kernel, devices, -compute),
            setup_s=put_all(world.setup_s, lanes, 0.0, held & (lanes >= 0)),
            left=world.left.put(gang, reset, held),
            run_slow=put(world.run_slow, device, slow, shows),
            run_s=put(world.run_s, device, run_s, shows),
            run_uses=put(world.run_uses, device, take(world.compute_load, lane) > 0, shows),
            closing=jnp.where(fetching, devices[0], world.closing),
            arrived=world.arrived & ~fetching,
            completion_sum=world.completion_sum.plus(spent),
            slowdown_sum=world.slowdown_sum.plus(spent / isolated),
        ),
        DepartureLog(jnp.where(left.when, gang, -1), status, left.slot, left.completed),
    )


def _true_units(
    s: ScenarioArrays, core: Core, slot: Int[Array, "*gang"], index: Int[Array, "*gang"], units: Float[Array, "*gang"]
) -> Float[Array, "*gang"]:
    """The true amount of work of gangs, in units of their profiles."""
    number = take(core.job, slot)
    return units * take(s.work_noise, (31 * number + index) % s.work_noises)


def units_left(world: World, s: ScenarioArrays) -> Float[Array, " gangs"]:
    """Whole units that each gang reports as yet to do: a kernel reports 1 until it has finished."""
    core, w = world.core, s.workload
    gangs, tasks = core.status.shape[0], w.kernel.shape[1]
    number = jnp.arange(gangs)
    slot, index = number // tasks, number % tasks
    units = per_gang(core, w.units)
    true = _true_units(s, core, slot, index, units)
    lane = core.lane[:, 0]
    left = jnp.where(core.resumed, world.left.total, true)
    left = jnp.where(lane >= 0, take(world.lane_left.total / world.pace_s, lane), left)
    # The noise makes units longer or shorter; their number is known.
    reported = jnp.ceil(left / true * units * (1 - 8 * jnp.finfo(left.dtype).eps))
    return jnp.where((core.status == ABSENT) | (core.status == DONE), 0, reported)


def act(world: World, s: ScenarioArrays, action: Action, when: BoolScalar) -> tuple[World, BoolScalar]:
    """Carry out a policy's action. Also returns whether it was accepted."""
    t, w = s.topology, s.workload
    core, commands, accepted = advance.apply(world.core, t, w, action, when)
    f = facts(core, w, commands.save)
    lanes = take(core.lane, commands.save)
    setup_s = put_all(world.setup_s, lanes, w.checkpoint[f.graph, f.index], (commands.save >= 0) & (lanes >= 0))
    lane = commands.reconfigure
    seconds = take(t.kind_reconfigure, take(t.device_kind, take(t.lane_device, lane)))
    return replace(
        world,
        core=core,
        setup_s=put(setup_s, lane, seconds, lane >= 0),
        events=world.events + when,
        thought=world.thought & (~when | action.more),
    ), accepted


def close_fetch(world: World, s: ScenarioArrays) -> tuple[World, None]:
    """Remove the load of a transfer that has ended."""
    t = s.topology
    device = world.closing
    when = device >= 0
    source, memory = take(world.fetch_from, device), take(t.place, device)[0]
    rows = jnp.concatenate([take(t.route_row, source), take(t.route_row, memory)])
    burden = jnp.concatenate([take(world.fetch_out, device), take(world.fetch_in, device)])
    gang, parent, memory, rows, burden = compute_once(
        (take(world.fetch_gang, device), take(world.fetch_parent, device), memory, rows, burden)
    )
    core = advance.inputs_there(world.core, gang, device, jnp.asarray(1), when & world.arrived)
    core = advance.copy_made(core, parent, memory, when & world.arrived)
    return replace(
        world,
        core=core,
        load=add_all(world.load, rows, jnp.where(when, -burden, 0)),
        fetch_gang=put(world.fetch_gang, device, IDLE, when),
        closing=jnp.full_like(device, -1),
    ), None


def open_fetch(world: World, s: ScenarioArrays) -> tuple[World, None]:
    """Start the transfer of the next input at the first idle fetch engine; inputs already present take no time."""
    t = s.topology
    core, fetch = instant.next_fetch(world.core, t, s.workload, fetchable(world))
    device, goes, source = fetch.device, fetch.goes, fetch.source
    memory = take(t.place, device)[0]
    reach = span(take(t.place, source), take(t.peers, source), take(t.place, memory), take(t.peers, memory))
    bandwidth = jnp.minimum(take(t.span_bandwidth, source)[reach], take(t.span_bandwidth, memory)[reach])
    bandwidth = jnp.minimum(bandwidth, MAX_BANDWIDTH)

    def burden(end: IntScalar) -> tuple[Int[Array, " hops"], Int[Array, " hops"]]:
        crossed = (take(t.route_spans, end) >> reach) & 1 > 0
        rows = take(t.route_row, end)
        return rows, jnp.where(crossed & goes, to_load(bandwidth / take(t.capacity, rows)), 0)

    (out_rows, out), (in_rows, into) = burden(source), burden(memory)
    # A row on both routes (say, the link between two sockets) counts on the source's only.
    into = jnp.where(((in_rows[:, None] == out_rows) & (out > 0)).any(axis=1), 0, into)
    rows = jnp.concatenate([out_rows, in_rows])
    rows, out, into, reach, bandwidth = compute_once((rows, out, into, reach, bandwidth))
    return replace(
        world,
        core=core,
        load=add_all(world.load, rows, jnp.concatenate([out, into])),
        fetch_gang=put(world.fetch_gang, device, fetch.gang, goes),
        fetch_parent=put(world.fetch_parent, device, fetch.parent, goes),
        fetch_from=put(world.fetch_from, device, source, goes),
        fetch_span=put(world.fetch_span, device, reach, goes),
        fetch_left=put(world.fetch_left, device, fetch.bytes / bandwidth + t.latency[reach], goes),
        fetch_out=put(world.fetch_out, device, out, goes),
        fetch_in=put(world.fetch_in, device, into, goes),
    ), None


class GangPace(eqx.Module):
    """Isolated speed of a gang on its devices, and the loads of its workers."""

    unit_s: Float[Array, " workers"]  # isolated seconds of a unit
    exchange_s: FloatScalar  # seconds of exchange in a unit, uncontended
    pace_s: FloatScalar  # isolated seconds of a unit of the gang, exchange included
    span: IntScalar  # how far the exchange goes
    compute_load: Int[Array, "workers hops"]
    exchange_load: Int[Array, "workers hops"]


def pace(s: ScenarioArrays, f: GangFacts, devices: Int[Array, " workers"], mine: Bool[Array, " workers"]) -> GangPace:
    """The pace of a gang on devices, -1 = none; loads are 0 for workers that are not `mine`."""
    t, w = s.topology, s.workload
    member = devices >= 0
    kinds = take(t.device_kind, devices)
    reach = gang_span(take(t.place, devices), take(t.peers, devices), member)
    unit_s = w.time_fixed[f.kernel, kinds] + w.time_work[f.kernel, kinds] * f.work
    if s.truth is not None:
        spread = jnp.where((reach == RACK) | (reach == CLUSTER), SPREAD, PACKED)
        true_s = jnp.asarray(s.truth.unit_s)[f.kernel, kinds, spread]
        unit_s = jnp.where(true_s > 0, true_s * f.work, unit_s)
    slowest = jnp.where(member, unit_s, 0).max()
    bandwidth = jnp.where(member, take(t.span_bandwidth, devices)[:, reach], jnp.inf).min()
    exchange = jnp.where((f.workers > 1) & jnp.isfinite(bandwidth), w.exchange[f.kernel], 0)
    exchange_s = exchange / bandwidth

    capacity = take(t.capacity, take(t.route_row, devices))
    demand = true_demand(s, f.kernel, devices, instant.demand(t, w, f.kernel, f.work, devices))
    crossed = (take(t.route_spans, devices) >> reach) & 1 > 0
    active = mine[:, None]
    compute_load = jnp.where(active, to_load(demand), 0)
    exchange_load = jnp.where(active & crossed, to_load(exchange / (slowest + exchange_s) / capacity), 0)
    return GangPace(unit_s, exchange_s, slowest + exchange_s, reach, compute_load, exchange_load)


class StartLog(eqx.Module):
    """The start of a gang."""

    gang: IntScalar  # -1 = none
    isolated_s: FloatScalar  # isolated seconds of all its work on these devices
    setup_s: FloatScalar


def start(world: World, s: ScenarioArrays) -> tuple[World, StartLog]:
    """Start the startable gang that was placed first."""
    t, w = s.topology, s.workload
    core, started = instant.start(world.core, t, w, world.now)
    gang, f, devices, setup = started.gang, started.facts, started.devices, started.setup
    member = devices >= 0
    lanes = take(core.lane, gang)
    mine = member & started.when

    p = pace(s, f, devices, mine)
    rows = take(t.route_row, devices)
    # At its first start a gang gets its true amount of work; later, the work that it had left.
    before = world.left.take(gang).total
    units = _true_units(s, core, f.slot, f.index, f.units)
    seconds = Amount.of(jnp.where(take(core.resumed, gang), before, units) * p.pace_s)
    seconds, setup, rows, p = compute_once((seconds, setup, rows, p))
    return (
        replace(
            world,
            core=core,
            lane_left=world.lane_left.put_all(lanes, seconds, mine),
            pace_s=put_all(world.pace_s, lanes, p.pace_s, mine),
            setup_s=put_all(world.setup_s, lanes, setup, mine),
            compute_load=put_all(world.compute_load, lanes, p.compute_load, mine),
            exchange_load=put_all(world.exchange_load, lanes, p.exchange_load, mine),
            unit_s=put_all(world.unit_s, lanes, p.unit_s, mine),
            exchange_s=put_all(world.exchange_s, lanes, p.exchange_s, mine),
            span=put_all(world.span, lanes, p.span, mine),
            load=add_all(world.load, rows.reshape(-1), (p.compute_load + p.exchange_load).reshape(-1)),
            kernel_load=add_load(world.kernel_load, s, f.kernel, devices, p.compute_load),
        ),
        StartLog(jnp.where(started.when, gang, -1), units * p.pace_s, jnp.where(mine, setup, 0).max()),
    )
