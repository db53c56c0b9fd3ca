"""Forecasts within bounds: one computation at a time, answers in time, old ones while new ones are made."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

import symphony as sy
from symphony.service import forecast_cache
from symphony.service.forecast_cache import ForecastCache
from tests.waiting import SECONDS, wait_until

JOBS = frozenset({1, 2})


class Slow:
    """Computes when it may, and counts."""

    def __init__(self) -> None:
        self.go, self.calls, self.at_once, self.most = threading.Event(), [], 0, 0

    def __call__(self, share: float) -> list:
        self.calls.append(share)
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        assert self.go.wait(SECONDS)
        self.at_once -= 1
        if share == 0.5:
            raise sy.EngineError("the cluster is closed")
        return [share, len(self.calls)]


@pytest.fixture
def slow() -> Slow:
    return Slow()


@pytest.fixture
def cache(slow: Slow) -> Iterator[ForecastCache]:
    found = ForecastCache(slow)  # type: ignore[arg-type]
    yield found
    slow.go.set()
    found.close()


def test_a_request_does_not_wait_for_a_long_computation(slow: Slow, cache: ForecastCache) -> None:
    for _ in range(3):
        with pytest.raises(sy.BusyError, match="still being computed") as busy:
            cache.get(0.8, JOBS, wait_s=0.01)
        assert busy.value.retry_s == 5.0
    assert slow.calls == [0.8]  # one for all of them
    slow.go.set()
    assert cache.get(0.8, JOBS, wait_s=SECONDS).forecasts == [0.8, 1]
    assert cache.get(0.8, JOBS, wait_s=0.0).forecasts == [0.8, 1] and slow.calls == [0.8]
    assert cache.get(0.8, frozenset({3}), wait_s=SECONDS).forecasts == [0.8, 2]  # others train now


def test_old_forecasts_are_answered_while_new_ones_are_made(
    slow: Slow, cache: ForecastCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.go.set()
    cache.get(0.8, JOBS, wait_s=SECONDS)
    slow.go.clear()
    monkeypatch.setattr(forecast_cache, "FRESH_S", 0.0)
    assert cache.get(0.8, JOBS, wait_s=0.01).forecasts == [0.8, 1]
    slow.go.set()
    assert cache.get(0.8, JOBS, wait_s=SECONDS).forecasts[1] >= 2


def test_many_shares_are_computed_one_after_the_other_and_few_are_kept(slow: Slow, cache: ForecastCache) -> None:
    slow.go.set()
    shares = [0.6 + number / 100 for number in range(20)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda share: cache.get(share, JOBS, SECONDS).forecasts[0], shares))
    assert found == shares and slow.most == 1 and len(cache._kept) == forecast_cache.MAX_SHARES


def test_an_error_is_for_the_request_that_caused_it(slow: Slow, cache: ForecastCache) -> None:
    with ThreadPoolExecutor(2) as threads:
        wrong = threads.submit(cache.get, 0.5, JOBS, SECONDS)
        wait_until(lambda: slow.calls)
        other = threads.submit(cache.get, 0.9, JOBS, SECONDS)
        slow.go.set()
        with pytest.raises(sy.EngineError):
            wrong.result()
        assert other.result().forecasts[0] == 0.9
