"""Verdicts of earlier runs, by CPU, in the user's cache folder. What was tested once need not be counted again.

They are stored in `$XDG_CACHE_HOME/symphony/verdicts` (`~/.cache/…`), a JSON file for each catalogue.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from symphony.telemetry import catalogue
from symphony.telemetry.gate import Verdict
from symphony.telemetry.identities import Identity

VERDICTS_FORMAT = 2  # format 1 accepted some identities untested that now need a test
WINDOWS_UNTIL_UNTESTABLE = 50  # an identity that so many windows could not test is not tried again


def file(name: str) -> Path:
    return catalogue.folder().parent / "verdicts" / catalogue.file(name).name


def load(name: str) -> tuple[Verdict, ...]:
    """The stored verdicts for a catalogue; none if the file is missing or unreadable."""
    try:
        content = json.loads(file(name).read_bytes())
        if content["format"] != VERDICTS_FORMAT:
            return ()
        return tuple(_verdict(entry) for entry in content["verdicts"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ()


def store(name: str, verdicts: Iterable[Verdict], windows: int) -> Path | None:
    """Add the verdicts of a run to the stored ones; returns the file, or None if there was nothing to add."""
    found = {one.identity.name: one for one in verdicts if one.tested or windows >= WINDOWS_UNTIL_UNTESTABLE}
    before = {one.identity.name: one for one in load(name)}
    new = {which: one for which, one in found.items() if one.tested or which not in before}
    if not new:
        return None
    all_verdicts = [_plain(one) for one in {**before, **new}.values()]
    catalogue.write(file(name), {"format": VERDICTS_FORMAT, "cpu": name, "verdicts": all_verdicts})
    return file(name)


def together(places: Sequence[Sequence[Verdict]]) -> tuple[Verdict, ...]:
    """One verdict for each identity of several places: that of the majority of places that could test it."""
    by_name: dict[str, list[Verdict]] = {}
    for verdicts in places:
        for one in verdicts:
            by_name.setdefault(one.identity.name, []).append(one)
    found = []
    for each in by_name.values():
        tested = [one for one in each if one.tested] or each
        accepted = sum(one.accepted for one in tested) * 2 >= len(tested)
        agreeing = [one for one in tested if one.accepted == accepted]
        best = min(agreeing, key=lambda one: one.deviation if math.isfinite(one.deviation) else math.inf)
        share = f"; so at {len(agreeing)} of {len(tested)} places" if len(tested) > 1 else ""
        found.append(replace(best, reason=best.reason + share))
    return tuple(found)


def _plain(one: Verdict) -> dict[str, Any]:
    numbers = ("residual", "deviation", "z")
    return {
        name: None if name in numbers and not math.isfinite(value) else value for name, value in asdict(one).items()
    }


def _verdict(entry: dict[str, Any]) -> Verdict:
    identity = entry["identity"]
    terms = tuple((str(event), float(coefficient)) for event, coefficient in identity["terms"])
    if identity["relation"] not in ("=", ">="):
        raise ValueError(identity["relation"])
    numbers = {name: math.nan if entry[name] is None else float(entry[name]) for name in ("residual", "deviation", "z")}
    return Verdict(
        Identity(**{**identity, "terms": terms}),
        accepted=bool(entry["accepted"]),
        reason=str(entry["reason"]),
        tested=bool(entry["tested"]),
        **numbers,
    )
