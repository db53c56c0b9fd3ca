"""Identities: their type, their canonical form, and which of several are independent."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from symphony.telemetry.events import Catalogue

Relation = Literal["=", ">="]
LEAST_TOLERANCE = 1e-4  # of any identity: counters are not read at the same instant
STRUCTURAL = frozenset({"alias", "umask union"})  # sources that follow from how counters are wired, not from names


@dataclass(frozen=True)
class Identity:
    """A relation between counts: the sum of coefficient × event is 0, or at least 0."""

    name: str  # short and unique, for people: "l2_rqsts.references = hit + miss"
    terms: tuple[tuple[str, float], ...]  # key of an event, coefficient
    relation: Relation = "="
    source: str = ""  # the rule or file
    why: str = ""  # evidence, as text
    tolerance: float = 0.0  # expected relative deviation: 0.01 = 1%

    @property
    def events(self) -> tuple[str, ...]:
        """Keys of the events."""
        return tuple(event for event, _ in self.terms)

    @property
    def structural(self) -> bool:
        """Whether it may be used if it cannot be tested."""
        return self.source in STRUCTURAL

    @property
    def slack(self) -> float:
        """The tolerance, never zero."""
        return max(self.tolerance, LEAST_TOLERANCE)


_TOLERANCES = {
    "alias": 1e-3,
    "umask union": 5e-3,
    "likely union": 1e-2,
    "reserved bits": 1e-2,
    "umask product": 1e-2,
    "hit + miss": 2e-2,
    "top-down": 2e-2,
    "residual": 2e-2,
    "percentage": 2e-2,
    "bound": 1e-2,
}

_cached: dict[tuple[int, object], Any] = {}


def cached(catalogue: Catalogue, what: object, compute: Callable[[], Any]) -> Any:
    """The result of `compute` for a whole catalogue, computed once and kept as long as the catalogue exists."""
    at = (id(catalogue), what)
    if at not in _cached:
        _cached[at] = compute()
        weakref.finalize(catalogue, _cached.pop, at, None)
    return _cached[at]


# --- Making one --------------------------------------------------------------------------------------------


def identity(
    terms: Mapping[str, float],
    relation: Relation,
    source: str,
    why: str,
    tolerance: float | None = None,
) -> Identity | None:
    """An identity in canonical form: positive terms first, integer coefficients if possible; None if it is vacuous."""
    positive = {event: value for event, value in terms.items() if value > 0}
    negative = {event: value for event, value in terms.items() if value < 0}
    if not negative or not positive:
        return None  # counts are not negative: such a bound always holds, such a sum never does
    if relation == "=" and len(negative) < len(positive):
        positive, negative = ({event: -value for event, value in side.items()} for side in (negative, positive))
    sized = {**positive, **negative}
    unit = min(map(abs, sized.values()))
    if len(positive) == 1 and any(abs(value / unit - round(value / unit)) > 1e-6 for value in sized.values()):
        (unit,) = positive.values()
    scaled = tuple((event, float(f"{value / unit:.12g}")) for event, value in sized.items())
    allowed = _TOLERANCES[source] if tolerance is None else tolerance
    return Identity(_named(scaled, relation), scaled, relation, source, why, allowed)


def made(terms: Mapping[str, float], relation: Relation, source: str, why: str) -> Iterator[Identity]:
    if found := identity(terms, relation, source, why):
        yield found


def _named(terms: Sequence[tuple[str, float]], relation: Relation) -> str:
    """The identity as text; a prefix that terms share with the first is written once."""
    head, dot, _ = terms[0][0].partition(".")
    sides: dict[bool, list[str]] = {True: [], False: []}
    for event, coefficient in terms:
        short = event.removeprefix(head + dot) if dot and sides[True] else event
        size = abs(coefficient)
        sides[coefficient > 0].append(short if size == 1 else f"{size:g} × {short}")
    return f"{' + '.join(sides[True])} {relation} {' + '.join(sides[False])}"


def independent(found: Iterable[Identity]) -> tuple[Identity, ...]:
    """Identities not implied by earlier ones: sums by elimination, bounds by the sums that define their totals."""
    rows: dict[str, dict[str, float]] = {}  # by pivot
    same: dict[str, str] = {}  # alias → the name in use
    parts: dict[str, list[dict[str, float]]] = {}  # total → its parts
    kept: list[Identity] = []
    found = tuple(found)
    for one in (one for one in found if one.relation == "="):
        row = _reduced(dict(one.terms), rows)
        if not row:
            continue
        rows[max(row, key=lambda event: abs(row[event]))] = row
        kept.append(one)
        (whole, size), *others = one.terms
        if len(others) == 1 and others[0][1] == -size:
            same[others[0][0]] = same.get(whole, whole)
        elif all(value < 0 for _, value in others):
            parts.setdefault(whole, []).append({event: -value / size for event, value in others})
    parts = {same.get(whole, whole): [_renamed(split, same) for split in splits] for whole, splits in parts.items()}
    least: dict[str, list[dict[str, float]]] = {}  # total → lower bounds
    seen: set[frozenset[tuple[str, float]]] = set()
    for one in (one for one in found if one.relation == ">="):
        terms = _renamed(dict(one.terms), same)
        unit = abs(min(terms.items())[1]) or 1.0
        signature = frozenset((event, float(f"{value / unit:.9g}")) for event, value in terms.items())
        if signature in seen or _follows(terms, parts, least):
            continue
        seen.add(signature)
        kept.append(one)
        (whole, size), *others = terms.items()
        if all(value < 0 for _, value in others):
            least.setdefault(whole, []).append({event: -value / size for event, value in others})
    return tuple(kept)


def _renamed(terms: Mapping[str, float], same: Mapping[str, str]) -> dict[str, float]:
    found: dict[str, float] = {}
    for event, value in terms.items():
        found[same.get(event, event)] = found.get(same.get(event, event), 0.0) + value
    return found


def _reduced(row: dict[str, float], rows: Mapping[str, dict[str, float]]) -> dict[str, float]:
    """A row after elimination by earlier rows."""
    size = max(map(abs, row.values()))
    while pivot := next((event for event in row if event in rows), None):
        factor = row[pivot] / rows[pivot][pivot]
        for event, value in rows[pivot].items():
            row[event] = row.get(event, 0.0) - factor * value
        row = {event: value for event, value in row.items() if abs(value) > 1e-9 * size and event != pivot}
    return row


Splits = Mapping[str, list[dict[str, float]]]


def _follows(terms: Mapping[str, float], parts: Splits, least: Splits, depth: int = 3) -> bool:
    """Whether a bound holds trivially once totals are replaced by their parts, or by lower bounds."""
    if all(value >= -1e-9 for value in terms.values()):
        return True
    if not depth:
        return False
    for whole, value in terms.items():
        for split in (*parts.get(whole, ()), *(least.get(whole, ()) if value > 0 else ())):
            written = {event: other for event, other in terms.items() if event != whole}
            for part, share in split.items():
                written[part] = written.get(part, 0.0) + share * value
            if _follows(written, parts, least, depth - 1):
                return True
    return False
