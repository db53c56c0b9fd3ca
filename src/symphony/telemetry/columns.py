"""The columns of a place as the filter needs them (by keys of events, in plain counts), and their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from symphony.telemetry.naming import bare
from symphony.telemetry.posterior import RULE_OF_THREE
from symphony.telemetry.reading import CLOCKS, SLICE_S, Model, Reader
from symphony.telemetry.samples import Column, Floats, Recording, Sample

MIN_UNINTERRUPTED_SHARE = 1 - 1e-4  # share of the time with a counter from which a count is taken as uninterrupted
_EVEN = 0.5  # slices are taken in turn, not at random: half the error (measured on simulated programs)
MIN_SPREAD_WINDOWS = 6  # windows from which a spread can be estimated
MAX_DOUBT = 10.0  # the largest factor by which it widens intervals
Readings = TypeVar("Readings", Sample, Recording)


class Columns:
    """The columns of a place: those of the PMU, which are inferred, and software's, which are exact."""

    def __init__(self, reader: Reader, columns: tuple[Column, ...]) -> None:
        self.reader, self.all = reader, columns
        self.plain = [at for at, column in enumerate(columns) if reader.is_plain(column.event)]
        self.modelled = [at for at in range(len(columns)) if at not in self.plain]
        self.nodes = _nodes(reader, [columns[at] for at in self.modelled])
        self._clocks = np.array([bare(column.event).lower() in CLOCKS for column in columns], dtype=bool)

    def of_pmu(self, readings: Readings) -> Readings:
        """The columns of the PMU, by keys of their events, in plain counts."""
        at, units = self.modelled, readings.units
        events = [self.all[number].event for number in at]
        scale = np.array([self.reader.scale(event, units.get(event, "")) for event in events])
        running, enabled = readings.running_s[..., at], readings.enabled_s[..., at]
        # A run time beyond the enabled time is an error of the source; one that is not finite is unknown.
        bounded = np.where(enabled > 0, np.minimum(running, enabled), running)
        running = np.where(np.isfinite(running), bounded, 0.0)
        count = readings.count[..., at] / scale
        return replace(readings, columns=self.nodes, count=count, running_s=running, enabled_s=enabled)

    def is_idle(self, readings: Sample | Recording) -> NDArray[np.bool_]:
        """Whether the counted program did not run in a window: no column was enabled. [K] for a recording."""
        return np.asarray(~(readings.enabled_s[..., ~self._clocks] > 0).any(axis=-1))


def _nodes(reader: Reader, columns: Sequence[Column]) -> tuple[Column, ...]:
    """Columns by the keys of their events, each once in a group: `cycles:p` beside `cycles:pp` is a second reading."""
    found: dict[Column, None] = {}
    spare = count(1 + max((column.group for column in columns), default=0))
    for column in columns:
        named = replace(column, event=reader.node(column.event))
        found[replace(named, group=next(spare)) if named in found else named] = None
    return tuple(found)


def doubts(recording: Recording, model: Model) -> dict[str, float]:
    """Factors by which standard deviations of events are wider than the model's, for lack of repeated readings.

    The spread over the slices of a window is learned from events that are counted twice in a window. In most logs no
    event is. Then only the differences between windows are left: if slices were drawn at random, readings of n slices
    would differ by their spread over sqrt(n). Programs that change slowly differ more, so their intervals become too
    wide. Bursts show as windows with a count of zero.
    """
    found: dict[str, float] = {}
    for event, own in _events(recording.columns).items():
        found[event] = 1.0
        count, slices, _ = _interrupted(recording, own, model)
        if len(own) == 1 and len(count) >= MIN_SPREAD_WINDOWS:
            rate = count / slices
            middle = np.maximum(0.5 * (rate[1:] + rate[:-1]), 1e-30)
            change = float(np.median(np.abs(np.diff(rate)) / middle))  # the median ignores jumps
            spread = _EVEN * change * math.sqrt(max(float(np.median(slices)), 1.0))
            if often := _bursts(count, slices):
                spread = max(spread, often.spread)
            few = 1 / math.sqrt(max(float(rate.mean()), 1e-30))  # noise of small counts, which the model includes
            found[event] = min(max(spread / math.hypot(float(model.parameters.spread), few), 1.0), MAX_DOUBT)
    return found


def zero_count_std(sample: Sample) -> dict[str, float]:
    """Standard deviations of counts that read zero in the observed part of a window, by the rule of three."""
    found = {}
    for event, own in _events(sample.columns).items():
        count, running, enabled = sample.count[own], sample.running_s[own], float(sample.enabled_s[own].max())
        seen = float(running[count == 0].sum())
        if seen > 0 and not (count > 0).any():
            found[event] = math.sqrt(RULE_OF_THREE) * max(enabled / seen - 1, 0.0)
    return found


def unobserved_burst_std(recording: Recording, model: Model) -> dict[str, Floats]:
    """Standard deviations [K] of counts in windows that read zero, by event: bursts may have been missed."""
    found: dict[str, Floats] = {}
    for event, own in _events(recording.columns).items():
        found[event] = np.zeros(len(recording))
        count, slices, seen = _interrupted(recording, own, model)
        if len(count) >= MIN_SPREAD_WINDOWS and (often := _bursts(count, slices)):
            rest = recording.enabled_s[seen][:, own].max(axis=1) / SLICE_S - slices
            expected = often.rate * np.maximum(rest, 0.0)
            found[event][seen] = np.where(count == 0, often.size * np.sqrt(often.alone * expected * (1 + expected)), 0)
    return found


class _BurstRate(NamedTuple):
    """Bursts of about equal size that arrive at random."""

    rate: float  # bursts in a slice
    size: float  # counts in a burst
    alone: float  # how scattered zero windows are: 1 as by chance, 0 if they are one long lull

    @property
    def spread(self) -> float:
        return math.sqrt(self.alone / self.rate)


def _bursts(count: Floats, slices: Floats) -> _BurstRate | None:
    """The rate of bursts, from windows that read zero; None if all or none of them do."""
    silent = count == 0
    if silent.all() or not silent.any():
        return None
    rate = -math.log(float(silent.mean())) / float(slices.mean())
    after = silent[:-1].sum()
    alone = (silent[:-1] & ~silent[1:]).sum() / after / float((~silent).mean()) if after else 1.0
    return _BurstRate(rate, float(count.sum() / slices.sum()) / rate, min(float(alone), 1.0))


def _events(columns: Iterable[Column]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for at, column in enumerate(columns):
        found.setdefault(column.event, []).append(at)
    return found


def _interrupted(recording: Recording, own: list[int], model: Model) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Of windows in which an event had no counter part of the time: counts, slices with a counter; and a mask [K]."""
    running, count = recording.running_s[:, own], recording.count[:, own]
    usable = (running > 0) & (count >= 0) & (count < np.inf)
    together = np.where(usable, running, 0.0).sum(axis=1)
    seen = usable.any(axis=1) & (together < MIN_UNINTERRUPTED_SHARE * recording.enabled_s[:, own].max(axis=1))
    return np.where(usable, count, 0.0).sum(axis=1)[seen], together[seen] / SLICE_S, seen
