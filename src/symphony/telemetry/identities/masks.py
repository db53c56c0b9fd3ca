"""Unit masks: what the mask bits of events with one code imply about their counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, pairwise, product

from symphony.telemetry.events import Catalogue, Event
from symphony.telemetry.expressions import key
from symphony.telemetry.identities.names import is_total, only_fixed, words
from symphony.telemetry.identities.relations import Identity, cached, made

_FULL = 0xFFFF  # all 16 values of a nibble, as a set
_FREE_RUNNING = 0xFF  # the code of free-running counters, whose masks are just their numbers
# Words in names of events that count cycles with a property: a cycle with two of them counts once in their union.
_CYCLES = frozenset({"cycle", "cycles", "cyc", "clockticks", "ne", "full"})
_DURATIONS = ("cycle", "stall", "clock", "clk")  # words in descriptions of events that may count cycles


UNION, LIKELY = "umask union", "likely union"  # sources; the second needs a test


@dataclass(frozen=True)
class MaskFamily:
    """Events of one code that differ in their masks only, and what the mask bits mean, judged by all listed events.

    Bits select what is counted. Usually each bit adds something ("union"). In some families one field of bits selects
    the kind and another the outcome, and events with both are counted ("product"): then no event has bits of one field
    only. In some families a nibble is a number that selects one of 15 things ("enumeration"): then two or more of its
    values have several bits and are not called totals. If those are disjoint or nested, they may be masks after all.
    """

    enumerated: tuple[bool, bool]  # low nibble, high nibble
    unsure: bool = False  # there are such values, but they could be masks
    field: int = 0  # the mask of one field of a product; 0 if it is not a product
    masks: tuple[int, ...] = ()  # of all listed events, each once
    parts: int = 0  # bits of all events that are not called totals
    countable: bool = True  # occurrences add up; cycles with at least n occurrences do not

    @classmethod
    def of(cls, events: Sequence[Event]) -> MaskFamily:
        """The family of all events of one code."""
        values = [_values(events, shift) for shift in (0, 4)]
        low, high = (len(found) > 1 and _crossing(found) for found in values)
        family = cls((low, high), unsure=any(len(found) > 1 for found in values), countable=events[0].cmask == 0)
        masks = {family.mask(event) for event in events} - {0}
        parts = 0
        for event in events:
            parts |= 0 if is_total(key(event.name)) else family.mask(event)
        field = 0 if low or high else _field(masks)
        return replace(family, field=field, masks=tuple(sorted(masks)), parts=parts)

    def mask(self, event: Event) -> int:
        """What an event counts, as a set of bits: 16 for each nibble."""
        found = 0
        for at, enumerated in enumerate(self.enumerated):
            nibble = event.umask >> 4 * at & 0xF
            if enumerated and nibble:
                nibble = _FULL if nibble == 0xF and is_total(key(event.name)) else 1 << nibble
            found |= nibble << 16 * at
        return found

    def sums(self, members: Mapping[str, Event]) -> Iterator[Identity]:
        """Each total as the sum of the finest listed parts."""
        if not self.countable:
            return
        masks = self._masks(members)
        for target, name in masks.items():
            for rule, parts in self.partitions(target, masks, is_total(name)):
                others = [members[masks[part]] for part in parts]
                source = self._union(members[name], others) if rule == UNION else rule
                if source and not any(_counts_cycles(event) for event in (members[name], *others)):
                    terms = {name: 1.0} | {masks[part]: -1.0 for part in parts}
                    yield from made(terms, "=", source, _sets(members[name], others))

    def _union(self, whole: Event, parts: Sequence[Event]) -> str:
        """The source of a union, by how certain it is; "" if names contradict it. Outside the core none is certain."""
        total = is_total(key(whole.name))
        if not total and (any(self.enumerated) or any(_chooses_all(key(part.name)) for part in parts)):
            return ""  # a filter of what the other bits choose
        texts = [f"{event.name} {event.description}".lower() for event in (whole, *parts)]
        durations = any(word in text for text in texts for word in _DURATIONS)
        return LIKELY if self.unsure or durations or not whole.core else UNION

    def partitions(self, target: int, masks: Iterable[int], total: bool) -> Iterator[tuple[str, list[int]]]:
        """Each way to split a mask into others: the rule, and the parts."""
        inside = [mask for mask in masks if mask != target and mask & target == mask]
        if self.field:
            for field in (self.field, ~self.field):
                same = {mask & ~field: mask for mask in inside if mask & field == target & field}
                if parts := _cover(target & ~field, list(same)):
                    yield "umask product", [same[part] for part in parts]
        elif parts := _cover(target, inside):
            yield UNION, parts
        elif total and target & ~self.parts and (parts := self._unreserved(target, inside)):
            yield "reserved bits", parts

    def _unreserved(self, target: int, inside: Sequence[int]) -> list[int] | None:
        """A split of the bits that some part has. Values that an enumeration does not list may well be used."""
        return None if any(self.enumerated) else _cover(target & self.parts, inside)

    def bounds(self, members: Mapping[str, Event]) -> Iterator[Identity]:
        """Each total is at least what its mask includes."""
        masks = self._masks(members)
        for target, name in masks.items():
            known = 0
            for mask in self.masks:
                known |= mask if mask != target else 0
            if not is_total(name) and (target & ~known or any(self.enumerated)):
                continue  # a bit that no other event has may be a filter, which reduces the count
            inside = [mask for mask in masks if mask != target and mask & target == mask]
            if not is_total(name) and any(_chooses_all(masks[mask]) for mask in inside):
                continue
            apart: list[int] = []
            if self.countable and not self.field and not any(self.enumerated) and not _counts_cycles(members[name]):
                for mask in sorted(inside, key=int.bit_count):
                    if not any(mask & other for other in apart):
                        apart.append(mask)
            largest = [mask for mask in inside if not any(mask & other == mask != other for other in inside)]
            for parts in (*([apart] if len(apart) > 1 else ()), *([mask] for mask in largest)):
                terms = {name: 1.0} | {masks[part]: -1.0 for part in parts}
                yield from made(terms, ">=", "bound", _sets(members[name], [members[masks[part]] for part in parts]))

    def _masks(self, members: Mapping[str, Event]) -> dict[int, str]:
        """One event for each mask: the others are aliases."""
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
        if event.umask & 0xFF == nibble << shift and nibble.bit_count() > 1 and not is_total(key(event.name)):
            found.add(nibble)
    return found


def _crossing(values: Iterable[int]) -> bool:
    """Whether two values overlap and neither contains the other: 3 and 5."""
    return any(a & b not in (0, a, b) for a, b in combinations(values, 2))


def families(catalogue: Catalogue, listed: Mapping[str, Event]) -> list[tuple[MaskFamily, dict[str, Event]]]:
    """Events by family, each judged by the whole listing."""
    everyone: dict[object, list[Event]] = cached(catalogue, "families", lambda: _by_family(catalogue.events))
    found: dict[object, dict[str, Event]] = {}
    for name, event in listed.items():
        if _has_mask(event):
            found.setdefault(_family_of(event), {})[name] = event
    several = [(of, members) for of, members in found.items() if len(members) > 1 and of in everyone]
    return [
        (cached(catalogue, ("family", of), partial(MaskFamily.of, everyone[of])), members) for of, members in several
    ]


def _by_family(events: Iterable[Event]) -> dict[object, list[Event]]:
    found: dict[object, list[Event]] = {}
    for event in events:
        if _has_mask(event):
            found.setdefault(_family_of(event), []).append(event)
    return found


def _has_mask(event: Event) -> bool:
    """Whether an event's mask is a set of bits: not for edges, inverted counts, and numbers of counters."""
    numbered = only_fixed(event) or (not event.core and event.codes == (_FREE_RUNNING,))
    return bool(event.umask and event.codes) and not event.edge and not event.invert and not numbered


def _chooses_all(name: str) -> bool:
    """Whether the mask's name is that of a total: `victims.total_m`, but not `any_fills.local`."""
    head, _, chosen = name.partition(".")
    return is_total(chosen or head)


def _counts_cycles(event: Event) -> bool:
    return not _CYCLES.isdisjoint(words(key(event.name)))


def _family_of(event: Event) -> tuple[object, ...]:
    # Bits beyond the eighth are a filter, which must be equal. Outside the core a code may have several uses.
    head = "" if event.core else key(event.name).partition(".")[0]
    return event.unit, head, event.codes, event.cmask, event.any_thread, event.terms, event.umask >> 8


def _field(masks: set[int]) -> int:
    """One field of the product that masks form; 0 if they form none, or if it splits no mask."""
    if not masks or min(mask.bit_count() for mask in masks) < 2:
        return 0
    bits = [1 << at for at in range(32) if any(mask >> at & 1 for mask in masks)]
    best, most = 0, 0
    for choice in product((0, 1), repeat=len(bits) - 1):
        field = sum(bit for bit, chosen in zip(bits[1:], choice, strict=True) if chosen)
        if not all(mask & field and mask & ~field for mask in masks):
            continue
        family = MaskFamily((False, False), field=field)
        splits = sum(1 for target in masks for _ in family.partitions(target, masks, False))
        if splits > most:
            best, most = field, splits
    return best


def _cover(target: int, masks: Sequence[int]) -> list[int] | None:
    """Two or more disjoint masks whose union is the target, smallest first; None if there are none."""
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


def cycle_bounds(listed: Mapping[str, Event]) -> Iterator[Identity]:
    """A count is at least n × the cycles with at least n, and cycles with more are fewer."""
    same: dict[tuple[object, ...], dict[int, str]] = {}
    for name, event in listed.items():
        if event.codes and not event.edge and not event.invert and not only_fixed(event):
            of = (event.unit, event.codes, event.umask, event.any_thread, event.terms)
            same.setdefault(of, {}).setdefault(event.cmask, name)
    for by_least in same.values():
        order = sorted(by_least)
        for less, more in pairwise(order):
            terms = {by_least[less]: 1.0, by_least[more]: -1.0}
            yield from made(terms, ">=", "bound", f"cycles with at least {more} of them also have {max(less, 1)}")
        for least in order[1:] if order[0] == 0 else ():
            terms = {by_least[0]: 1.0, by_least[least]: -float(least)}
            yield from made(terms, ">=", "bound", f"each of these cycles has at least {least} of them")
