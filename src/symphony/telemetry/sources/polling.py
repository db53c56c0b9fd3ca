"""Polling: samples from numbers that are read again and again.

Every event of a sample is an amount over its window, so that amount / duration is a rate or a mean:

- a *total* that only grows (bytes sent since boot): the difference;
- a *level* (bytes of memory in use): the mean of both ends times the duration (byte-seconds);
- a *mean* over the time since the last read (as GPUs report them): the mean times the duration.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from symphony.problem.errors import InputError
from symphony.telemetry.samples import Column, Problem, Sample
from symphony.telemetry.sources.problems import Problems

_WRAP_FRACTION = 16  # a total that drops from the last 16th of its range to the first has wrapped; else it was reset


@dataclass(frozen=True, slots=True)
class Figure:
    """A number that was read for one event, and its file or device."""

    parts: Mapping[str, float]  # summands by device or CPU; each may appear, disappear and wrap
    at: str  # "/proc/stat"
    kind: Literal["total", "level", "mean"] = "total"
    scale: float = 1.0  # from the number to the unit of the event's name

    @property
    def value(self) -> float:
        return sum(self.parts.values())


Figures = Mapping[str, Mapping[str, Figure]]  # by place and event


def difference(before: float, now: float) -> float:
    """How much a total grew; NaN if it decreased without a wrap at 32 or 64 bits."""
    if now >= before:
        return now - before
    for top in (2**32, 2**64):
        if top * (1 - 1 / _WRAP_FRACTION) <= before < top and now <= top / _WRAP_FRACTION:
            return now - before + top
    return math.nan


@dataclass
class Poller:
    """Reads every `interval_s`, `windows` times or forever, and makes samples. The first read is at time 0.

    After a late read, the next one is on schedule again, but at least `least_s` later.
    """

    read: Callable[[], Figures]
    interval_s: float
    windows: int | None = None
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    least_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.interval_s < math.inf:
            raise InputError(f"an interval of {self.interval_s} s", hint="interval_s=0.1")
        self.problems = Problems()
        self.first_read_s: float | None = None  # by the clock

    def samples(self) -> Iterator[Sample]:
        """One sample for each place and window."""
        columns: dict[str, dict[str, None]] = {}
        elapsed_s, due = 0.0, self.clock()
        self.first_read_s = due
        last, before = due, self.read()
        done = 0
        while self.windows is None or done < self.windows:
            due = max(due + self.interval_s, last + self.least_s)
            self.sleep(max(0.0, due - self.clock()))
            now_s, now = self.clock(), self.read()
            duration_s = now_s - last
            if duration_s <= 0:
                self.problems.add("the clock", f"went back from {last:.9g} s to {now_s:.9g} s; a window is left out")
                due, last, before = now_s, now_s, now
                continue
            for where, figures in now.items():
                columns.setdefault(where, {}).update(dict.fromkeys(figures))
            for where, events in columns.items():
                yield self._sample(where, elapsed_s, duration_s, list(events), before, now)
            # A late read makes its window longer; no short windows follow to catch up.
            due += self.interval_s * max(0, math.floor((now_s - due) / self.interval_s))
            elapsed_s, last, before = elapsed_s + duration_s, now_s, now
            done += 1

    def _sample(
        self, where: str, start_s: float, duration_s: float, events: list[str], before: Figures, now: Figures
    ) -> Sample:
        old, new = before.get(where, {}), now.get(where, {})
        count = np.array([self._amount(event, old.get(event), new.get(event), duration_s) for event in events])
        running = np.where(np.isfinite(count), duration_s, 0.0)
        columns = tuple(Column(event) for event in events)
        return Sample(where, start_s, duration_s, columns, count, running, np.full(len(events), duration_s))

    def _amount(self, event: str, old: Figure | None, new: Figure | None, duration_s: float) -> float:
        if new is None:
            at = old.at if old else event
            self.problems.add(at, f"{event} is no longer there", kind=f"gone {event}")
            return math.nan
        if new.kind == "mean":
            return new.value * new.scale * duration_s
        if old is None:
            return math.nan  # new at this read
        if new.kind == "level":
            return (old.value + new.value) / 2 * new.scale * duration_s
        return self._grown(event, old, new) * new.scale

    def _grown(self, event: str, old: Figure, new: Figure) -> float:
        grown = {part: difference(old.parts[part], new.parts[part]) for part in old.parts.keys() & new.parts.keys()}
        for part in sorted(part for part, by in grown.items() if math.isnan(by)):
            name = f"{event} of {part}" if part else event
            what = f"{name} went back from {old.parts[part]:.0f} to {new.parts[part]:.0f}"
            self.problems.add(new.at, what, kind=f"back {name}")
        for part in sorted(old.parts.keys() ^ new.parts.keys()):
            change = "appeared" if part in new.parts else "disappeared"
            self.problems.add(
                new.at, f"{part} {change}: the window's {event} excludes it", kind=f"{change} {event} {part}"
            )
        return sum(grown.values()) if grown else math.nan


class PolledSource:
    """Base of counter sources that a `Poller` reads."""

    _poller: Poller

    @property
    def first_read_s(self) -> float | None:
        """When the first window began, by the source's clock; None before that."""
        return self._poller.first_read_s

    @property
    def problems(self) -> Sequence[Problem]:
        """What disappeared, went backwards or could not be read so far."""
        return self._poller.problems
