"""What the loop learns of the machine: loads by others, and times and demands of kernels. One pipeline, in five files:

/proc, NVML ──► machine_monitor ──► background_load ──┐            ┌──► loads by others, for policies
                figures by window   our part of them  ├──► estimation.live
perf ─────────► memory_counter ───────────────────────┤            └──► profiles of kernels
                traffic of memories                   │                   ▲
finished runs ► run_learner ──────────────────────────┘                   │
                    └──► what one run says by itself ──────────────────────┘
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator

from symphony.engines.engine import Engine, Finished
from symphony.estimation.runs import PastRun
from symphony.problem.topology import Topology
from symphony.runtime.background_load import BackgroundLoad, RowLoads, cpu_seconds
from symphony.runtime.jobs import TaskRun
from symphony.runtime.machine_monitor import MachineMonitor
from symphony.runtime.memory_counter import MemoryCounter
from symphony.runtime.run_learner import RunLearner
from symphony.runtime.scheduler import Scheduler
from symphony.telemetry import memory


class DeviceOccupancy:
    """Which runs are on which device. Changed by the loop's thread only; `running` and `ran_since` from any thread."""

    def __init__(self, topology: Topology) -> None:
        self._kinds = [device.kind for device in topology.devices]
        self.on: list[set[TaskRun]] = [set() for _ in topology.devices]
        self.left_s = [-math.inf] * len(self.on)  # when the last run left each device
        self._devices: dict[TaskRun, list[int]] = {}

    def add(self, run: TaskRun, devices: list[int]) -> None:
        self._devices[run] = devices
        for device in devices:
            self.on[device].add(run)

    def remove(self, run: TaskRun) -> list[int]:
        """Take a run off its devices, and return them."""
        devices = self._devices.pop(run)
        for device in devices:
            self.left_s[device] = time.monotonic()  # before it leaves: other threads call `ran_since` meanwhile
            self.on[device].discard(run)
        return devices

    def ran_since(self, device: int, since_s: float) -> bool:
        return bool(self.on[device]) or self.left_s[device] >= since_s

    def begun(self) -> Iterator[tuple[int, TaskRun]]:
        """Runs that the engine has begun, on each device. Those sent ahead may still wait in the engine."""
        for device, runs in enumerate(self.on):
            for run in tuple(runs):
                if not run.attempts[-1].ahead:
                    yield device, run

    def running(self) -> Iterator[PastRun]:
        for device, run in self.begun():
            sent_s = run.attempts[-1].sent_s
            yield PastRun(run.kernel.key, self._kinds[device], device, sent_s, math.inf, math.nan)


class MachineObserver:
    """Owns the threads that read counters. Methods are for the loop's thread, except `loads_by_row`."""

    def __init__(self, engine: Engine, scheduler: Scheduler, occupancy: DeviceOccupancy) -> None:
        topology = engine.inventory()
        self._occupancy = occupancy
        # Counters of this machine describe the cluster's devices only if the engine has its processes here.
        is_local = engine.processes() is not None
        counted = memory.at_hand() if is_local else None
        partial = bool(counted and counted.least)
        self.background = BackgroundLoad(
            topology,
            (lambda: cpu_seconds([os.getpid()], engine.processes())) if is_local else dict,
            occupancy.ran_since,
            scheduler.policy.tuning,
            os.cpu_count(),
            scheduler.workload.profiles,
            self.runs_since,
            partial,
        )
        counter = MemoryCounter(topology, counted, self.background.estimator.traffic) if counted else None
        self.monitor = MachineMonitor(topology, None if is_local else [], self.background.window, counter)
        self._learner = RunLearner(topology, scheduler, self.monitor, self.background, occupancy.running)
        self.set_busy, self.learn = self.monitor.set_busy, self._learner.learn
        self.close = self.monitor.close

    def loads(self, now_s: float) -> RowLoads:
        """Mean and standard deviation of the load that others put on each row."""
        return self.background.believed(now_s)

    def loads_by_row(self) -> dict[str, tuple[float, float]]:
        return self.background.by_row(time.monotonic())

    def finished(self, run: TaskRun, device: int, event: Finished, held_s: float) -> None:
        """A run has finished. `held_s`: seconds for which its slot was occupied beyond the kernel's own time."""
        self._learner.ended(run, device, event, held_s)

    def runs_since(self, since_s: float) -> list[PastRun]:
        """Runs that finished after `since_s`, and those that still run. From any thread."""
        return [*self._learner.since(since_s), *self._occupancy.running()]
