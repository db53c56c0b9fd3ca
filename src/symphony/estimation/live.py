"""The estimator of real runs: loads by others on a machine, and demands and isolated times of our kernels.

For each machine there is one Gaussian belief: over the levels of flows (`flow_filter.py`) and, for kernels that ran
lately, over the share of the memory's bandwidth that each demands and the two logarithms of its isolated time
(`kernels.py`). Three kinds of readings update it, all by the same filter:

- **Use of rows**, of which our own part is measured: the rest is by flows.
- **Traffic through memories**, of which counters give the sum. Which kernels ran when is known, so a window is
  `traffic of others + Σ over kernels (traffic of one run × number of runs)`. A kernel that always runs cannot be told
  from others that are always there: both stay uncertain, and are correlated. The error of windows is learned. A full
  memory bounds the demand from below: it is a reading only where less was expected.
- **Times of runs**: a run takes its isolated time, times the load of the busiest row on its route. If it took longer,
  either others have come or the kernel has become slower: two explanations, compared by all runs and counters. What
  remains open between them is in the covariance, and so is not decided again by every run.

Demands are the same on all machines: what traffic says of a kernel is kept in its profile, and is the prior of the
other machines.
"""

from __future__ import annotations

import math
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from symphony.estimation import flow_filter
from symphony.estimation.flow_filter import FlowBelief, FlowParameters, Readings, RunTimes
from symphony.estimation.kernels import CHANGED_CODE_STD, MIN_SECONDS, Demand, Timing
from symphony.estimation.runs import PastRun, memory_rows
from symphony.problem.arrays import topology_arrays
from symphony.problem.topology import Topology

WINDOW_S = 0.1  # of most windows
# Chosen for short windows, in which flows seldom change, and for machines that are mostly not shared. Our own part is
# measured, and times are compared with those of the same kernel, so their errors are smaller than in the simulator.
LIVE = FlowParameters(
    changes=0.01, on_share=0.05, on_mean=0.5, on_std=0.5, off_std=0.03, own_error=0.02, run_error=0.05
)
MIN_WINDOWS, MAX_WINDOWS = 0.2, 20.0  # bounds of the time between two readings; in longer gaps, levels are forgotten
READING_ERROR = 0.1  # of the use of rows, relative to it: rows are read all the time, but loads vary within windows
# Readings that make no sense, or that no flows explain: weight of the latest window, the load by which a reading is off
# that counts as one, the share of the latest windows from which a row is reported, and the deviation of nonsense.
DOUBT_RATE, MIN_CONTRADICTION, REPORTED_SHARE, NONSENSE = 0.1, 0.25, 0.3, 1.0
# Components of kernels, and a probability that is nearly 0: its logarithm is taken.
DEMAND, FIXED, SLOPE = "demand", "fixed", "slope"
SELDOM = 1e-9
KERNEL_CHANGES = 1e-4  # probability for each window that a kernel takes another time than before
TIME_DRIFT_STD = 0.01  # of the logarithm of an isolated time, between updates
DEMAND_STD, DEMAND_DRIFT_STD = 1.0, 0.003  # of a demand, as a share of the memory: prior; from window to window
PRIOR_NOISE, PRIOR_NOISE_WINDOWS = 0.1, 10.0  # relative error of traffic, and how many windows that prior is worth
NOISE_MEMORY = 0.98  # weight of what was learned of that error before a window
JUMP_STD = 0.5  # of traffic by others, if it has changed
MIN_NOISE_LOAD = 0.02  # load of which the error is at least relative
MIN_SATURATED_LOAD = 0.75  # load from which a memory may be full: the bandwidth of its modules is never reached
MAX_CREDIBLE_LOAD = 8.0  # times the capacity: higher readings are nonsense
SURE_WINDOWS = 3  # windows in a row with more traffic than the capacity, after which the capacity is taken to be more
MAX_RUN_WINDOWS = 1e4  # the error of a run grows with its length, up to this one
MAX_SLOW = 100.0  # times as long as expected: bound of a reading
MAX_TRACKED_KERNELS = 32  # of a machine; of more, those that did not run for longest are dropped
MAX_KNOWN_STD = 0.3  # deviation of a demand from which on it is kept in the profile
# A single run may be slow for any reason. So the reading is the median of several runs of a kernel on a device: this
# many, or fewer after this time.
RUNS_WEIGHED, MAX_RUN_WAIT_S = 3, 1.0
MAX_WEIGHED = 32  # readings (a kernel on a device) in one update, whose cost grows with the cube of their number
MEDIAN_ERROR, MEDIAN_FREEDOM = 1.25, 30.0  # error of a median, relative to that of a mean
RowLoads = tuple[np.ndarray, np.ndarray]  # f32[R]: mean and deviation
Component = tuple[str, str, str]  # which, kernel, device kind


class KernelBeliefs(Protocol):
    """Where beliefs about single kernels are kept (`runtime/profiles.py`)."""

    def timing(self, kernel: str, device: str) -> Timing: ...

    def demand(self, kernel: str, device: str) -> Demand: ...

    def counted(self, kernel: str, device: str, share: float, precision: float, least: bool = False) -> None: ...


class RunReading(NamedTuple):
    """A run of ours that has ended."""

    device: int
    kernel: str
    kind: str  # of the device
    size: float  # bytes of its inputs
    seconds: float
    own: Mapping[int, float]  # load that all of our runs put on the rows that it uses, as shares of the capacity
    ended_s: float


class _Machine:
    """The belief about one machine: flows, then components of kernels. Log times are relative to those of profiles."""

    def __init__(self, flows: FlowBelief) -> None:
        self.mean, self.cov = flows.mean.copy(), flows.cov.copy()
        self.components: list[Component] = []
        self.timed: dict[tuple[str, str], tuple[list[float], list[list[float]]]] = {}  # what it made of timings

    def at(self, component: Component) -> int:
        return len(self.mean) - len(self.components) + self.components.index(component)

    def enter(self, which: Sequence[Component], mean: Sequence[float], cov: np.ndarray) -> None:
        """Set the belief about some components, independent of all others."""
        for new in which:
            if new not in self.components:
                self.components.append(new)
                self.mean, self.cov = np.append(self.mean, 0.0), np.pad(self.cov, (0, 1))
        at = [self.at(one) for one in which]
        self.mean[at], self.cov[at], self.cov[:, at] = mean, 0.0, 0.0
        self.cov[np.ix_(at, at)] = cov

    def used(self, part: str, kernels: Iterable[tuple[str, str]]) -> None:
        """Move components of kernels to the end, and drop those of the same part that were not used for longest."""
        which = [(part, *kernel) for kernel in kernels]
        order = [one for one in self.components if one not in which] + which
        same = [one for one in order if one[0] == part]
        old = same[: max(len(same) - max(MAX_TRACKED_KERNELS, len(which)), 0)]
        order = [one for one in order if one not in old]
        for one in old:
            self.timed.pop(one[1:], None)
        at = [*range(len(self.mean) - len(self.components)), *map(self.at, order)]
        self.mean, self.cov, self.components = self.mean[at], self.cov[np.ix_(at, at)], order


class ReadingChecks:
    """Which rows' readings make no sense, or contradict each other or the topology."""

    def __init__(self, rows: int) -> None:
        self.variance = np.zeros(rows)  # mean square of what readings are off by, beyond their usual errors
        self._odd = np.zeros(rows)  # share of the latest windows in which they were off by much

    def sensible(self, at: np.ndarray, total: np.ndarray, own: np.ndarray | float) -> np.ndarray:
        """Which readings make sense. The rows of the others get a large variance."""
        good = (total >= 0) & (total < MAX_CREDIBLE_LOAD) & (own >= 0) & (own < MAX_CREDIBLE_LOAD)  # False for NaN
        self.variance[at[~good]], self._odd[at[~good]] = NONSENSE**2, 1.0
        return good

    def compare(self, at: np.ndarray, off: np.ndarray | float, usual: np.ndarray | float) -> None:
        """Update with the differences of sensible readings from what follows from all of them together."""
        beyond = np.where(np.abs(off) > usual, off, 0.0) ** 2
        self.variance[at] += DOUBT_RATE * (beyond - self.variance[at])
        self._odd[at] += DOUBT_RATE * ((beyond > MIN_CONTRADICTION**2) - self._odd[at])

    def reported(self) -> np.ndarray:
        """Rows of which a counter, or the topology, seems wrong."""
        return np.flatnonzero(self._odd > REPORTED_SHARE)


class LiveEstimator:
    """The belief about all machines. Runs are for the thread that owns the profiles, all else for any thread."""

    def __init__(
        self,
        topology: Topology,
        kernels: KernelBeliefs,
        parameters: FlowParameters = LIVE,
        met: Callable[[float], Iterable[PastRun]] = lambda since_s: (),
        least: bool = False,
    ) -> None:
        """`met`: runs that were not over at a time. `least`: counted traffic is a lower bound."""
        self._topology, self._kernels, self._parameters = topology, kernels, parameters
        self._met, self._least = met, least
        arrays, count = topology_arrays(topology), len(topology.resources)
        self._group, self._slot = arrays.row_group[:count], arrays.row_slot[:count]
        self._event = arrays.flow_load  # [groups, slots, flows]
        groups, _, flows = self._event.shape
        self._group_of = {int(device): group for group, row in enumerate(arrays.group_device) for device in row}
        index = {row.name: number for number, row in enumerate(topology.resources)}
        on = memory_rows(topology)
        self._memory = [None if name is None else index[name] for name in on]  # of each device
        self._memories = {topology.resources[row].name: row for row in self._memory if row is not None}
        self._flows = flow_filter.start(np, flows, parameters, (groups,))  # replaced, not changed: any thread reads it
        self._told_s = np.full((groups, flows), -np.inf)  # time of the last reading of each flow; replaced, too
        self.watches = False  # whether any counter was ever read: of remote machines, none is
        self._machines: dict[int, _Machine] = {}
        self._lock = threading.Lock()
        self._noise, self._noise_windows = PRIOR_NOISE**2 * PRIOR_NOISE_WINDOWS, PRIOR_NOISE_WINDOWS
        # The most traffic in several windows in a row, in capacities; that of each of the latest windows.
        self._whole, self._most = 1.0, deque([0.0] * SURE_WINDOWS, SURE_WINDOWS)
        self._uneven = np.zeros(count)  # variance of traffic by others that is due to phases of our own kernels
        self._checks = ReadingChecks(count)
        self._waiting: dict[int, list[RunReading]] = {}  # by device
        self._weighed_s: dict[int, float] = {}  # by device: end of the last run that was weighed
        self.told = np.zeros(count, bool)  # rows with any reading so far
        self._reading = np.full(count, np.nan)  # use of each row by all together, when it was read last …
        self._read_s = np.full(count, -np.inf)  # … at the end of that window

    # --- readings

    def rows(self, at: np.ndarray, total: np.ndarray, own: np.ndarray, together: np.ndarray, ended_s: float) -> None:
        """Take in the use of rows by all and by us, as shares of their capacity.

        `together`: rows whose reading is the mean over those of a machine.
        """
        good = self._checks.sensible(at, total, own)
        at, total, own, together = at[good], total[good], own[good], together[good]
        with self._lock:
            for group in np.unique(self._group[at]):
                here = self._group[at] == group
                slots, merged = self._slot[at[here]], self._slot[at[here & together]]
                machine, event = self._machine(int(group)), self._padded(int(group))
                rate, ours, read = np.zeros(len(event)), np.zeros(len(event)), np.zeros(len(event), bool)
                rate[slots], ours[slots], read[slots] = total[here], own[here], True
                counts = event.copy()
                if len(merged):
                    counts[merged[0]] = event[merged].mean(axis=0)
                    read[merged[1:]] = False
                unseen = np.full(len(event), (READING_ERROR / self._parameters.burst) ** 2)
                self._update(int(group), machine, Readings(rate, ours, unseen, read), ended_s, counts)
                off = rate - ours - counts @ machine.mean
                off[merged] = off[merged[:1]]
                usual = np.hypot(2 * READING_ERROR * rate, 2 * self._parameters.floor)
                self._checks.compare(at[here], off[slots], usual[slots])
            self._note(at, total, ended_s)

    def contradicted(self) -> list[str]:
        """Rows whose readings make no sense or contradict others: a counter is wrong, or the topology."""
        return [self._topology.resources[row].name for row in self._checks.reported()]

    def traffic(self, used: Mapping[str, tuple[float, float]], began_s: float, ended_s: float) -> None:
        """Take in traffic through memories, as a share of their capacity with its deviation, by row."""
        if ended_s <= began_s:
            return
        told = {self._memories[name]: both for name, both in used.items() if name in self._memories}
        at = np.array(list(told), int)
        total, deviation = np.array(list(told.values())).reshape(-1, 2).T
        known = (deviation >= 0) & np.isfinite(deviation)
        good = self._checks.sensible(at, np.where(known, total, np.nan), 0.0)
        self._checks.compare(at[good], 0.0, 0.0)
        told = {row: told[row] for row in at[good]}
        if not told:
            return
        active = self._active(began_s, ended_s)
        with self._lock:
            self._most.append(max(x - 2 * std for x, std in told.values()))
            self._whole = max(self._whole, min(self._most))
            for group in {int(self._group[row]) for row in told}:
                here = {row: both for row, both in told.items() if self._group[row] == group}
                self._traffic_of(group, here, {row: active.get(row, {}) for row in here}, ended_s)
            self._note(np.array(list(told)), np.array([x for x, _ in told.values()]), ended_s)

    def _traffic_of(
        self,
        group: int,
        told: Mapping[int, tuple[float, float]],
        active: Mapping[int, Mapping[Component, float]],
        ended_s: float,
    ) -> None:
        machine = self._machine(group)
        kernels = list(dict.fromkeys(kernel for runs in active.values() for kernel in runs))
        for new in kernels:
            if new not in machine.components:
                share, precision = self._kernels.demand(*new[1:]).counted
                variance = 1 / (precision + DEMAND_STD**-2)
                machine.enter([new], [share * precision * variance], np.array(variance))
        machine.used(DEMAND, [kernel[1:] for kernel in kernels])
        flows, counts = self._event.shape[-1], self._padded(group)
        rate, unseen, read = np.zeros(len(counts)), np.zeros(len(counts)), np.zeros(len(counts), bool)
        runs = {}
        told = {
            row: (share / self._whole, min(std, MAX_CREDIBLE_LOAD) / self._whole) for row, (share, std) in told.items()
        }
        for row, (share, std) in told.items():
            at = self._slot[row]
            for kernel, part in active[row].items():
                counts[at, machine.at(kernel)] = part
            expected = counts[at] @ machine.mean
            rate[at], read[at] = share, share < MIN_SATURATED_LOAD or expected < share
            rough, size = self._noise / self._noise_windows, max(expected, share, MIN_NOISE_LOAD)
            unseen[at] = (rough + (std / size) ** 2) / self._parameters.burst**2
            runs[row] = np.where(np.arange(counts.shape[1]) < flows, 0.0, counts[at])
            machine.cov[np.diag_indices(len(machine.mean))] += (runs[row] * DEMAND_DRIFT_STD) ** 2
            if read[at]:
                known = std**2 + self._parameters.floor**2 + counts[at] @ machine.cov @ counts[at]
                self._learn_noise(share - expected, rough * max(expected, MIN_NOISE_LOAD) ** 2, known)
        self._update(group, machine, Readings(rate, np.zeros_like(rate), unseen, read), ended_s, counts)
        for row in told:
            self._uneven[row] = self._noise / self._noise_windows * float(runs[row] @ machine.mean) ** 2
        for kernel in kernels:
            at = machine.at(kernel)
            if (std := math.sqrt(max(machine.cov[at, at], 0.0))) < MAX_KNOWN_STD:
                precision = 1 / max(std, DEMAND_DRIFT_STD) ** 2
                self._kernels.counted(*kernel[1:], float(machine.mean[at]), precision, self._least)

    def _learn_noise(self, off: float, rough: float, known: float) -> None:
        """Learn the error of traffic. `off`: from what was expected; `rough`: the part of its variance that is noise,
        `known`: the rest. If others have changed, the difference is no noise."""
        total, jumped = rough + known, rough + known + JUMP_STD**2
        odds = (
            self._parameters.changes
            * math.sqrt(total / jumped)
            * math.exp(min(off**2 * (0.5 / total - 0.5 / jumped), 50))
        )
        goes_on = 1 / (1 + odds)
        left = ((rough / total * off) ** 2 + rough * (1 - rough / total)) / rough * self._noise / self._noise_windows
        self._noise = NOISE_MEMORY * self._noise + goes_on * min(left, 1.0)
        self._noise_windows = NOISE_MEMORY * self._noise_windows + goes_on

    def _active(self, began_s: float, ended_s: float) -> dict[int, dict[Component, float]]:
        """Number of runs of each kernel, on average over a window, by memory."""
        found: dict[int, dict[Component, float]] = {}
        for ran in self._met(began_s):
            row = self._memory[ran.device]
            part = (min(ended_s, ran.ended_s) - max(began_s, ran.began_s)) / (ended_s - began_s)
            if row is not None and part > 0:
                own, kernel = found.setdefault(row, {}), (DEMAND, ran.kernel, ran.kind)
                own[kernel] = own.get(kernel, 0.0) + part * (1.0 if math.isnan(ran.active) else ran.active)
        return found

    def ran(self, run: RunReading) -> bool:
        """Keep a run of a kernel whose isolated time is roughly known: `weigh` takes it in, together with others.

        False if it says nothing.
        """
        says = bool(run.own) and 0 < run.seconds < math.inf and run.device in self._group_of
        says = says and all(map(math.isfinite, run.own.values()))
        if says:
            self._waiting.setdefault(run.device, []).append(run)
        return says

    def weigh(self, now_s: float) -> list[RunReading]:
        """Take in runs that wait, and change their timings. `now_s`: as of the ends of runs. Returns those runs."""
        enough = {
            device: runs
            for device, runs in self._waiting.items()
            if now_s - runs[0].ended_s >= MAX_RUN_WAIT_S
            or (
                runs[-1].ended_s - self._weighed_s.get(device, -math.inf) >= WINDOW_S
                and min(Counter(run.kernel for run in runs).values()) >= RUNS_WEIGHED
            )
        }
        for device, runs in enough.items():
            del self._waiting[device]
            self._weighed_s[device] = runs[-1].ended_s
        every = [run for runs in enough.values() for run in runs]
        together: dict[tuple[int, str, str], list[RunReading]] = {}  # runs of a kernel say who is to blame
        for run in every:
            together.setdefault((self._group_of[run.device], run.kernel, run.kind), []).append(run)
        with self._lock:
            for group in {key[0] for key in together}:
                some: list[RunReading] = []
                for runs in [runs for key, runs in together.items() if key[0] == group]:
                    if some and len({(run.device, run.kernel) for run in some + runs}) > MAX_WEIGHED:
                        self._weigh(group, some)
                        some = []
                    some = some + runs
                self._weigh(group, some)
        return every

    def drop_waiting(self) -> None:
        """Drop the runs that wait."""
        self._waiting.clear()

    def _weigh(self, group: int, runs: Sequence[RunReading]) -> None:
        machine = self._machine(group)
        kernels = list(dict.fromkeys((run.kernel, run.kind) for run in runs))
        timings, parts = {}, {}
        for kernel in kernels:
            timings[kernel] = timing = self._kernels.timing(*kernel)
            which = (FIXED, *kernel), (SLOPE, *kernel)
            if which[0] not in machine.components or machine.timed.get(kernel) != (timing.mean, timing.cov):
                machine.enter(which, (0.0, 0.0), np.array(timing.cov))  # it never was here, or others have changed it
        for part in (FIXED, SLOPE):
            machine.used(part, kernels)
        for kernel in kernels:
            at = parts[kernel] = [machine.at((part, *kernel)) for part in (FIXED, SLOPE)]
            machine.cov[at, at] += TIME_DRIFT_STD**2
        by_reading: dict[tuple[object, ...], list[RunReading]] = {}
        for run in runs:  # those that lost time in a memory are not about what others did to processors
            by_reading.setdefault((run.device, run.kernel, run.kind, *run.own), []).append(run)
        readings, hops = list(by_reading.values()), max(len(run.own) for run in runs)
        slow, error, windows, freedom = np.zeros((4, len(readings)))
        own, times = np.zeros((len(readings), hops)), np.zeros((len(readings), len(machine.mean)))
        row, uses = np.zeros(own.shape, int), np.zeros(own.shape, bool)
        rarer = self._parameters.changes / FlowParameters().changes  # a long run meets fewer changes than is usual
        for n, some in enumerate(readings):
            kernel = some[0].kernel, some[0].kind
            timing, several = timings[kernel], len(some) >= RUNS_WEIGHED
            slow[n] = min(np.median([run.seconds / timing.seconds(run.size) for run in some]), MAX_SLOW)
            error[n] = timing.noise_std * (MEDIAN_ERROR if several else 1.0) / math.sqrt(len(some))
            freedom[n] = MEDIAN_FREEDOM if several else self._parameters.freedom
            windows[n] = np.mean([min(run.seconds / WINDOW_S, MAX_RUN_WINDOWS) for run in some]) * rarer
            times[n, parts[kernel]] = np.mean([timing.at(run.size)[1:] for run in some], axis=0)
            for hop, resource in enumerate(some[0].own):
                own[n, hop] = np.mean([run.own.get(resource, 0.0) for run in some])
                row[n, hop], uses[n, hop], self.told[resource] = self._slot[resource], True, True
        event, nothing = self._padded(group), np.zeros(self._event.shape[1])
        seen = Readings(nothing, nothing, nothing, nothing > 0)
        ended_s = max(run.ended_s for run in runs)
        self._update(
            group, machine, seen, ended_s, event, RunTimes(slow, error, windows, own, row, uses, times, freedom)
        )
        others = event @ machine.mean
        off: dict[tuple[str, str], list[float]] = {}
        for kernel, at in parts.items():
            timing, moved = timings[kernel], machine.mean[at]
            mean = [timing.mean[0] + float(moved[0]), timing.mean[1] + float(moved[1])]
            machine.mean[at] = 0.0
            for run in runs:
                if (run.kernel, run.kind) == kernel:
                    loads = [own + others[self._slot[resource]] for resource, own in run.own.items()]
                    expected = timing.at(run.size)[0] + timing.at(run.size)[1:] @ moved
                    left = math.log(max(run.seconds, MIN_SECONDS)) - expected - math.log(max(1.0, *loads))
                    off.setdefault(kernel, []).append(left)
            timing.take(mean, machine.cov[np.ix_(at, at)], off[kernel])
            machine.timed[kernel] = timing.mean, timing.cov

    # --- the filter

    def _machine(self, group: int) -> _Machine:
        if group not in self._machines:
            self._machines[group] = _Machine(FlowBelief(self._flows.mean[group], self._flows.cov[group]))
        return self._machines[group]

    def _padded(self, group: int) -> np.ndarray:
        """Loads of rows by each component of the belief; 0 for those of kernels."""
        flows = self._event[group]
        return np.concatenate([flows, np.zeros((len(flows), len(self._machine(group).components)))], axis=1)

    def _update(
        self,
        group: int,
        machine: _Machine,
        seen: Readings,
        ended_s: float,
        counts: np.ndarray,
        runs: RunTimes | None = None,
    ) -> None:
        event, flows = self._padded(group), self._event.shape[-1]
        crossed = np.any(counts[seen.read] > 0, axis=0)
        if runs is not None:
            crossed = crossed | np.any(event[runs.row[runs.uses]] > 0, axis=0)
        of_flows, told_s = crossed[:flows], self._told_s.copy()
        gap = np.where(np.isfinite(told_s[group]), np.maximum(ended_s - told_s[group], 0.0) / WINDOW_S, 1.0)
        windows = np.zeros(len(machine.mean))
        windows[:flows] = np.where(of_flows, np.maximum(gap - MAX_WINDOWS, 0.0), 0.0)
        belief = flow_filter.forget(np, self._parameters, FlowBelief(machine.mean, machine.cov), windows)
        gap = np.where(of_flows, np.clip(gap, MIN_WINDOWS, MAX_WINDOWS), MIN_WINDOWS)
        p = self._for_components(machine, gap)
        belief = flow_filter.update(np, event, p, belief, seen, runs, 0.0, counts)
        machine.mean, machine.cov = belief.mean, belief.cov
        told_s[group] = np.where(of_flows, np.maximum(told_s[group], ended_s), told_s[group])
        mean, cov = self._flows.mean.copy(), self._flows.cov.copy()
        mean[group], cov[group] = belief.mean[:flows], belief.cov[:flows, :flows]
        self._flows, self._told_s = FlowBelief(mean, cov), told_s

    def _for_components(self, machine: _Machine, windows: np.ndarray) -> FlowParameters:
        """Parameters of each component. `windows` f[F]: time since the last reading of each flow."""
        p, flows, kinds = self._parameters, self._event.shape[-1], [part for part, *_ in machine.components]
        is_demand = np.array([kind == DEMAND for kind in kinds], bool)

        def each(of_flows: float | np.ndarray, of_demands: float, of_times: float) -> np.ndarray:
            return np.concatenate([np.zeros(flows) + of_flows, np.where(is_demand, of_demands, of_times)])

        return p._replace(
            changes=each(1 - (1 - p.changes) ** windows, SELDOM, 1 - (1 - KERNEL_CHANGES) ** windows.max()),
            on_share=each(p.on_share, 1 - SELDOM, 1 - SELDOM),
            on_mean=each(p.on_mean, 0.0, 0.0),
            on_std=each(p.on_std, DEMAND_STD, CHANGED_CODE_STD),
            drift=each(p.drift, 0.0, 0.0),
            lowest=each(0.0, 0.0, -np.inf),
        )

    # --- what is believed

    def _note(self, at: np.ndarray, total: np.ndarray, ended_s: float) -> None:
        self.watches = True
        self.told[at], self._reading[at], self._read_s[at] = True, total, ended_s

    def believed(self, now_s: float) -> RowLoads:
        """Mean and deviation of the load of each row by others. Deviations grow while nothing is read."""
        belief, told_s = self._flows, self._told_s
        behind = np.where(np.isfinite(told_s), np.maximum(now_s - told_s, 0.0) / WINDOW_S, 0.0)
        belief = flow_filter.forget(np, self._parameters, belief, behind)
        mean, deviation = (x[self._group, self._slot] for x in flow_filter.row_loads(np, self._event, belief))
        # Errors of readings below the floor are not averaged out: what causes them may last.
        floor = np.where(self.told, self._parameters.floor, 0.0)
        variance = deviation**2 + floor**2 + self._uneven + self._checks.variance
        return mean.astype(np.float32), np.sqrt(variance).astype(np.float32)

    def readings(self, since_s: float) -> dict[str, float]:
        """The newest raw readings since a time: use of rows by all, as shares of their capacity."""
        new = np.flatnonzero(self._read_s >= since_s)
        return {self._topology.resources[at].name: float(self._reading[at]) for at in new}
