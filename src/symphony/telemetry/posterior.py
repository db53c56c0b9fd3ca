"""The filter that estimates counts of a window from multiplexed readings, and a smoother over past windows.

The model, for one place (a CPU, a socket, a row of a topology) and window:

* The true rates of all events are `loading @ x`: identities make them combinations of a few *free* rates `x`.
* `x` is a random walk over windows. The scale of its steps is learned for each rate, and it sometimes jumps.
* A column is counted in some slices of the window only. Its rate has the error of a sample mean of n slices,
  `inflation * s / sqrt(n) * t(n - 1)`. `s`, the spread over slices, is learned from columns that count the same event
  at different times. A column that had a counter all the time is exact.
* An *anchor* is an event that every group counts. Its rate in a group's slices, relative to its rate in the window,
  shows how typical these slices were; the regression of other events on the anchor is learned, too.

The code is written once for NumPy (live) and JAX (batches inside the simulator): `xp` is the module. Leading axes are
places. Nothing here depends on names; `bayes_net.py` makes the arrays.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

RULE_OF_THREE = (3 / 1.96) ** 2  # rule of three: a count of 0 allows for up to 3, with 95% confidence
_MIN_LEVEL = 0.05  # of the current readings: the smallest level that a rate is relative to
_MAX_UNROLLED_SIZE = 4  # sizes up to which sums are unrolled, so that an accelerator fuses them with their context
Array = Any  # numpy.ndarray or jax.Array, as `xp` makes them


class Wiring(NamedTuple):
    """Which columns count what."""

    loading: Array  # f[E, N]: counted events, as combinations of the free rates
    pool: Array  # f[E, C]: 1 where a column counts an event
    anchor: Array  # f[A, E]: 1 for the event that is an anchor
    beside: Array  # f[A, C, C]: 1 at [a, c, d] where column d is anchor a in the group of column c
    soft: Array  # f[I, N]: combinations of free rates that are about 0 …
    tolerance: Array  # f[I]: … relative to the size of their terms


class Parameters(NamedTuple):
    """The learnable parameters: a pytree of numbers, differentiable."""

    inflation: Array = 1.0  # factor of the spread
    spread: Array = 0.3  # initial relative deviation between slices
    innovation: Array = 2.0  # initial relative change from window to window
    read_error: Array = 0.003  # relative error of an uninterrupted count
    follows: Array = 1.0  # initial regression coefficient of an event on the first anchor
    stiffness: Array = 1.0  # weight of that prior, in windows
    memory: Array = 0.05  # weight of the newest window in learned spreads and steps
    faith: Array = 4.0  # degrees of freedom of the learned spread, relative to those of one window
    freedom: Array = 2.0  # degrees of freedom of the error, in addition to those of the sample
    turn: Array = 0.3  # innovation, in variances, at which a step is half a jump
    stride: Array = 3.0  # variance of a jump, relative to its apparent size squared
    leap: Array = 1.0  # error of a reading, in variances, at which it half belongs to another rate


class Belief(NamedTuple):
    """Mean and covariance of the free rates, and the learned quantities."""

    mean: Array  # f[..., N]
    cov: Array  # f[..., N, N]
    step: Array  # f[..., N]: variance that was added since the previous window
    level: Array  # f[..., N]: usual size of the rates, to which the following are relative
    spread: Array  # f[..., E]: relative deviation between slices
    innovation: Array  # f[..., N]: relative change from window to window
    follow_xx: Array  # f[..., E, A, A]: moments of anchors' deviations …
    follow_xy: Array  # f[..., E, A]: … and with the event's own
    read: Array  # f[..., N]: 1 if a rate has ever been read, else 0
    windows: Array  # f[...]: number of windows so far


class Window(NamedTuple):
    """The readings of one window."""

    rate: Array  # f[..., C]: counts per second of the time with a counter
    slices: Array  # f[..., C]: slices with a counter; 0 if unknown
    total: Array  # f[..., C]: slices for which the column was enabled
    one: Array  # f[...]: the rate of one count in the whole window


def start(xp: ModuleType, wiring: Wiring, parameters: Parameters, places: tuple[int, ...] = ()) -> Belief:
    """The belief before the first window."""
    events, free = wiring.loading.shape
    anchors = wiring.anchor.shape[0]

    def full(value: Array, *shape: int) -> Array:
        return xp.zeros((*places, *shape)) + value

    return Belief(
        mean=full(0.0, free),
        cov=full(0.0, free, free),
        step=full(0.0, free),
        level=full(0.0, free),
        spread=full(parameters.spread, events),
        innovation=full(parameters.innovation, free),
        follow_xx=full(0.0, events, anchors, anchors),
        follow_xy=full(0.0, events, anchors),
        read=full(0.0, free),
        windows=full(0.0),
    )


def update(xp: ModuleType, wiring: Wiring, parameters: Parameters, belief: Belief, window: Window) -> Belief:
    """The belief after one more window."""
    p, loading, one = parameters, wiring.loading, window.one[..., None]
    seen = window.slices > 0
    ran = xp.where(seen, window.slices, 0.0)
    rate = xp.where(seen, window.rate, 0.0)
    columns = _transpose(xp, wiring.pool)  # [C, E]
    parts = _apply(wiring.pool, xp.where(seen, 1.0, 0.0))  # readings of each event
    known = parts > 0
    several = parts > 1.5

    # The pooled rate of each event's columns, corrected by the regression on the anchors.
    first = (belief.windows == 0)[..., None]
    deviation = _deviation(xp, wiring, rate, ran)
    follows = _follows(xp, p, belief)
    factor = xp.clip(1 + _sum(_product(xp, columns, follows) * deviation), 0.1, 10.0)
    adjusted = rate / factor
    weight = ran * factor**2  # slices with little activity carry little information
    n = xp.maximum(_apply(wiring.pool, weight), 1e-9)
    y = _apply(wiring.pool, weight * adjusted) / n
    n = xp.minimum(n, xp.maximum(_apply(wiring.pool, ran), 1e-9))

    # Sizes: from here to the end everything is relative to the usual size of the rates.
    guess = _least_squares(xp, loading, y, known, xp.maximum(belief.level, one), one)
    mean = xp.where(first, guess, belief.mean)
    level = xp.where(belief.read > 0, belief.level, xp.abs(guess))
    level = xp.maximum(xp.maximum(level, _MIN_LEVEL * xp.abs(guess)), one)
    size = xp.maximum(_apply(xp.abs(loading), level), one)
    relative = loading * level[..., None, :] / size[..., :, None]
    y, one, mean = y / size, one / size, mean / level
    y, one, mean, n, adjusted, weight, size, level, relative, guess = _settled(
        xp, y, one, mean, n, adjusted, weight, size, level, relative, guess
    )

    # Noise: the spread over slices, from this window and earlier ones.
    own = _apply(wiring.pool, weight * (adjusted / _apply(columns, size) - _apply(columns, y)) ** 2)
    own = xp.minimum(own / xp.maximum(parts - 1, 1.0), 25.0 * xp.maximum(y, 1.0) ** 2)
    total = _apply(wiring.pool, xp.where(seen, window.total, 0.0)) / xp.maximum(parts, 1.0)
    unseen = xp.maximum(1 / n - 1 / xp.maximum(total, 1e-9), 0.0)
    missing = unseen * total  # unobserved slices for each observed one

    def noise(near: Array) -> Array:
        """Variance of the readings for rates `near`."""
        spread = (belief.spread * near) ** 2
        both = (p.faith * spread + (parts - 1) * own) / (p.faith + parts - 1)
        sampling = p.inflation**2 * xp.where(several, both, spread) * unseen
        # Without a second reading, slices are assumed to vary at least as Poisson counts do.
        few = xp.where(several, 0.0, one * missing * xp.maximum(near, RULE_OF_THREE * one * missing))
        return xp.maximum(sampling, few) + (p.read_error * near) ** 2 + one * xp.maximum(near, one)

    def given(precision: Array, pulled: Array, trust: Array) -> tuple[Array, ...]:
        """Posterior covariance and mean, for a prior and a precision (`trust`) of the readings."""
        trust = xp.where(known, trust, 0.0)
        transposed = _transpose(xp, relative)
        cov = inverse(xp, precision + _product(xp, transposed, trust[..., None] * relative))
        return _settled(xp, cov, _apply(cov, pulled + _apply(transposed, trust * y)))

    # A single reading that is far off while all others are as expected may be an outlier: it gets half of the weight.
    eye = xp.eye(loading.shape[1])
    prior = belief.cov / (level[..., :, None] * level[..., None, :])
    usual = prior + belief.innovation[..., None] ** 2 * eye
    ordinary = noise(xp.ones_like(y))
    off = xp.where(known, (y - _apply(relative, mean)) ** 2, 0.0)
    surprise = off / (_quadratic(xp, relative, usual) + ordinary)
    calm = _middle(xp, surprise) < 4
    glitch = xp.where(~first & calm & ~several & (unseen > 0) & (surprise > 100), off, 0.0)

    # Noise depends on the usual rate, not on this reading: otherwise low readings would have a smaller variance than
    # high ones, and totals would be too low. A reading far beyond this noise is of another rate, with its own noise.
    beyond = off / (_quadratic(xp, relative, prior) + ordinary)
    leap = xp.where(known & ~first, beyond**2 / (beyond**2 + p.leap**2), 0.0)

    # Prediction: a step, which is larger if the readings cannot be explained otherwise.
    precision = inverse(xp, usual)
    cov, x = given(precision, _apply(precision, mean), 1 / (ordinary + glitch))
    surprise = (x - mean) ** 2 / xp.maximum(_diagonal(xp, usual) - _diagonal(xp, cov), 1e-12)
    jumps = surprise**2 / (surprise**2 + p.turn**2)
    step = xp.where(first, 100.0, belief.innovation**2 + p.stride * jumps * (guess / level - mean) ** 2)
    prior, step = _settled(xp, prior + step[..., None] * eye, step)

    # Update with the window's readings, iteratively reweighted for a Student-t error.
    precision = inverse(xp, prior)
    pulled = _apply(precision, mean)
    if wiring.soft.shape[0]:
        terms = wiring.soft * level[..., None, :]
        terms = terms / xp.maximum(xp.abs(terms).sum(-1, keepdims=True), 1e-30)
        precision = precision + _product(xp, _transpose(xp, terms), terms / wiring.tolerance[:, None] ** 2)
    freedom = xp.maximum(n - 1, 0.0) + p.freedom
    trust = 1 / (ordinary + glitch)
    for _ in range(3):
        cov, x = given(precision, pulled, trust)
        rest = (y - _apply(relative, x)) ** 2 + _quadratic(xp, relative, cov)
        near = xp.maximum(1 + leap * (xp.abs(_apply(relative, x)) - 1), one)
        variance = noise(near) + glitch
        trust = (freedom + 1) / (freedom + rest / variance) / variance

    # Learning: sizes, spreads, steps, and the regression on the anchors.
    pace = xp.maximum(p.memory, 1 / (belief.windows[..., None] + 3))
    leaps = -_least(xp, -xp.where(loading != 0, leap[..., None], 0.0))
    usually = 1 + xp.maximum(pace, leaps) * (xp.abs(x) - 1)
    fresh = xp.minimum(own / near**2, 25.0)
    squared = belief.spread**2 + xp.where(several & known, pace, 0.0) * (fresh - belief.spread**2)
    moved = _diagonal(xp, cov) + (x - mean) ** 2
    part = step / _diagonal(xp, prior)
    moved = xp.clip(part**2 * moved + step * (1 - part), 0.01 * belief.innovation**2, 9 * belief.innovation**2)
    innovation = xp.sqrt(belief.innovation**2 + xp.where(first, 0.0, p.memory) * (moved - belief.innovation**2))
    against = xp.where(several, y, _apply(relative, mean)) * size
    doubt = belief.spread**2 * unseen + xp.where(several, 0.0, _quadratic(xp, relative, prior))
    follow_xx, follow_xy = _follow(xp, wiring, p, belief, rate, ran, deviation, against, doubt, window)

    return Belief(
        mean=xp.maximum(x, 0.0) * level,
        cov=cov * level[..., :, None] * level[..., None, :],
        step=step * level**2,
        level=xp.maximum(usually, 1e-3) * level,
        spread=xp.sqrt(xp.maximum(squared, 1e-6)),
        innovation=xp.clip(innovation, 0.02, 3.0),
        follow_xx=follow_xx,
        follow_xy=follow_xy,
        read=xp.maximum(belief.read, -_least(xp, -1.0 * ((loading != 0) & known[..., None]))),
        windows=belief.windows + 1,
    )


def predict(xp: ModuleType, belief: Belief, windows: Array) -> Belief:
    """The belief some windows later: the same mean, a larger variance."""
    step = windows[..., None] * (belief.innovation * belief.level) ** 2
    return belief._replace(cov=belief.cov + step[..., None] * xp.eye(step.shape[-1]), step=step)


def smooth(xp: ModuleType, beliefs: list[Belief]) -> list[Belief]:
    """Beliefs of consecutive windows, each given all of them (Rauch-Tung-Striebel smoother)."""
    later = beliefs[-1]
    smoothed = [later]
    for belief, after in zip(beliefs[-2::-1], beliefs[:0:-1], strict=True):
        size = xp.maximum(belief.level, after.level)
        size = xp.where(size > 0, size, 1.0)
        units = size[..., :, None] * size[..., None, :]
        cov, eye = belief.cov / units, xp.eye(size.shape[-1])
        ahead_cov = cov + (after.step / size**2 + 1e-12)[..., None] * eye
        gain = _product(xp, cov, inverse(xp, ahead_cov))
        mean = belief.mean + size * _apply(gain, (later.mean - belief.mean) / size)
        cov = cov + _product(xp, _product(xp, gain, later.cov / units - ahead_cov), _transpose(xp, gain))
        later = belief._replace(mean=xp.maximum(mean, 0.0), cov=cov * units)
        smoothed.append(later)
    return smoothed[::-1]


def _settled(xp: ModuleType, *values: Array) -> tuple[Array, ...]:
    """Values that are computed once: a barrier keeps a fusing compiler from recomputing them at every use."""
    if xp is np:
        return values
    import jax

    return jax.lax.optimization_barrier(values)


def inverse(xp: ModuleType, matrix: Array) -> Array:
    """Inverse of symmetric positive definite matrices; in closed form if tiny, because library calls cost more."""
    if matrix.shape[-1] == 1:
        return 1 / matrix
    if matrix.shape[-1] == 2:
        a, b, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
        rows = xp.stack([xp.stack([d, -b], -1), xp.stack([-b, a], -1)], -2)
        return rows / (a * d - b * b)[..., None, None]
    # Scaled to unit diagonal and regularised: extreme readings must not abort a run.
    size = xp.sqrt(xp.maximum(_diagonal(xp, matrix), 1e-30))
    units = size[..., :, None] * size[..., None, :]
    even = xp.clip(xp.nan_to_num(matrix / units), -1.0, 1.0) + 1e-12 * xp.eye(matrix.shape[-1])
    found = xp.linalg.inv(even) / units
    return 0.5 * (found + _transpose(xp, found))


def _deviation(xp: ModuleType, wiring: Wiring, rate: Array, ran: Array) -> Array:
    """Relative excess of each anchor's rate in a column's slices over its rate in the window [..., C, A]."""
    counted = _product(xp, wiring.anchor, wiring.pool)  # [A, C]
    whole = _apply(counted, rate * ran) / xp.maximum(_apply(counted, ran), 1e-9)
    near = _product(xp, wiring.beside, rate[..., None, :, None])[..., 0]  # [..., A, C]
    there = _product(xp, wiring.beside, ran[..., None, :, None])[..., 0] > 0
    positive = xp.where(whole > 0, whole, xp.inf)[..., None]
    relative = xp.where(there & (whole[..., None] > 0), xp.minimum(near, 1e3 * positive) / positive - 1, 0.0)
    return xp.swapaxes(relative, -1, -2)


def _follows(xp: ModuleType, p: Parameters, belief: Belief) -> Array:
    """Regression coefficients of each event on each anchor [..., E, A]."""
    anchors = belief.follow_xy.shape[-1]
    if not anchors:
        return belief.follow_xy
    prior = p.stiffness * p.follows * (xp.arange(anchors) == 0)
    moments = belief.follow_xx + p.stiffness * xp.eye(anchors)
    return _apply(inverse(xp, moments), belief.follow_xy + prior)


def _follow(
    xp: ModuleType,
    wiring: Wiring,
    p: Parameters,
    belief: Belief,
    rate: Array,
    ran: Array,
    deviation: Array,
    against: Array,
    doubt: Array,
    window: Window,
) -> tuple[Array, Array]:
    """The moments of the regression of events on anchors, after one more window."""
    if not wiring.anchor.shape[0]:
        return belief.follow_xx, belief.follow_xy
    columns = _transpose(xp, wiring.pool)
    expected = _apply(columns, xp.maximum(against, window.one[..., None]))
    above = rate / expected - 1
    doubt = _apply(columns, doubt) + 1e-3
    weight = xp.where((ran > 0) & (xp.abs(above) < 3), ran / window.total / doubt, 0.0)
    keep = 1 - 0.5 * p.memory
    outer = deviation[..., :, None] * deviation[..., None, :] * weight[..., None, None]
    flat = outer.reshape((*outer.shape[:-2], -1))
    xx = _product(xp, wiring.pool, flat).reshape((*flat.shape[:-2], wiring.pool.shape[0], *outer.shape[-2:]))
    xy = _product(xp, wiring.pool, deviation * (weight * above)[..., None])
    return keep * belief.follow_xx + xx, keep * belief.follow_xy + xy


def _least_squares(xp: ModuleType, loading: Array, y: Array, known: Array, level: Array, one: Array) -> Array:
    """Free rates that explain the readings, weighted by the readings' relative errors."""
    y = xp.maximum(y, one)
    most = xp.where((loading != 0) & known[..., None], y[..., None] / xp.maximum(xp.abs(loading), 1e-12), xp.inf)
    unit = _least(xp, most)  # a part is at most as large as the smallest total that contains it
    unit = xp.where(xp.isfinite(unit), unit, level)
    terms = loading * unit[..., None, :] / y[..., None] * known[..., None]
    normal = _product(xp, _transpose(xp, terms), terms) + 1e-4 * xp.eye(loading.shape[1])
    return unit * _apply(inverse(xp, normal), _apply(_transpose(xp, terms), xp.where(known, 1.0, 0.0)))


def _sum(terms: Array) -> Array:
    """Sum over the last axis."""
    if 0 < terms.shape[-1] <= _MAX_UNROLLED_SIZE:
        total = terms[..., 0]
        for number in range(1, terms.shape[-1]):
            total = total + terms[..., number]
        return total
    return terms.sum(-1)


def _apply(matrix: Array, vector: Array) -> Array:
    if max(matrix.shape[-2:]) <= _MAX_UNROLLED_SIZE:
        return _sum(matrix * vector[..., None, :])
    return (matrix @ vector[..., None])[..., 0]


def _product(xp: ModuleType, a: Array, b: Array) -> Array:
    if max(*a.shape[-2:], *b.shape[-2:]) <= _MAX_UNROLLED_SIZE:
        return _sum(a[..., :, None, :] * _transpose(xp, b)[..., None, :, :])
    return xp.matmul(a, b)


def _transpose(xp: ModuleType, matrix: Array) -> Array:
    return xp.swapaxes(matrix, -1, -2)


def _least(xp: ModuleType, table: Array) -> Array:
    """Minimum over the last axis but one."""
    if table.shape[-2] <= _MAX_UNROLLED_SIZE:
        least = table[..., 0, :]
        for number in range(1, table.shape[-2]):
            least = xp.minimum(least, table[..., number, :])
        return least
    return xp.min(table, -2)


def _middle(xp: ModuleType, values: Array) -> Array:
    """Median over the last axis, which is kept."""
    if values.shape[-1] <= 2:
        return (_sum(values) / values.shape[-1])[..., None]
    return xp.median(values, axis=-1)[..., None]


def _diagonal(xp: ModuleType, matrix: Array) -> Array:
    if matrix.shape[-1] <= _MAX_UNROLLED_SIZE:
        return xp.stack([matrix[..., number, number] for number in range(matrix.shape[-1])], -1)
    return xp.diagonal(matrix, axis1=-2, axis2=-1)


def _quadratic(xp: ModuleType, rows: Array, cov: Array) -> Array:
    """Variance of each row's linear combination."""
    return _sum(_product(xp, rows, cov) * rows)
