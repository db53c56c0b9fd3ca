"""`symphony forecast` without --live: forecasts in a simulated cluster, and what happened afterwards."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from symphony.cli import terminal
from symphony.cli.forecast_table import ForecastReport, time
from symphony.problem import topologies
from symphony.problem.errors import InputError
from symphony.problem.limits import bucket
from symphony.simulator.scenarios import CALM, Scenario, draw
from symphony.simulator.windowed_run import JobSnapshot
from symphony.training_jobs import measured_spec
from symphony.training_jobs.beliefs import Beliefs
from symphony.training_jobs.closed_loop import run
from symphony.training_jobs.measured_jobs import MeasuredJobs, describe_jobs, sharable
from symphony.training_jobs.planner import Planner
from symphony.training_jobs.run_forecasts import RunForecaster, actual_times

ROUND_S = 360.0  # of the planner
FORECAST_WORK_NOISE = 0.06  # deviation of the work of drawn jobs from that of their kernel
FEWEST_SLOTS, MOST_SLOTS = 16, 256  # jobs in the system at once


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
) -> ForecastReport:
    """Forecasts at the end of the first round from `at` on (the middle of arrivals if None).

    With `check` the run goes on, and the report has the actual times.
    """
    scenario, made = _scenario(topology, workload, seed, tables)
    at_s = max(job.arrival_s for job in scenario.workload.jobs) / 2 if at is None else at
    forecaster = RunForecaster(scenario)
    reports: list[ForecastReport] = []
    with terminal.progress_bar(console, quiet=quiet, width=30) as update:

        def watch(snapshot: JobSnapshot, beliefs: Beliefs) -> bool:
            forecaster.observe(snapshot)
            now_s = float(snapshot.now_s)
            update(f"at {time(now_s)}", min(1.0, now_s / max(at_s, 1.0)))
            if not reports and now_s >= at_s and not bool(snapshot.over):
                jobs = forecaster.forecast(snapshot, beliefs, share=share, seed=scenario.seed)
                reports.append(ForecastReport(jobs, now_s))
            return check or not reports

        policy = Planner(rows=scenario.job_slots)
        out = run(scenario, policy, describe_jobs(made, scenario.topology), watch=watch)
    if not reports:
        ended = time(max((job.finish_s for job in out.run.jobs), default=0.0))
        raise InputError(f"all jobs were done by {ended}", where="--at", hint="name an earlier time")
    [report] = reports
    return replace(report, actual=actual_times(out.run, report.at_s)) if check else report


def _scenario(topology: str, workload: str, seed: int, tables: Path | None) -> tuple[Scenario, MeasuredJobs]:
    cluster = sharable(topologies.topology(topology))
    made = measured_spec.workload(workload, cluster, seed, tables)
    noise = FORECAST_WORK_NOISE if workload.startswith(measured_spec.MEASURED_NAME) else 0.0
    rounds = replace(CALM, window_s=ROUND_S, offer_at_windows=True, work_noise=noise)
    slots = min(MOST_SLOTS, max(FEWEST_SLOTS, bucket(len(made.workload.jobs))))
    drawn = draw(cluster, made.workload, seed, rounds, job_slots=slots)
    return replace(drawn, truth=made.truth, believed=made.believed), made
