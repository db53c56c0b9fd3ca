"""The Bayesian network of a CPU's counts: events, the identities between them, and the free events.

Nodes are events. Identities that hold well make some events sums of others; those others are the *free* events, whose
rates are the unknowns. Identities that hold only approximately are soft constraints between free events. Bounds are
kept for checks and drawings: rates of free events are not negative, and nearly all bounds follow from that. Columns of
a recording are readings of events; `wiring` describes them as arrays for `posterior.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from symphony.telemetry.identities import Identity
from symphony.telemetry.posterior import Parameters, Wiring
from symphony.telemetry.samples import Column, Floats

MAX_EXACT_TOLERANCE = 0.02  # tolerance up to which an identity defines an event as a sum of others
INSTRUCTIONS = frozenset({"inst_retired.any", "instructions", "inst_retired", "ex_ret_instr", "pm_inst_cmpl", "ir"})

Terms = Mapping[str, float]


@dataclass(frozen=True)
class BayesNet:
    """Events, and their relations to the free events."""

    events: tuple[str, ...]  # keys
    free: tuple[str, ...]  # events whose rates are the unknowns
    loading: Floats  # [E, N]: rates of events as combinations of free rates
    slack: Floats  # [E]: relative tolerance of the identity that defines an event
    exact: tuple[Identity, ...] = ()  # identities that define sums
    soft: tuple[Identity, ...] = ()  # identities that are soft constraints
    bounds: tuple[Identity, ...] = ()
    parameters: Parameters = field(default_factory=Parameters)

    def row(self, event: str) -> Floats:
        """An event as a combination of free events [N]."""
        return self.loading[self.events.index(event)]

    def combined(self, identity: Identity) -> Floats:
        """An identity's sum as a combination of free events [N]."""
        return np.sum([coefficient * self.row(event) for event, coefficient in identity.terms], axis=0)

    def wiring(self, columns: Sequence[Column], anchors: Sequence[str] | None = None) -> Wiring:
        """The arrays for readings with these columns; by default with the anchors that `find_anchors` returns."""
        anchors = find_anchors(columns) if anchors is None else tuple(anchors)
        counted = tuple(dict.fromkeys(column.event for column in columns))
        loading = np.stack([self.row(event) for event in counted])
        pool = np.array([[float(column.event == event) for column in columns] for event in counted])
        anchor = np.array([[float(event == name) for event in counted] for name in anchors]).reshape(-1, len(counted))
        beside = np.zeros((len(anchors), len(columns), len(columns)))
        for a, name in enumerate(anchors):
            for d, other in enumerate(columns):
                if other.event == name:
                    beside[a, [c for c, column in enumerate(columns) if column.group == other.group], d] = 1.0
        soft = np.array([self.combined(identity) for identity in self.soft]).reshape(-1, len(self.free))
        return Wiring(loading, pool, anchor, beside, soft, np.array([identity.slack for identity in self.soft]))


def build(events: Iterable[str], identities: Iterable[Identity], parameters: Parameters | None = None) -> BayesNet:
    """The network of some events. Identities with other events are ignored, as are those implied by the rest."""
    events = tuple(dict.fromkeys(events))
    known = set(events)
    inside = [identity for identity in identities if known.issuperset(identity.events)]
    equalities = sorted(
        (identity for identity in inside if identity.relation == "="),
        key=lambda identity: (identity.slack > MAX_EXACT_TOLERANCE, len(identity.terms)),
    )
    made: dict[str, dict[str, float]] = {}  # events that are sums, as combinations of free events
    slack: dict[str, float] = {}
    exact, soft = [], []
    for identity in equalities:
        terms = _substitute(dict(identity.terms), made)
        if not terms:
            continue  # implied by others
        if identity.slack > MAX_EXACT_TOLERANCE:
            soft.append(identity)
            continue
        total = _total(terms, events)
        rest = {event: -value / terms[total] for event, value in terms.items() if event != total}
        made = {event: _substitute(parts, {total: rest}) for event, parts in made.items()}
        made[total] = rest
        slack[total] = identity.slack
        exact.append(identity)
    free = tuple(event for event in events if event not in made)
    place = {event: number for number, event in enumerate(free)}
    loading = np.zeros((len(events), len(free)))
    for row, event in enumerate(events):
        for part, coefficient in made.get(event, {event: 1.0}).items():
            loading[row, place[part]] = coefficient
    return BayesNet(
        events,
        free,
        loading,
        np.array([slack.get(event, 0.0) for event in events]),
        tuple(exact),
        tuple(soft),
        tuple(identity for identity in inside if identity.relation == ">="),
        parameters or Parameters(),
    )


def find_anchors(columns: Sequence[Column]) -> tuple[str, ...]:
    """Events that every group with several events counts, instructions first."""
    groups: dict[int, set[str]] = {}
    for column in columns:
        groups.setdefault(column.group, set()).add(column.event)
    several = [members for members in groups.values() if len(members) > 1]
    if len(several) < 2:
        return ()
    common = set.intersection(*several)
    return tuple(sorted(common, key=lambda event: (event not in INSTRUCTIONS, event)))


def _substitute(terms: Terms, made: Mapping[str, Terms]) -> dict[str, float]:
    """A combination, with events that are sums replaced by their parts."""
    found: dict[str, float] = {}
    for event, coefficient in terms.items():
        for part, factor in made.get(event, {event: 1.0}).items():
            found[part] = found.get(part, 0.0) + coefficient * factor
    size = max(map(abs, found.values()), default=0.0)
    return {event: value for event, value in found.items() if abs(value) > 1e-9 * size}


def _total(terms: Terms, events: Sequence[str]) -> str:
    """The event to define by the others: the one that is their sum, so that no event is a difference."""

    def differences(event: str) -> int:
        return sum(value * terms[event] > 0 for other, value in terms.items() if other != event)

    return min(terms, key=lambda event: (differences(event), -events.index(event)))
