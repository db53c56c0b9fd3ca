"""Identities from names of events: aliases, and names that differ in one word."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from symphony.telemetry.events import Event
from symphony.telemetry.identities.relations import Identity, made


def aliases(listed: Mapping[str, Event]) -> Iterator[Identity]:
    """Names for which perf programs the same event."""
    same: dict[tuple[str, str, str], list[str]] = {}
    for name, event in listed.items():
        if event.perf_terms and not (only_fixed(event) and event.perf_terms.startswith("event=0x0")):
            modifiers = dict(event.terms).get("modifiers", "")
            same.setdefault((event.unit, event.perf_terms, modifiers), []).append(name)
    for (unit, terms, _), found in same.items():
        first, *others = sorted(found, key=lambda name: listed[name].deprecated)
        for other in others:
            why = f"both are {unit or 'cpu'}/{terms}/"
            yield from made({first: 1.0, other: -1.0}, "=", "alias", why)


def only_fixed(event: Event) -> bool:
    """Whether code and mask are just the number of a fixed counter."""
    return event.fixed is not None and event.codes in ((), (0,))


_TOTALS = frozenset({"all", "any", "total", "both", "count", "lookups", "references", "reference"}) | frozenset(
    {"accesses", "access", "requests", "request"}
)
_WORD_PAIRS = (
    (frozenset({"hit", "hits"}), frozenset({"miss", "misses"})),
    (frozenset({"rd", "read", "reads"}), frozenset({"wr", "write", "writes"})),
    (frozenset({"load", "loads"}), frozenset({"store", "stores"})),
)
_OPEN_WORD_PAIRS = _WORD_PAIRS[2:]  # there are more kinds than these two, so the total must be called one
_WORDS = re.compile(r"[^._\-/]+")


@lru_cache(maxsize=1 << 15)
def words(name: str) -> tuple[str, ...]:
    return tuple(_WORDS.findall(name))


def is_total(name: str) -> bool:
    return not _TOTALS.isdisjoint(words(name))


def counterparts(listed: Mapping[str, Event]) -> Iterator[Identity]:
    """`x_hit` + `x_miss` = `x`, or `x_all`, or `all_x`."""
    plain: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for name, event in listed.items():
        stem = tuple(word for word in words(name) if word not in _TOTALS)
        plain.setdefault((event.unit, stem), []).append(name)
    for pair in _WORD_PAIRS:
        halves: dict[tuple[str, tuple[str, ...]], dict[int, str]] = {}
        for name, event in listed.items():
            inside = words(name)
            which = [(at, side) for at, word in enumerate(inside) for side in (0, 1) if word in pair[side]]
            if len(which) != 1 or event.deprecated:
                continue
            at, side = which[0]
            stem = tuple(word for word in (*inside[:at], *inside[at + 1 :]) if word not in _TOTALS)
            halves.setdefault((event.unit, stem), {}).setdefault(side, name)
        for of, sides in halves.items():
            totals = [name for name in plain.get(of, ()) if _alike(listed, name, sides.values())]
            if len(sides) == 2 and totals:
                whole = min(totals, key=lambda name: not is_total(name))
                if pair in _OPEN_WORD_PAIRS and not is_total(whole):
                    continue
                why = "names that differ in one word, and one that has neither"
                yield from made({whole: 1.0, sides[0]: -1.0, sides[1]: -1.0}, "=", "hit + miss", why)


def _alike(listed: Mapping[str, Event], name: str, parts: Iterable[str]) -> bool:
    """Whether an event may be the sum of others: all count occurrences, and its mask is the union of theirs."""
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
