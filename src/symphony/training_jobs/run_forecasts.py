"""Forecasts for the jobs of a simulated run in the closed loop, and the times that actually followed.

`closed_loop.run(watch=…)` passes on the observable state at the end of every window; `RunForecaster` turns it into the
inputs of a forecast. It uses nothing that is hidden from policies. All devices count as up.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from symphony.scheduling.state import READY, RUNNING, SAVING
from symphony.simulator.records import RunRecord
from symphony.simulator.scenarios import Scenario
from symphony.simulator.windowed_run import JobSnapshot
from symphony.training_jobs.beliefs import Beliefs
from symphony.training_jobs.forecast import ClusterNow, JobNow, RecentArrivals, forecast
from symphony.training_jobs.job_forecast import JobForecast

TIME_TOLERANCE_S = 1e-3  # times of a run are rounded


class ActualTimes(NamedTuple):
    """Start and finish of a job after a forecast."""

    start_s: float  # when it next got GPUs; the time of the forecast if it never did
    finish_s: float


class RunForecaster:
    """Follows a run and forecasts its jobs."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.cluster = ClusterNow.of(scenario.topology)
        slots = {kind.name: kind.slots for kind in scenario.topology.kinds}
        devices = scenario.topology.devices
        self.lane_device = np.repeat(np.arange(len(devices)), [slots[device.kind] for device in devices])
        self._held_s: dict[int, float] = {}

    def observe(self, snapshot: JobSnapshot) -> None:
        """Record which jobs hold GPUs. Call it at the end of every window."""
        holds = np.asarray(snapshot.holds)
        self._held_s |= {int(snapshot.job[gang]): float(snapshot.now_s) for gang in np.unique(holds[holds >= 0])}

    def jobs(self, snapshot: JobSnapshot) -> list[JobNow]:
        """Jobs that run or wait; a job that is being saved waits."""
        jobs = []
        now_s, status = float(snapshot.now_s), np.asarray(snapshot.status)
        for gang in np.flatnonzero((np.asarray(snapshot.job) >= 0) & (status >= READY) & (status <= SAVING)):
            number, left = int(snapshot.job[gang]), float(snapshot.units_left[gang])
            lanes = np.flatnonzero(np.asarray(snapshot.holds)[: len(self.lane_device)] == gang)
            new = self._at_arrival(number)
            jobs.append(
                new._replace(
                    left=left,
                    devices=tuple(int(d) for d in self.lane_device[lanes]) if status[gang] == RUNNING else (),
                    has_run=left < new.left,
                    waited_s=now_s - self._held_s.get(number, self.scenario.workload.jobs[number].arrival_s),
                )
            )
        return jobs

    def coming(self, now_s: float) -> RecentArrivals | None:
        """All arrivals so far; None if there are none."""
        arrived = [(job.arrival_s, n) for n, job in enumerate(self.scenario.workload.jobs) if job.arrival_s <= now_s]
        if not arrived or max(arrived)[0] <= 0:
            return None
        last_s = max(arrived)[0]
        return RecentArrivals([self._at_arrival(n) for _, n in arrived], last_s, now_s - last_s)

    def forecast(
        self, snapshot: JobSnapshot, beliefs: Beliefs, *, others: bool = True, share: float = 0.8, seed: int = 0
    ) -> list[JobForecast]:
        """Forecasts of all jobs. `others`: draw future arrivals like those so far."""
        now_s = float(snapshot.now_s)
        coming = self.coming(now_s) if others else None
        return forecast(beliefs, self.jobs(snapshot), self.cluster, now_s, coming=coming, share=share, seed=seed)

    def _at_arrival(self, number: int) -> JobNow:
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
            task=task.kernel,
        )


def actual_times(run: RunRecord, now_s: float) -> dict[int, ActualTimes]:
    """Next start and finish of every job after an instant."""
    start_s: dict[int, float] = {}
    for stay in sorted(run.gangs, key=lambda stay: stay.start_s):
        if stay.start_s > now_s - TIME_TOLERANCE_S:
            start_s.setdefault(stay.job, stay.start_s)
    return {job.job: ActualTimes(start_s.get(job.job, now_s), job.finish_s) for job in run.jobs}
