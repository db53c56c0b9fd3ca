"""Simulated counters: known counts of every time slice, read as Linux would read them.

Groups of events take turns on the counters, a slice each. A reading of a window is the count in the group's own slices,
with reading errors, occasional outliers, and delay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from symphony.problem.errors import InputError
from symphony.telemetry.samples import Column, Floats, Problem, Sample


@dataclass(frozen=True, eq=False)
class SimulatedSource:
    """A source whose true counts are known."""

    events: tuple[str, ...]
    truth: Floats  # [T, E]: counts in each slice
    groups: tuple[tuple[str, ...], ...]  # in the order of the rotation
    window: int = 25  # slices
    slice_s: float = 0.004  # Linux's default
    where: str = ""
    read_error: float = 0.0  # relative standard deviation of every reading
    glitches: float = 0.0  # share of readings that are wrong by a factor of 2 to 20, up or down
    delay: int = 0  # windows by which samples are late
    first: int = 0  # the first group
    seed: int = 0
    problems: Sequence[Problem] = ()

    def __post_init__(self) -> None:
        if self.truth.ndim != 2 or self.truth.shape[1] != len(self.events):
            raise InputError(
                f"truth has shape {self.truth.shape}", hint=f"give [slices, {len(self.events)}]: one column per event"
            )
        if missing := {event for group in self.groups for event in group} - set(self.events):
            raise InputError(f"there is no truth for {', '.join(sorted(missing))}", hint="add them to `events`")

    @property
    def windows(self) -> int:
        """The number of whole windows."""
        return len(self.truth) // self.window

    @property
    def columns(self) -> tuple[Column, ...]:
        return tuple(Column(event, number) for number, group in enumerate(self.groups) for event in group)

    def totals(self) -> Floats:
        """True counts of every window [K, E]."""
        used = self.truth[: self.windows * self.window]
        return used.reshape(self.windows, self.window, -1).sum(axis=1)

    def samples(self) -> Iterator[Sample]:
        rng = np.random.default_rng(self.seed)
        columns = self.columns
        event = [self.events.index(column.event) for column in columns]
        group = np.array([column.group for column in columns])
        for k in range(self.windows):
            span = np.arange(k * self.window, (k + 1) * self.window)
            own = (span[:, None] + self.first) % len(self.groups) == group  # [slices, C]
            count = (self.truth[span][:, event] * own).sum(axis=0)
            count = count * np.maximum(1 + self.read_error * rng.standard_normal(len(columns)), 0)
            wrong = np.exp(rng.choice([-1, 1], len(columns)) * rng.uniform(np.log(2), np.log(20), len(columns)))
            count = np.where(rng.random(len(columns)) < self.glitches, count * wrong, count)
            running = own.sum(axis=0) * self.slice_s
            length = self.window * self.slice_s
            yield Sample(
                self.where,
                (k + self.delay) * length,
                length,
                columns,
                np.where(running > 0, count, np.nan),
                running,
                np.full(len(columns), length),
            )


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
