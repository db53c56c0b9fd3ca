"""Relations between counts that must hold whatever a program does: sums, and bounds.

A metric says what to compute from counts; it constrains nothing. What does is redundancy: a total that is listed beside
its parts, a difference that cannot be negative. *Mined* identities are read off a listing by rules that hold for every
vendor, *curated* ones are in `curated/*.toml`. All are claims; `gate.py` tests them on data.

The rules, and what an identity's `source` says:

    alias            two names for one thing
    umask union      one event code, a mask that is the disjoint union of others
    nested masks     … where the masks might also be numbers
    reserved bits    … of all others that there are, though the total's mask has more bits
    umask product    masks that choose a kind *and* an outcome: kinds add up for one outcome, outcomes for one kind
    hit + miss       names that differ in hit/miss, read/write, load/store, and one that has neither
    top-down         children of a metric add up to it
    residual         a metric that is a difference, and would mean nothing if it were negative
    percentage       a metric in per cent is at most 100
    bound            a mask that includes another; cycles with at least n of something, n times
    topology         traffic of links behind a shared one
    curated: …       a line of that file
"""

from __future__ import annotations

import re
import tomllib
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from importlib import resources
from itertools import combinations, pairwise, product
from typing import Any, Literal

from symphony.problem.errors import DataError, InputError
from symphony.problem.topology import Topology
from symphony.telemetry import evaluating, linear
from symphony.telemetry.events import Catalogue, Event, Metric
from symphony.telemetry.expressions import key, names, parse
from symphony.telemetry.machine import Platform

Relation = Literal["=", ">="]
ROW = "bytes:"  # "bytes:memory" is what crosses the memory row of the place that is measured
LEAST_TOLERANCE = 1e-4  # of any identity: counters are not read at one instant
STRUCTURAL = frozenset({"alias", "umask union", "topology"})  # follow from how counters are wired, not from names


@dataclass(frozen=True)
class Identity:
    """A relation between counts: the sum of coefficient × event is 0, or at least 0."""

    name: str  # short and unique, for people: "l2_rqsts.references = hit + miss"
    terms: tuple[tuple[str, float], ...]  # key of an event, coefficient
    relation: Relation = "="
    source: str = ""  # the rule, or file, that it comes from
    why: str = ""  # evidence, in words
    tolerance: float = 0.0  # relative size of the deviations to be expected: 0.01 = 1%

    @property
    def events(self) -> tuple[str, ...]:
        """Keys of the events that it relates."""
        return tuple(event for event, _ in self.terms)

    @property
    def structural(self) -> bool:
        """Whether it holds by construction, so that it may be used where it cannot be tested."""
        return self.source in STRUCTURAL

    @property
    def slack(self) -> float:
        """The tolerance, never zero."""
        return max(self.tolerance, LEAST_TOLERANCE)

    def residual(self, counts: Mapping[str, float]) -> float:
        """What the sum is for some counts, relative to half of all that enters it; 0 where nothing was counted."""
        parts = [coefficient * counts[event] for event, coefficient in self.terms]
        size = sum(map(abs, parts)) / 2
        return sum(parts) / size if size else 0.0


@dataclass(frozen=True)
class Skipped:
    """A relation that a rule pointed at and that is not one between counts."""

    what: str
    why: str


@dataclass(frozen=True)
class Mined:
    """What the rules found."""

    identities: tuple[Identity, ...]
    skipped: tuple[Skipped, ...] = ()


_TOLERANCES = {
    "alias": 1e-3,
    "umask union": 5e-3,
    "nested masks": 1e-2,
    "reserved bits": 1e-2,
    "umask product": 1e-2,
    "hit + miss": 2e-2,
    "top-down": 2e-2,
    "residual": 2e-2,
    "percentage": 2e-2,
    "bound": 1e-2,
    "topology": 1e-2,
}

# --- Making one --------------------------------------------------------------------------------------------


def identity(
    terms: Mapping[str, float],
    relation: Relation,
    source: str,
    why: str,
    tolerance: float | None = None,
    name: str = "",
) -> Identity | None:
    """An identity in its one form: positive terms first, whole coefficients if it has them; None if it says nothing."""
    positive = {event: value for event, value in terms.items() if value > 0}
    negative = {event: value for event, value in terms.items() if value < 0}
    if not negative or not positive:
        return None  # counts are not negative: such a bound is no news, such a sum is absurd
    if relation == "=" and len(negative) < len(positive):
        positive, negative = ({event: -value for event, value in side.items()} for side in (negative, positive))
    sized = {**positive, **negative}
    unit = min(map(abs, sized.values()))
    if len(positive) == 1 and any(abs(value / unit - round(value / unit)) > 1e-6 for value in sized.values()):
        (unit,) = positive.values()
    scaled = tuple((event, float(f"{value / unit:.12g}")) for event, value in sized.items())
    allowed = _TOLERANCES[source] if tolerance is None else tolerance
    return Identity(name or _named(scaled, relation), scaled, relation, source, why, allowed)


def _named(terms: Sequence[tuple[str, float]], relation: Relation) -> str:
    """What it says; a prefix that terms share with the first is written once."""
    head, dot, _ = terms[0][0].partition(".")
    sides: dict[bool, list[str]] = {True: [], False: []}
    for event, coefficient in terms:
        short = event.removeprefix(head + dot) if dot and sides[True] else event
        size = abs(coefficient)
        sides[coefficient > 0].append(short if size == 1 else f"{size:g} × {short}")
    return f"{' + '.join(sides[True])} {relation} {' + '.join(sides[False])}"


def independent(found: Iterable[Identity]) -> tuple[Identity, ...]:
    """Those that are not implied by earlier ones: sums by elimination, bounds by sums that split their totals."""
    rows: dict[str, dict[str, float]] = {}  # by pivot
    same: dict[str, str] = {}  # name → the one that stands for it
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
    least: dict[str, list[dict[str, float]]] = {}  # total → what it is at least
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
    """A row less what earlier rows account for."""
    size = max(map(abs, row.values()))
    while pivot := next((event for event in row if event in rows), None):
        factor = row[pivot] / rows[pivot][pivot]
        for event, value in rows[pivot].items():
            row[event] = row.get(event, 0.0) - factor * value
        row = {event: value for event, value in row.items() if abs(value) > 1e-9 * size and event != pivot}
    return row


Splits = Mapping[str, list[dict[str, float]]]


def _follows(terms: Mapping[str, float], parts: Splits, least: Splits, depth: int = 3) -> bool:
    """Whether a bound is clear once totals are written as their parts, or as what they are at least."""
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


# --- Mining ------------------------------------------------------------------------------------------------


def mine(
    catalogue: Catalogue,
    events: Sequence[str] | None = None,
    topology: Topology | None = None,
    *,
    platform: Platform | None = None,
) -> tuple[Identity, ...]:
    """Identities between some events (default: all, those of each unit among themselves), and of a topology's rows."""
    rows = from_topology(topology) if topology else ()
    return (*mining(catalogue, events, platform=platform).identities, *rows)


def mining(catalogue: Catalogue, events: Sequence[str] | None = None, *, platform: Platform | None = None) -> Mined:
    """As `mine`, with what had to be left out, and why."""
    wanted = _wanted(catalogue, events)
    listed = {name: event for name, event in wanted.items() if event}
    families = _families(catalogue, listed)
    of_metrics = _of_metrics(catalogue, platform or Platform())
    found = [
        *_aliases(listed),
        *(one for family, members in families for one in family.sums(members)),
        *_counterparts(listed),
        *(one for one in of_metrics.identities if events is None or wanted.keys() >= set(one.events)),
        *(one for family, members in families for one in family.bounds(members)),
        *_cycle_bounds(listed),
    ]
    return Mined(independent(found), of_metrics.skipped)


def _wanted(catalogue: Catalogue, events: Sequence[str] | None) -> dict[str, Event | None]:
    """Events by key; None for the kernel's own. Where several units have a name, it means the core's."""
    if events is None:
        return {key(event.name): event for event in catalogue.events if catalogue.event(event.name) is event}
    return {key(name): catalogue.resolve(name) for name in events}


_known: dict[tuple[int, object], Any] = {}


def _once(catalogue: Catalogue, what: object, compute: Callable[[], Any]) -> Any:
    """What is found out about a whole catalogue is found out once, and forgotten with it."""
    at = (id(catalogue), what)
    if at not in _known:
        _known[at] = compute()
        weakref.finalize(catalogue, _known.pop, at, None)
    return _known[at]


# Aliases and names


def _aliases(listed: Mapping[str, Event]) -> Iterator[Identity]:
    """Names for which perf asks the kernel for the same thing."""
    same: dict[tuple[str, str, str], list[str]] = {}
    for name, event in listed.items():
        if event.perf_terms and not (_only_fixed(event) and event.perf_terms.startswith("event=0x0")):
            modifiers = dict(event.terms).get("modifiers", "")
            same.setdefault((event.unit, event.perf_terms, modifiers), []).append(name)
    for (unit, terms, _), found in same.items():
        first, *others = sorted(found, key=lambda name: listed[name].deprecated)
        for other in others:
            why = f"both are {unit or 'cpu'}/{terms}/"
            yield from _made({first: 1.0, other: -1.0}, "=", "alias", why)


def _only_fixed(event: Event) -> bool:
    """Whether its code and mask are but the number of a fixed counter."""
    return event.fixed is not None and event.codes in ((), (0,))


def _made(terms: Mapping[str, float], relation: Relation, source: str, why: str) -> Iterator[Identity]:
    if found := identity(terms, relation, source, why):
        yield found


_TOTALS = frozenset({"all", "any", "total", "both", "count", "lookups", "references", "reference"}) | frozenset(
    {"accesses", "access", "requests", "request"}
)
_PAIRS = (
    (frozenset({"hit", "hits"}), frozenset({"miss", "misses"})),
    (frozenset({"rd", "read", "reads"}), frozenset({"wr", "write", "writes"})),
    (frozenset({"load", "loads"}), frozenset({"store", "stores"})),
)
_MANY = _PAIRS[2:]  # there are more kinds than the two, so that a total has to be called one
_WORDS = re.compile(r"[^._\-/]+")


@lru_cache(maxsize=1 << 15)
def _words(name: str) -> tuple[str, ...]:
    return tuple(_WORDS.findall(name))


def _is_total(name: str) -> bool:
    return not _TOTALS.isdisjoint(_words(name))


def _counterparts(listed: Mapping[str, Event]) -> Iterator[Identity]:
    """`x_hit` + `x_miss` = `x`, or `x_all`, or `all_x`."""
    plain: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, event in listed.items():
        stem = tuple(word for word in _words(name) if word not in _TOTALS)
        plain.setdefault((event.unit, stem), []).append(name)
    for pair in _PAIRS:
        halves: dict[tuple[str, tuple[str, ...]], dict[int, str]] = {}
        for name, event in listed.items():
            words = _words(name)
            which = [(at, side) for at, word in enumerate(words) for side in (0, 1) if word in pair[side]]
            if len(which) != 1 or event.deprecated:
                continue
            at, side = which[0]
            stem = tuple(word for word in (*words[:at], *words[at + 1 :]) if word not in _TOTALS)
            halves.setdefault((event.unit, stem), {}).setdefault(side, name)
        for of, sides in halves.items():
            totals = [name for name in plain.get(of, ()) if _alike(listed, name, sides.values())]
            if len(sides) == 2 and totals:
                whole = min(totals, key=lambda name: not _is_total(name))
                if pair in _MANY and not _is_total(whole):
                    continue
                why = "names that differ in one word, and one that has neither"
                yield from _made({whole: 1.0, sides[0]: -1.0, sides[1]: -1.0}, "=", "hit + miss", why)


def _alike(listed: Mapping[str, Event], name: str, parts: Iterable[str]) -> bool:
    """Whether an event may be the sum of others: it counts occurrences, as they do, and its mask is no wider."""
    event = listed[name]
    others = [listed[part] for part in parts]
    if event.deprecated or any(other.cmask or other.edge or other.invert for other in (event, *others)):
        return False
    if any(other.scale != event.scale or other.any_thread != event.any_thread for other in others):
        return False
    if any(other.codes != event.codes for other in others):
        return True
    mask = 0
    for other in others:
        mask |= other.umask
    return mask == event.umask


# Masks

_FULL = 0xFFFF  # a nibble as a set of 16 values: all of them


@dataclass(frozen=True)
class _Family:
    """Events of one code that differ in their masks alone: what the bits mean, as all that are listed tell.

    Bits choose what is counted. Mostly each adds something ("union"). In some families one field of bits chooses the
    kind and another the outcome, and what is counted has both ("product"): then no event has bits of one field only.
    In some a nibble is a number that chooses one of 15 things ("enumeration"): then two or more of its values have
    several bits and are not called totals. If those are disjoint or part of one another, they may be masks after all.
    """

    enumerated: tuple[bool, bool]  # low nibble, high nibble
    unsure: bool = False  # there are such values, but none that a mask could not be
    field: int = 0  # the mask of one field of a product; 0 if it is none
    masks: tuple[int, ...] = ()  # of all that are listed, once each
    parts: int = 0  # bits of all that are not called totals
    countable: bool = True  # occurrences add up; cycles with at least n of them do not

    @classmethod
    def of(cls, events: Sequence[Event]) -> _Family:
        """What the events of one code, all of them, tell about their masks."""
        values = [_values(events, shift) for shift in (0, 4)]
        low, high = (len(found) > 1 and _crossing(found) for found in values)
        family = cls((low, high), unsure=any(len(found) > 1 for found in values), countable=events[0].cmask == 0)
        masks = {family.mask(event) for event in events} - {0}
        parts = 0
        for event in events:
            parts |= 0 if _is_total(key(event.name)) else family.mask(event)
        field = 0 if low or high else _field(masks)
        return replace(family, field=field, masks=tuple(sorted(masks)), parts=parts)

    def mask(self, event: Event) -> int:
        """What an event counts, as a set of bits: 16 for each nibble."""
        found = 0
        for at, enumerated in enumerate(self.enumerated):
            nibble = event.umask >> 4 * at & 0xF
            if enumerated and nibble:
                nibble = _FULL if nibble == 0xF and _is_total(key(event.name)) else 1 << nibble
            found |= nibble << 16 * at
        return found

    def sums(self, members: Mapping[str, Event]) -> Iterator[Identity]:
        """Each total as the sum of the finest parts that there are."""
        if not self.countable:
            return
        masks = self._masks(members)
        for target, name in masks.items():
            for source, parts in self.partitions(target, masks, _is_total(name)):
                terms = {name: 1.0} | {masks[part]: -1.0 for part in parts}
                yield from _made(terms, "=", source, _sets(members[name], [members[masks[part]] for part in parts]))

    def partitions(self, target: int, masks: Iterable[int], total: bool) -> Iterator[tuple[str, list[int]]]:
        """The rule, and the parts, of each way to split a mask into others."""
        inside = [mask for mask in masks if mask != target and mask & target == mask]
        if self.field:
            for field in (self.field, ~self.field):
                same = {mask & ~field: mask for mask in inside if mask & field == target & field}
                if parts := _cover(target & ~field, list(same)):
                    yield "umask product", [same[part] for part in parts]
        elif parts := _cover(target, inside):
            yield "nested masks" if self.unsure and not any(self.enumerated) else "umask union", parts
        elif total and target & ~self.parts and (parts := self._unreserved(target, inside)):
            yield "reserved bits", parts

    def _unreserved(self, target: int, inside: Sequence[int]) -> list[int] | None:
        """Parts of the bits that some part has. The values that an enumeration does not list may well be used."""
        return None if any(self.enumerated) else _cover(target & self.parts, inside)

    def bounds(self, members: Mapping[str, Event]) -> Iterator[Identity]:
        """Each total is at least what its mask includes."""
        masks = self._masks(members)
        for target, name in masks.items():
            known = 0
            for mask in self.masks:
                known |= mask if mask != target else 0
            if target & ~known and not _is_total(name):
                continue  # a bit that nothing else has may be a filter, and filters make counts less
            inside = [mask for mask in masks if mask != target and mask & target == mask]
            apart: list[int] = []
            if self.countable and not self.field and not any(self.enumerated):
                for mask in sorted(inside, key=int.bit_count):
                    if not any(mask & other for other in apart):
                        apart.append(mask)
            largest = [mask for mask in inside if not any(mask & other == mask != other for other in inside)]
            for parts in (*([apart] if len(apart) > 1 else ()), *([mask] for mask in largest)):
                terms = {name: 1.0} | {masks[part]: -1.0 for part in parts}
                yield from _made(terms, ">=", "bound", _sets(members[name], [members[masks[part]] for part in parts]))

    def _masks(self, members: Mapping[str, Event]) -> dict[int, str]:
        """One event for each mask: the others are its aliases."""
        heads = Counter(name.partition(".")[0] for name in members)
        found: dict[int, str] = {}
        for name in sorted(members, key=lambda name: (members[name].deprecated, -heads[name.partition(".")[0]])):
            found.setdefault(self.mask(members[name]), name)
        return {mask: name for mask, name in found.items() if mask}


def _values(events: Iterable[Event], shift: int) -> set[int]:
    """Values with several bits that a nibble has alone, in events that are not called totals."""
    found = set()
    for event in events:
        nibble = event.umask >> shift & 0xF
        if event.umask & 0xFF == nibble << shift and nibble.bit_count() > 1 and not _is_total(key(event.name)):
            found.add(nibble)
    return found


def _crossing(values: Iterable[int]) -> bool:
    """Whether two of them overlap, and neither is part of the other: 3 and 5."""
    return any(a & b not in (0, a, b) for a, b in combinations(values, 2))


def _families(catalogue: Catalogue, listed: Mapping[str, Event]) -> list[tuple[_Family, dict[str, Event]]]:
    """Events by family, each with what is known of it from the whole listing."""
    everyone: dict[object, list[Event]] = _once(catalogue, "families", lambda: _by_family(catalogue.events))
    found: dict[object, dict[str, Event]] = {}
    for name, event in listed.items():
        if _has_mask(event):
            found.setdefault(_family_of(event), {})[name] = event
    several = [(of, members) for of, members in found.items() if len(members) > 1 and of in everyone]
    return [(_once(catalogue, ("family", of), partial(_Family.of, everyone[of])), members) for of, members in several]


def _by_family(events: Iterable[Event]) -> dict[object, list[Event]]:
    found: dict[object, list[Event]] = {}
    for event in events:
        if _has_mask(event):
            found.setdefault(_family_of(event), []).append(event)
    return found


def _has_mask(event: Event) -> bool:
    """Edges and inverted counts do not grow with their masks."""
    return bool(event.umask and event.codes) and not event.edge and not event.invert and not _only_fixed(event)


def _family_of(event: Event) -> tuple[object, ...]:
    # Beyond eight bits a mask is a filter that has to be the same.
    return event.unit, event.codes, event.cmask, event.any_thread, event.terms, event.umask >> 8


def _field(masks: set[int]) -> int:
    """One field of the product that masks form; 0 if they form none, or none that splits anything."""
    if not masks or min(mask.bit_count() for mask in masks) < 2:
        return 0
    bits = [1 << at for at in range(32) if any(mask >> at & 1 for mask in masks)]
    best, most = 0, 0
    for choice in product((0, 1), repeat=len(bits) - 1):
        field = sum(bit for bit, chosen in zip(bits[1:], choice, strict=True) if chosen)
        if not all(mask & field and mask & ~field for mask in masks):
            continue
        family = _Family((False, False), field=field)
        splits = sum(1 for target in masks for _ in family.partitions(target, masks, False))
        if splits > most:
            best, most = field, splits
    return best


def _cover(target: int, masks: Sequence[int]) -> list[int] | None:
    """Two or more disjoint masks whose union is the target, the smallest that fit; None if there are none."""
    fitting = sorted({mask for mask in masks if mask and mask & target == mask != target}, key=int.bit_count)
    hopeless: set[int] = set()

    def rest(left: int) -> list[int] | None:
        if not left:
            return []
        if left not in hopeless:
            lowest = left & -left
            for mask in fitting:
                if mask & lowest and mask & left == mask and (others := rest(left & ~mask)) is not None:
                    return [mask, *others]
            hopeless.add(left)
        return None

    return rest(target)


def _sets(whole: Event, parts: Sequence[Event]) -> str:
    return f"event {whole.codes[0]:#x}: mask {whole.umask:#x}, and {', '.join(f'{part.umask:#x}' for part in parts)}"


def _cycle_bounds(listed: Mapping[str, Event]) -> Iterator[Identity]:
    """A count is at least n for each cycle with at least n; those with more are fewer."""
    same: dict[tuple[object, ...], dict[int, str]] = {}
    for name, event in listed.items():
        if event.codes and not event.edge and not event.invert and not _only_fixed(event):
            of = (event.unit, event.codes, event.umask, event.any_thread, event.terms)
            same.setdefault(of, {}).setdefault(event.cmask, name)
    for by_least in same.values():
        order = sorted(by_least)
        for less, more in pairwise(order):
            terms = {by_least[less]: 1.0, by_least[more]: -1.0}
            yield from _made(terms, ">=", "bound", f"cycles with at least {more} of them also have {max(less, 1)}")
        for least in order[1:] if order[0] == 0 else ():
            terms = {by_least[0]: 1.0, by_least[least]: -float(least)}
            yield from _made(terms, ">=", "bound", f"each of these cycles has at least {least} of them")


# Metrics

_GROUP = "_group"
_LEVEL = re.compile(r"(?:topdown|pipeline)l([0-9]+)", re.IGNORECASE)
_DISJOINT = 2  # below this level of the top-down method children may overlap, and are estimates
_NOT_COUNTED = frozenset({"duration_time", "tsc", "system_tsc_freq"})


def _of_metrics(catalogue: Catalogue, platform: Platform) -> Mined:
    """What metrics imply for the counts that they are made of."""
    found: Mined = _once(catalogue, ("metrics", platform), lambda: _from_metrics(catalogue, platform))
    return found


def _from_metrics(catalogue: Catalogue, platform: Platform) -> Mined:
    found: list[Identity] = []
    skipped: list[Skipped] = []
    for unit in dict.fromkeys(metric.unit for metric in catalogue.metrics):
        metrics = [metric for metric in catalogue.metrics if metric.unit == unit]
        forms = linear.forms(catalogue.definitions(unit), platform)
        for claim in (*_parents(metrics, forms), *_bounded(metrics, forms)):
            relation: Relation = "=" if claim.source == "top-down" else ">="
            terms = _terms(catalogue, claim.form)
            if isinstance(terms, str):
                skipped.append(Skipped(claim.why, terms))
            else:
                found += _made(terms, relation, claim.source, claim.why)
    return Mined(tuple(found), tuple(skipped))


@dataclass(frozen=True)
class _Claim:
    """A form that a rule says is 0, or at least 0."""

    form: linear.Form
    source: str
    why: str


def _parents(metrics: Sequence[Metric], forms: Mapping[str, linear.Form]) -> Iterator[_Claim]:
    """Children of a metric, by the names of their groups, less the metric; those of the first level, less 1."""
    children: dict[str, dict[str, None]] = {}
    for metric in metrics:
        levels = {int(found[1]): group for group in metric.groups if (found := _LEVEL.fullmatch(group))}
        if 1 in levels:
            children.setdefault("", {})[key(metric.name)] = None
        elif levels and max(levels) <= _DISJOINT:
            for group in metric.groups:
                parent = key(group).removesuffix(_GROUP)
                if parent != key(group) and parent in forms:
                    children.setdefault(parent, {})[key(metric.name)] = None
    for parent, inside in children.items():
        if len(inside) > 1:
            whole = forms[parent] if parent else linear.fraction(linear.UNIT)
            difference = linear.add(linear.Form(), whole, -1.0)
            for child in inside:
                difference = linear.add(difference, forms[child])
            yield _Claim(difference, "top-down", f"{' + '.join(inside)} = {parent or 'all'}")


def _bounded(metrics: Sequence[Metric], forms: Mapping[str, linear.Form]) -> Iterator[_Claim]:
    """Metrics that cannot be negative, or more than 100%."""
    for metric in metrics:
        form = forms[key(metric.name)]
        if _mixed(form):
            yield _Claim(form, "residual", f"{metric.name} is a difference, and not negative")
        elif metric.scale_unit == "%" or metric.scale_unit.startswith("percent"):
            share = linear.add(linear.fraction(linear.UNIT), form, -metric.scale / 100)
            if share.number is None and _mixed(share):
                yield _Claim(share, "percentage", f"{metric.name} is at most 100%")


def _mixed(form: linear.Form) -> bool:
    whole = form.single
    return whole is None or len({value > 0 for _, value in whole[0]}) > 1


def _terms(catalogue: Catalogue, form: linear.Form) -> dict[str, float] | str:
    """The counts of a form that is 0 (or more), its bottom taken away; or why there are none."""
    if (whole := form.single) is None:
        return "its parts have different denominators"
    top, bottom = whole
    if any(value < 0 for _, value in bottom):
        return "its denominator may be negative"
    for name, _ in top:
        if name == linear.ONE:
            return "it compares counts with a number"
        if name.startswith(linear.OPAQUE):
            return "it is not linear in counts"
        if name in _NOT_COUNTED or ("/" in name and catalogue.resolve(name) is None):
            return f"{name} is not an event"
    return dict(top)


# --- Curated -----------------------------------------------------------------------------------------------


def curated(catalogue: Catalogue, events: Sequence[str] | None = None) -> tuple[Identity, ...]:
    """The lines of `curated/*.toml` that are about some events (default: all that the catalogue knows)."""
    if events is None:
        used = {key(name) for metric in catalogue.metrics for name in names(metric.tree)}
        inside = {key(event.name) for event in catalogue.events} | used
        rows = True
    else:
        inside, rows = {key(name) for name in events}, False
    found = []
    for line in _lines():
        if re.fullmatch(line.catalogues, catalogue.name) and all(
            event in inside or (rows and event.startswith(ROW)) for event in line.identity.events
        ):
            found.append(line.identity)
    return tuple(found)


@dataclass(frozen=True)
class _Line:
    catalogues: str  # a regular expression
    identity: Identity


@lru_cache(maxsize=1)
def _lines() -> tuple[_Line, ...]:
    folder = resources.files("symphony.telemetry") / "curated"
    found: list[_Line] = []
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".toml"):
            found += read_curated(file.read_text(encoding="utf-8"), file.name)
    return tuple(found)


def read_curated(text: str, file: str) -> list[_Line]:
    """The lines of a curated file. Placeholders (`{x}`) stand for each of the values listed under their names."""
    hint = 'write [[identity]] with says = "total = part + part" and why = "…", as in the other files'
    try:
        content = tomllib.loads(text)
        found = []
        for entry in content["identity"]:
            choices = entry.get("for", {})
            for values in product(*choices.values()):
                says = str(entry["says"])
                for name, value in zip(choices, values, strict=True):
                    says = says.replace(f"{{{name}}}", value)
                found.append(_Line(content["catalogues"], _says(says, entry, file)))
    except (tomllib.TOMLDecodeError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"it is not a list of identities: {error}", where=file, hint=hint) from None
    except InputError as error:
        raise DataError(error.message, where=file, hint=hint) from None
    return found


def _says(says: str, entry: Mapping[str, Any], file: str) -> Identity:
    relation: Relation = ">=" if ">=" in says else "="
    left, _, right = says.partition(relation)
    form = evaluating.apply(parse(f"({left}) - ({right})"), linear.Linear(), {}, Platform())
    whole = form.single
    terms = dict(whole[0]) if whole and whole[1] == linear.UNIT else {}
    order = {key(name): at for at, name in enumerate((*names(parse(left)), *names(parse(right))))}
    if any(name not in order for name in terms):
        raise InputError(f"{says!r} is not linear in counts", hint="write sums of events, each times a number")
    sorted_terms = {name: terms[name] for name in sorted(terms, key=order.__getitem__)}
    source, why = f"curated: {file}", str(entry["why"])
    found = identity(sorted_terms, relation, source, why, float(entry.get("tolerance", 0.01)))
    if found is None:
        raise InputError(f"{says!r} says nothing", hint="write a total on one side and its parts on the other")
    return found


def everything(
    catalogue: Catalogue, events: Sequence[str] | None = None, *, platform: Platform | None = None
) -> tuple[Identity, ...]:
    """Mined and curated, without those that others imply."""
    return independent((*mine(catalogue, events, platform=platform), *curated(catalogue, events)))


# --- Topology ----------------------------------------------------------------------------------------------

_CARRYING = frozenset({"link", "switch", "interconnect", "nic", "uplink"})


def from_topology(topology: Topology) -> tuple[Identity, ...]:
    """Traffic of the rows behind a shared one: all that crosses it crosses one of them.

    Names are those of resource rows. Traffic that stays behind the shared row makes theirs more than its; where their
    routes know of no such traffic, it is a sum.
    """
    kinds = {resource.name: resource.kind for resource in topology.resources}
    spans: dict[str, dict[str, frozenset[int]]] = {}  # row → device → how far traffic over it goes
    for device in topology.devices:
        for hop in device.route:
            if hop.spans and kinds[hop.resource] in _CARRYING:
                spans.setdefault(hop.resource, {})[device.name] = frozenset(hop.spans)
    found: list[Identity] = []
    for parent, over in spans.items():
        behind = {row for row, own in spans.items() if _behind(own, over)}
        # The nearest ones: a link behind a switch is not counted beside it.
        nearest = [row for row in behind if not any(_behind(spans[row], spans[other]) for other in behind)]
        if len(nearest) < 2 or {device for row in nearest for device in spans[row]} != over.keys():
            continue
        whole = all(spans[row][device] == over[device] for row in nearest for device in spans[row])
        terms = {row: 1.0 for row in sorted(nearest)} | {parent: -1.0}
        why = f"{len(nearest)} rows behind {parent}, the only ways to it"
        found += _made(terms, "=" if whole else ">=", "topology", why)
    return tuple(found)


def _behind(own: Mapping[str, frozenset[int]], over: Mapping[str, frozenset[int]]) -> bool:
    """Whether the devices of a row are some of another's, and all their traffic over that one crosses it too."""
    return own.keys() < over.keys() and all(over[device] <= spans for device, spans in own.items())
