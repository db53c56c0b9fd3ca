"""Which identities hold on this machine: each is tested on the counts of a whole run before it is used.

A single window of a multiplexed run says little about an identity whose events were counted at different times; the
totals of a run say much more. Their uncertainty is estimated from the run itself:

1. Events that have a group in common are compared as they were counted. Others are scaled to the time for which they
   were enabled, as Linux does, over as many consecutive windows as it takes to count each of them.
2. Outlier windows (few, and far from all others) are left out.
3. The *residual* is the identity's sum over half of the sum of its absolute terms: 0.1 means that one side is 10% too
   large. Its standard error comes from means of batches that are long enough to be independent, with Student's t.
4. An identity is rejected if its residual exceeds its tolerance by more than chance explains, with Holm's correction
   for the number of identities. The others are tested jointly: of those that contradict one another, the one is
   rejected without which the others agree best.

An identity that cannot be tested is accepted only if it is structural: if it follows from how counters are wired.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from symphony.telemetry.expressions import key
from symphony.telemetry.identities import Identity
from symphony.telemetry.samples import Column, Floats, Recording, Sample, stack

IDENTITY_ALPHA = 0.01  # probability of rejecting any identity if all are true
JOINT_ALPHA = 1e-3  # probability of finding a contradiction among true identities
MIN_TESTED_WINDOWS = 6  # windows in which all events were counted
MAX_HALF_WIDTH = 0.15  # half of the residual's 95% interval: beyond it the test is not conclusive
_MAX_GLITCH_SHARE = 0.05  # share of windows: what is more frequent is not an outlier
_GLITCH_DEVIATIONS = 8.0  # robust standard deviations
_GLITCH_FACTOR = 10.0  # times the upper quantile of all windows
_MAX_COUNT = 2.0**64  # the largest value of a counter
_MIN_GLITCH_DEVIATION = 0.01  # relative deviation up to which no window is an outlier
_BATCHES = 32  # largest number of batches
_BLOCKS = 24  # of windows, in which residuals of different identities are compared

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Verdict:
    """The result of testing an identity on a run."""

    identity: Identity  # if accepted, with the tolerance that the run suggests
    accepted: bool
    residual: float  # relative; NaN if it was not tested
    deviation: float  # the residual's standard error
    z: float  # standard errors between the residual and what the tolerance allows; 0 within
    reason: str
    tested: bool = True


def check_identities(identities: Iterable[Identity], recording: Recording) -> tuple[Verdict, ...]:
    """A verdict on each identity, in order."""
    identities = tuple(identities)
    columns = _columns(recording.columns)
    found = [_test(one, recording, columns) for one in identities]
    tests = [test for test in found if isinstance(test, _Test)]
    rejected = _holm(tests)
    reasons: dict[int, str] = {id(test): f"off by {test}" for test in rejected}
    reasons |= _contradictions([test for test in tests if id(test) not in reasons], len(recording))
    return tuple(
        _untested(one, test) if isinstance(test, str) else test.verdict(reasons.get(id(test), ""))
        for one, test in zip(identities, found, strict=True)
    )


def accepted(verdicts: Iterable[Verdict]) -> tuple[Identity, ...]:
    """The accepted identities."""
    return tuple(verdict.identity for verdict in verdicts if verdict.accepted)


def _untested(one: Identity, why: str) -> Verdict:
    trust = "used, since it follows from how counters are wired" if one.structural else "not used"
    return Verdict(one, one.structural, math.nan, math.nan, math.nan, f"not tested: {why}; {trust}", tested=False)


# --- One identity ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Test:
    """An identity's residual over a run."""

    identity: Identity
    at: NDArray[np.int64]  # [n] first window of each batch of windows
    sums: Floats  # [n] the identity's sum in each
    sizes: Floats  # [n] half of the sum of absolute terms
    left_out: int  # outlier windows
    residual: float
    deviation: float
    freedom: int  # degrees of freedom

    @property
    def excess(self) -> float:
        """How far the residual exceeds the tolerance; 0 within it."""
        slack = self.identity.slack
        wrong = abs(self.residual) if self.identity.relation == "=" else -self.residual
        return max(0.0, wrong - slack)

    @property
    def z(self) -> float:
        """The excess in standard errors."""
        return self.excess / max(self.deviation, 1e-9)

    @property
    def p(self) -> float:
        """Probability of such an excess if the identity holds to its tolerance."""
        from scipy.special import stdtr  # takes a tenth of a second to import

        sides = 2.0 if self.identity.relation == "=" else 1.0
        return min(1.0, sides * float(stdtr(self.freedom, -self.z))) if self.excess else 1.0

    def verdict(self, against: str) -> Verdict:
        """The verdict; `against` is the reason to reject, or ""."""
        if against:
            return Verdict(self.identity, False, self.residual, self.deviation, self.z, against)
        wrong = abs(self.residual) if self.identity.relation == "=" else max(0.0, -self.residual)
        # Only the excess over chance widens the tolerance: short runs are noisy, identities are not.
        learned = replace(self.identity, tolerance=max(self.identity.slack, wrong - 2 * self.deviation))
        return Verdict(learned, True, self.residual, self.deviation, self.z, f"holds: {self}")

    @property
    def half_width(self) -> float:
        """Half of the residual's 95% interval."""
        from scipy.special import stdtrit

        return float(stdtrit(self.freedom, 0.975)) * self.deviation

    def __str__(self) -> str:
        out = f", {self.left_out} outlier windows left out" if self.left_out else ""
        over = f"over {len(self.at)} windows{out}"
        if self.identity.relation == ">=":
            ends = (_share(self.residual + self.half_width), _share(self.residual - self.half_width))
            return f"the right side is {_share(self.residual):.1%} ({ends[0]:.1%} to {ends[1]:.1%}) of the left {over}"
        allowed = f"with a tolerance of {self.identity.slack:.2%}"
        return f"{self.residual:+.2%} ± {self.half_width:.2%}, {allowed}, {over}"


def _share(residual: float) -> float:
    """The right side of a bound as a share of the left side, from the residual."""
    return max(2 - residual, 0.0) / max(2 + residual, 1e-9)


def _columns(columns: Sequence[Column]) -> dict[str, dict[int, int]]:
    """Event → group → column."""
    found: dict[str, dict[int, int]] = {}
    for at, column in enumerate(columns):
        found.setdefault(key(column.event), {})[column.group] = at
    return found


def _test(one: Identity, recording: Recording, columns: dict[str, dict[int, int]]) -> _Test | str:
    if missing := [event for event in one.events if event not in columns]:
        return f"{', '.join(missing)} {'was' if len(missing) == 1 else 'were'} not counted"
    at, values, together = _values(one, recording, columns)
    if len(at) < MIN_TESTED_WINDOWS:
        return f"its events were counted in {len(at)} windows, and {MIN_TESTED_WINDOWS} are needed"
    terms = values * np.array([coefficient for _, coefficient in one.terms])
    kept = ~glitches(terms, together)
    sums, sizes = terms[kept].sum(axis=1), np.abs(terms[kept]).sum(axis=1) / 2
    if not sizes.sum() > 0:
        return "nothing was counted"
    residual, deviation, freedom = estimate(sums, sizes)
    test = _Test(one, at[kept], sums, sizes, int((~kept).sum()), residual, deviation, freedom)
    half = test.half_width
    clear = one.relation == ">=" and residual > half
    if half > MAX_HALF_WIDTH and not clear and test.z < _GLITCH_DEVIATIONS:
        return f"its residual is only known to ± {half:.0%}"
    return test


def _values(
    one: Identity, recording: Recording, columns: dict[str, dict[int, int]]
) -> tuple[NDArray[np.int64], Floats, bool]:
    """Windows, the counts of each event in them [n, E], and whether all were counted at the same times."""
    of = [columns[event] for event in one.events]
    valid = (recording.count >= 0) & (recording.count <= _MAX_COUNT) & (recording.running_s > 0)  # False for NaN
    together = set.intersection(*(set(groups) for groups in of))
    if together:
        count = np.zeros((len(recording), len(of)))
        used = np.zeros(len(recording), dtype=bool)
        for group in together:
            own = [groups[group] for groups in of]
            whole = np.all(valid[:, own], axis=1)
            count += np.where(whole[:, None], recording.count[:, own], 0.0)
            used = used | whole
        at = np.flatnonzero(used)
        return at, count[at], True
    count, running, enabled = (np.zeros((len(recording), len(of))) for _ in range(3))
    for e, groups in enumerate(of):
        own = list(groups.values())
        count[:, e] = np.where(valid[:, own], recording.count[:, own], 0.0).sum(axis=1)
        running[:, e] = np.where(valid[:, own], recording.running_s[:, own], 0.0).sum(axis=1)
        enabled[:, e] = recording.enabled_s[:, own].max(axis=1)
    return *_merged(count, running, enabled), False


def _merged(count: Floats, running: Floats, enabled: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Scaled counts over the shortest batches of windows in which nearly always every event was counted."""
    length, windows = 1, len(count)
    while True:
        starts = np.arange(0, windows, length)
        together = [np.add.reduceat(part, starts, axis=0) if windows else part for part in (count, running, enabled)]
        whole: Mask = np.all(together[1] > 0, axis=1)
        if not windows or whole.mean() >= 0.9 or windows // (2 * length) < MIN_TESTED_WINDOWS:
            at = np.flatnonzero(whole)
            scaled = together[0][at] * together[2][at] / together[1][at]
            return starts[at], scaled
        length *= 2


def glitches(terms: Floats, together: bool) -> Mask:
    """Outliers among windows: few, and unlike all others. Terms [n, E] of an identity → [n].

    If events were counted at different times, many windows deviate without any error of reading, and leaving some of
    them out would bias the rest. Then only extremely large readings are outliers.
    """
    parts = np.abs(terms)
    sums, sizes = terms.sum(axis=1), parts.sum(axis=1) / 2
    counted = sizes > 0
    if counted.sum() < MIN_TESTED_WINDOWS:
        return np.zeros(len(terms), dtype=bool)
    ratios = sums[counted] / sizes[counted]
    middle = float(np.median(ratios))
    off = np.abs(sums - middle * sizes)
    # A burst makes both the total and a part large; a wrong reading is large alone.
    huge = parts > _GLITCH_FACTOR * np.quantile(parts, 1 - _MAX_GLITCH_SHARE, axis=0)
    found = np.any(huge & (parts < 4 * off[:, None]), axis=1)
    if together:
        spread = 1.4826 * float(np.median(np.abs(ratios - middle)))
        found |= off > _GLITCH_DEVIATIONS * max(spread, _MIN_GLITCH_DEVIATION) * (
            sizes + 0.2 * float(np.median(sizes[counted]))
        )
    return found if found.mean() <= _MAX_GLITCH_SHARE else np.zeros(len(terms), dtype=bool)


def estimate(sums: Floats, sizes: Floats) -> tuple[float, float, int]:
    """Ratio of total sums to total sizes, its standard error by batch means, and degrees of freedom.

    The error is a jackknife estimate weighted by the batches' shares of the total: if one burst holds nearly all
    counts, little has been observed, however many windows there are.
    """
    windows = len(sums)
    length = max(math.ceil(windows ** (1 / 3)), math.ceil(windows / _BATCHES))
    batches = max(2, windows // length)
    starts = np.linspace(0, windows, batches, endpoint=False).astype(int)
    sums, sizes = np.add.reduceat(sums, starts), np.add.reduceat(sizes, starts)
    ratio = float(sums.sum() / sizes.sum())
    rest = sizes.sum() - sizes
    without = np.where(rest > 1e-9 * sizes.sum(), (sums.sum() - sums) / np.maximum(rest, 1e-300), 0.0)
    error = math.sqrt(float(((without - ratio) ** 2).sum()) * (batches - 1) / batches)
    effective = float(sizes.sum() ** 2 / (sizes**2).sum())
    return ratio, error, max(1, math.floor(effective) - 1)


def _holm(tests: Sequence[_Test]) -> list[_Test]:
    """The tests to reject, such that the probability of rejecting any true identity is at most IDENTITY_ALPHA."""
    found: list[_Test] = []
    for rank, test in enumerate(sorted(tests, key=lambda test: test.p)):
        if test.p > IDENTITY_ALPHA / (len(tests) - rank):
            break
        found.append(test)
    return found


def _contradictions(tests: Sequence[_Test], windows: int) -> dict[int, str]:
    """Of equalities that share events and cannot all hold, those to reject, by id, with the reason."""
    equal = [test for test in tests if test.identity.relation == "="]
    by_event: dict[str, list[_Test]] = {}
    for test in equal:
        for event in test.identity.events:
            by_event.setdefault(event, []).append(test)
    blocks = min(_BLOCKS, windows)
    found: dict[int, str] = {}
    for test in sorted(equal, key=lambda test: -abs(test.residual) / (test.deviation + test.identity.slack)):
        near = {id(other): other for event in test.identity.events for other in by_event[event]}
        shared = {which: len(set(other.identity.events) & set(test.identity.events)) for which, other in near.items()}
        order = sorted(near.values(), key=lambda other: (other is not test, -shared[id(other)]))
        some = [other for other in order if id(other) not in found][: blocks // 3]
        if test in some:
            _disagreeing(some, windows, blocks, found)
    return found


def _disagreeing(tests: list[_Test], windows: int, blocks: int, found: dict[int, str]) -> None:
    """Leave out one identity at a time until the rest agree."""
    means, covariance = _jointly(tests, windows, blocks)
    inside = list(range(len(tests)))
    while len(inside) > 1 and _chance(means, covariance, inside, blocks) < JOINT_ALPHA:
        distances = {out: _distance(means, covariance, [at for at in inside if at != out]) for out in inside}
        worst = min(inside, key=lambda out: distances[out])
        inside.remove(worst)
        others = ", ".join(tests[at].identity.name for at in islice(inside, 3))
        found[id(tests[worst])] = f"contradicts {others}, which agree without it: {tests[worst]}"


def _jointly(tests: Sequence[_Test], windows: int, blocks: int) -> tuple[Floats, Floats]:
    """Residuals of several identities, and the covariance of their errors including tolerances."""
    off = np.zeros((blocks, len(tests)))
    for at, test in enumerate(tests):
        share = (test.sums - test.residual * test.sizes) / test.sizes.sum()
        np.add.at(off[:, at], test.at * blocks // windows, share)
    covariance = off.T @ off * blocks / (blocks - 1)
    slack = np.array([test.identity.slack for test in tests])
    return np.array([test.residual for test in tests]), covariance + np.diag(slack**2)


def _distance(means: Floats, covariance: Floats, inside: Sequence[int]) -> float:
    some = means[list(inside)]
    return float(some @ np.linalg.solve(covariance[np.ix_(inside, inside)], some))


def _chance(means: Floats, covariance: Floats, inside: Sequence[int], blocks: int) -> float:
    """Hotelling's test: the probability of residuals so far from zero if all identities hold."""
    from scipy.special import fdtrc

    size = len(inside)
    if blocks <= size:
        return 1.0
    scaled = _distance(means, covariance, inside) * (blocks - size) / (size * (blocks - 1))
    return float(fdtrc(size, blocks - size, max(scaled, 0.0)))


# --- Live --------------------------------------------------------------------------------------------------


class Gate:
    """The gate for a run that goes on, in constant memory and time per window.

    Older windows are merged, so that the whole run counts; outliers are removed before.
    """

    RECENT = 128  # windows that are not merged
    PAST = 256  # merged windows

    def __init__(self, identities: Iterable[Identity]) -> None:
        self._identities = tuple(identities)
        self._places: dict[str, _Place] = {}

    def update(self, sample: Sample) -> None:
        """Add a window; the windows of each place in order of time."""
        place = self._places.setdefault(sample.where, _Place([], [], 1))
        place.recent.append(sample)
        if len(place.recent) >= self.RECENT:
            for cleaned in _cleaned(self._identities, place.recent):
                place.keep(cleaned, 1, self.PAST)
            place.recent = []

    def verdicts(self) -> tuple[Verdict, ...]:
        """The verdicts on all windows so far, of all places together."""
        places = self._places.values()
        windows = [one for place in places for one in place.windows(self._identities, self.PAST)]
        if not windows:
            return tuple(_untested(one, "nothing was counted") for one in self._identities)
        return check_identities(self._identities, stack(windows))


@dataclass
class _Place:
    """The windows of one place."""

    recent: list[Sample]
    past: list[tuple[int, Sample]]  # number of windows, and their sum
    stride: int  # the largest such number

    def windows(self, identities: Sequence[Identity], most: int) -> list[Sample]:
        """The whole run, in pieces of about the same length."""
        merged = _Place([], [*self.past], self.stride)
        # Windows that are not merged can be cleaned later; those that are merged now cannot.
        for sample in _cleaned(identities, self.recent) if self.recent and self.stride > 1 else self.recent:
            merged.keep(sample, 1, most)
        return [sample for _, sample in merged.past]

    def keep(self, sample: Sample, weight: int, most: int) -> None:
        """Append a sample that stands for `weight` windows."""
        if self.past and self.past[-1][0] + weight <= self.stride:
            before, last = self.past.pop()
            sample, weight = _sum(last, sample), before + weight
        self.past.append((weight, sample))
        if len(self.past) > most:
            self.stride *= 2
            older, self.past = self.past, []
            for before, last in older:
                self.keep(last, before, most)


def _cleaned(identities: Sequence[Identity], samples: Sequence[Sample]) -> Iterable[Sample]:
    """Samples in which outliers, as far as identities show them, are unknown."""
    recording = stack(samples)
    columns = _columns(recording.columns)
    count = recording.count.copy()
    for one in identities:
        if not all(event in columns for event in one.events):
            continue
        at, values, together = _values(one, recording, columns)
        terms = values * np.array([coefficient for _, coefficient in one.terms])
        own = sorted(column for event in one.events for column in columns[event].values())
        for window in at[glitches(terms, together)]:
            count[window, own] = np.nan
    return replace(recording, count=count).samples()


def _sum(a: Sample, b: Sample) -> Sample:
    """Two windows as one. Run time in which the count is unknown is dropped."""
    if a.columns != b.columns:
        a, b = stack([a, b]).samples()
    counts, running = np.array([a.count, b.count]), np.array([a.running_s, b.running_s])
    known = np.isfinite(counts)
    total = np.where(known.any(axis=0), np.where(known, counts, 0.0).sum(axis=0), np.nan)
    return Sample(
        a.where,
        a.start_s,
        a.duration_s + b.duration_s,
        a.columns,
        total,
        np.where(known, running, 0.0).sum(axis=0),
        a.enabled_s + b.enabled_s,
    )
