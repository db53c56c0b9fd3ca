"""`symphony forecast`: forecasts of the training jobs of a service or of a simulated cluster."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from symphony.cli import options, terminal
from symphony.cli.forecast_table import ForecastReport, show, time
from symphony.cli.remote import Key, Url
from symphony.problem.errors import InputError
from symphony.service.client import connect
from symphony.training_jobs.job_forecast import Band, JobForecast, SpeedLoss

if TYPE_CHECKING:
    from symphony.service.wire import BandView, ForecastView

FORECAST_FORMAT = "symphony.forecast/1"


def forecast(
    *,
    topology: Annotated[str, typer.Option("--topology", "-t", help="Built-in name or TOML file.")] = "gpu24",
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="measured:JOBS?load=…&hours=…, or a job list of Gavel: FILE?jobs=…")
    ] = "measured:48?load=2",
    seed: Annotated[int, typer.Option("--seed", "-s", help="Of workload, true speeds and draws.", min=0)] = 0,
    at: Annotated[
        float | None, typer.Option(help="Seconds into the run; default: the middle of arrivals.", min=0)
    ] = None,
    share: Annotated[float, typer.Option(help="Probability that a band should hold the actual value.")] = 0.8,
    check: Annotated[bool, typer.Option("--check", help="Run to the end, and show the actual times too.")] = False,
    tables: Annotated[Path | None, typer.Option(help="Folder of Gavel's tables, if not $SYMPHONY_DATA/gavel.")] = None,
    output: options.Output = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
    live: Annotated[bool, typer.Option("--live", help="Forecast the training jobs of a service instead.")] = False,
    url: Url = "",
    token: Key = "",
) -> None:
    """Forecast speed, start and finish of training jobs: of a simulated cluster, or (--live) of a service.

    In the simulation, jobs of unknown speed run under the planner up to an instant.
    """
    options.check_file(output)
    if not 0 < share < 1:
        raise InputError(f"--share is {share:g}", hint="write a number between 0 and 1, such as 0.8")
    console = terminal.console(stderr=as_json)
    if live:
        with connect(url, token=token) as cluster:
            views, service = cluster.forecasts(share), cluster.url
        if not views and output is None and not as_json:
            console.print("the service has no training jobs that run or wait")
            return
        report = ForecastReport([_record(view) for view in views], live=True)
        head: dict[str, Any] = {"service": service, "share": share}
        title = f"training jobs of {service}, bands of {share:.0%}"
    else:
        from symphony.cli.forecast_simulated import simulated  # imports JAX, which --live does not need

        report = simulated(console, topology, workload, seed, share, tables=tables, at=at, check=check, quiet=quiet)
        head = {"topology": topology, "workload": workload, "seed": seed, "share": share}
        title = f"{workload} on {topology}, seed {seed}: at {time(report.at_s)}, bands of {share:.0%}"
    content = {"format": FORECAST_FORMAT, **head, **report.as_json()}
    if output is not None:
        output.write_text(json.dumps(content, indent=1))
    if as_json:
        terminal.print_json(content)
    else:
        show(console, report, title)


def _record(view: ForecastView) -> JobForecast:
    """The forecast of a service as the record that a cluster of this process returns."""
    return JobForecast(
        job=view.job,
        task=view.task,
        runs=view.runs,
        devices=tuple(view.devices),
        kind=view.kind,
        workers=max(len(view.devices), 1),
        steps_left=view.steps_left,
        speed=_band(view.speed),
        start_s=_band(view.start_s),
        finish_s=_band(view.finish_s),
        loses=tuple(SpeedLoss(loss.job, loss.task, _band(loss.kept)) for loss in view.loses),
        evidence=view.evidence,
    )


def _band(view: BandView) -> Band:
    return Band(*(math.inf if value is None else value for value in (view.low, view.mid, view.high)))
