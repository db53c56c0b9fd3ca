"""Hypothetical worlds: simulator states sampled from an observation alone, for rollouts of candidate actions.

Observed state is copied: placements, queues, copies, profiles. Hidden state is sampled, or set to a likely value:

    load by others          sampled from the belief, row by row; constant
    work of gangs           sampled around their profiles
    work left of gangs      their profile, less the work done at the rate that the sampled loads allow
    set-up in progress      half done
    transfers in progress   start over
    failures, arrivals      none; devices that are down stay down
    counter windows         none; the belief is constant
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import facts
from symphony.scheduling.indexing import FloatScalar, IntScalar, take
from symphony.scheduling.policy import Observation
from symphony.simulator.contention import ContentionModel
from symphony.simulator.instant_effects import GangPace, pace
from symphony.simulator.next_event import progress_rates
from symphony.simulator.scenarios import BELIEFS, READING_ERRORS, ScenarioArrays
from symphony.simulator.world import World, initial

WORK_FACTORS = 127  # a prime, so that gangs of different jobs have different factors
NEVER_S = 2.0**30
MIN_WORK_LEFT = 0.05  # share of its work that a running gang has left at least


def scenario_of(observation: Observation, factors: Float[Array, " factors"]) -> ScenarioArrays:
    """A scenario without disturbances or further arrivals. `factors`: amounts of work relative to the profiles."""
    o = observation
    one, none = jnp.zeros(1), jnp.zeros(1, jnp.int32)
    return ScenarioArrays(
        topology=o.topology,
        workload=replace(
            o.workload,
            jobs=o.core.jobs_seen,
            arrival_whole=none,
            arrival_part=one,
            graph=none,
            priority=none,
            home=none,
        ),
        phases=jnp.asarray(0, jnp.int32),
        phase_gap=one,
        phase_group=none,
        phase_load=jnp.zeros((1, o.topology.group_row.shape[1])),
        failures=jnp.asarray(0, jnp.int32),
        failure_gap=one,
        failure_device=none,
        failure_down=one,
        work_noises=jnp.asarray(factors.shape[0], jnp.int32),
        work_noise=factors,
        burst=jnp.zeros(()),
        counter_error=jnp.zeros(READING_ERRORS),
        unseen=jnp.zeros(o.own_load.shape),
        delay=jnp.asarray(0, jnp.int32),
        belief=jnp.asarray(BELIEFS.index("joint"), jnp.int32),
        window=jnp.asarray(NEVER_S),
        latency=jnp.zeros(()),
        offer=jnp.asarray(False),
        job_slots=o.core.job.shape[0],
        late=0,
        reads=False,
    )


def work_factors(key: Array, spread: FloatScalar) -> Float[Array, " factors"]:
    """Log-normal factors of the true work over the profile; `spread` is the standard deviation of the logarithm."""
    return jnp.exp(spread * jax.random.normal(key, (WORK_FACTORS,)))


def sample_world(key: Array, observation: Observation, s: ScenarioArrays, contention: ContentionModel) -> World:
    """Sample a world that agrees with an observation; `s` is its `scenario_of`."""
    o, core, t = observation, observation.core, observation.topology
    drawn = o.background + o.background_std * jax.random.normal(key, o.background.shape)
    gang = jnp.maximum(core.lane_holds, 0)
    works = core.lane_holds >= 0
    p, worker = jax.vmap(lambda gang, lane: _lane_pace(o, s, gang, lane))(gang, jnp.arange(gang.shape[0]))

    def mine(x: Array) -> Array:
        return jnp.where(works[:, None], jnp.take_along_axis(x, worker[:, None, None], axis=1)[:, 0], 0)

    compute, exchange = mine(p.compute_load), mine(p.exchange_load)
    rows = take(t.route_row, t.lane_device)
    blank = initial(s)
    load = blank.load.at[rows.reshape(-1)].add((compute + exchange).reshape(-1), mode="drop")
    unit_s = jnp.take_along_axis(p.unit_s, worker[:, None], axis=1)[:, 0]
    believed = jnp.stack([o.background, o.background_std], axis=-1).astype(blank.counters.rows.dtype)
    world = replace(
        blank,
        core=core,
        now=o.now,
        left=Amount.of(o.units_left),
        pace_s=jnp.where(works, p.pace_s, 1.0),
        setup_s=0.5 * jnp.where(core.lane_setup, _setup_s(o, gang, works), 0.0),
        compute_load=compute,
        exchange_load=exchange,
        unit_s=jnp.where(works, unit_s, 1.0),
        exchange_s=jnp.where(works, p.exchange_s, 0.0),
        span=jnp.where(works, p.span, 0),
        load=load,
        background=jnp.maximum(drawn, 0.0),
        counters=replace(blank.counters, rows=believed),
        up_at=Amount(jnp.full_like(blank.up_at.whole, o.now.whole + int(NEVER_S)), blank.up_at.part),
        window_end=o.now.plus(jnp.asarray(NEVER_S)),
    )
    return replace(world, lane_left=_left(o, world, s, gang, contention))


def _lane_pace(o: Observation, s: ScenarioArrays, gang: IntScalar, lane: IntScalar) -> tuple[GangPace, IntScalar]:
    """The pace of the gang on a lane, and the index of its worker there."""
    devices = take(o.core.device, gang)
    worker = jnp.argmax(take(o.core.lane, gang) == lane)
    return pace(s, facts(o.core, o.workload, gang), devices, devices >= 0), worker


def _setup_s(o: Observation, gang: Int[Array, " lanes"], works: Bool[Array, " lanes"]) -> Float[Array, " lanes"]:
    """Full set-up time of each lane."""
    t = o.topology
    configures = take(t.kind_reconfigure, take(t.device_kind, t.lane_device))
    saves = jnp.maximum(take(o.per_gang(o.workload.checkpoint), gang), take(o.per_gang(o.workload.restore), gang))
    return jnp.maximum(configures, jnp.where(works, saves, 0.0))


def _left(
    o: Observation, world: World, s: ScenarioArrays, gang: Int[Array, " lanes"], contention: ContentionModel
) -> Amount:
    """Isolated seconds that the gang of each lane has left [lanes]."""
    core, tasks = o.core, o.workload.kernel.shape[1]
    factor = take(s.work_noise, (31 * take(core.job, gang // tasks) + gang % tasks) % s.work_noises)
    units = take(o.per_gang(o.workload.units), gang)
    reported = take(o.units_left, gang)
    # A gang reports how many whole units it has left; the current one is half done on average. A kernel has a single
    # unit, and reports nothing before it has finished.
    counted = (reported - 0.5) * world.pace_s
    rate = progress_rates(
        replace(world, core=replace(core, lane_setup=jnp.zeros_like(core.lane_setup))), s, contention
    ).work
    whole = units * world.pace_s * factor
    spent = jnp.maximum(o.now.minus(core.lane_since), 0.0) * rate
    left = jnp.where(units > 1, counted * factor, jnp.maximum(whole - spent, MIN_WORK_LEFT * whole))
    left = jnp.where(core.lane_setup, jnp.minimum(reported, units) * world.pace_s * factor, left)
    return Amount.of(jnp.where(core.lane_holds >= 0, left, 0.0))
