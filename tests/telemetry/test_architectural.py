"""The catalogue that is always there."""

from __future__ import annotations

from symphony.telemetry.architectural import CATALOGUE
from symphony.telemetry.machine import Platform


def test_names_are_unique_and_each_event_says_how_to_open_it() -> None:
    names = [event.name.lower() for event in CATALOGUE.events]
    assert len(set(names)) == len(names)
    selections = {(event.terms) for event in CATALOGUE.events}
    assert len(selections) == len(names) and all({"type", "config"} <= dict(terms).keys() for terms in selections)


def test_configurations_are_those_of_perf_event_open() -> None:
    def opened(name: str) -> dict[str, str]:
        return dict(CATALOGUE.event(name).terms)

    assert opened("cycles") == {"type": "0", "config": "0x0"}
    assert opened("branch-misses") == {"type": "0", "config": "0x5"}
    assert opened("LLC-store-misses") == {"type": "3", "config": "0x10102"}
    assert opened("context-switches") == {"type": "1", "config": "0x3"}


def test_every_metric_is_made_of_listed_events() -> None:
    for metric in CATALOGUE.metrics:
        unknown = [name for name in CATALOGUE.needed([metric.name]) if CATALOGUE.resolve(name) is None]
        assert unknown in ([], ["duration_time"])


def test_values() -> None:
    counts = {"cycles": 4e9, "instructions": 2e9, "branch-misses": 5, "branch-instructions": 100, "duration_time": 2}
    assert CATALOGUE.evaluate("ipc", counts) == 0.5
    assert CATALOGUE.evaluate("branch_miss_rate", counts) == 5.0
    assert CATALOGUE.evaluate("frequency", counts, platform=Platform(num_cpus_online=2)) == 1.0
