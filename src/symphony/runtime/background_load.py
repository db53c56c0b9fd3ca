"""What others do with the shared parts of this machine: a belief about the load of each row, for policies.

Ten times a second, what the machine tells of itself says how far a row was used (`telemetry/rows.toml` has which figure
speaks of which row). What of that was ours is known, or the window tells nothing:

- of processors, ours is the CPU time of the processes that run kernels, and of this one: what the scheduler takes from
  kernels is always there, and so in the times that are learned of them. A processor that is full tells how much of it
  others got, not how much they wanted;
- of a GPU, its memory and its link, the part of others is unknown while a kernel of ours runs there;
- of the network nothing is ours: kernels of one machine do not use it.

The rest is others', as the filter over flows sees it that policies are trained with (`estimation/flow_filter.py`). Of
memories nothing tells our part: where their traffic is counted, `traffic.py` works out whose it is.

Times of our own runs tell of every row, counted or not: a run that took longer than in isolation met others on the
busiest of the rows that it uses. Of a row that nothing speaks of, policies receive what is typical: a small mean and a
large deviation (`UNREAD_LOAD`).

Not seen: time that a hypervisor takes (steal). Taken for others': processes that a kernel starts. In a container with
some of the CPUs of a machine, /proc/stat is mostly the whole machine's, and so is what is said of its processors.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from symphony.estimation import flow_filter
from symphony.estimation.flow_filter import FlowBelief, FlowParameters, Readings, RunTimes
from symphony.estimation.tuning import Tuning, tuned
from symphony.problem.arrays import topology_arrays
from symphony.problem.topology import Topology
from symphony.runtime.traffic import TrafficAttribution
from symphony.telemetry import rows

NVML_LAG_S = 1.0  # what NVML says of use by itself (`nvml.*`, not `gpm.*`) may be of so long before
MAX_WINDOW_S = 1.0  # a window beyond that was cut by a pause in which nothing was read
WINDOW_S = 0.1  # of most windows
# Windows are short: a flow seldom changes in one. What is counted is counted all the time, but loads of a tenth of a
# second wander: the error of a reading is 10% of it. Our own part is measured, not taken from profiles. Most machines
# are not shared: few flows are busy.
LIVE = FlowParameters(changes=0.01, on_share=0.05, own_error=0.02)
UNSEEN = (0.1 / LIVE.burst) ** 2
BELIEF_CACHE_S = 0.02  # for so long, what was said is said again: turns come by the thousand
UNREAD_LOAD = float(flow_filter.fresh(LIVE)[0]), float(flow_filter.fresh(LIVE)[1] ** 0.5)  # if nothing is ever read
# One run may be slow for any reason; several in a row say who is to blame. So runs of a device are weighed together:
# this many, or fewer if the first has waited for so long. Of more runs, each of the readings is a mean of some.
RUN_READINGS, MAX_RUN_WAIT_S = 3, 1.0
MAX_AVERAGED_RUNS = 4  # more of one kernel err alike
MAX_WAITING_RUNS = 1024
RowLoads = tuple[np.ndarray, np.ndarray]  # f32[R]: mean and deviation


class BackgroundLoad:
    """Takes in windows, from any thread, and says what is believed, to any thread."""

    def __init__(
        self,
        topology: Topology,
        cpu_s: Callable[[], Mapping[int, float]] = dict,
        ran: Callable[[int, float], bool] = lambda device, since_s: False,
        tuning: Tuning | None = None,
        cpus: int | None = None,
        traffic: TrafficAttribution | None = None,
    ) -> None:
        """`cpu_s`: CPU time that our processes have used so far, by process. `tuning`: of the filter, by the policy.

        `ran`: whether a kernel of ours ran on a device at some time since then. `cpus`: those that the kernel's files
        speak of, if not as many as the topology has cores: threads of one core, or those that we leave to others.
        `traffic`: who knows of memories.
        """
        self._topology, self._cpu_s, self._ran, self._traffic = topology, cpu_s, ran, traffic
        self._parameters = LIVE
        if tuning is not None:
            self._parameters = FlowParameters(*map(float, tuned(tuning.factors, LIVE)))
        self._machines = sorted({row.group for row in topology.resources if row.group})
        self._index = {row.name: number for number, row in enumerate(topology.resources)}
        self._cores = np.zeros(len(self._index))  # of the processors that a compute row stands for, all together
        self._private: dict[int, list[int]] = {}  # row -> accelerators whose work touches it
        self._sort_rows(cpus)
        self._lock = threading.Lock()
        self._arrays, count = topology_arrays(topology), len(self._index)
        self._group, self._slot = self._arrays.row_group[:count], self._arrays.row_slot[:count]
        self._event = self._arrays.flow_load  # [groups, slots, flows]
        groups, _, flows = self._event.shape
        self._group_of = np.full(len(topology.devices), -1)
        for group, members in enumerate(self._arrays.group_device):
            self._group_of[members[members >= 0]] = group
        self._belief = flow_filter.start(np, flows, self._parameters, (groups,))
        self._ended_s = np.full(groups, -np.inf)  # of the last window of each group
        self._told = np.zeros(count, bool)  # rows of which something was ever read
        self._runs: deque[_RunReading] = deque(maxlen=MAX_WAITING_RUNS)  # since the last window
        self._waiting: dict[int, tuple[float, list[_RunReading]]] = {}  # by device: since when, and the runs
        self.weighed = [0] * len(topology.devices)  # how often runs of each device were weighed
        self._reading = np.full(count, np.nan)  # use of each row by all together, when it was read last …
        self._read_s = np.full(count, -np.inf)  # … at the end of that window
        self._used_s: Mapping[int, float] | None = None  # when the last window ended
        self._said: tuple[float, RowLoads] | None = None  # when, and what

    def _sort_rows(self, cpus: float | None) -> None:
        kinds = [row.kind for row in self._topology.resources]
        whole = 0.0
        for number, device in enumerate(self._topology.devices):
            cpu = self._topology.kind_of[device.kind].type == "cpu"
            for at in (self._index[hop.resource] for hop in device.route):
                if not cpu and kinds[at] != "nic":
                    self._private.setdefault(at, []).append(number)
                elif cpu and kinds[at] == "compute" and not self._cores[at]:
                    self._cores[at] = 1.0
                    whole += self._topology.resources[at].capacity
        self._cores *= whole
        self._cpus = whole if cpus is None else cpus

    def window(self, place: str, began_s: float, ended_s: float, rates: Mapping[str, float]) -> None:
        """Take in what a place told of a window: amounts per second, by event."""
        ours_s = 0.0
        if any(event.startswith("stat.") for event in rates):  # our part is read as often as the whole is
            ours_s = self._ours_s()
        duration_s = ended_s - began_s
        if not 0 < duration_s <= MAX_WINDOW_S or math.isnan(ours_s):
            return
        used: dict[str, float] = {}
        for machine in self._machines:
            used |= rows.exact(self._topology, machine, {place: rates})
        used = {row: share for row, share in used.items() if math.isfinite(share)}  # else the belief would be NaN
        since_s = began_s - (NVML_LAG_S if math.isnan(rates.get("gpm.sm_busy_us", math.nan)) else 0.0)
        at = np.array(sorted(self._index[name] for name in used if not self._mixed(self._index[name], since_s)), int)
        total = np.array([used[self._topology.resources[row].name] for row in at])
        cores = self._cores[at]
        cpu = cores > 0
        total[cpu] *= cores[cpu] / self._cpus
        own = np.where(cpu, ours_s / duration_s / max(self._cpus, 1), 0.0)
        with self._lock:
            runs = self._enough_runs(ended_s)
            groups = np.unique([*self._group[at], *(self._group_of[device] for device in runs)]).astype(int)
            if not len(groups):
                return
            event = self._event[groups]
            rate, ours, read = np.zeros(event.shape[:2]), np.zeros(event.shape[:2]), np.zeros(event.shape[:2], bool)
            where = np.searchsorted(groups, self._group[at]), self._slot[at]
            rate[where], ours[where], read[where] = np.maximum(total, own), own, True
            counts = event.copy()
            for group in np.unique(where[0][cpu]):  # its processors are counted all together
                slots = where[1][cpu & (where[0] == group)]
                counts[group, slots[0]] = event[group, slots].mean(axis=0)
                read[group, slots[1:]] = False
            seen = Readings(rate, ours, np.full_like(rate, UNSEEN), read)
            before = FlowBelief(self._belief.mean[groups], self._belief.cov[groups])
            times = self._run_times(groups, runs) if runs else None
            passed = np.where(np.isfinite(self._ended_s[groups]), ended_s - self._ended_s[groups], 0.0)
            after = flow_filter.update(
                np, event, self._parameters, before, seen, times, np.maximum(passed, 0.0) / WINDOW_S, counts
            )
            mean, cov = (part.copy() for part in self._belief)
            mean[groups], cov[groups] = after
            updated = self._ended_s.copy()
            updated[groups] = ended_s
            self._belief, self._ended_s = FlowBelief(mean, cov), updated  # replaced, not changed: others read them
            self._told[at], self._reading[at], self._read_s[at] = True, total, ended_s

    @property
    def reads(self) -> bool:
        """Whether there are windows at all: of other machines there are none."""
        return bool(np.isfinite(self._ended_s).any())

    def ran(self, device: int, slow: float, error: float, seconds: float, own: Mapping[int, float]) -> None:
        """A run took `slow` times as long as in isolation, give or take `error` of that.

        `own`: rows that it uses, with the load that all of our runs together put on them, as shares of the capacity.
        """
        if own and self._group_of[device] >= 0 and math.isfinite(slow) and math.isfinite(error):
            self._runs.append(_RunReading(device, slow, error, seconds, own))

    def _enough_runs(self, now_s: float) -> dict[int, list[_RunReading]]:
        """Runs that can be weighed now, by device."""
        for one in [self._runs.popleft() for _ in range(len(self._runs))]:  # the loop's thread may add to them
            self._waiting.setdefault(one.device, (now_s, []))[1].append(one)
        enough = {
            device: runs
            for device, (since_s, runs) in self._waiting.items()
            if len(runs) >= RUN_READINGS or now_s - since_s >= MAX_RUN_WAIT_S
        }
        for device in enough:
            del self._waiting[device]
            self.weighed[device] += 1
        return enough

    def _run_times(self, groups: np.ndarray, runs: Mapping[int, Sequence[_RunReading]]) -> RunTimes:
        arrays = self._arrays
        devices = np.repeat(arrays.group_device[groups], RUN_READINGS, axis=1)
        slots = arrays.hop_slot
        shape = (*devices.shape, slots.shape[1])
        slow, error, windows = np.zeros((3, *devices.shape))
        own, row, uses = np.zeros(shape), np.maximum(slots[np.maximum(devices, 0)], 0), np.zeros(shape, bool)
        rarer = self._parameters.changes / FlowParameters().changes  # a long run meets fewer changes than is usual
        for group, at in zip(*np.nonzero(devices >= 0), strict=True):
            device = int(devices[group, at])
            some = runs.get(device, ())[at % RUN_READINGS :: RUN_READINGS]
            if not some:
                continue
            slow[group, at] = np.mean([one.slow for one in some])
            error[group, at] = np.mean([one.error for one in some]) / math.sqrt(min(len(some), MAX_AVERAGED_RUNS))
            windows[group, at] = np.mean([one.seconds for one in some]) / WINDOW_S * rarer
            for hop, resource in enumerate(arrays.route_row[device]):
                loads = [one.own[resource] for one in some if resource in one.own]
                if loads and slots[device, hop] >= 0:
                    own[group, at, hop], uses[group, at, hop] = np.mean(loads), True
                    self._told[resource] = True
        return RunTimes(slow, error, windows, own, row, uses)

    def _ours_s(self) -> float:
        """CPU time that we have used since this was last asked; NaN if that is not known."""
        before, now = self._used_s, self._cpu_s()
        self._used_s = now
        if before is None or any(now.get(process, -1.0) < used for process, used in before.items()):
            return math.nan  # the first call, or a process has ended and its time is lost
        return sum(now.values()) - sum(before.values())

    def _mixed(self, row: int, since_s: float) -> bool:
        """True if a kernel of ours ran on a device of the row, so that the part of others is unknown."""
        return any(self._ran(device, since_s) for device in self._private.get(row, ()))

    def believed(self, now_s: float) -> RowLoads:
        """Mean and deviation of the load of each row by others: the less sure, the longer nothing was read."""
        if self._said is not None and 0 <= now_s - self._said[0] < BELIEF_CACHE_S:
            return self._said[1]
        belief, ended_s = self._belief, self._ended_s
        missed = np.where(np.isfinite(ended_s), np.maximum(now_s - ended_s, 0.0) / WINDOW_S, 0.0)
        behind = np.broadcast_to(missed[:, None], belief.mean.shape)
        belief = flow_filter.forget(np, self._parameters, belief, behind)
        mean, deviation = (x[self._group, self._slot] for x in flow_filter.row_loads(np, self._event, belief))
        for row, load in (self._traffic.believed(now_s) if self._traffic else {}).items():
            mean[row], deviation[row] = load
        self._said = now_s, (mean.astype(np.float32), deviation.astype(np.float32))
        return self._said[1]

    def by_row(self, now_s: float) -> dict[str, tuple[float, float]]:
        """The same of those rows of which something was read, by name."""
        mean, deviation = self.believed(now_s)
        told = self._told.copy()
        told[list(self._traffic.believed(now_s) if self._traffic else ())] = True
        return {name: (float(mean[at]), float(deviation[at])) for name, at in self._index.items() if told[at]}

    def readings(self, since_s: float) -> dict[str, float]:
        """The newest raw readings since then: use of a row by all together, as a share of its capacity."""
        new = np.flatnonzero(self._read_s >= since_s)
        found = {self._topology.resources[at].name: float(self._reading[at]) for at in new}
        return found | (self._traffic.readings(since_s) if self._traffic else {})


class _RunReading(NamedTuple):
    """A run of ours, as a reading."""

    device: int
    slow: float
    error: float
    seconds: float
    own: Mapping[int, float]


def cpu_seconds(processes: Sequence[int], families: Mapping[int, Sequence[int]] | None = None) -> dict[int, float]:
    """CPU time that processes have used so far, those that are gone left out.

    Of a family, a process and its children, it is one sum: time of children that have ended is the parent's.
    """
    used_s = {process: found[0] for process in processes if (found := _ticks(process)) is not None}
    for parent, children in (families or {}).items():
        living = [found[0] for child in children if (found := _ticks(child)) is not None]
        own = _ticks(parent)  # after its children: one that ends meanwhile is counted twice, and not lost
        if own is not None:
            used_s[parent] = sum(living, sum(own))
    return used_s


def _ticks(process: int) -> tuple[float, float] | None:
    """Seconds of a process, and of the children that it has waited for."""
    try:
        words = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except (OSError, UnicodeDecodeError):
        return None
    user, system, waited_user, waited_system = (int(word) / os.sysconf("SC_CLK_TCK") for word in words[11:15])
    return user + system, waited_user + waited_system
