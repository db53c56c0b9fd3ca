"""A world that may be: made from what a policy is shown and nothing else, to ask what would come of an action.

What an observation tells is taken as it is: who is where, queues, copies, profiles. What it does not tell is drawn, or
set to what is most likely:

    load by others        from the belief, row by row; it stays as it is
    work of gangs         about their profiles
    work left of gangs    their profile, less what they have done at the rate that the drawn loads allow
    set-up under way      half of it is over
    transfers under way   begin anew
    failures, arrivals    none; devices that are down stay down
    counter windows       none; the belief stays as it is
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import Array

from symphony.problem.arrays import VOID_KIND
from symphony.scheduling.clock import Amount
from symphony.scheduling.feasible import facts
from symphony.scheduling.indexing import take
from symphony.scheduling.policy import Observation
from symphony.simulator.contention import ContentionModel
from symphony.simulator.counters import OTHERS
from symphony.simulator.instant_effects import GangPace, pace
from symphony.simulator.next_event import progress_rates
from symphony.simulator.scenarios import READING_ERRORS, ScenarioArrays
from symphony.simulator.world import World, initial

WORK_FACTORS = 127  # of work; a prime, so that gangs of different jobs have different ones
NEVER_S = 2.0**30
MIN_WORK_LEFT = 0.05  # of its work: what runs has not finished


def scenario_of(observation: Observation, factors: Array) -> ScenarioArrays:
    """A calm scenario with the jobs in the system and no others; gangs have so much more work than profiles say."""
    o = observation
    one, none = jnp.zeros(1), jnp.zeros(1, jnp.int32)
    seen = o.core.jobs_seen
    return ScenarioArrays(
        topology=o.topology,
        workload=replace(
            o.workload, jobs=seen, arrival_whole=none, arrival_part=one, graph=none, priority=none, home=none
        ),
        phases=jnp.asarray(0, jnp.int32),
        phase_gap=one,
        phase_group=none,
        phase_load=jnp.zeros((1, VOID_KIND + 1)),
        failures=jnp.asarray(0, jnp.int32),
        failure_gap=one,
        failure_device=none,
        failure_down=one,
        work_noises=jnp.asarray(factors.shape[0], jnp.int32),
        work_noise=factors,
        counter_noise=jnp.zeros(()),
        counter_error=jnp.zeros(READING_ERRORS),
        counters=jnp.zeros(()),
        delay=jnp.asarray(0, jnp.int32),
        corrected=jnp.asarray(True),
        window=jnp.asarray(NEVER_S),
        latency=jnp.zeros(()),
        offer=jnp.asarray(False),
        job_slots=o.core.job.shape[0],
        late=0,
    )


def work_factors(key: Array, spread: Array) -> Array:
    """How much more work than their profiles say gangs may have; `spread` is that of the logarithm."""
    return jnp.exp(spread * jax.random.normal(key, (WORK_FACTORS,)))


def sample_world(key: Array, observation: Observation, s: ScenarioArrays, contention: ContentionModel) -> World:
    """Draw a world that agrees with an observation, in the scenario that was made of it."""
    o, core, t = observation, observation.core, observation.topology
    drawn = o.background + o.background_std * jax.random.normal(key, o.background.shape)
    gang = jnp.maximum(core.lane_holds, 0)
    works = core.lane_holds >= 0
    p, worker = jax.vmap(lambda gang, lane: _of_lane(o, s, gang, lane))(gang, jnp.arange(gang.shape[0]))

    def mine(x: Array) -> Array:
        return jnp.where(works[:, None], jnp.take_along_axis(x, worker[:, None, None], axis=1)[:, 0], 0)

    compute, exchange = mine(p.compute_load), mine(p.exchange_load)
    rows = take(t.route_row, t.lane_device)
    blank = initial(s)
    load = blank.load.at[rows.reshape(-1)].add((compute + exchange).reshape(-1), mode="drop")
    unit_s = jnp.take_along_axis(p.unit_s, worker[:, None], axis=1)[:, 0]
    belief = blank.counters.belief
    others = jnp.arange(belief.mean.shape[-1]) == OTHERS
    belief = belief._replace(
        mean=jnp.where(others, o.background[:, None], 0.0).astype(belief.mean.dtype),
        cov=jnp.where(others[:, None] & others, (o.background_std**2)[:, None, None], 0.0).astype(belief.cov.dtype),
        read=jnp.ones_like(belief.read),
    )
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
        counters=replace(blank.counters, belief=belief),
        up_at=Amount(jnp.full_like(blank.up_at.whole, o.now.whole + int(NEVER_S)), blank.up_at.part),
        window_end=o.now.plus(jnp.asarray(NEVER_S)),
    )
    return replace(world, lane_left=_left(o, world, s, gang, contention))


def _of_lane(o: Observation, s: ScenarioArrays, gang: Array, lane: Array) -> tuple[GangPace, Array]:
    """The pace of the gang on a lane, and which of its workers is there."""
    devices = take(o.core.device, gang)
    worker = jnp.argmax(take(o.core.lane, gang) == lane)
    return pace(s, facts(o.core, o.workload, gang), devices, devices >= 0), worker


def _setup_s(o: Observation, gang: Array, works: Array) -> Array:
    """How long the set-up of each lane takes, if it is being set up [L]."""
    t = o.topology
    configures = take(t.kind_reconfigure, take(t.device_kind, t.lane_device))
    saves = jnp.maximum(take(o.per_gang(o.workload.checkpoint), gang), take(o.per_gang(o.workload.restore), gang))
    return jnp.maximum(configures, jnp.where(works, saves, 0.0))


def _left(o: Observation, world: World, s: ScenarioArrays, gang: Array, contention: ContentionModel) -> Amount:
    """Isolated seconds that the gang of each lane has left [L]."""
    core, tasks = o.core, o.workload.kernel.shape[1]
    factor = take(s.work_noise, (31 * take(core.job, gang // tasks) + gang % tasks) % s.work_noises)
    units = take(o.per_gang(o.workload.units), gang)
    said = take(o.units_left, gang)
    # A gang says how many whole units it has left: that of which it is in is half over, as far as anyone knows. A
    # kernel has one, and says nothing before it is done.
    counted = (said - 0.5) * world.pace_s
    rate = progress_rates(
        replace(world, core=replace(core, lane_setup=jnp.zeros_like(core.lane_setup))), s, contention
    ).work
    whole = units * world.pace_s * factor
    spent = jnp.maximum(o.now.minus(core.lane_since), 0.0) * rate
    left = jnp.where(units > 1, counted * factor, jnp.maximum(whole - spent, MIN_WORK_LEFT * whole))
    left = jnp.where(core.lane_setup, jnp.minimum(said, units) * world.pace_s * factor, left)
    return Amount.of(jnp.where(core.lane_holds >= 0, left, 0.0))
