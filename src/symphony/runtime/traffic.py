"""Whose traffic it is that passes through a machine's memories, where it can be counted (`memory_counter.py`).

Counters tell the sum. Which of our kernels ran when is known. So what passes through a memory in a window is

    others' + Σ over kernels (what one run of it causes × how many of it ran) + what is left

as shares of the memory's capacity, and that is a regression: a Gaussian belief about others' traffic and that of each
kernel, all at once, moved by every window. What cannot be told apart, such as a kernel that always runs and others who
are always there, stays unsure, and both know it. What others do stays as it is from window to window, or jumps;
kernels stay as they are. How far windows are off is learned. Nothing is negative: that is taken in when it is read out.

A memory that is full tells that it is asked for at least so much, not how much more: then kernels are slowed, and cause
less than they would. Such a window moves a belief only if that expected less.

Taken for others': what the scheduler and the engine move themselves, and kernels that are not known yet.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from symphony.estimation.runs import PastRun, memory_row
from symphony.problem.topology import Topology
from symphony.runtime.profiles import Profiles

OTHERS_STD, KERNEL_STD = 0.5, 1.0  # shares of the capacity, before anything was counted
OTHERS_STEP_STD = 0.01  # by which others move from window to window, …
JUMP_PROBABILITY = 0.02  # … unless they do something else, as they do with this chance, …
JUMP_STD = 0.5  # … by so much
KERNEL_DRIFT_STD = 0.003  # by which a kernel that runs moves: inputs change
PRIOR_NOISE, PRIOR_NOISE_WINDOWS = 0.1, 10.0  # by which part windows are off what was expected, as if so many had told
NOISE_MEMORY = 0.98  # of that
MIN_NOISE_LOAD = 0.02  # load below which windows are not off by less
MIN_SATURATED_LOAD = 0.75  # load from which a memory may be full: what its modules promise is never reached
MAX_CREDIBLE_LOAD = 8.0  # times the capacity: no window that says more is believed
MAX_TRACKED_KERNELS = 32  # beyond that, those that did not run for longest are forgotten
MAX_KNOWN_STD = 0.3  # deviation below which something is known of a kernel
UNKNOWN_STD = 1.0
KernelOnKind = tuple[str, str]  # kernel, device kind


class TrafficAttribution:
    """Takes in windows, from one thread, and says what is believed, to any."""

    def __init__(
        self, topology: Topology, met: Callable[[float], Iterable[PastRun]], profiles: Profiles, least: bool = False
    ) -> None:
        """`met`: the runs that have ended since then, or have not. `least`: there is more traffic than is counted."""
        index = {row.name: number for number, row in enumerate(topology.resources)}
        on = [memory_row(topology, device) for device in topology.devices]
        self._rows = {name: number for number, name in enumerate(dict.fromkeys(row for row in on if row is not None))}
        self._at = [index[name] for name in self._rows]  # in the topology
        self._row_of = [None if row is None else self._rows[row] for row in on]  # of each device
        self._met, self._profiles, self._least = met, profiles, least
        self._kernels: list[KernelOnKind] = []  # in the order of the belief, after the rows
        self._ran_s: dict[KernelOnKind, float] = {}
        self._mean = np.zeros(len(self._rows))
        self._cov = np.eye(len(self._rows)) * OTHERS_STD**2
        self._off, self._weight = PRIOR_NOISE**2 * PRIOR_NOISE_WINDOWS, PRIOR_NOISE_WINDOWS
        self._whole = 1.0  # the most that was ever seen, in capacities
        self._lock = threading.Lock()
        self._said: dict[int, tuple[float, float, float, float]] = {}  # by row: mean, variance; end, length of window
        self._newest: tuple[float, dict[str, float]] = -math.inf, {}  # end of the last window, and its readings

    def window(self, used: Mapping[str, tuple[float, float]], began_s: float, ended_s: float) -> None:
        """Take in the use of memories, as a share of their capacity with its deviation, by row."""
        told = {row: used[name] for name, row in self._rows.items() if name in used}
        told = {row: (x, std) for row, (x, std) in told.items() if 0 <= x <= MAX_CREDIBLE_LOAD and math.isfinite(std)}
        if not told or ended_s <= began_s:
            return
        self._newest = ended_s, {name: told[row][0] for name, row in self._rows.items() if row in told}
        active = self._active(began_s, ended_s)
        self._grow(max(x - 2 * std for x, std in told.values()))
        uneven: dict[int, float] = {}  # by row: kernels go in phases, and while one lasts it looks like others
        for row, (x, std) in told.items():
            last = self._said.get(self._at[row])
            missed = 0.0 if last is None else max((began_s - last[2]) / (ended_s - began_s), 0.0)
            self._cov[row, row] += OTHERS_STEP_STD**2 + random_walk_variance(missed)
            runs = np.zeros(len(self._mean))
            runs[row] = 1.0
            for key, part in active.get(row, {}).items():
                runs[self._number(key)] += part
            self._take(row, runs, x / self._whole, std / self._whole)
            runs[row] = 0.0
            uneven[row] = self._off / self._weight * float(runs @ self._mean) ** 2
        self._report_kernels(uneven, {key for parts in active.values() for key in parts}, began_s, ended_s)

    def _active(self, began_s: float, ended_s: float) -> dict[int, dict[KernelOnKind, float]]:
        """How many runs of each kernel there were, on average over a window, by row."""
        found: dict[int, dict[KernelOnKind, float]] = {}
        for ran in self._met(began_s):
            row = self._row_of[ran.device]
            part = (min(ended_s, ran.ended_s) - max(began_s, ran.began_s)) / (ended_s - began_s)
            if row is not None and part > 0:
                own, key = found.setdefault(row, {}), (ran.kernel, ran.kind)
                own[key] = own.get(key, 0.0) + part * (1.0 if math.isnan(ran.active) else ran.active)
        keys = {key for own in found.values() for key in own}
        for key in keys:
            self._ran_s[key] = ended_s
        self._track(keys)
        return found

    def _track(self, keys: set[KernelOnKind]) -> None:
        """Make room for kernels that are new, and forget those that have not run for longest."""
        for key in keys - set(self._kernels):
            share, precision = self._profiles.demand(*key).counted
            variance = 1 / (precision + KERNEL_STD**-2)
            self._kernels.append(key)
            self._mean = np.append(self._mean, share * precision * variance)
            self._cov = np.pad(self._cov, (0, 1))
            self._cov[-1, -1] = variance
        while len(self._kernels) > max(MAX_TRACKED_KERNELS, len(keys)):
            oldest = min(self._kernels, key=lambda key: self._ran_s[key])
            at = len(self._rows) + self._kernels.index(oldest)
            self._kernels.remove(oldest)
            del self._ran_s[oldest]
            self._mean = np.delete(self._mean, at)
            self._cov = np.delete(np.delete(self._cov, at, 0), at, 1)

    def _number(self, key: KernelOnKind) -> int:
        return len(self._rows) + self._kernels.index(key)

    def _grow(self, share: float) -> None:
        """Where more passes than the capacity, that is what the most is taken to be."""
        if share > self._whole:
            smaller, self._whole = self._whole / share, share
            self._mean, self._cov = self._mean * smaller, self._cov * smaller**2

    def _take(self, row: int, runs: np.ndarray, share: float, std: float) -> None:
        """Bayes' rule for one reading: of others who go on, and of others who have jumped."""
        cov = self._cov + np.diag(np.where(np.arange(len(runs)) >= len(self._rows), runs * KERNEL_DRIFT_STD, 0.0) ** 2)
        expected = float(runs @ self._mean)
        if share >= MIN_SATURATED_LOAD and expected >= share:
            return
        size = max(expected, MIN_NOISE_LOAD)
        rough = self._off / self._weight * size**2
        off, weights, means, covs, totals = share - expected, [], [], [], []
        for chance, jump in ((1 - JUMP_PROBABILITY, 0.0), (JUMP_PROBABILITY, JUMP_STD**2)):
            prior = cov.copy()
            prior[row, row] += jump
            along = prior @ runs
            totals.append(float(runs @ along) + std**2 + rough)
            weights.append(chance * math.exp(-0.5 * off**2 / totals[-1]) / math.sqrt(totals[-1]))
            means.append(self._mean + along / totals[-1] * off)
            covs.append(prior - np.outer(along, along) / totals[-1])
        goes_on = weights[0] / sum(weights)
        apart = means[1] - means[0]
        self._mean = means[0] + (1 - goes_on) * apart
        self._cov = goes_on * covs[0] + (1 - goes_on) * covs[1] + goes_on * (1 - goes_on) * np.outer(apart, apart)
        left = (rough / totals[0] * off) ** 2 + rough * (1 - rough / totals[0])  # what is expected of its square
        self._off = NOISE_MEMORY * self._off + goes_on * min(left / size**2, 1.0)
        self._weight = NOISE_MEMORY * self._weight + goes_on

    def _report_kernels(
        self, uneven: Mapping[int, float], kernels: set[KernelOnKind], began_s: float, ended_s: float
    ) -> None:
        mean, cov = truncate_positive(self._mean, self._cov)
        with self._lock:
            for row, more in uneven.items():
                self._said[self._at[row]] = float(mean[row]), float(cov[row, row]) + more, ended_s, ended_s - began_s
        for key in kernels:
            at = self._number(key)
            if (std := math.sqrt(max(cov[at, at], 0.0))) < MAX_KNOWN_STD:
                self._profiles.counted(*key, float(mean[at]), 1 / max(std, KERNEL_DRIFT_STD) ** 2, self._least)

    def readings(self, since_s: float) -> dict[str, float]:
        """The use of memories in the newest window, by row; nothing if it ended before."""
        ended_s, readings = self._newest
        return readings if ended_s >= since_s else {}

    def believed(self, now_s: float) -> dict[int, tuple[float, float]]:
        """Others' load of rows of the topology, and its deviation: the less sure, the longer nothing was counted."""
        with self._lock:
            said = dict(self._said)
        found = {}
        for row, (mean, variance, ended_s, length_s) in said.items():
            std = math.sqrt(max(variance, 0.0) + random_walk_variance(max(now_s - ended_s, 0.0) / length_s))
            found[row] = mean, min(std, UNKNOWN_STD)
        return found


def random_walk_variance(windows: float) -> float:
    """Variance of the change of others' traffic over so many windows without readings; bounded by the prior."""
    return min(windows * (OTHERS_STEP_STD**2 + JUMP_PROBABILITY * JUMP_STD**2), UNKNOWN_STD**2)


def truncate_positive(mean: np.ndarray, cov: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The belief, given that nothing is negative: mean and covariance of what is left, one number after another."""
    mean, cov = mean.copy(), cov.copy()
    for at in range(len(mean)):
        std = math.sqrt(max(cov[at, at], 1e-12))
        low = -mean[at] / std
        if low < -4:
            continue
        beyond = 0.5 * math.erfc(low / math.sqrt(2))
        # Far below, what is left of a normal decays like an exponential.
        more = math.exp(-0.5 * low**2) / math.sqrt(2 * math.pi) / beyond if low < 8 else low + 1 / low
        less = more * (more - low)  # of the variance
        gain = cov[:, at] / std
        mean, cov = mean + gain * more, cov - np.outer(gain, gain) * min(less, 1 - 1e-6)
    return np.maximum(mean, 0.0), cov
