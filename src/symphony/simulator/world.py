"""The simulated world: the scheduler's state, and the state hidden from it. Dimensions: `scheduling/state.py`."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.estimation.tuning import Tuning
from symphony.scheduling import state
from symphony.scheduling.clock import Amount
from symphony.scheduling.indexing import BoolScalar, FloatScalar, IntScalar
from symphony.scheduling.state import Core
from symphony.simulator import counters
from symphony.simulator.counters import Counters
from symphony.simulator.scenarios import ScenarioArrays

IDLE = -1


class World(eqx.Module):
    """Everything that changes during a run."""

    core: Core
    now: Amount
    # gangs
    left: Amount  # [gangs], units of work left when it last gave up its devices
    # lanes
    lane_left: Amount  # [lanes], isolated seconds of work left of its gang; equal on all lanes of a gang
    pace_s: Float[Array, " lanes"]  # isolated seconds of a unit of that gang on its devices, exchange included
    setup_s: Float[Array, " lanes"]  # seconds of set-up left
    compute_load: Int[Array, "lanes hops"]  # load of the worker on the rows of its device's route
    exchange_load: Int[Array, "lanes hops"]
    unit_s: Float[Array, " lanes"]  # isolated seconds of a unit
    exchange_s: Float[Array, " lanes"]  # seconds of exchange in a unit, uncontended
    span: Int[Array, " lanes"]  # how far the exchange goes
    # fetch engines, one for each device
    fetch_gang: Int[Array, " devices"]  # gang that reads the input, IDLE = none
    fetch_parent: Int[Array, " devices"]  # gang whose output it is, -1 = the job's input
    fetch_from: Int[Array, " devices"]  # device whose memory it comes from
    fetch_span: Int[Array, " devices"]
    fetch_left: Float[Array, " devices"]  # uncontended seconds left
    fetch_out: Int[Array, "devices hops"]  # load on the route of the source
    fetch_in: Int[Array, "devices hops"]  # load on the route of the device
    closing: IntScalar  # device whose transfer has ended, -1 = none
    arrived: BoolScalar  # that transfer was complete
    # rows
    load: Int[Array, " rows"]  # of Symphony's own workers and transfers
    background: Float[Array, " rows"]  # of the hidden tenants
    load_area: Float[Array, " rows"]  # integral over this window of the total load,
    own_area: Float[Array, " rows"]  # … of the own load,
    used_area: Float[Array, " rows"]  # … and of min(1, own load)
    kernel_load: Int[Array, "kernels rows"]  # of Symphony's own kernels whose true demands are hidden …
    kernel_area: Float[Array, "kernels rows"]  # … and its integral; no kernels if none are
    used: Float[Array, " rows"]  # integral of min(1, own load) over all earlier windows
    counters: Counters  # readings of the loads, and the belief about them
    # the last run of a gang of one that ended on each device in this window
    run_slow: Float[Array, " devices"]  # its time over the profile's isolated time, 0 = no run ended
    run_s: Float[Array, " devices"]  # its time
    run_uses: Bool[Array, "devices hops"]  # rows of the device's route that it loaded
    # disturbances
    phase: IntScalar  # next phase
    next_phase: Amount
    failure: IntScalar  # next failure
    next_failure: Amount
    up_at: Amount  # [devices], when a device that is down will be up again
    window_end: Amount
    thinking: FloatScalar  # seconds of scheduler latency left, < 0 = no decision in progress
    thought: BoolScalar  # the latency of the next decision has passed
    # running totals
    events: IntScalar
    idle_events: IntScalar  # consecutive events with nothing in progress though a gang could be placed
    stalled: BoolScalar
    completion_sum: Amount  # seconds
    slowdown_sum: Amount


def initial(s: ScenarioArrays, tuning: Tuning | None = None) -> World:
    core = state.empty(s.topology, s.workload, s.job_slots)
    gangs, devices, lanes = core.status.shape[0], core.up.shape[0], core.lane_holds.shape[0]
    rows, hops = s.topology.capacity.shape[0], s.topology.route_row.shape[1]
    hidden = 0 if s.demand_factor is None else s.workload.time_fixed.shape[0]

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
        own_area=jnp.zeros(rows),
        used_area=jnp.zeros(rows),
        kernel_load=ints(hidden, rows),
        kernel_area=jnp.zeros((hidden, rows)),
        used=jnp.zeros(rows),
        counters=counters.begin(s, tuning),
        run_slow=jnp.zeros(devices),
        run_s=jnp.zeros(devices),
        run_uses=jnp.zeros((devices, hops), bool),
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
