"""Training jobs of a simulated cluster, up to an instant and on: `symphony forecast` without --live."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from symphony.cli import terminal
from symphony.cli.forecast_table import time, within
from symphony.problem import topologies
from symphony.problem.errors import InputError
from symphony.problem.limits import bucket
from symphony.simulator.scenarios import CALM, Scenario, draw
from symphony.simulator.windowed_run import JobSnapshot
from symphony.training_jobs import measured_spec
from symphony.training_jobs.beliefs import Beliefs
from symphony.training_jobs.closed_loop import run
from symphony.training_jobs.forecast import Band, JobForecast, JobNow
from symphony.training_jobs.initial_beliefs import describe_jobs
from symphony.training_jobs.measured_jobs import MeasuredJobs, sharable
from symphony.training_jobs.planner import Planner
from symphony.training_jobs.run_forecasts import ActualTimes, RunForecaster, actual_times

ROUND_S = 360.0  # of the planner
FORECAST_WORK_NOISE = 0.06  # what drawn jobs differ by from others of their kernel
FEWEST_SLOTS, MOST_SLOTS = 16, 256  # jobs in the system at once


class _ForecastAtInstant:
    """A forecast at an instant, and whom it is of."""

    def __init__(self, look: JobSnapshot, jobs: list[JobNow], forecasts: list[JobForecast]) -> None:
        self.at_s = float(look.now_s)
        self.of = list(zip(jobs, forecasts, strict=True))


def simulated(
    console: Console,
    topology: str,
    workload: str,
    seed: int,
    share: float,
    *,
    tables: Path | None,
    at: float | None,
    check: bool,
    quiet: bool,
) -> dict[str, Any]:
    """What jobs may expect at an instant (the middle of arrivals if none is said); `check`: what happened, too."""
    scenario, made = _scenario(topology, workload, seed, tables)
    at_s = max(job.arrival_s for job in scenario.workload.jobs) / 2 if at is None else at
    told, after = _run(scenario, made, at_s, share, console, check=check, quiet=quiet)
    return _as_json(told, after, scenario)


def _scenario(topology: str, workload: str, seed: int, tables: Path | None) -> tuple[Scenario, MeasuredJobs]:
    cluster = sharable(topologies.topology(topology))
    made = measured_spec.workload(workload, cluster, seed, tables)
    noise = FORECAST_WORK_NOISE if workload.startswith(measured_spec.MEASURED_NAME) else 0.0
    rounds = replace(CALM, window_s=ROUND_S, offer_at_windows=True, work_noise=noise)
    slots = min(MOST_SLOTS, max(FEWEST_SLOTS, bucket(len(made.workload.jobs))))
    drawn = draw(cluster, made.workload, seed, rounds, job_slots=slots)
    return replace(drawn, truth=made.truth, believed=made.believed), made


def _run(
    scenario: Scenario, made: MeasuredJobs, at_s: float, share: float, console: Console, *, check: bool, quiet: bool
) -> tuple[_ForecastAtInstant, dict[int, ActualTimes]]:
    """The forecast at the end of the first round from then on; and what happened, if the run is to go on."""
    outlook = RunForecaster(scenario)
    told: list[_ForecastAtInstant] = []
    with terminal.progress_bar(console, quiet=quiet, width=30) as update:

        def watch(look: JobSnapshot, beliefs: Beliefs) -> bool:
            outlook.observe(look)
            now_s = float(look.now_s)
            update(f"at {time(now_s)}", min(1.0, now_s / max(at_s, 1.0)))
            if not told and now_s >= at_s and not bool(look.over):
                found = outlook.forecast(look, beliefs, share=share, seed=scenario.seed)
                told.append(_ForecastAtInstant(look, outlook.jobs(look), found))
            return check or not told

        policy = Planner(rows=scenario.job_slots)
        out = run(scenario, policy, describe_jobs(made, scenario.topology), watch=watch)
    if not told:
        ended = time(max((job.finish_s for job in out.run.jobs), default=0.0))
        raise InputError(f"all jobs were done by {ended}", where="--at", hint="name an earlier instant")
    return told[0], actual_times(out.run, told[0].at_s) if check else {}


def _as_json(told: _ForecastAtInstant, after: dict[int, ActualTimes], scenario: Scenario) -> dict[str, Any]:
    kinds = [kind.name for kind in scenario.topology.kinds]
    jobs = []
    for job, one in told.of:
        content = {
            "job": one.job,
            "kernel": scenario.workload.kernels[job.kernel].name,
            "runs": one.runs,
            "devices": [scenario.topology.devices[d].name for d in job.devices],
            "kind": kinds[one.kind] if one.kind >= 0 else None,
            "workers": job.workers,
            "units_left": job.left,
            "speed": _band(one.speed),
            "start_s": _band(one.start_s),
            "finish_s": _band(one.finish_s),
            "loses": [{"job": loss.job, "kept": _band(loss.kept)} for loss in one.loses],
            "samples": one.evidence._asdict() | {"guess_only": one.evidence.guess_only},
        }
        if after:
            content["happened"] = after[one.job]._asdict()
        jobs.append(content)
    return {"at_s": told.at_s, "jobs": jobs} | ({"check": _checked(jobs)} if after else {})


def _band(band: Band) -> dict[str, float | None]:
    """What is never to be expected is null."""
    return {name: value if math.isfinite(value) else None for name, value in band._asdict().items()}


def _checked(jobs: list[dict[str, Any]]) -> dict[str, int]:
    waited = [job for job in jobs if not job["runs"]]
    return {
        "jobs": len(jobs),
        "finishes_within": sum(within(job["finish_s"], job["happened"]["finish_s"]) for job in jobs),
        "waited": len(waited),
        "starts_within": sum(within(job["start_s"], job["happened"]["start_s"]) for job in waited),
    }
