"""Estimated counts over spans of time. Spans add up: windows to intervals, intervals to a whole run.

Three kinds of counts are distinguished. Counts by the kernel are exact. Events that had a counter all the time are
reported as counted. All other events are inferred. The events and metrics of a span come from one belief, so parts add
up to their totals. Missing time is filled in proportionally, which widens the interval by as much.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.reading import SECONDS, TSC, Reader
from symphony.telemetry.samples import Floats

DRAWS = 256  # Monte Carlo draws of a belief, for metrics, which are not linear
_MAX_BOUND_PASSES = 50  # of the projection onto the bounds
_BOUND_TOLERANCE = 1e-9  # relative


@dataclass(frozen=True)
class StatRow:
    """The row of one event's count, or one metric's value."""

    kind: str  # "event" or "metric"
    name: str
    unit: str
    value: float  # NaN if nothing is known
    std: float
    lower: float  # of the 95% interval
    upper: float
    counted: float | None = None  # share of the time with a counter; None for metrics
    derived: bool = False  # never counted: it follows from other events
    runs: int = 1  # of which it is the mean …
    over_runs: float = math.nan  # … and half of the 95% interval of that mean, by how much the runs differ

    def per_second(self, seconds: float) -> float:
        """The rate of an event in a time; NaN of a metric."""
        return self.value / seconds if self.kind == "event" and seconds > 0 else math.nan

    @property
    def half_width(self) -> float:
        """Half of the 95% interval."""
        return (self.upper - self.lower) / 2


@dataclass
class Part:
    """Windows that were inferred with the same network and the same known rates."""

    net: BayesNet
    known: tuple[bool, ...]  # [E]
    mean: Floats  # [N] counts of free events
    cov: Floats  # [N, N]
    enabled_s: float

    def joins(self, other: Part) -> bool:
        return self.net is other.net and self.known == other.known


@dataclass
class Tally:
    """Readings of one event; scaled up if no network has the event."""

    count: float = 0.0
    running_s: float = 0.0
    enabled_s: float = 0.0
    known_s: float = 0.0  # length of the windows with a reading …
    missing_s: float = 0.0  # … and of those without
    interrupted: int = 0  # windows in which it had no counter part of the time
    variance: float = 0.0  # of the count, where it was scaled up
    unit: str = ""  # of the count, as the source gives it

    def add(self, other: Tally) -> None:
        self.count += other.count
        self.running_s += other.running_s
        self.enabled_s += other.enabled_s
        self.known_s += other.known_s
        self.missing_s += other.missing_s
        self.interrupted += other.interrupted
        self.variance += other.variance
        self.unit = self.unit or other.unit

    @property
    def whole(self) -> bool:
        """Whether the event had a counter all the time."""
        return self.known_s > 0 and not self.missing_s and not self.interrupted

    @property
    def share(self) -> float:
        """Share of the time with a counter."""
        if self.whole:
            return 1.0
        running = min(self.running_s / self.enabled_s, 1.0) if self.enabled_s else 0.0
        length = self.known_s + self.missing_s
        return float(running * (self.known_s / length if length else 0.0))

    @property
    def estimate(self) -> tuple[float, float]:
        """Mean and standard deviation of the count, from this event's readings alone."""
        if not self.known_s:
            return math.nan, math.inf
        more = 1 + self.missing_s / self.known_s
        return self.count * more, math.hypot(math.sqrt(self.variance) * more, self.count * (more - 1))


@dataclass
class Span:
    """The belief about one place over a span of time."""

    reader: Reader
    where: str
    start_s: float
    duration_s: float = 0.0
    windows: int = 0
    parts: list[Part] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)  # by key of the event

    @property
    def end_s(self) -> float:
        return self.start_s + self.duration_s

    def add(self, other: Span) -> None:
        """Append a later span."""
        self.duration_s = max(self.end_s, other.end_s) - self.start_s
        self.windows += other.windows
        for part in other.parts:
            if self.parts and self.parts[-1].joins(part):
                last = self.parts[-1]
                last.mean, last.cov = last.mean + part.mean, last.cov + part.cov
                last.enabled_s += part.enabled_s
            else:
                self.parts.append(replace(part))
        for event, tally in other.tallies.items():
            self.tallies.setdefault(event, Tally()).add(tally)

    def rows(self, events: Iterable[str], metrics: Sequence[str] = ()) -> list[StatRow]:
        return [*(self.event(event) for event in events), *self.metrics(tuple(metrics))]

    def event(self, name: str) -> StatRow:
        node = self.reader.node(name)
        tally = self.tallies.get(node)
        scale, unit = self.reader.worth(name)
        unit = unit or (tally.unit if tally else "")
        counted = tally.share if tally else 0.0
        if tally and tally.whole and not tally.variance:
            value = tally.count * scale
            return StatRow("event", name, unit, value, 0.0, value, value, counted)
        mean, std = self._inferred(node)
        if math.isnan(mean) and tally and self.reader.is_plain(name):
            mean, std = tally.estimate
        mean, std = mean * scale, std * scale
        low, high = max(mean - 1.96 * std, 0.0), mean + 1.96 * std
        if math.isnan(mean):
            low, high = 0.0, math.inf
        return StatRow(
            "event", name, unit, mean, std, low, high, counted, derived=tally is None and math.isfinite(mean)
        )

    def _inferred(self, node: str) -> tuple[float, float]:
        """Mean and standard deviation of an event's count, extrapolated to windows in which it is unknown."""
        mean, variance, slack, known_s = 0.0, 0.0, 0.0, 0.0
        for part in self.parts:
            if node not in part.net.events or not part.known[at := part.net.events.index(node)]:
                continue
            row = part.net.loading[at]
            own = max(float(row @ part.mean), 0.0)
            mean, variance = mean + own, variance + max(float(row @ part.cov @ row), 0.0)
            slack, known_s = slack + own * float(part.net.slack[at]), known_s + part.enabled_s
        if not known_s:
            return math.nan, math.inf
        more = sum(part.enabled_s for part in self.parts) / known_s
        return mean * more, math.hypot(math.sqrt(variance) * more, slack * more, mean * (more - 1))

    def metrics(self, metrics: tuple[str, ...]) -> list[StatRow]:
        """Rows of metrics, all from the same draws: what adds up in every draw adds up in the means."""
        if not metrics:
            return []
        inputs, counts = self._draws()
        with np.errstate(all="ignore"):
            values = np.asarray(self.reader.compiled(metrics, inputs)(counts))
        found = []
        for at, name in enumerate(metrics):
            unit = self.reader.model.catalogue.metric(name).scale_unit
            mean, std, low, high = summary(values[..., at])
            # If a denominator may be near zero, the mean can lie outside the quantiles: include it. Shares, rates and
            # ratios are not negative, so the interval is cut at 0, unless the mean itself shows that the metric is.
            low = max(min(low, mean), 0.0) if mean >= 0 else min(low, mean)
            found.append(StatRow("metric", name, unit, mean, std, low, max(high, mean)))
        return found

    def _draws(self) -> tuple[tuple[str, ...], Floats]:
        """Keys of events, and draws of their counts [S, E]."""
        events = tuple(dict.fromkeys(event for part in self.parts for event in part.net.events))
        counts = np.zeros((DRAWS, len(events)))
        known_s = np.zeros(len(events))
        for seed, part in enumerate(self.parts):
            free = draws(part.net, part.mean, part.cov, seed)
            into = [events.index(event) for event in part.net.events]
            counts[:, into] += np.maximum(free @ part.net.loading.T, 0) * part.known
            known_s[into] += part.enabled_s * np.array(part.known)
        with np.errstate(divide="ignore", invalid="ignore"):
            counts = np.where(known_s > 0, counts * (sum(part.enabled_s for part in self.parts) / known_s), np.nan)
        for at, event in enumerate(events):
            tally = self.tallies.get(event)
            if tally and tally.whole and not tally.count and not tally.variance:
                counts[:, at] = 0.0  # it never happened: a ratio to it is unknown, not a ratio of errors
        rest = {TSC: np.full(DRAWS, self.duration_s * self.reader.model.platform.system_tsc_freq)}
        for event, tally in self.tallies.items():
            if event not in events and tally.known_s:
                mean, std = tally.estimate
                rest[event] = np.maximum(mean + std * _normal(1, len(rest))[:, 0], 0) if std else np.full(DRAWS, mean)
        rest[SECONDS] = np.full(DRAWS, self.duration_s)
        rest = {event: values for event, values in rest.items() if event not in events}
        return (*events, *rest), np.hstack([counts, *(values[:, None] for values in rest.values())])


def draws(net: BayesNet, mean: Floats, cov: Floats, seed: int = 0) -> Floats:
    """Draws of the counts of free events [S, N]: none negative, all within the network's bounds."""
    free = np.maximum(mean + _normal(len(net.free), seed) @ _root(cov), 0)
    rows = [net.combined(bound) for bound in net.bounds]
    towards = [(row, cov @ row / max(float(row @ cov @ row), 1e-300)) for row in rows]
    for _ in range(_MAX_BOUND_PASSES):
        off = False
        for row, along in towards:  # along the direction of least Mahalanobis distance
            below = np.minimum(free @ row, 0)
            if (below < -_BOUND_TOLERANCE * (np.abs(free) @ np.abs(row))).any():
                free, off = np.maximum(free - below[:, None] * along, 0), True
        if not off:
            break
    return free


@lru_cache(maxsize=32)
def _normal(size: int, seed: int = 0) -> Floats:
    """Fixed standard normal draws [S, N], with their mirror images, so that means of linear functions are exact."""
    half = np.random.default_rng(seed).standard_normal((DRAWS // 2, size))
    return np.concatenate([half, -half])


def _root(cov: Floats) -> Floats:
    """A matrix R [N, N] with RᵀR = cov, also if the covariance has small negative eigenvalues."""
    values, vectors = np.linalg.eigh(cov)
    return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T


def summary(draws: Floats) -> tuple[float, float, float, float]:
    """Mean, standard deviation and ends of the 95% interval over draws [S]; NaN if no draw is finite."""
    known = draws[np.isfinite(draws)]
    if not len(known):
        return math.nan, math.nan, math.nan, math.nan
    low, high = np.quantile(known, [0.025, 0.975])
    return float(known.mean()), float(known.std()), float(low), float(high)
