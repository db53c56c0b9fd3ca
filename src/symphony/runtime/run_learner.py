"""What runs that have ended teach: of kernels (`profiles.py`), and from there of the books.

Learning from a run beside fifteen others takes as long as some decisions. So what is news to nobody is learned when
all that follows from the run is under way; only the first runs of a kernel are learned from before anything is decided.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from symphony.engines.engine import Finished
from symphony.problem.topology import Topology
from symphony.runtime.demand import CoRunners, PastRun
from symphony.runtime.jobs import TaskRun, size_of
from symphony.runtime.machine_monitor import MachineMonitor
from symphony.runtime.scheduler import Scheduler

RUNS_BEFORE_REFRESH = 3  # runs of a kernel on a device kind, in processes that knew it, that are news


@dataclass(frozen=True)
class _FinishedRun:
    run: TaskRun
    ran: PastRun
    event: Finished
    held_s: float
    ahead: bool


class RunLearner:
    """Those to come, and who learns from them. Used by the loop's thread, but for `since`."""

    def __init__(
        self, topology: Topology, scheduler: Scheduler, watch: MachineMonitor, running: Callable[[], Iterable[PastRun]]
    ) -> None:
        """`running`: what the engine runs."""
        self._scheduler, self._watch, self._running = scheduler, watch, running
        self._kinds = [device.kind for device in topology.devices]
        self._is_cpu = [topology.kind_of[kind].type == "cpu" for kind in self._kinds]
        self._company = CoRunners(topology)
        self._waiting: list[_FinishedRun] = []

    def ended(self, run: TaskRun, device: int, event: Finished, held_s: float) -> None:
        """A run has ended, which kept its slot from running for so long beyond its own time."""
        busy_s = event.busy_s if self._is_cpu[device] else math.nan
        active = 1.0 if math.isnan(busy_s) else min(busy_s / max(event.seconds, 1e-9), 1.0)
        kind, ended_s = self._kinds[device], event.began_s + event.seconds
        ran = PastRun(run.kernel.key, kind, device, event.began_s, ended_s, active)
        self._company.ended(ran)  # now: those that end with it have met it
        if run.kernel.options.training is not None:  # how long its steps take is seen while it runs (`rounds.py`)
            return
        lesson = _FinishedRun(run, ran, event, held_s, run.attempts[-1].ahead)
        if self._scheduler.books.profiles.timing(run.kernel.key, kind).warm < RUNS_BEFORE_REFRESH:
            self._learn(lesson, list(self._running()))
        else:
            self._waiting.append(lesson)

    def since(self, began_s: float) -> list[PastRun]:
        """The newest of the runs that have ended since then. Any thread may ask."""
        return self._company.since(began_s)

    def learn(self) -> None:
        """From all that wait."""
        waiting, self._waiting = self._waiting, []
        running = list(self._running()) if waiting else []
        for lesson in waiting:
            self._learn(lesson, running)

    def _learn(self, lesson: _FinishedRun, running: Sequence[PastRun]) -> None:
        run, ran, event, books = lesson.run, lesson.ran, lesson.event, self._scheduler.books
        alone = self._is_cpu[ran.device] or self._company.alone(ran, running)
        company = self._company.of(ran, running)
        seen = self._watch.during(ran.device, ran.began_s, ran.ended_s, alone)
        busy_s = event.busy_s if self._is_cpu[ran.device] else math.nan
        books.profiles.learn(
            ran, size_of(run), event.seconds, busy_s=busy_s, cold=event.cold, company=company, seen=seen
        )
        if not event.cold:
            books.profiles.timing(ran.kernel, ran.kind).learn_around(lesson.held_s, ahead=lesson.ahead)
        books.refresh(run.kernel)
