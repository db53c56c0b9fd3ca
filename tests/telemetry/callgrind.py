"""Identities between the events of valgrind's callgrind, whose counts are exact: test data for the gate."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from symphony.telemetry.expressions import key
from symphony.telemetry.identities import Identity, independent, read_curated


def identities(events: Iterable[str]) -> tuple[Identity, ...]:
    """Those of callgrind.toml that relate some events, less those that others imply."""
    file = Path(__file__).with_name("callgrind.toml")
    counted = {key(event) for event in events}
    lines = read_curated(file.read_text(encoding="utf-8"), file.name)
    return independent(line.identity for line in lines if counted.issuperset(line.identity.events))
