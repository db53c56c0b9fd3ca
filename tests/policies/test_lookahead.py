"""Look-ahead: it keeps the contract, never sees what is hidden, and prefers what is better beyond doubt."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from symphony.baselines import Fifo
from symphony.policies import LOOK_AHEAD, LookAhead, lookahead, named
from symphony.policies.learned import MASKED_SCORE
from symphony.policies.lookahead import prefer
from symphony.problem.errors import PolicyError
from symphony.scheduling.clock import Amount
from symphony.scheduling.one_of import OneOf
from symphony.scheduling.policy import Action, Observation
from symphony.simulator import rollout
from symphony.simulator.contention import Bottleneck
from symphony.simulator.records import RunRecord
from symphony.simulator.rollout import Carry, begin, step
from symphony.simulator.run import simulate
from symphony.simulator.scenarios import ScenarioArrays, scenario_arrays
from symphony.simulator.world import World
from tests.baselines.cheap import cheap_scenario
from tests.oracle.test_schedule_samples import TINY
from tests.policies.small_networks import small_policy
from tests.policies.test_learned import see
from tests.scheduling.by_hand import dot, shared_books, work

observe, distinct = eqx.filter_jit(rollout.observe), eqx.filter_jit(lookahead.distinct)  # not operation by operation
FIRST = Fifo()  # makes the first few decisions
NEVER_MIND = jnp.inf  # no gain is enough


@cache
def ahead_of_tiny() -> LookAhead:
    return LookAhead(small_policy(**TINY), rolls=Fifo(), candidates=2, samples=2, horizon=4.0, most=64)


@eqx.filter_jit
def looked(policy: LookAhead, key: Array, shown: Observation) -> tuple[Action, Array]:
    """The actions that it weighs, and what it expects of them: all that a decision follows from."""
    shown = replace(shown, prepared=policy.prepare(shown.topology, shown.workload))
    return policy.weigh(key, policy.init(shown.topology), shown)[1:]


@eqx.filter_jit
def begun(s: ScenarioArrays, steps: Array) -> World:
    """After some steps."""

    def on(_: Array, carry: Carry) -> Carry:
        return step(carry, s, FIRST, Bottleneck(), record=False, alone=True)[0]

    return jax.lax.fori_loop(0, steps, on, begin(s, FIRST, jax.random.key(0))).world


def choosing(s: ScenarioArrays) -> World:
    """The first state in which something runs and it matters which of two actions is taken."""
    for steps in range(5, 200):
        world = begun(s, jnp.asarray(steps))
        _, costs = looked(ahead_of_tiny(), jax.random.key(3), observe(world, s, False))
        matters = jnp.isfinite(costs).all() & (costs[:, 0] != costs[:, 1]).all()
        if bool(matters & (world.core.lane_holds >= 0).any()):
            return world
    raise AssertionError("there is never a choice")


@pytest.mark.slow
def test_it_keeps_the_rules_and_without_a_reason_does_what_the_policy_does() -> None:
    """Gangs, an FPGA, failures, tenants, preemption. One program serves all settings that are no shapes."""
    scenario = cheap_scenario()

    def run(ahead: LookAhead, index: int) -> RunRecord:
        return simulate([scenario], OneOf((ahead, small_policy(**TINY)), jnp.asarray(index, jnp.int32)))[0]

    first, again = run(ahead_of_tiny(), 0), run(ahead_of_tiny(), 0)
    assert first.refused == 0 and len(first.jobs) == len(scenario.workload.jobs)
    assert first.jobs == again.jobs
    wary = eqx.tree_at(lambda p: p.caution, ahead_of_tiny(), jnp.asarray(NEVER_MIND))
    kept, plain = run(wary, 0), run(wary, 1)
    assert kept.jobs == plain.jobs and kept.gangs == plain.gangs
    assert first.gangs != plain.gangs  # with reasons, it does not


def test_what_is_hidden_changes_neither_its_decision_nor_what_it_expects() -> None:
    s = jax.device_put(scenario_arrays(cheap_scenario()))
    world = choosing(s)
    assert (np.asarray(world.core.lane_holds) >= 0).any()
    other = replace(
        world,
        background=world.background + 0.7,
        lane_left=Amount(world.lane_left.whole, 0.999 * world.lane_left.part),
        load_area=world.load_area + 1.0,
        next_phase=world.next_phase.plus(jnp.asarray(5.0)),
        next_failure=world.next_failure.plus(jnp.asarray(-0.1)),
        up_at=world.up_at.plus(jnp.full(world.up_at.part.shape, 3.0)),
    )
    w = s.workload
    elsewhere = replace(
        s,
        work_noise=s.work_noise[::-1],
        phase_load=1.0 + s.phase_load,
        workload=replace(w, arrival_whole=w.arrival_whole + 9, graph=0 * w.graph, jobs=w.jobs + 1),
    )
    key = jax.random.key(3)
    action, costs = looked(ahead_of_tiny(), key, observe(world, s, False))
    action_2, costs_2 = looked(ahead_of_tiny(), key, observe(other, elsewhere, False))
    assert jax.tree.map(lambda x: x.tolist(), action) == jax.tree.map(lambda x: x.tolist(), action_2)
    assert (np.asarray(costs) == np.asarray(costs_2)).all() and (np.asarray(costs) > 0).all()
    believed = observe(world, s, False)
    _, told = looked(ahead_of_tiny(), key, replace(believed, background=believed.background + 2.0))
    assert (np.asarray(told) != np.asarray(costs)).any()  # what is believed is used


def test_another_action_must_be_better_by_more_than_the_worlds_disagree() -> None:
    clear = jnp.asarray([[5.0, 4.0, 6.0], [9.0, 8.1, 7.5]])
    assert int(prefer(clear, jnp.asarray(1.0))) == 1  # 1 and 0.9 better; the third is better in one world only
    assert int(prefer(clear, jnp.asarray(30.0))) == 0
    assert int(prefer(clear.at[:, 1].set(jnp.inf), jnp.asarray(1.0))) == 0
    assert int(prefer(jnp.full((2, 3), jnp.inf), jnp.asarray(0.0))) == 0


def test_of_devices_that_are_alike_one_is_tried() -> None:
    books = shared_books(work(dot("any"), dot("any", units=3.0)))
    shown = books.observe(policy=small_policy(**TINY))
    seen = see(shown, 4, 3, 1, 1)
    alike = replace(seen, pairs=seen.pairs.at[0, 1].set(seen.pairs[0, 0]))
    count = seen.device.size + seen.other_actions.device.size + 1
    scores = jnp.full(count, MASKED_SCORE).at[:3].set(jnp.asarray([3.0, 2.0, 1.0])).at[-1].set(0.5)
    assert distinct(scores, seen, 3).tolist() == [0, 1, 2]
    assert distinct(scores, alike, 3).tolist() == [0, 2, count - 1]
    assert distinct(scores, alike, 4).tolist() == [0, 2, count - 1, -1]


def test_it_needs_a_policy_that_ranks_its_actions_and_something_to_try() -> None:
    assert isinstance(named(LOOK_AHEAD), LookAhead)
    with pytest.raises(PolicyError, match="does not score actions"):
        LookAhead(Fifo())  # type: ignore[arg-type]
    with pytest.raises(PolicyError, match="samples"):
        LookAhead(small_policy(**TINY), samples=0)
