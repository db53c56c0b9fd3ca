"""Forecasts of the training jobs of a running cluster (`training_jobs/forecast.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from symphony.training_jobs.forecast import ClusterNow, JobNow, RecentArrivals, forecast
from symphony.training_jobs.job_forecast import Band, JobForecast
from symphony.training_jobs.live.speed_beliefs import JobKind, SpeedBeliefs


class TrainingJobNow(NamedTuple):
    """A training job that runs or waits."""

    job: int
    kind: JobKind
    now: JobNow  # `now.job` is its number in samples; `now.kernel` is filled in by `forecasts`


@dataclass(frozen=True)
class ClusterSnapshot:
    """All training jobs at one instant, and the recent arrivals."""

    now_s: float
    jobs: Sequence[TrainingJobNow]
    down: frozenset[int]  # devices
    arrived: Sequence[TrainingJobNow]
    for_s: float  # between the first and the last arrival
    silent_s: float = 0.0  # since the last arrival


def forecasts(speeds: SpeedBeliefs, snapshot: ClusterSnapshot, share: float = 0.8) -> list[JobForecast]:
    """Forecasts of all jobs, in their order, with times from now. Called on the thread that learns."""
    every = [*snapshot.jobs, *snapshot.arrived]
    numbers = speeds.numbered({one.kind for one in every})
    jobs = [one.now._replace(kernel=numbers[one.kind]) for one in every]
    present, like = jobs[: len(snapshot.jobs)], jobs[len(snapshot.jobs) :]
    cluster = ClusterNow.of(speeds.topology, snapshot.down)
    coming = RecentArrivals(like, snapshot.for_s, snapshot.silent_s) if snapshot.for_s > 0 else None
    made = forecast(speeds.learner.beliefs, present, cluster, snapshot.now_s, coming=coming, share=share)
    job_of = {one.now.job: one.job for one in snapshot.jobs}

    def from_now(band: Band) -> Band:
        return Band(*(max(x - snapshot.now_s, 0.0) for x in band))

    return [
        replace(
            one,
            job=job_of[one.job],
            start_s=from_now(one.start_s),
            finish_s=from_now(one.finish_s),
            loses=tuple(loss._replace(job=job_of[loss.job]) for loss in one.loses),
        )
        for one in made
    ]
