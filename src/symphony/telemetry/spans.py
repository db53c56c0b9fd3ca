"""Counts with error bars over spans of time, which add up: windows to intervals, intervals to a whole run.

Three kinds of counts are told apart. What the kernel counts itself is exact. What had a counter all the time is as it
was counted. Everything else is inferred. What a span says of events and metrics comes from one belief, so that parts
add up to their totals; what is missing of the time is made up for in proportion, and widens the interval by as much.
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

DRAWS = 256  # of a belief, for what is not linear in it
_MAX_BOUND_PASSES = 50  # over the bounds, at most
_BOUND_TOLERANCE = 1e-9  # to a bound: relative


@dataclass(frozen=True)
class StatRow:
    """One line: an event's count, or a metric's value."""

    kind: str  # "event" or "metric"
    name: str
    unit: str
    value: float  # NaN if nothing is known
    std: float
    lower: float  # of the 95% interval
    upper: float
    counted: float | None = None  # share of the time for which the event had a counter; None for metrics
    derived: bool = False  # never counted: it follows from others

    @property
    def half_width(self) -> float:
        """Half of the 95% interval."""
        return (self.upper - self.lower) / 2


@dataclass
class Part:
    """Windows that were inferred with the same net and the same rates known."""

    net: BayesNet
    known: tuple[bool, ...]  # [E]
    mean: Floats  # [N] counts of free events
    cov: Floats  # [N, N]
    enabled_s: float

    def joins(self, other: Part) -> bool:
        """Whether both can be one."""
        return self.net is other.net and self.known == other.known


@dataclass
class Tally:
    """An event's readings: as they were or, for what no net knows, scaled up."""

    count: float = 0.0
    running_s: float = 0.0
    enabled_s: float = 0.0
    known_s: float = 0.0  # length of the windows in which it was read …
    missing_s: float = 0.0  # … and of those in which it was not
    interrupted: int = 0  # windows in which it did not have a counter all the time
    variance: float = 0.0  # of the count, where it was scaled up
    unit: str = ""  # in which the source gives it

    def add(self, other: Tally) -> None:
        """Take in another window's."""
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
        """Whether it was never interrupted."""
        return self.known_s > 0 and not self.missing_s and not self.interrupted

    @property
    def share(self) -> float:
        """Of the time, with a counter."""
        if self.whole:
            return 1.0
        running = min(self.running_s / self.enabled_s, 1.0) if self.enabled_s else 0.0
        length = self.known_s + self.missing_s
        return float(running * (self.known_s / length if length else 0.0))

    @property
    def estimate(self) -> tuple[float, float]:
        """Mean and deviation of the count, from nothing but itself."""
        if not self.known_s:
            return math.nan, math.inf
        more = 1 + self.missing_s / self.known_s
        return self.count * more, math.hypot(math.sqrt(self.variance) * more, self.count * (more - 1))


@dataclass
class Span:
    """What is believed of one place over some time."""

    reader: Reader
    where: str
    start_s: float
    duration_s: float = 0.0
    windows: int = 0
    parts: list[Part] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)  # by key, or by name if plain

    @property
    def end_s(self) -> float:
        """When it ended."""
        return self.start_s + self.duration_s

    def add(self, other: Span) -> None:
        """Take in what followed."""
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
        """Lines about some events and metrics."""
        return [*(self.event(event) for event in events), *self.metrics(tuple(metrics))]

    def event(self, name: str) -> StatRow:
        """The line of an event."""
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
        """Mean and deviation of an event's count; what is missing of the time is made up for, and widens it."""
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
        """The lines of metrics, all from the same draws: what adds up in every draw adds up in the means."""
        if not metrics:
            return []
        inputs, counts = self._draws()
        with np.errstate(all="ignore"):
            values = np.asarray(self.reader.compiled(metrics, inputs)(counts))
        found = []
        for at, name in enumerate(metrics):
            unit = self.reader.model.catalogue.metric(name).scale_unit
            mean, std, low, high = summary(values[..., at])
            # Where a denominator may be nothing, a mean can be beyond nearly all that it is the mean of. Shares, rates
            # and ratios are not negative, whatever a difference that is not well known would allow; if the mean is,
            # the metric does not mean what it says, and that is not hidden.
            low = max(min(low, mean), 0.0) if mean >= 0 else min(low, mean)
            found.append(StatRow("metric", name, unit, mean, std, low, max(high, mean)))
        return found

    def _draws(self) -> tuple[tuple[str, ...], Floats]:
        """Keys, and draws of their counts [S, E]."""
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
        rest = {TSC: np.full(DRAWS, self.duration_s * self.reader.model.platform.system_tsc_freq)}
        for event, tally in self.tallies.items():
            if event not in events and tally.known_s:
                mean, std = tally.estimate
                rest[event] = np.maximum(mean + std * _normal(1, len(rest))[:, 0], 0) if std else np.full(DRAWS, mean)
        rest[SECONDS] = np.full(DRAWS, self.duration_s)
        rest = {event: values for event, values in rest.items() if event not in events}
        return (*events, *rest), np.hstack([counts, *(values[:, None] for values in rest.values())])


def draws(net: BayesNet, mean: Floats, cov: Floats, seed: int = 0) -> Floats:
    """Draws of free counts [S, N]: none negative, all within the net's bounds."""
    free = np.maximum(mean + _normal(len(net.free), seed) @ _root(cov), 0)
    rows = [net.combined(bound) for bound in net.bounds]
    towards = [(row, cov @ row / max(float(row @ cov @ row), 1e-300)) for row in rows]
    for _ in range(_MAX_BOUND_PASSES):
        off = False
        for row, along in towards:  # by the least likely amount: what a bound takes from one it gives to another
            below = np.minimum(free @ row, 0)
            if (below < -_BOUND_TOLERANCE * (np.abs(free) @ np.abs(row))).any():
                free, off = np.maximum(free - below[:, None] * along, 0), True
        if not off:
            break
    return free


@lru_cache(maxsize=32)
def _normal(size: int, seed: int = 0) -> Floats:
    """Fixed standard normal draws [S, N], with their mirror images: means of linear things are exact."""
    half = np.random.default_rng(seed).standard_normal((DRAWS // 2, size))
    return np.concatenate([half, -half])


def _root(cov: Floats) -> Floats:
    """A matrix R [N, N] with RᵀR = cov, for a covariance that is not quite positive, too."""
    values, vectors = np.linalg.eigh(cov)
    return np.sqrt(np.maximum(values, 0))[:, None] * vectors.T


def summary(draws: Floats) -> tuple[float, float, float, float]:
    """Mean, deviation and bounds of the 95% interval over draws [S]; NaN if none has a value."""
    known = draws[np.isfinite(draws)]
    if not len(known):
        return math.nan, math.nan, math.nan, math.nan
    low, high = np.quantile(known, [0.025, 0.975])
    return float(known.mean()), float(known.std()), float(low), float(high)
