"""Simulated programs whose counts are known: for tests and benchmarks."""

from __future__ import annotations

import numpy as np

from symphony.telemetry.samples import Floats


def phases(
    events: int,
    slices: int,
    *,
    seed: int = 0,
    dwell: float = 6.0,
    activity: float = 1.8,
    mix: float = 0.15,
    kinds: int = 8,
) -> tuple[tuple[str, ...], Floats, tuple[tuple[str, ...], ...]]:
    """A program in phases: names of events, true counts of every slice [T, E], and sums (total, part, part, …).

    Phases of `kinds` kinds last `dwell` slices on average. A kind has a speed (log-normal, deviation `activity`) and a
    mix of events for each instruction (log-normal, deviation `mix`; every third event is a miss, of which slow phases
    have more). Events come in families, a total beside its parts; the first event is the instructions.
    """
    rng = np.random.default_rng(seed)
    names, parts = ["instructions"], list[str]()
    sums: list[tuple[str, ...]] = []
    for number in range(events):
        if len(names) == events:
            break
        size = min(2 + number % 3, events - len(names) - 1)
        family = f"unit{number}"
        members = [f"{family}.part{part}" for part in range(max(size, 1))]
        names += members
        parts += members
        if size > 1:
            names.append(f"{family}.all")
            sums.append((names[-1], *members))
    speed = rng.lognormal(0, activity, kinds)
    misses = np.where(np.arange(len(parts)) % 3 == 2, -0.4, 0.0)
    ratios = rng.lognormal(-2, 1.5, len(parts)) * rng.lognormal(0, mix, (kinds, len(parts))) * speed[:, None] ** misses
    change = rng.random(slices) < 1 / dwell
    change[0] = True
    kind = rng.integers(0, kinds, change.sum())[np.cumsum(change) - 1]
    instructions = 1e7 * speed[kind] * rng.lognormal(0, 0.05, slices)
    counted = ratios[kind] * rng.lognormal(0, 0.03, (slices, len(parts))) * instructions[:, None]
    columns = {"instructions": instructions, **dict(zip(parts, counted.T, strict=True))}
    for total, *members in sums:
        columns[total] = np.sum([columns[member] for member in members], axis=0)
    return tuple(names), np.stack([columns[name] for name in names], axis=1), tuple(sums)
