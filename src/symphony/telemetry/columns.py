"""The columns of a place as the filter wants them: by keys of events, in plain counts; and how sure they are."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from symphony.telemetry.naming import bare
from symphony.telemetry.reading import CLOCKS, Model, Reader
from symphony.telemetry.samples import Column, Floats, Recording, Sample

WHOLE = 1 - 1e-4  # share of the time from which a count counts as never interrupted
_EVEN = 0.5  # slices are not drawn at random but in turn, and half as far off (measured on simulated programs)
LEAST, MOST_DOUBT = 6, 10.0  # windows from which a spread can be estimated, and the most that it widens intervals


class Columns:
    """The columns of a place: those of the PMU, which are inferred, and the kernel's own, which are as they are."""

    def __init__(self, reader: Reader, columns: tuple[Column, ...]) -> None:
        self.reader, self.all = reader, columns
        self.plain = [at for at, column in enumerate(columns) if reader.is_plain(column.event)]
        self.modelled = [at for at in range(len(columns)) if at not in self.plain]
        self.nodes = _nodes(reader, [columns[at] for at in self.modelled])
        self._clocks = np.array([bare(column.event).lower() in CLOCKS for column in columns], dtype=bool)

    def of_pmu(self, sample: Sample) -> Sample:
        """What a sample has of the PMU, by keys, in plain counts."""
        at, units = self.modelled, sample.units
        events = [self.all[number].event for number in at]
        scale = np.array([self.reader.scale(event, units.get(event, "")) for event in events])
        return replace(
            sample,
            columns=self.nodes,
            count=sample.count[at] / scale,
            running_s=sample.running_s[at],
            enabled_s=sample.enabled_s[at],
        )

    def asleep(self, sample: Sample) -> bool:
        """Whether what is counted did not run: nothing wanted a counter, and nothing happened."""
        return not (sample.enabled_s[~self._clocks] > 0).any()


def _nodes(reader: Reader, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Columns by the keys of their events, each once in a group: `cycles:p` beside `cycles:pp` is one more reading."""
    found: dict[Column, None] = {}
    spare = count(1 + max((column.group for column in columns), default=0))
    for column in columns:
        named = replace(column, event=reader.node(column.event))
        found[replace(named, group=next(spare)) if named in found else named] = None
    return tuple(found)


def stacked(samples: Sequence[Sample], columns: tuple[Column, ...], like: Recording) -> Recording:
    """Samples with the same columns, of which there may be none."""

    def stack(of: Callable[[Sample], Floats]) -> Floats:
        return np.array([of(sample) for sample in samples]).reshape(len(samples), len(columns))

    return Recording(
        like.where,
        columns,
        np.array([sample.start_s for sample in samples]),
        np.array([sample.duration_s for sample in samples]),
        stack(lambda sample: sample.count),
        stack(lambda sample: sample.running_s),
        stack(lambda sample: sample.enabled_s),
    )


def aligned(sample: Sample, columns: tuple[Column, ...]) -> Sample:
    """A sample with the columns of its place's first."""
    if sample.columns == columns:
        return sample
    at = {column: number for number, column in enumerate(sample.columns)}
    have = [at.get(column) for column in columns]

    def pick(values: Floats, missing: float) -> Floats:
        return np.array([missing if place is None else values[place] for place in have])

    return replace(
        sample,
        columns=columns,
        count=pick(sample.count, np.nan),
        running_s=pick(sample.running_s, 0.0),
        enabled_s=pick(sample.enabled_s, 0.0),
    )


def doubts(recording: Recording, model: Model) -> dict[str, float]:
    """By how much the events of a recording are less certain than the model has it, for want of knowing better.

    How far the slices of a window differ is learned from events that are counted twice in a window. Where none is, as
    in most logs, all that there is to go by is how far windows differ: were slices drawn at random, readings of n
    slices would differ by their spread over sqrt(n). Programs that change slowly differ more, and are believed to be
    less well known than they are.
    """
    found: dict[str, float] = {}
    for event in dict.fromkeys(column.event for column in recording.columns):
        own = [at for at, column in enumerate(recording.columns) if column.event == event]
        running, count = recording.running_s[:, own[0]], recording.count[:, own[0]]
        seen = (running > 0) & (count >= 0) & (count < np.inf) & (running < WHOLE * recording.enabled_s[:, own[0]])
        found[event] = 1.0
        if len(own) == 1 and seen.sum() >= LEAST:
            rate = count[seen] / running[seen]
            middle = np.maximum(0.5 * (rate[1:] + rate[:-1]), 1e-30)
            change = float(np.median(np.abs(np.diff(rate)) / middle))  # jumps are few
            slices = float(np.median(running[seen])) / model.slice_s
            spread = _EVEN * change * math.sqrt(max(slices, 1.0))
            found[event] = min(max(spread / float(model.parameters.spread), 1.0), MOST_DOUBT)
    return found
