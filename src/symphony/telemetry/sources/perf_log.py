"""Logs of `perf stat`: `-j` (JSON lines) or `-x SEP` (fields with a separator), with `-I` or as one window.

    log = read_perf("perf.json")
    log["CPU0"].count, log.units["task-clock"], log.problems

perf prints scaled counts, and the time for which an event had a counter. Samples hold raw counts: the printed count
times running over enabled time (`Sample.scaled` is the printed one). The enabled time is not printed but follows from
the percentage of it that is run time. The percentage has two decimals, but since Linux 5.19 it is truncated to a whole
number first ("25.00" is anything from 25 to 26). So the events of a window and place are combined: an event that is
always counted gives the exact time.

Counts are in the unit that perf prints (`PerfLog.units`): milliseconds for `task-clock`, "" for plain counts.

Reading fails only if a log has no count at all. Whatever cannot be used is a `Problem` with the number of its line, and
its count is NaN.
"""

from __future__ import annotations

import gzip
import io
import math
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import numpy as np

from symphony.problem.errors import DataError
from symphony.telemetry.samples import Column, Problem, Recording, Sample, record
from symphony.telemetry.sources.perf_groups import given_groups, grouped
from symphony.telemetry.sources.perf_line import NOT_PERF, TOTALS, Parser, PerfReading, Unusable, time_of
from symphony.telemetry.sources.perf_times import INEXACT, IS_CPU, Clock, elapsed, enabled_time, enabled_times
from symphony.telemetry.sources.problems import Problems

MAX_LOG_LINE_BYTES = 1 << 16
MAX_EVENTS_PER_S = 1e12  # per second with a counter: some hundred times the maximum of a core
MAX_CPUS = 1 << 16  # over which a run time may be summed
_PERF_LOG_HINT = "write a log with: perf stat -I 100 -j -o perf.json -e EVENTS -- COMMAND"


class PerfLog(dict[str, Recording]):
    """The recordings of a log by place ("" if perf did not separate places)."""

    def __init__(self, recordings: Mapping[str, Recording], lines: PerfLines) -> None:
        super().__init__(recordings)
        self.problems = tuple(lines.problems)  # what could not be used
        self.units = lines.units  # by event: "msec" for task-clock, "" for plain counts
        self.unsupported = frozenset(lines.unsupported)  # events that the machine cannot count
        self.timed = lines.timed  # whether the log states its duration exactly

    def __repr__(self) -> str:
        places = ", ".join(f"{place!r}: {len(recording)} windows" for place, recording in self.items())
        return f"<PerfLog {{{places}}}, {len(self.units)} events, {len(self.problems)} problems>"


def read_perf(path: str | Path) -> PerfLog:
    """Read a log of `perf stat -j` or `perf stat -x`, compressed by gzip or not; "-" is standard input."""
    path = Path(path)
    try:
        with ExitStack() as stack:
            file = _opened(path, stack)
            lines = PerfLines(lines_of(file), name=path.name)
            recordings = record(lines.samples())
    except OSError as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be read: {why}", where=str(path), hint=_PERF_LOG_HINT) from None
    if not any(np.isfinite(recording.count).any() for recording in recordings.values()):
        first = f"; {lines.problems[0]}" if lines.problems else ""
        raise DataError(f"there is no count of perf stat in it{first}", where=str(path), hint=_PERF_LOG_HINT)
    return PerfLog(recordings, lines)


def _opened(path: Path, stack: ExitStack) -> IO[bytes]:
    file: Any
    if str(path) == "-":
        file = io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer))
        stack.callback(file.detach)  # standard input stays open
    else:
        file = stack.enter_context(path.open("rb"))
    if not file.peek(2).startswith(b"\x1f\x8b"):
        return cast(IO[bytes], file)
    return cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=file)))


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, with their line ends; of a line that is too long, its beginning."""
    while line := file.readline(MAX_LOG_LINE_BYTES):
        yield line
        while line and not line.endswith(b"\n") and len(line) == MAX_LOG_LINE_BYTES:
            line = file.readline(MAX_LOG_LINE_BYTES)


class PerfLines:
    """Lines of `perf stat -j` or `-x`, as they arrive, as a counter source.

    `groups`: the events that perf was asked to count together. Columns with equal run times in the first `look_ahead`
    windows (None: all) are a group. Samples are yielded after so many windows.
    """

    def __init__(
        self,
        lines: Iterable[str | bytes],
        *,
        name: str = "perf",
        groups: Sequence[Sequence[str]] | None = None,
        look_ahead: int | None = None,
    ) -> None:
        self._lines, self._name, self._parser = lines, name, Parser()
        self._look_ahead = look_ahead
        self._given = given_groups(groups or ())
        self._problems = Problems()
        self.units: dict[str, str] = {}
        self.unsupported: set[str] = set()  # events that the machine cannot count
        self.timed = True  # whether the durations of windows are exact
        self._clock = Clock()
        self._decimals = False  # whether percentages have decimals: perf before 5.19
        self._largest: dict[tuple[str, Column], tuple[float, int]] = {}  # by place and column: value, windows
        self._first_line = 0

    @property
    def problems(self) -> Sequence[Problem]:
        """What could not be used so far; the first problem of each kind names its line."""
        return self._problems

    def samples(self) -> Iterator[Sample]:
        """The windows as they end, a sample for each place."""
        groups: dict[Column, int] | None = None
        pending: list[list[Sample]] = []
        for window in self._windows():
            if groups is not None:
                yield from (self._in_groups(sample, groups) for sample in window)
                continue
            pending.append(window)
            if len(pending) == self._look_ahead:
                groups = self._decide(pending)
                yield from (self._in_groups(sample, groups) for held in pending for sample in held)
        if groups is None:
            groups = self._decide(pending)
            yield from (self._in_groups(sample, groups) for held in pending for sample in held)

    def _problem(self, line: int, what: str, kind: str = "") -> None:
        self._problems.add(f"{self._name}, line {line}", what, kind=kind)

    # --- From lines to readings

    def _readable(self) -> Iterator[str | bytes]:
        """Lines, up to the point where a compressed file is damaged or truncated."""
        number = 0
        try:
            for raw in self._lines:
                number += 1
                yield raw
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            self._problem(number + 1, f"the rest cannot be decompressed: {error}")

    def _readings(self) -> Iterator[PerfReading | float | None]:
        """Readings; the time of a line that cannot be used; None where another run of perf begins."""
        ended = False  # whether any line had a line end
        for number, raw in zip(count(1), self._readable(), strict=False):
            text = raw.decode("utf-8", errors="replace") if isinstance(raw, bytes) else raw
            cut_short = ended and not text.endswith("\n")
            ended = ended or text.endswith("\n")
            text = text.lstrip("\ufeff")
            if not text.strip():
                continue
            if text.startswith("# "):
                yield None
                continue
            try:
                reading = self._parser.reading(text, number)
            except Unusable as why:
                what = str(why)
                if cut_short:
                    self._problem(number, "the last line is cut short")
                elif what.startswith(NOT_PERF):
                    self._problem(number, f"{what}: {text.strip()[:60]!r}", kind=what)
                elif what:
                    self._problem(number, what)
                if what and (time_s := time_of(text)) is not None:
                    yield time_s
                continue
            yield reading

    # --- From readings to windows

    def _windows(self) -> Iterator[list[Sample]]:
        """The samples of each window, as soon as it has all lines of the previous window."""
        held: list[PerfReading] = []
        expected: list[tuple[str, str]] = []
        timed, ended = False, -1.0  # the time of the last complete window
        seen: float | None = None  # the time of the last line
        cut: float | None = None  # the time of the last line that cannot be used
        lost: float | None = None  # the same, if no line of that window can be used so far
        for reading in self._readings():
            time_s = reading.time_s if isinstance(reading, PerfReading) else reading
            if held and (reading is None or time_s != held[0].time_s):
                if held[0].time_s != cut:
                    expected = [(one.where, one.event) for one in held]
                yield from self._close(held)
                held = []
            if lost is not None and time_s != lost:
                self._clock.window(lost)  # the next window does not contain this one
                lost = None
            if isinstance(reading, float):
                cut = reading
                lost = cut if cut != seen and timed else lost
                continue
            seen, lost = time_s, None
            if reading is None:
                ended = -1.0
                continue
            if timed and reading.time_s is None:
                self._problem(reading.line, TOTALS)
                continue
            timed = timed or reading.time_s is not None
            if reading.time_s == ended:
                self._problem(reading.line, "the clock stands still: a line belongs to a window that was complete")
                expected.append((reading.where, reading.event))  # or the previous window lacked it
                continue
            held.append(reading)
            if len(held) == len(expected) and timed and [(one.where, one.event) for one in held] == expected:
                yield from self._close(held)
                held, ended = [], reading.time_s or -1.0
        if held:
            yield from self._close(held)

    def _close(self, readings: list[PerfReading]) -> Iterator[list[Sample]]:
        first = readings[0]
        self._decimals = self._decimals or any(one.percent % 1 for one in readings)
        by_place: dict[str, list[PerfReading]] = {}
        for reading in readings:
            by_place.setdefault(reading.where, []).append(reading)
        if first.time_s is not None:
            span, what = self._clock.window(first.time_s)
        else:
            length, exact, what = elapsed(readings)
            self.timed = self.timed and exact
            span = self._clock.after(length)
        if what:
            self._problem(first.line, what, kind=what.split(":")[0])
        self._first_line = self._first_line or first.line
        decoded = [self._decode(where, *(span or (0.0, 0.0)), found) for where, found in by_place.items()]
        if span and decoded:
            yield decoded

    def _decode(self, where: str, start_s: float, duration_s: float, readings: list[PerfReading]) -> Sample:
        """The readings of a place and window; columns have no groups yet."""
        candidates = enabled_times(readings, duration_s if IS_CPU.fullmatch(where) else None, self._decimals)
        seen: Counter[str] = Counter()
        columns: list[Column] = []
        rows: list[tuple[float, float, float]] = []  # count, running, enabled
        for reading in readings:
            columns.append(Column(reading.event, seen[reading.event]))
            seen[reading.event] += 1
            enabled, error = enabled_time(reading, candidates, self._decimals)
            if error > 0.01:
                self._problem(reading.line, INEXACT.format(error), kind=INEXACT)
            raw = reading.value * (reading.running_s / enabled) if enabled > 0 else math.nan
            usable = self._is_usable(where, columns[-1], reading, raw, duration_s)
            rows.append((raw, reading.running_s, enabled) if usable else (math.nan, 0.0, enabled))
        count, running_s, enabled_s = np.array(rows).T.copy()
        return Sample(where, start_s, duration_s, tuple(columns), count, running_s, enabled_s, self.units)

    def _is_usable(self, where: str, column: Column, reading: PerfReading, raw: float, duration_s: float) -> bool:
        """Whether a count is plausible; if not, a problem states why."""
        event, value = reading.event, reading.value
        if event not in self.units:
            self.units[event] = reading.unit
        what = ""
        if reading.missing:
            if reading.missing == "not supported":
                self.unsupported.add(event)
            idle = reading.missing == "not counted" and reading.percent >= 100
            what = f"{event} was {reading.missing}{': the counted program did not run' if idle else ''}"
        elif reading.unit != self.units[event]:
            what = f"the unit of {event} changes from {self.units[event]!r} to {reading.unit!r}"
        elif value < 0:
            what = f"the count of {event} is negative"
        elif not reading.running_s:
            what = f"{event} was counted for no time at all"
        elif duration_s > 0 and reading.running_s > MAX_CPUS * duration_s:
            what = f"the run time of {event} is impossibly long for its window"
        else:
            what = self._wrapped(where, column, reading, raw)
        if what:
            self._problem(reading.line, what)
        return not what

    def _wrapped(self, where: str, column: Column, reading: PerfReading, raw: float) -> str:
        """Why a count is implausibly large, or "". A counter that decreased reads slightly less than a power of 2."""
        largest, windows = self._largest.get((where, column), (0.0, 0))
        what = ""
        if not math.isfinite(raw) or reading.value >= 2**64 or raw > MAX_EVENTS_PER_S * reading.running_s:
            what = f"the count of {reading.event} is impossibly large: a counter wrapped or went back"
        elif not reading.unit:
            for bits in (32, 48, 64):
                near = 0.99 * 2**bits < max(raw, reading.value) and raw < 2**bits
                # Counts near 2^32 are common, so all others must be far smaller.
                if near and (bits > 32 or (windows >= 3 and largest < raw / 100)):
                    what = f"the count of {reading.event} is close to 2^{bits}: a counter wrapped or went back"
        if not what:
            self._largest[where, column] = (max(largest, raw), windows + 1)
        return what

    # --- From windows to samples

    def _decide(self, windows: list[list[Sample]]) -> dict[Column, int]:
        """The groups of columns, as far as the windows seen so far show them."""
        others = [window[0].duration_s for window in windows[1:]]
        if len(others) > 1:
            self._check_first(windows, median(others))
        return grouped(windows, self._given)

    def _check_first(self, windows: list[list[Sample]], usual_s: float) -> None:
        """If the beginning of a log is lost, its first window seems to begin when perf did, and is too long."""
        first_s = windows[0][0].duration_s
        enabled = [max((float(sample.enabled_s.max()) for sample in window), default=0.0) for window in windows]
        begins = f"the log begins at {first_s:.3g} s: its first window is"
        if first_s > Clock.LONG * usual_s:
            self._problem(self._first_line, f"{begins} left out")
            del windows[0]
            return
        longest = Clock.LATE * median(enabled[1:])
        if first_s > Clock.LATE * usual_s and 0 < enabled[0] < longest:
            self._problem(self._first_line, f"{begins} taken to be as long as the others")
            windows[0] = [
                replace(sample, start_s=sample.start_s + first_s - usual_s, duration_s=usual_s) for sample in windows[0]
            ]

    def _in_groups(self, sample: Sample, groups: dict[Column, int]) -> Sample:
        for column in sample.columns:  # those that appear for the first time
            groups.setdefault(column, 1 + max(groups.values(), default=-1))
        return replace(sample, columns=tuple(Column(column.event, groups[column]) for column in sample.columns))
