"""Repeated runs of one command (`symphony stat -r`): the mean of each row, with two errors.

The band of a row is the mean of the runs' bands: errors of counters that take turns may be alike in all runs, so they
are not taken to average out. How much the runs differ is a second interval, Student's for their mean.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from symphony.telemetry.spans import Span, StatRow

Totals = Sequence[tuple[Span, Sequence[StatRow]]]  # of one run: a span for each place, and its rows


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95% interval of a mean; NaN of fewer than two values."""
    from scipy.special import stdtrit  # takes a tenth of a second to import

    count = len(values)
    if count < 2:
        return math.nan
    return float(stdtrit(count - 1, 0.975) * np.std(values, ddof=1) / math.sqrt(count))


def averaged(runs: Sequence[Totals]) -> list[tuple[Span, list[StatRow]]]:
    """Means over the runs, for every place and row that any of them has."""
    spans: dict[str, list[Span]] = {}
    rows: dict[str, dict[tuple[str, str], list[StatRow]]] = {}
    for run in runs:
        for span, own in run:
            spans.setdefault(span.where, []).append(span)
            for row in own:
                rows.setdefault(span.where, {}).setdefault((row.kind, row.name), []).append(row)
    found = []
    for where, several in spans.items():
        length_s = float(np.mean([span.duration_s for span in several]))
        found.append((replace(several[0], duration_s=length_s), [_mean(own) for own in rows.get(where, {}).values()]))
    return found


def _mean(rows: Sequence[StatRow]) -> StatRow:
    known = [row for row in rows if math.isfinite(row.value)]
    if not known:
        return rows[0]
    value, std, lower, upper = (
        float(np.mean([getattr(row, name) for row in known])) for name in ("value", "std", "lower", "upper")
    )
    counted = None if known[0].counted is None else float(np.mean([row.counted or 0.0 for row in known]))
    over_runs = half_interval([row.value for row in known])
    return replace(
        known[0], value=value, std=std, lower=lower, upper=upper, counted=counted, runs=len(known), over_runs=over_runs
    )
