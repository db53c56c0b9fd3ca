"""perf's times: consecutive windows, and for how long events were enabled."""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from statistics import median

from symphony.telemetry.naming import bare
from symphony.telemetry.sources.perf_line import PerfReading

IS_CPU = re.compile(r"CPU\d+")
_TOOLS = {"duration_time", "user_time", "system_time"}  # their run times are not those of counters
INEXACT = "the enabled time is known to {:.0%} only, because perf truncates percentages: count task-clock as well"


class Clock:
    """From perf's times to consecutive windows."""

    LONG = 10.0  # times the usual length: the clock jumped, or the machine was suspended
    LATE = 1.5  # times the usual length: the beginning of a log may be lost

    def __init__(self) -> None:
        self._last: float | None = None  # perf's time
        self._offset = 0.0  # of our time relative to perf's
        self._lengths: deque[float] = deque(maxlen=15)

    def window(self, time_s: float) -> tuple[tuple[float, float] | None, str]:
        """Start and length of the window that ends at a time, None if not plausible; and the problem, or ""."""
        last = self._last or 0.0
        length, start, what = time_s - last, self._offset + last, ""
        usual = median(self._lengths) if self._lengths else None
        if length <= 0:
            what = f"the clock goes back: from {last:.9g} s to {time_s:.9g} s"
            self._offset += last  # as if another log was appended
            length = time_s
            if not 0 < length <= self.LATE * (usual or math.inf):
                self._offset -= time_s
                self._last = time_s
                return None, f"{what}; the window is left out"
        elif usual and len(self._lengths) >= 3 and length > self.LONG * usual:
            self._last = time_s
            return None, f"the clock jumps: by {length:.3g} s, where windows last {usual:.3g} s; the window is left out"
        self._last = time_s
        self._lengths.append(length)
        return (start, length), what

    def after(self, length: float) -> tuple[float, float] | None:
        """The window of some length after all others."""
        start = self._offset
        self._offset += length
        return (start, length) if length > 0 else None


def elapsed(readings: list[PerfReading]) -> tuple[float, bool, str]:
    """The duration of a log without -I, whether it is exact, and a warning if it is not certain."""
    for reading in readings:
        if bare(reading.event) == "duration_time" and reading.unit == "ns" and reading.value > 0:
            return reading.value / 1e9, True, ""
    for reading in readings:
        if reading.unit == "msec" and reading.value > 0 and reading.utilized > 0:
            return reading.value / 1e3 / reading.utilized, False, ""  # perf prints the number of CPUs with few digits
    longest = max(reading.running_s / (reading.percent / 100 or 1) for reading in readings)
    what = "the elapsed time is unknown without -I, duration_time or task-clock: time on CPUs is used instead"
    return longest, False, what


# --- Enabled times -----------------------------------------------------------------------------------------


def _bounds(reading: PerfReading, decimals: bool) -> tuple[float, float]:
    """The shortest and the longest enabled time that a printed percentage allows."""
    if reading.percent >= 100:
        return reading.running_s, reading.running_s
    low, high = reading.percent - 0.005, reading.percent + (0.005 if decimals else 1)
    return reading.running_s / (high / 100), reading.running_s / (low / 100) if low > 0 else math.inf


def enabled_times(readings: list[PerfReading], duration_s: float | None, decimals: bool) -> list[tuple[float, float]]:
    """Estimates of a place's enabled time, each with its relative error, the best first.

    `duration_s`: of the window, if the place is a CPU, whose counters are always enabled.
    """
    timed = [one for one in readings if not one.missing and one.running_s > 0 and bare(one.event) not in _TOOLS]
    bounds = [_bounds(one, decimals) for one in timed]
    exact = sorted({least for least, most in bounds if least == most}, reverse=True)
    found = [(whole, 0.0) for whole in exact]
    if duration_s:
        found.append((duration_s, 0.001))
    least, most = 0.0, math.inf
    for low, high in sorted(bounds, key=lambda both: both[1] / both[0]):
        if max(least, low) <= min(most, high):
            least, most = max(least, low), min(most, high)
    if 0 < most < math.inf and least > 0:
        found.append((math.sqrt(least * most), math.sqrt(most / least) - 1))
    return found


def enabled_time(
    reading: PerfReading, candidates: Sequence[tuple[float, float]], decimals: bool
) -> tuple[float, float]:
    """The best estimate of an event's enabled time that its percentage allows, and its relative error."""
    if reading.missing or not reading.running_s:
        # 100% of no time: the event was not enabled, because the counted program did not run.
        wanted = reading.missing != "not supported" and reading.percent < 100
        return (candidates[0][0] if wanted and candidates else 0.0), 0.0
    least, most = _bounds(reading, decimals)
    for whole, error in candidates if least < most else ():
        if least * (1 - 1e-9) <= whole <= most * (1 + 1e-9):
            return max(whole, reading.running_s), error
    if math.isinf(most):
        return least, math.inf if least > reading.running_s else 0.0
    return math.sqrt(least * most), math.sqrt(most / least) - 1
