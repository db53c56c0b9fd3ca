"""Counts the traffic of this machine's memories with perf while kernels run.

Counts go through the filter of `symphony stat` (`telemetry/inference.py`), socket by socket, which gives a mean and a
deviation where events take turns on too few counters. Its model has no identities: events of memory controllers are
not related to those of cores, which are not counted here. Whose traffic it was, `estimation/live.py` infers.

perf starts with the first kernel. It goes on for a few seconds after the last one, which shows the traffic of others
alone, and starts again with the next. If perf fails, the run goes on without it, and that is logged once.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from contextlib import closing
from functools import lru_cache

from symphony.problem.errors import SymphonyError
from symphony.problem.topology import Topology
from symphony.telemetry import rows
from symphony.telemetry.inference import Tracker
from symphony.telemetry.memory import MemoryEvents
from symphony.telemetry.samples import CounterSource, Sample

log = logging.getLogger("symphony.runtime")
INTERVAL_MS = 100
STOP_AFTER_IDLE_S = 5.0  # for so long after the last kernel, counting goes on
MAX_BLANK_WINDOWS = 50  # windows in a row without any values, after which counting is given up
MAX_SILENT_WINDOWS = 5  # windows for which a socket without values is waited for
PERF_EXIT_TIMEOUT_S = 2.0
UsageCallback = Callable[
    [Mapping[str, tuple[float, float]], float, float], None
]  # by row: share, deviation; beginning, end


class MemoryCounter:
    """Counts while something runs. Its own thread calls `tell` with every window: use of memories by row."""

    def __init__(
        self,
        topology: Topology,
        counted: MemoryEvents,
        tell: UsageCallback,
        *,
        source: Callable[[], CounterSource] | None = None,
        idle_s: float = STOP_AFTER_IDLE_S,
    ) -> None:
        """`source`: where readings come from, if not from this machine's perf."""
        self._topology, self._counted, self._tell = topology, counted, tell
        self._source = source or (lambda: counted.source(INTERVAL_MS))
        self._machines = sorted({row.group for row in topology.resources if row.kind == "memory"})
        self._idle_s, self._busy_s = idle_s, -math.inf
        self._busy, self._closed = threading.Event(), False
        self._thread = threading.Thread(target=self._run, name="symphony-count", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """False once counting was given up."""
        return self._thread.is_alive()

    def set_busy(self, busy: bool) -> None:
        """Whether something runs."""
        if busy != self._busy.is_set() and not self._closed:
            self._busy_s = time.monotonic()
            (self._busy.set if busy else self._busy.clear)()

    def close(self) -> None:
        """Stop counting. perf has ended when this returns, unless it hangs."""
        self._closed = True
        self._busy.set()
        self._thread.join(PERF_EXIT_TIMEOUT_S)

    # --- its thread

    def _run(self) -> None:
        try:
            while self._busy.wait() and not self._closed:
                source = self._source()
                with closing(_generator(source)) as samples:
                    if self._follow(samples):
                        continue
                why = f": {source.problems[0]}" if source.problems else ""
                _log_once(logging.WARNING, f"memory traffic is not counted any more: perf reports no values{why}")
                return
        except SymphonyError as error:  # perf is missing, or not permitted
            _log_once(logging.INFO, f"memory traffic is not counted: {error.message}; {error.hint}")
        except Exception as error:
            _log_once(logging.WARNING, f"memory traffic is not counted any more: {type(error).__name__}: {error}")

    def _follow(self, samples: Iterable[Sample]) -> bool:
        """Report windows. True if it ended because nothing runs or it was closed; False if the source has no values."""
        trackers: dict[str, Tracker] = {}
        newest_s: dict[str, float] = {}  # when the newest window of each place began
        # When the source's time 0 was. A window is reported after its end, and few much later: so the earliest guess.
        zero_s, blank = math.inf, 0
        for sample in samples:
            zero_s = min(zero_s, time.monotonic() - sample.start_s - sample.duration_s)
            if sample.where not in trackers:
                trackers[sample.where] = Tracker(self._counted.model, sample.columns)
            trackers[sample.where].update(sample)
            newest_s[sample.where] = sample.start_s
            blank += 1
            silent_s = sample.start_s - (MAX_SILENT_WINDOWS + 0.5) * sample.duration_s
            silent = {place for place, at_s in newest_s.items() if at_s < silent_s}
            complete = all(at_s == sample.start_s for place, at_s in newest_s.items() if place not in silent)
            # The first window is reported late, so that its time is not known.
            if sample.start_s > 0 and complete and (used := self._used(trackers, silent)):
                began_s, blank = zero_s + sample.start_s, 0
                self._tell(used, began_s, began_s + sample.duration_s)
            if self._closed or (not self._busy.is_set() and time.monotonic() - self._busy_s > self._idle_s):
                return True
            if blank > MAX_BLANK_WINDOWS * len(trackers):
                return False
        return self._closed

    def _used(self, trackers: Mapping[str, Tracker], silent: Container[str]) -> dict[str, tuple[float, float]]:
        """The use of memories in the newest window, by row. Rows that silent places measure are left out."""
        beliefs = {place: tracker.latest() for place, tracker in trackers.items()}
        stale = {place: belief for place, belief in beliefs.items() if place in silent}
        found: dict[str, tuple[float, float]] = {}
        for machine in self._machines:
            unknown = rows.utilisations(self._topology, machine, stale) if stale else {}
            for name, use in rows.utilisations(self._topology, machine, beliefs).items():
                if name not in unknown:
                    found[name] = float(use.mean[-1]), float(use.std[-1])
        return {name: both for name, both in found.items() if all(map(math.isfinite, both))}


def _generator(source: CounterSource) -> Generator[Sample]:
    """The samples, as a generator, which can be closed."""
    yield from source.samples()


@lru_cache(maxsize=64)
def _log_once(level: int, text: str) -> None:
    log.log(level, "%s", text)
