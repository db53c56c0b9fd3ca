"""When jobs arrive: point processes with a mean rate, as sorted times from 0 on.

Each takes (rate in jobs/s, number of jobs, random generator). Time scales follow from the rate, so that the
same process makes sense for millisecond jobs and for day-long ones, and the same draws at twice the rate
are the same pattern in half the time.
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
    """Markov-modulated Poisson: bursts at `burst` times the mean rate, `share` of the time, calm in between.

    A burst and the calm after it bring `cycle_jobs` jobs on average.
    """
    _check(rate, count)
    if not 0 < share < 1 or not 1 <= burst <= 1 / share or not 0 < cycle_jobs < math.inf:
        raise WorkloadError(
            f"no bursts have share {share}, rate {burst} times the mean and {cycle_jobs} jobs a cycle",
            where="arrivals",
            hint="0 < share < 1, 1 <= burst <= 1/share, cycle_jobs above 0",
        )
    # Time is counted in mean gaps. Stays alternate; arrivals are a unit Poisson process in accumulated
    # intensity, carried back to time through the (piecewise linear) integral of the rate.
    intensity = np.array([(1 - share * burst) / (1 - share), burst])
    mean_stay = cycle_jobs * np.array([1 - share, share])
    state = int(rng.random() < share)
    points = np.cumsum(rng.exponential(1.0, count))
    clock, brought = [0.0], [0.0]
    while brought[-1] < points[-1]:
        stay = rng.exponential(mean_stay[state])
        clock.append(clock[-1] + stay)
        brought.append(brought[-1] + stay * intensity[state])
        state = 1 - state
    return np.interp(points, brought, clock) / rate


def diurnal(rate: float, count: int, rng: np.random.Generator, *, swing: float = 0.8, days: float = 2.0) -> Times:
    """A rate that swings by `swing` of its mean, `days` times while `count` jobs arrive (by thinning)."""
    _check(rate, count)
    if not 0 <= swing <= 1 or not 0 < days < math.inf:
        raise WorkloadError(
            f"no day has a swing of {swing}, {days} times",
            where="arrivals",
            hint="0 <= swing <= 1, days above 0",
        )
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
    """All at time 0, whatever the rate."""
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
