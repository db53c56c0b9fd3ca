"""One line of `perf stat`: a reading, from JSON or from fields with a separator."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PerfReading:
    """One line: an event in a window at a place."""

    line: int
    time_s: float | None  # since perf started; None without -I
    where: str
    event: str
    value: float  # scaled, in the printed unit; NaN if missing
    missing: str  # "not counted", "not supported", ""
    unit: str
    running_s: float
    percent: float  # share of the enabled time with a counter
    utilized: float  # number of CPUs, if perf printed it; else NaN


class Unusable(Exception):
    """A line without a reading; `args[0]` is the reason, or "" if the line is no error."""


_LOCALE_NUMBER = re.compile(r"[-+]?\d+(?:[.,]\d+)?(?:[eE][-+]?\d+)?")
_BEGINS = re.compile(r'(?:\s*\{"interval" ?: ?| *)(\d+[.,]\d{9})(?!\d)')
_MISSING_VALUE = re.compile(r"<(not counted|not supported)>")
_PLACES = ("cpu", "core", "cluster", "cache", "die", "socket", "node", "thread")
NOT_PERF = "not a line of perf stat"
TOTALS = "the totals of --summary are ignored: they are the sums of the windows"


class Parser:
    """Parses the lines of a log, whose form is recognised from the first reading."""

    def __init__(self) -> None:
        self._separator: str | None = None  # of fields; "": JSON; None: there was no reading yet

    def reading(self, text: str, line: int) -> PerfReading:
        """The reading of a line; raises `Unusable` if it has none."""
        looks_json = text.lstrip().startswith("{")
        separator = "" if looks_json else _sniff_separator(text)
        if self._separator is None:
            if separator is None:
                raise Unusable(_AMBIGUOUS if _COMMAS.search(text) else NOT_PERF)
            reading = _csv(text, separator, line) if separator else _json(text, line)
            self._separator = separator
            return reading
        if not self._separator:
            if separator:
                raise Unusable("a line of perf stat -x in a log of perf stat -j")
            return _json(text, line)
        if looks_json:
            raise Unusable("a line of perf stat -j in a log of perf stat -x")
        try:
            return _csv(text, self._separator, line)
        except Unusable as why:
            if separator not in (None, self._separator) and str(why).startswith(NOT_PERF):
                raise Unusable(f"fields with {separator!r} between them in a log with {self._separator!r}") from None
            raise


def time_of(text: str) -> float | None:
    """The time at the beginning of a line, whatever follows."""
    found = _BEGINS.match(text)
    return _number(found[1]) if found else None


def _number(text: str) -> float:
    """A number in any locale; perf's output for programs has no thousands separators."""
    return float(text.replace(",", ".")) if _LOCALE_NUMBER.fullmatch(text) else math.nan


def _json(text: str, line: int) -> PerfReading:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        try:  # in some locales perf writes `0,5`; invalid numbers are `nan`
            repaired = re.sub(r'(" : -?\d+),(\d+)(?=\s*[,}])', r"\1.\2", text)
            found = json.loads(re.sub(r'(" : )-?(?:nan|inf)(?=\s*[,}])', r"\1null", repaired))
        except (ValueError, RecursionError):
            only_metrics = text.startswith("{") and '{"metric-value"' in text
            raise Unusable(
                "the line has metrics only: record without --metric-only" if only_metrics else NOT_PERF
            ) from None
    if not isinstance(found, dict):
        raise Unusable(NOT_PERF)
    if "counter-value" not in found:
        raise Unusable("" if "metric-value" in found or not found else NOT_PERF)
    value, event = str(found["counter-value"]).strip(), found.get("event")
    if not isinstance(event, str) or not event.strip():
        raise Unusable("a count without the name of its event")

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


# Every line has a run time and a percentage side by side, between the same separators.
_TAIL = re.compile(r"(?P<sep>[^\w.+\-%<>/]{1,8}?)\d+(?P=sep)\d{1,3}(?P<point>[.,])\d\d(?=(?P=sep)|\s*$)")
_COMMAS = re.compile(r",\d+,\d{1,3},\d\d(?:,|\s*$)")
_TIMESTAMP = re.compile(r"\d+[.,]\d{9}")
_AMBIGUOUS = "commas separate both fields and decimals: record again with -x ';', or with LC_ALL=C"


def _sniff_separator(text: str) -> str | None:
    found = _TAIL.search(text)
    return found["sep"] if found and not (found["sep"] == "," and found["point"] == ",") else None


def _csv(text: str, separator: str, line: int) -> PerfReading:
    fields = [part.strip() for part in text.strip("\r\n").lstrip(" ").split(separator)]
    if fields[0] == "summary":
        raise Unusable(TOTALS)
    time_s = _number(fields.pop(0)) if _TIMESTAMP.fullmatch(fields[0]) else None
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
            raise Unusable(_AMBIGUOUS)
        # A second metric of the event above: only the metric, after the place and its number of CPUs.
        raise Unusable("" if len(fields) > 4 and not any(fields[2:-2]) else NOT_PERF)

    def is_value(at: int) -> bool:
        return at < run and bool(_LOCALE_NUMBER.fullmatch(fields[at]) or _MISSING_VALUE.fullmatch(fields[at]))

    at, place = 0, ""
    if not is_value(0):
        place, at = fields[0], 1
        if is_value(1) and fields[1].isdecimal() and is_value(2):
            at = 2  # after the number of aggregated CPUs
    if not is_value(at):
        raise Unusable(NOT_PERF)
    names = fields[at + 2 : run]
    if names and re.fullmatch(r"[\d.,]+%", names[-1]):
        names.pop()  # the spread of -r
    # A name such as cpu/event=0x3c,umask=0/ may contain the separator; the field after the name is a cgroup.
    end = next((n for n in range(1, len(names) + 1) if separator.join(names[:n]).count("/") % 2 == 0), len(names))
    end = len(names) if separator == ":" else end  # as modifiers, page-faults:u
    event, cgroup = separator.join(names[:end]), separator.join(names[end:])
    if not event:
        raise Unusable("a count without the name of its event")
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
) -> PerfReading:
    """A reading, if its numbers are plausible."""
    missing = _MISSING_VALUE.fullmatch(value)
    scaled = math.nan if missing else _number(value)
    if not missing and math.isnan(scaled):
        raise Unusable(f"the count of {event[:60]} is {value[:40]!r}, which is not a number")
    if not 0 <= running_ns < 2**63:
        raise Unusable(f"the run time of {event[:60]} is impossible or missing")
    if not 0 <= percent <= 100.5:
        raise Unusable(f"the percentage of run time of {event[:60]} is impossible or missing")
    if time_s is not None and not 0 <= time_s < 1e10:
        raise Unusable(f"the time of {event[:60]} is impossible")
    return PerfReading(
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
