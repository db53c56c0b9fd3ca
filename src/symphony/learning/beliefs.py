"""How what is believed of loads changes with the filter's factors, so that a policy's loss can reach them.

    factors ─► filter ─► belief ─► what the network sees ─► loss
            slopes (here)      bends (policies/features.py)

The simulator works out slopes after every window, and what is seen is bent along them where the loss is computed. There
are two ways. `FilterTangents` differentiates the filter itself, as far back as the run goes: the implicit gradient,
whose reweighting has settled. `SampledSlopes` takes the last window as a Bayesian network of its own (a load that was
believed and may have jumped, a reading with Student-t errors) and asks an estimator of `gradients`, which draws samples
and infers nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from symphony.learning.gradients import METHODS
from symphony.learning.nets import LinearNet, LinearParameters
from symphony.problem.errors import InputError
from symphony.simulator.counters import MIN_LOAD, OTHERS, OWN, PARAMETERS, READINGS_PER_WINDOW
from symphony.telemetry.posterior import Belief
from symphony.telemetry.tuning import FILTER_FACTORS, BeliefSlopes, FilterStep, tuned

NONE, IMPLICIT, SAMPLED = "none", "implicit", "sampled"
NET = LinearNet(((),))  # the load of others, and its reading


@dataclass(frozen=True)
class FilterTangents:
    """Through the filter, window after window: tangents of all that it carries."""

    def begin(self, belief: Belief) -> Belief:
        """Nothing depends on the factors before the first window."""
        return jax.tree.map(lambda x: jnp.zeros((FILTER_FACTORS, *x.shape)), belief)

    def after(self, carried: Belief, step: FilterStep) -> tuple[Belief, Array]:
        """The tangents one window on."""

        def along(factor: Array, belief: Belief) -> Belief:
            return jax.jvp(step.filter, (step.factors, step.before), (factor, belief))[1]

        moved = jax.vmap(along)(jnp.eye(FILTER_FACTORS), carried)
        # A rate that is read for the first time has a tangent of any size: the filter begins with what it reads.
        moved = jax.tree.map(jnp.nan_to_num, moved)
        deviation = jnp.sqrt(jnp.maximum(step.after.cov[:, OTHERS, OTHERS], 1e-12))
        spread = moved.cov[..., OTHERS, OTHERS] / (2 * deviation)
        return moved, jnp.stack([moved.mean[..., OTHERS], spread], axis=-1)


@dataclass(frozen=True)
class SampledSlopes:
    """By an estimator of `gradients`, of the last window alone; the deviation is taken as given."""

    method: str
    samples: int = 64

    def begin(self, belief: Belief) -> None:
        """It carries nothing."""
        return None

    def after(self, carried: None, step: FilterStep) -> tuple[None, Array]:
        """Slopes of this window's belief."""
        rows = step.after.mean.shape[0]
        keys = jax.random.split(jax.random.fold_in(jax.random.key(0), step.number), rows)
        estimate = METHODS[self.method]
        reading = evidence(step)

        def belief(factors: Array, key: Array, row: Array) -> Array:
            net = of_row(window_net(factors, step), row)
            return estimate(key, NET, net, {0: 1.0}, {0: reading[row]}, self.samples)

        slope = jax.vmap(jax.grad(belief), in_axes=(None, 0, 0))(step.factors, keys, jnp.arange(rows))
        # A load that would be negative is held at 0, whatever the factors.
        slope = jnp.where((step.after.mean[:, OTHERS] > 0)[:, None], jnp.nan_to_num(slope), 0.0)
        return None, jnp.stack([slope.T, jnp.zeros_like(slope.T)], axis=-1)


def evidence(step: FilterStep) -> Array:
    """What was read of the others' load in a window [R]: of all, less Symphony's own."""
    seen = step.seen
    weight = seen.slices[:, :READINGS_PER_WINDOW]
    return (seen.rate[:, :READINGS_PER_WINDOW] * weight).sum(axis=1) / jnp.maximum(
        weight.sum(axis=1), 1e-9
    ) - seen.rate[:, READINGS_PER_WINDOW]


def window_net(factors: Array, step: FilterStep) -> LinearParameters:
    """The last window as a net, of each row [R]: what was believed, how far it may have moved, how it was read."""
    before, after, seen = step.before, step.after, step.seen
    now, then = tuned(factors, PARAMETERS), tuned(jax.lax.stop_gradient(step.factors), PARAMETERS)
    usual = (before.innovation[:, OTHERS] * before.level[:, OTHERS]) ** 2
    jump = jnp.maximum(after.step[:, OTHERS] - usual, 0.0)
    moved = before.cov[:, OTHERS, OTHERS] + usual + jump * now.stride / then.stride
    size = jnp.maximum(after.level[:, OWN] + after.level[:, OTHERS], MIN_LOAD)
    slices = seen.slices[:, :READINGS_PER_WINDOW].sum(axis=1)
    unseen = jnp.maximum(1 / jnp.maximum(slices, 1e-9) - 1 / jnp.maximum(seen.total[:, 0], 1e-9), 0.0)
    error = (now.inflation * before.spread[:, 0] * size) ** 2 * unseen + MIN_LOAD * size
    return LinearParameters(
        bias=before.mean[:, OTHERS],
        weights=(),
        scale=0.5 * jnp.log(jnp.maximum(moved, 1e-12)),
        spread=0.5 * jnp.log(error),
        freedom=jnp.log(jnp.maximum(slices - 1, 0.0) + now.freedom),
    )


def of_row(net: LinearParameters, row: Array) -> LinearParameters:
    """The net of one row."""
    return jax.tree.map(lambda x: x[row][None], net)._replace(weights=(jnp.zeros(0),))


def slopes(method: str) -> BeliefSlopes | None:
    """By name: of no use (`none`), through the filter (`implicit`), or an estimator that samples."""
    if method == NONE:
        return None
    if method == IMPLICIT:
        return FilterTangents()
    known: dict[str, Any] = {SAMPLED: "covariance", "covariance": "covariance", "pathwise": "pathwise"}
    if method not in known:
        score = "; `score` keeps samples that equal what was read, and no continuous reading is met twice"
        raise InputError(
            f"the telemetry gradient is {method!r}",
            hint=f"use {', '.join([NONE, *known])} or {IMPLICIT}{score if method == 'score' else ''}",
        )
    return SampledSlopes(known[method])
