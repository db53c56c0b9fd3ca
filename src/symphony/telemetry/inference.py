"""From readings to beliefs with names: what a `posterior.Belief` says of events and metrics.

    posterior = infer(model("sapphirerapids"), read_perf("perf.json"))
    posterior["ipc"].mean, posterior["ipc"].std

`Tracker` is the same for readings that are still coming.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import count

import numpy as np
from numpy.typing import NDArray

from symphony.problem.errors import InputError
from symphony.telemetry import bayes_net, catalogue, gate, identities, machine, naming, posterior
from symphony.telemetry.bayes_net import BayesNet
from symphony.telemetry.events import Catalogue
from symphony.telemetry.expressions import key
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity
from symphony.telemetry.machine import Platform
from symphony.telemetry.posterior import Belief, Parameters, Window, Wiring
from symphony.telemetry.samples import Column, Floats, Recording, Sample

SLICE_S = 0.004  # Linux's turn of a group (perf_event_mux_interval_ms)
DRAWS = 256  # of a belief, for what is not linear in it
AGAIN = 16  # windows that are gone through again when the net changes
_PASSES = 50  # over the bounds, at most
_CLOSE = 1e-9  # to a bound: relative
_SECONDS = "duration_time"
_TSC = "tsc"


@dataclass(frozen=True)
class Model:
    """What is known of a CPU before anything is counted."""

    catalogue: Catalogue
    platform: Platform = field(default_factory=Platform)
    identities: tuple[Identity, ...] | None = None  # None: those mined from the catalogue, and the curated ones
    parameters: Parameters = field(default_factory=Parameters)
    slice_s: float = SLICE_S
    lag: int = 2  # windows that a smoothed estimate waits for
    names: Mapping[str, str] = field(default_factory=dict, repr=False)  # keys of events by names of columns

    def claims(self, events: Iterable[str]) -> tuple[Identity, ...]:
        """Identities between some events that are worth testing."""
        if self.identities is None:
            return identities.everything(self.catalogue, tuple(events))
        known = set(events)
        return tuple(identity for identity in self.identities if known.issuperset(identity.events))

    def node(self, name: str) -> str:
        """The key of the event that a column counts: without modifiers, unless they or the listing tell it apart."""
        plain = key(name)
        if found := self.names.get(plain):
            return found
        return plain if self.catalogue.find(plain) else key(naming.bare(name))

    def among(self, events: Iterable[str]) -> Model:
        """The model for columns of these events, in which `cycles:u` and `cycles:k` are two if both are there."""
        return self if self.names else replace(self, names=naming.nodes(self.catalogue, events))


def model(
    of: str | Catalogue | None = None, *, platform: Platform | None = None, parameters: Parameters | None = None
) -> Model:
    """The model of a CPU by name ("sapphirerapids"), or of the one at hand."""
    found = of if isinstance(of, Catalogue) else catalogue.load(of) if of else catalogue.at_hand()
    return Model(found, platform or machine.platform(), parameters=parameters or Parameters())


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

    model: Model
    net: BayesNet
    where: str
    start_s: Floats  # [K]
    duration_s: Floats  # [K]
    enabled_s: Floats  # [K]: what a rate is multiplied by to give a count
    mean: Floats  # [K, N]: rates of free events
    cov: Floats  # [K, N, N]
    read: Floats  # [K, N]: 0 where nothing is known yet
    verdicts: tuple[Verdict, ...] = ()

    def __repr__(self) -> str:
        place = f" of {self.where}" if self.where else ""
        events = f"{len(self.net.events)} events, {len(self.net.free)} of them free"
        return f"<Posterior{place}: {len(self)} windows, {events}, {self.model.catalogue.name}>"

    def __len__(self) -> int:
        return len(self.start_s)

    def __getitem__(self, name: str) -> Estimate:
        """The belief about an event's count, or a metric."""
        node = self.model.node(name)
        if node in self.net.events:
            return self._event(node)
        if key(name) not in self.model.catalogue.definitions():
            known = ", ".join(self.net.events[:6])
            raise InputError(
                f"{name} was not counted, and {self.model.catalogue.name} has no metric {name}",
                hint=f"events: {known}{', …' if len(self.net.events) > 6 else ''}; or the name of a metric",
            )
        return self.metrics([name])[name]

    def metrics(self, names: Sequence[str]) -> dict[str, Estimate]:
        """Beliefs about metrics, all from the same draws: what adds up in every draw adds up in the means."""
        listed = self.model.catalogue
        compiled = listed.compile(names, platform=self.model.platform, inputs=self._inputs, xp=np)
        values = compiled(self._counts)  # [K, S, M]
        found = {}
        for m, name in enumerate(names):
            found[name] = Estimate(name, listed.metric(name).scale_unit, *summary(values[..., m]))
        return found

    def events(self) -> dict[str, Estimate]:
        """Beliefs about all events of the net."""
        return {event: self._event(event) for event in self.net.events}

    def total(self, name: str) -> Estimate:
        """The count of an event, or the value of a metric, over all windows together."""
        weight = self.enabled_s[:, None]
        mean = (self.mean * weight).sum(axis=0, keepdims=True)
        cov = (self.cov * weight[..., None] ** 2).sum(axis=0, keepdims=True)
        whole = replace(
            self,
            start_s=self.start_s[:1],
            duration_s=self.duration_s.sum(keepdims=True),
            enabled_s=self.enabled_s.sum(keepdims=True),
            mean=mean / weight.sum(),
            cov=cov / weight.sum() ** 2,
            read=self.read.min(axis=0, keepdims=True),
        )
        return whole[name]

    def _event(self, event: str) -> Estimate:
        at, row = self.net.events.index(event), self.net.row(event)
        listed = self.model.catalogue.find(event)
        unit, scale = (listed.scale_unit, listed.scale) if listed else ("", 1.0)
        mean = np.maximum(self.mean @ row, 0) * self.enabled_s * scale
        deviation = np.sqrt(np.maximum(np.einsum("i,kij,j->k", row, self.cov, row), 0)) * self.enabled_s * scale
        std = np.hypot(deviation, self.net.slack[at] * mean)
        known = self.known[:, at]
        mean, std = np.where(known, mean, np.nan), np.where(known, std, np.inf)
        upper = np.where(known, mean + 1.96 * std, np.inf)
        return Estimate(event, unit, mean, std, np.where(known, np.maximum(mean - 1.96 * std, 0), 0.0), upper)

    @property
    def known(self) -> NDArray[np.bool_]:
        """Whether something has been read of all that an event is made of [K, E]."""
        return (1 - self.read) @ np.abs(self.net.loading).T == 0

    @property
    def _inputs(self) -> tuple[str, ...]:
        return (*self.net.events, _SECONDS, _TSC)

    @cached_property
    def _counts(self) -> Floats:
        """Draws of all counts, and of the time [K, S, E + 2]."""
        counts = (draws(self.net, self.mean, self.cov) @ self.net.loading.T) * self.enabled_s[:, None, None]
        counts = np.where(self.known[:, None, :], counts, np.nan)
        seconds = np.broadcast_to(self.duration_s[:, None, None], (*counts.shape[:2], 1))
        return np.concatenate([np.maximum(counts, 0), seconds, seconds * self.model.platform.system_tsc_freq], axis=2)


class Tracker:
    """Beliefs about one place while readings come in."""

    def __init__(self, model: Model, columns: Sequence[Column], trusted: Iterable[Verdict] = ()) -> None:
        """`trusted` are verdicts of an earlier run, for identities that this one cannot test."""
        self.model = model = model.among(column.event for column in columns)
        self.columns = _nodes(model, columns)
        self._trusted = tuple(trusted)
        self._events = _spoken_of(self.columns, self._trusted)
        self._gate = gate.Gate(model.claims(self._events))
        self._windows, self._next_look = 0, 8
        self._found: tuple[Verdict, ...] = ()
        self._recent: deque[Sample] = deque(maxlen=max(AGAIN, 1 + model.lag))
        self._kept: list[tuple[Sample, Belief]] = []
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
        sample = replace(sample, columns=self.columns)
        self._gate.update(sample)
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
        return self._posterior([self._kept[-1]])

    def smoothed(self) -> Posterior:
        """What is believed of the window `lag` windows ago, given those since."""
        smooth = posterior.smooth(np, [belief for _, belief in self._kept])
        return self._posterior([(self._kept[0][0], smooth[0])])

    def rest(self) -> Posterior:
        """What is believed of the newest windows, which `smoothed` has not told yet: `lag` of them, or all."""
        kept = self._kept[-self.model.lag :] if self.model.lag else []
        smooth = posterior.smooth(np, [belief for _, belief in kept]) if kept else []
        return self._posterior([(sample, belief) for (sample, _), belief in zip(kept, smooth, strict=True)])

    @property
    def ready(self) -> bool:
        """Whether `smoothed` is of a window that `lag` others have followed."""
        return len(self._kept) > self.model.lag

    def _take(self, sample: Sample) -> None:
        self._belief = _step(self.model, self._wiring, self._belief, sample)
        self._kept = [*self._kept, (sample, self._belief)][-1 - self.model.lag :]

    def _posterior(self, kept: Sequence[tuple[Sample, Belief]]) -> Posterior:
        return _named(self.model, self._net, [s for s, _ in kept], [b for _, b in kept], self._found)

    def _verdicts(self) -> tuple[Verdict, ...]:
        return _together(self._trusted, self._gate.verdicts())

    def _use(self, verdicts: tuple[Verdict, ...]) -> None:
        """Begin again with the identities that are accepted now, and with the last windows."""
        self._found = verdicts
        self._net = bayes_net.build(self._events, gate.accepted(verdicts), self.model.parameters)
        self._wiring = self._net.wiring(self.columns)
        self._belief = posterior.start(np, self._wiring, self.model.parameters)
        self._kept = []
        for sample in self._recent:
            self._take(sample)


def infer(
    model: Model,
    readings: Recording | Mapping[str, Recording],
    *,
    smooth: bool = True,
    trusted: Iterable[Verdict] = (),
    where: str | None = None,
) -> Posterior:
    """What the counts were, given a whole recording.

    Identities are tested on the recording before they are used. A log of several places needs `where`.
    """
    if not isinstance(model, Model):
        raise InputError(f"{model!r} is no model", hint='infer(model("sapphirerapids"), readings)')
    trusted = tuple(trusted)
    if wrong := [one for one in trusted if not isinstance(one, Verdict)]:
        raise InputError(f"{wrong[0]!r} is no verdict", hint="trusted=earlier.verdicts, of an earlier posterior")
    recording = _one(readings, where)
    model = model.among(column.event for column in recording.columns)
    recording = replace(recording, columns=_nodes(model, recording.columns))
    events = _spoken_of(recording.columns, trusted)
    verdicts = _together(trusted, gate.judge(model.claims(events), recording))
    net = bayes_net.build(events, gate.accepted(verdicts), model.parameters)
    wiring = net.wiring(recording.columns)
    belief, beliefs = posterior.start(np, wiring, model.parameters), []
    samples = list(recording.samples())
    for sample in samples:
        belief = _step(model, wiring, belief, sample)
        beliefs.append(belief)
    if smooth and beliefs:
        beliefs = posterior.smooth(np, beliefs)
    return _named(model, net, samples, beliefs, verdicts)


def _nodes(model: Model, columns: Iterable[Column]) -> tuple[Column, ...]:
    """Columns by the keys of their events, each once in a group: `cycles:p` beside `cycles:pp` is one more reading."""
    found: dict[Column, None] = {}
    columns = tuple(columns)
    spare = count(1 + max((column.group for column in columns), default=0))
    for column in columns:
        named = replace(column, event=model.node(column.event))
        found[replace(named, group=next(spare)) if named in found else named] = None
    return tuple(found)


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


def _step(model: Model, wiring: Wiring, belief: Belief, sample: Sample) -> Belief:
    """One window. A sample that says nothing leaves only time behind."""
    enabled = _enabled(sample)
    running = np.where(np.isfinite(sample.count) & (sample.count >= 0), sample.running_s, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = np.where(running > 0, sample.count / running, 0.0)
    slices = np.minimum(running, enabled) / model.slice_s
    total = np.asarray(max(enabled / model.slice_s, 1e-6))
    window = Window(rate, slices, total, np.asarray(1 / max(enabled, 1e-9)))
    if not slices.any():
        return posterior.ahead(np, belief, np.asarray(1.0))
    return posterior.update(np, wiring, model.parameters, belief, window)


def _enabled(sample: Sample) -> float:
    known = sample.enabled_s[np.isfinite(sample.enabled_s)]
    return float(known.max(initial=0.0)) or sample.duration_s


def _named(
    model: Model, net: BayesNet, samples: Sequence[Sample], beliefs: Sequence[Belief], verdicts: tuple[Verdict, ...]
) -> Posterior:
    free = len(net.free)
    return Posterior(
        model,
        net,
        samples[0].where if samples else "",
        np.array([sample.start_s for sample in samples]),
        np.array([sample.duration_s for sample in samples]),
        np.array([_enabled(sample) for sample in samples]),
        np.array([belief.mean for belief in beliefs]).reshape(-1, free),
        np.array([belief.cov for belief in beliefs]).reshape(-1, free, free),
        np.array([belief.read for belief in beliefs]).reshape(-1, free),
        verdicts,
    )


def draws(net: BayesNet, mean: Floats, cov: Floats, bounds: Iterable[Identity] | None = None, seed: int = 0) -> Floats:
    """Draws of free rates [K, S, N]: none negative, all within the net's bounds, or those given."""
    rows = [net.combined(bound) for bound in (net.bounds if bounds is None else bounds)]
    free = np.maximum(mean[:, None, :] + _normal(len(net.free), seed) @ _roots(cov), 0)
    towards = [(row, along / np.maximum(along @ row, 1e-300)[:, None]) for row in rows for along in [cov @ row]]
    for _ in range(_PASSES):
        off = False
        for row, along in towards:  # by the least likely amount: what a bound takes from one it gives to another
            below = np.minimum(free @ row, 0)
            if (below < -_CLOSE * (np.abs(free) @ np.abs(row))).any():
                free, off = np.maximum(free - below[..., None] * along[:, None, :], 0), True
        if not off:
            break
    return free


@lru_cache(maxsize=32)
def _normal(size: int, seed: int = 0) -> Floats:
    """Fixed standard normal draws [S, N], with their mirror images: means of linear things are exact."""
    half = np.random.default_rng(seed).standard_normal((DRAWS // 2, size))
    return np.concatenate([half, -half])


def _roots(cov: Floats) -> Floats:
    """Matrices R [K, N, N] with RᵀR = cov, for covariances that are not quite positive, too."""
    values, vectors = np.linalg.eigh(cov)
    return np.sqrt(np.maximum(values, 0))[..., :, None] * np.swapaxes(vectors, -1, -2)


def summary(draws: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Mean, deviation and bounds of the 95% interval over draws [K, S]; NaN where no draw has a value."""
    known = np.where(np.isfinite(draws), draws, np.nan)
    empty = np.all(np.isnan(known), axis=1, keepdims=True)
    filled = np.where(empty, 0.0, known)
    lower, upper = np.nanquantile(filled, [0.025, 0.975], axis=1)
    found = np.nanmean(filled, axis=1), np.nanstd(filled, axis=1), lower, upper
    mean, std, lower, upper = (np.where(empty[:, 0], np.nan, value) for value in found)
    return mean, std, lower, upper
