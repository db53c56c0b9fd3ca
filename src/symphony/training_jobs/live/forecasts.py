"""What real training jobs may expect (`training_jobs/forecast.py`), of where they are now."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from symphony.problem.evidence import SampleEvidence
from symphony.problem.units import show
from symphony.training_jobs.forecast import Band, ClusterNow, JobNow, RecentArrivals
from symphony.training_jobs.forecast import forecast as foretold
from symphony.training_jobs.live.speed_beliefs import JobKind, SpeedBeliefs


class TrainingJobNow(NamedTuple):
    """A training job that runs or waits."""

    job: int
    task: str
    kind: JobKind
    now: JobNow  # as a forecast takes it, under its number in samples; its kernel is yet to be said


@dataclass(frozen=True)
class ClusterSnapshot:
    """All of them at an instant, and what has come of late."""

    now_s: float
    jobs: Sequence[TrainingJobNow]
    down: frozenset[int]  # devices
    come: Sequence[TrainingJobNow]
    for_s: float  # in so many seconds, up to the last
    silent_s: float = 0.0  # since then


class NeighbourLoss(NamedTuple):
    """What a job keeps of its speed beside another; 0 = somebody else's."""

    job: int
    task: str
    kept: Band


@dataclass(frozen=True)
class TrainingForecast:
    """What a training job may expect. Bands hold what happens with the share that was asked for; times are from now."""

    job: int
    task: str
    runs: bool
    devices: tuple[str, ...]  # that it holds
    kind: str  # of device: where it runs, or is most likely to start; "" = nowhere
    steps_left: float
    speed: Band  # steps a second
    start_s: Band  # 0, if it runs
    finish_s: Band
    loses: tuple[NeighbourLoss, ...]
    evidence: SampleEvidence  # samples that the speed rests on


def forecasts(speeds: SpeedBeliefs, now: ClusterSnapshot, share: float = 0.8) -> list[TrainingForecast]:
    """What they may expect, in their order. For the thread that learns."""
    topology, beliefs = speeds.topology, speeds.learner.beliefs
    every = [*now.jobs, *now.come]
    numbers = speeds.numbered({one.kind for one in every})
    names = [kind.name for kind in topology.kinds]
    jobs = [one.now._replace(kernel=numbers[one.kind]) for one in every]
    present, come = jobs[: len(now.jobs)], jobs[len(now.jobs) :]
    cluster = ClusterNow.of(topology, now.down)
    coming = RecentArrivals(come, now.for_s, now.silent_s) if now.for_s > 0 else None
    found = foretold(beliefs, present, cluster, now.now_s, coming=coming, share=share)

    named = {one.now.job: (one.job, one.task) for one in now.jobs}

    def later(band: Band) -> Band:
        return Band(*(max(x - now.now_s, 0.0) for x in band))

    return [
        TrainingForecast(
            job=one.job,
            task=one.task,
            runs=told.runs,
            devices=tuple(topology.devices[device].name for device in one.now.devices),
            kind=names[told.kind] if told.kind >= 0 else "",
            steps_left=one.now.left,
            speed=told.speed,
            start_s=later(told.start_s),
            finish_s=later(told.finish_s),
            loses=tuple(NeighbourLoss(*named[loss.job], loss.kept) for loss in told.loses),
            evidence=told.evidence,
        )
        for one, told in zip(now.jobs, found, strict=True)
    ]


def forecast_line(one: TrainingForecast) -> str:
    """For people, in a line."""

    def span(band: Band) -> str:
        if not math.isfinite(band.mid):
            return "nobody knows when"
        high = show(band.high, "seconds") if math.isfinite(band.high) else "any time"
        return f"in {show(band.mid, 'seconds')} ({show(band.low, 'seconds')} to {high})"

    said = [f"{one.task}  expected to end {span(one.finish_s)}"]
    if not one.runs:
        said.append(f"to start {span(one.start_s)}" + (f" on {one.kind}" if one.kind else ""))
    said.append(f"{one.speed.mid:.3g} steps a second ({one.speed.low:.3g} to {one.speed.high:.3g})")
    for loss in one.loses:
        low, mid, high = (f"{max(1 - x, 0):.0%}" for x in (loss.kept.high, loss.kept.mid, loss.kept.low))
        said.append(f"loses {mid} ({low} to {high}) to {f'job {loss.job}' if loss.job else 'another user'}")
    b = one.evidence
    if b.newest_s is None:
        said.append("all of that a guess: nothing like it has been seen")
    else:
        age = show(b.newest_s, "seconds")
        said.append(
            f"by {b.signature} samples there, {b.kernel} elsewhere, {b.family} of its family, the newest {age} old"
        )
    return "; ".join(said)
