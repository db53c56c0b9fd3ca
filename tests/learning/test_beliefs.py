"""How beliefs follow the factors of the filter that makes them. That a loss reaches them: test_train.py."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.belief_gradients.estimators import METHODS, cosine, exact
from benchmarks.belief_gradients.nets import LinearNet, LinearParameters
from symphony.learning import train as training
from symphony.learning.beliefs import (
    ESTIMATORS,
    FilterTangents,
    SampledSlopes,
    WindowModel,
    evidence,
    slopes,
    window_model,
)
from symphony.policies import Learned, Network
from symphony.problem.errors import InputError
from symphony.scheduling.one_of import OneOf
from symphony.simulator import counters
from symphony.simulator.scenarios import ScenarioArrays
from symphony.estimation.tuning import FILTER_FACTORS, Tuning
from tests.learning.test_train import SIZES, small
from tests.scheduling.by_hand import cluster
from tests.simulator.test_counters import arrays

NET = LinearNet(((),))  # a load and its reading
ROWS = 3
LOADS = np.array([[0.5, 0.2, 1.0], [0.6, 0.2, 1.0], [1.6, 0.2, 0.1], [1.5, 0.3, 0.1], [1.4, 0.3, 0.2]])


def watched(s: ScenarioArrays, tuning: Tuning, windows: int = len(LOADS)) -> counters.Counters:
    """What is believed after some windows, with a filter."""
    settings = counters.Settings.of(s)
    whole = jnp.zeros((windows, s.topology.capacity.shape[0])).at[:, :ROWS].set(LOADS[:windows])
    past = counters.EndedWindow(jnp.arange(windows), whole, 1.1 * whole**2, 0.3 * whole)
    return jax.lax.scan(
        lambda state, one: (counters.read(state, settings, one, tuning), None), counters.begin(s, tuning), past
    )[0]


def mean(state: counters.Counters) -> jax.Array:
    return state.belief.mean[:ROWS, counters.OTHERS]


def test_factors_change_what_is_believed() -> None:
    s = arrays(counter_noise=0.4)
    tuned = jax.jit(lambda factors: mean(watched(s, Tuning(factors))))
    plain = tuned(jnp.zeros(FILTER_FACTORS))
    np.testing.assert_allclose(plain, jax.jit(lambda: mean(watched(s, None)))(), rtol=1e-6)
    for factor in jnp.eye(FILTER_FACTORS):
        moved = tuned(factor)
        assert float(jnp.abs(moved - plain).max()) > 1e-4


def test_slopes_through_the_filter_are_those_of_its_answer() -> None:
    """Against finite differences over all windows, in 64 bits."""
    with jax.enable_x64(True):
        s = jax.tree.map(lambda x: x.astype(float) if eqx.is_inexact_array(x) else x, arrays(counter_noise=0.4))
        here, step = jnp.array([0.1, -0.2, 0.3]), 1e-5

        @jax.jit
        def answer(factors: jax.Array) -> jax.Array:
            state = watched(s, Tuning(factors))
            variance = state.belief.cov[:ROWS, counters.OTHERS, counters.OTHERS]
            return jnp.stack([mean(state), jnp.sqrt(variance)], axis=-1)

        along = step * jnp.eye(FILTER_FACTORS)
        wanted = jnp.stack([(answer(here + e) - answer(here - e)) / (2 * step) for e in along])
        found = jax.jit(lambda: watched(s, Tuning(here, FilterTangents())).slope)()[:, :ROWS]
        assert float(jnp.abs(wanted).max()) > 0.01
        np.testing.assert_allclose(found, wanted, atol=1e-4)


def as_net(model: WindowModel) -> LinearParameters:
    """The parameters of `NET` that say the same as a model."""
    mean, *scales = (x[None] for x in model)
    return LinearParameters(mean, (jnp.zeros(0),), *(jnp.log(x) for x in scales))


@pytest.mark.parametrize("method", list(ESTIMATORS))
def test_estimators_are_the_general_ones_on_a_net_of_one_variable(method: str) -> None:
    key, reading = jax.random.key(1), jnp.asarray(1.4)
    model = WindowModel(*(jnp.asarray(x) for x in (1.0, 0.5, 0.3, 4.0)))

    def general(model: WindowModel) -> jax.Array:
        return METHODS[method](key, NET, as_net(model), {0: 1.0}, {0: reading}, 64)

    wanted = jax.value_and_grad(general)(model)
    found = jax.value_and_grad(lambda model: ESTIMATORS[method](key, model, reading, 64))(model)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4), found, wanted)


@pytest.mark.parametrize("method", list(ESTIMATORS))
def test_slopes_by_sampling_are_those_of_the_last_window(method: str) -> None:
    """Against the same net on a grid."""

    class Exactly(SampledSlopes):
        def after(self, carried, step):
            def belief(factors: jax.Array, row: jax.Array) -> jax.Array:
                parameters = as_net(jax.tree.map(lambda x: x[row], window_model(factors, step)))
                return exact(jax.random.key(0), NET, parameters, {0: 1.0}, {0: evidence(step)[row]}, 0)

            found = jax.lax.map(lambda row: jax.grad(belief)(step.factors, row), jnp.arange(step.after.mean.shape[0]))
            return None, jnp.stack([found.T, 0 * found.T], axis=-1)

    s, factors = arrays(counter_noise=0.4), jnp.zeros(FILTER_FACTORS)
    state = watched(s, Tuning(factors, SampledSlopes(method, samples=4096)), windows=3)
    wanted = np.asarray(watched(s, Tuning(factors, Exactly(method)), windows=3).slope[:, :ROWS, 0].T)
    found = np.asarray(state.slope[:, :ROWS, 0].T)
    held = np.asarray(mean(state)) == 0  # a load that would be negative stays 0, whatever the factors
    assert (found[held] == 0).all()
    telling = ~held & (np.abs(wanted).max(axis=1) > 1e-3)
    assert telling.any()
    for one, other in zip(wanted[telling], found[telling], strict=True):
        assert float(cosine(one, other)) > 0.95
    assert (state.slope[..., 1] == 0).all()  # of the deviation nothing is said


def test_a_comparison_filters_for_each_policy_as_it_wants() -> None:
    network = Network(jax.random.key(0), SIZES)
    other = eqx.tree_at(lambda n: n.factors, network, jnp.array([1.0, 2.0, 3.0]))
    both = (Learned(network), Learned(other))
    for number, policy in enumerate(both):
        tuning = OneOf(both, jnp.asarray(number)).tuning
        assert tuning is not None
        np.testing.assert_array_equal(tuning.factors, policy.network.factors)


@pytest.mark.parametrize("method", ["score", "magic"])
def test_what_cannot_be_done_is_said(method: str) -> None:
    with pytest.raises(InputError, match=method) as told:
        slopes(method)
    assert "covariance" in str(told.value) and ("twice" in str(told.value)) == (method == "score")
    with pytest.raises(InputError, match=method):
        training.train(topology=cluster(), workload=small, telemetry_gradient=method)
