"""The filter over flows: what others do on each path through a machine, from counters that are read in turn.

The model, for one group of rows (a machine or a rack) and one window:

* The levels of the flows (`problem/flows.py`) are 0 or more. From window to window a flow keeps its level or, with a
  small probability, is drawn anew: off, or on at some level.
* An event counts the load of a row: of all flows that cross it, in known proportions, and of our own work, which is
  known up to a factor. It is counted in n of the window's N slices. Work comes in bursts, so that the reading errs by
  `burst * rate * sqrt(1/n - 1/N)`, with the tails of Student's t.

The belief is a Gaussian over all flows of the group. Given it, the explanations "nothing changed", "flow i is off now"
and "flow i is on now" are compared by the likelihood of the window's readings, in closed form. The most probable ones
are each updated (a Kalman filter), and their mixture is replaced by one Gaussian with the same moments. Two changes in
one window are found one after the other: a tenant may use two paths.

Written once for NumPy (live) and JAX (batches): `xp` is the module. Leading axes are groups. Dimensions: E events,
F flows, K explanations.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

Array = Any  # numpy.ndarray or jax.Array, as `xp` makes them

EXPLANATIONS = 4  # of a window, that are followed: the most probable ones
PASSES = 2  # errors depend on the levels: the first pass finds levels, the second uses them


class FlowParameters(NamedTuple):
    """Learnable numbers: a pytree, differentiable. Loads and levels are fractions of a row's capacity."""

    burst: Array = 0.9  # deviation of a rate from slice to slice, relative to the rate
    changes: Array = 0.05  # probability that a flow is drawn anew in a window
    on_share: Array = 0.3  # probability that it is on then
    on_mean: Array = 0.8  # its level if it is on
    on_std: Array = 0.45
    off_std: Array = 0.01  # levels that count as off
    drift: Array = 0.03  # change of a level from window to window, relative to it
    own_error: Array = 0.2  # error of our own part of a rate, relative to it
    floor: Array = 0.02  # error of any reading
    freedom: Array = 4.0  # degrees of freedom of errors
    run_error: Array = 0.1  # error of the slow-down that a run shows, relative to it


class FlowBelief(NamedTuple):
    """Levels of the flows."""

    mean: Array  # f[..., F], 0 or more
    cov: Array  # f[..., F, F]


class Readings(NamedTuple):
    """One window."""

    rate: Array  # f[..., E]: load of the event's row
    own: Array  # f[..., E]: our own part of it
    unseen: Array  # f[..., E]: 1/n - 1/N for an event that was counted in n of N slices
    read: Array  # bool[..., E]


class Runs(NamedTuple):
    """Runs of ours that ended in the window, one for each of M devices: their times are readings, too.

    A run takes max(1, load) times as long as in isolation, with the load of the busiest row that it uses. H: rows that
    work on a device may use.
    """

    slow: Array  # f[..., M]: time over isolated time; 0 = no run
    windows: Array  # f[..., M]: its length, in windows
    own: Array  # f[..., M, H]: our own load of those rows, its own included
    row: Array  # i32[..., M, H]: index of the row's event
    uses: Array  # bool[..., M, H]


def fresh(p: FlowParameters) -> tuple[Array, Array]:
    """Mean and variance of the level of a flow of which nothing is known."""
    mean = p.on_share * p.on_mean
    return mean, p.on_share * (p.on_std**2 + p.on_mean**2) - mean**2


def start(xp: ModuleType, flows: int, p: FlowParameters, places: tuple[int, ...] = ()) -> FlowBelief:
    """The belief before the first window."""
    mean, variance = fresh(p)
    return FlowBelief(xp.zeros((*places, flows)) + mean, xp.zeros((*places, flows, flows)) + variance * xp.eye(flows))


def forget(xp: ModuleType, p: FlowParameters, belief: FlowBelief, windows: Array) -> FlowBelief:
    """The belief some windows later, for each flow f[..., F], without readings: it may have been drawn anew."""
    kept = (1 - p.changes) ** windows
    mean, variance = fresh(p)
    one = xp.eye(belief.mean.shape[-1])
    apart = belief.cov * (1 - one) * kept[..., None] * kept[..., None, :]
    own = kept * xp.diagonal(belief.cov, axis1=-2, axis2=-1) + (1 - kept) * variance
    own = own + kept * (1 - kept) * (belief.mean - mean) ** 2
    return FlowBelief(kept * belief.mean + (1 - kept) * mean, apart + own[..., None] * one)


def row_loads(xp: ModuleType, event: Array, belief: FlowBelief) -> tuple[Array, Array]:
    """Mean and standard deviation of the load by others on each row [..., E]."""
    mean = _apply(event, belief.mean)
    variance = ((event @ belief.cov) * event).sum(-1)
    return mean, xp.sqrt(xp.maximum(variance, 0.0))


def update(
    xp: ModuleType, event: Array, p: FlowParameters, belief: FlowBelief, seen: Readings, runs: Runs | None = None
) -> FlowBelief:
    """The belief after one more window. `event` f[..., E, F]: load of each row at level 1 of each flow."""
    counted = xp.where(seen.read[..., None], event, 0.0)
    others = xp.where(seen.read, seen.rate - seen.own, 0.0)
    unread = 1.0 * ~((counted > 0).any(-2))
    counters = counted, others
    belief = forget(xp, p, belief, unread)
    drift = (p.drift * belief.mean) ** 2
    before, spread = belief.mean, belief.cov + drift[..., None] * xp.eye(drift.shape[-1])
    levels = before
    for _ in range(PASSES):
        counted, others = counters
        noise = _noise(xp, p, counted, others, levels, seen)
        if runs is not None:
            more = _run_readings(xp, p, event, levels, runs)
            counted, others, noise = (
                xp.concatenate([x, y], axis) for x, y, axis in zip((counted, others, noise), more, (-2, -1, -1), strict=True)
            )
        mean, cov = _mixture(xp, *_explanations(xp, p, counted, before, spread, others, noise))
        weight, means, covs = _explanations(xp, p, counted, mean, cov, others, noise)
        mean, cov = _mixture(xp, weight, *_kalman(xp, counted, means, covs, others, noise))
        levels = xp.maximum(mean, 0.0)
    return FlowBelief(levels, cov)


def _apply(matrix: Array, vector: Array) -> Array:
    return (matrix @ vector[..., None])[..., 0]


def _noise(xp: ModuleType, p: FlowParameters, counted: Array, others: Array, levels: Array, seen: Readings) -> Array:
    """Variance of the readings at these levels; larger for readings far off, as Student's t has it."""
    bursts = p.burst**2 * (_apply(counted, levels) ** 2 + seen.own**2) * seen.unseen
    noise = bursts + (p.own_error * seen.own) ** 2 + p.floor**2
    off = others - _apply(counted, levels)
    tails = xp.maximum((p.freedom + off**2 / noise) / (p.freedom + 1), 1.0)
    return xp.where(seen.read, noise * tails, 1.0)


def _run_readings(xp: ModuleType, p: FlowParameters, event: Array, levels: Array, runs: Runs) -> tuple[Array, ...]:
    """Runs as readings of the row that is their bottleneck at these levels: loads by flows, load by others, variance.

    A run at full speed only says that the load was not above 1: it is a reading if more was expected.
    """
    expected = xp.take_along_axis(_apply(event, levels)[..., None, :], runs.row, axis=-1) + runs.own
    expected = xp.where(runs.uses, expected, 0.0)
    hop = expected.argmax(-1)[..., None]
    busiest, own, row = (xp.take_along_axis(x, hop, axis=-1)[..., 0] for x in (expected, runs.own, runs.row))
    deviation = p.run_error * runs.slow
    slowed = runs.slow > 1 + 2 * p.run_error
    says = runs.uses.any(-1) & (runs.slow > 0) & (slowed | (busiest > 1))
    counted = xp.take_along_axis(event, row[..., None], axis=-2)
    variance = deviation**2 * xp.maximum(runs.windows, 1.0) + (p.own_error * own) ** 2
    others = xp.where(slowed, runs.slow, 1.0) - own
    off = others - _apply(counted, levels)
    variance = variance * xp.maximum((p.freedom + off**2 / xp.maximum(variance, 1e-6)) / (p.freedom + 1), 1.0)
    return xp.where(says[..., None], counted, 0.0), xp.where(says, others, 0.0), xp.where(says, variance, 1.0)


def _explanations(
    xp: ModuleType, p: FlowParameters, counted: Array, mean: Array, cov: Array, others: Array, noise: Array
) -> tuple[Array, Array, Array]:
    """The most probable explanations of a window: probabilities [..., K], and the belief before it under each.

    One is that nothing changed. Under the others, one flow has been drawn anew. Then the covariance of the readings
    differs by a matrix of rank two, so that one posterior serves for all (the matrix inversion lemma).
    """
    flows = mean.shape[-1]
    weighted = xp.swapaxes(counted / noise[..., None], -1, -2)
    information = weighted @ counted  # [..., F, F]
    given = information @ covariance_after(xp, counted, cov, noise)
    # With S the covariance of the readings: counted.T @ inv(S) @ counted, and the same with counted @ cov.
    apart = information - given @ information
    spread = apart @ cov
    pull = _apply(weighted, others - _apply(counted, mean))
    cv = pull - _apply(given, pull)
    sv = _apply(cov, cv)
    cc, cs = (xp.diagonal(x, axis1=-2, axis2=-1) for x in (apart, spread))
    ss = (cov * spread).sum(-2)
    variance = xp.diagonal(cov, axis1=-2, axis2=-1)

    def log_ratio(level: Array, deviation: Array) -> Array:
        """Log likelihood of the readings if a flow was drawn from N(level, deviation²), to that of no change."""
        move = level - mean
        b, d = cs - 1, ss - variance - deviation**2
        determinant = xp.maximum(b * b - cc * d, 1e-9)
        u, v = cv - cc * move, sv - cs * move
        gained = (2 * b * u * v - d * u * u - cc * v * v) / determinant
        return 0.5 * (gained + 2 * move * cv - move * move * cc - xp.log(determinant))

    off, on = log_ratio(0.0, p.off_std), log_ratio(p.on_mean, p.on_std)
    odds = p.changes / (1 - p.changes)
    score = xp.concatenate([off + xp.log(odds * (1 - p.on_share)), on + xp.log(odds * p.on_share)], axis=-1)
    score = xp.where(xp.concatenate([off, on], axis=-1) > 0, score, -1e9)  # readings do not speak for it
    score, best = _largest(xp, xp.concatenate([xp.zeros_like(score[..., :1]), score], axis=-1))
    weight = xp.exp(score - score.max(-1, keepdims=True))
    weight = weight / weight.sum(-1, keepdims=True)
    anew = (best > 0)[..., None] & (xp.arange(flows) == ((best - 1) % flows)[..., None])  # [..., K, F]
    is_on = (best > flows)[..., None]
    means = xp.where(anew, xp.where(is_on, p.on_mean, 0.0), mean[..., None, :])
    kept = ~anew[..., None] & ~anew[..., None, :]
    drawn = xp.where(anew, xp.where(is_on, p.on_std, p.off_std) ** 2, 0.0)
    covs = xp.where(kept, cov[..., None, :, :], 0.0) + drawn[..., None] * xp.eye(flows)
    return weight, means, covs


def _largest(xp: ModuleType, score: Array) -> tuple[Array, Array]:
    """The largest scores and their indices."""
    if xp is np:
        best = np.argsort(-score, axis=-1, kind="stable")[..., :EXPLANATIONS]
        return np.take_along_axis(score, best, axis=-1), best
    import jax

    return jax.lax.top_k(score, min(EXPLANATIONS, score.shape[-1]))


def _kalman(xp: ModuleType, counted: Array, mean: Array, cov: Array, others: Array, noise: Array) -> tuple[Array, Array]:
    """Means [..., K, F] and covariances after the readings."""
    counted, noise = counted[..., None, :, :], noise[..., None, :]
    after = covariance_after(xp, counted, cov, noise)
    off = (others[..., None, :] - _apply(counted, mean)) / noise
    return mean + _apply(after, _apply(xp.swapaxes(counted, -1, -2), off)), after


def covariance_after(xp: ModuleType, counted: Array, cov: Array, noise: Array) -> Array:
    """Covariance of the levels after readings with these variances."""
    if xp is np:
        spread = counted @ cov
        total = spread @ np.swapaxes(counted, -1, -2) + noise[..., None] * np.eye(noise.shape[-1])
        return cov - np.swapaxes(spread, -1, -2) @ np.linalg.solve(total, spread)
    import jax

    # One reading after the other: compiled programs that call LAPACK cannot be kept on disk.
    def after_one(cov: Array, reading: tuple[Array, Array]) -> tuple[Array, None]:
        loads, variance = reading
        spread = _apply(cov, loads)
        total = (loads * spread).sum(-1) + variance
        return cov - spread[..., :, None] * (spread / total[..., None])[..., None, :], None

    readings = xp.moveaxis(xp.broadcast_to(counted, (*cov.shape[:-2], *counted.shape[-2:])), -2, 0)
    variances = xp.moveaxis(xp.broadcast_to(noise, (*cov.shape[:-2], noise.shape[-1])), -1, 0)
    return jax.lax.scan(after_one, cov, (readings, variances))[0]


def _mixture(xp: ModuleType, weight: Array, means: Array, covs: Array) -> tuple[Array, Array]:
    """Mean and covariance of a mixture."""
    mean = (weight[..., None] * means).sum(-2)
    off = means - mean[..., None, :]
    return mean, (weight[..., None, None] * (covs + off[..., :, None] * off[..., None, :])).sum(-3)
