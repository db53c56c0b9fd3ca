"""Worlds that may be: where nothing is hidden they are the world itself, and where something is they do not know it."""

from __future__ import annotations

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import Array

from symphony.baselines import EftBelief
from symphony.scheduling.policy import Observation
from symphony.simulator.contention import LOAD_UNIT, Bottleneck
from symphony.simulator.hypothesis import sample_world, scenario_of, work_factors
from symphony.simulator.rollout import Carry, begin, decision_due, finished, observe, step
from symphony.simulator.scenarios import ScenarioArrays, scenario_arrays
from symphony.simulator.world import World
from tests.oracle.small import scenario

POLICY, CONTENTION = EftBelief(), Bottleneck()


@eqx.filter_jit
def begun(s: ScenarioArrays) -> Carry:
    return begin(s, POLICY, jax.random.key(0))


@eqx.filter_jit
def reached(carry: Carry, s: ScenarioArrays, number: Array) -> Carry:
    """After so many decisions, when nothing else is left to do at that instant; or at the end."""

    def on(carry: Carry) -> Carry:
        return step(carry, s, POLICY, CONTENTION, record=False, alone=True)[0]

    def going(carry: Carry) -> Array:
        rests = decision_due(carry.world, s) & (carry.world.core.decisions >= number)
        return ~finished(carry.world, s) & ~rests

    return jax.lax.while_loop(going, on, carry)


@eqx.filter_jit
def imagined(key: Array, o: Observation, spread: Array) -> tuple[World, ScenarioArrays]:
    s = scenario_of(o, work_factors(key, spread))
    return sample_world(key, o, s, CONTENTION), s


@pytest.fixture(scope="module")
def middle() -> tuple[ScenarioArrays, Carry, Observation]:
    """Six tasks on three devices, before the fourth decision: some run, some wait."""
    s = jax.device_put(scenario_arrays(scenario(0)))
    carry = reached(begun(s), s, jnp.asarray(3))
    assert (np.asarray(carry.world.core.lane_holds) >= 0).any()
    shown = observe(carry.world, s, False)
    return s, carry, replace(shown, background_std=jnp.zeros_like(shown.background_std))


def test_where_all_is_known_it_ends_as_the_world_does(middle: tuple[ScenarioArrays, Carry, Observation]) -> None:
    s, carry, shown = middle
    world, here = imagined(jax.random.key(1), shown, jnp.asarray(0.0))
    assert (np.asarray(world.load) == np.asarray(carry.world.load)).all()
    assert np.asarray(world.load * LOAD_UNIT) == pytest.approx(np.asarray(shown.own_load))
    end, true = (
        reached(at, where, jnp.asarray(1000)).world for at, where in ((replace(carry, world=world), here), (carry, s))
    )
    assert float(end.now.total) == pytest.approx(float(true.now.total), rel=1e-5)
    assert float(end.completion_sum.total) == pytest.approx(float(true.completion_sum.total), rel=1e-5)


def test_what_is_not_known_is_drawn(middle: tuple[ScenarioArrays, Carry, Observation]) -> None:
    _, _, shown = middle
    unsure = replace(shown, background=shown.background + 0.5, background_std=shown.background_std + 0.1)
    draws = [imagined(jax.random.key(n), unsure, jnp.asarray(0.1)) for n in range(40)]
    loads = np.asarray([world.background for world, _ in draws])
    assert loads.mean() == pytest.approx(0.5, abs=0.03) and loads.std() == pytest.approx(0.1, abs=0.02)
    assert len({float(world.lane_left.total.sum()) for world, _ in draws}) == len(draws)
    believed = observe(draws[0][0], draws[0][1], False)  # who decides there knows the belief, not the draw
    assert np.asarray(believed.background) == pytest.approx(np.asarray(unsure.background))
    assert np.asarray(believed.background_std) == pytest.approx(np.asarray(unsure.background_std))
