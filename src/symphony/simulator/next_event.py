"""Advance time to the next event: rates from the loads, the earliest event, and its effects."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from symphony.problem.topology import SPANS
from symphony.scheduling import advance, clock
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import candidates, per_gang
from symphony.scheduling.indexing import BoolScalar, IntScalar, compute_once, first_min, take
from symphony.scheduling.instant import decision_wanted
from symphony.scheduling.state import Core
from symphony.simulator.contention import LOAD_UNIT, ContentionModel
from symphony.simulator.scenarios import ScenarioArrays
from symphony.simulator.world import IDLE, World

# In the order in which events at equal times are carried out.
EVENTS = ("finished", "set-up", "fetched", "arrival", "repair", "failure", "background", "window", "thought", "woken")
EVENT_FINISHED, EVENT_SETUP, EVENT_FETCHED, EVENT_ARRIVAL, EVENT_REPAIR = range(5)
EVENT_FAILURE, EVENT_BACKGROUND, EVENT_WINDOW, EVENT_THOUGHT, EVENT_WOKEN = range(5, 10)
MAX_IDLE_EVENTS = 512  # events with nothing in progress and a gang to place, after which the policy has stalled


class ProgressRates(eqx.Module):
    """Rates of all work and transfers at an instant, and the loads that they follow from."""

    work: Float[Array, " lanes"]  # isolated seconds per second of the gang on each lane; 0 = no progress
    fetch: Float[Array, " devices"]  # share of the full bandwidth
    total: Float[Array, " rows"]  # load, background included
    own: Float[Array, " rows"]


class SimulatedEvent(eqx.Module):
    """The event to which time moved."""

    kind: IntScalar  # index into EVENTS, -1 = time did not move
    gang: IntScalar  # -1 = none
    device: IntScalar  # -1 = none


def progress_rates(world: World, s: ScenarioArrays, contention: ContentionModel) -> ProgressRates:
    """Apply the contention model to all workers and transfers."""
    t, core = s.topology, world.core
    own = world.load * LOAD_UNIT
    total = own + world.background
    shares = take(contention.share(total), t.route_row)  # [devices, hops]
    crossed = (t.route_spans[:, :, None] >> jnp.arange(len(SPANS))) & 1 > 0
    by_span = contention.compose(shares[:, None, :], crossed.swapaxes(1, 2))  # [devices, spans]

    compute = contention.compose(take(shares, t.lane_device), world.compute_load > 0)
    exchange = _pick(take(by_span, t.lane_device), world.span)
    lane_rate = 1 / (world.unit_s * _slowed(world, s) / compute + world.exchange_s / exchange)
    lane_rate = jnp.where(core.lane_setup, 0, lane_rate)
    work = _slowest_of_gang(lane_rate, core) * world.pace_s

    memory = t.place[:, 0]
    ends = jnp.minimum(
        _pick(take(by_span, world.fetch_from), world.fetch_span),
        _pick(take(by_span, memory), world.fetch_span),
    )
    return ProgressRates(work, ends, total, own)


def _slowed(world: World, s: ScenarioArrays) -> Float[Array, " lanes"] | float:
    """Factor by which co-located gangs lengthen a unit on each lane; 1 where it was not measured.

    The costs of all neighbours add up; every neighbour after the first adds `crowding`.
    """
    if s.truth is None:
        return 1.0
    core, t = world.core, s.topology
    kernel = take(per_gang(core, jnp.asarray(s.workload.kernel)), core.lane_holds)
    kept = jnp.asarray(s.truth.beside)[kernel, :, take(t.device_kind, t.lane_device)]  # [lanes, kernels]
    holds = (core.lane_holds >= 0).astype(kept.dtype)
    there = jnp.zeros((core.up.shape[0], kept.shape[1])).at[t.lane_device, kernel].add(holds)
    others = take(there, t.lane_device) - (jnp.arange(kept.shape[1]) == kernel[:, None])
    others = jnp.maximum(others, 0)  # for free lanes, whose rate is not used
    cost = (others * (1 / kept - 1)).sum(axis=1)
    return (1 + cost) * (1 + s.truth.crowding * jnp.maximum(others.sum(axis=1) - 1, 0))


def _slowest_of_gang(lane_rate: Float[Array, " lanes"], core: Core) -> Float[Array, " lanes"]:
    """For each lane that holds a gang, the rate of the slowest lane of that gang; 0 for other lanes."""
    holds = core.lane_holds
    if core.lane.shape[1] == 1:
        slowest = lane_rate
    elif holds.shape[0] <= 256:
        slowest = jnp.where(holds[:, None] == holds, lane_rate, jnp.inf).min(axis=1)
    else:
        by_gang = jnp.where(core.lane >= 0, take(lane_rate, core.lane), jnp.inf).min(axis=1)
        slowest = take(by_gang, holds)
    return jnp.where(holds >= 0, slowest, 0)


def _pick(table: Float[Array, "items columns"], column: Int[Array, " items"]) -> Float[Array, " items"]:
    """table[i, column[i]] without a gather: the table has few columns."""
    return jnp.where(jnp.arange(table.shape[1]) == column[:, None], table, 0).sum(axis=1)


def advance_time(
    world: World, s: ScenarioArrays, contention: ContentionModel, when: BoolScalar
) -> tuple[World, SimulatedEvent]:
    """Move to the next event and carry it out, if `when`."""
    core, t, w = world.core, s.topology, s.workload
    rate = progress_rates(world, s, contention)
    never = jnp.inf

    able = candidates(core, t).any()
    thinks = (s.latency > 0) & decision_wanted(core, t)
    thinking = jnp.where(thinks & (world.thinking < 0), s.latency, world.thinking)

    left = jnp.maximum(world.lane_left.total, 0)
    finish_s, worker = first_min(jnp.where(rate.work > 0, left / rate.work, never))
    gang = take(core.lane_holds, worker)
    setup_s, lane = first_min(jnp.where(core.lane_setup, world.setup_s, never))
    fetching = world.fetch_gang != IDLE
    fetch_s, fetcher = first_min(jnp.where(fetching, jnp.maximum(world.fetch_left, 0) / rate.fetch, never))
    arrival = Amount(w.arrival_whole, w.arrival_part).take(core.jobs_seen)
    can_arrive = (core.jobs_seen < w.jobs) & (core.job < 0).any()
    down = t.exists & ~core.up
    repair_s, repaired = first_min(jnp.where(down, world.up_at.minus(world.now), never))
    waits = jnp.stack(
        [
            finish_s,
            setup_s,
            fetch_s,
            jnp.where(can_arrive, arrival.minus(world.now), never),
            repair_s,
            jnp.where(s.failures > 0, world.next_failure.minus(world.now), never),
            jnp.where(s.phases > 0, world.next_phase.minus(world.now), never),
            world.window_end.minus(world.now),
            jnp.where(thinking >= 0, thinking, never),
            jnp.where(core.waited, core.wake_s, never),
        ]
    )
    wait, kind = first_min(jnp.maximum(waits, 0))
    # The clock has a finite resolution. All state advances by what the clock really moved, or work would outrun time.
    now = world.now.plus(jnp.where(when, wait, 0.0))
    dt = now.minus(world.now)
    dt, kind, gang, lane, fetcher, repaired, waits, thinking, rate = compute_once(
        (dt, kind, gang, lane, fetcher, repaired, waits, thinking, rate)
    )

    def is_kind(event: int) -> Array:
        return when & (kind == event)

    # Progress until the event.
    lane_left = clock.where(rate.work > 0, world.lane_left.plus(-rate.work * dt), world.lane_left)
    world = replace(
        world,
        now=now,
        lane_left=lane_left,
        setup_s=jnp.where(core.lane_setup, world.setup_s - dt, world.setup_s),
        fetch_left=jnp.where(fetching, world.fetch_left - rate.fetch * dt, world.fetch_left),
        load_area=world.load_area + rate.total * dt,
        own_area=world.own_area + rate.own * dt,
        used_area=world.used_area + jnp.minimum(rate.own, 1) * dt,
        kernel_area=world.kernel_area + world.kernel_load * LOAD_UNIT * dt,
        thinking=jnp.where(thinking >= 0, thinking - dt, thinking),
    )
    world = replace(world, thinking=jnp.where(is_kind(EVENT_THOUGHT), -1.0, world.thinking))

    # The event itself.
    down_device = take(s.failure_device, world.failure % jnp.maximum(s.failures, 1))
    fails = is_kind(EVENT_FAILURE) & take(core.up, down_device)
    window = is_kind(EVENT_WINDOW)
    core = advance.time_moved(core, t, now)
    core = advance.gang_finished(core, gang, is_kind(EVENT_FINISHED))
    core = advance.setup_ended(core, t, lane, is_kind(EVENT_SETUP))
    core = advance.job_arrived(core, w, is_kind(EVENT_ARRIVAL))
    core = advance.device_repaired(core, repaired, is_kind(EVENT_REPAIR))
    core = advance.device_failed(core, t, down_device, fails)
    core = advance.window_ended(core, world.load_area / s.window, world.own_area / s.window, s.offer, window)
    core = advance.woken(core, when)

    step = world.phase % jnp.maximum(s.phases, 1)
    tenants = take(s.phase_load, step)
    phase = world.phase + is_kind(EVENT_BACKGROUND)
    failure = world.failure + is_kind(EVENT_FAILURE)
    gap = take(s.phase_gap, phase % jnp.maximum(s.phases, 1))
    lull = take(s.failure_gap, failure % jnp.maximum(s.failures, 1))
    tenants, group, gap, lull = compute_once((tenants, take(s.phase_group, step), gap, lull))
    until = now.plus(take(s.failure_down, world.failure % jnp.maximum(s.failures, 1)))
    in_progress = jnp.isfinite(waits[: EVENT_REPAIR + 1]).any() | (thinking >= 0)
    stuck = ~in_progress & able
    idle_events = jnp.where(when, jnp.where(stuck, world.idle_events + 1, 0), world.idle_events)
    world = replace(
        world,
        core=core,
        closing=jnp.where(is_kind(EVENT_FETCHED), fetcher, world.closing),
        arrived=world.arrived | is_kind(EVENT_FETCHED),
        background=jnp.where(
            is_kind(EVENT_BACKGROUND) & (t.row_group == group), take(tenants, t.row_slot), world.background
        ),
        phase=phase,
        next_phase=clock.where(is_kind(EVENT_BACKGROUND), world.next_phase.plus(gap), world.next_phase),
        failure=failure,
        next_failure=clock.where(is_kind(EVENT_FAILURE), world.next_failure.plus(lull), world.next_failure),
        up_at=world.up_at.put(down_device, until, fails),
        window_end=clock.where(window, world.window_end.plus(s.window), world.window_end),
        used=jnp.where(window, world.used + world.used_area, world.used),
        load_area=jnp.where(window, 0, world.load_area),
        own_area=jnp.where(window, 0, world.own_area),
        used_area=jnp.where(window, 0, world.used_area),
        thought=(world.thought & ~when) | is_kind(EVENT_THOUGHT),
        events=world.events + when,
        idle_events=idle_events,
        stalled=world.stalled | (idle_events > MAX_IDLE_EVENTS),
    )
    device = jnp.where(kind == EVENT_REPAIR, repaired, jnp.where(kind == EVENT_FAILURE, down_device, -1))
    device = jnp.where(kind == EVENT_FETCHED, fetcher, device)
    fetched_for = jnp.where(kind == EVENT_FETCHED, take(world.fetch_gang, fetcher), -1)
    gang = jnp.where(kind == EVENT_FINISHED, gang, fetched_for)
    return world, SimulatedEvent(*(jnp.where(when, x, -1) for x in (kind, gang, device)))
