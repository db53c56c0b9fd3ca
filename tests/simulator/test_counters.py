"""Simulated counters: what is read of true loads, and what is made of it."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import symphony as sy
from symphony.estimation.tuning import FILTER_FACTORS, Tuning
from symphony.learning.beliefs import FilterTangents
from symphony.problem.arrays import KIND_INDEX
from symphony.problem.errors import InputError
from symphony.simulator import counters, hidden_demands
from symphony.simulator.counters import Counters, EndedWindow
from symphony.simulator.scenarios import BELIEFS, CALM, Disturbances, ScenarioArrays, scenario_arrays, stack
from tests.baselines.cheap import cheap_scenario


def arrays(**changes: object) -> ScenarioArrays:
    """A scenario with tenants whose rows are all counted, unless `changes` say otherwise."""
    scenario = cheap_scenario()
    settings: dict = {"burst": 0.0, "counters": None, "uncounted": (), "window_s": 1.0} | changes
    return jax.device_put(
        scenario_arrays(replace(scenario, disturbances=replace(CALM, **{"belief": "joint", **settings})))
    )


BURSTY = {"burst": 4.0, "counters": 1}  # the two links of machine b take turns: readings of them err by 80%
LINKS = slice(2, 4)
ROWS = 5
# Compiled once, and as a whole: every operation by itself would be a program.
_begin, _believed, _read = jax.jit(counters.begin), jax.jit(counters.believed), jax.jit(counters.read)
_read_when = jax.jit(jax.vmap(counters.read_when, in_axes=(0, 0, None, 0)))


def ended(
    s: ScenarioArrays, number: int, load: np.ndarray, own: np.ndarray, slow: np.ndarray | float = 0.0
) -> EndedWindow:
    """A window with these loads [ROWS]; `slow`: what runs show on each device."""
    rows, (devices, hops) = s.topology.capacity.shape[0], s.topology.route_row.shape
    loads = [jnp.asarray(np.pad(x, (0, rows - len(x)))) for x in (load, own)]
    runs = jnp.zeros(devices) + jnp.asarray(slow), jnp.ones(devices), jnp.ones((devices, hops), bool)
    return EndedWindow(jnp.asarray(number), *loads, *runs)


def run(s: ScenarioArrays, loads: np.ndarray, own: np.ndarray, slow: np.ndarray | float = 0.0) -> list[Counters]:
    """The state after each window of some loads [K, ROWS]."""
    settings, state, states = counters.Settings.of(s), _begin(s), []
    for window, (load, mine) in enumerate(zip(loads, own, strict=True)):
        state = _read(state, settings, ended(s, window, load, mine, slow))
        states.append(state)
    return states


def others(s: ScenarioArrays, state: Counters, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    rows = s.topology.capacity.shape[0]
    mean, std = _believed(state, s, jnp.asarray(np.pad(own, (0, rows - ROWS))), jnp.full(rows, 0.125))
    return np.asarray(mean)[:ROWS], np.asarray(std)[:ROWS]


STEADY = np.tile([1.5, 0.2, 1.0, 0.5, 0.0], (40, 1))
OWN = np.tile([0.5, 0.2, 0.0, 0.0, 0.0], (40, 1))


def test_without_bursts_the_truth_is_soon_known() -> None:
    s = arrays()
    mean, std = others(s, run(s, STEADY[:4], OWN[:4])[-1], OWN[0])
    np.testing.assert_allclose(mean, (STEADY - OWN)[0], atol=0.1)
    assert (std < 0.25).all()


def test_before_the_first_window_what_is_typical_is_shown() -> None:
    s = arrays(**BURSTY)
    mean, std = others(s, _begin(s), OWN[0])
    assert (mean > 0.1).all() and (mean < 1).all() and (std > mean).all()
    ignored = arrays(**BURSTY, belief="none")
    state = run(ignored, STEADY[:5], OWN[:5])[-1]
    np.testing.assert_array_equal(others(ignored, state, OWN[0]), (mean, std))


def test_bursts_are_averaged_out_while_nothing_changes() -> None:
    s = arrays(**BURSTY)
    states = run(s, STEADY, OWN)
    raw = np.array([np.asarray(state.raw)[2] for state in states])
    believed = np.array([others(s, state, OWN[0])[0][2] for state in states])
    assert 0.5 < raw.std() < 1.2
    assert np.abs(believed[10:] - 1.0).mean() < 0.6 * np.abs(raw[10:] - 1.0).mean()


def test_our_own_load_is_not_taken_for_others() -> None:
    """Our own load comes and goes; that of others stays."""
    s = arrays(burst=0.1)
    own = np.where(np.arange(40)[:, None] % 2, [2.0, 0.0, 0.0, 0.0, 0.0], np.zeros(ROWS))
    states = run(s, own + np.array([0.8, 0.0, 0.0, 0.0, 0.0]), own)
    late = np.array([others(s, state, mine)[0][0] for state, mine in zip(states, own, strict=True)])[10:]
    assert np.abs(late - 0.8).max() < 0.35 and np.abs(late - 0.8).mean() < 0.1


def test_a_change_is_found() -> None:
    s = arrays(burst=0.1)
    loads = np.zeros((30, ROWS))
    loads[20:, 0] = 1.5
    states = run(s, loads, np.zeros((30, ROWS)))
    assert others(s, states[19], np.zeros(ROWS))[0][0] < 0.05
    assert others(s, states[21], np.zeros(ROWS))[0][0] == pytest.approx(1.5, rel=0.2)


def test_a_row_without_a_counter_is_inferred_from_the_flows_that_cross_it() -> None:
    """Traffic of the network goes to memory; the link of the GPU has no counter, and nothing tells of it."""
    s = arrays(uncounted=("pcie",))
    loads = np.tile([0.1, 1.0, 1.5, 1.5, 0.0], (12, 1))
    mean, _ = others(s, run(s, loads, 0 * loads)[-1], np.zeros(ROWS))
    typical = others(s, _begin(s), np.zeros(ROWS))
    np.testing.assert_allclose(mean[LINKS], typical[0][LINKS], rtol=1e-3)
    assert mean[:2] == pytest.approx([0.1, 1.0], abs=0.05)


def test_slow_runs_are_evidence_where_nothing_is_counted() -> None:
    s = arrays(uncounted=("pcie", "uncore", "nic"))
    own = np.full((12, ROWS), 1.0)
    busy, idle = (others(s, run(s, own, own, slow)[-1], own[0])[0] for slow in (2.0, 1.0))
    assert busy[0] > idle[0] + 0.5 and idle[0] < 0.2


def test_intervals_cover() -> None:
    s = arrays(**BURSTY, belief="rows")
    rng = np.random.default_rng(0)
    truth = np.repeat(rng.uniform(0.3, 1.5, (12, ROWS)) * (rng.random((12, ROWS)) < 0.4), 20, axis=0)
    own = rng.uniform(0, 0.3, truth.shape)
    states = run(s, truth + own, own)
    inside = []
    for k in range(10, len(truth)):
        mean, std = others(s, states[k], own[k])
        inside.append(np.abs(mean - truth[k]) <= 1.96 * std + counters.PARAMETERS.floor)
    assert 0.87 < np.mean(inside) <= 1


def test_rows_of_a_domain_take_turns() -> None:
    """A counter for each link reads the mean of the window; one counter for both misses half of the bursts."""
    raw = {}
    for count in (1, 2):
        s = arrays(burst=1.0, counters=count)
        raw[count] = np.array([np.asarray(state.raw)[2] for state in run(s, STEADY, OWN)])
    assert raw[1].std() == pytest.approx(np.sqrt(1 / 12 - 1 / 24), rel=0.4) and raw[2].std() < 1e-6


def test_readings_come_late() -> None:
    s = arrays(counter_delay=2)
    loads = np.zeros((8, ROWS))
    loads[3:, 0] = 1.0
    states = run(s, loads, np.zeros((8, ROWS)))
    seen = [others(s, state, np.zeros(ROWS))[0][0] > 0.5 for state in states]
    assert seen == [False] * 5 + [True] * 3


@pytest.mark.parametrize("ending", [0, 1, 5, 16])
def test_those_whose_window_ends_are_picked_out(ending: int) -> None:
    """Sixteen side by side, of which some end a window: as if each were alone, and the others as they were."""
    s = arrays(**BURSTY)
    state = run(s, STEADY[:3], OWN[:3])[-1]
    many = jax.tree.map(lambda x: jnp.broadcast_to(x, (16, *x.shape)), state)
    loads = np.random.default_rng(0).uniform(0, 2, (16, ROWS))
    windows = [ended(s, 3, load, 0.5 * load) for load in loads]
    past = jax.tree.map(lambda *x: jnp.stack(x), *windows)
    when = jnp.asarray(np.random.default_rng(1).permutation(16) < ending)
    settings = counters.Settings.of(s)
    found = _read_when(when, many, settings, past)
    for place in range(16):
        wanted = _read(state, settings, windows[place]) if when[place] else state
        here = jax.tree.map(lambda x, place=place: x[place], found)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), here, wanted)


def test_other_beliefs_on_request() -> None:
    raw, exact = arrays(burst=1.0, belief="raw"), arrays(belief="exact")
    state = run(raw, STEADY[:3], OWN[:3])[-1]
    mean, _ = others(raw, state, OWN[0])
    np.testing.assert_allclose(mean, np.asarray(state.raw)[:ROWS], rtol=1e-6)
    mean, std = others(exact, run(exact, STEADY[:3], OWN[:3])[-1], OWN[0])
    assert (mean == 0.125).all() and (std == 0).all()


def test_a_cluster_without_tenants_is_known_to_have_none() -> None:
    s = scenario_arrays(replace(cheap_scenario(), phases=()))
    assert BELIEFS[int(s.belief)] == "exact"


def test_all_policies_meet_the_same_errors() -> None:
    s = arrays(**BURSTY)
    once, again = (run(s, STEADY[:5], OWN[:5])[-1] for _ in range(2))
    np.testing.assert_array_equal(once.raw, again.raw)
    other = replace(cheap_scenario(), seed=7)
    there = jax.device_put(
        scenario_arrays(
            replace(other, disturbances=replace(CALM, belief="joint", window_s=1.0, uncounted=(), **BURSTY))
        )
    )
    assert (np.asarray(run(there, STEADY[:5], OWN[:5])[-1].raw)[LINKS] != np.asarray(once.raw)[LINKS]).all()


def test_scenarios_with_different_delays_run_side_by_side() -> None:
    base = cheap_scenario()
    late = replace(base, disturbances=replace(base.disturbances, window_s=1.0, counter_delay=3))
    prompt = replace(base, disturbances=replace(base.disturbances, window_s=1.0))
    both = stack([late, prompt])
    assert both.late == 3
    loads = np.random.default_rng(0).uniform(0, 2, (8, ROWS))
    for number, alone in enumerate((late, prompt)):
        beside = jax.tree.map(lambda x, number=number: x[number], replace(both, topology=None))
        runs = [
            run(jax.device_put(s), loads, 0.5 * loads)
            for s in (replace(beside, topology=both.topology), scenario_arrays(alone))
        ]
        for one, other in zip(*runs, strict=True):
            np.testing.assert_array_equal(one.raw, other.raw)
            np.testing.assert_allclose(one.belief.mean, other.belief.mean, atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"counters": 0},
        {"counters": 2.5},
        {"counter_delay": -1},
        {"counter_delay": 1000},
        {"belief": "joined"},
        {"tenants": "racks"},
        {"uncounted": ("gpu",)},
    ],
)
def test_what_is_refused(wrong: dict[str, object]) -> None:
    scenario = cheap_scenario()
    with pytest.raises(InputError, match=next(iter(wrong))):
        sy.draw(scenario.topology, scenario.workload, 0, Disturbances(**wrong))  # type: ignore[arg-type]


HIDDEN = (1.8, 0.5)


def hidden(**changes: object) -> ScenarioArrays:
    """Kernels ask for more and for less of shared rows than their profiles say."""
    scenario = cheap_scenario()
    kernels = len(scenario.workload.kernels)
    factors = (*HIDDEN, *[1.0] * (kernels - len(HIDDEN)))
    settings: dict = {"belief": "joint", "burst": 0.3, "counters": None, "uncounted": (), "window_s": 1.0} | changes
    changed = replace(scenario, demand_factor=factors, disturbances=replace(CALM, **settings))
    return jax.device_put(scenario_arrays(changed))


_factors = jax.jit(counters.believed_factors)


def learn(s: ScenarioArrays, others_load: float, windows: int = 40) -> np.ndarray:
    """The factors after windows in which two kernels come and go, on rows 0 and 1, beside others on row 0."""
    settings, state, rng = counters.Settings.of(s), _begin(s), np.random.default_rng(3)
    rows, kernels = s.topology.capacity.shape[0], s.workload.time_fixed.shape[0]
    for number in range(windows):
        declared = np.zeros((kernels, rows))
        declared[:2, :2] = rng.uniform(0, 0.6, (2, 1)) * (rng.random((2, 1)) < 0.7)
        true = np.asarray(s.demand_factor) @ declared
        past = ended(s, number, true[:ROWS] + np.array([others_load, 0, 0, 0, 0]), true[:ROWS])
        past = replace(past, kernels=jnp.asarray(declared), hidden=jnp.asarray(true))
        state = _read(state, settings, past)
    return np.asarray(_factors(state, s))


def test_hidden_demands_are_learned_from_counters() -> None:
    np.testing.assert_allclose(learn(hidden(), 0.0)[:2], HIDDEN, rtol=0.15)


def test_steady_load_by_others_is_not_taken_for_demands() -> None:
    np.testing.assert_allclose(learn(hidden(), 0.8)[:2], HIDDEN, rtol=0.3)


@pytest.mark.parametrize(("belief", "expected"), [("none", (1.0, 1.0)), ("raw", (1.0, 1.0)), ("exact", HIDDEN)])
def test_without_a_filter_demands_are_those_of_profiles_or_the_true_ones(
    belief: str, expected: tuple[float, float]
) -> None:
    s = hidden(belief=belief)
    np.testing.assert_allclose(np.asarray(_factors(_begin(s), s))[:2], expected, rtol=1e-6)


def test_a_kernel_that_was_never_counted_keeps_its_profile() -> None:
    found = learn(hidden(), 0.0)
    np.testing.assert_allclose(found[2:], 1.0, rtol=1e-5)


def test_what_policies_see_follows_the_believed_demands() -> None:
    """Own loads and demands alike, but for cores, whose number is known."""
    s = hidden()
    w = s.workload
    compute = KIND_INDEX["compute"]
    shown = hidden_demands.believed_workload(w, jnp.full(w.time_fixed.shape[0], 2.0))
    np.testing.assert_array_equal(shown.demand_fixed[..., compute], w.demand_fixed[..., compute])
    others = np.arange(w.demand_fixed.shape[-1]) != compute
    np.testing.assert_allclose(shown.demand_fixed[..., others], 2 * np.asarray(w.demand_fixed)[..., others])
    true = np.zeros((w.time_fixed.shape[0], s.topology.capacity.shape[0]))
    true[0, 1], true[1, 1] = 0.9, 0.2  # as declared: 0.5 and 0.4
    own = hidden_demands.believed_load(s, jnp.asarray(true.sum(0)), jnp.asarray(true), jnp.asarray([1.0] * len(true)))
    assert float(own[1]) == pytest.approx(0.9)


def test_training_of_the_filter_refuses_hidden_demands() -> None:
    slopes = Tuning(jnp.zeros(FILTER_FACTORS), FilterTangents())
    with pytest.raises(InputError, match="demand_noise"):
        counters.begin(hidden(), slopes)
