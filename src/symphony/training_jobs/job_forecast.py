"""The forecast of one training job, as a record and as a line of text. Imports no JAX: clients of a service use it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from symphony.problem.units import show


class SampleEvidence(NamedTuple):
    """How many speed samples an estimate rests on."""

    signature: int  # same kernel, device kind, placement (packed or spread) and neighbours
    kernel: int  # same kernel elsewhere
    family: int  # other kernels of its family
    newest_s: float | None  # age of the newest sample of the closest of these groups; None = there is no sample

    @property
    def guess_only(self) -> bool:
        """Whether no sample exists."""
        return self.newest_s is None


class Band(NamedTuple):
    """Median and central interval of a forecast quantity."""

    low: float
    mid: float
    high: float


class SpeedLoss(NamedTuple):
    """The share of its isolated speed that a job keeps beside one neighbour."""

    job: int  # 0 = a job of another user
    task: str
    kept: Band


@dataclass(frozen=True)
class JobForecast:
    """Forecast of one job. `Cluster.forecasts` counts times from now, `forecast` on the clock of its `now_s`."""

    job: int
    task: str  # in a simulation: the kernel
    runs: bool
    devices: tuple[str, ...]  # that it holds
    kind: str  # device kind where it runs or most likely starts; "" = nowhere
    workers: int
    steps_left: float
    speed: Band  # steps per second there, beside its present neighbours
    start_s: Band  # now, if it runs; inf = never
    finish_s: Band  # inf = never
    loses: tuple[SpeedLoss, ...]  # one for each neighbour
    evidence: SampleEvidence


def seconds(value: float) -> str:
    """A time in words, to two or three digits."""
    if not math.isfinite(value):
        return "never"
    return show(value, "seconds", 3 if abs(value) >= 10 else 2)


def spelled(band: Band) -> str:
    """A band of times from now, in words."""
    if not math.isfinite(band.mid):
        return "at an unknown time" if math.isinf(band.low) else f"in {seconds(band.low)} at the earliest"
    high = seconds(band.high) if math.isfinite(band.high) else "any time"
    return f"in {seconds(band.mid)} ({seconds(band.low)} to {high})"


def forecast_line(forecast: JobForecast) -> str:
    """One line of text. Times of the forecast count from now."""
    speed = forecast.speed
    parts = [f"{forecast.task}  expected to end {spelled(forecast.finish_s)}"]
    if not forecast.runs:
        where = f" on {forecast.kind}" if forecast.kind else ""
        parts.append(f"to start {spelled(forecast.start_s)}{where}")
    parts.append(f"{speed.mid:.3g} steps/s ({speed.low:.3g} to {speed.high:.3g})")
    for loss in forecast.loses:
        low, mid, high = (f"{max(1 - x, 0):.0%}" for x in (loss.kept.high, loss.kept.mid, loss.kept.low))
        parts.append(f"loses {mid} ({low} to {high}) to {f'job {loss.job}' if loss.job else 'another user'}")
    samples = forecast.evidence
    if samples.newest_s is None:
        parts.append("all of this is a guess: no job like it has reported its speed yet")
    else:
        parts.append(
            f"based on {samples.signature} samples there, {samples.kernel} elsewhere, {samples.family} of its family, "
            f"the newest {show(samples.newest_s, 'seconds')} old"
        )
    return "; ".join(parts)
