"""The filter over flows: what others do on each path through a machine, from counters that are read in turn.

The model, for one group of rows (a machine or a rack) and one window:

* The levels of the flows (`problem/flows.py`) are 0 or more. From window to window a flow keeps its level or, with a
  small probability, is drawn anew: off, or on at some level.
* An event counts the load of a row: of all flows that cross it, in known proportions, and of our own work, which is
  known up to a factor. It is counted in n of the window's N slices. Work comes in bursts, so that the reading errs by
  `burst * rate * sqrt(1/n - 1/N)`, with the tails of Student's t.

In real runs (`live.py`), the belief is also about our own kernels: components beside the flows, with parameters of
their own. A counter that counts kernels of ours counts what they ask of its row. A slow run met others, or its kernel
has become slower: both are explanations that are compared.

The belief is a Gaussian over all flows of the group. Given it, the explanations "nothing changed", "flow i is off now"
and "flow i is on now" are compared by the likelihood of the window's readings, in closed form. The most probable ones,
and those in which a second flow changed beside the most probable, are each updated (a Kalman filter, with the errors
that the supposed levels imply), and their mixture is replaced by one Gaussian with the same moments.

Written once for NumPy (live) and JAX (batches): `xp` is the module. `flow_filter.c` has the same for NumPy, without the
cost of 200 small operations; it is used where it was compiled. Leading axes are groups. Dimensions: E events, F flows,
K explanations.
"""

from __future__ import annotations

import ctypes
import math
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from symphony.problem import native_code

Array = Any  # numpy.ndarray or jax.Array, as `xp` makes them

EXPLANATIONS = 4  # of a window, that are followed: the most probable ones, and as many with a second change
MAX_RATE = 1e3  # times the capacity of a row: no load is as high, and a counter that says so is broken
IMPOSSIBLE = -1e9  # log probability
MIN_SLOW = 0.25  # times that are shorter than was expected by more are not taken to tell more
MIN_EVIDENCE = 1e-3  # log likelihood by which an explanation must be better than no change: more than rounding
CLIPPED_FLOWS = 3  # levels below 0 in one window that are made up for


class FlowParameters(NamedTuple):
    """Learnable numbers: a pytree, differentiable. Loads and levels are fractions of a row's capacity.

    Those of levels are numbers, or one for each flow f[F].
    """

    burst: Array = 1.0  # deviation of a rate from slice to slice, relative to the rate
    changes: Array = 0.05  # probability that a flow is drawn anew in a window
    on_share: Array = 0.3  # probability that it is on then
    on_mean: Array = 0.8  # its level if it is on
    on_std: Array = 0.6
    off_std: Array = 0.01  # levels that count as off
    drift: Array = 0.05  # change of a level from window to window, relative to it
    own_error: Array = 0.2  # error of our own part of a rate, relative to it
    floor: Array = 0.02  # error of any reading
    freedom: Array = 4.0  # degrees of freedom of errors
    run_error: Array = 0.1  # error of the slow-down that a run shows, relative to it
    lowest: Array = 0.0  # level: no flow is less than nothing; logarithms of times may be


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


class RunTimes(NamedTuple):
    """Runs of ours that ended in the window, one for each of M devices: their times are readings, too.

    A run takes max(1, load) times as long as in isolation, with the load of the busiest row that it uses. H: rows that
    work on a device may use. If the isolated time is believed in the same Gaussian, `times` says how its logarithm
    follows from it, and `error` is that of a single run; else `error` is also for the doubt about the isolated time.
    """

    slow: Array  # f[..., M]: time over isolated time; 0 = no run
    error: Array  # f[..., M]: of that, relative to it
    windows: Array  # f[..., M]: its length, in windows
    own: Array  # f[..., M, H]: our own load of those rows, its own included
    row: Array  # i32[..., M, H]: index of the row's event
    uses: Array  # bool[..., M, H]
    times: Array | None = None  # f[..., M, F]
    freedom: Array | None = None  # f[..., M]: degrees of freedom of their errors; given with `times`


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
    xp: ModuleType,
    event: Array,
    p: FlowParameters,
    belief: FlowBelief,
    seen: Readings,
    runs: RunTimes | None = None,
    windows: Array = 1.0,
    counts: Array | None = None,
) -> FlowBelief:
    """The belief after one more window. `event` f[..., E, F]: load of each row at level 1 of each flow.

    `windows` f[...] or f[..., F]: how many windows have passed since the one before. `counts`: what a reading counts
    at level 1 of each flow, if it is not the load of one row.
    """
    passed = xp.asarray(windows)
    passed = passed if passed.ndim == belief.mean.ndim else passed[..., None]
    if xp is np and (library := native_code.library()) is not None:
        return _native_update(library, event, p, belief, seen, runs, passed, event if counts is None else counts)
    read = seen.read & (seen.rate >= 0) & (seen.rate < MAX_RATE)  # False for NaN, and for counters that go backwards
    read &= xp.abs(seen.own) < MAX_RATE
    seen = seen._replace(read=read, rate=xp.where(read, seen.rate, 0.0), own=xp.where(read, seen.own, 0.0))
    counted = xp.where(read[..., None], event if counts is None else counts, 0.0)
    belief = forget(xp, p, belief, passed * ~((counted > 0).any(-2)))
    drift = (p.drift * belief.mean) ** 2
    before = FlowBelief(belief.mean, belief.cov + drift[..., None] * xp.eye(drift.shape[-1]))

    # To compare explanations, errors are those of a load halfway between what was expected and what was read.
    halfway = 0.5 * (_apply(counted, before.mean) + xp.maximum(seen.rate - seen.own, 0.0))
    evidence = _evidence(xp, p, event, counted, before, halfway**2, seen, runs)
    one = _explanations(xp, p, before, evidence)
    change = 1 + one.log_prior_fit[..., 1:].argmax(-1)
    two = _explanations(xp, p, _chosen(xp, one, change), evidence)
    every = _together(xp, one, two, change)

    # To update them, errors and the bottlenecks of runs are those of the levels that each explanation supposes.
    several = Readings(*(x[..., None, :] for x in seen))
    beside = None
    if runs is not None:
        of_runs = (x if x is None else xp.expand_dims(x, seen.rate.ndim - 1) for x in runs)
        beside = RunTimes(*of_runs)
    counted, event = counted[..., None, :, :], event[..., None, :, :]
    squared = _apply(counted, every.mean) ** 2 + ((counted @ every.cov) * counted).sum(-1)
    levels = FlowBelief(every.mean, every.cov)
    evidence = _evidence(xp, p, event, counted, levels, squared, several, beside)
    fit, means, covs = _kalman(xp, every.mean, every.cov, evidence)
    weight = every.log_prior + fit
    weight = xp.exp(weight - weight.max(-1, keepdims=True))
    mean, cov = _mixture(xp, weight / weight.sum(-1, keepdims=True), means, covs)
    return FlowBelief(_not_below(xp, p.lowest, mean, cov), cov)


# The fields of `Window` in flow_filter.c, in this order, and the shape of each array.
_SIZES = ("groups", "events", "flows", "runs", "hops", "explanations", "clipped_flows")
_PARAMETERS = ("burst", "own_error", "floor", "freedom", "run_error", "max_rate", "min_slow", "min_evidence")
_OF_FLOWS = ("changes", "on_share", "on_mean", "on_std", "off_std", "drift", "lowest")
_OF_EVENTS, _OF_RUNS, _OF_HOPS = ("rate", "own", "unseen", "read"), ("slow", "error", "windows"), ("own", "row", "uses")
_ARRAYS = len(_OF_FLOWS) + 3 + len(_OF_EVENTS) + 8 + 3


class _Window(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, ctypes.c_double) for name in _PARAMETERS),
        ("arrays", ctypes.c_void_p * _ARRAYS),
    )


def _native_update(
    library: ctypes.PyDLL,
    event: Array,
    p: FlowParameters,
    belief: FlowBelief,
    seen: Readings,
    runs: RunTimes | None,
    windows: Array,
    counts: Array,
) -> FlowBelief:
    *places, events, flows = np.broadcast_shapes(event.shape, (*belief.mean.shape[:-1], 1, 1))
    hops = 0 if runs is None else runs.row.shape[-1]
    devices = 0 if runs is None else np.shape(runs.slow)[-1]
    kept: list[np.ndarray] = []  # what the pointers point at

    def at(value: Array, *shape: int) -> int:
        value = np.asarray(value, float)
        kept.append(np.ascontiguousarray(value if value.shape == shape else np.broadcast_to(value, shape)))
        return kept[-1].ctypes.data

    pointers: list[int | None] = [at(getattr(p, name), flows) for name in _OF_FLOWS]
    pointers += [at(event, *places, events, flows), at(counts, *places, events, flows), at(windows, *places, flows)]
    pointers += [at(getattr(seen, name), *places, events) for name in _OF_EVENTS]
    if runs is None:
        pointers += [None] * 8
    else:
        pointers += [at(getattr(runs, name), *places, devices) for name in _OF_RUNS]
        pointers += [None if runs.times is None else at(runs.freedom, *places, devices)]
        pointers += [at(getattr(runs, name), *places, devices, hops) for name in _OF_HOPS]
        pointers += [None if runs.times is None else at(runs.times, *places, devices, flows)]
    mean = np.array(np.broadcast_to(belief.mean, (*places, flows)), float, order="C")
    cov = np.array(np.broadcast_to(belief.cov, (*places, flows, flows)), float, order="C")
    pointers += [mean.ctypes.data, cov.ctypes.data]
    sizes = math.prod(places), events, flows, devices, hops, EXPLANATIONS, CLIPPED_FLOWS
    room = np.empty(library.flow_room(*map(ctypes.c_int64, (events, flows, devices, EXPLANATIONS))))
    numbers = p.burst, p.own_error, p.floor, p.freedom, p.run_error, MAX_RATE, MIN_SLOW, MIN_EVIDENCE
    arrays = (ctypes.c_void_p * _ARRAYS)(*pointers, room.ctypes.data)
    library.flow_update(ctypes.byref(_Window(*sizes, *numbers, arrays)))
    return FlowBelief(mean, cov)


class _Evidence(NamedTuple):
    """Readings of sums of flows."""

    counted: Array  # f[..., E, F]
    others: Array  # f[..., E]: what was read, less our own part
    noise: Array  # f[..., E]: variance, of readings far off a larger one
    log_tails: Array  # f[..., E]: log probability of errors that large


class _Explanations(NamedTuple):
    """What may have happened, and the belief before the window if it did."""

    log_prior: Array  # f[..., K]
    log_prior_fit: Array  # f[..., K]: with the likelihood of the readings, relative to no change
    mean: Array  # f[..., K, F]
    cov: Array  # f[..., K, F, F]


def _apply(matrix: Array, vector: Array) -> Array:
    return (matrix @ vector[..., None])[..., 0]


def _evidence(
    xp: ModuleType,
    p: FlowParameters,
    event: Array,
    counted: Array,
    levels: FlowBelief,
    squared: Array,
    seen: Readings,
    runs: RunTimes | None,
) -> _Evidence:
    """The window's readings, with the errors of these levels. `squared`: mean square of the load by others."""
    noise = p.burst**2 * (squared + seen.own**2) * seen.unseen + (p.own_error * seen.own) ** 2 + p.floor**2
    others = xp.where(seen.read, seen.rate - seen.own, 0.0)
    noise, tails = _with_tails(xp, p.freedom, noise, xp.where(seen.read, others - _apply(counted, levels.mean), 0.0))
    noise = xp.where(seen.read, noise, 1.0)
    counted, others = (xp.broadcast_to(x, (*noise.shape, *x.shape[noise.ndim :])) for x in (counted, others))
    if runs is None:
        return _Evidence(counted, others, noise, tails)
    more = _run_evidence(xp, p, event, levels, runs)
    return _Evidence(
        xp.concatenate([counted, more.counted], -2),
        xp.concatenate([others, more.others], -1),
        xp.concatenate([noise, more.noise], -1),
        xp.concatenate([tails, more.log_tails], -1),
    )


def _with_tails(xp: ModuleType, freedom: Array, noise: Array, off: Array, doubt: Array = 0.0) -> tuple[Array, Array]:
    """The variance of an error of this size, and its log probability, to 0 for small errors.

    Student's t is a mixture of Gaussians of different variances: this is the most probable one, to an error far off.
    `doubt`: variance of what was expected, which may be wrong, too.
    """
    factor = xp.maximum((freedom + off**2 / (noise + doubt)) / (freedom + 1), 1.0)
    return noise * factor, 0.5 * freedom * (1 - 1 / factor) - (0.5 * freedom + 1) * xp.log(factor)


def _run_evidence(xp: ModuleType, p: FlowParameters, event: Array, levels: FlowBelief, runs: RunTimes) -> _Evidence:
    """Run times as readings of the row that is their bottleneck at these levels.

    A run at full speed only says that the load was not above 1: it is a reading if more was expected.
    """
    loads = _apply(event, levels.mean)
    shape = *loads.shape[:-1], *runs.row.shape[-2:]
    row, own, uses = (xp.broadcast_to(x, shape) for x in (runs.row, runs.own, runs.uses))
    uses = uses & (xp.abs(own) < MAX_RATE)  # False for NaN
    expected = xp.take_along_axis(loads[..., None, :], row, axis=-1) + own
    expected = xp.where(uses, expected, -xp.inf)
    hop = expected.argmax(-1)[..., None]
    busiest, own, row = (xp.take_along_axis(x, hop, axis=-1)[..., 0] for x in (expected, own, row))
    counted = xp.take_along_axis(xp.broadcast_to(event, (*shape[:-2], *event.shape[-2:])), row[..., None], axis=-2)
    ended = uses.any(-1) & (runs.slow > 0) & (runs.slow < MAX_RATE)
    error = xp.sqrt(p.run_error**2 + runs.error**2)
    slowed = runs.slow > 1 + 2 * error
    says = ended & (slowed | (busiest > 1))
    noise = (error * runs.slow) ** 2 * xp.maximum(runs.windows, 1.0) + (p.own_error * own) ** 2 + p.floor**2
    counted, doubt, freedom = xp.where(says[..., None], counted, 0.0), 0.0, p.freedom
    if runs.times is None:
        others = xp.where(says, xp.where(slowed, runs.slow, 1.0) - own, 0.0)
    else:  # of rows that are not full, our own load does not matter; of times, every run tells
        others = xp.where(ended, runs.slow - xp.where(says, own, 1.0), 0.0)
        counted = counted + xp.where(ended, xp.maximum(runs.slow, MIN_SLOW), 0.0)[..., None] * runs.times
        doubt, freedom = ((counted @ levels.cov) * counted).sum(-1), runs.freedom
    off = xp.where(ended, others - _apply(counted, levels.mean), 0.0)
    return _Evidence(counted, others, *_with_tails(xp, freedom, xp.where(ended, noise, 1.0), off, doubt))


def _explanations(xp: ModuleType, p: FlowParameters, before: FlowBelief, evidence: _Evidence) -> _Explanations:
    """That nothing changed, and the most probable explanations by one flow that has been drawn anew.

    If one flow is drawn anew, the covariance of the readings changes by a matrix of rank two. So the likelihoods of all
    explanations follow from one posterior (the matrix inversion lemma).
    """
    counted, others, noise, _ = evidence
    mean, cov = before
    flows = mean.shape[-1]
    weighted = xp.swapaxes(counted / noise[..., None], -1, -2)
    information = weighted @ counted  # [..., F, F]
    given = information @ covariance_after(xp, counted, cov, noise)[0]
    # With S the covariance of the readings: counted.T @ inv(S) @ counted, and the same times cov.
    apart = information - given @ information
    spread = apart @ cov
    pull = _apply(weighted, others - _apply(counted, mean))
    cv = pull - _apply(given, pull)
    sv = _apply(cov, cv)
    cc, cs, variance = (xp.diagonal(x, axis1=-2, axis2=-1) for x in (apart, spread, cov))
    ss = (cov * spread).sum(-2)

    def log_ratio(level: Array, deviation: Array) -> Array:
        """Log likelihood of the readings if a flow was drawn from N(level, deviation²), less that of no change."""
        move = level - mean
        b, d = cs - 1, ss - variance - deviation**2
        determinant = xp.maximum(b * b - cc * d, 1e-9)
        u, v = cv - cc * move, sv - cs * move
        gained = (2 * b * u * v - d * u * u - cc * v * v) / determinant
        return 0.5 * (gained + 2 * move * cv - move * move * cc - xp.log(determinant))

    off, on = log_ratio(0.0, p.off_std), log_ratio(p.on_mean, p.on_std)
    odds = p.changes / (1 - p.changes)
    prior = xp.concatenate([xp.log(odds * (1 - p.on_share)) + 0 * off, xp.log(odds * p.on_share) + 0 * on], -1)
    ratio = xp.concatenate([off, on], -1)
    score = xp.where(ratio > MIN_EVIDENCE, prior + ratio, IMPOSSIBLE)
    score, best = _largest(xp, score, EXPLANATIONS - 1)
    prior = xp.where(score > IMPOSSIBLE, xp.take_along_axis(prior, best, -1), IMPOSSIBLE)
    anew = xp.arange(flows) == (best % flows)[..., None]  # [..., K - 1, F]
    is_on = (best >= flows)[..., None]
    means = xp.where(anew, xp.where(is_on, p.on_mean, 0.0), mean[..., None, :])
    kept = ~anew[..., None] & ~anew[..., None, :]
    drawn = xp.where(anew, xp.where(is_on, p.on_std, p.off_std) ** 2, 0.0)
    covs = xp.where(kept, cov[..., None, :, :], 0.0) + drawn[..., None] * xp.eye(flows)
    same = xp.zeros_like(score[..., :1])
    return _Explanations(
        xp.concatenate([same, prior], -1),
        xp.concatenate([same, score], -1),
        xp.concatenate([mean[..., None, :], means], -2),
        xp.concatenate([cov[..., None, :, :], covs], -3),
    )


def _chosen(xp: ModuleType, among: _Explanations, index: Array) -> FlowBelief:
    """The belief before the window under one explanation."""
    index = index[..., None, None]
    return FlowBelief(
        xp.take_along_axis(among.mean, index, -2)[..., 0, :],
        xp.take_along_axis(among.cov, index[..., None], -3)[..., 0, :, :],
    )


def _together(xp: ModuleType, one: _Explanations, two: _Explanations, change: Array) -> _Explanations:
    """Explanations by one change, and those by a second one beside `change`."""
    first = xp.take_along_axis(one.log_prior, change[..., None], -1)
    return _Explanations(
        xp.concatenate([one.log_prior, two.log_prior[..., 1:] + first], -1),
        xp.concatenate([one.log_prior_fit, two.log_prior_fit[..., 1:]], -1),
        xp.concatenate([one.mean, two.mean[..., 1:, :]], -2),
        xp.concatenate([one.cov, two.cov[..., 1:, :, :]], -3),
    )


def _largest(xp: ModuleType, score: Array, count: int) -> tuple[Array, Array]:
    """The largest scores and their indices."""
    if xp is np:
        best = np.argsort(-score, axis=-1, kind="stable")[..., :count]
        return np.take_along_axis(score, best, axis=-1), best
    import jax

    return jax.lax.top_k(score, min(count, score.shape[-1]))


def _kalman(xp: ModuleType, mean: Array, cov: Array, evidence: _Evidence) -> tuple[Array, Array, Array]:
    """Log likelihood of the readings, and mean and covariance after them, under each explanation."""
    counted, others, noise, tails = evidence
    after, log_volume = covariance_after(xp, counted, cov, noise)
    off = others - _apply(counted, mean)
    pull = _apply(xp.swapaxes(counted, -1, -2), off / noise)
    moved = _apply(after, pull)
    fit = tails.sum(-1) - 0.5 * (log_volume + (off**2 / noise).sum(-1) - (pull * moved).sum(-1))
    return fit, mean + moved, after


def covariance_after(xp: ModuleType, counted: Array, cov: Array, noise: Array) -> tuple[Array, Array]:
    """Covariance of the levels after readings with these variances, and the log determinant of the readings'."""
    if xp is np:
        spread = counted @ cov
        total = spread @ np.swapaxes(counted, -1, -2) + noise[..., None] * np.eye(noise.shape[-1])
        after = cov - np.swapaxes(spread, -1, -2) @ np.linalg.solve(total, spread)
        after = 0.5 * (after + np.swapaxes(after, -1, -2))  # else what differs by rounding grows from window to window
        return after, np.linalg.slogdet(total)[1]
    import jax

    # One reading after the other: compiled programs that call LAPACK cannot be kept on disk.
    def after_one(state: tuple[Array, Array], reading: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        cov, log_volume = state
        loads, variance = reading
        spread = _apply(cov, loads)
        total = (loads * spread).sum(-1) + variance
        cov = cov - spread[..., :, None] * (spread / total[..., None])[..., None, :]
        return (cov, log_volume + xp.log(total)), None

    readings = xp.moveaxis(counted, -2, 0), xp.moveaxis(noise, -1, 0)
    return jax.lax.scan(after_one, (cov, xp.zeros_like(cov[..., 0, 0])), readings)[0]


def _not_below(xp: ModuleType, lowest: Array, mean: Array, cov: Array) -> Array:
    """The mean, given that no level is below the lowest: those furthest below are raised, and others make up for it."""
    variance = xp.maximum(xp.diagonal(cov, axis1=-2, axis2=-1), 1e-12)
    for _ in range(CLIPPED_FLOWS):
        above = mean - lowest
        worst = (above / xp.sqrt(variance)).argmin(-1)[..., None]
        below = xp.minimum(xp.take_along_axis(above, worst, axis=-1), 0.0)
        along = xp.take_along_axis(cov, worst[..., None], axis=-1)[..., 0]
        mean = mean - along * (below / xp.take_along_axis(variance, worst, axis=-1))
    return xp.maximum(mean, lowest)


def _mixture(xp: ModuleType, weight: Array, means: Array, covs: Array) -> tuple[Array, Array]:
    """Mean and covariance of a mixture."""
    mean = (weight[..., None] * means).sum(-2)
    off = means - mean[..., None, :]
    return mean, (weight[..., None, None] * (covs + off[..., :, None] * off[..., None, :])).sum(-3)
