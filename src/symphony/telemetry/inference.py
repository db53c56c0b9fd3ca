"""Inference by name: from readings to a `Posterior` of events and metrics.

    posterior = infer(model("sapphirerapids"), read_perf("perf.json"))
    posterior["ipc"].mean, posterior["ipc"].std

`Tracker` does the same for readings that are still arriving. `symphony stat` prints what these two return.

Rates are relative to the longest time for which any event of a window was enabled, so that rates of all events are
comparable: counts of CPUs are summed over CPUs, those of a memory controller over controllers, and so are the times.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from symphony.problem.errors import InputError
from symphony.telemetry import bayes_net, gate, posterior
from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.columns import (
    MIN_UNINTERRUPTED_SHARE,
    Columns,
    doubts,
    unobserved_burst_std,
    zero_count_std,
)
from symphony.telemetry.estimates import Posterior
from symphony.telemetry.gate import Verdict
from symphony.telemetry.posterior import RULE_OF_THREE, Belief, Window, Wiring
from symphony.telemetry.reading import SLICE_S, SMOOTHING_LAG, Model, Reader
from symphony.telemetry.samples import Column, Floats, Recording, Sample, stack
from symphony.telemetry.spans import Part, Span, Tally

REPLAYED_WINDOWS = 16  # windows that are processed again when the network changes
_MAX_COUNT_DEVIATIONS = 5.0  # standard deviations beyond which even an uninterrupted count is rejected
_EXACT_COUNT_ERROR = 1e-5  # relative error of an uninterrupted count: several such counts may disagree a little
_KERNEL_COUNT_STD = 1.0  # relative deviation between slices of software events, such as page faults


class Tracker:
    """Beliefs about one place while readings arrive."""

    def __init__(self, model: Model | Reader, columns: Sequence[Column]) -> None:
        self.reader = _reader(model, columns)
        self.model = self.reader.model
        self._columns = Columns(self.reader, tuple(columns))
        self.lag = SMOOTHING_LAG if self._columns.nodes else 0  # exact counts need no smoothing
        self._events = _known_events(self._columns.nodes, self.reader.trusted)
        self._gate = gate.Gate(self.model.claims(self._events))
        self._windows, self._next_look = 0, 8
        self._found: tuple[Verdict, ...] = ()
        self._recent: deque[Sample] = deque(maxlen=max(REPLAYED_WINDOWS, 1 + self.lag))
        self._kept: list[tuple[Sample, Belief | None]] = []
        self._ever = np.zeros(len(columns), dtype=bool)  # columns that were ever enabled
        self._belief: Belief
        self._use(self._verdicts())

    @property
    def net(self) -> BayesNet:
        return self._net

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        """The current verdict on every identity."""
        return self._found

    def update(self, sample: Sample) -> None:
        """Process one window."""
        if sample.columns != self._columns.all:
            (sample,) = stack([sample], self._columns.all).samples()
        self._ever |= sample.enabled_s > 0
        if self._columns.nodes and not self._columns.is_idle(sample):
            self._gate.update(self._columns.of_pmu(sample))
            self._windows += 1
            if self._windows >= self._next_look:
                self._next_look *= 2
                self.check_identities()
        self._recent.append(sample)
        self._take(sample)

    def check_identities(self) -> None:
        """Test identities on all windows so far. `update` does it after 8, 16, 32, … windows."""
        if gate.accepted(self._found) != gate.accepted(new := self._verdicts()):
            self._use(new)
        self._found = new

    def latest(self) -> Posterior:
        """The belief about the newest window."""
        return self._posterior(self._kept[-1:])

    def smoothed(self) -> Posterior:
        """The belief about the window `lag` windows ago, given all windows since."""
        return self._posterior(_smooth(self._kept)[:1])

    def rest(self) -> Posterior:
        """The beliefs about the newest windows, which `smoothed` has not returned yet: `lag` of them, or all."""
        return self._posterior(_smooth(self._kept[-self.lag :] if self.lag else []))

    @property
    def ready(self) -> bool:
        """Whether `lag` windows have followed the window that `smoothed` returns."""
        return len(self._kept) > self.lag

    def _take(self, sample: Sample) -> None:
        belief = None
        if self._columns.nodes and not self._columns.is_idle(sample):
            belief = self._belief = _step(self.model, self._wiring, self._belief, self._columns.of_pmu(sample))
        self._kept = [*self._kept, (sample, belief)][-1 - self.lag :]

    def _posterior(self, kept: Sequence[tuple[Sample, Belief | None]]) -> Posterior:
        return _named(self._columns, self._net, kept, self._ever, self._found)

    def _verdicts(self) -> tuple[Verdict, ...]:
        return _merged_verdicts(self.reader.trusted, self._gate.verdicts())

    def _use(self, verdicts: tuple[Verdict, ...]) -> None:
        """Restart with the identities that are accepted now, and process the last windows again."""
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
    """The posterior of the counts, given a whole recording.

    Identities are tested on the recording before they are used. A log of several places needs `where`.
    """
    recording = _one(readings, where)
    reader = _reader(model, recording.columns, trusted)
    model, columns = reader.model, Columns(reader, recording.columns)
    awake = ~columns.is_idle(recording) & bool(columns.nodes)
    events = _known_events(columns.nodes, reader.trusted)
    pmu = columns.of_pmu(recording).windows(awake)
    verdicts = _merged_verdicts(reader.trusted, gate.check_identities(model.claims(events), pmu))
    net = bayes_net.build(events, gate.accepted(verdicts), model.parameters)
    beliefs: list[Belief] = []
    if len(pmu):
        wiring = net.wiring(columns.nodes)
        beliefs = _forwards(model, wiring, pmu)
        if smooth and wiring.anchor.shape[0]:
            beliefs = _forwards(model, wiring, pmu, beliefs[-1])
        beliefs = posterior.smooth(np, beliefs) if smooth else beliefs
        beliefs = _widened(model, net, pmu, beliefs)
    following = iter(beliefs)
    kept = [(sample, next(following) if ran else None) for sample, ran in zip(recording.samples(), awake, strict=True)]
    return _named(columns, net, kept, np.any(recording.enabled_s > 0, axis=0), verdicts)


def _reader(model: Model | Reader, columns: Iterable[Column], trusted: Iterable[Verdict] = ()) -> Reader:
    if not isinstance(model, Model | Reader):
        raise InputError(f"{model!r} is not a model", hint='infer(model("sapphirerapids"), readings)')
    trusted = tuple(trusted)
    if wrong := [one for one in trusted if not isinstance(one, Verdict)]:
        raise InputError(f"{wrong[0]!r} is not a verdict", hint="trusted=earlier.verdicts, of an earlier posterior")
    reader = model if isinstance(model, Reader) else Reader(model, trusted)
    return reader.among(column.event for column in columns)


# --- Readings ----------------------------------------------------------------------------------------------


def _known_events(columns: Iterable[Column], trusted: Iterable[Verdict]) -> tuple[str, ...]:
    """The counted events, and those that follow from them by accepted identities."""
    counted = (column.event for column in columns)
    derived = (event for verdict in trusted if verdict.accepted for event in verdict.identity.events)
    return tuple(dict.fromkeys((*counted, *derived)))


def _merged_verdicts(trusted: Iterable[Verdict], here: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Verdicts of an earlier run and of this one, which takes precedence if it could test."""
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
        raise InputError(f"{readings!r} are not readings", hint='infer(…, read_perf("perf.json"))')
    if where is None and len(readings) == 1:
        return next(iter(readings.values()))
    if where is not None and where in readings:
        return readings[where]
    places = ", ".join(repr(place) for place in sorted(readings)) or "none"
    if where is not None:
        raise InputError(f"the log has no place {where!r}", hint=f"where= one of these: {places}")
    raise InputError(f"the log has several places: {places}", hint="choose one: infer(…, where=…)")


# --- Beliefs -----------------------------------------------------------------------------------------------


def _forwards(model: Model, wiring: Wiring, pmu: Recording, later: Belief | None = None) -> list[Belief]:
    """Beliefs given the windows so far. `later` is a belief whose regression on the anchors is reused."""
    belief, beliefs = posterior.start(np, wiring, model.parameters), []
    if later is not None:
        belief = belief._replace(follow_xx=later.follow_xx, follow_xy=later.follow_xy)
    for sample in pmu.samples():
        belief = _step(model, wiring, belief, sample)
        beliefs.append(belief)
    return beliefs


def _widened(model: Model, net: BayesNet, pmu: Recording, beliefs: Sequence[Belief]) -> list[Belief]:
    """Beliefs with the additional uncertainty that only the whole recording shows."""
    factors, rest = doubts(pmu, model), unobserved_burst_std(pmu, model)
    wider = np.array([factors.get(event, max(factors.values())) for event in net.free])
    least = np.stack([rest.get(event, np.zeros(len(pmu))) for event in net.free], axis=-1)  # [K, N]
    least /= np.array([_longest(sample) for sample in pmu.samples()])[:, None]
    return [
        belief._replace(cov=_at_least(belief.cov * wider[:, None] * wider, own**2))
        for belief, own in zip(beliefs, least, strict=True)
    ]


def _at_least(cov: Floats, variance: Floats) -> Floats:
    """A covariance whose variances are at least these."""
    return cov + np.diag(np.maximum(variance - np.diagonal(cov), 0.0))


def _step(model: Model, wiring: Wiring, belief: Belief, sample: Sample) -> Belief:
    """The belief after one window. If nothing was counted in it, only the uncertainty grows."""
    longest = _longest(sample)
    enabled = np.where(sample.enabled_s > 0, np.minimum(sample.enabled_s, longest), longest)
    running = np.where(np.isfinite(sample.count) & (sample.count >= 0), sample.running_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(running > 0, sample.count / running * (enabled / longest), 0.0)
    slices = np.minimum(running, enabled) / SLICE_S
    total = np.maximum(enabled / SLICE_S, 1e-6)
    window = Window(rate, slices, total, np.asarray(1 / max(longest, 1e-9)))
    if not slices.any():
        return posterior.predict(np, belief, np.asarray(1.0))
    return posterior.update(np, wiring, model.parameters, belief, window)


def _longest(sample: Sample) -> float:
    """The time in seconds that rates are relative to."""
    known = sample.enabled_s[np.isfinite(sample.enabled_s)]
    return float(known.max(initial=0.0)) or sample.duration_s


def _smooth(kept: Sequence[tuple[Sample, Belief | None]]) -> list[tuple[Sample, Belief | None]]:
    """The same windows, each belief given all of them."""
    awake = [belief for _, belief in kept if belief is not None]
    smooth = iter(posterior.smooth(np, awake) if awake else ())
    return [(sample, belief if belief is None else next(smooth)) for sample, belief in kept]


def _named(
    columns: Columns,
    net: BayesNet,
    kept: Sequence[tuple[Sample, Belief | None]],
    ever: NDArray[np.bool_],
    verdicts: tuple[Verdict, ...],
) -> Posterior:
    """The posterior of some windows; `ever`: columns that were ever enabled."""
    spans = []
    for sample, belief in kept:
        span = Span(columns.reader, sample.where, sample.start_s, sample.duration_s, 1)
        _tally_plain(span, columns, sample, ever)
        if belief is not None:
            _tally_inferred(span, columns, sample, net, belief)
        elif columns.is_idle(sample):
            for column, at in zip(columns.nodes, columns.modelled, strict=True):
                if ever[at]:
                    span.tallies[column.event] = Tally(known_s=sample.duration_s)
        spans.append(span)
    return Posterior(columns.reader, net, tuple(spans), verdicts)


def _tally_plain(span: Span, columns: Columns, sample: Sample, ever: NDArray[np.bool_]) -> None:
    """Counts by software. If such an event was multiplexed, the rest of the time is assumed to be similar."""
    asleep = columns.is_idle(sample)
    for at in columns.plain:
        event, length = columns.all[at].event, sample.duration_s
        count, running, enabled = (float(of[at]) for of in (sample.count, sample.running_s, sample.enabled_s))
        tally = Tally(known_s=length, running_s=running, enabled_s=enabled, unit=sample.units.get(event, ""))
        if math.isfinite(count):
            tally.count = count
            if 0 < running < MIN_UNINTERRUPTED_SHARE * enabled:
                share, missing = SLICE_S / running - SLICE_S / enabled, enabled / running - 1
                tally.count, tally.interrupted = count * enabled / running, 1
                few = missing * max(tally.count, RULE_OF_THREE * missing)
                tally.variance = max(share * (_KERNEL_COUNT_STD * tally.count) ** 2, few)
        elif not (asleep and ever[at]):
            tally = Tally(missing_s=length, unit=tally.unit)
        span.tallies.setdefault(columns.reader.node(event), Tally()).add(tally)


def _tally_inferred(span: Span, columns: Columns, sample: Sample, net: BayesNet, belief: Belief) -> None:
    """The belief about a window, conditioned on the events that had a counter all the time."""
    pmu, length, longest = columns.of_pmu(sample), sample.duration_s, _longest(columns.of_pmu(sample))
    mean, cov = np.asarray(belief.mean), np.asarray(belief.cov)
    uninterrupted: dict[str, float] = {}
    for at, column in enumerate(columns.nodes):
        enabled, running, count = (float(of[at]) for of in (pmu.enabled_s, pmu.running_s, pmu.count))
        unit = sample.units.get(columns.all[columns.modelled[at]].event, "")
        tally = span.tallies.setdefault(column.event, Tally(unit=unit))
        tally.running_s += running
        tally.enabled_s = max(tally.enabled_s, enabled)
        if 0 < MIN_UNINTERRUPTED_SHARE * enabled <= running and 0 <= count < np.inf:
            uninterrupted.setdefault(column.event, float(count))
    believed = {
        event: count for event, count in uninterrupted.items() if _likely(net, mean, cov, event, count, longest)
    }
    for event in {column.event for column in columns.nodes}:
        tally = span.tallies[event]
        tally.interrupted, tally.count = int(event not in believed), believed.get(event, 0.0)
        tally.known_s, tally.missing_s = (length, 0.0) if tally.enabled_s else (0.0, length)
    least = zero_count_std(pmu)
    cov = _at_least(cov, np.array([least.get(event, 0.0) / longest for event in net.free]) ** 2)
    mean, cov = _conditioned(net, mean, cov, {event: count / longest for event, count in believed.items()})
    known = (1 - np.asarray(belief.read)) @ np.abs(net.loading).T == 0  # all free events that it is made of were read
    span.parts.append(Part(net, tuple(map(bool, known)), mean * longest, cov * longest**2, longest))


def _likely(net: BayesNet, mean: Floats, cov: Floats, event: str, count: float, longest: float) -> bool:
    row = net.row(event)
    deviation = math.sqrt(max(float(row @ cov @ row), 0.0)) * longest
    return abs(count - float(row @ mean) * longest) <= max(_MAX_COUNT_DEVIATIONS * deviation, 0.02 * count, 2.0)


def _conditioned(net: BayesNet, mean: Floats, cov: Floats, rates: Mapping[str, float]) -> tuple[Floats, Floats]:
    """The belief conditioned on known rates."""
    if not rates:
        return mean, cov
    rows = np.stack([net.row(event) for event in rates])
    values = np.array(list(rates.values()))
    noise = np.diag((_EXACT_COUNT_ERROR * np.maximum(values, 1.0)) ** 2)
    doubt = rows @ cov @ rows.T + noise
    size = np.sqrt(np.maximum(np.diagonal(doubt), 1e-300))  # rates may differ by many powers of ten
    gain = (
        np.linalg.solve(doubt / np.outer(size, size) + 1e-9 * np.eye(len(size)), rows @ cov / size[:, None]).T
    ) / size
    return np.maximum(mean + gain @ (values - rows @ mean), 0), cov - gain @ rows @ cov
