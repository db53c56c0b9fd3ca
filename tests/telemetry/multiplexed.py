"""Counts with phases, and what a few counters that take turns make of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from symphony.telemetry.samples import Column, Recording

Floats = NDArray[np.float64]
WINDOW_S = 0.1


def phases(rng: np.random.Generator, events: int, windows: int, slices: int = 12) -> Floats:
    """Counts of independent events [windows * slices, events]: programs that change what they do now and then."""
    steps = windows * slices
    base = rng.lognormal(12, 1.0, events)
    levels = rng.lognormal(0, 0.7, (8, events))
    phase = np.cumsum(rng.random(steps) < 1 / 25) * 5 % 8  # each lasts 25 slices, or two windows, in the mean
    return np.round(base * levels[phase] * rng.lognormal(0, 0.1, (steps, events)))


def take_turns(
    truth: Mapping[str, Floats], groups: Sequence[Sequence[str]], slices: int = 12, *, turn: int = 1
) -> Recording:
    """Counts by group: a group has the counters for `turn` slices, then the next has them."""
    columns = tuple(Column(event, at) for at, group in enumerate(groups) for event in group)
    steps = len(next(iter(truth.values())))
    windows = steps // slices
    on = np.arange(steps) // turn % len(groups)
    counts = np.empty((windows, len(columns)))
    running = np.empty_like(counts)
    for c, column in enumerate(columns):
        mine = on == column.group
        counts[:, c] = np.where(mine, truth[column.event], 0.0).reshape(windows, slices).sum(axis=1)
        running[:, c] = mine.reshape(windows, slices).sum(axis=1) * (WINDOW_S / slices)
    counts[running == 0] = np.nan
    enabled = np.full_like(counts, WINDOW_S)
    start = np.arange(windows) * WINDOW_S
    return Recording("", columns, start, np.full(windows, WINDOW_S), counts, running, enabled)
