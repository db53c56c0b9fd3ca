"""Learns from finished runs: updates the profiles of kernels, and from them the live workload.

Learning from a run beside fifteen others takes as long as some decisions. So it is deferred until all work that the
finished run made possible has been dispatched. Only the first runs of a kernel are learned from before the next turn.
Of short kernels that are well known, a sample of the runs is learned from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from symphony.engines.engine import Finished
from symphony.problem.topology import Topology
from symphony.runtime.demand import MIN_RUN_S, CoRunners, PastRun
from symphony.runtime.jobs import TaskRun, size_of
from symphony.runtime.machine_monitor import MachineMonitor
from symphony.runtime.scheduler import Scheduler

RUNS_BEFORE_REFRESH = 3  # warm runs of a kernel on a device kind that are learned from at once
# Of runs shorter than `MIN_RUN_S`, after so many warm ones, one in this time is learned from: that takes 50 µs.
WELL_KNOWN_RUNS, SAMPLE_INTERVAL_S = 64, 4e-3


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
        running: Callable[[], Iterable[PastRun]],
    ) -> None:
        self._scheduler, self._monitor, self._running = scheduler, monitor, running
        self._kinds = [device.kind for device in topology.devices]
        self._is_cpu = [topology.kind_of[kind].type == "cpu" for kind in self._kinds]
        self._company = CoRunners(topology)
        self._deferred: list[_FinishedRun] = []
        self._sampled_s: dict[
            tuple[str, str], float
        ] = {}  # end of the last run learned from, by kernel and device kind

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

    def learn(self) -> None:
        """Learn from all runs that were deferred."""
        deferred, self._deferred = self._deferred, []
        running = list(self._running()) if deferred else []
        for finished in deferred:
            self._learn(finished, running)

    def _learn(self, finished: _FinishedRun, running: Sequence[PastRun]) -> None:
        run, ran, event, workload = finished.run, finished.ran, finished.event, self._scheduler.workload
        alone = self._is_cpu[ran.device] or self._company.alone(ran, running)
        workload.profiles.learn(
            ran,
            size_of(run),
            event.seconds,
            busy_s=finished.busy_s,
            cold=event.cold,
            company=self._company.of(ran, running),
            seen=self._monitor.during(ran.device, ran.began_s, ran.ended_s, alone),
        )
        if not event.cold:
            workload.profiles.timing(ran.kernel, ran.kind).learn_around(finished.held_s, ahead=finished.ahead)
        workload.refresh(run.kernel)
