"""The use of every row, sampled once a second: by our own work, by others as believed, and as read.

Our part is what profiles say of the kernels that run. Others' part has a standard deviation. A raw reading is of all
together, and of the last window only. The samples of the last minutes are kept in memory.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from symphony.runtime.cluster import Cluster
from symphony.service.wire import optional

log = logging.getLogger("symphony.service")
MAX_SAMPLES, MAX_HISTORY_BYTES = 600, 16 << 20  # ten minutes, or less of very large clusters
READING_S = 2.0  # age of the oldest reading that is shown
UNMEASURED_STD = 0.25  # of a row that no counter speaks of, as policies assume
BANDS = {50: 0.674, 90: 1.645}  # half widths of normal intervals, in standard deviations
OURS, OTHERS, STD, READING = range(4)  # fields of a sample


class ShownRow(NamedTuple):
    """As it is drawn: the bar's length, its opacity, and the text."""

    percent: int
    opacity: float  # 1 = certain
    text: str


class RowUse:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.index = {row.name: number for number, row in enumerate(cluster.topology.resources)}
        rows = len(self.index)
        count = max(min(MAX_SAMPLES, MAX_HISTORY_BYTES // (rows * 16)), 2)
        self._ring = np.full((count, rows, 4), np.nan, np.float32)
        self._times = np.full(count, np.nan)
        self.samples = 0
        self.shown = [ShownRow(0, 0.25, "unknown")] * rows  # as of the last sample
        self.busy: Counter[str] = Counter()  # slots in use then, by device

    def sample(self) -> None:
        """Take a sample. From one thread; others may read."""
        try:
            values = np.full(self._ring.shape[1:], np.nan, np.float32)
            values[:, OURS] = 0.0
            busy: Counter[str] = Counter()
            for _, device, shares in self._cluster.row_shares():
                busy[device.name] += 1
                for name, share in shares.items():
                    values[self.index[name], OURS] += share
            for name, load in self._cluster.others.items():
                values[self.index[name], OTHERS : STD + 1] = load
            for name, reading in self._cluster.readings(time.monotonic() - READING_S).items():
                values[self.index[name], READING] = reading
        except Exception:  # would end the server
            log.exception("the use of rows could not be sampled")
            return
        at = self.samples % len(self._ring)
        self._ring[at], self._times[at] = values, time.time()
        self.samples += 1
        self.shown, self.busy = [_shown(*map(float, row)) for row in values], busy

    def history(self, row: str) -> dict[str, list[float | None]]:
        """The samples of a row, oldest first: `time`, `reading`, `ours`, `use`, and `low50` … `high90` of its bands."""
        order = np.argsort(self._times)[: min(self.samples, len(self._ring))]
        values = self._ring[order, self.index[row]]
        known = ~np.isnan(values[:, OTHERS])
        use = values[:, OURS] + np.where(known, values[:, OTHERS], 0.0)
        std = np.where(known, values[:, STD], UNMEASURED_STD)
        found: dict[str, Any] = {"time": self._times[order], "reading": values[:, READING], "ours": values[:, OURS]}
        found["use"] = use
        for share, width in BANDS.items():
            found[f"low{share}"], found[f"high{share}"] = np.maximum(use - width * std, 0.0), use + width * std
        return {name: [optional(round(float(x), 4)) for x in column] for name, column in found.items()}

    def causes(self, row: str) -> list[tuple[Any, str, float]]:
        """Our runs that use a row: the run, its device, and its expected share of the row's capacity."""
        found = [(run, device.name, shares[row]) for run, device, shares in self._cluster.row_shares() if row in shares]
        return sorted(found, key=lambda one: -one[2])


def _shown(ours: float, others: float, std: float, reading: float) -> ShownRow:
    if math.isnan(others):
        if not ours:
            return ShownRow(0, 0.25, "nothing is measured here")
        others, std, text = 0.0, UNMEASURED_STD, "ours; others' use is not measured here"
    else:
        text = f"± {100 * std:.0f}%; ours {100 * ours:.0f}%, others {100 * others:.0f}%"
    percent = round(100 * (ours + others))
    return ShownRow(percent, round(max(1.0 - 2.0 * std, 0.25), 1), f"{percent}% {text}")
