"""Recordings, or a log of perf, as a source; at their own pace if wanted.

Replay(read_perf("perf.json"))            # at once
Replay("perf.json", pace=1.0)             # as recorded; pace=10.0: ten times as fast
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from pathlib import Path

from symphony.problem.errors import InputError
from symphony.telemetry.samples import Problem, Recording, Sample
from symphony.telemetry.sources.perf_log import PerfLog, read_perf


class Replay:
    """Samples of recordings, ordered by the end of their windows. It can be replayed any number of times.

    `pace`: seconds of the recording per second of the clock; None does not wait.
    """

    def __init__(
        self,
        recorded: Recording | Mapping[str, Recording] | str | Path,
        *,
        pace: float | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if pace is not None and not 0 < pace < math.inf:
            raise InputError(f"a pace of {pace}", hint="pace=1.0 is as it was, pace=None does not wait")
        if isinstance(recorded, str | Path):
            recorded = read_perf(recorded)
        self._problems = recorded.problems if isinstance(recorded, PerfLog) else ()
        self._recordings = [recorded] if isinstance(recorded, Recording) else list(recorded.values())
        self._pace, self._clock, self._sleep = pace, clock, sleep

    @property
    def problems(self) -> Sequence[Problem]:
        """What could not be used of the log."""
        return self._problems

    def samples(self) -> Iterator[Sample]:
        """The windows of all places; with a pace, each at its end."""
        begin, first = self._clock(), None
        for sample in merge(*(recording.samples() for recording in self._recordings), key=_end):
            first = sample.start_s if first is None else first
            if self._pace is not None:
                self._sleep(max(0.0, begin + (_end(sample) - first) / self._pace - self._clock()))
            yield sample


def _end(sample: Sample) -> float:
    return sample.start_s + sample.duration_s
