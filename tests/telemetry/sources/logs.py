"""Logs as `perf stat` writes them, made from recordings: perf's own formats, rounding and all.

Percentages of run time are whole, as perf computes them since Linux 5.19, or have two `decimals`, as before.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from symphony.telemetry.samples import Column, Recording
from symphony.telemetry.sources.perf_log import PerfLines, PerfLog, read_perf


def recording(
    events: list[tuple[str, int]],
    count: object,
    running: object,
    enabled: object,
    *,
    where: str = "",
    step: float = 0.1,
) -> Recording:
    """Windows of equal length, from lists."""
    counts = np.array(count, dtype=float)
    start = np.arange(len(counts)) * step
    columns = tuple(Column(event, group) for event, group in events)
    return Recording(
        where,
        columns,
        start,
        np.full(len(counts), step),
        counts,
        np.broadcast_to(np.array(running, dtype=float), counts.shape),
        np.broadcast_to(np.array(enabled, dtype=float), counts.shape),
    )


def rows(recordings: dict[str, Recording], decimals: bool) -> list[tuple[float, str, str, str, int, float]]:
    """Time, place, printed count, event, run time and percentage of each line, in perf's order."""
    found = []
    first = next(iter(recordings.values()))
    for k in range(len(first)):
        for c, column in enumerate(first.columns):
            for where, one in recordings.items():
                running, enabled = one.running_s[k, c], one.enabled_s[k, c]
                known = running > 0 and not math.isnan(one.count[k, c])
                value = f"{one.count[k, c] * enabled / running:.0f}" if known else "<not counted>"
                run, wanted = round(running * 1e9), round(enabled * 1e9)
                percent = 100.0 if run == wanted else 100 * run / wanted if decimals else 100 * run // wanted
                found.append((one.start_s[k] + one.duration_s[k], where, value, column.event, run, percent))
    return found


def as_json(recordings: dict[str, Recording], *, decimals: bool = False) -> str:
    """As `perf stat -I … -j` has it; with -A if there are places."""
    return "".join(
        f'{{"interval" : {time:.9f}, '
        + (f'"cpu" : "{where.removeprefix("CPU")}", ' if where else "")
        + f'"counter-value" : "{value}", "unit" : "", "event" : "{event}", "event-runtime" : {run}, '
        f'"pcnt-running" : {percent:.2f}, "metric-value" : 0.000000, "metric-unit" : "(null)"}}\n'
        for time, where, value, event, run, percent in rows(recordings, decimals)
    )


def as_csv(recordings: dict[str, Recording], separator: str, *, point: str = ".", decimals: bool = False) -> str:
    """As `perf stat -I … -x SEP` has it; with -A if there are places. `point` is the locale's."""
    lines = []
    for time, where, value, event, run, percent in rows(recordings, decimals):
        fields = [f"{time:16.9f}".replace(".", point), *([where] if where else [])]
        fields += [value, "", event, str(run), f"{percent:.2f}".replace(".", point), "", ""]
        lines.append(separator.join(fields) + "\n")
    return "".join(lines)


def read(text: str | bytes, tmp_path: Path) -> PerfLog:
    path = tmp_path / "perf.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read_perf(path)


def said(log: PerfLog | PerfLines) -> str:
    return "\n".join(map(str, log.problems))


def line(
    time: str = "0.100000000", value: str = "74", event: str = "page-faults", run: str = "1000000", more: str = ""
) -> str:
    start = f'"interval" : {time}, ' if time else ""
    return (
        f'{{{start}{more}"counter-value" : "{value}", "unit" : "", "event" : "{event}", '
        f'"event-runtime" : {run}, "pcnt-running" : 100.00, "metric-value" : 0.0, "metric-unit" : ""}}\n'
    )


# Two groups that take turns, and one event that is always counted.
EVENTS = [("task-clock", 0), ("cycles", 1), ("instructions", 1), ("cycles", 2), ("cache-misses", 2)]
RUNNING = [
    [0.1, 0.0400001, 0.0400001, 0.0599998, 0.0599998],
    [0.1, 0.0600003, 0.0600003, 0.0399995, 0.0399995],
    [0.1, 0.0000213, 0.0000213, 0.0999785, 0.0999785],
]
COUNT = [[100, 4000, 8000, 6100, 70], [100, 6100, 9000, 3900, 55], [100, 2, 3, 9999, 91]]
PLAIN = {"": recording(EVENTS, COUNT, RUNNING, 0.1)}

PLACES = """\
     0.100220942,CPU0,100.42,msec,cpu-clock,100420082,100.00,1.004,CPUs utilized
     0.100220942,CPU1,100.45,msec,cpu-clock,100454533,100.00,1.005,CPUs utilized
     0.100220942,CPU0,82,,page-faults,100432731,100.00,816.577,/sec
     0.100220942,CPU1,5,,page-faults,100454754,100.00,49.774,/sec
     0.201082104,CPU0,100.84,msec,cpu-clock,100843089,100.00,1.008,CPUs utilized
     0.201082104,CPU1,100.83,msec,cpu-clock,100828147,100.00,1.008,CPUs utilized
     0.201082104,CPU0,0,,page-faults,100830481,100.00,0.000,/sec
     0.201082104,CPU1,3,,page-faults,100828007,100.00,29.754,/sec
"""

THREE = "".join(line(time=f"0.{tenth}00000000") for tenth in (1, 2, 3))
