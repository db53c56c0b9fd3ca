"""Counter readings of one place and window, whichever source they come from.

A reading has four forms on its way from a source to a printed row:

1. what the source reads: a line of perf (`sources.perf_line.PerfReading`), or a number that was polled
   (`sources.polling.Figure`);
2. `Sample`: counts and times of one place and window. A `Recording` is a stack of samples with the same fields;
3. `spans.Span`: the belief about the counts of a span of time. Spans add up to intervals and whole runs;
4. `spans.StatRow`: the row of one event or metric. An `Estimate` holds the rows of all windows as arrays.

The filter's `posterior.Window` and `posterior.Belief` are the argument and the state of one call, inside `inference`.

A *column* is an event in a group of events that are counted at the same times. An event may have several columns, one
in each group: they relate a group that is counted part of the time to the events that are always counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Column:
    """An event, in the group that shares its time on the counters."""

    event: str
    group: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """The readings of one place over one window."""

    where: str  # "CPU3", "S0", "GPU-1"; "" if there is only one place
    start_s: float
    duration_s: float
    columns: tuple[Column, ...]
    count: Floats  # [C] events while the column had a counter, not scaled up; NaN if unknown
    running_s: Floats  # [C] seconds with a counter; summed over CPUs if counts are
    enabled_s: Floats  # [C] seconds for which the column was enabled; 0 if the counted program did not run
    units: Mapping[str, str] = field(default_factory=dict)  # units of counts by event; plain counts have none

    @property
    def scaled(self) -> Floats:
        """Counts scaled up to the whole window, as Linux does [C]."""
        return _scaled(self.count, self.running_s, self.enabled_s)


@dataclass(frozen=True, slots=True)
class Problem:
    """Something in a source that could not be used, and where it is."""

    where: str  # "perf.json, line 12"
    what: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}"


@runtime_checkable
class CounterSource(Protocol):
    """A source of readings. `samples` yields them in order of time for each place, and may never end."""

    def samples(self) -> Iterator[Sample]:
        """The readings, as they arrive."""
        ...

    @property
    def problems(self) -> Sequence[Problem]:
        """What could not be used so far."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """The samples of one place, stacked: windows are the first axis, columns the last."""

    where: str
    columns: tuple[Column, ...]
    start_s: Floats  # [K]
    duration_s: Floats  # [K]
    count: Floats  # [K, C]
    running_s: Floats  # [K, C]
    enabled_s: Floats  # [K, C]
    units: Mapping[str, str] = field(default_factory=dict)  # units of counts by event

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def scaled(self) -> Floats:
        """Counts scaled up to whole windows, as Linux does [K, C]."""
        return _scaled(self.count, self.running_s, self.enabled_s)

    def windows(self, chosen: NDArray[np.bool_]) -> Recording:
        """The recording of some windows [K]."""
        arrays = ("start_s", "duration_s", "count", "running_s", "enabled_s")
        return replace(self, **{name: getattr(self, name)[chosen] for name in arrays})

    def samples(self) -> Iterator[Sample]:
        """The windows one by one."""
        for k in range(len(self)):
            yield Sample(
                self.where,
                float(self.start_s[k]),
                float(self.duration_s[k]),
                self.columns,
                self.count[k],
                self.running_s[k],
                self.enabled_s[k],
                self.units,
            )


def record(samples: Iterable[Sample]) -> dict[str, Recording]:
    """Stack the samples of each place. A column that a window lacks is unknown there."""
    by_place: dict[str, list[Sample]] = {}
    for sample in samples:
        by_place.setdefault(sample.where, []).append(sample)
    return {where: stack(found) for where, found in by_place.items()}


def stack(samples: Sequence[Sample], columns: tuple[Column, ...] | None = None) -> Recording:
    """Samples as one recording of the first one's place; by default with all columns that any of them has."""
    columns = columns or tuple(dict.fromkeys(column for sample in samples for column in sample.columns))
    at = {column: c for c, column in enumerate(columns)}
    shape = (len(samples), len(columns))
    count, running, enabled = np.full(shape, np.nan), np.zeros(shape), np.zeros(shape)
    for k, sample in enumerate(samples):
        own = [c for c, column in enumerate(sample.columns) if column in at]
        into = [at[sample.columns[c]] for c in own]
        count[k, into] = sample.count[own]
        running[k, into] = sample.running_s[own]
        enabled[k, into] = sample.enabled_s[own]
    return Recording(
        samples[0].where,
        columns,
        np.array([sample.start_s for sample in samples]),
        np.array([sample.duration_s for sample in samples]),
        count,
        running,
        enabled,
        {event: unit for sample in samples for event, unit in sample.units.items()},
    )


def _scaled(count: Floats, running_s: Floats, enabled_s: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(running_s > 0, count * (enabled_s / running_s), np.nan)
