"""Forecasts for requests, within bounds: computed once at a time, answered within seconds, kept for a while.

A forecast may have to compile a program first, which takes longer than a request should.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Generic, NamedTuple, TypeVar

from symphony.problem.errors import BusyError

T = TypeVar("T")

FRESH_S = 5.0  # for which a forecast is answered without computing a new one
FORECAST_WAIT_S = 5.0  # the longest that a request waits
MAX_SHARES = 8  # probabilities whose forecasts are kept


class TimedForecasts(NamedTuple, Generic[T]):
    at_s: float  # when they were computed, `time.monotonic`
    jobs: frozenset[int]  # for which they were asked
    forecasts: T


class ForecastCache(Generic[T]):
    def __init__(self, compute: Callable[[float], T]) -> None:
        """`compute`: forecasts with bands that hold with a probability. One call at a time."""
        self._compute = compute
        self._kept: dict[float, TimedForecasts[T]] = {}
        self._current: Future[TimedForecasts[T]] | None = None
        self._lock = Lock()
        self._thread = ThreadPoolExecutor(1, "symphony-forecasts")

    def get(self, share: float, jobs: frozenset[int], wait_s: float = FORECAST_WAIT_S) -> TimedForecasts[T]:
        """Forecasts that are fresh and of these jobs, or older ones if new ones take longer than `wait_s`.

        Raises `BusyError` if there are none yet, and what `compute` raises.
        """
        deadline = time.monotonic() + wait_s
        while True:
            with self._lock:
                kept = self._kept.get(share)
                if kept is not None and kept.jobs == jobs and time.monotonic() - kept.at_s < FRESH_S:
                    return kept
                mine = self._current is None
                if self._current is None:
                    self._current = self._thread.submit(self._run, share, jobs)
                current = self._current
            try:
                found = current.result(max(deadline - time.monotonic(), 0.0))
            except TimeoutError:
                if kept is not None:
                    return kept
                raise BusyError(
                    "the forecast is still being computed", hint="try again in a few seconds", retry_s=5.0
                ) from None
            except Exception:
                if mine:
                    raise
                continue  # it was for another request
            if mine:
                return found

    def _run(self, share: float, jobs: frozenset[int]) -> TimedForecasts[T]:
        try:
            found = TimedForecasts(time.monotonic(), jobs, self._compute(share))
        except BaseException:
            with self._lock:
                self._current = None
            raise
        with self._lock:
            self._current = None
            self._kept[share] = found
            while len(self._kept) > MAX_SHARES:
                del self._kept[min(self._kept, key=lambda key: self._kept[key].at_s)]
        return found

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)
