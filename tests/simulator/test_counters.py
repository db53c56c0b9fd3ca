"""Simulated counters: what is read of true loads, and what is made of it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import symphony as sy
from symphony.problem.errors import InputError
from symphony.simulator import counters
from symphony.simulator.counters import Counters
from symphony.simulator.scenarios import CALM, Disturbances, ScenarioArrays, scenario_arrays, stack
from tests.baselines.cheap import cheap_scenario


def arrays(**changes: object) -> ScenarioArrays:
    scenario = cheap_scenario()
    disturbances = replace(CALM, window_s=1.0, **changes)  # type: ignore[arg-type]
    return jax.device_put(scenario_arrays(replace(scenario, disturbances=disturbances)))


# Compiled once, and as a whole: every operation by itself would be a program.
_begin, _believed, _read = jax.jit(counters.begin), jax.jit(counters.believed), jax.jit(counters.read)
_read_when = jax.jit(jax.vmap(counters.read_when, in_axes=(0, 0, None, 0)))


def run(s: ScenarioArrays, loads: np.ndarray, own: np.ndarray, squares: np.ndarray | None = None) -> list[Counters]:
    """The state after each window of some loads [K, R]."""
    settings = counters.Settings.of(s)
    state, states = _begin(s), []
    rows = s.topology.capacity.shape[0]
    for window, (load, mine) in enumerate(zip(loads, own, strict=True)):
        square = load**2 if squares is None else squares[window]
        pad = [jnp.asarray(np.pad(x, (0, rows - len(x)))) for x in (load, square, mine)]
        state = _read(state, settings, counters.EndedWindow(jnp.asarray(window), *pad))
        states.append(state)
    return states


def others(s: ScenarioArrays, state: Counters, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = s.topology.capacity.shape[0]
    mean, std = _believed(state, s, jnp.asarray(np.pad(own, (0, rows - len(own)))))
    return np.asarray(mean)[: len(own)], np.asarray(std)[: len(own)]


STEADY = np.tile([1.5, 0.2, 0.0], (40, 1))
OWN = np.tile([0.5, 0.2, 0.0], (40, 1))


def test_without_noise_the_truth_is_known_after_a_window() -> None:
    s = arrays()
    state = run(s, STEADY[:2], OWN[:2])[-1]
    mean, std = others(s, state, OWN[0])
    np.testing.assert_allclose(mean, [1.0, 0.0, 0.0], atol=0.02)
    assert (std < 0.25).all()  # it has yet to learn that there is none


def test_before_the_first_window_nothing_is_known() -> None:
    s = arrays(counter_noise=0.4)
    mean, std = others(s, _begin(s), OWN[0])
    assert (mean == 0).all() and (std == 1).all()


def test_noise_is_averaged_out_while_nothing_changes() -> None:
    s = arrays(counter_noise=0.4)
    states = run(s, STEADY, OWN)
    raw = np.array([np.asarray(state.raw)[0] for state in states])
    believed = np.array([others(s, state, OWN[0])[0][0] for state in states])
    assert 0.25 < raw.std() / 1.5 < 0.6
    assert np.abs(believed[10:] - 1.0).mean() < 0.6 * np.abs(raw[10:] - 1.5).mean()


def test_what_we_do_ourselves_is_not_taken_for_others() -> None:
    """Our own load comes and goes; that of others stays."""
    s = arrays(counter_noise=0.1)
    own = np.where(np.arange(40)[:, None] % 2, [2.0, 0.0, 0.0], [0.0, 0.0, 0.0])
    states = run(s, own + np.array([0.8, 0.0, 0.0]), own)
    late = np.array([others(s, state, mine)[0][0] for state, mine in zip(states, own, strict=True)])[10:]
    assert np.abs(late - 0.8).max() < 0.35 and np.abs(late - 0.8).mean() < 0.1


def test_a_jump_is_seen() -> None:
    s = arrays(counter_noise=0.1)
    loads = np.zeros((30, 3))
    loads[20:, 0] = 2.0
    states = run(s, loads, np.zeros((30, 3)))
    assert others(s, states[19], np.zeros(3))[0][0] < 0.05
    assert others(s, states[21], np.zeros(3))[0][0] == pytest.approx(2.0, rel=0.25)


def test_intervals_cover() -> None:
    s = arrays(counter_noise=0.4)
    rng = np.random.default_rng(0)
    rows = s.topology.capacity.shape[0] - 1
    truth = np.repeat(rng.uniform(0, 2, (6, rows)) * (rng.random((6, rows)) < 0.6), 20, axis=0)
    own = rng.uniform(0, 1, truth.shape)
    states = run(s, truth + own, own)
    inside = []
    for k in range(10, len(truth)):
        mean, std = others(s, states[k], own[k])
        inside.append(np.abs(mean - truth[k]) <= 1.96 * std + counters.MIN_LOAD)
    assert 0.85 < np.mean(inside) <= 1


def test_few_counters_miss_what_happens_while_others_are_counted() -> None:
    """Without any noise of its own, a reading of a load that wanders is off; of one that does not, it is exact."""
    s = arrays(counters=1)
    wandering = STEADY**2 + np.array([1.0, 0.0, 0.0])
    raw = np.array([np.asarray(state.raw)[:2] for state in run(s, STEADY, OWN, wandering)])
    assert raw[:, 0].std() > 0.2 and raw[:, 1].std() < 1e-6
    plenty = arrays(counters=1000)
    raw = np.array([np.asarray(state.raw)[:2] for state in run(plenty, STEADY, OWN, wandering)])
    assert raw[:, 0].std() < 0.25


def test_readings_come_late() -> None:
    s = arrays(counter_delay=2)
    loads = np.zeros((8, 3))
    loads[3:, 0] = 1.0
    states = run(s, loads, np.zeros((8, 3)))
    seen = [others(s, state, np.zeros(3))[0][0] > 0.5 for state in states]
    assert seen == [False] * 5 + [True] * 3


@pytest.mark.parametrize("ending", [0, 1, 5, 16])
def test_those_whose_window_ends_are_picked_out(ending: int) -> None:
    """Sixteen side by side, of which some end a window: as if each were alone, and the others as they were."""
    s = arrays(counter_noise=0.4)
    state = run(s, STEADY[:3], OWN[:3])[-1]
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (16, *x.shape)), state)
    rows = s.topology.capacity.shape[0]
    loads = jnp.asarray(np.random.default_rng(0).uniform(0, 2, (16, rows)))
    past = counters.EndedWindow(jnp.full(16, 3), loads, loads**2, 0.5 * loads)
    when = jnp.asarray(np.random.default_rng(1).permutation(16) < ending)
    settings = counters.Settings.of(s)
    found = _read_when(when, many, settings, past)
    for place in range(16):
        own = jax.tree.map(lambda x, place=place: x[place], past)
        wanted = _read(state, settings, own) if when[place] else state
        here = jax.tree.map(lambda x, place=place: x[place], found)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), here, wanted)


def test_raw_readings_on_request() -> None:
    s = arrays(counter_noise=0.4, corrected=False)
    state = run(s, STEADY[:3], OWN[:3])[-1]
    mean, std = others(s, state, OWN[0])
    raw = np.asarray(state.raw)[:3]
    np.testing.assert_allclose(mean, np.maximum(raw - OWN[0], 0), rtol=1e-6)
    np.testing.assert_allclose(std, 0.4 * raw, rtol=1e-6)


def test_all_policies_meet_the_same_errors() -> None:
    s = arrays(counter_noise=0.4)
    once, again = (run(s, STEADY[:5], OWN[:5])[-1] for _ in range(2))
    np.testing.assert_array_equal(once.raw, again.raw)
    other = replace(cheap_scenario(), seed=7, disturbances=replace(CALM, window_s=1.0, counter_noise=0.4))
    there = jax.device_put(scenario_arrays(other))
    assert (np.asarray(run(there, STEADY[:5], OWN[:5])[-1].raw)[:2] != np.asarray(once.raw)[:2]).all()


def test_scenarios_with_different_delays_run_side_by_side() -> None:
    base = cheap_scenario()
    late = replace(base, disturbances=replace(base.disturbances, window_s=1.0, counter_delay=3))
    prompt = replace(base, disturbances=replace(base.disturbances, window_s=1.0))
    both = stack([late, prompt])
    assert both.late == 3
    loads = np.random.default_rng(0).uniform(0, 2, (8, 3))
    for number, alone in enumerate((late, prompt)):
        beside = jax.tree.map(lambda x, number=number: x[number], replace(both, topology=None))
        runs = [
            run(jax.device_put(s), loads, 0.5 * loads)
            for s in (replace(beside, topology=both.topology), scenario_arrays(alone))
        ]
        for one, other in zip(*runs, strict=True):
            np.testing.assert_array_equal(one.raw, other.raw)
            np.testing.assert_array_equal(one.belief.mean, other.belief.mean)


@pytest.mark.parametrize("wrong", [{"counters": 0}, {"counters": 2.5}, {"counter_delay": -1}, {"counter_delay": 1000}])
def test_what_is_refused(wrong: dict[str, float]) -> None:
    scenario = cheap_scenario()
    with pytest.raises(InputError, match=next(iter(wrong))):
        sy.draw(scenario.topology, scenario.workload, 0, Disturbances(**wrong))  # type: ignore[arg-type]
