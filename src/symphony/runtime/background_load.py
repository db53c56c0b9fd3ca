"""Our own part of what this machine's figures say, so that the rest can be attributed to others.

Every window of `machine_monitor.py` says how far some rows were used (`telemetry/rows.toml`: which figure measures
which row). The part of our kernels is

- of processors: the CPU time of the processes that run kernels, and of this one. Time that the scheduler takes from
  kernels is always there, and so is in their learned times. If processors are full, others may want more than they got;
- of a GPU, its memory and its link: unknown while a kernel of ours runs there, so that window is left out;
- of the network: none, as kernels of one machine do not use it.

Use and our part go to the estimator (`estimation/live.py`), which also gets the traffic of memories and the times of
our runs. Rows without any reading have a small mean and a large deviation (`UNREAD_LOAD`).

Not seen: time that a hypervisor takes (steal). Counted as others': processes that a kernel starts. In a container with
some of a machine's CPUs, /proc/stat mostly describes the whole machine, and so does the load of its processors.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from symphony.estimation import flow_filter
from symphony.estimation.flow_filter import FlowParameters
from symphony.estimation.live import LIVE, LiveEstimator, RowLoads
from symphony.estimation.runs import PastRun
from symphony.estimation.tuning import Tuning, tuned
from symphony.problem.topology import Topology
from symphony.runtime.profiles import Profiles
from symphony.telemetry import rows

log = logging.getLogger("symphony.runtime")
NVML_LAG_S = 1.0  # age that figures of use by NVML may have (`nvml.*`, not `gpm.*`)
MAX_WINDOW_S = 1.0  # a longer window contains a pause in which nothing was read
BELIEF_CACHE_S = 0.02  # for which a belief is kept: there are thousands of turns a second
UNREAD_LOAD = float(flow_filter.fresh(LIVE)[0]), float(flow_filter.fresh(LIVE)[1] ** 0.5)  # if nothing is ever read


class BackgroundLoad:
    """Takes in windows and returns the belief. For any thread."""

    def __init__(
        self,
        topology: Topology,
        cpu_s: Callable[[], Mapping[int, float]] = dict,
        ran: Callable[[int, float], bool] = lambda device, since_s: False,
        tuning: Tuning | None = None,
        cpus: int | None = None,
        profiles: Profiles | None = None,
        met: Callable[[float], Iterable[PastRun]] = lambda since_s: (),
        least: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`cpu_s`: CPU time that our processes have used so far, by process. `tuning`: of the filter, by the policy.

        `ran`: whether a kernel of ours ran on a device at some time since then. `cpus`: number of CPUs in /proc/stat,
        if the topology has another number of cores (hardware threads, or CPUs that are left to others).
        `profiles`: of kernels. `met`: runs that were not over at a time. `least`: counted traffic is a lower bound.
        """
        self._topology, self._cpu_s, self._ran = topology, cpu_s, ran
        parameters = LIVE if tuning is None else FlowParameters(*map(float, tuned(np.asarray(tuning.factors), LIVE)))
        self.estimator = LiveEstimator(topology, Profiles() if profiles is None else profiles, parameters, met, least)
        self._machines = sorted({row.group for row in topology.resources if row.group})
        self._index = {row.name: number for number, row in enumerate(topology.resources)}
        self._cores = np.zeros(len(self._index))  # of the processors that a compute row stands for, all together
        self._private: dict[int, list[int]] = {}  # row -> accelerators whose work touches it
        self._sort_rows(cpus)
        self._used_s: Mapping[int, float] | None = None  # CPU time of each process, when it was last read …
        self._asked_s, self._clock = -math.inf, clock  # … and when that was
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
        """Take in a window of a place: amounts per second, by event."""
        ours = self._cpus_used() if any(event.startswith("stat.") for event in rates) else 0.0
        if not 0 < ended_s - began_s <= MAX_WINDOW_S or math.isnan(ours):
            return
        used: dict[str, float] = {}
        for machine in self._machines:
            used |= rows.exact(self._topology, machine, {place: rates})
        since_s = began_s - (NVML_LAG_S if math.isnan(rates.get("gpm.sm_busy_us", math.nan)) else 0.0)
        at = np.array(sorted(self._index[name] for name in used if not self._mixed(self._index[name], since_s)), int)
        total = np.array([used[self._topology.resources[row].name] for row in at])
        cores = self._cores[at]
        cpu = cores > 0
        total[cpu] *= cores[cpu] / self._cpus
        own = np.where(cpu, ours / max(self._cpus, 1), 0.0)
        if len(at):
            self.estimator.rows(at, total, own, cpu, ended_s)
        for row in self.estimator.contradicted():
            _log_once(row)

    def _cpus_used(self) -> float:
        """Processors that we have used since the last call, on average; NaN if that is not known.

        On a busy machine the call comes late, so the average is over the time between calls, not over the window.
        """
        before, before_s = self._used_s, self._asked_s
        self._used_s, self._asked_s = self._cpu_s(), self._clock()
        used, passed_s = self._used_s, self._asked_s - before_s
        if before is None or any(used.get(process, -1.0) < ours for process, ours in before.items()):
            return math.nan  # the first call, or a process has ended and its time is lost
        return (sum(used.values()) - sum(before.values())) / passed_s if 0 < passed_s <= MAX_WINDOW_S else math.nan

    def _mixed(self, row: int, since_s: float) -> bool:
        """True if a kernel of ours ran on a device of the row, so that the part of others is unknown."""
        return any(self._ran(device, since_s) for device in self._private.get(row, ()))

    def believed(self, now_s: float) -> RowLoads:
        """Mean and deviation of the load of each row by others. Deviations grow while nothing is read."""
        if self._said is not None and 0 <= now_s - self._said[0] < BELIEF_CACHE_S:
            return self._said[1]
        self._said = now_s, self.estimator.believed(now_s)
        return self._said[1]

    def by_row(self, now_s: float) -> dict[str, tuple[float, float]]:
        """The same by name, of rows with any reading."""
        mean, deviation = self.believed(now_s)
        return {
            name: (float(mean[at]), float(deviation[at])) for name, at in self._index.items() if self.estimator.told[at]
        }


@lru_cache(maxsize=64)
def _log_once(row: str) -> None:
    log.warning(
        "readings of %s do not fit the others or the times of our runs: a counter or the topology is wrong, or others "
        "run at a lower priority; they count for less",
        row,
    )


def cpu_seconds(processes: Sequence[int], families: Mapping[int, Sequence[int]] | None = None) -> dict[int, float]:
    """CPU time that processes have used so far, without those that have ended.

    A family, a process and its children, is one sum: the time of children that have ended is counted with the parent's.
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
