"""What the jobs of a run in the closed loop may expect, and what then happened to them.

The loop shows what is known at the end of every window (`closed_loop.run(watch=…)`); here that becomes what a forecast
is made of: who runs where, who waits, and what has come so far. Nothing that policies do not know is looked at. All
devices are taken to be up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from symphony.scheduling.state import READY, RUNNING, SAVING
from symphony.simulator.records import RunRecord
from symphony.simulator.scenarios import Scenario
from symphony.simulator.windowed_run import JobSnapshot
from symphony.training_jobs.beliefs import Beliefs
from symphony.training_jobs.forecast import ClusterNow, JobForecast, JobNow, RecentArrivals, forecast

TIME_TOLERANCE_S = 1e-3  # instants of a run are rounded


class ActualTimes(NamedTuple):
    """What became of a job after a forecast."""

    start_s: float  # when it was next given GPUs; then, if it never was again
    finish_s: float


class RunForecaster:
    """Follows a run, and says what its jobs may expect."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.cluster = ClusterNow.of(scenario.topology)
        slots = {kind.name: kind.slots for kind in scenario.topology.kinds}
        devices = scenario.topology.devices
        self.lane_device = np.repeat(np.arange(len(devices)), [slots[device.kind] for device in devices])
        self._held_s: dict[int, float] = {}

    def observe(self, look: JobSnapshot) -> None:
        """Take note of who has GPUs. To be called at the end of every window."""
        holds = np.asarray(look.holds)
        self._held_s |= {int(look.job[gang]): float(look.now_s) for gang in np.unique(holds[holds >= 0])}

    def jobs(self, look: JobSnapshot) -> list[JobNow]:
        """Who runs and who waits. One who is being saved waits."""
        found = []
        now_s, status = float(look.now_s), np.asarray(look.status)
        for gang in np.flatnonzero((np.asarray(look.job) >= 0) & (status >= READY) & (status <= SAVING)):
            number, left = int(look.job[gang]), float(look.units_left[gang])
            lanes = np.flatnonzero(np.asarray(look.holds)[: len(self.lane_device)] == gang)
            new = self._as_it_came(number)
            found.append(
                new._replace(
                    left=left,
                    devices=tuple(int(d) for d in self.lane_device[lanes]) if status[gang] == RUNNING else (),
                    has_run=left < new.left,
                    waited_s=now_s - self._held_s.get(number, self.scenario.workload.jobs[number].arrival_s),
                )
            )
        return found

    def coming(self, now_s: float) -> RecentArrivals | None:
        """What has come so far; None if nothing has."""
        came = [(job.arrival_s, n) for n, job in enumerate(self.scenario.workload.jobs) if job.arrival_s <= now_s]
        if not came or max(came)[0] <= 0:
            return None
        last_s = max(came)[0]
        return RecentArrivals([self._as_it_came(n) for _, n in came], last_s, now_s - last_s)

    def forecast(
        self, look: JobSnapshot, beliefs: Beliefs, *, others: bool = True, share: float = 0.8, seed: int = 0
    ) -> list[JobForecast]:
        """What each job may expect; `others`: as long as jobs go on coming as they did."""
        now_s = float(look.now_s)
        coming = self.coming(now_s) if others else None
        return forecast(beliefs, self.jobs(look), self.cluster, now_s, coming=coming, share=share, seed=seed)

    def _as_it_came(self, number: int) -> JobNow:
        work = self.scenario.workload
        job = work.jobs[number]
        gang, task = work.graphs[job.graph].all_gangs[0], work.graphs[job.graph].tasks[0]
        return JobNow(
            job=number,
            kernel=work.kernel_index[task.kernel],
            left=task.units,
            workers=len(gang.tasks),
            priority=job.priority,
            saving_s=gang.checkpoint_s,
            restoring_s=gang.restore_s,
        )


def actual_times(run: RunRecord, now_s: float) -> dict[int, ActualTimes]:
    """What became of every job after an instant."""
    start_s: dict[int, float] = {}
    for stay in sorted(run.gangs, key=lambda stay: stay.start_s):
        if stay.start_s > now_s - TIME_TOLERANCE_S:
            start_s.setdefault(stay.job, stay.start_s)
    return {job.job: ActualTimes(start_s.get(job.job, now_s), job.finish_s) for job in run.jobs}
