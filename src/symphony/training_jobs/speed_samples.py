"""Observed speeds of jobs: reports are accepted as samples, or rejected with a reason.

A report says how many units a job did between two instants, on the same devices and beside the same neighbours all the
time. A model fitted to bad reports is worse than none, so impossible and implausible ones are rejected.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from typing import NamedTuple

IMPLAUSIBLE_LOG_ERROR = math.log(10.0)  # a report is implausible if it is further than this from the prediction …
IMPLAUSIBLE_DEVIATIONS = 6.0  # … and than so many deviations
CONFIRMATIONS = 3  # implausible reports of one job in a row, after which they are accepted
MAX_REPORT_AGE_S = 3_600.0


class SpeedReport(NamedTuple):
    """Progress of a job in a round. Kernels and kinds are indices."""

    job: int
    kernel: int
    kind: int
    neighbours: tuple[int, ...]  # kernels on the same GPU, sorted
    spread: bool  # over several machines
    began_s: float
    ended_s: float
    units: float


class SpeedSample(NamedTuple):
    """An accepted report."""

    job: int
    kernel: int
    kind: int
    neighbours: tuple[int, ...]
    spread: bool
    log_s: float  # log of the seconds per unit
    at_s: float


class SampleStore:
    """Samples in the order of arrival, and the number of rejected reports by reason."""

    def __init__(self, capacity: int = 20_000) -> None:
        self.samples: deque[SpeedSample] = deque(maxlen=capacity)
        self.reasons: Counter[str] = Counter()
        self._recent: deque[tuple[int, float]] = deque(maxlen=capacity)  # job and end of accepted reports
        self._seen: set[tuple[int, float]] = set()  # the same
        self._implausible: Counter[int] = Counter()  # reports in a row, by job

    def add(self, report: SpeedReport, *, now_s: float, placed: bool, mean: float, std: float) -> str:
        """Accept or reject a report; returns the reason, or "". `mean`, `std`: predicted log seconds per unit."""
        reason = self._rejection(report, now_s, placed, mean, std)
        if reason:
            self.reasons[reason] += 1
            return reason
        r = report
        self._remember((r.job, r.ended_s))
        log_s = math.log((r.ended_s - r.began_s) / r.units)
        self.samples.append(SpeedSample(r.job, r.kernel, r.kind, r.neighbours, r.spread, log_s, r.ended_s))
        return ""

    def _remember(self, key: tuple[int, float]) -> None:
        if len(self._recent) == self._recent.maxlen:
            self._seen.discard(self._recent[0])
        self._recent.append(key)
        self._seen.add(key)

    def _rejection(self, r: SpeedReport, now_s: float, placed: bool, mean: float, std: float) -> str:
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
            self._implausible[r.job] += 1
            if self._implausible[r.job] < CONFIRMATIONS:
                return "implausible"
        else:
            self._implausible.pop(r.job, None)
        return ""
