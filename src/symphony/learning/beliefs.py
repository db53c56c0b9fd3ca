"""Derivatives of the belief about loads by the factors of the filter's parameters, to train them by a policy's loss.

    factors ─► filter ─► belief ─► features of the policy ─► loss
            slopes (here)       Jacobian (policies/features.py)

The simulator computes the slopes after every counter window. There are two ways. `FilterTangents` differentiates the
filter itself through all windows of the run. `SampledSlopes` takes the last window as a Bayesian network (levels
before, which may have changed; levels now; readings with Student-t errors) and needs no inference beyond the filter's
own: the derivative of a posterior mean is the covariance, over samples of the posterior, of the value and the score of
the network. docs/concepts/gradients.md has the equations, `benchmarks/belief_gradients` estimators for any network.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array
from jax.lax import stop_gradient
from jax.scipy import stats

from symphony.estimation.flow_filter import FlowBelief
from symphony.estimation.tuning import FILTER_FACTORS, BeliefSlopes, FilterStep, tuned
from symphony.problem.errors import InputError
from symphony.simulator.counters import PARAMETERS

NONE, IMPLICIT, SAMPLED = "none", "implicit", "sampled"


@dataclass(frozen=True)
class FilterTangents:
    """Forward-mode tangents of the filter's whole state, carried from window to window."""

    def begin(self, belief: FlowBelief) -> FlowBelief:
        """Zero: what the belief before the first window owes to the factors is left out."""
        return jax.tree.map(lambda x: jnp.zeros((FILTER_FACTORS, *x.shape)), belief)

    def after(self, carried: FlowBelief, step: FilterStep) -> tuple[FlowBelief, Array]:
        """Tangents after one more window, and the slopes of mean and deviation [factors, rows, 2]."""

        def along(factor: Array, belief: FlowBelief) -> FlowBelief:
            return jax.jvp(step.filter, (step.factors, step.before), (factor, belief))[1]

        def of_rows(belief: FlowBelief) -> Array:
            return jax.jvp(step.rows, (step.after,), (belief,))[1]

        moved = jax.tree.map(jnp.nan_to_num, jax.vmap(along)(jnp.eye(FILTER_FACTORS), carried))
        return moved, jnp.nan_to_num(jax.vmap(of_rows)(moved))


@dataclass(frozen=True)
class SampledSlopes:
    """Slopes of the posterior mean after the last window, from samples. Slopes of the deviation are 0."""

    samples: int = 64

    def begin(self, belief: FlowBelief) -> None:
        """Nothing is carried between windows."""
        return None

    def after(self, carried: None, step: FilterStep) -> tuple[None, Array]:
        """The slopes [factors, rows, 2] after this window."""
        key = jax.random.fold_in(jax.random.key(0), step.number)
        levels = stop_gradient(draw(key, step.after, self.samples))
        score = jax.jacfwd(lambda factors: log_joint(factors, step, levels))(step.factors)  # [samples, G, factors]
        loads = jnp.einsum("gsf,ngf->ngs", step.event, levels)
        centred = (loads - loads.mean(axis=0)) / (self.samples - 1)
        slope = jnp.einsum("ngs,ngk->kgs", centred, score - score.mean(axis=0))
        # The filter clips levels at 0; a load that is clipped does not depend on the factors.
        slope = jnp.where((step.event @ step.after.mean[..., None])[..., 0] > 0, jnp.nan_to_num(slope), 0.0)
        mean = jax.vmap(step.to_rows)(slope)
        return None, jnp.stack([mean, jnp.zeros_like(mean)], axis=-1)


def draw(key: Array, belief: FlowBelief, samples: int) -> Array:
    """Joint samples of the levels of the flows [samples, G, F]."""
    eye = jnp.eye(belief.mean.shape[-1])
    root = jnp.linalg.cholesky(belief.cov + 1e-6 * eye)
    normal = jax.random.normal(key, (samples, *belief.mean.shape))
    return belief.mean + (root @ normal[..., None])[..., 0]


def log_joint(factors: Array, step: FilterStep, levels: Array) -> Array:
    """Log density of levels and readings of the last window [samples, G], given the belief before it.

    Each flow keeps its level or is drawn anew, by itself; correlations of the belief before are left out.
    """
    p, before, seen = tuned(factors, PARAMETERS), step.before, step.seen
    deviation = jnp.sqrt(jnp.diagonal(before.cov, axis1=-2, axis2=-1) + (p.drift * before.mean) ** 2 + p.off_std**2)
    kinds = (
        (1 - p.changes, before.mean, deviation),
        (p.changes * (1 - p.on_share), 0.0, p.off_std),
        (p.changes * p.on_share, p.on_mean, p.on_std),
    )
    parts = jnp.stack([jnp.log(share) + stats.norm.logpdf(levels, mean, std) for share, mean, std in kinds])
    changes = jax.nn.logsumexp(parts, axis=0).sum(-1)
    loads = jnp.einsum("gsf,ngf->ngs", step.event, levels)
    error = jnp.sqrt(
        p.burst**2 * (jnp.maximum(loads, 0.0) ** 2 + seen.own**2) * seen.unseen
        + (p.own_error * seen.own) ** 2
        + p.floor**2
    )
    readings = jnp.where(seen.read, stats.t.logpdf(seen.rate - seen.own, p.freedom, loads, error), 0.0)
    return changes + readings.sum(-1)


def slopes(method: str) -> BeliefSlopes | None:
    """The slopes by name: `none`, `implicit` (through the filter), or `sampled`."""
    methods: dict[str, BeliefSlopes | None] = {NONE: None, IMPLICIT: FilterTangents(), SAMPLED: SampledSlopes()}
    if method not in methods:
        raise InputError(f"the telemetry gradient is {method!r}", hint=f"use {NONE}, {SAMPLED} or {IMPLICIT}")
    return methods[method]
