"""A CPU whose slots are the sum of their parts, and readings of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from symphony.telemetry.events import Catalogue, Event, Metric, Pmu
from symphony.telemetry.identities import Identity
from symphony.telemetry.reading import Model
from symphony.telemetry.samples import Column, Recording, Sample, record
from tests.telemetry.simulated import SimulatedSource
from tests.telemetry.test_bayes_net import total

PARTS = ("front", "bad", "back", "retired")
CPU = Catalogue(
    "x86/made-up",
    events=tuple(Event(name) for name in (*PARTS, "slots", "instructions", "cycles")),
    metrics=(
        *(Metric(f"{part}_bound", f"{part} / slots", scale=100.0, scale_unit="%") for part in PARTS),
        Metric("ipc", "instructions / cycles"),
        Metric("speed", "instructions / duration_time"),
        Metric("other", "instructions / unheard_of"),
    ),
    pmus=(Pmu("", 4, 3),),
)
SLOTS = replace(total("slots", *PARTS), source="curated: test")


def machine(seed: int = 0, windows: int = 60, noise: float = 0.3) -> tuple[tuple[str, ...], np.ndarray]:
    """True counts of a CPU whose slots are the sum of their parts."""
    rng = np.random.default_rng(seed)
    slices = windows * 25
    speed = rng.lognormal(0, noise, slices)
    level = np.repeat(rng.dirichlet(np.ones(4) * 4, windows // 10 + 1), 250, axis=0)[:slices]
    parts = 1e7 * speed[:, None] * level * rng.lognormal(0, 0.1, (slices, 4))
    slots = parts.sum(axis=1, keepdims=True)
    return (*PARTS, "slots", "instructions", "cycles"), np.hstack([parts, slots, parts[:, 3:] * 0.9, slots / 4])


def groups() -> tuple[tuple[str, ...], ...]:
    return (("instructions", "front", "bad"), ("instructions", "back", "retired"), ("instructions", "slots", "cycles"))


def reading(seed: int = 0, **errors: float) -> tuple[SimulatedSource, Recording]:
    names, truth = machine(seed)
    source = SimulatedSource(names, truth, groups(), seed=seed, **errors)
    return source, record(source.samples())[""]


def model(*identities: Identity) -> Model:
    return Model(CPU, identities=identities)


def counted_all_the_time(**rates: float) -> Recording:
    columns = tuple(Column(event.replace("_", ":"), 0) for event in rates)
    counts, second = np.array(list(rates.values())), np.ones(len(rates))
    return record(Sample("", float(k), 1.0, columns, counts, second, second) for k in range(10))[""]


def steady(windows: int, **events: tuple[float, float, float]) -> list[Sample]:
    """Windows of a second that are all alike: count, running and enabled time of each event."""
    columns = tuple(Column(event, group) for group, event in enumerate(events))
    readings = [np.array(column) for column in zip(*events.values(), strict=True)]
    return [Sample("", k, 1.0, columns, *readings) for k in range(windows)]
