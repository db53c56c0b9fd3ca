"""What a CPU can count: events, the counters that can hold them, and the metrics computed from them.

Names are compared without regard to case. An event belongs to a *unit*: the core ("", or "cpu_core" and "cpu_atom" on
hybrid CPUs) or a part outside it ("CHA", "iMC", "L3PMC"), each with its own counters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TypeVar

import numpy as np

from symphony.problem.errors import InputError
from symphony.telemetry import evaluating
from symphony.telemetry.evaluating import Compiled, compile_expressions
from symphony.telemetry.expressions import Expression, key, parse
from symphony.telemetry.machine import Platform

HYBRID_UNITS = ("cpu_core", "cpu_atom")
CORE_UNITS = frozenset({"", "core", *HYBRID_UNITS})
# event:modifiers, or unit/event,term=value,…/modifiers, or event/term=value,…/modifiers
_REFERENCE = re.compile(r"([^/]+?)(?:/([^/]*)/)?(?:(?:(?<=/)|:)([ukhpPGHSDIWebR]+))?")
_FLAGS = {"edge": "edge", "inv": "invert", "any": "any_thread"}
_INTEGER = re.compile(r"0x[0-9a-fA-F]+|[1-9][0-9]*|0")
# Registers that events share, by the term that sets them: how many different values they can hold at once.
# Intel has one MSR each for the front end's and the latency's threshold (0x3f7, 0x3f6), two for off-core responses
# (0x1a6, 0x1a7), and one filter in each caching agent.
_REGISTERS = {"frontend": 1, "ldlat": 1, "offcore_rsp": 2, "config1": 1}
# Listings give these the codes of the fixed counters; the kernel uses the codes of the general ones.
_FIXED_EVENTS = {
    "inst_retired.any": "event=0xc0",
    "cpu_clk_unhalted.thread": "event=0x3c",
    "cpu_clk_unhalted.core": "event=0x3c",
    "cpu_clk_unhalted.thread_any": "event=0x3c,any=0x1",
    "cpu_clk_unhalted.ref": "event=0x0,umask=0x3",
}


@dataclass(frozen=True, slots=True)
class Event:
    """Something that a counter can count."""

    name: str
    unit: str = ""
    codes: tuple[int, ...] = ()  # event select; two codes mean either of two off-core registers
    umask: int = 0
    cmask: int = 0  # count cycles with at least so many events
    invert: bool = False  # … with fewer
    edge: bool = False  # count transitions from 0
    any_thread: bool = False  # of all hardware threads of the core
    counters: tuple[int, ...] = ()  # general counters that can hold it; () = all
    fixed: int | None = None  # or the fixed counter that can; -1 = one that the listing does not number
    terms: tuple[tuple[str, str], ...] = ()  # further terms of perf's event syntax
    scale: float = 1.0  # one count stands for so many …
    scale_unit: str = ""  # … of this unit
    per_package: bool = False  # one counter for all cores of a package
    deprecated: bool = False
    errata: str = ""
    topic: str = ""
    description: str = ""

    @property
    def core(self) -> bool:
        return self.unit in CORE_UNITS

    @property
    def perf_terms(self) -> str:
        """The text between the slashes of `perf stat -e cpu/…/`."""
        name = self.name.lower().partition(":")[0]
        if name in _FIXED_EVENTS:
            return _FIXED_EVENTS[name]
        given = dict(self.terms)
        numbers = {"umask": self.umask, "cmask": self.cmask, "inv": self.invert, "edge": self.edge}
        numbers["any"] = self.any_thread
        terms = [f"event=0x{self.codes[0]:x}"] if self.codes and "config" not in given else []
        terms += [f"{name}=0x{number:x}" for name, number in numbers.items() if number]
        return ",".join([*terms, *(f"{name}={value}" for name, value in given.items() if name != "modifiers")])


@dataclass(frozen=True, slots=True)
class Metric:
    """A value computed from counts."""

    name: str
    expression: str
    unit: str = ""
    groups: tuple[str, ...] = ()
    scale: float = 1.0  # factor of the expression's value …
    scale_unit: str = ""  # … which gives this unit
    threshold: str = ""  # an expression that is true if the value deserves attention
    constraint: str = ""  # how its events may be grouped: NO_GROUP_EVENTS, …
    no_group: tuple[str, ...] = ()  # groups of metrics in which its events are not counted together
    aggregation: str = ""  # PerChip, PerCore: the range of `?` in the expression
    description: str = ""

    @property
    def tree(self) -> Expression:
        return parse(self.expression)


@dataclass(frozen=True, slots=True)
class Pmu:
    """The counters of a unit."""

    unit: str
    general: int
    fixed: int = 0
    assumed: bool = False  # not stated in the listing

    def places(self, event: Event) -> tuple[str, ...]:
        """The counters that can hold an event: "0", "1", … and "fixed 0", …"""
        general = event.counters or range(self.general)
        if event.fixed is None:
            return tuple(str(counter) for counter in general if counter < self.general)
        if event.fixed < 0:
            return tuple(f"fixed {counter}" for counter in range(max(1, self.fixed)))
        # An event that is listed for a fixed counter only can use no other.
        also = [str(counter) for counter in event.counters if counter < self.general]
        return (f"fixed {event.fixed}", *also)

    def holds(self, events: Sequence[Event]) -> bool:
        """Whether the unit can count these events at the same time."""
        return self.placement(events) is not None

    def placement(self, events: Sequence[Event]) -> tuple[str, ...] | None:
        """A counter for each of these events, no two the same; None if there is no such assignment.

        Events that need different values in one register cannot be counted at the same time, however many counters are
        free.
        """
        for register, size in _REGISTERS.items():
            if len({value for event in events for term, value in event.terms if term == register}) > size:
                return None
        options = [self.places(event) for event in events]
        holder: dict[str, int] = {}

        def place(which: int, tried: set[str]) -> bool:
            for counter in options[which]:
                if counter not in tried:
                    tried.add(counter)
                    if counter not in holder or place(holder[counter], tried):
                        holder[counter] = which
                        return True
            return False

        if not all(place(which, set()) for which in range(len(events))):
            return None
        chosen = {which: counter for counter, which in holder.items()}
        return tuple(chosen[which] for which in range(len(events)))


@dataclass(frozen=True)
class Catalogue:
    """The events, metrics and counters of a microarchitecture."""

    name: str  # as in the kernel tree: "x86/sapphirerapids", "arm64/arm/neoverse-n1"
    events: tuple[Event, ...]
    metrics: tuple[Metric, ...] = ()
    pmus: tuple[Pmu, ...] = ()
    groups: Mapping[str, str] = field(default_factory=dict)  # descriptions of groups of metrics
    source: str = ""  # where it was read from
    left_out: tuple[str, ...] = ()  # what could not be read, in whole sentences with file and record

    def __repr__(self) -> str:
        return f"<Catalogue {self.name}: {len(self.events)} events, {len(self.metrics)} metrics>"

    @cached_property
    def _events(self) -> dict[str, list[Event]]:
        return _by_key(self.events)

    @cached_property
    def _metrics(self) -> dict[str, list[Metric]]:
        return _by_key(self.metrics)

    def event(self, name: str) -> Event:
        """The event of a name; if several units have one, the core's (hybrid: `cpu_core`)."""
        if found := self._events.get(key(name)):
            return min(found, key=_preference)
        raise self.unknown("event", name, self._events)

    def find(self, name: str) -> Event | None:
        """The event of a name, or None if it is not listed."""
        return self.event(name) if key(name) in self._events else None

    def metric(self, name: str) -> Metric:
        """The metric of a name; if there are several, not one of `cpu_atom`."""
        if found := self._metrics.get(key(name)):
            return min(found, key=_preference)
        raise self.unknown("metric", name, self._metrics)

    def events_like(self, pattern: str) -> list[Event]:
        """Events whose names contain a text, or match a pattern with `*` and `?`."""
        return [event for event in self.events if _like(pattern, event.name)]

    def metrics_like(self, pattern: str) -> list[Metric]:
        """Metrics whose names, or the names of whose groups, contain a text or match a pattern."""
        return [metric for metric in self.metrics if _like(pattern, metric.name, *metric.groups)]

    def pmu(self, unit: str = "") -> Pmu:
        """The counters of a unit; four are assumed if the listing does not state them."""
        wanted = "" if unit == "core" else unit
        found = (pmu for pmu in self.pmus if pmu.unit.lower() == wanted.lower())
        return next(found, Pmu(unit, general=4, assumed=True))

    def resolve(self, name: str) -> Event | None:
        """The event that a name in an expression means, with changed fields; None if it is not in the listing.

        `cpu@EVENT,cmask=1,edge@` and `EVENT@thresh=1@` are events with changed fields, `EVENT:k` has a modifier.
        """
        if key(name) in self._events:
            return self.event(name)
        if not (found := _REFERENCE.fullmatch(name.replace("@", "/"))):
            return None
        prefix, body, modifiers = found[1], found[2] or "", found[3] or ""
        terms = [term for term in body.split(",") if term]
        if key(prefix) in self._events:
            event = self.event(prefix)
        elif terms and (named := self._events.get(key(terms[0]))):
            if prefix.lower() in HYBRID_UNITS:  # the other kind of core has another event of that name
                named = [event for event in named if event.unit not in HYBRID_UNITS or event.unit == prefix.lower()]
            if not named:
                return None
            event = min(named, key=_preference)
            terms.pop(0)
        else:
            return None
        return _changed(event, name, [*terms, f"modifiers={modifiers}"] if modifiers else terms)

    def definitions(self, unit: str = "") -> evaluating.Definitions:
        """The metrics by key, as expressions that refer to one another; `unit`'s own take precedence."""
        return _Definitions(self, unit)

    def needed(self, metrics: Iterable[str], *, platform: Platform | None = None) -> tuple[str, ...]:
        """Keys of the events that must be counted for some metrics, including those that the kernel counts."""
        found: dict[str, None] = {}
        for unit, chosen in self._by_unit(metrics).items():
            own = evaluating.needed(
                [metric.tree for metric in chosen.values()],
                definitions=self.definitions(unit),
                platform=platform,
                exists=lambda name: self.resolve(name) is not None,
            )
            found |= dict.fromkeys(own)
        return tuple(found)

    def evaluate(self, metric: str, counts: Mapping[str, float], *, platform: Platform | None = None) -> float:
        """The scaled value of a metric, given counts of events; NaN if a count that it needs is missing."""
        compiled = self.compile([metric], platform=platform, inputs=tuple(counts))
        return float(compiled(np.array(list(counts.values()), float))[0])

    def compile(
        self, metrics: Iterable[str], *, platform: Platform | None = None, inputs: tuple[str, ...] | None = None
    ) -> Compiled:
        """Scaled metrics as one NumPy function of counts, whose last axis are the events `inputs`."""
        wanted = tuple(metrics)
        inputs = self.needed(wanted, platform=platform) if inputs is None else inputs
        parts = [
            compile_expressions(
                {name: metric.tree for name, metric in chosen.items()},
                definitions=self.definitions(unit),
                platform=platform,
                inputs=inputs,
                scales={name: metric.scale for name, metric in chosen.items()},
            )
            for unit, chosen in self._by_unit(wanted).items()
        ]
        return parts[0] if len(parts) == 1 else evaluating.side_by_side(parts, wanted, inputs)

    def _by_unit(self, metrics: Iterable[str]) -> dict[str, dict[str, Metric]]:
        """Metrics by name, by their units: each refers to metrics of its own unit, if that has them."""
        found: dict[str, dict[str, Metric]] = {}
        for name in metrics:
            metric = self._wanted(name, "")
            found.setdefault(metric.unit, {})[name] = metric
        return found

    def _wanted(self, name: str, unit: str) -> Metric:
        """The metric of a unit if it has one of that name, else that of any unit."""
        own = [metric for metric in self._metrics.get(key(name), []) if metric.unit == unit]
        return own[0] if own else self.metric(name)

    def unknown(self, what: str, name: str, known: Iterable[str], hint: str = "") -> InputError:
        """The error for an "event" or "metric" that is not listed, with names that are similar among the known ones."""
        close = get_close_matches(key(name), list(known), n=3)
        hint += f"did you mean {' or '.join(close)}? " if close else ""
        return InputError(
            f"{self.name} has no {what} {name}",
            hint=f"{hint}`symphony catalogue show {self.name} --{what}s PATTERN` searches",
        )


Named = TypeVar("Named", Event, Metric)


class _Definitions(Mapping[str, Expression]):
    """A catalogue's metrics as expressions, parsed when they are looked up."""

    def __init__(self, catalogue: Catalogue, unit: str) -> None:
        self._catalogue, self._unit = catalogue, unit

    def __getitem__(self, name: str) -> Expression:
        if name not in self:
            raise KeyError(name)
        return self._catalogue._wanted(name, self._unit).tree

    def __contains__(self, name: object) -> bool:
        return name in self._catalogue._metrics

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalogue._metrics)

    def __len__(self) -> int:
        return len(self._catalogue._metrics)


def _by_key(items: Iterable[Named]) -> dict[str, list[Named]]:
    found: dict[str, list[Named]] = {}
    for item in items:
        found.setdefault(key(item.name), []).append(item)
    return found


def _preference(one: Event | Metric) -> int:
    """0 is best: of the core, then of the small cores of a hybrid CPU, then of other units."""
    return 0 if one.unit in CORE_UNITS - {"cpu_atom"} else 1 if one.unit == "cpu_atom" else 2


def is_pattern(text: str) -> bool:
    """Whether a text has the special characters of a shell pattern."""
    return any(special in text for special in "*?[")


def _like(pattern: str, *names: str) -> bool:
    wanted = pattern.lower()
    if is_pattern(wanted):
        return any(fnmatchcase(name.lower(), wanted) for name in names)
    return any(wanted in name.lower() for name in names)


def _changed(event: Event, name: str, terms: Iterable[str]) -> Event:
    """An event with perf's terms (`cmask=1`, `edge`) in place of its own."""
    others = dict(event.terms)
    changes: dict[str, int | bool] = {}
    for term in terms:
        what, _, value = term.partition("=")
        value = value or "1"
        if what in ("umask", "cmask") and _INTEGER.fullmatch(value):
            changes[what] = int(value, 0)
        elif what in _FLAGS and _INTEGER.fullmatch(value):
            changes[_FLAGS[what]] = bool(int(value, 0))
        else:
            others[what] = value
    return replace(event, name=name, terms=tuple(others.items()), **changes)  # type: ignore[arg-type]
