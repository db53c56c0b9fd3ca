"""What `perf stat` wrote: `-j` (JSON lines) or `-x SEP` (fields with a separator), with `-I` or as one window.

    log = read_perf("perf.json")
    log["CPU0"].count, log.units["task-clock"], log.problems

perf prints counts that are scaled up already, and the time for which an event had a counter, which is not. Samples hold
what was counted: the printed count times running over enabled time. `Sample.scaled` is what perf printed. The enabled
time is not printed but follows from the percentage of it that is run time. That is rounded to two decimals, and since
Linux 5.19 cut down to a whole number first ("25.00" is anything from 25 to 26), so events of the same window and place
are taken together: one that is always counted tells the time exactly.

Counts are in the unit that perf prints them in (`PerfLog.units`): milliseconds for `task-clock`, "" for plain counts.

Nothing in a log makes reading fail but that it holds nothing at all. Whatever cannot be used is a `Problem` with the
number of its line, and its count is NaN.
"""

from __future__ import annotations

import gzip
import json
import math
import re
import sys
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median
from typing import IO, Any, Literal, cast

import numpy as np

from symphony.problem.errors import DataError, InputError
from symphony.telemetry.naming import bare
from symphony.telemetry.samples import Column, Problem, Recording, Sample, record
from symphony.telemetry.sources.problems import Problems

Form = Literal["json", "csv"]

LONGEST = 1 << 16  # bytes of a line
FASTEST = 1e12  # events in a second for which a counter ran: some hundred times what a core can do
MOST_CPUS = 1 << 16  # that a run time may be summed over
_HINT = "such a file is written by: perf stat -I 100 -j -o perf.json -e EVENTS -- COMMAND"


class PerfLog(Mapping[str, Recording]):
    """The recordings of a log by place ("" where perf did not tell places apart), and what could not be used."""

    def __init__(
        self,
        recordings: Mapping[str, Recording],
        problems: Sequence[Problem],
        units: Mapping[str, str],
        unsupported: Iterable[str] = (),
        *,
        timed: bool = True,
    ) -> None:
        self.recordings, self.problems, self.units = dict(recordings), tuple(problems), dict(units)
        self.unsupported = frozenset(unsupported)  # events that the machine cannot count
        self.timed = timed  # whether it says how long it was, and not only about

    def __repr__(self) -> str:
        places = ", ".join(f"{place!r}: {len(recording)} windows" for place, recording in self.items())
        return f"<PerfLog {{{places}}}, {len(self.units)} events, {len(self.problems)} problems>"

    def __getitem__(self, where: str) -> Recording:
        return self.recordings[where]

    def __iter__(self) -> Iterator[str]:
        return iter(self.recordings)

    def __len__(self) -> int:
        return len(self.recordings)

    def samples(self) -> Iterator[Sample]:
        """The windows of all places, in order of time."""
        yield from sorted(
            (sample for recording in self.values() for sample in recording.samples()), key=lambda one: one.start_s
        )


def read_perf(
    path: str | Path,
    *,
    form: Form | None = None,
    separator: str | None = None,
    known: Callable[[str], bool] | None = None,
) -> PerfLog:
    """Read a file that `perf stat -j` or `perf stat -x` wrote, compressed by gzip or not; "-" is standard input.

    `known` says whether a catalogue has an event.
    """
    path = Path(path)
    try:
        with ExitStack() as stack:
            file = _opened(path, stack)
            lines = PerfLines(lines_of(file), name=path.name, form=form, separator=separator, known=known)
            recordings = record(lines.samples())
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise DataError(f"cannot be read: {why}", where=str(path), hint=_HINT) from None
    if not any(np.isfinite(recording.count).any() for recording in recordings.values()):
        first = f"; {lines.problems[0]}" if lines.problems else ""
        raise DataError(f"there is no count of perf stat in it{first}", where=str(path), hint=_HINT)
    return PerfLog(recordings, lines.problems, lines.units, lines.unsupported, timed=lines.timed)


def _opened(path: Path, stack: ExitStack) -> IO[bytes]:
    if str(path) == "-":
        return sys.stdin.buffer
    file = stack.enter_context(path.open("rb"))
    if not file.peek(2).startswith(b"\x1f\x8b"):
        return file
    return cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=file)))


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file, with their ends; of one that is too long, its beginning."""
    while line := file.readline(LONGEST):
        yield line
        while line and not line.endswith(b"\n") and len(line) == LONGEST:
            line = file.readline(LONGEST)


# --- Lines -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """One line: an event in a window at a place."""

    line: int
    time_s: float | None  # since perf began; None without -I
    where: str
    event: str
    value: float  # scaled, in the printed unit; NaN if none was printed
    missing: str  # "not counted", "not supported", ""
    unit: str
    running_s: float
    percent: float  # of the time for which it wanted a counter
    utilized: float  # CPUs, where perf printed that; NaN


class _Unusable(Exception):
    """A line that holds no reading; `args[0]` says why, or is "" if that is as it should be."""


_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?")
_MISSING = re.compile(r"<(not counted|not supported)>")
_PLACES = ("cpu", "core", "cluster", "cache", "die", "socket", "node", "thread")
_FOREIGN = "not a line of perf stat"
_TOTALS = "the totals of --summary are left out: the windows hold all of it"


def _number(text: str) -> float:
    """A number as some locale writes it; perf groups no thousands where programs are to read it."""
    return float(text.replace(",", ".")) if _NUMBER.fullmatch(text) else math.nan


def _json(text: str, line: int) -> _Reading:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:  # where decimals have a comma, perf writes `0,5`; and numbers that are none as `nan`
            mended = re.sub(r'(" : -?\d+),(\d+)(?=\s*[,}])', r"\1.\2", text)
            found = json.loads(re.sub(r'(" : )-?(?:nan|inf)(?=\s*[,}])', r"\1null", mended))
        except (ValueError, RecursionError):
            only_metrics = text.startswith("{") and '{"metric-value"' in text
            raise _Unusable(
                "only metrics are in it: record without --metric-only" if only_metrics else _FOREIGN
            ) from None
    if not isinstance(found, dict):
        raise _Unusable(_FOREIGN)
    if "counter-value" not in found:
        raise _Unusable("" if "metric-value" in found or not found else _FOREIGN)
    value, event = str(found["counter-value"]).strip(), found.get("event")
    if not isinstance(event, str) or not event.strip():
        raise _Unusable("a count without the name of its event")

    def number(name: str) -> float:
        value = found.get(name)
        if isinstance(value, float):
            return value
        return _number(str(value)) if isinstance(value, int | str) else math.nan

    place = next((f"{found[name]}" for name in _PLACES if name in found), "")
    if "cpu" in found and place.isdecimal():
        place = f"CPU{place}"
    return _reading(
        line,
        number("interval") if "interval" in found else None,
        " ".join(part for part in (place, str(found.get("cgroup", ""))) if part),
        event.strip(),
        value,
        str(found.get("unit") or ""),
        number("event-runtime"),
        number("pcnt-running"),
        number("metric-value") if found.get("metric-unit") == "CPUs utilized" else math.nan,
    )


# A run time and a percentage stand side by side in every line, between the same separators.
_TAIL = re.compile(r"(?P<sep>[^\w.+\-%<>/]{1,8}?)\d+(?P=sep)\d{1,3}(?P<point>[.,])\d\d(?=(?P=sep)|\s*$)")
_COMMAS = re.compile(r",\d+,\d{1,3},\d\d(?:,|\s*$)")
_TIME = re.compile(r"\d+[.,]\d{9}")
_AMBIGUOUS = "commas stand both between fields and in numbers: record again with -x ';', or with LC_ALL=C"


def _sniff_separator(text: str) -> str | None:
    found = _TAIL.search(text)
    return found["sep"] if found and not (found["sep"] == "," and found["point"] == ",") else None


def _csv(text: str, separator: str, line: int) -> _Reading:
    fields = [part.strip() for part in text.strip("\r\n").lstrip(" ").split(separator)]
    if fields[0] == "summary":
        raise _Unusable(_TOTALS)
    time_s = _number(fields.pop(0)) if _TIME.fullmatch(fields[0]) else None
    run = next(
        (
            at
            for at in range(2, len(fields) - 1)
            if fields[at].isascii() and fields[at].isdecimal() and re.fullmatch(r"\d{1,3}[.,]\d\d", fields[at + 1])
        ),
        None,
    )
    if run is None:
        if separator == "," and _COMMAS.search(text):
            raise _Unusable(_AMBIGUOUS)
        # A second metric of the event above: nothing but the metric, after the place and its number of CPUs.
        raise _Unusable("" if len(fields) > 4 and not any(fields[2:-2]) else _FOREIGN)

    def is_value(at: int) -> bool:
        return at < run and bool(_NUMBER.fullmatch(fields[at]) or _MISSING.fullmatch(fields[at]))

    at, place = 0, ""
    if not is_value(0):
        place, at = fields[0], 1
        if is_value(1) and fields[1].isdecimal() and is_value(2):
            at = 2  # after the number of CPUs that were added up
    if not is_value(at):
        raise _Unusable(_FOREIGN)
    names = fields[at + 2 : run]
    if names and re.fullmatch(r"[\d.,]+%", names[-1]):
        names.pop()  # the spread of -r
    # A name such as cpu/event=0x3c,umask=0/ may hold the separator; what comes after a whole name is a cgroup.
    end = next((n for n in range(1, len(names) + 1) if separator.join(names[:n]).count("/") % 2 == 0), len(names))
    end = len(names) if separator == ":" else end  # as modifiers, page-faults:u
    event, cgroup = separator.join(names[:end]), separator.join(names[end:])
    if not event:
        raise _Unusable("a count without the name of its event")
    where = " ".join(part for part in (place, cgroup) if part)
    metric = fields[run + 2] if fields[run + 3 : run + 4] == ["CPUs utilized"] else ""
    return _reading(
        line,
        time_s,
        where,
        event,
        fields[at],
        fields[at + 1],
        _number(fields[run]),
        _number(fields[run + 1]),
        _number(metric),
    )


def _reading(
    line: int,
    time_s: float | None,
    where: str,
    event: str,
    value: str,
    unit: str,
    running_ns: float,
    percent: float,
    utilized: float,
) -> _Reading:
    """A reading, if its numbers can be of a clock at all."""
    missing = _MISSING.fullmatch(value)
    scaled = math.nan if missing else _number(value)
    if not missing and math.isnan(scaled):
        raise _Unusable(f"the count of {event[:60]} is {value[:40]!r}, which is no number")
    if not 0 <= running_ns < 2**63:
        raise _Unusable(f"the run time of {event[:60]} is impossible or missing")
    if not 0 <= percent <= 100.5:
        raise _Unusable(f"the percentage of run time of {event[:60]} is impossible or missing")
    if time_s is not None and not 0 <= time_s < 1e10:
        raise _Unusable(f"the time of {event[:60]} is impossible")
    return _Reading(
        line,
        time_s,
        where[:200],
        event[:400],
        scaled,
        missing[1] if missing else "",
        unit,
        running_ns / 1e9,
        min(percent, 100.0),
        utilized,
    )


# --- Windows -----------------------------------------------------------------------------------------------

_Key = tuple[str, int]  # an event, and which of its columns: the first, the second


@dataclass(slots=True)
class _Window:
    """The readings of one place in one window, decoded; columns have no groups yet."""

    where: str
    start_s: float
    duration_s: float
    line: int
    keys: list[_Key] = field(default_factory=list)
    count: list[float] = field(default_factory=list)
    running_s: list[float] = field(default_factory=list)
    enabled_s: list[float] = field(default_factory=list)


class PerfLines:
    """Lines of `perf stat -j` or `-x`, as they come, as a counter source.

    `groups`: the events that perf was told to count together; without it, columns with equal run times are a group, as
    far as the first `look_ahead` windows tell (None: all). Samples begin to come after so many windows.
    """

    def __init__(
        self,
        lines: Iterable[str | bytes],
        *,
        name: str = "perf",
        form: Form | None = None,
        separator: str | None = None,
        groups: Sequence[Sequence[str]] | None = None,
        look_ahead: int | None = None,
        known: Callable[[str], bool] | None = None,
    ) -> None:
        if form not in (None, "json", "csv"):
            raise InputError(f"there is no form {form!r} of perf's output", hint='form="json" or form="csv"')
        if separator == "" or (separator and form == "json"):
            raise InputError(
                "a separator is of one or more characters, and of CSV", hint='separator=";", without form="json"'
            )
        if look_ahead is not None and look_ahead < 1:
            raise InputError(f"look_ahead is {look_ahead}", hint="1 or more windows, or None for all")
        self._lines, self._name = lines, name
        self._form: Form | None = "csv" if separator else form
        self._separator, self._known = separator, known
        self._look_ahead = look_ahead
        self._given = _given_groups(groups or ())
        self._problems = Problems()
        self.units: dict[str, str] = {}
        self.unsupported: set[str] = set()  # events that the machine cannot count
        self.timed = True  # whether windows are as long as the log says, and not only about
        self._clock = _Clock()
        self._decimals = False  # whether percentages have any: perf from before 5.19
        self._largest: dict[tuple[str, _Key], tuple[float, int]] = {}  # by place and column: value, windows

    @property
    def problems(self) -> Sequence[Problem]:
        """What could not be used so far; the first of each kind names its line."""
        return self._problems

    def samples(self) -> Iterator[Sample]:
        """The windows as they end, each place by itself."""
        groups: dict[_Key, int] | None = None
        pending: list[list[_Window]] = []
        for window in self._windows():
            if groups is not None:
                yield from (self._sample(one, groups) for one in window)
                continue
            pending.append(window)
            if len(pending) == self._look_ahead:
                groups = self._decide(pending)
                yield from (self._sample(one, groups) for held in pending for one in held)
        if groups is None:
            groups = self._decide(pending)
            yield from (self._sample(one, groups) for held in pending for one in held)

    def _problem(self, line: int, what: str, kind: str = "") -> None:
        self._problems.add(f"{self._name}, line {line}", what, kind=kind)

    # --- From lines to readings

    def _readings(self) -> Iterator[_Reading | None]:
        """Readings; None where perf began anew."""
        ended = False  # whether any line had an end
        for number, raw in zip(count(1), self._lines, strict=False):
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
                reading = self._parse(text, number)
            except _Unusable as why:
                what = str(why)
                if cut_short:
                    self._problem(number, "the last line is cut short")
                elif what.startswith(_FOREIGN):
                    self._problem(number, f"{what}: {text.strip()[:60]!r}", kind=what)
                elif what:
                    self._problem(number, what)
                continue
            yield reading

    def _parse(self, text: str, line: int) -> _Reading:
        looks_json = text.lstrip().startswith("{")
        if self._form is None:
            if looks_json:
                reading = _json(text, line)
                self._form = "json"
                return reading
            separator = _sniff_separator(text)
            if separator is None:
                raise _Unusable(_AMBIGUOUS if _COMMAS.search(text) else _FOREIGN)
            reading = _csv(text, separator, line)
            self._form, self._separator = "csv", separator
            return reading
        if self._form == "json":
            if not looks_json and _sniff_separator(text):
                raise _Unusable("a line of perf stat -x in a log of perf stat -j")
            return _json(text, line)
        if looks_json:
            raise _Unusable("a line of perf stat -j in a log of perf stat -x")
        if self._separator is None:
            self._separator = _sniff_separator(text)
        other = _sniff_separator(text)
        if self._separator is None:
            raise _Unusable(_AMBIGUOUS if _COMMAS.search(text) else _FOREIGN)
        try:
            return _csv(text, self._separator, line)
        except _Unusable as why:
            if other not in (None, self._separator) and str(why).startswith(_FOREIGN):
                raise _Unusable(f"fields with {other!r} between them in a log with {self._separator!r}") from None
            raise

    # --- From readings to windows

    def _windows(self) -> Iterator[list[_Window]]:
        """The places of each window, when its last line has come: that which was the last of the window before."""
        held: list[_Reading] = []
        expected: list[tuple[str, str]] = []
        timed, ended = False, -1.0  # the time of a window that is complete
        for reading in self._readings():
            if held and (reading is None or reading.time_s != held[0].time_s):
                expected = [(one.where, one.event) for one in held]
                yield from self._close(held)
                held = []
            if reading is None:
                ended = -1.0
                continue
            if timed and reading.time_s is None:
                self._problem(reading.line, _TOTALS)
                continue
            timed = timed or reading.time_s is not None
            if reading.time_s == ended:
                self._problem(reading.line, "the clock stands still: a line at the time of a window that was complete")
                expected.append((reading.where, reading.event))  # or the window before lacked it
                continue
            held.append(reading)
            if len(held) == len(expected) and timed and [(one.where, one.event) for one in held] == expected:
                yield from self._close(held)
                held, ended = [], reading.time_s or -1.0
        if held:
            yield from self._close(held)

    def _close(self, readings: list[_Reading]) -> Iterator[list[_Window]]:
        first = readings[0]
        self._decimals = self._decimals or any(one.percent % 1 for one in readings)
        by_place: dict[str, list[_Reading]] = {}
        for reading in readings:
            by_place.setdefault(reading.where, []).append(reading)
        if first.time_s is not None:
            span, what = self._clock.window(first.time_s)
        else:
            duration, exact, what = _duration(readings)
            self.timed = self.timed and exact
            span = self._clock.after(duration)
        if what:
            self._problem(first.line, what, kind=what.split(":")[0])
        decoded = [self._decode(where, *(span or (0.0, 0.0)), found) for where, found in by_place.items()]
        if span and decoded:
            yield decoded

    def _decode(self, where: str, start_s: float, duration_s: float, readings: list[_Reading]) -> _Window:
        window = _Window(where, start_s, duration_s, readings[0].line)
        told = _told(readings, duration_s if _IS_CPU.fullmatch(where) else None, self._decimals)
        seen: Counter[str] = Counter()
        for reading in readings:
            key = (reading.event, seen[reading.event])
            seen[reading.event] += 1
            enabled, error = _enabled(reading, told, self._decimals)
            if error > 0.01:
                self._problem(reading.line, _INEXACT.format(error), kind=_INEXACT)
            raw = reading.value * (reading.running_s / enabled) if enabled > 0 else math.nan
            if self._is_usable(where, key, reading, raw, duration_s):
                window.running_s.append(reading.running_s)
            else:
                raw = math.nan
                window.running_s.append(0.0)
            window.keys.append(key)
            window.count.append(raw)
            window.enabled_s.append(enabled)
        return window

    def _is_usable(self, where: str, key: _Key, reading: _Reading, raw: float, duration_s: float) -> bool:
        """Whether a count can be believed; if not, it is said why."""
        event, value = reading.event, reading.value
        if event not in self.units:
            self.units[event] = reading.unit
            if self._known and not self._known(event):
                self._problem(reading.line, f"{event} is in no catalogue: it is read, but nothing is known of it")
        what = ""
        if reading.missing:
            if reading.missing == "not supported":
                self.unsupported.add(event)
            idle = reading.missing == "not counted" and reading.percent >= 100
            what = f"{event} was {reading.missing}{': what is counted did not run' if idle else ''}"
        elif reading.unit != self.units[event]:
            what = f"the unit of {event} changes from {self.units[event]!r} to {reading.unit!r}"
        elif value < 0:
            what = f"the count of {event} is negative"
        elif not reading.running_s:
            what = f"{event} was counted for no time at all"
        elif duration_s > 0 and reading.running_s > MOST_CPUS * duration_s:
            what = f"the run time of {event} is impossibly long for its window"
        else:
            what = self._wrapped(where, key, reading, raw)
        if what:
            self._problem(reading.line, what)
        return not what

    def _wrapped(self, where: str, key: _Key, reading: _Reading, raw: float) -> str:
        """Why a count is impossibly large, or "". A counter that goes back appears as little less than a power of 2."""
        largest, windows = self._largest.get((where, key), (0.0, 0))
        what = ""
        if not math.isfinite(raw) or reading.value >= 2**64 or raw > FASTEST * reading.running_s:
            what = f"the count of {reading.event} is impossibly large: a counter wrapped or went back"
        elif not reading.unit:
            for bits in (32, 48, 64):
                near = 0.99 * 2**bits < max(raw, reading.value) and raw < 2**bits
                # So large a number is common for 32 bits, unless all others were far smaller.
                if near and (bits > 32 or (windows >= 3 and largest < raw / 100)):
                    what = f"the count of {reading.event} is close to 2^{bits}: a counter wrapped or went back"
        if not what:
            self._largest[where, key] = (max(largest, raw), windows + 1)
        return what

    # --- From windows to samples

    def _decide(self, held: list[list[_Window]]) -> dict[_Key, int]:
        """The groups of columns, by the windows seen so far."""
        others = [window[0].duration_s for window in held[1:]]
        if len(others) > 1 and held[0][0].duration_s > _Clock.LONG * median(others):
            self._problem(
                held[0][0].line, f"the log begins at {held[0][0].duration_s:.3g} s: its first window is left out"
            )
            del held[0]
        return _groups(held, self._given)

    def _sample(self, window: _Window, groups: dict[_Key, int]) -> Sample:
        for key in window.keys:  # that came only now
            groups.setdefault(key, 1 + max(groups.values(), default=-1))
        return Sample(
            window.where,
            window.start_s,
            window.duration_s,
            tuple(Column(key[0], groups[key]) for key in window.keys),
            np.array(window.count),
            np.array(window.running_s),
            np.array(window.enabled_s),
            self.units,
        )


class _Clock:
    """From perf's times to windows that follow one another."""

    LONG = 10.0  # times the usual length: not a window but a clock that jumped, or a machine that slept

    def __init__(self) -> None:
        self._last: float | None = None  # perf's time
        self._offset = 0.0  # of our time over perf's
        self._lengths: deque[float] = deque(maxlen=15)

    def window(self, time_s: float) -> tuple[tuple[float, float] | None, str]:
        """Start and length of the window that ends at a time, None if it has none that can be believed; and why."""
        last = self._last or 0.0
        length, start, what = time_s - last, self._offset + last, ""
        usual = median(self._lengths) if self._lengths else None
        if length <= 0:
            what = f"the clock goes back: from {last:.9g} s to {time_s:.9g} s"
            self._offset += last  # as if another log had been appended
            length = time_s
            if not 0 < length <= 3 * (usual or math.inf):
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
        """The window of such a length after all others."""
        start = self._offset
        self._offset += length
        return (start, length) if length > 0 else None


def _duration(readings: list[_Reading]) -> tuple[float, bool, str]:
    """How long the one window of a log without -I was, whether exactly, and a word on it if that is not certain."""
    for reading in readings:
        if reading.event == "duration_time" and reading.unit == "ns" and reading.value > 0:
            return reading.value / 1e9, True, ""
    for reading in readings:
        if reading.unit == "msec" and reading.value > 0 and reading.utilized > 0:
            return reading.value / 1e3 / reading.utilized, False, ""  # CPUs are printed with few digits
    longest = max(reading.running_s / (reading.percent / 100 or 1) for reading in readings)
    what = "without -I, duration_time or task-clock nothing tells the elapsed time: time on CPUs is taken for it"
    return longest, False, what


# --- Enabled times -----------------------------------------------------------------------------------------

_IS_CPU = re.compile(r"CPU\d+")
_TOOLS = {"duration_time", "user_time", "system_time"}  # their run times are perf's own
_INEXACT = "nothing tells the enabled time to better than {:.0%}: perf cuts percentages; count task-clock as well"


def _bounds(reading: _Reading, decimals: bool) -> tuple[float, float]:
    """The least and the longest enabled time that a printed percentage allows."""
    if reading.percent >= 100:
        return reading.running_s, reading.running_s
    low, high = reading.percent - 0.005, reading.percent + (0.005 if decimals else 1)
    return reading.running_s / (high / 100), reading.running_s / (low / 100) if low > 0 else math.inf


def _told(readings: list[_Reading], duration_s: float | None, decimals: bool) -> list[tuple[float, float]]:
    """What the readings of a place tell of its enabled time, each with its relative error, the best first.

    `duration_s`: of the window, where the place is a CPU, whose counters are enabled all the time.
    """
    bounds = [
        _bounds(one, decimals) for one in readings if not one.missing and one.running_s > 0 and one.event not in _TOOLS
    ]
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


def _enabled(reading: _Reading, told: Sequence[tuple[float, float]], decimals: bool) -> tuple[float, float]:
    """Seconds for which an event wanted a counter, and the relative error: the best that its percentage allows."""
    if reading.missing or not reading.running_s:
        # 100% of no time: it did not want a counter, because what is counted did not run.
        wanted = reading.missing != "not supported" and reading.percent < 100
        return (told[0][0] if wanted and told else 0.0), 0.0
    least, most = _bounds(reading, decimals)
    for whole, error in told if least < most else ():
        if least * (1 - 1e-9) <= whole <= most * (1 + 1e-9):
            return max(whole, reading.running_s), error
    if math.isinf(most):
        return least, math.inf if least > reading.running_s else 0.0
    return math.sqrt(least * most), math.sqrt(most / least) - 1


# --- Groups ------------------------------------------------------------------------------------------------


def _given_groups(groups: Sequence[Sequence[str]]) -> dict[_Key, int]:
    seen: Counter[str] = Counter()
    found = {}
    for number, group in enumerate(groups):
        for event in map(bare, group):
            found[event, seen[event]] = number
            seen[event] += 1
    return found


def _groups(held: list[list[_Window]], given: dict[_Key, int]) -> dict[_Key, int]:
    """Columns that are always counted are one group, and others whose run times are equal in all windows.

    Equal to the nanosecond: perf reads the counters of a group at once. Groups that take turns come close to it.
    """
    times: dict[_Key, list[tuple[int, str, float]]] = {}
    always: dict[_Key, bool] = {}
    for number, window in enumerate(held):
        for place in window:
            for key, running, enabled in zip(place.keys, place.running_s, place.enabled_s, strict=True):
                times.setdefault(key, []).append((number, place.where, running))
                always[key] = always.get(key, True) and (running >= enabled or running == 0)
    groups: dict[Any, int] = {}
    members: dict[Any, Counter[str]] = {}
    met: Counter[str] = Counter()  # perf may add modifiers to what it was given, but keeps the order
    found = {}
    for key, seen in times.items():
        mark: Any
        if not any(running for _, _, running in seen):
            mark = ("never", key)
        else:
            mark = "always" if always[key] else tuple(seen)
        together = (given.get((bare(key[0]), met[bare(key[0])])), mark)
        met[bare(key[0])] += 1
        # An event is in a group once: a second one is the beginning of another group.
        members.setdefault(together, Counter())[key[0]] += 1
        group = (together, members[together][key[0]])
        found[key] = groups.setdefault(group, len(groups))
    return found
