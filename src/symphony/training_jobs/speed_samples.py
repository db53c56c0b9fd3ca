"""Observed speeds of jobs: what is kept of them, and what is put aside with a reason.

A report says that a job did so many units between two instants, in one place with the same neighbours all the time. A
model that is fitted to a bad report is worse than none, so that what cannot be is put aside: never used, never lost.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import NamedTuple

MAX_REJECTED_REPORTS = 1_000  # reports that were put aside, the newest
IMPLAUSIBLE_LOG_ERROR = math.log(10.0)  # further than this from what is believed …
IMPLAUSIBLE_DEVIATIONS = 6.0  # … and than so many deviations: put aside
CONFIRMATIONS = 3  # in a row of one job, after which what was implausible is news
MAX_REPORT_AGE_S = 3_600.0  # how old a report may be when it comes
REJECTION_REASONS = ("zero", "not a number", "never placed", "duplicate", "late", "clock", "implausible")


class SpeedReport(NamedTuple):
    """What a job says it did. Kernels and kinds are indices."""

    job: int
    kernel: int
    kind: int
    neighbours: tuple[int, ...]  # kernels on the same GPU, sorted
    spread: bool  # over several machines
    began_s: float
    ended_s: float
    units: float


class SpeedSample(NamedTuple):
    """A report that is believed."""

    job: int
    kernel: int
    kind: int
    neighbours: tuple[int, ...]
    spread: bool
    log_s: float  # logarithm of the seconds of a unit
    at_s: float


class SampleStore:
    """Samples by age, and what was put aside."""

    def __init__(self, capacity: int = 20_000) -> None:
        self.samples: deque[SpeedSample] = deque(maxlen=capacity)
        self.aside: deque[tuple[SpeedReport, str]] = deque(maxlen=MAX_REJECTED_REPORTS)
        self.reasons: Counter[str] = Counter()
        self._heard: deque[tuple[int, float]] = deque(maxlen=capacity)
        self._seen: set[tuple[int, float]] = set()
        self._odd: Counter[int] = Counter()

    def add(self, report: SpeedReport, *, now_s: float, placed: bool, mean: float, std: float) -> str:
        """Take a report, or put it aside: the reason, or "". `mean`, `std`: what is believed of its log seconds."""
        reason = self._wrong(report, now_s, placed, mean, std)
        if reason:
            self.aside.append((report, reason))
            self.reasons[reason] += 1
            return reason
        r = report
        self._remember((r.job, r.ended_s))
        log_s = math.log((r.ended_s - r.began_s) / r.units)
        self.samples.append(SpeedSample(r.job, r.kernel, r.kind, r.neighbours, r.spread, log_s, r.ended_s))
        return ""

    def _remember(self, key: tuple[int, float]) -> None:
        if len(self._heard) == self._heard.maxlen:
            self._seen.discard(self._heard[0])
        self._heard.append(key)
        self._seen.add(key)

    def _wrong(self, r: SpeedReport, now_s: float, placed: bool, mean: float, std: float) -> str:
        if not all(math.isfinite(x) for x in (r.began_s, r.ended_s, r.units)):
            return "not a number"
        if not placed:
            return "never placed"
        if r.began_s >= r.ended_s or r.ended_s > now_s or r.began_s < 0:
            return "clock"
        if r.units <= 0:
            return "zero"
        if (r.job, r.ended_s) in self._seen:
            return "duplicate"
        if now_s - r.ended_s > MAX_REPORT_AGE_S:
            return "late"
        off = abs(math.log((r.ended_s - r.began_s) / r.units) - mean)
        if off > max(IMPLAUSIBLE_LOG_ERROR, IMPLAUSIBLE_DEVIATIONS * std):
            self._odd[r.job] += 1
            if self._odd[r.job] < CONFIRMATIONS:
                return "implausible"
        else:
            self._odd.pop(r.job, None)
        return ""
