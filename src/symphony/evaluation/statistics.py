"""Paired comparison of two policies over the same seeds.

A seed fixes the cluster, the arrivals and the hidden tenants, which cause most of the variance of a metric. So
policies are compared seed by seed, and only the variance of the per-seed differences counts.

Intervals are Student's t: on the logarithms of the per-seed ratios (times and rates are positive and vary by
factors, so that their logarithms are close to symmetric), and on the plain differences. The BCa bootstrap is too
narrow at usual numbers of seeds. Coverage of nominal 95% intervals:

    seeds   normal: t, BCa    exponential: t, BCa    t with 3 degrees of freedom: t, BCa
    5       0.96   0.84       0.88   0.80            0.98   0.84
    8       0.95   0.89       0.89   0.85            0.97   0.86
    20      0.94   0.92       0.93   0.90            0.96   0.90

Student's t needs no random draws either: equal records give equal reports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from symphony.evaluation.metrics import RunMetric
from symphony.problem.errors import InputError

CONFIDENCE = 0.95
_MIN_RELATIVE_DIFFERENCE = 1e-6  # smaller ones are rounding: times are computed in single precision

Verdict = Literal["better", "worse", "higher", "lower", "not distinguishable", "one seed", "not comparable"]


@dataclass(frozen=True)
class IntervalEstimate:
    """A value and the ends of its 95% confidence interval (None with a single seed)."""

    value: float
    low: float | None = None
    high: float | None = None

    def excludes(self, value: float) -> bool:
        return self.low is not None and self.high is not None and not self.low <= value <= self.high


@dataclass(frozen=True)
class Paired:
    """One policy against another on the same seeds."""

    seeds: int
    difference: IntervalEstimate  # mean of ours - theirs; nan if a run of either stalled
    ratio: IntervalEstimate | None  # geometric mean of ours / theirs; None unless all values are positive and finite
    p: float | None  # Wilcoxon signed-rank, two-sided; makes no assumption about the distribution


def paired(ours: ArrayLike, theirs: ArrayLike) -> Paired:
    """Compare the values of one metric on the same seeds, in the same order."""
    a, b = np.asarray(ours, float), np.asarray(theirs, float)
    if len(a) != len(b) or not len(a):
        message = f"{len(a)} values cannot be paired with {len(b)}"
        raise InputError(message, where="paired comparison", hint="run both policies on the same seeds, at least one")
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        # Leaving out the seeds on which a policy stalled would favour it.
        return Paired(len(a), IntervalEstimate(math.nan), None, None)
    # Symmetric in a and b, unlike `np.isclose`.
    a = np.where(np.abs(a - b) <= _MIN_RELATIVE_DIFFERENCE * np.maximum(np.abs(a), np.abs(b)), b, a)
    if (a <= 0).any() or (b <= 0).any():
        return Paired(len(a), _student(a - b), None, _wilcoxon(a - b))
    logs = np.log(a) - np.log(b)  # not log(a / b), whose rounding would break ties
    log = _student(logs)
    ratio = IntervalEstimate(math.exp(log.value), *(None if x is None else math.exp(x) for x in (log.low, log.high)))
    return Paired(len(a), _student(a - b), ratio, _wilcoxon(logs))


def main_estimate(comparison: Paired, metric: RunMetric) -> tuple[IntervalEstimate, float]:
    """The estimate that a metric is judged by, ratio or difference, and its value for equal policies (1 or 0)."""
    if metric.relative and comparison.ratio is not None:
        return comparison.ratio, 1.0
    return comparison.difference, 0.0


def verdict(comparison: Paired, metric: RunMetric) -> Verdict:
    """A direction if the 95% interval excludes "no difference", else the reason why there is none."""
    estimate, equal = main_estimate(comparison, metric)
    if math.isnan(estimate.value):
        return "not comparable"
    if estimate.low is None:
        return "one seed"
    if not estimate.excludes(equal):
        return "not distinguishable"
    direction: Verdict = "lower" if estimate.value < equal else "higher"
    if metric.better == "neither":
        return direction
    return "better" if direction == metric.better else "worse"


def holm(p: Sequence[float | None]) -> list[float]:
    """p-values with Holm's correction for multiple tests. None, where no test was possible, becomes 1."""
    values = np.array([1.0 if value is None else value for value in p], float)
    order = np.argsort(values, kind="stable")
    corrected = np.empty(len(p))
    corrected[order] = np.maximum.accumulate(np.minimum(values[order] * np.arange(len(p), 0, -1), 1.0))
    return [float(value) for value in corrected]


def _student(sample: NDArray[np.float64]) -> IntervalEstimate:
    n = len(sample)
    mean = float(np.mean(sample))
    if n == 1:
        return IntervalEstimate(mean)
    half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2) * np.std(sample, ddof=1) / math.sqrt(n))
    return IntervalEstimate(mean, mean - half, mean + half)


def _wilcoxon(sample: NDArray[np.float64]) -> float | None:
    """Two-sided p of the signed-rank test: exact, ties included, up to 100 seeds; normal beyond."""
    if len(sample) == 1:
        return None
    sample = sample[sample != 0]
    _, place, count = np.unique(np.abs(sample), return_inverse=True, return_counts=True)
    ranks = (2 * np.cumsum(count) - count + 1)[place]  # twice the mean rank of tied values: whole numbers
    positive, total = int(ranks[sample > 0].sum()), int(ranks.sum())
    if len(sample) > 100:
        return math.erfc(abs(positive - total / 2) / math.sqrt(float((ranks**2).sum()) / 2))
    chance = np.zeros(total + 1)  # probability of each sum of the positive ranks under the null hypothesis
    chance[0] = 1.0
    for rank in ranks:
        with_it = chance[: total + 1 - rank] / 2
        chance /= 2
        chance[rank:] += with_it
    return float(min(1.0, 2 * chance[: min(positive, total - positive) + 1].sum()))
