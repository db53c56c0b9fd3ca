"""The simulated world: the scheduler's state, and what the scheduler cannot see.

Shapes as in `symphony.scheduling.state`; R resource rows, H hops of a route.
"""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array

from symphony.scheduling import state
from symphony.scheduling.clock import Amount
from symphony.scheduling.state import Core
from symphony.simulator import counters
from symphony.simulator.counters import Counters
from symphony.simulator.scenarios import ScenarioArrays
from symphony.telemetry.tuning import Tuning

IDLE = -1


class World(eqx.Module):
    """Everything that changes during a run."""

    core: Core
    now: Amount
    # gangs [G]
    left: Amount  # units of work that were left when it last gave up its devices
    # lanes [L]
    lane_left: Amount  # isolated seconds of work left of the gang it holds; equal on all lanes of a gang
    pace_s: Array  # f: isolated seconds of a unit of that gang on its devices, exchange included
    setup_s: Array  # f: seconds of set-up left
    compute_load: Array  # i32[L, H]: load of the worker on the rows of its device's route
    exchange_load: Array  # i32[L, H]
    unit_s: Array  # f: isolated seconds of a unit
    exchange_s: Array  # f: seconds of exchange in a unit, uncontended
    span: Array  # i32: how far the exchange goes
    # fetch engines, one for each device [D]
    fetch_gang: Array  # i32: for which gang, IDLE = none
    fetch_parent: Array  # i32: whose output, -1 = the job's input
    fetch_from: Array  # i32: device whose memory it comes from
    fetch_span: Array  # i32
    fetch_left: Array  # f: seconds left if nothing else crossed the same rows
    fetch_out: Array  # i32[D, H]: load on the route of the source
    fetch_in: Array  # i32[D, H]: load on the route of the device
    closing: Array  # i32: device whose transfer is over, -1 = none
    arrived: Array  # bool: it is over because all of it arrived
    # rows [R]
    load: Array  # i32: of Symphony's own workers and transfers
    background: Array  # f: of the hidden tenants
    load_area: Array  # f: integral of the total load over this window
    square_area: Array  # f: of its square
    square: Array  # f: mean of its square over the last window
    own_area: Array  # f: of the own load
    used_area: Array  # f: of min(1, own load)
    used: Array  # f: the same over all earlier windows
    counters: Counters  # what has been read of the loads, and what is believed
    # the outside world
    phase: Array  # i32: next phase
    next_phase: Amount
    failure: Array  # i32: next failure
    next_failure: Amount
    up_at: Amount  # [D]: when a device that is down will be up again
    window_end: Amount
    thinking: Array  # f: seconds until the scheduler has thought, < 0 = it is not thinking
    thought: Array  # bool: it has
    # running totals
    events: Array  # i32
    idle_events: Array  # i32: consecutive events with nothing under way though a gang could be placed
    stalled: Array  # bool
    completion_sum: Amount  # seconds
    slowdown_sum: Amount


def initial(s: ScenarioArrays, tuning: Tuning | None = None) -> World:
    """The world at time 0."""
    core = state.empty(s.topology, s.workload, s.job_slots)
    gangs, devices, lanes = core.status.shape[0], core.up.shape[0], core.lane_holds.shape[0]
    rows, hops = s.topology.capacity.shape[0], s.topology.route_row.shape[1]

    def ints(*shape: int, fill: int = 0) -> Array:
        return jnp.full(shape, fill, jnp.int32)

    def amount(*shape: int) -> Amount:
        return Amount(ints(*shape), jnp.zeros(shape))

    return World(
        core=core,
        now=amount(),
        left=amount(gangs),
        lane_left=amount(lanes),
        pace_s=jnp.ones(lanes),
        setup_s=jnp.zeros(lanes),
        compute_load=ints(lanes, hops),
        exchange_load=ints(lanes, hops),
        unit_s=jnp.ones(lanes),
        exchange_s=jnp.zeros(lanes),
        span=ints(lanes),
        fetch_gang=ints(devices, fill=IDLE),
        fetch_parent=ints(devices, fill=-1),
        fetch_from=ints(devices),
        fetch_span=ints(devices),
        fetch_left=jnp.zeros(devices),
        fetch_out=ints(devices, hops),
        fetch_in=ints(devices, hops),
        closing=ints(fill=-1),
        arrived=jnp.asarray(False),
        load=ints(rows),
        background=jnp.zeros(rows),
        load_area=jnp.zeros(rows),
        square_area=jnp.zeros(rows),
        square=jnp.zeros(rows),
        own_area=jnp.zeros(rows),
        used_area=jnp.zeros(rows),
        used=jnp.zeros(rows),
        counters=counters.begin(s, tuning),
        phase=ints(),
        next_phase=Amount.of(jnp.asarray(s.phase_gap)[0]),
        failure=ints(),
        next_failure=Amount.of(jnp.asarray(s.failure_gap)[0]),
        up_at=amount(devices),
        window_end=Amount.of(jnp.asarray(s.window)),
        thinking=jnp.asarray(-1.0),
        thought=jnp.asarray(False),
        events=ints(),
        idle_events=ints(),
        stalled=jnp.asarray(False),
        completion_sum=amount(),
        slowdown_sum=amount(),
    )
