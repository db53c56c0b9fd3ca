"""Forecasts of training jobs, of a service or of a simulated cluster, as a table and as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from symphony.training_jobs.job_forecast import Band, JobForecast, SampleEvidence, SpeedLoss

if TYPE_CHECKING:
    from symphony.training_jobs.run_forecasts import ActualTimes

WIDE_TERMINAL_COLUMNS = 120  # below it, bands are on a line of their own


@dataclass(frozen=True)
class ForecastReport:
    """Forecasts made at one instant, and what happened afterwards, if that is known."""

    jobs: Sequence[JobForecast]
    at_s: float = 0.0  # on the clock of the forecasts
    actual: Mapping[int, ActualTimes] = field(default_factory=dict)
    live: bool = False  # of a service

    def check(self) -> dict[str, int]:
        """How many actual times are within their bands."""
        waited = [job for job in self.jobs if not job.runs]
        return {
            "jobs": len(self.jobs),
            "finishes_within": sum(within(job.finish_s, self.actual[job.job].finish_s) for job in self.jobs),
            "waited": len(waited),
            "starts_within": sum(within(job.start_s, self.actual[job.job].start_s) for job in waited),
        }

    def as_json(self) -> dict[str, Any]:
        """The fields `at_s`, `jobs` and, if actual times are known, `check`."""
        jobs = []
        for job in self.jobs:
            content = {
                "job": job.job,
                "kernel": job.task,
                "runs": job.runs,
                "devices": list(job.devices),
                "kind": job.kind or None,
                "workers": job.workers,
                "units_left": job.steps_left,
                "speed": _band_json(job.speed),
                "start_s": _band_json(job.start_s),
                "finish_s": _band_json(job.finish_s),
                "loses": [{"job": loss.job, "task": loss.task, "kept": _band_json(loss.kept)} for loss in job.loses],
                "samples": job.evidence._asdict() | {"guess_only": job.evidence.guess_only},
            }
            if self.actual:
                content["happened"] = self.actual[job.job]._asdict()
            jobs.append(content)
        return {"at_s": self.at_s, "jobs": jobs} | ({"check": self.check()} if self.actual else {})


def _band_json(band: Band) -> dict[str, float | None]:
    """JSON has no infinity: never is null."""
    return {name: value if math.isfinite(value) else None for name, value in band._asdict().items()}


def within(band: Band, value: float) -> bool:
    """Whether a time is in a band, to the second."""
    return band.low - 1 <= value <= band.high + 1


def _unit(seconds: float) -> tuple[float, str]:
    units = ((86_400.0, "d"), (3600.0, "h"), (60.0, "min"), (0.0, "s"))
    return next((size, unit) for size, unit in units if seconds >= 2 * size)


def _figure(value: float) -> str:
    """Three digits, or all digits of a large number; no exponent."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def time(seconds: float) -> str:
    """A duration, in a suitable unit."""
    size, unit = _unit(seconds)
    return f"{_figure(seconds / (size or 1))} {unit}"


def times(band: Band, now_s: float, apart: str = " ") -> str:
    """A band as durations from now, in the unit of its median."""
    if math.isinf(band.mid):
        return "never" if math.isinf(band.low) else f"{time(band.low - now_s)} or never"
    size, unit = _unit(band.mid - now_s)
    low, mid, high = ("never" if math.isinf(end) else _figure((end - now_s) / (size or 1)) for end in band)
    return f"{mid} {unit}{apart}({low} to {high})"


def _where(job: JobForecast) -> str:
    if len(job.devices) == 1:
        return job.devices[0]
    place = f"{job.workers} × {job.kind}" if job.workers > 1 else job.kind
    return place if job.runs else f"{place}?" if job.kind else "nowhere"


def _samples(evidence: SampleEvidence, apart: str) -> str:
    if evidence.newest_s is None:
        return "guess only"
    return f"{evidence.signature} + {evidence.kernel} + {evidence.family},{apart}{time(evidence.newest_s)} old"


def _actual_times(job: JobForecast, actual: ActualTimes, now_s: float) -> str:
    """Durations from the time of the forecast; a mark if outside the band."""

    def one(what: str, band: Band, value: float) -> str:
        return f"{what} {time(value - now_s)}{'' if within(band, value) else ' ✗'}"

    done = one("done", job.finish_s, actual.finish_s)
    return done if job.runs else f"{one('started', job.start_s, actual.start_s)}, {done}"


def _loss(loss: SpeedLoss, live: bool) -> str:
    low, mid, high = (f"{1 - end:.0%}" for end in (loss.kept.high, loss.kept.mid, loss.kept.low))
    return f"{mid} ({low} to {high}) to {f'job {loss.job}' if loss.job or not live else 'another user'}"


def show(console: Console, report: ForecastReport, title: str) -> None:
    """Print a table with one job per row."""
    apart = "\n" if console.width < WIDE_TERMINAL_COLUMNS else " "
    losses = any(job.loses for job in report.jobs)
    table = Table(title=escape(title), title_justify="left", box=None, pad_edge=False, padding=(0, 1))
    names = ("job", "task", "where", "steps/s") if report.live else ("job", "kernel", "where", "units/s")
    for column in (*names, *(["loses"] if losses else []), "start in", "finish in", "samples"):
        table.add_column(column, overflow="fold")
    if report.actual:
        table.add_column("happened")
    for job in sorted(report.jobs, key=lambda job: (not job.runs, job.finish_s.mid)):
        low, mid, high = (_figure(end) for end in job.speed)
        table.add_row(
            str(job.job),
            escape(job.task),
            escape(_where(job)),
            f"{mid}{apart}({low} to {high})",
            *(["; ".join(_loss(loss, report.live) for loss in job.loses)] if losses else []),
            "runs" if job.runs else times(job.start_s, report.at_s, apart),
            times(job.finish_s, report.at_s, apart),
            _samples(job.evidence, apart),
            *([_actual_times(job, report.actual[job.job], report.at_s)] if report.actual else []),
        )
    console.print(table)
    console.print()
    console.print(
        "where?: most likely. samples: same kernel, device and neighbours + same kernel elsewhere + its family"
    )
    if report.actual:
        c = report.check()
        finishes = f"{c['finishes_within']} of {c['jobs']} finishes"
        console.print(f"within bands: {finishes}, {c['starts_within']} of {c['waited']} starts")
