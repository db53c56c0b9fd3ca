"""How beliefs follow the factors of the filter that makes them. That a loss reaches them: test_train.py."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from symphony.estimation import flow_filter
from symphony.estimation.flow_filter import FlowBelief, Readings
from symphony.estimation.tuning import FILTER_FACTORS, FilterStep, Tuning, tuned
from symphony.learning import train as training
from symphony.learning.beliefs import FilterTangents, SampledSlopes, log_joint, slopes
from symphony.policies import Learned, Network
from symphony.problem.errors import InputError
from symphony.scheduling.one_of import OneOf
from symphony.simulator import counters
from symphony.simulator.scenarios import ScenarioArrays
from tests.learning.test_train import SIZES, small
from tests.scheduling.by_hand import cluster
from tests.simulator.test_counters import BURSTY, ROWS, arrays, ended

LOADS = np.array(
    [[0.5, 0.2, 1.0, 0.4, 0.0], [0.6, 0.2, 1.0, 0.4, 0.0], [1.6, 0.2, 0.1, 0.4, 0.0], [1.5, 0.3, 0.1, 0.4, 0.0]]
)
# One window is a program, not all of them in a row.
_begin, _read = eqx.filter_jit(counters.begin), eqx.filter_jit(counters.read)


def watched(s: ScenarioArrays, tuning: Tuning | None, first: Tuning | None = None) -> counters.Counters:
    """What is believed after some windows, with a filter; `first`: the filter of the belief before them, if another."""
    settings, state = counters.Settings.of(s), _begin(s, first or tuning)
    for number, load in enumerate(LOADS):
        state = _read(state, settings, ended(s, number, load, 0.3 * load), tuning)
    return state


def test_factors_change_what_is_believed() -> None:
    s = arrays(**BURSTY)

    def by_factors(factors: np.ndarray) -> np.ndarray:
        return np.asarray(watched(s, Tuning(jax.device_put(factors))).rows)[:ROWS]

    plain = by_factors(np.zeros(FILTER_FACTORS, np.float32))
    np.testing.assert_allclose(plain, np.asarray(watched(s, None).rows)[:ROWS], atol=5e-3)
    for factor in np.eye(FILTER_FACTORS, dtype=np.float32):
        assert np.abs(by_factors(factor) - plain).max() > 1e-4


def test_slopes_through_the_filter_are_those_of_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against finite differences, in 64 bits, with all explanations: leaving some out makes small steps.

    What the belief before the first window owes to the factors is left out.
    """
    monkeypatch.setattr(flow_filter, "EXPLANATIONS", 64)
    with jax.enable_x64(True):
        s = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, arrays(**BURSTY, belief="rows"))
        here, step = np.array([0.1, -0.2, 0.3]), 1e-6

        def answer(factors: np.ndarray) -> np.ndarray:
            return np.asarray(watched(s, Tuning(jax.device_put(factors)), Tuning(jax.device_put(here))).rows)

        along = step * np.eye(FILTER_FACTORS)
        wanted = np.stack([(answer(here + e) - answer(here - e)) / (2 * step) for e in along])
        found = np.asarray(watched(s, Tuning(jax.device_put(here), FilterTangents())).slope)
        assert np.abs(wanted).max() > 0.01
        np.testing.assert_allclose(found[:, :ROWS], wanted[:, :ROWS], atol=5e-3)


def test_slopes_by_sampling_are_those_of_the_network() -> None:
    """One flow and one reading, where the posterior and its derivative can be had on a grid of levels."""
    factors, event = jnp.array([0.2, 0.3, -0.1]), jnp.ones((1, 1, 1))
    before = FlowBelief(jnp.array([[0.6]]), jnp.array([[[0.09]]]))
    seen = Readings(*(jnp.array([[x]]) for x in (1.3, 0.1, 0.2)), jnp.array([[True]]))
    after = jax.jit(lambda: flow_filter.update(jnp, event, tuned(factors, counters.PARAMETERS), before, seen))()
    step = FilterStep(
        factors, before, after, seen, event, jnp.asarray(3), lambda *_: after, lambda _: event[0], lambda x: x[0]
    )
    grid = jnp.linspace(-1.0, 4.0, 4001)[:, None, None]

    def posterior_mean(factors: jax.Array) -> jax.Array:
        weight = jax.nn.softmax(log_joint(factors, step, grid)[:, 0])
        return weight @ grid[:, 0, 0]

    wanted = jax.jit(jax.grad(posterior_mean))(factors)
    found = jax.jit(lambda: SampledSlopes(samples=20_000).after(None, step)[1])()
    assert found.shape == (FILTER_FACTORS, 1, 2) and (found[..., 1] == 0).all()
    cosine = float(found[:, 0, 0] @ wanted / jnp.linalg.norm(found[:, 0, 0]) / jnp.linalg.norm(wanted))
    assert cosine > 0.9


def test_a_load_that_is_clipped_has_no_slope() -> None:
    s = arrays(**BURSTY)
    state = watched(s, Tuning(jnp.zeros(FILTER_FACTORS), SampledSlopes()))
    idle = np.asarray(state.rows[:ROWS, 0]) == 0
    assert (np.asarray(state.slope)[:, :ROWS][:, idle] == 0).all()
    assert np.abs(np.asarray(state.slope)[:, :ROWS]).max() > 1e-3


def test_a_comparison_filters_for_each_policy_as_it_wants() -> None:
    network = Network(jax.random.key(0), SIZES)
    other = eqx.tree_at(lambda n: n.factors, network, jnp.array([1.0, 2.0, 3.0]))
    both = (Learned(network), Learned(other))
    for number, policy in enumerate(both):
        tuning = OneOf(both, jnp.asarray(number)).tuning
        assert tuning is not None
        np.testing.assert_array_equal(tuning.factors, policy.network.factors)


@pytest.mark.parametrize("method", ["score", "magic"])
def test_unknown_gradients_are_refused(method: str) -> None:
    with pytest.raises(InputError, match=method) as refused:
        slopes(method)
    assert "sampled" in str(refused.value)
    with pytest.raises(InputError, match=method):
        training.train(topology=cluster(), workload=small, telemetry_gradient=method)
