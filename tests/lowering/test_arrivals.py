from __future__ import annotations

import numpy as np
import pytest

from symphony.lowering.arrivals import PROCESSES, batch, bursty, diurnal, poisson
from symphony.problem.errors import WorkloadError

MOVING = ("poisson", "bursty", "diurnal")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("count", [1, 2, 500])
def test_times_are_sorted_finite_and_as_many_as_asked_for(name: str, count: int) -> None:
    times = PROCESSES[name](3.0, count, rng())
    assert len(times) == count
    assert np.all(np.diff(times) >= 0) and times[0] >= 0 and np.isfinite(times).all()


@pytest.mark.parametrize("name", MOVING)
def test_the_same_draws_at_twice_the_rate_take_half_the_time(name: str) -> None:
    slow, fast = (PROCESSES[name](rate, 300, rng(7)) for rate in (1.0, 2.0))
    np.testing.assert_allclose(slow, 2 * fast)
    assert not np.allclose(slow, PROCESSES[name](1.0, 300, rng(8)))


@pytest.mark.parametrize("name", MOVING)
def test_the_mean_rate_is_the_one_given(name: str) -> None:
    count = 40_000
    times = PROCESSES[name](5.0, count, rng())
    # Four standard errors; counts of the bursty process vary about seven times as much as Poisson's.
    spread = np.sqrt({"poisson": 1, "bursty": 20, "diurnal": 1}[name] / count)
    assert count / times[-1] == pytest.approx(5.0, rel=4 * spread)


def dispersion(times: np.ndarray, window: float) -> float:
    """Variance over mean of the number of arrivals in a window: 1 for a Poisson process."""
    counts = np.histogram(times, np.arange(0, times[-1], window))[0]
    return float(counts.var() / counts.mean())


def test_bursts_come_in_bursts() -> None:
    assert dispersion(poisson(1.0, 20_000, rng()), 10.0) == pytest.approx(1.0, abs=0.2)
    assert dispersion(bursty(1.0, 20_000, rng()), 10.0) > 4.0


def test_a_burst_without_calm_is_as_fast_as_it_says() -> None:
    """With bursts a fifth of the time and five times the rate, nothing arrives in between."""
    times = bursty(1.0, 20_000, rng(), burst=5.0, share=0.2, cycle_jobs=200.0)
    assert np.median(np.diff(times)) == pytest.approx(np.log(2) / 5, rel=0.05)


def test_the_first_half_of_a_day_is_busier() -> None:
    count, swing = 40_000, 0.8
    times = diurnal(1.0, count, rng(), swing=swing, days=1.0)
    share = np.mean(times < count / 2)
    assert share == pytest.approx(0.5 + swing / np.pi, abs=0.02)


def test_a_batch_is_all_at_once() -> None:
    assert batch(0.0, 4, rng()).tolist() == [0.0] * 4


@pytest.mark.parametrize("rate", [0.0, -1.0, float("inf"), float("nan")])
def test_a_rate_that_makes_no_sense_is_refused(rate: float) -> None:
    for name in MOVING:
        with pytest.raises(WorkloadError, match="rate"):
            PROCESSES[name](rate, 5, rng())


def test_no_jobs_are_refused() -> None:
    with pytest.raises(WorkloadError, match="0 jobs"):
        poisson(1.0, 0, rng())
