"""Learns from finished runs: updates the profiles of kernels, and from them the live workload.

To learn from a run beside fifteen others takes as long as some decisions. So it is deferred until all work that became
ready with the run has been dispatched; only the first runs of a kernel are learned from before the next turn. Of well
known short kernels, a sample of the runs is used.

If counters of the machine are read, the time of a run of a known kernel first goes to the estimator
(`estimation/live.py`), as a reading of the rows that it used and of its isolated time. It updates the profile with the
isolated time that follows; the other figures of the run are learned after that.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from symphony.engines.engine import Finished
from symphony.estimation.kernels import MIN_RUN_S
from symphony.estimation.live import RunReading
from symphony.estimation.runs import CoRunners, PastRun
from symphony.problem.topology import Topology
from symphony.runtime.background_load import BackgroundLoad
from symphony.runtime.jobs import TaskRun, size_of
from symphony.runtime.machine_monitor import MachineMonitor
from symphony.runtime.profiles import NO_EFFECT, EffectOfOthers
from symphony.runtime.scheduler import Scheduler

log = logging.getLogger("symphony.runtime")
RUNS_BEFORE_REFRESH = 3  # warm runs of a kernel on a device kind that are learned from at once
# Of runs shorter than `MIN_RUN_S`, after so many warm ones, one in this time is learned from: that takes 50 µs.
WELL_KNOWN_RUNS, SAMPLE_INTERVAL_S = 64, 4e-3
MIN_OTHERS = 0.1  # load by others from which it counts


@dataclass(frozen=True)
class _FinishedRun:
    run: TaskRun
    ran: PastRun
    event: Finished
    busy_s: float  # CPU time; NaN on accelerators
    held_s: float
    ahead: bool


class RunLearner:
    """Used by the loop's thread, except `since`. `running` yields the runs that the engine has begun."""

    def __init__(
        self,
        topology: Topology,
        scheduler: Scheduler,
        monitor: MachineMonitor,
        background: BackgroundLoad,
        running: Callable[[], Iterable[PastRun]],
    ) -> None:
        self._scheduler, self._monitor, self._running = scheduler, monitor, running
        self._background, self._usage = background, RowUsage(topology)
        self._estimator = background.estimator
        self._kinds = [device.kind for device in topology.devices]
        self._is_cpu = [topology.kind_of[kind].type == "cpu" for kind in self._kinds]
        self._company = CoRunners(topology)
        self._deferred: list[_FinishedRun] = []
        self._weighing: dict[int, _FinishedRun] = {}  # by identity of the reading
        # End of the last run that was learned from, by kernel and device kind.
        self._sampled_s: dict[tuple[str, str], float] = {}

    def ended(self, run: TaskRun, device: int, event: Finished, held_s: float) -> None:
        """A run has finished. `held_s`: seconds for which its slot was occupied beyond the kernel's own time."""
        busy_s = event.busy_s / run.kernel.options.cores if self._is_cpu[device] else math.nan
        active = 1.0 if math.isnan(busy_s) else min(busy_s / max(event.seconds, 1e-9), 1.0)
        kind, ended_s = self._kinds[device], event.began_s + event.seconds
        ran = PastRun(run.kernel.key, kind, device, event.began_s, ended_s, active)
        self._company.ended(ran)  # not deferred: runs that end at the same time ran beside it
        if run.kernel.options.training is not None:  # its speed is learned while it runs (`rounds.py`)
            return
        warm = self._scheduler.workload.profiles.timing(run.kernel.key, kind).warm
        if warm >= WELL_KNOWN_RUNS and event.seconds < MIN_RUN_S and not event.cold:
            if 0.0 <= ended_s - self._sampled_s.get((run.kernel.key, kind), -math.inf) < SAMPLE_INTERVAL_S:
                return
            self._sampled_s[run.kernel.key, kind] = ended_s
        finished = _FinishedRun(run, ran, event, busy_s, held_s, run.attempts[-1].ahead)
        if warm < RUNS_BEFORE_REFRESH:
            self._learn(finished, list(self._running()))
        else:
            self._deferred.append(finished)

    def since(self, began_s: float) -> list[PastRun]:
        """The latest of the runs that finished after `began_s`. From any thread."""
        return self._company.since(began_s)

    def learn(self, *, last: bool = False) -> None:
        """Learn from all deferred runs. `last`: also from those that wait to be weighed together with others."""
        deferred, self._deferred = self._deferred, []
        running = list(self._running()) if deferred or self._weighing else []
        for finished in deferred:
            reading = self._reading(finished, running)
            if reading is not None and self._estimator.ran(reading):
                self._weighing[id(reading)] = finished
            else:
                self._learn(finished, running)
        now_s = math.inf if last else max((one.ran.ended_s for one in deferred), default=-math.inf)
        try:
            weighed = self._estimator.weigh(now_s)
        except Exception:  # a scheduler that learns less is better than none
            log.exception("run times could not be weighed against each other; some are not learned from")
            self._estimator.drop_waiting()
            self._weighing.clear()
            return
        for reading in weighed:
            self._learn(self._weighing.pop(id(reading)), running, timed=True)

    def _reading(self, finished: _FinishedRun, running: Sequence[PastRun]) -> RunReading | None:
        """A run as a reading of its isolated time and of the rows that it uses; None if these are not known.

        On a CPU, a run with more CPU time than usual was slowed by memory, another one by others on its processor.
        """
        run, ran, event = finished.run, finished.ran, finished.event
        timing = self._scheduler.workload.profiles.timing(ran.kernel, ran.kind)
        if event.cold or event.seconds < MIN_RUN_S or timing.warm < RUNS_BEFORE_REFRESH or not self._estimator.watches:
            return None
        own = self._own_loads(finished, running)
        size, memory = size_of(run), self._usage.row(ran.device, "memory")
        in_memory = finished.busy_s / timing.seconds(size) > 1 + 2 * timing.spread(size)
        if not math.isnan(finished.busy_s):
            own = {row: load for row, load in own.items() if (row == memory) == in_memory}
        return RunReading(ran.device, ran.kernel, ran.kind, size, event.seconds, own, ran.ended_s) if own else None

    def _own_loads(self, finished: _FinishedRun, running: Sequence[PastRun]) -> dict[int, float]:
        """Load that our runs put on the rows that a run uses, by row, as shares of the capacity.

        Empty where the part of each of several runs is not known.
        """
        ran, company = finished.ran, self._company.of(finished.ran, running)
        demand = self._scheduler.workload.demand(finished.run.kernel, ran.kind)
        if not self._is_cpu[ran.device]:
            return self._usage.alone(ran.device, demand) if self._company.alone(ran, running) else {}
        profiles = self._scheduler.workload.profiles
        beside = sum(part for one, part in company if one.device == ran.device)
        own = {}
        if self._usage.row(ran.device, "compute") is not None:
            own["compute"] = (demand["compute"] + beside) / self._usage.capacity(ran.device, "compute")
        if demand.get("memory"):
            share, load = profiles.demand(ran.kernel, ran.kind).share, profiles.load_beside(ran, company)
            own["memory"] = share + float(np.mean(load.part * (share * np.asarray(load.same) + load.mean)))
        return self._usage.rows(ran.device, own)

    def _others(self, finished: _FinishedRun, running: Sequence[PastRun]) -> EffectOfOthers:
        """By how much others slowed a run, by the belief about their loads."""
        mean, std = self._background.believed(finished.ran.ended_s)
        busy = mean > MIN_OTHERS
        if finished.event.cold or not busy.any():
            return NO_EFFECT
        own = self._own_loads(finished, running)
        if not own:
            return NO_EFFECT
        others = {row: (float(mean[row]), float(std[row])) for row in own if busy[row]}
        alone = max(1.0, *own.values())
        row = max(own, key=lambda row: own[row] + others.get(row, (0.0, 0.0))[0])
        both = max(alone, own[row] + others.get(row, (0.0, 0.0))[0])
        memory = self._usage.row(finished.ran.device, "memory") if self._is_cpu[finished.ran.device] else None
        return EffectOfOthers(
            math.log(both / alone),
            others[row][1] / both if both > alone else 0.0,
            others.get(memory, (0.0, 0.0)) if memory is not None else (0.0, 0.0),
        )

    def _learn(self, finished: _FinishedRun, running: Sequence[PastRun], timed: bool = False) -> None:
        run, ran, event, workload = finished.run, finished.ran, finished.event, self._scheduler.workload
        alone = self._is_cpu[ran.device] or self._company.alone(ran, running)
        workload.profiles.learn(
            ran,
            size_of(run),
            event.seconds,
            busy_s=finished.busy_s,
            cold=event.cold,
            company=self._company.of(ran, running),
            others=self._others(finished, running),
            seen=self._monitor.during(ran.device, ran.began_s, ran.ended_s, alone),
            timed=timed,
        )
        if not event.cold:
            workload.profiles.timing(ran.kernel, ran.kind).learn_around(finished.held_s, ahead=finished.ahead)
        workload.refresh(run.kernel)


class RowUsage:
    """Rows on the routes of devices, by kind."""

    def __init__(self, topology: Topology) -> None:
        index = {row.name: number for number, row in enumerate(topology.resources)}
        self._capacity = [row.capacity for row in topology.resources]
        self._rows = [
            {topology.resources[at].kind: at for at in (index[hop.resource] for hop in device.route)}
            for device in topology.devices
        ]

    def row(self, device: int, kind: str) -> int | None:
        return self._rows[device].get(kind)

    def capacity(self, device: int, kind: str) -> float:
        return self._capacity[self._rows[device][kind]]

    def rows(self, device: int, loads: Mapping[str, float]) -> dict[int, float]:
        """Loads by row, of loads by kind."""
        return {self._rows[device][kind]: load for kind, load in loads.items() if kind in self._rows[device]}

    def alone(self, device: int, demand: Mapping[str, float]) -> dict[int, float]:
        """Load by one worker with this demand, by row, as a share of the capacity."""
        found = self.rows(device, demand)
        return {row: amount / self._capacity[row] for row, amount in found.items() if amount}
