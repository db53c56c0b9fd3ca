"""Derivatives of the filter's belief about loads by the filter's factors, so that a policy's loss can train them.

    factors ─► filter ─► belief ─► features of the policy ─► loss
            slopes (here)       Jacobian (policies/features.py)

The simulator computes the slopes after every counter window. There are two ways. `FilterTangents` differentiates the
filter itself through all windows of the run (the implicit gradient, at the converged weights of the readings).
`SampledSlopes` treats the last window as a Bayesian network of its own (a prior load that may have jumped, and a
reading with Student-t errors) and estimates the gradient of the posterior mean from samples. docs/concepts/gradients.md
has the equations; `benchmarks/belief_gradients` holds the same estimators for any network, and those that were
compared with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient
from jax.scipy import stats

from symphony.problem.errors import InputError
from symphony.simulator.counters import MIN_LOAD, OTHERS, OWN, PARAMETERS, READINGS_PER_WINDOW
from symphony.telemetry.posterior import Belief
from symphony.telemetry.tuning import FILTER_FACTORS, BeliefSlopes, FilterStep, tuned

NONE, IMPLICIT, SAMPLED = "none", "implicit", "sampled"


@dataclass(frozen=True)
class FilterTangents:
    """Forward-mode tangents of the filter's whole state, carried from window to window."""

    def begin(self, belief: Belief) -> Belief:
        """Zero: nothing depends on the factors before the first window."""
        return jax.tree.map(lambda x: jnp.zeros((FILTER_FACTORS, *x.shape)), belief)

    def after(self, carried: Belief, step: FilterStep) -> tuple[Belief, Array]:
        """Tangents after one more window, and the slopes of mean and deviation [factors, rows, 2]."""

        def along(factor: Array, belief: Belief) -> Belief:
            return jax.jvp(step.filter, (step.factors, step.before), (factor, belief))[1]

        moved = jax.vmap(along)(jnp.eye(FILTER_FACTORS), carried)
        # The filter starts a rate at its first reading; the tangent there may not be finite.
        moved = jax.tree.map(jnp.nan_to_num, moved)
        deviation = jnp.sqrt(jnp.maximum(step.after.cov[:, OTHERS, OTHERS], 1e-12))
        spread = moved.cov[..., OTHERS, OTHERS] / (2 * deviation)
        return moved, jnp.stack([moved.mean[..., OTHERS], spread], axis=-1)


@dataclass(frozen=True)
class SampledSlopes:
    """Slopes of the last window's posterior mean, by an estimator that draws samples. Slopes of the deviation are 0."""

    method: str
    samples: int = 64

    def begin(self, belief: Belief) -> None:
        """Nothing is carried between windows."""
        return None

    def after(self, carried: None, step: FilterStep) -> tuple[None, Array]:
        """The slopes [factors, rows, 2] after this window."""
        rows = step.after.mean.shape[0]
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), step.number), rows)
        estimate = ESTIMATORS[self.method]
        reading = evidence(step)

        def belief(factors: Array, key: Array, row: Array) -> Array:
            model = jax.tree.map(lambda x: x[row], window_model(factors, step))
            return estimate(key, model, reading[row], self.samples)

        slope = jax.vmap(jax.grad(belief), in_axes=(None, 0, 0))(step.factors, keys, jnp.arange(rows))
        # The filter clips negative loads to 0; a clipped load does not depend on the factors.
        slope = jnp.where((step.after.mean[:, OTHERS] > 0)[:, None], jnp.nan_to_num(slope), 0.0)
        return None, jnp.stack([slope.T, jnp.zeros_like(slope.T)], axis=-1)


class WindowModel(NamedTuple):
    """One window as a Bayesian network: a Gaussian load, and its reading with a Student-t error."""

    mean: Array
    deviation: Array
    error: Array  # scale of the error
    freedom: Array  # degrees of freedom of the error

    def draw(self, key: Array, samples: int) -> Array:
        """Loads [samples] before the reading, differentiable by the model."""
        return self.mean + self.deviation * jax.random.normal(jax.random.split(key)[0], (samples,))

    def log_likelihood(self, load: Array, reading: Array) -> Array:
        """Log density of the reading at each load."""
        return stats.t.logpdf(reading, self.freedom, load, self.error)


def covariance(key: Array, model: WindowModel, reading: Array, samples: int) -> Array:
    """The posterior mean by likelihood weighting; its gradient is the covariance of the load with the score."""
    fixed: WindowModel = stop_gradient(model)
    load = fixed.draw(key, samples)
    weights = jax.nn.softmax(fixed.log_likelihood(load, reading))
    # With equal weights, division by 1 - Σ w² makes the baseline the mean of the other samples: no bias.
    centred = weights * (load - weights @ load) / jnp.maximum(1 - (weights**2).sum(), 1e-6)
    score = stats.norm.logpdf(load, model.mean, model.deviation) + model.log_likelihood(load, reading)
    gradient_only = centred @ score
    return weights @ load + gradient_only - stop_gradient(gradient_only)


def pathwise(key: Array, model: WindowModel, reading: Array, samples: int) -> Array:
    """The posterior mean as a weighted mean over reparameterised samples, differentiated as it is."""
    load = model.draw(key, samples)
    return jax.nn.softmax(model.log_likelihood(load, reading)) @ load


ESTIMATORS: dict[str, Callable[[Array, WindowModel, Array, int], Array]] = {
    "covariance": covariance,
    "pathwise": pathwise,
}


def evidence(step: FilterStep) -> Array:
    """The other tenants' load as read in a window [R]: the mean reading less Symphony's own load."""
    seen = step.seen
    weight = seen.slices[:, :READINGS_PER_WINDOW]
    total = (seen.rate[:, :READINGS_PER_WINDOW] * weight).sum(axis=1)
    return total / jnp.maximum(weight.sum(axis=1), 1e-9) - seen.rate[:, READINGS_PER_WINDOW]


def window_model(factors: Array, step: FilterStep) -> WindowModel:
    """The last window of every row [R]: the belief before it, how far the load may have moved, and the error."""
    before, after, seen = step.before, step.after, step.seen
    new, old = tuned(factors, PARAMETERS), tuned(stop_gradient(step.factors), PARAMETERS)
    usual = (before.innovation[:, OTHERS] * before.level[:, OTHERS]) ** 2
    jump = jnp.maximum(after.step[:, OTHERS] - usual, 0.0)
    variance = before.cov[:, OTHERS, OTHERS] + usual + jump * new.stride / old.stride
    size = jnp.maximum(after.level[:, OWN] + after.level[:, OTHERS], MIN_LOAD)
    slices = seen.slices[:, :READINGS_PER_WINDOW].sum(axis=1)
    unseen = jnp.maximum(1 / jnp.maximum(slices, 1e-9) - 1 / jnp.maximum(seen.total[:, 0], 1e-9), 0.0)
    error = (new.inflation * before.spread[:, 0] * size) ** 2 * unseen + MIN_LOAD * size
    return WindowModel(
        mean=before.mean[:, OTHERS],
        deviation=jnp.sqrt(jnp.maximum(variance, 1e-12)),
        error=jnp.sqrt(error),
        freedom=jnp.maximum(slices - 1, 0.0) + new.freedom,
    )


def slopes(method: str) -> BeliefSlopes | None:
    """The slopes by name: `none`, `implicit` (through the filter), or `sampled`, `covariance`, `pathwise`."""
    if method == NONE:
        return None
    if method == IMPLICIT:
        return FilterTangents()
    estimator = "covariance" if method == SAMPLED else method
    if estimator not in ESTIMATORS:
        score = "; `score` keeps samples equal to the reading, and a continuous reading never occurs twice"
        names = ", ".join([NONE, SAMPLED, *ESTIMATORS])
        raise InputError(
            f"the telemetry gradient is {method!r}",
            hint=f"use {names} or {IMPLICIT}{score if method == 'score' else ''}",
        )
    return SampledSlopes(estimator)
