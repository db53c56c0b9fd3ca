"""From readings to beliefs with names: what a `posterior.Belief` says of events and metrics.

    posterior = infer(model("sapphirerapids"), read_perf("perf.json"))
    posterior["ipc"].mean, posterior["ipc"].std

`Tracker` is the same for readings that are still coming. Both are the only way from readings to numbers: `symphony
stat` adds names and lines.

Rates are of the longest time for which any event of a window was enabled, so that those of all events compare: CPUs'
counts are summed over CPUs, a memory controller's over controllers, and so are the times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count

import numpy as np
from numpy.typing import NDArray

from symphony.problem.errors import InputError
from symphony.telemetry import bayes_net, gate, posterior
from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.expressions import key
from symphony.telemetry.gate import Verdict
from symphony.telemetry.naming import bare
from symphony.telemetry.posterior import Belief, Window, Wiring
from symphony.telemetry.reading import CLOCKS, Model, Reader
from symphony.telemetry.samples import Column, Floats, Recording, Sample
from symphony.telemetry.spans import Part, Row, Span, Tally

AGAIN = 16  # windows that are gone through again when the net changes
WHOLE = 1 - 1e-4  # share of the time from which a count counts as never interrupted
_DOUBT = 5.0  # standard deviations beyond which a count is not believed though it was never interrupted
_EXACT = 1e-5  # relative error of one that is: what is inferred from several has to be able to disagree a little
_BURSTS = 1.0  # relative deviation between slices of what the kernel counts itself, such as page faults
_EVEN = 0.5  # slices are not drawn at random but in turn, and half as far off (measured on simulated programs)
LEAST, MOST_DOUBT = 6, 10.0  # windows from which a spread can be estimated, and the most that it widens intervals


@dataclass(frozen=True, eq=False)
class Estimate:
    """A quantity, window by window."""

    name: str
    unit: str
    mean: Floats  # [K]; NaN where nothing is known
    std: Floats  # [K]
    lower: Floats  # [K]: of the 95% interval
    upper: Floats  # [K]


@dataclass(frozen=True, eq=False)
class Posterior:
    """Beliefs about one place."""

    reader: Reader
    net: BayesNet
    spans: tuple[Span, ...]  # one for each window
    verdicts: tuple[Verdict, ...] = ()

    def __repr__(self) -> str:
        place = f" of {self.where}" if self.where else ""
        events = f"{len(self.net.events)} events, {len(self.net.free)} of them free"
        return f"<Posterior{place}: {len(self)} windows, {events}, {self.model.catalogue.name}>"

    def __len__(self) -> int:
        return len(self.spans)

    def __getitem__(self, name: str) -> Estimate:
        """The belief about an event's count, or a metric."""
        return self._estimates([name], self.spans)[name]

    def metrics(self, names: Sequence[str]) -> dict[str, Estimate]:
        """Beliefs about metrics, all from the same draws: what adds up in every draw adds up in the means."""
        return _estimates(names, [span.metrics(tuple(names)) for span in self.spans])

    def events(self) -> dict[str, Estimate]:
        """Beliefs about all events, counted and derived."""
        return self._estimates(tuple(dict.fromkeys((*self.net.events, *self.whole.tallies))), self.spans)

    def total(self, name: str) -> Estimate:
        """The count of an event, or the value of a metric, over all windows together."""
        return self._estimates([name], [self.whole])[name]

    @cached_property
    def whole(self) -> Span:
        """All windows together."""
        whole = Span(self.reader, self.where, self.spans[0].start_s if self.spans else 0.0)
        for span in self.spans:
            whole.add(span)
        return whole

    @property
    def model(self) -> Model:
        """What was known before."""
        return self.reader.model

    @property
    def where(self) -> str:
        """The place."""
        return self.spans[0].where if self.spans else ""

    @property
    def start_s(self) -> Floats:
        """When windows began [K]."""
        return np.array([span.start_s for span in self.spans])

    @property
    def duration_s(self) -> Floats:
        """How long they were [K]."""
        return np.array([span.duration_s for span in self.spans])

    def is_event(self, name: str) -> bool:
        """Whether it is an event that was counted, or follows from those that were."""
        label = self.reader.label(name)
        return label in self.net.events or label in self.whole.tallies

    def _estimates(self, names: Sequence[str], spans: Sequence[Span]) -> dict[str, Estimate]:
        metrics = [name for name in names if not self.is_event(name)]
        known = self.model.catalogue.definitions()
        if unknown := [name for name in metrics if key(name) not in known]:
            events = ", ".join(self.net.events[:6])
            raise InputError(
                f"{unknown[0]} was not counted, and {self.model.catalogue.name} has no metric {unknown[0]}",
                hint=f"events: {events}{', …' if len(self.net.events) > 6 else ''}; or the name of a metric",
            )
        if metrics:
            return _estimates(names, [span.metrics(tuple(names)) for span in spans])
        return _estimates(names, [span.rows(names) for span in spans])


def _estimates(names: Sequence[str], rows: Sequence[Sequence[Row]]) -> dict[str, Estimate]:
    """Rows of windows [K][names] side by side."""

    def column(at: int, of: Callable[[Row], float]) -> Floats:
        return np.array([of(row[at]) for row in rows], dtype=float)

    return {
        name: Estimate(
            name,
            next((row[at].unit for row in rows if row[at].unit), ""),
            column(at, lambda row: row.value),
            column(at, lambda row: row.std),
            column(at, lambda row: row.lower),
            column(at, lambda row: row.upper),
        )
        for at, name in enumerate(names)
    }


class Tracker:
    """Beliefs about one place while readings come in."""

    def __init__(self, model: Model | Reader, columns: Sequence[Column], trusted: Iterable[Verdict] = ()) -> None:
        """`trusted` are verdicts of an earlier run, for identities that this one cannot test."""
        self.reader = _reader(model, columns, trusted)
        self.model = self.reader.model
        self._columns = _Columns(self.reader, tuple(columns))
        self.lag = self.model.lag if self._columns.nodes else 0  # what is exact need not wait
        self._events = _spoken_of(self._columns.nodes, self.reader.trusted)
        self._gate = gate.Gate(self.model.claims(self._events))
        self._windows, self._next_look = 0, 8
        self._found: tuple[Verdict, ...] = ()
        self._recent: deque[Sample] = deque(maxlen=max(AGAIN, 1 + self.lag))
        self._kept: list[tuple[Sample, Belief | None]] = []
        self._ever = np.zeros(len(columns), dtype=bool)  # columns that have been enabled at all
        self._belief: Belief
        self._use(self._verdicts())

    @property
    def net(self) -> BayesNet:
        """The net in use."""
        return self._net

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """What has been found of every identity."""
        return self._found

    def update(self, sample: Sample) -> None:
        """Take in one window."""
        sample = _aligned(sample, self._columns.all)
        self._ever |= sample.enabled_s > 0
        if self._columns.nodes and not self._columns.asleep(sample):
            self._gate.update(self._columns.of_pmu(sample))
            self._windows += 1
            if self._windows >= self._next_look:
                self._next_look *= 2
                self.look()
        self._recent.append(sample)
        self._take(sample)

    def look(self) -> None:
        """Test identities on all windows so far. `update` does it after 8, 16, 32, … windows."""
        if gate.accepted(self._found) != gate.accepted(new := self._verdicts()):
            self._use(new)
        self._found = new

    def latest(self) -> Posterior:
        """What is believed of the newest window."""
        return self._posterior(self._kept[-1:])

    def smoothed(self) -> Posterior:
        """What is believed of the window `lag` windows ago, given those since."""
        return self._posterior(_smooth(self._kept)[:1])

    def rest(self) -> Posterior:
        """What is believed of the newest windows, which `smoothed` has not told yet: `lag` of them, or all."""
        return self._posterior(_smooth(self._kept[-self.lag :] if self.lag else []))

    @property
    def ready(self) -> bool:
        """Whether `smoothed` is of a window that `lag` others have followed."""
        return len(self._kept) > self.lag

    def _take(self, sample: Sample) -> None:
        belief = None
        if self._columns.nodes and not self._columns.asleep(sample):
            belief = self._belief = _step(self.model, self._wiring, self._belief, self._columns.of_pmu(sample))
        self._kept = [*self._kept, (sample, belief)][-1 - self.lag :]

    def _posterior(self, kept: Sequence[tuple[Sample, Belief | None]]) -> Posterior:
        return _named(self._columns, self._net, kept, self._ever, self._found)

    def _verdicts(self) -> tuple[Verdict, ...]:
        return _together(self.reader.trusted, self._gate.verdicts())

    def _use(self, verdicts: tuple[Verdict, ...]) -> None:
        """Begin again with the identities that are accepted now, and with the last windows."""
        self._found = verdicts
        self._net = bayes_net.build(self._events, gate.accepted(verdicts), self.model.parameters)
        self._kept = []
        if self._columns.nodes:
            self._wiring = self._net.wiring(self._columns.nodes)
            self._belief = posterior.start(np, self._wiring, self.model.parameters)
        for sample in self._recent:
            self._take(sample)


def infer(
    model: Model | Reader,
    readings: Recording | Mapping[str, Recording],
    *,
    smooth: bool = True,
    trusted: Iterable[Verdict] = (),
    where: str | None = None,
) -> Posterior:
    """What the counts were, given a whole recording.

    Identities are tested on the recording before they are used. A log of several places needs `where`.
    """
    recording = _one(readings, where)
    reader = _reader(model, recording.columns, trusted)
    model, columns = reader.model, _Columns(reader, recording.columns)
    samples = list(recording.samples())
    awake = [sample for sample in samples if columns.nodes and not columns.asleep(sample)]
    events = _spoken_of(columns.nodes, reader.trusted)
    pmu = _stacked([columns.of_pmu(sample) for sample in awake], columns.nodes, recording)
    verdicts = _together(reader.trusted, gate.judge(model.claims(events), pmu))
    net = bayes_net.build(events, gate.accepted(verdicts), model.parameters)
    beliefs = []
    if awake:
        wiring = net.wiring(columns.nodes)
        belief = posterior.start(np, wiring, model.parameters)
        for sample in pmu.samples():
            belief = _step(model, wiring, belief, sample)
            beliefs.append(belief)
        beliefs = posterior.smooth(np, beliefs) if smooth else beliefs
        more = doubts(pmu, model)
        wider = np.array([more.get(event, max(more.values())) for event in net.free])
        beliefs = [belief._replace(cov=belief.cov * wider[:, None] * wider) for belief in beliefs]
    found = dict(zip(map(id, awake), beliefs, strict=True))
    kept = [(sample, found.get(id(sample))) for sample in samples]
    return _named(columns, net, kept, np.any(recording.enabled_s > 0, axis=0), verdicts)


def _reader(model: Model | Reader, columns: Iterable[Column], trusted: Iterable[Verdict]) -> Reader:
    """Who understands these columns."""
    if not isinstance(model, Model | Reader):
        raise InputError(f"{model!r} is no model", hint='infer(model("sapphirerapids"), readings)')
    trusted = tuple(trusted)
    if wrong := [one for one in trusted if not isinstance(one, Verdict)]:
        raise InputError(f"{wrong[0]!r} is no verdict", hint="trusted=earlier.verdicts, of an earlier posterior")
    reader = model if isinstance(model, Reader) else Reader(model, trusted)
    return reader.among(column.event for column in columns)


# --- Readings ----------------------------------------------------------------------------------------------


class _Columns:
    """The columns of a place: those of the PMU, which are inferred, and the kernel's own, which are as they are."""

    def __init__(self, reader: Reader, columns: tuple[Column, ...]) -> None:
        self.reader, self.all = reader, columns
        self.plain = [at for at, column in enumerate(columns) if reader.is_plain(column.event)]
        self.modelled = [at for at in range(len(columns)) if at not in self.plain]
        self.nodes = _nodes(reader, [columns[at] for at in self.modelled])
        self._clocks = np.array([bare(column.event).lower() in CLOCKS for column in columns], dtype=bool)

    def of_pmu(self, sample: Sample) -> Sample:
        """What a sample has of the PMU, by keys, in plain counts."""
        at, units = self.modelled, sample.units
        events = [self.all[number].event for number in at]
        scale = np.array([self.reader.scale(event, units.get(event, "")) for event in events])
        return replace(
            sample,
            columns=self.nodes,
            count=sample.count[at] / scale,
            running_s=sample.running_s[at],
            enabled_s=sample.enabled_s[at],
        )

    def asleep(self, sample: Sample) -> bool:
        """Whether what is counted did not run: nothing wanted a counter, and nothing happened."""
        return not (sample.enabled_s[~self._clocks] > 0).any()


def _nodes(reader: Reader, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Columns by the keys of their events, each once in a group: `cycles:p` beside `cycles:pp` is one more reading."""
    found: dict[Column, None] = {}
    spare = count(1 + max((column.group for column in columns), default=0))
    for column in columns:
        named = replace(column, event=reader.node(column.event))
        found[replace(named, group=next(spare)) if named in found else named] = None
    return tuple(found)


def _stacked(samples: Sequence[Sample], columns: tuple[Column, ...], like: Recording) -> Recording:
    """Samples with the same columns, of which there may be none."""

    def stack(of: Callable[[Sample], Floats]) -> Floats:
        return np.array([of(sample) for sample in samples]).reshape(len(samples), len(columns))

    return Recording(
        like.where,
        columns,
        np.array([sample.start_s for sample in samples]),
        np.array([sample.duration_s for sample in samples]),
        stack(lambda sample: sample.count),
        stack(lambda sample: sample.running_s),
        stack(lambda sample: sample.enabled_s),
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


def _spoken_of(columns: Iterable[Column], trusted: Iterable[Verdict]) -> tuple[str, ...]:
    """The events that are counted, and those that follow from them by what is known to hold."""
    counted = (column.event for column in columns)
    derived = (event for verdict in trusted if verdict.accepted for event in verdict.identity.events)
    return tuple(dict.fromkeys((*counted, *derived)))


def _together(trusted: Iterable[Verdict], here: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Verdicts of an earlier run and of this one, which counts where it could test."""
    before = {verdict.identity.name: verdict for verdict in trusted}
    found = {verdict.identity.name: verdict for verdict in here}
    return tuple(
        before[name] if name in before and not verdict.tested else verdict
        for name, verdict in {**before, **found}.items()
    )


def _one(readings: Recording | Mapping[str, Recording], where: str | None) -> Recording:
    if isinstance(readings, Recording):
        return readings
    if not isinstance(readings, Mapping):
        raise InputError(f"{readings!r} are no readings", hint='infer(…, read_perf("perf.json"))')
    if where is None and len(readings) == 1:
        return next(iter(readings.values()))
    if where is not None and where in readings:
        return readings[where]
    places = ", ".join(repr(place) for place in sorted(readings)) or "none"
    if where is not None:
        raise InputError(f"there are no readings of {where!r}", hint=f"where= one of these: {places}")
    raise InputError(f"the readings are of these places: {places}", hint="say which one: infer(…, where=…)")


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
            middle = np.maximum(0.5 * (rate[1:] + rate[:-1]), 1e-30)
            change = float(np.median(np.abs(np.diff(rate)) / middle))  # jumps are few
            slices = float(np.median(running[seen])) / model.slice_s
            spread = _EVEN * change * math.sqrt(max(slices, 1.0))
            found[event] = min(max(spread / float(model.parameters.spread), 1.0), MOST_DOUBT)
    return found


# --- Beliefs -----------------------------------------------------------------------------------------------


def _step(model: Model, wiring: Wiring, belief: Belief, sample: Sample) -> Belief:
    """One window. A sample that says nothing leaves only time behind."""
    longest = _longest(sample)
    enabled = np.where(sample.enabled_s > 0, np.minimum(sample.enabled_s, longest), longest)
    running = np.where(np.isfinite(sample.count) & (sample.count >= 0), sample.running_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(running > 0, sample.count / running * (enabled / longest), 0.0)
    slices = np.minimum(running, enabled) / model.slice_s
    total = np.maximum(enabled / model.slice_s, 1e-6)
    window = Window(rate, slices, total, np.asarray(1 / max(longest, 1e-9)))
    if not slices.any():
        return posterior.ahead(np, belief, np.asarray(1.0))
    return posterior.update(np, wiring, model.parameters, belief, window)


def _longest(sample: Sample) -> float:
    """The time that rates are of."""
    known = sample.enabled_s[np.isfinite(sample.enabled_s)]
    return float(known.max(initial=0.0)) or sample.duration_s


def _smooth(kept: Sequence[tuple[Sample, Belief | None]]) -> list[tuple[Sample, Belief | None]]:
    """The same, each given all of them."""
    awake = [belief for _, belief in kept if belief is not None]
    smooth = iter(posterior.smooth(np, awake) if awake else ())
    return [(sample, belief if belief is None else next(smooth)) for sample, belief in kept]


def _named(
    columns: _Columns,
    net: BayesNet,
    kept: Sequence[tuple[Sample, Belief | None]],
    ever: NDArray[np.bool_],
    verdicts: tuple[Verdict, ...],
) -> Posterior:
    """What beliefs say of windows; `ever`: columns that have been enabled at all."""
    spans = []
    for sample, belief in kept:
        span = Span(columns.reader, sample.where, sample.start_s, sample.duration_s, 1)
        _tally_plain(span, columns, sample, ever)
        if belief is not None:
            _tally_inferred(span, columns, sample, net, belief)
        elif columns.asleep(sample):
            for column, at in zip(columns.nodes, columns.modelled, strict=True):
                if ever[at]:
                    span.tallies[column.event] = Tally(known_s=sample.duration_s)
        spans.append(span)
    return Posterior(columns.reader, net, tuple(spans), verdicts)


def _tally_plain(span: Span, columns: _Columns, sample: Sample, ever: NDArray[np.bool_]) -> None:
    """What software counted. Where it had to share a counter's time, the rest of the time was like it, about."""
    asleep, slice_s = columns.asleep(sample), columns.reader.model.slice_s
    for at in columns.plain:
        event, length = columns.all[at].event, sample.duration_s
        count, running, enabled = (float(of[at]) for of in (sample.count, sample.running_s, sample.enabled_s))
        tally = Tally(known_s=length, running_s=running, enabled_s=enabled, unit=sample.units.get(event, ""))
        if math.isfinite(count):
            tally.count = count
            if 0 < running < WHOLE * enabled:
                unseen = slice_s / running - slice_s / enabled
                tally.count, tally.interrupted = count * enabled / running, 1
                tally.variance = unseen * (_BURSTS * max(tally.count, 1.0)) ** 2
        elif not (asleep and ever[at]):
            tally = Tally(missing_s=length, unit=tally.unit)
        span.tallies.setdefault(event.lower(), Tally()).add(tally)


def _tally_inferred(span: Span, columns: _Columns, sample: Sample, net: BayesNet, belief: Belief) -> None:
    """What a belief says of a window, given what was never interrupted in it."""
    pmu, length, longest = columns.of_pmu(sample), sample.duration_s, _longest(columns.of_pmu(sample))
    mean, cov = np.asarray(belief.mean), np.asarray(belief.cov)
    whole: dict[str, float] = {}
    for at, column in enumerate(columns.nodes):
        enabled, running, count = (float(of[at]) for of in (pmu.enabled_s, pmu.running_s, pmu.count))
        unit = sample.units.get(columns.all[columns.modelled[at]].event, "")
        tally = span.tallies.setdefault(column.event, Tally(unit=unit))
        tally.running_s += running
        tally.enabled_s = max(tally.enabled_s, enabled)
        if 0 < WHOLE * enabled <= running and 0 <= count < np.inf:
            whole.setdefault(column.event, float(count))
    believed = {event: count for event, count in whole.items() if _likely(net, mean, cov, event, count, longest)}
    for event in {column.event for column in columns.nodes}:
        tally = span.tallies[event]
        tally.interrupted, tally.count = int(event not in believed), believed.get(event, 0.0)
        tally.known_s, tally.missing_s = (length, 0.0) if tally.enabled_s else (0.0, length)
    mean, cov = _given(net, mean, cov, {event: count / longest for event, count in believed.items()})
    known = (1 - np.asarray(belief.read)) @ np.abs(net.loading).T == 0  # something was read of all that it is made of
    span.parts.append(Part(net, tuple(map(bool, known)), mean * longest, cov * longest**2, longest))


def _likely(net: BayesNet, mean: Floats, cov: Floats, event: str, count: float, longest: float) -> bool:
    row = net.row(event)
    deviation = math.sqrt(max(float(row @ cov @ row), 0.0)) * longest
    return abs(count - float(row @ mean) * longest) <= max(_DOUBT * deviation, 0.02 * count, 2.0)


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
