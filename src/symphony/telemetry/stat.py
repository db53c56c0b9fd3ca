"""Counts with error bars: from samples to spans of time, and from those to lines of a table.

A `Place` (a CPU, a socket, a program) takes samples and gives a `Span` for each window, `lag` windows later. Spans add
up: to the intervals that are printed, and to the whole run, in memory that does not grow. What a span says of events
and metrics comes from one belief, so that parts add up to their totals.

Three kinds of counts are told apart. What the kernel counts itself is exact. What had a counter all the time is as it
was counted. Everything else is inferred.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from symphony.telemetry import inference
from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.compiling import Compiled
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.inference import Model, Posterior, Tracker, infer
from symphony.telemetry.samples import Column, Floats, Recording, Sample, record
from symphony.telemetry.wanted import kind

WHOLE = 1 - 1e-4  # share of the time from which a count counts as never interrupted
STEADY = 0.05  # how far from a whole number of CPUs the time of CPUs that are counted can be
MOST = 2e7  # covariances that are held at once
_EVEN = 0.5  # slices are not drawn at random but in turn, and half as far off (measured on simulated programs)
LEAST, MOST_DOUBT = 6, 10.0  # windows from which a spread can be estimated, and the most that it widens intervals
_DOUBT = 5.0  # standard deviations beyond which a count is not believed though it was never interrupted
_EXACT = 1e-5  # relative error of one that is: what is inferred from several has to be able to disagree a little


@dataclass(frozen=True)
class Row:
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


@dataclass(frozen=True)
class Reader:
    """How names in samples are understood."""

    model: Model
    trusted: tuple[Verdict, ...] = ()
    task: bool = False  # a program is counted, not CPUs: where nothing was enabled, nothing ran
    names: Mapping[str, str] = field(default_factory=dict)  # keys of events by what perf calls them
    units: Mapping[str, str] = field(default_factory=dict)  # in which a source gives counts

    def node(self, event: str) -> str:
        """The key of an event."""
        return self.names.get(event.lower()) or self.model.node(event)

    def is_plain(self, event: str) -> bool:
        """Whether it is no business of the PMU: counted by software, and exactly."""
        return kind(event) != "hardware"

    def scale(self, event: str) -> float:
        """What one count is worth in the unit that the source gives it in: 64 where counts of 64 bytes are in bytes."""
        listed = self.model.catalogue.find(self.node(event))
        same = listed and listed.scale_unit and self.units.get(event) == listed.scale_unit
        return listed.scale if listed and same else 1.0

    @lru_cache(maxsize=64)  # noqa: B019 (a reader lives as long as the program)
    def compiled(self, metrics: tuple[str, ...], inputs: tuple[str, ...]) -> Compiled:
        """Metrics as a function of counts."""
        model = self.model
        return model.catalogue.compile(metrics, platform=model.platform, inputs=inputs, xp=np)

    def __hash__(self) -> int:
        return id(self)


# --- Spans -------------------------------------------------------------------------------------------------


@dataclass
class _Part:
    """Windows that were inferred with the same net and the same rates known."""

    net: BayesNet
    bounds: tuple[Identity, ...]
    known: tuple[bool, ...]  # [E]
    mean: Floats  # [N] counts of free events
    cov: Floats  # [N, N]
    enabled_s: float

    def joins(self, other: _Part) -> bool:
        return self.net is other.net and self.known == other.known


@dataclass
class _Tally:
    """An event's readings, as they were."""

    count: float = 0.0
    running_s: float = 0.0
    enabled_s: float = 0.0
    windows: int = 0
    interrupted: int = 0  # windows in which it did not have a counter all the time

    def add(self, other: _Tally) -> None:
        self.count += other.count
        self.running_s += other.running_s
        self.enabled_s += other.enabled_s
        self.windows += other.windows
        self.interrupted += other.interrupted

    @property
    def whole(self) -> bool:
        return self.windows > 0 and not self.interrupted


@dataclass
class Span:
    """What is believed of one place over some time."""

    reader: Reader
    where: str
    start_s: float
    duration_s: float = 0.0
    windows: int = 0
    parts: list[_Part] = field(default_factory=list)
    tallies: dict[str, _Tally] = field(default_factory=dict)  # by key, or by name if plain

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
                last.bounds = part.bounds
            else:
                self.parts.append(replace(part))
        for event, tally in other.tallies.items():
            self.tallies.setdefault(event, _Tally()).add(tally)

    def rows(self, events: Iterable[str], metrics: Sequence[str] = ()) -> list[Row]:
        """Lines about some events and metrics."""
        return [*(self.event(event) for event in events), *self._metrics(tuple(metrics))]

    def event(self, name: str) -> Row:
        """The line of an event."""
        reader = self.reader
        node = name.lower() if reader.is_plain(name) else reader.node(name)
        unit = reader.units.get(name, "")
        listed = reader.model.catalogue.find(node)
        scale = 1.0
        if listed and listed.scale_unit and not reader.is_plain(name):
            scale, unit = listed.scale, listed.scale_unit
        tally = self.tallies.get(node)
        counted = min(float(tally.running_s / tally.enabled_s), 1.0) if tally and tally.enabled_s else 0.0
        if tally and (tally.whole or (tally.windows and reader.is_plain(name))):
            value = tally.count * scale
            return Row("event", name, unit, value, 0.0, value, value, counted)
        mean, std = self._inferred(node)
        mean, std = mean * scale, std * scale
        low, high = max(mean - 1.96 * std, 0.0), mean + 1.96 * std
        if math.isnan(mean):
            low, high = 0.0, math.inf
        return Row("event", name, unit, mean, std, low, high, counted, derived=tally is None and math.isfinite(mean))

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

    def _metrics(self, metrics: tuple[str, ...]) -> list[Row]:
        if not metrics:
            return []
        inputs, counts = self._draws()
        with np.errstate(all="ignore"):
            values = np.asarray(self.reader.compiled(metrics, inputs)(counts))[None]
        found = []
        for at, name in enumerate(metrics):
            unit = self.reader.model.catalogue.metric(name).scale_unit
            mean, std, low, high = (float(x[0]) for x in inference.summary(values[..., at]))
            # Where a denominator may be nothing, a mean can be beyond nearly all that it is the mean of.
            found.append(Row("metric", name, unit, mean, std, min(low, mean), max(high, mean)))
        return found

    def _draws(self) -> tuple[tuple[str, ...], Floats]:
        """Keys, and draws of their counts [S, E]."""
        events = tuple(dict.fromkeys(event for part in self.parts for event in part.net.events))
        counts = np.zeros((inference.DRAWS, len(events)))
        known_s = np.zeros(len(events))
        for seed, part in enumerate(self.parts):
            free = inference.draws(part.net, part.mean[None], part.cov[None], part.bounds, seed)[0]
            into = [events.index(event) for event in part.net.events]
            counts[:, into] += np.maximum(free @ part.net.loading.T, 0) * part.known
            known_s[into] += part.enabled_s * np.array(part.known)
        with np.errstate(divide="ignore", invalid="ignore"):
            counts = np.where(known_s > 0, counts * (sum(part.enabled_s for part in self.parts) / known_s), np.nan)
        plain = {event: tally.count for event, tally in self.tallies.items() if event not in events and tally.windows}
        times = {"duration_time": self.duration_s, "tsc": self.duration_s * self.reader.model.platform.system_tsc_freq}
        rest = {**plain, **times}
        fixed = np.broadcast_to(np.array(list(rest.values())), (len(counts), len(rest)))
        return (*events, *rest), np.hstack([counts, fixed])


# --- From samples to spans ---------------------------------------------------------------------------------


class Place:
    """Turns the samples of one place into spans, one for each window."""

    def __init__(self, reader: Reader, first: Sample) -> None:
        self._reader = reader
        plain = [reader.is_plain(column.event) for column in first.columns]
        self._columns = first.columns
        self._plain = [at for at, is_plain in enumerate(plain) if is_plain]
        self._modelled = [at for at, is_plain in enumerate(plain) if not is_plain]
        self._nodes = [Column(reader.node(first.columns[at].event), first.columns[at].group) for at in self._modelled]
        self._scale = np.array([reader.scale(first.columns[at].event) for at in self._modelled])
        self._tracker = Tracker(reader.model, self._nodes, reader.trusted) if self._nodes else None
        self._nodes = list(self._tracker.columns) if self._tracker else []
        self._pending: deque[tuple[Sample, bool]] = deque()  # windows, and whether nothing ran in them
        self._whole: Posterior | None = None  # of a recording

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What has been found of identities."""
        found = self._whole or self._tracker
        return found.verdicts if found else ()

    @property
    def net(self) -> BayesNet | None:
        """The net in use."""
        found = self._whole or self._tracker
        return found.net if found else None

    def update(self, sample: Sample) -> Iterator[Span]:
        """Take in a window; gives those of which more will not be known."""
        sample = _aligned(sample, self._columns)
        modelled = self._of_pmu(sample)
        idle = self._tracker is None or (self._reader.task and not modelled.enabled_s.any())
        self._pending.append((sample, idle))
        if self._tracker and not idle:
            self._tracker.update(modelled)
            if self._tracker.ready:
                yield from self._idle()
                yield self._span(self._pending.popleft()[0], self._tracker.smoothed(), 0)
        yield from self._idle()

    def finish(self) -> Iterator[Span]:
        """The windows that are left, as nothing will follow them."""
        rest = self._tracker.rest() if self._tracker else None
        at = 0
        while self._pending:
            yield from self._idle()
            if self._pending and rest is not None:
                yield self._span(self._pending.popleft()[0], rest, at)
                at += 1
        if self._tracker and not self._whole:
            self._tracker.look()  # for whoever wants to know what the whole run says

    def spans(self, recording: Recording) -> Iterator[Span]:
        """The windows of a whole recording, each given all of them."""
        samples = [_aligned(sample, self._columns) for sample in recording.samples()]
        pmu = [self._of_pmu(sample) for sample in samples]
        idle = [self._tracker is None or (self._reader.task and not sample.enabled_s.any()) for sample in pmu]
        active = [sample for sample, is_idle in zip(pmu, idle, strict=True) if not is_idle]
        if self._tracker is None or not active or len(active) * len(self._tracker.net.free) ** 2 > MOST:
            for sample in samples:
                yield from self.update(sample)
            yield from self.finish()
            return
        stacked = record(active)[recording.where]
        found = infer(self._reader.model, stacked, trusted=self._reader.trusted)
        more = doubts(stacked, self._reader.model)
        wider = np.array([more.get(event, max(more.values())) for event in found.net.free])
        self._whole = found = replace(found, cov=found.cov * wider[:, None] * wider)
        at = 0
        for sample, is_idle in zip(samples, idle, strict=True):
            yield self._window(sample) if is_idle else self._span(sample, found, at)
            at += not is_idle

    def _idle(self) -> Iterator[Span]:
        while self._pending and self._pending[0][1]:
            yield self._window(self._pending.popleft()[0])

    def _of_pmu(self, sample: Sample) -> Sample:
        at = self._modelled
        count = sample.count[at] / self._scale if at else sample.count[at]
        return replace(
            sample,
            columns=tuple(self._nodes),
            count=count,
            running_s=sample.running_s[at],
            enabled_s=sample.enabled_s[at],
        )

    def _window(self, sample: Sample) -> Span:
        """A window, without what is inferred."""
        span = Span(self._reader, sample.where, sample.start_s, sample.duration_s, 1)
        for at in self._plain:
            tally = span.tallies.setdefault(sample.columns[at].event.lower(), _Tally())
            if np.isfinite(sample.count[at]):
                tally.add(_Tally(sample.count[at], sample.running_s[at], sample.enabled_s[at], 1))
        return span

    def _span(self, sample: Sample, found: Posterior, k: int) -> Span:
        """A window, with what a posterior's window k says of it."""
        span = self._window(sample)
        modelled = self._of_pmu(sample)
        net, enabled = found.net, float(found.enabled_s[k])
        mean, cov = found.mean[k], found.cov[k]
        whole: dict[str, float] = {}
        for at, column in enumerate(self._nodes):
            tally = span.tallies.setdefault(column.event, _Tally(enabled_s=enabled, windows=1))
            tally.running_s += modelled.running_s[at]
            if modelled.running_s[at] >= WHOLE * enabled and 0 <= modelled.count[at] < np.inf:
                whole.setdefault(column.event, float(modelled.count[at]))
        believed = {event: count for event, count in whole.items() if _likely(net, mean, cov, event, count, enabled)}
        for event in {column.event for column in self._nodes}:
            span.tallies[event].interrupted = int(event not in believed)
            span.tallies[event].count = believed.get(event, 0.0)
        mean, cov = _given(net, mean, cov, {event: count / enabled for event, count in believed.items()})
        known = tuple(map(bool, found.known[k]))
        span.parts.append(_Part(net, _bounds(found), known, mean * enabled, cov * enabled**2, enabled))
        return span


def _likely(net: BayesNet, mean: Floats, cov: Floats, event: str, count: float, enabled: float) -> bool:
    row = net.row(event)
    deviation = math.sqrt(max(float(row @ cov @ row), 0.0)) * enabled
    return abs(count - float(row @ mean) * enabled) <= max(_DOUBT * deviation, 0.02 * count, 2.0)


def _given(net: BayesNet, mean: Floats, cov: Floats, rates: Mapping[str, float]) -> tuple[Floats, Floats]:
    """The belief, given that some rates are known."""
    if not rates:
        return mean, cov
    rows = np.stack([net.row(event) for event in rates])
    values = np.array(list(rates.values()))
    noise = np.diag((_EXACT * np.maximum(values, 1.0)) ** 2)
    doubt = rows @ cov @ rows.T + noise
    size = np.sqrt(np.maximum(np.diagonal(doubt), 1e-300))  # rates may differ by many powers of ten
    gain = (
        np.linalg.solve(doubt / np.outer(size, size) + 1e-9 * np.eye(len(size)), rows @ cov / size[:, None]).T
    ) / size
    return np.maximum(mean + gain @ (values - rows @ mean), 0), cov - gain @ rows @ cov


def _bounds(found: Posterior) -> tuple[Identity, ...]:
    """Bounds that nothing speaks against: a share below zero would help nobody."""
    known = set(found.net.events)
    return tuple(
        verdict.identity
        for verdict in found.verdicts
        if verdict.identity.relation == ">="
        and (verdict.accepted or not verdict.tested)
        and known.issuperset(verdict.identity.events)
    )


def _aligned(sample: Sample, columns: tuple[Column, ...]) -> Sample:
    """A sample with the columns of its place's first."""
    if sample.columns == columns:
        return sample
    at = {column: number for number, column in enumerate(sample.columns)}
    have = [at.get(column) for column in columns]

    def pick(values: Floats, missing: float) -> Floats:
        return np.array([missing if place is None else values[place] for place in have])

    return replace(
        sample,
        columns=columns,
        count=pick(sample.count, np.nan),
        running_s=pick(sample.running_s, 0.0),
        enabled_s=pick(sample.enabled_s, 0.0),
    )


def doubts(recording: Recording, model: Model) -> dict[str, float]:
    """By how much the events of a recording are less certain than the model has it, for want of knowing better.

    How far the slices of a window differ is learned from events that are counted twice in a window. Where none is, as
    in most logs, all that there is to go by is how far windows differ: were slices drawn at random, readings of n
    slices would differ by their spread over sqrt(n). Programs that change slowly differ more, and are believed to be
    less well known than they are.
    """
    found: dict[str, float] = {}
    for event in dict.fromkeys(column.event for column in recording.columns):
        own = [at for at, column in enumerate(recording.columns) if column.event == event]
        running, count = recording.running_s[:, own[0]], recording.count[:, own[0]]
        seen = (running > 0) & (count >= 0) & (count < np.inf) & (running < WHOLE * recording.enabled_s[:, own[0]])
        found[event] = 1.0
        if len(own) == 1 and seen.sum() >= LEAST:
            rate = count[seen] / running[seen]
            change = np.abs(np.diff(rate)) / np.maximum(
                0.5 * (rate[1:] + rate[:-1]), 1e-30
            )  # jumps are few: the median
            slices = float(np.median(running[seen])) / model.slice_s
            spread = _EVEN * float(np.median(change)) * math.sqrt(max(slices, 1.0))
            found[event] = min(max(spread / float(model.parameters.spread), 1.0), MOST_DOUBT)
    return found


def counts_a_task(recording: Recording) -> bool:
    """Whether a log is of a program, which does not run all the time, and not of CPUs, which do."""
    enabled = np.nanmax(np.where(np.isfinite(recording.enabled_s), recording.enabled_s, 0.0), axis=1, initial=0.0)
    ratio = (enabled / np.maximum(recording.duration_s, 1e-9))[enabled > 0]
    return bool(np.mean(np.abs(ratio - np.maximum(np.round(ratio), 1)) > STEADY) > 0.1) if len(ratio) else False


# --- A run -------------------------------------------------------------------------------------------------


class Run:
    """All places of a run: takes samples, gives spans of `every` windows, and keeps the totals."""

    def __init__(self, reader_of: Callable[[Sample], Reader], every: int = 1) -> None:
        self._reader_of, self._every = reader_of, every
        self.places: dict[str, Place] = {}
        self.totals: dict[str, Span] = {}
        self._open: dict[str, Span] = {}

    @property
    def windows(self) -> int:
        """The most that any place has seen."""
        return max((span.windows for span in self.totals.values()), default=0)

    def update(self, sample: Sample) -> Iterator[Span]:
        """Take in a window; gives the spans that are complete."""
        if sample.where not in self.places:
            self.places[sample.where] = Place(self._reader_of(sample), sample)
        yield from self._take(self.places[sample.where].update(sample))

    def replay(self, recording: Recording) -> Iterator[Span]:
        """Take in all windows of a place at once."""
        if not len(recording):
            return
        first = next(recording.samples())
        self.places[recording.where] = Place(self._reader_of(first), first)
        yield from self._take(self.places[recording.where].spans(recording))

    def finish(self) -> Iterator[Span]:
        """The spans that are left."""
        for place in self.places.values():
            yield from self._take(place.finish())
        yield from (span for span in self._open.values() if span.windows)
        self._open = {}

    def _take(self, spans: Iterable[Span]) -> Iterator[Span]:
        for span in spans:
            for sums in (self.totals, self._open):
                if span.where in sums:
                    sums[span.where].add(span)
                else:
                    sums[span.where] = empty = Span(span.reader, span.where, span.start_s)
                    empty.add(span)
            if self._open[span.where].windows >= self._every:
                yield self._open.pop(span.where)
