"""The filter over several flows, against exact inference: by enumeration where levels are discrete, or by integrals."""

from __future__ import annotations

from itertools import product

import numpy as np
from scipy import stats

from symphony.estimation import flow_filter
from symphony.estimation.flow_filter import FlowBelief, FlowParameters, Readings, RunTimes

P = FlowParameters(drift=0.0)
UNSEEN = 1 / 4 - 1 / 24
EVENT = np.array([[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.2, 0.2, 1.0]])  # three rows, crossed by three flows
GRID = np.linspace(0.0, 2.0, 9)  # levels of a flow
STATES = np.array(list(product(GRID, repeat=3)))
WINDOWS, RUNS, LATE = 70, 40, 10


def deviation(loads: np.ndarray) -> np.ndarray:
    return np.sqrt(P.burst**2 * loads**2 * UNSEEN + P.floor**2)


def likely(rates: np.ndarray, loads: np.ndarray) -> np.ndarray:
    """Of readings, by Student's t of their variance."""
    scale = deviation(loads) * np.sqrt((P.freedom - 2) / P.freedom)
    return stats.t.pdf(rates, P.freedom, loads, scale)


def discrete_prior() -> np.ndarray:
    prior = P.on_share * stats.norm.pdf(GRID, P.on_mean, P.on_std)
    prior[1:] *= P.on_share / prior[1:].sum()
    prior[0] = 1 - P.on_share
    return prior


def exact(rates: np.ndarray, read: np.ndarray) -> np.ndarray:
    """Probabilities of all states after each window [windows, runs, states]: forward filtering."""
    prior = discrete_prior()
    weight = np.tile(np.einsum("i,j,k->ijk", prior, prior, prior), (rates.shape[1], 1, 1, 1))
    loads, found = STATES @ EVENT.T, []
    for rate, seen in zip(rates, read, strict=True):
        for axis in (1, 2, 3):
            along = prior.reshape([-1 if one == axis else 1 for one in range(4)])
            anew = weight.sum(axis, keepdims=True) * along
            weight = (1 - P.changes) * weight + P.changes * anew
        told = np.where(seen[:, None, :], likely(rate[:, None, :], loads[None]), 1.0).prod(-1)
        weight = weight * told.reshape(weight.shape)
        weight /= weight.sum((1, 2, 3), keepdims=True)
        found.append(weight.reshape(len(weight), -1))
    return np.array(found)


def test_row_loads_are_close_to_those_by_enumeration_and_bands_hold() -> None:
    """Two of three rows are read in a window, in turn; the truth is one of 729 states."""
    rng = np.random.default_rng(0)
    prior = discrete_prior()
    level = rng.choice(GRID, (RUNS, 3), p=prior)
    truth = []
    for _ in range(WINDOWS):
        level = np.where(rng.random(level.shape) < P.changes, rng.choice(GRID, level.shape, p=prior), level)
        truth.append(level)
    loads = np.array(truth) @ EVENT.T
    error = rng.standard_t(P.freedom, loads.shape) * deviation(loads) * np.sqrt((P.freedom - 2) / P.freedom)
    rates = np.maximum(loads + error, 0.0)
    read = np.tile(np.arange(3) != np.arange(WINDOWS)[:, None] % 3, (RUNS, 1, 1)).swapaxes(0, 1)

    belief, means, stds = flow_filter.start(np, 3, P, (RUNS,)), [], []
    for rate, seen in zip(rates, read, strict=True):
        readings = Readings(rate, np.zeros_like(rate), np.full_like(rate, UNSEEN), seen)
        belief = flow_filter.update(np, EVENT, P, belief, readings)
        mean, std = flow_filter.row_loads(np, EVENT, belief)
        means.append(mean)
        stds.append(std)
    mean, std, ideal = np.array(means)[LATE:], np.array(stds)[LATE:], exact(rates, read)[LATE:] @ (STATES @ EVENT.T)
    off = np.abs(mean - loads[LATE:])

    def rms(x: np.ndarray) -> float:
        return float(np.sqrt((x**2).mean()))

    busy = loads[LATE:] > 0.05
    ratio = rms(off) / rms(ideal - loads[LATE:])
    inside = [float((off <= z * std)[busy].mean()) for z in (1.645, 1.96)]
    print(f"error {ratio:.3f} of exact; 90% bands {inside[0]:.3f}, 95% bands {inside[1]:.3f} of busy rows")
    assert ratio < 1.3
    assert 0.87 <= inside[0] <= 0.93 and 0.93 <= inside[1] <= 0.97


def moments(density: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and deviations of points [points, numbers] of which each is as probable as its density."""
    weight = density / density.sum()
    mean = weight @ points
    return mean, np.sqrt(weight @ (points - mean) ** 2)


STILL = P._replace(changes=1e-9)


def test_levels_are_those_that_an_integral_gives() -> None:
    """Flows that do not change, 0 or more, a row in turn unread."""
    level, rng = np.array([0.9, 0.0, 0.5]), np.random.default_rng(1)
    loads = EVENT @ level
    rates = np.maximum(loads + deviation(loads) * rng.standard_normal((9, 3)), 0.0)
    read = np.arange(3) != np.arange(9)[:, None] % 3
    mean, variance = flow_filter.fresh(P)
    belief = flow_filter.start(np, 3, STILL)
    for rate, seen in zip(rates, read, strict=True):
        told = Readings(rate, np.zeros(3), np.full(3, UNSEEN), seen)
        belief = flow_filter.update(np, EVENT, STILL, belief, told)

    levels = np.array(list(product(np.linspace(0.0, 2.0, 61), repeat=3)))
    log = -((levels - mean) ** 2).sum(1) / (2 * variance)
    for rate, seen in zip(rates, read, strict=True):
        log += np.log(likely(rate[seen], (levels @ EVENT.T)[:, seen])).sum(1)
    wanted, spread = moments(np.exp(log - log.max()), levels @ EVENT.T)
    found, std = flow_filter.row_loads(np, EVENT, belief)
    print("off by", (found - wanted) / spread, "deviations; deviations", std / spread)
    np.testing.assert_array_less(np.abs(found - wanted) / spread, 1.0)
    # The filter uses errors' variances only: not that small errors are the rule, nor that idle rows err less.
    assert (std > 0.8 * spread).all() and (std < 2.2 * spread).all()


def test_blame_for_slow_runs_is_shared_as_an_integral_shares_it() -> None:
    """Two kernels, of which one is known well, met the same others; the other's time is not known."""
    known, error = np.array([0.02, 0.5]), 0.1
    slow = np.array([1.8, 2.4])
    p = STILL._replace(run_error=error, floor=1e-3, own_error=0.0, lowest=np.array([0.0, -np.inf, -np.inf]), drift=0.0)
    mean, variance = 0.8, 0.6**2
    belief = FlowBelief(np.array([mean, 0.0, 0.0]), np.diag([variance, *known**2]))
    event = np.array([[1.0, 0.0, 0.0]])
    nothing = Readings(np.zeros(1), np.zeros(1), np.ones(1), np.zeros(1, bool))
    one = np.ones((2, 1))
    runs = RunTimes(slow, np.zeros(2), np.ones(2), one, np.zeros((2, 1), int), one > 0, np.eye(3)[1:], np.full(2, 30.0))
    found = flow_filter.update(np, event, p, belief, nothing, runs, 0.0)

    grids = np.linspace(0.0, 4.0, 161), *(np.linspace(-5 * std, 5 * std, 101) for std in known)
    others, *times = np.meshgrid(*grids, indexing="ij")
    log = -((others - mean) ** 2) / (2 * variance)
    for time, std, ran in zip(times, known, slow, strict=True):
        log -= (time / std) ** 2 / 2 + ((np.log(ran) - np.log1p(others) - time) / error) ** 2 / 2
    points = np.stack([others, *times], axis=-1).reshape(-1, 3)
    wanted, spread = moments(np.exp(log - log.max()).ravel(), points)
    print("found", found.mean, np.sqrt(np.diag(found.cov)), "exact", wanted, spread)
    np.testing.assert_array_less(np.abs(found.mean - wanted) / spread, 0.7)
    np.testing.assert_array_less(np.abs(np.log(np.sqrt(np.diag(found.cov)) / spread)), np.log(1.5))
