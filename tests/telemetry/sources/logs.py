"""Logs as `perf stat` writes them, made from recordings: perf's own formats, rounding and all.

Percentages of run time are whole, as perf computes them since Linux 5.19, or have two `decimals`, as before.
"""

from __future__ import annotations

import math

import numpy as np

from symphony.telemetry.samples import Column, Recording


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
