"""What others do with the shared parts of this machine: a belief about the load of each row, for policies.

Ten times a second, what the machine tells of itself says how far a row was used (`telemetry/rows.toml` has which figure
speaks of which row). What of that was ours is known, or the window tells nothing:

- of processors, ours is the CPU time of the processes that run kernels, and of this one: what the scheduler takes from
  kernels is always there, and so in the times that are learned of them. A processor that is full tells how much of it
  others got, not how much they wanted;
- of a GPU, its memory and its link, the part of others is unknown while a kernel of ours runs there;
- of the network nothing is ours: kernels of one machine do not use it.

The rest is others', as the filter over flows sees it that policies are trained with (`estimation/flow_filter.py`). Of
memories nothing tells our part: where their traffic is counted, `traffic.py` works out whose it is. Of a row that
nothing speaks of, such as memory where the PMU may not be used, policies receive a belief with a small mean and a large
deviation (`UNREAD_LOAD`).

Not seen: time that a hypervisor takes (steal). Taken for others': processes that a kernel starts. In a container with
some of the CPUs of a machine, /proc/stat is mostly the whole machine's, and so is what is said of its processors.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from symphony.estimation import flow_filter
from symphony.estimation.flow_filter import FlowBelief, FlowParameters, Readings
from symphony.estimation.tuning import Tuning, tuned
from symphony.problem.arrays import topology_arrays
from symphony.problem.topology import Topology
from symphony.runtime.traffic import TrafficAttribution
from symphony.telemetry import rows

NVML_LAG_S = 1.0  # what NVML says of use by itself (`nvml.*`, not `gpm.*`) may be of so long before
MAX_WINDOW_S = 1.0  # a window beyond that was cut by a pause in which nothing was read
# Windows are short: a flow seldom changes in one. What is counted is counted all the time, but loads of a tenth of a
# second wander: the error of a reading is 10% of it. Our own part is measured, not taken from profiles.
LIVE = FlowParameters(changes=0.01, own_error=0.02)
UNSEEN = (0.1 / LIVE.burst) ** 2
BELIEF_CACHE_S = 0.02  # for so long, what was said is said again: turns come by the thousand
UNREAD_LOAD = 0.0, 0.25  # load of a row that was never read, and its deviation: most machines are not shared
MAX_DEVIATION = 1.0  # of a row that was read once
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
        arrays, count = topology_arrays(topology), len(self._index)
        self._group, self._slot = arrays.row_group[:count], arrays.row_slot[:count]
        self._event = arrays.flow_load  # [groups, slots, flows]
        groups, _, flows = self._event.shape
        self._belief = flow_filter.start(np, flows, self._parameters, (groups,))
        self._ended_s = np.full(len(self._index), -np.inf)  # of the last window that told something
        self._window_s = np.ones(len(self._index))
        self._reading = np.full(len(self._index), np.nan)  # use of each row in that window, by all together
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
        if not len(at):
            return
        total = np.array([used[self._topology.resources[row].name] for row in at])
        cores = self._cores[at]
        cpu = cores > 0
        total[cpu] *= cores[cpu] / self._cpus
        own = np.where(cpu, ours_s / duration_s / max(self._cpus, 1), 0.0)
        groups, inside = np.unique(self._group[at], return_inverse=True)
        event = self._event[groups]
        rate, ours, read = np.zeros(event.shape[:2]), np.zeros(event.shape[:2]), np.zeros(event.shape[:2], bool)
        where = inside, self._slot[at]
        rate[where], ours[where], read[where] = np.maximum(total, own), own, True
        seen = Readings(rate, ours, np.full_like(rate, UNSEEN), read)
        with self._lock:
            mean, cov = (part.copy() for part in self._belief)
            before = FlowBelief(mean[groups], cov[groups])
            mean[groups], cov[groups] = flow_filter.update(np, event, self._parameters, before, seen)
            self._belief = FlowBelief(mean, cov)
            self._ended_s[at], self._window_s[at], self._reading[at] = ended_s, duration_s, total

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
        with self._lock:
            belief, ended_s, window_s = self._belief, self._ended_s.copy(), self._window_s.copy()
        known = np.isfinite(ended_s)
        missed = np.where(known, np.maximum((now_s - np.where(known, ended_s, now_s)) / window_s, 0.0), 0.0)
        behind = np.zeros(self._event.shape[0])
        np.maximum.at(behind, self._group, missed)  # a group is as old as its oldest reading
        behind = np.broadcast_to(behind[:, None], belief.mean.shape)
        belief = flow_filter.forget(np, self._parameters, belief, behind)
        mean, deviation = (x[self._group, self._slot] for x in flow_filter.row_loads(np, self._event, belief))
        mean = np.where(known, mean, UNREAD_LOAD[0])
        deviation = np.where(known, np.minimum(deviation, MAX_DEVIATION), UNREAD_LOAD[1])
        for row, load in (self._traffic.believed(now_s) if self._traffic else {}).items():
            mean[row], deviation[row] = load
        self._said = now_s, (mean.astype(np.float32), deviation.astype(np.float32))
        return self._said[1]

    def by_row(self, now_s: float) -> dict[str, tuple[float, float]]:
        """The same of those rows that were read, by name."""
        mean, deviation = self.believed(now_s)
        read = np.isfinite(self._ended_s)
        read[list(self._traffic.believed(now_s) if self._traffic else ())] = True
        return {name: (float(mean[at]), float(deviation[at])) for name, at in self._index.items() if read[at]}

    def readings(self, since_s: float) -> dict[str, float]:
        """The newest raw readings since then: use of a row by all together, as a share of its capacity."""
        new = np.flatnonzero(self._ended_s >= since_s)
        found = {self._topology.resources[at].name: float(self._reading[at]) for at in new}
        return found | (self._traffic.readings(since_s) if self._traffic else {})


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
