"""Arrival processes: sorted arrival times in seconds, from 0 on.

Each takes (rate in jobs/s, number of jobs, random generator). Time scales follow from the rate, so that a process
suits millisecond jobs and day-long ones, and the same draws at twice the rate are the same pattern in half the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from symphony.problem.errors import WorkloadError

Times = NDArray[np.float64]


def poisson(rate: float, count: int, rng: np.random.Generator) -> Times:
    """Independent arrivals: exponential gaps."""
    _check(rate, count)
    return np.cumsum(rng.exponential(1.0, count)) / rate


def bursty(
    rate: float,
    count: int,
    rng: np.random.Generator,
    *,
    burst: float = 4.0,
    share: float = 0.2,
    cycle_jobs: float = 40.0,
) -> Times:
    """Markov-modulated Poisson: bursts at `burst` times the mean rate for `share` of the time, a lower rate in between.

    `burst` is at most 1 / `share`. `cycle_jobs`: mean number of jobs in a burst and the time until the next.
    """
    _check(rate, count)
    # Time is in mean gaps. The two states alternate. Arrivals are a unit Poisson process in accumulated intensity,
    # converted to time by the inverse of the (piecewise linear) integral of the rate.
    intensity = np.array([(1 - share * burst) / (1 - share), burst])
    mean_stay = cycle_jobs * np.array([1 - share, share])
    state = int(rng.random() < share)
    points = np.cumsum(rng.exponential(1.0, count))
    clock, intensity_until = [0.0], [0.0]
    while intensity_until[-1] < points[-1]:
        stay = rng.exponential(mean_stay[state])
        clock.append(clock[-1] + stay)
        intensity_until.append(intensity_until[-1] + stay * intensity[state])
        state = 1 - state
    return np.interp(points, intensity_until, clock) / rate


def diurnal(rate: float, count: int, rng: np.random.Generator, *, swing: float = 0.8, days: float = 2.0) -> Times:
    """A sinusoidal rate, mean · (1 ± `swing`), with `days` periods while `count` jobs arrive (by thinning)."""
    _check(rate, count)
    period = count / days  # in mean gaps
    peak = 1 + swing
    kept: list[Times] = []
    now, have = 0.0, 0
    while have < count:
        candidates = now + np.cumsum(rng.exponential(1 / peak, count))
        now = float(candidates[-1])
        accepted = 1 + swing * np.sin(2 * np.pi * candidates / period)
        kept.append(candidates[rng.random(count) * peak < accepted])
        have += len(kept[-1])
    return np.concatenate(kept)[:count] / rate


def batch(rate: float, count: int, rng: np.random.Generator) -> Times:
    """All at time 0; `rate` has no effect."""
    return np.zeros(count)


PROCESSES: Mapping[str, Callable[[float, int, np.random.Generator], Times]] = {
    "poisson": poisson,
    "bursty": bursty,
    "diurnal": diurnal,
    "batch": batch,
}


def _check(rate: float, count: int) -> None:
    if not 0 < rate < math.inf:
        raise WorkloadError(f"the arrival rate is {rate} jobs/s", where="arrivals", hint="give a rate above 0")
    if count < 1:
        raise WorkloadError(f"{count} jobs are to arrive", where="arrivals", hint="ask for at least one job")
