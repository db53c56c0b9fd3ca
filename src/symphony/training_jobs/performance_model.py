"""A speed model with calibrated uncertainty: an ensemble of small networks that correct an analytic estimate.

A member predicts the log of the time of a unit over its estimate, as a mean and a deviation. Members differ in three
ways: each adds an untrained *random prior* network (Osband et al., 2018), weighs the samples by its own bootstrap
draws, and has its own initial weights. They agree where there are samples and disagree elsewhere. Old samples have less
weight.

The uncertainty is *calibrated*. Four more ensembles are fitted in the same compiled program, each without a quarter of
the job families. Their predictions for the families left out determine how far the members' mean holds for a new family
(`trust`), the deviation between families (`family`), and the factor that makes 90% intervals hold 90%.

Inputs are numbers (`job_features.py`), never names. Samples are padded to one size, so that fitting compiles once.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

ENSEMBLE_MEMBERS = 7
CROSS_VALIDATION_FOLDS = 4
HIDDEN_WIDTH = 32
FIT_STEPS = 250
FIT_LEARNING_RATE = 1e-2
WEIGHT_DECAY = 1e-3  # per step, times the learning rate
PRIOR_NETWORK_SCALE = 0.3
MIN_STD, MAX_STD = 0.03, 2.0
MAX_FIT_SAMPLES = 512  # the newest
TARGET_COVERAGE, MAX_COVERAGE = 0.9, 0.95
MAX_FAMILIES = 64  # distinguished; family numbers are taken modulo this
Z_90 = 1.645  # a normal variable is within so many deviations with 90%
CALIBRATION_BOUNDS = (0.5, 4.0)  # of the factor on deviations
MIN_FIT_SAMPLES = 24  # with fewer, the analytic estimates are used unchanged
UNSEEN_STD = 0.6  # deviation of the log of an estimate without samples: the error on Gavel's jobs


class FitData(eqx.Module):
    """Padded samples; padding has weight 0."""

    x: Array  # f[S, F]
    y: Array  # f[S]: log(observed / estimated seconds)
    weight: Array  # f[S]
    family: Array  # i32[S]: left out together in cross-validation


class Ensemble(eqx.Module):
    """K stacked members and their calibration."""

    learned: eqx.nn.MLP  # [K, …]
    frozen: eqx.nn.MLP  # [K, …]: random priors
    seen: Array  # f[2, F]: range of the inputs so far, to which inputs are clipped
    trust: Array  # f[]: factor on the mean for families without samples
    family: Array  # f[]: deviation between families beyond that of the members
    calibration: Array  # f[]: factor on all deviations

    def members(self, x: Array) -> tuple[Array, Array]:
        """Mean and deviation of each member for inputs [n, F]: [K, n] each."""
        return _members(self.learned, self.frozen, jnp.clip(x, *self.seen))

    def predict(self, x: Array) -> tuple[Array, Array]:
        """Mean and calibrated deviation [n] for inputs [n, F]."""
        return _predict(self, x)


def untrained(key: Array, features: int, members: int = ENSEMBLE_MEMBERS) -> Ensemble:
    """Members before any sample."""
    learned, frozen = (_networks(k, features, members) for k in jax.random.split(key))
    anything = jnp.outer(jnp.asarray([-jnp.inf, jnp.inf]), jnp.ones(features))
    return Ensemble(learned, frozen, anything, jnp.zeros(()), jnp.asarray(UNSEEN_STD), jnp.ones(()))


def fit_data(
    x: np.ndarray,
    y: np.ndarray,
    age_s: np.ndarray,
    family: np.ndarray,
    half_life_s: float,
    capacity: int = MAX_FIT_SAMPLES,
) -> FitData:
    """The newest samples, padded to `capacity`; weights halve with every half-life of age."""
    newest = np.argsort(age_s, kind="stable")[:capacity]
    count = len(newest)
    padded_x, rest = np.zeros((capacity, x.shape[1])), np.zeros((3, capacity))
    padded_x[:count] = x[newest]
    rest[:, :count] = y[newest], 0.5 ** (age_s[newest] / half_life_s), family[newest]
    return FitData(jnp.asarray(padded_x), jnp.asarray(rest[0]), jnp.asarray(rest[1]), jnp.asarray(rest[2], jnp.int32))


@eqx.filter_jit  # one program: each draw by itself would be one
def _networks(key: Array, features: int, members: int) -> eqx.nn.MLP:
    make = partial(eqx.nn.MLP, features, 2, HIDDEN_WIDTH, 2, jax.nn.tanh)
    return eqx.filter_vmap(lambda k: make(key=k))(jax.random.split(key, members))


def _member_output(learned: eqx.nn.MLP, frozen: eqx.nn.MLP, x: Array) -> tuple[Array, Array]:
    mean, spread = learned(x)
    mean = mean + PRIOR_NETWORK_SCALE * jax.lax.stop_gradient(frozen(x)[0])
    return mean, MIN_STD + (MAX_STD - MIN_STD) * jax.nn.sigmoid(spread - 2)


@eqx.filter_jit
def _members(learned: eqx.nn.MLP, frozen: eqx.nn.MLP, x: Array) -> tuple[Array, Array]:
    def one(a: eqx.nn.MLP, b: eqx.nn.MLP) -> tuple[Array, Array]:
        return jax.vmap(lambda row: _member_output(a, b, row))(x)

    return eqx.filter_vmap(one)(learned, frozen)


def _mixture_moments(ensemble: Ensemble, x: Array) -> tuple[Array, Array]:
    """Mean and variance of the members' answers [n]."""
    mean, std = ensemble.members(x)
    return mean.mean(axis=0), mean.var(axis=0) + (std**2).mean(axis=0)


@eqx.filter_jit
def _predict(ensemble: Ensemble, x: Array) -> tuple[Array, Array]:
    mean, variance = _mixture_moments(ensemble, x)
    e = ensemble
    return e.trust * mean, e.calibration * jnp.sqrt(e.trust**2 * variance + e.family**2)


@eqx.filter_jit
def fit(key: Array, ensemble: Ensemble, samples: FitData) -> Ensemble:
    """Fit all members from new initial weights, and calibrate. One compiled program for all numbers of samples."""
    k = jax.tree.leaves(eqx.filter(ensemble.learned, eqx.is_array))[0].shape[0]
    groups = jnp.arange(CROSS_VALIDATION_FOLDS + 1)  # 0 leaves nothing out, f the families f - 1 modulo the folds
    fold = samples.family % CROSS_VALIDATION_FOLDS + 1
    starts, draws = jax.random.split(key)

    def member(start: Array, draw: Array, frozen: eqx.nn.MLP, group: Array) -> eqx.nn.MLP:
        network = eqx.nn.MLP(samples.x.shape[1], 2, HIDDEN_WIDTH, 2, jax.nn.tanh, key=start)
        weight = samples.weight * jax.random.poisson(draw, 1.0, samples.weight.shape) * (fold != group)
        return _fit_member(network, frozen, samples, weight)

    keys = jax.random.split(starts, k), jax.random.split(draws, k)
    over_members = eqx.filter_vmap(member, in_axes=(0, 0, eqx.if_array(0), None))
    all_folds = eqx.filter_vmap(lambda group: over_members(*keys, ensemble.frozen, group))(groups)

    def fold_of(number: int) -> eqx.nn.MLP:
        return jax.tree.map(lambda leaf: leaf[number] if eqx.is_array(leaf) else leaf, all_folds)

    # Predictions for each sample by the ensemble that was fitted without its family.
    mean, variance = jnp.zeros_like(samples.y), jnp.ones_like(samples.y)
    for group in range(1, CROSS_VALIDATION_FOLDS + 1):
        others = replace(ensemble, learned=fold_of(group), seen=_range(samples, fold != group))
        unseen = _mixture_moments(others, samples.x)
        mean, variance = (jnp.where(fold == group, new, old) for new, old in zip(unseen, (mean, variance), strict=True))
    # All families have equal weight, because the question is how well a new family is predicted.
    every = jax.ops.segment_sum(samples.weight, samples.family % MAX_FAMILIES, MAX_FAMILIES)
    w, y = samples.weight / jnp.maximum(every, 1e-6)[samples.family % MAX_FAMILIES], samples.y
    families = (every > 0).sum()
    enough = (w > 0).sum() >= MIN_FIT_SAMPLES
    trust = jnp.clip((w * mean * y).sum() / jnp.maximum((w * mean**2).sum(), 1e-6), 0.0, 1.0) * enough
    beyond = (w * ((y - trust * mean) ** 2 - trust**2 * variance)).sum() / jnp.maximum(w.sum(), 1e-6)
    family = jnp.where(enough, jnp.sqrt(jnp.clip(beyond, 0.01, 1.0)), UNSEEN_STD)
    off = jnp.abs(y - trust * mean) / jnp.sqrt(trust**2 * variance + family**2)
    # Finite-sample correction: the interval has to cover one more family than there are.
    share = jnp.minimum(TARGET_COVERAGE * (families + 1) / jnp.maximum(families, 1), MAX_COVERAGE)
    stretch = jnp.where(enough, jnp.clip(_quantile(off, w, share) / Z_90, *CALIBRATION_BOUNDS), 1.0)
    return Ensemble(fold_of(0), ensemble.frozen, _range(samples, fold >= 0), trust, family, stretch)


def _range(samples: FitData, among: Array) -> Array:
    """Smallest and largest inputs of some samples [2, F]."""
    real = ((samples.weight > 0) & among)[:, None]
    low, high = jnp.where(real, samples.x, jnp.inf).min(axis=0), jnp.where(real, samples.x, -jnp.inf).max(axis=0)
    return jnp.where(real.any(), jnp.stack([low, high]), 0.0)


def _fit_member(network: eqx.nn.MLP, frozen: eqx.nn.MLP, samples: FitData, weight: Array) -> eqx.nn.MLP:
    """Maximise the likelihood of the samples with AdamW."""
    import optax  # most processes fit nothing

    arrays, rest = eqx.partition(network, eqx.is_array)
    slower = optax.cosine_decay_schedule(FIT_LEARNING_RATE, FIT_STEPS)
    descent = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(slower, weight_decay=WEIGHT_DECAY))
    total = jnp.maximum(weight.sum(), 1e-6)

    def loss(arrays: Any) -> Array:
        mean, std = jax.vmap(lambda row: _member_output(eqx.combine(arrays, rest), frozen, row))(samples.x)
        return (weight * (0.5 * ((samples.y - mean) / std) ** 2 + jnp.log(std))).sum() / total

    def step(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], None]:
        arrays, state = carry
        updates, state = descent.update(jax.grad(loss)(arrays), state, arrays)
        return (optax.apply_updates(arrays, updates), state), None

    (arrays, _), _ = jax.lax.scan(step, (arrays, descent.init(arrays)), None, length=FIT_STEPS)
    return eqx.combine(arrays, rest)


def _quantile(values: Array, weight: Array, share: Array) -> Array:
    """The weighted quantile."""
    order = jnp.argsort(jnp.where(weight > 0, values, jnp.inf))
    reached = jnp.cumsum(weight[order]) >= share * weight.sum()
    return values[order][jnp.argmax(reached)]
